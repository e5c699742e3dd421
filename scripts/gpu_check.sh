#!/usr/bin/env bash
# Checks the CUDA kernels on a real GPU and measures their speed. It builds the program, compares every operation with
# the reference, runs the golden curves and whole runs, trains GPT-2 124M in bf16 at T = 1024 for 50 steps, and writes
# benchmarks/gpu-NAME.md. Exit code: 77 without a GPU, 1 when a check fails.
#
# usage: scripts/gpu_check.sh [--build FOLDER] [--quick] [--output FOLDER]      all options: --help
#   --build FOLDER   use this build (its train and tests/) instead of building one
set -euo pipefail
here=$(dirname "$(realpath "$0")")
build=
for ((i = 1; i <= $#; i++)); do
  case ${!i} in
    -h | --help) exec python3 "$here/gpu_check.py" --help ;;
    --build) j=$((i + 1)) && build=${!j:-} ;;
    --build=*) build=${!i#*=} ;;
  esac
done
if [ -z "$build" ]; then
  "$here/install.sh" --tests --benchmarks
  make -C "$here/.." --no-print-directory -j"$(nproc)" build/release/train build/release/tests/ops/test_kernels_cuda
fi
exec python3 "$here/gpu_check.py" "$@"
