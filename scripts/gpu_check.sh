#!/usr/bin/env bash
# For whoever has a GPU: are the CUDA kernels right on it, and how fast are they? Builds, runs every operation against
# the reference, the golden curves and whole runs, then trains GPT-2 124M in bf16 at T = 1024 for 50 steps, and writes
# benchmarks/gpu-NAME.md. Without a GPU it says so and ends with exit code 77; with 1 when something is wrong.
#
# usage: scripts/gpu_check.sh [--build FOLDER] [--quick] [--output FOLDER]      all of them: --help
#   --build FOLDER   a build carried here (its train and tests/), instead of building one
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
