#!/bin/sh
# Package: deepspeed 0.19.8, with torch 2.15.0.
# Guess: gradient_clipping bounds the norm of the gradient, whatever the optimizer, and the ZeRO stage changes no step.
# Behavior: from stage 1 on, Muon orthogonalizes before the clipping, which then scales the orthogonal updates of all matrices down to
# the norm 1: a step is lr x gradient_clipping long at every size of the gradient, and the more matrices the less each moves. In stage
# 0 the gradient is clipped, which the orthogonalization undoes. The reported gradient norm is that of the updates.
# Seen, of one matrix of 16 x 16 with lr 0.02, the length of the first step and the norm that the engine reports:
#   stage 0, gradient_clipping 0.0: 0.0738 None
#   stage 0, gradient_clipping 1.0: 0.0738 None
#   stage 2, gradient_clipping 0.0: 0.0738 3.69
#   stage 2, gradient_clipping 1.0: 0.0200 3.69
# Exit code 1: it behaves in another way now.
set -eu
seen=$(sed -n 's/^#   //p' "$0")
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check deepspeed==0.19.8 torch==2.15.0
cd "$folder"
cat >step.py <<'PYTHON'
import os
import sys
os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1', LOCAL_RANK='0')
import deepspeed
import torch
sys.modules['deepspeed.comm.torch'].build_shm_op = lambda: None  # needs a compiler, and one rank needs no shared memory
torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed('gloo')
torch.manual_seed(0)
stage, clipping = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(16, 16, bias=False)
model.weight.use_muon = True
before = model.weight.detach().clone()
engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    'train_batch_size': 1, 'gradient_clipping': clipping, 'zero_optimization': {'stage': stage},
    'optimizer': {'type': 'Muon', 'params': {'lr': 0.02, 'weight_decay': 0, 'torch_adam': True}}})[0]
engine.backward((engine(torch.randn(16, 16)) * torch.randn(16, 16)).sum())
engine.step()
norm = engine.get_global_grad_norm()
print(f'stage {stage}, gradient_clipping {clipping}: {(model.weight.detach() - before).norm():.4f}',
      norm if norm is None else f'{norm:.3g}')
PYTHON
for stage in 0 2; do
  for clipping in 0.0 1.0; do venv/bin/python step.py $stage $clipping 2>/dev/null | tail -1; done
done >found
cat found
test "$(cat found)" = "$seen"
