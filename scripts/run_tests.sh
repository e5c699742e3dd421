#!/usr/bin/env bash
# Runs the test programs of a build, one after the other, and adds a line for each test to a results file:
# "ok NAME", "not ok NAME" or "skip NAME". Failures are shown whole.
#
# usage: scripts/run_tests.sh BUILD [RESULTS [FOLDER]]      FOLDER: unit or ops, else both
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1
results=${2:-$(mktemp)}
touch "$results"
start=$(wc -l <"$results")
export CMOCKA_MESSAGE_OUTPUT=TAP
export OMP_WAIT_POLICY=passive
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
output=$(mktemp)
trap 'rm -f "$output"' EXIT

for program in "$build"/tests/${3:-*}/test_*; do
  case $program in *.o | *.d) continue ;; esac
  [ -x "$program" ] || continue
  name="${build##*/} ${program#"$build"/tests/}"
  began=$SECONDS
  timeout 900 "$program" >"$output" 2>&1
  code=$?
  awk -v name="$name" '
    /^not ok [0-9]+ # SKIP/ || /^ok [0-9]+ # SKIP/ { sub(/^.*# SKIP */, ""); print "skip " name ": " $0; next }
    /^ok [0-9]+/ { sub(/^ok [0-9]+ (- )?/, ""); print "ok " name ": " $0; next }
    /^not ok [0-9]+/ { sub(/^not ok [0-9]+ (- )?/, ""); print "not ok " name ": " $0 }' "$output" >>"$results"
  if [ $code -ne 0 ]; then
    echo "---- $program (exit code $code)"
    cat "$output"
    grep -q "^not ok $name:" "$results" || echo "not ok $name: ended with exit code $code" >>"$results"
  else
    echo "$name: $(grep -c "^ok $name:" "$results") ok, $((SECONDS - began)) s"
    grep -oE 'reached.*' "$output" | sed 's/^/    /'
  fi
done

if [ $# -lt 2 ]; then
  passed=$(tail -n +$((start + 1)) "$results" | grep -c '^ok ')
  failed=$(tail -n +$((start + 1)) "$results" | grep -c '^not ok ')
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
fi
