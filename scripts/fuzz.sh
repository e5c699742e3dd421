#!/usr/bin/env bash
# Runs each fuzzer of build/fuzz-clang for some seconds, from the inputs in tests/fuzz/corpus, and adds a line for each to the
# results file that TEST_RESULTS names, like run_tests.sh. An input that breaks something is kept in build/fuzz-clang/found,
# and the command that repeats it is printed. Exit code 1 if anything failed.
#
# usage: scripts/fuzz.sh SECONDS [FUZZER ...]    FUZZER: base_json for tests/fuzz/fuzz_base_json.c; default: all
set -uo pipefail
cd "$(dirname "$0")/.."
build=build/fuzz-clang results=${TEST_RESULTS:-/dev/null} failed=0
seconds=${1:?usage: scripts/fuzz.sh SECONDS [FUZZER ...]}
shift
if [ $# -gt 0 ]; then
  names=("$@")
else
  names=()
  for source in tests/fuzz/fuzz_*.c; do
    name=${source##*/fuzz_}
    names+=("${name%.c}")
  done
fi
if [ -w /dev/shm ]; then
  export TMPDIR=/dev/shm # the fuzzers write each input to a file
fi
work=$(mktemp -d)
export TMPDIR=$work
trap 'rm -rf "$work"' EXIT
mkdir -p $build/found
# Memory limits: an input must not make the program allocate much more than the input's size justifies.
limits=(-rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=20 -max_len=8192)

# fuzz_one NAME: runs one fuzzer and prints its findings
fuzz_one() {
  local name=$1 program=$build/tests/fuzz/fuzz_$1 corpus=tests/fuzz/corpus/$1 log=$work/$1.log began=$SECONDS runs
  mkdir -p "$work/$name"
  if "$program" -max_total_time="$seconds" "${limits[@]}" -dict=tests/fuzz/json.dict -artifact_prefix="$build/found/$name-" \
    -print_final_stats=1 "$work/$name" "$corpus" >"$log" 2>&1 && runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log") &&
    [ "${runs:-0}" -gt "$(find "$corpus" -type f | wc -l)" ]; then
    echo "ok fuzz $name" >"$work/$name.lines"
    echo "fuzz $name: ok, $runs inputs in $((SECONDS - began)) s"
  else
    echo "not ok fuzz $name" >"$work/$name.lines"
    echo "---- fuzz $name failed; repeat with: $program FILE, the file named below"
    tail -n 60 "$log"
  fi
}

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
jobs=$(nproc)
echo "plan ${#names[@]}" >>"$results"
for name in "${names[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
    wait -n
  done
  fuzz_one "$name" &
done
wait
for name in "${names[@]}"; do
  [ -f "$work/$name.lines" ] || echo "not ok fuzz $name: its process died" >"$work/$name.lines"
  cat "$work/$name.lines" >>"$results"
  grep -q '^ok' "$work/$name.lines" || failed=1
done
exit $failed
