#!/usr/bin/env bash
# Runs a suite of tests and adds its results to a file, one line each: "ok NAME", "not ok NAME" or "skip NAME".
# The command writes its results to the file that TEST_RESULTS names, beginning with "plan N": at least N tests will be
# reported. A line "not ok" is added when the command cannot be run, has no plan, reports fewer tests than planned, or
# fails without a failed test.
#
# usage: scripts/run_suite.sh RESULTS NAME COMMAND...
set -uo pipefail
results=$1 name=$2
shift 2
TEST_RESULTS=$(mktemp)
export TEST_RESULTS
trap 'rm -f "$TEST_RESULTS"' EXIT
echo "== $name"
"$@"
code=$?

planned=$(awk '$1 == "plan" { n += $2 } END { print n + 0 }' "$TEST_RESULTS")
reported=$(grep -cE '^(ok|not ok|skip) ' "$TEST_RESULTS")
problem=
if [ "$reported" -eq 0 ]; then
  problem="reported no tests (exit code $code)"
elif [ "$planned" -eq 0 ]; then
  problem="had no plan (exit code $code)"
elif [ "$reported" -lt "$planned" ]; then
  problem="reported $reported of at least $planned tests (exit code $code)"
elif [ $code -ne 0 ] && ! grep -q '^not ok ' "$TEST_RESULTS"; then
  problem="ended with exit code $code"
fi
if [ -n "$problem" ]; then
  echo "not ok $name: $problem" | tee -a "$TEST_RESULTS"
fi
grep -v '^plan ' "$TEST_RESULTS" >>"$results"
! grep -q '^not ok ' "$TEST_RESULTS"
