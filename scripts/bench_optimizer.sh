#!/usr/bin/env bash
# Measures optimizer steps on the CPU: elements/s and bytes/s of AdamW and the other optimizers, relative to the memory
# bandwidth measured in the same minute. Writes a table and JSON.
#   --python   also measures torch.optim.AdamW(fused=True) and DeepSpeed's CPUAdam
#
# usage: scripts/bench_optimizer.sh [--sizes 16M,124M,355M,500M] [--rounds N] [--threads N] [--python PROGRAM [--huge-pages]]
#                                   [--output FOLDER]                                  all options: --help
set -euo pipefail
here=$(dirname "$(realpath "$0")")

for argument in "$@"; do
  case $argument in -h | --help) exec python3 "$here/bench_optimizer.py" --help ;; esac
done
"$here/install.sh" --benchmarks
# Without CUDA: its kernels take minutes to compile.
make -C "$here/.." --no-print-directory -j"$(nproc)" VARIANT=cpu build/cpu/tests/bench/bench_optimizer
exec python3 "$here/bench_optimizer.py" --program "$here/../build/cpu/tests/bench/bench_optimizer" "$@"
