#!/usr/bin/env bash
# The optimizer's step on the CPU: elements/s and bytes/s of AdamW and the others beside what this machine's memory gives
# in the same minute and, with --python, beside torch.optim.AdamW(fused=True) and DeepSpeed's CPUAdam. Writes a table and
# JSON.
#
# usage: scripts/bench_optimizer.sh [--sizes 16M,124M,355M,500M] [--rounds N] [--threads N] [--python PROGRAM [--huge-pages]]
#                                   [--output FOLDER]                                  all of them: --help
set -euo pipefail
here=$(dirname "$(realpath "$0")")

for argument in "$@"; do
  case $argument in -h | --help) exec python3 "$here/bench_optimizer.py" --help ;; esac
done
"$here/install.sh" --benchmarks
make -C "$here/.." --no-print-directory -j"$(nproc)" train
exec python3 "$here/bench_optimizer.py" "$@"
