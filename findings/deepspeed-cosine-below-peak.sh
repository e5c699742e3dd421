#!/bin/sh
# Package: deepspeed 0.19.8, with torch 2.15.0.
# Guess: WarmupCosineLR rises to the optimizer's rate in warmup_num_steps steps, as WarmupLR does, and the first step after them has
# the peak.
# Behavior: two steps have the rate 0, one more than the warm-up's formula, and the cosine begins to fall one step before the warm-up
# ends: the peak is never reached. Of 12 steps with 4 of linear warm-up, the highest rate is 0.96 of it.
# Seen, the rates of steps of an optimizer with lr 1:
#   WarmupLR: 0.000 0.000 0.250 0.500 0.750 1.000 1.000 1.000 1.000 1.000 1.000 1.000
#   WarmupCosineLR: 0.000 0.000 0.250 0.500 0.750 0.962 0.854 0.691 0.500 0.309 0.147 0.038
# Exit code 1: it behaves in another way now.
set -eu
seen=$(sed -n 's/^#   //p' "$0")
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check deepspeed==0.19.8 torch==2.15.0
cd "$folder"
venv/bin/python - 2>/dev/null <<'PYTHON' | grep '^Warmup' >found
import torch
from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupLR
warmup = {'warmup_num_steps': 4, 'warmup_type': 'linear'}
for schedule, more in (WarmupLR, {'warmup_max_lr': 1.0}), (WarmupCosineLR, {'total_num_steps': 12}):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = schedule(optimizer, **warmup, **more)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        scheduler.step()
    print(f'{schedule.__name__}:', *(f'{rate:.3f}' for rate in rates))
PYTHON
cat found
test "$(cat found)" = "$seen"
