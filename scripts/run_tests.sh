#!/usr/bin/env bash
# Runs the test programs of a build, adds a line for each test to a results file ("ok NAME", "not ok NAME" or
# "skip NAME") and prints the counts. Failures are shown whole. Exit code 1 when anything failed.
#
# BUILD/tests/list, which `make tests` writes, names the programs. Each must be there, end with exit code 0 and report
# every test of its TAP plan ("1..N"); what it does not report has failed. Those in tests/mpi run on 1, 2, 3 and 4
# ranks; rank 0 reports.
#
# usage: scripts/run_tests.sh BUILD [FOLDER]      FOLDER: unit, ops, mpi or cudasim, else all
# environment: TEST_RESULTS, the results file; its first new line is "plan N", the number of programs that will run
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 folder=${2:-}
output=$(mktemp)
lines=$(mktemp)
trap 'rm -f "$output" "$lines"' EXIT
results=${TEST_RESULTS:-/dev/null}
passed=0 failed=0
export CMOCKA_MESSAGE_OUTPUT=TAP
export OMP_WAIT_POLICY=passive
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Adds the lines of one program, and counts them.
report() {
  passed=$((passed + $(grep -c '^ok ' "$lines")))
  failed=$((failed + $(grep -c '^not ok ' "$lines")))
  cat "$lines" >>"$results"
}

fail() {
  echo "not ok $1" | tee "$lines"
  report
}

# run_one NAME COMMAND...
run_one() {
  local name=$1 began=$SECONDS code planned reported
  shift
  timeout 900 "$@" >"$output" 2>&1
  code=$?
  awk -v name="$name" '
    /^not ok [0-9]+ # SKIP/ || /^ok [0-9]+ # SKIP/ { sub(/^.*# SKIP */, ""); print "skip " name ": " $0; next }
    /^ok [0-9]+/ { sub(/^ok [0-9]+ (- )?/, ""); print "ok " name ": " $0; next }
    /^not ok [0-9]+/ { sub(/^not ok [0-9]+ (- )?/, ""); print "not ok " name ": " $0 }' "$output" >"$lines"
  planned=$(awk '/^1\.\.[0-9]+$/ { n += substr($0, 4) } END { print n + 0 }' "$output")
  reported=$(wc -l <"$lines")
  if [ "$planned" -eq 0 ]; then
    echo "not ok $name: listed no tests (exit code $code)" >>"$lines"
  elif [ "$reported" -lt "$planned" ]; then
    echo "not ok $name: reported $reported of $planned tests (exit code $code)" >>"$lines"
  elif [ $code -ne 0 ] && ! grep -q '^not ok ' "$lines"; then
    echo "not ok $name: ended with exit code $code" >>"$lines"
  fi
  if [ $code -ne 0 ] || grep -q '^not ok ' "$lines"; then
    echo "---- $* (exit code $code)"
    cat "$output"
    grep '^not ok ' "$lines"
  else
    echo "$name: $(grep -c '^ok ' "$lines") ok, $((SECONDS - began)) s"
    grep -oE 'reached.*' "$output" | sed 's/^/    /'
  fi
  report
}

run_program() {
  local program=$1 name="${build##*/} $1" path=$build/tests/$1
  if [ ! -x "$path" ]; then
    fail "$name: was not built"
    return
  fi
  case $program in
    mpi/*)
      # MPI itself leaks what it holds for the life of the process.
      for ranks in 1 2 3 4; do
        ASAN_OPTIONS=detect_leaks=0 run_one "$name, $ranks ranks" mpirun --oversubscribe -n "$ranks" "$path"
      done
      if [ "$program" = mpi/test_zero_comm ]; then
        ASAN_OPTIONS=detect_leaks=0 run_one "$name, 3 ranks, messages" \
          mpirun --oversubscribe -n 3 "$path" messages
        ASAN_OPTIONS=detect_leaks=0 run_one "$name, 3 ranks, no overlap" \
          mpirun --oversubscribe -n 3 "$path" shared inline
      fi
      ;;
    *) run_one "$name" "$path" ;;
  esac
}

programs=()
if [ -f "$build/tests/list" ]; then
  mapfile -t programs < <(grep "^${folder:+$folder/}" "$build/tests/list" | sort)
fi
echo "plan ${#programs[@]}" >>"$results"
if [ ${#programs[@]} -eq 0 ]; then
  fail "${build##*/}${folder:+ $folder}: $build/tests/list names no test programs; build them with make tests"
fi
for program in "${programs[@]}"; do
  run_program "$program"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
