#!/usr/bin/env bash
# Memory and throughput of the ZeRO stages, side by side: trains one model for a few steps at each stage and number
# of ranks, and writes a table, JSON and a figure. Ends with exit code 1 when the stages do not give the same bits or
# when what was measured is not what was planned.
#
# usage: scripts/bench_zero.sh [--config FILE] [--ranks 1,2,4] [--stages 0,1,2,3] [--steps N] [--mpirun "mpirun ..."]
#                              [--output FOLDER] [section.key=value ...]          all of them: --help
set -euo pipefail
# Files that are named on the command line are the caller's; all else is found from here.
here=$(dirname "$(realpath "$0")")

for argument in "$@"; do
  case $argument in -h | --help) exec python3 "$here/bench_zero.py" --help ;; esac
done
"$here/install.sh" --benchmarks
make -C "$here/.." --no-print-directory -j"$(nproc)" train
exec python3 "$here/bench_zero.py" "$@"
