#!/usr/bin/env bash
# Runs the test programs of a build, one after the other, and adds a line for each test to a results file:
# "ok NAME", "not ok NAME" or "skip NAME". Failures are shown whole.
#
# Those in tests/mpi are run by 1, 2, 3 and 4 ranks each; rank 0 reports.
#
# usage: scripts/run_tests.sh BUILD [RESULTS [FOLDER]]      FOLDER: unit, ops or mpi, else all
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

# run_one NAME COMMAND...
run_one() {
  local name=$1 began=$SECONDS code
  shift
  timeout 900 "$@" >"$output" 2>&1
  code=$?
  awk -v name="$name" '
    /^not ok [0-9]+ # SKIP/ || /^ok [0-9]+ # SKIP/ { sub(/^.*# SKIP */, ""); print "skip " name ": " $0; next }
    /^ok [0-9]+/ { sub(/^ok [0-9]+ (- )?/, ""); print "ok " name ": " $0; next }
    /^not ok [0-9]+/ { sub(/^not ok [0-9]+ (- )?/, ""); print "not ok " name ": " $0 }' "$output" >>"$results"
  if [ $code -ne 0 ]; then
    echo "---- $* (exit code $code)"
    cat "$output"
    grep -q "^not ok $name:" "$results" || echo "not ok $name: ended with exit code $code" >>"$results"
  else
    echo "$name: $(grep -c "^ok $name:" "$results") ok, $((SECONDS - began)) s"
    grep -oE 'reached.*' "$output" | sed 's/^/    /'
  fi
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for program in "$build"/tests/${3:-*}/test_*; do
  case $program in *.o | *.d) continue ;; esac
  [ -x "$program" ] || continue
  name="${build##*/} ${program#"$build"/tests/}"
  case $program in
    */tests/mpi/*)
      # MPI itself leaks what it holds for the life of the process.
      for ranks in 1 2 3 4; do
        ASAN_OPTIONS=detect_leaks=0 run_one "$name, $ranks ranks" mpirun --oversubscribe -n "$ranks" "$program"
      done
      case $program in
        */test_zero_comm)
          ASAN_OPTIONS=detect_leaks=0 run_one "$name, 3 ranks, messages" \
            mpirun --oversubscribe -n 3 "$program" messages
          ASAN_OPTIONS=detect_leaks=0 run_one "$name, 3 ranks, no overlap" \
            mpirun --oversubscribe -n 3 "$program" shared inline
          ;;
      esac
      ;;
    *) run_one "$name" "$program" ;;
  esac
done

if [ $# -lt 2 ]; then
  passed=$(tail -n +$((start + 1)) "$results" | grep -c '^ok ')
  failed=$(tail -n +$((start + 1)) "$results" | grep -c '^not ok ')
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
fi
