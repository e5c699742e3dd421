#!/usr/bin/env bash
# Installs packages, builds, and runs the tests, on a bare Debian or Ubuntu. CI runs this script too.
# Failures are printed as they happen; the last line counts them. Before it, the slowest tests are listed.
#
# benchmarks/tests.md lists what only --full runs, and why.
#
# usage: scripts/test.sh [--full]      --full: everything, up to an hour on two cores: long settings
#                                      (ZERO_TESTS_FULL=1), all tests in all builds, CUDA code for all architectures,
#                                      and the thread sanitizer
set -uo pipefail
cd "$(dirname "$0")/.."
full=no
case "${1:-}" in
  "") ;;
  --full) full=yes ;;
  *)
    echo "$1: expected nothing or --full" >&2
    exit 2
    ;;
esac
if [ $full = yes ]; then
  export ZERO_TESTS_FULL=1 CUDA_ARCH=${CUDA_ARCH:-all}
else
  export CUDA_ARCH=${CUDA_ARCH:-80} # newer GPUs run it too
fi
results=$(mktemp)
work=$(mktemp -d)
trap 'rm -rf "$results" "$work"' EXIT
jobs=$(($(nproc) + 1))
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# step NAME COMMAND...: passes or fails as a whole; the output is shown only on failure.
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
  echo "time $((SECONDS - began)) - $name" >>"$results"
}

# suite NAME COMMAND...: adds the results that the command reports. run_suite.sh ends with 0 or 1; with more it was killed, and
# its results are lost.
suite() {
  local began=$SECONDS code=0
  scripts/run_suite.sh "$results" "$@" || code=$?
  [ $code -eq 0 ] || echo "not ok: $1"
  [ $code -le 1 ] || echo "not ok $1: its runner ended with exit code $code" >>"$results"
  echo "$1: $((SECONDS - began)) s"
}

scripts/install.sh --corpus --tests || { echo "0 passed, 1 failed"; exit 1; }
# Compile through ccache, where it could be installed. NOHASHDIR: clones in other folders share its results.
if [ -d /usr/lib/ccache ]; then
  export PATH=/usr/lib/ccache:$PATH CCACHE_NOHASHDIR=1 CUDA_LAUNCHER=ccache
fi
# In the short run, builds with another compiler or sanitizers have two instruction sets: portable, and this machine's
# largest. Simulated GPUs are compared with AVX2 to the bit, so their builds have AVX2.
isas= simulated_isas=
if [ $full = no ]; then
  if grep -qsw amx_bf16 /proc/cpuinfo; then most=amx
  elif grep -qsw avx512_bf16 /proc/cpuinfo; then most=avx512_bf16
  else most=avx2; fi
  isas="portable $most"
  simulated_isas="portable avx2"
fi

step "build with gcc, warnings as errors: make alone gives ./train" sh -c "rm -f train; make -j$jobs && test -x train"
step "build the tests" make -j"$jobs" tests
export DEBUG=-g1 # reports of failures name lines; the builds below are for nothing else
step "build with clang, warnings as errors" make -j"$jobs" CC=clang ISAS="$isas" TESTS="$([ $full = yes ] || echo ops)" tests
step "build with the address and undefined-behavior sanitizers" \
  make -j"$jobs" VARIANT=asan ISAS="$isas" TESTS="$([ $full = yes ] || echo unit mpi)" tests
step "build on a simulated GPU: cudasim" make -j"$jobs" VARIANT=cudasim tests
step "build on a simulated GPU: cudasim-asan" make -j"$jobs" VARIANT=cudasim-asan ISAS="$simulated_isas" tests
step "build on a simulated GPU: cudasim-race" make -j"$jobs" VARIANT=cudasim-race tests
step "build the fuzzers" make -j"$jobs" VARIANT=fuzz CC=clang fuzz
if [ $full = yes ]; then
  step "build with the thread sanitizer" make -j"$jobs" VARIANT=tsan CC=clang tests
fi
step "style, include direction, cycles of includes and calls, file length" scripts/check_style.sh
step "NVIDIA's headers, and cuDNN's judgement of attention" scripts/check_nvidia.sh $([ $full = yes ] && echo --download)
step "registers and spills of the CUDA kernels" python3 scripts/cuda_resources.py build/release

if [ $full = yes ]; then
  suite "tests" scripts/run_tests.sh build/release build/release-clang ops build/asan build/cudasim build/cudasim-asan \
    build/cudasim-race
else
  # To find bad accesses, the sanitizer needs only one number of ranks and no golden figures. The checked simulators run
  # the tests of operations and models; the plain simulator runs those of communicating GPUs, on other numbers of ranks.
  suite "tests" scripts/run_tests.sh build/release build/release-clang ops \
    build/asan unit mpi=3 -unit/model/test_golden -unit/kernels/test_linear \
    build/cudasim mpi=1,2,4 build/cudasim-asan unit ops cudasim mpi=3 build/cudasim-race ops unit
fi
suite "fuzzers" scripts/fuzz.sh $([ $full = yes ] && echo 120 || echo 3)
suite "command line on a simulated GPU" python3 tests/cli/run.py --gpu --train build/cudasim/train
suite "command line and quickstart, release" python3 tests/cli/run.py --train build/release/train
suite "command line, sanitizers" python3 tests/cli/run.py --train build/asan/train --sanitizers
if [ $full = yes ]; then
  suite "tests, thread sanitizer" scripts/run_tests.sh build/tsan-clang unit mpi
fi

echo "== slowest: seconds, CPU seconds of all processes (- if not measured)"
grep '^time ' "$results" | sort -k2 -nr | head -n 20 | sed 's/^time //'
passed=$(grep -c '^ok ' "$results")
failed=$(grep -c '^not ok ' "$results")
skipped=$(grep -c '^skip ' "$results")
if [ "$failed" -gt 0 ] || [ "$skipped" -gt 0 ]; then
  echo "== not passed"
  grep -E '^(not ok|skip) ' "$results"
fi
echo "== $((SECONDS / 60)) min $((SECONDS % 60)) s"
if [ "$skipped" -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
