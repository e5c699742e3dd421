#!/usr/bin/env bash
# Checks the CUDA backend on this machine's GPU and measures its speed: in 8 minutes, with --quick in 3. With a packed build,
# the machine needs only the NVIDIA driver and Python: --pack PATH makes a build that contains its libraries.
# docs/benchmarking.md says what is checked. Writes benchmarks/gpu-NAME.md and .json.
# Exit code: 77 without a GPU, 1 when a check fails.
#
# usage: scripts/gpu_check.sh [--build PATH] [--quick] [--output FOLDER]      all options: --help
#   --build PATH   use this build (its train and tests/), or an archive of --pack, instead of building one
#   --pack PATH    copy a build and its libraries to a folder or a .tar.gz, for --build on another machine; checks nothing
set -euo pipefail
here=$(dirname "$(realpath "$0")")
build=
for word; do
  case $word in
    -h | --help) exec python3 "$here/gpu_check.py" --help ;;
    --build | --build=*) build=given ;;
  esac
done
if [ -z "$build" ]; then
  "$here/install.sh" --tests --benchmarks
  make -C "$here/.." --no-print-directory -j"$(nproc)" build/release/train build/release/tests/ops/test_kernels_cuda \
    build/release/tests/ops/test_kernels_rotation build/release/tests/ops/test_kernels_training_sizes \
    build/release/tests/bench/bench_muon
fi
exec python3 "$here/gpu_check.py" "$@"
