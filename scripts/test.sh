#!/usr/bin/env bash
# Installs, builds and runs every test, on a machine with nothing but a Debian or Ubuntu system.
# Failures are printed as they happen; the last line counts them. CI runs this same script.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(mktemp)
work=$(mktemp -d)
trap 'rm -rf "$results" "$work"' EXIT
jobs=$(nproc)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# One named step that passes or fails as a whole; its output is shown only when it fails.
step() {
  local name=$1 began=$SECONDS
  shift
  if "$@" >"$work/output" 2>&1; then
    echo "ok $name" >>"$results"
    echo "$name: ok, $((SECONDS - began)) s"
    grep '^skip: ' "$work/output" | sed 's/^skip: /skip /' | tee -a "$results"
  else
    echo "not ok $name" >>"$results"
    echo "---- $name failed:"
    cat "$work/output"
  fi
}

scripts/install.sh --corpus --tests || { echo "0 passed, 1 failed"; exit 1; }

step "style, include direction, file length" scripts/check_style.sh
step "build with gcc, warnings as errors: make alone gives ./train" sh -c "rm -f train; make -j$jobs && test -x train"
step "build the tests" make -j"$jobs" tests
step "build with clang, warnings as errors" make -j"$jobs" CC=clang tests
step "build with the address and undefined-behaviour sanitizers" make -j"$jobs" VARIANT=asan tests
for variant in cudasim cudasim-asan cudasim-race; do
  step "build on a simulated GPU: $variant" make -j"$jobs" VARIANT=$variant tests
done
step "registers and spills of the CUDA kernels" python3 scripts/cuda_resources.py build/release

echo "== tests, release"
scripts/run_tests.sh build/release "$results"
echo "== tests, clang: operations"
scripts/run_tests.sh build/release-clang "$results" ops
echo "== tests, sanitizers"
scripts/run_tests.sh build/asan "$results"
echo "== the CUDA backend on a simulated GPU"
simulated=$SECONDS
for variant in cudasim cudasim-asan cudasim-race; do
  scripts/run_tests.sh build/$variant "$results"
done
python3 tests/cli/run.py --gpu --train build/cudasim/train --results "$results"
echo "the simulator's tests: $((SECONDS - simulated)) s"
echo "== command line, release and sanitizers"
python3 tests/cli/run.py --train build/release/train --results "$results"
python3 tests/cli/run.py --train build/asan/train --results "$results" --sanitizers
echo "== the quickstart in a clean clone"
python3 tests/cli/run.py --quickstart --results "$results"

passed=$(grep -c '^ok ' "$results")
failed=$(grep -c '^not ok ' "$results")
skipped=$(grep -c '^skip ' "$results")
if [ "$failed" -gt 0 ] || [ "$skipped" -gt 0 ]; then
  echo "== not passed"
  grep -vE '^ok ' "$results"
fi
echo "== $((SECONDS / 60)) min $((SECONDS % 60)) s"
if [ "$skipped" -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]
