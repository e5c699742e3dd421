#!/usr/bin/env bash
# Compares memory and throughput of the ZeRO stages: trains one model for a few steps at each stage and number of ranks,
# and writes a table, JSON and a figure. Exit code 1 if the stages do not give the same bits, or if memory or traffic
# differs from the plan.
#
# usage: scripts/bench_zero.sh [--config FILE] [--ranks 1,2,4] [--stages 0,1,2,3] [--steps N] [--mpirun "mpirun ..."]
#                              [--output FOLDER] [section.key=value ...]          all options: --help
set -euo pipefail
# Files named on the command line are relative to the caller's folder, all others to this one.
here=$(dirname "$(realpath "$0")")

for argument in "$@"; do
  case $argument in -h | --help) exec python3 "$here/bench_zero.py" --help ;; esac
done
"$here/install.sh" --benchmarks
# Without CUDA, whose kernels take minutes to compile, unless this machine has a GPU, or the ranks run on other machines.
program=build/cpu/train variant=cpu
case " $* " in *" --mpirun"*) program=build/release/train variant=release ;; esac
if nvidia-smi -L >/dev/null 2>&1; then program=build/release/train variant=release; fi
make -C "$here/.." --no-print-directory -j"$(nproc)" VARIANT=$variant $program
exec python3 "$here/bench_zero.py" --train "$here/../$program" "$@"
