#!/usr/bin/env bash
# Measures training on the CPU: tokens/s, the fraction of the GEMM rate measured in the same minute, and peak memory, for
# GPT-2 124M, 350M and the quickstart in fp32 and bf16. Writes a table and JSON.
#   --python   also measures the same models and batches in PyTorch, eager and compiled, in turn
#   --busy N   also measures beside N busy processes
#   --other P  also measures another build of ./train, in turn
#   --growth   instead measures time per token against FLOPs per token, as sequences, models and threads grow
#
# usage: scripts/bench_cpu.sh [--cases 124M:4x64,quickstart:2x256] [--types fp32,bf16] [--rounds N] [--threads N]
#                             [--python PROGRAM] [--busy N] [--other PROGRAM] [--growth] [--output FOLDER]      all options: --help
set -euo pipefail
here=$(dirname "$(realpath "$0")")

for argument in "$@"; do
  case $argument in -h | --help) exec python3 "$here/bench_cpu.py" --help ;; esac
done
"$here/install.sh" --benchmarks
# Without CUDA: its kernels take minutes to compile.
make -C "$here/.." --no-print-directory -j"$(nproc)" VARIANT=cpu build/cpu/train
exec python3 "$here/bench_cpu.py" --train "$here/../build/cpu/train" "$@"
