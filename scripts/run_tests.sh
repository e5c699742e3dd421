#!/usr/bin/env bash
# Runs the test programs of one or more builds, adds a line for each test to a results file ("ok NAME", "not ok NAME" or
# "skip NAME"; and "time SECONDS CPU-SECONDS NAME" for each program) and prints the counts. The whole output of a failed
# program is shown. Exit code 1 if anything failed.
#
# BUILD/tests/list, which `make tests` writes, names the programs. Each must exist, end with exit code 0 and report every
# test of its TAP plan ("1..N"). Programs of tests/mpi run on several ranks; rank 0 reports. Several programs
# run at a time, longest first. Programs that measure time run alone at the end.
#
# usage: scripts/run_tests.sh BUILD [FOLDER ...] [BUILD [FOLDER ...]] ...
#        FOLDER: unit, ops, mpi, cudasim, or mpi=RANKS (such as mpi=2,3; default 1,2,3,4); no folder: all of the build;
#        -FOLDER/PROGRAM: except this one
# environment: TEST_RESULTS, the results file; the first line added is "plan N", the number of programs
#              TEST_JOBS, number of programs that run at a time (one more than cores, as ranks also wait)
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=${TEST_RESULTS:-/dev/null}
jobs=${TEST_JOBS:-$(($(nproc) + 1))}
passed=0 failed=0 begun=0
export CMOCKA_MESSAGE_OUTPUT=TAP
export OMP_WAIT_POLICY=passive
export ZERO_MEASURE_SECONDS=${ZERO_MEASURE_SECONDS:-0.002} # spent on measuring at each run's start
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# The longest programs start first, so that none of them starts last.
longest="ops/test_kernels_cpu ops/test_kernels_cuda mpi/test_trainer_stages unit/model/test_golden unit/kernels/test_linear
         cudasim/test_cudasim_linear"

# Programs that measure time or depend on timing, and so run alone.
is_alone() {
  case $1 in
    unit/base/test_signals | unit/kernels/test_profile | unit/base/test_numa) return 0 ;;
  esac
  return 1
}

# Time limit for programs that hang. With long settings, sanitizers and other load, a program takes up to 15 minutes.
limit=$([ -n "${ZERO_TESTS_FULL:-}" ] && echo 2700 || echo 900)

# run_one NUMBER NAME COMMAND...: the worker. Writes result lines to NUMBER.lines, and prints its output at once.
run_one() {
  local lines=$work/$1.lines output=$work/$1.output name=$2 code planned reported TIMEFORMAT='%R %U %S'
  shift 2
  { time timeout "$limit" "$@" >"$output" 2>&1; } 2>"$output.time"
  code=$?
  awk -v name="$name" '
    /^not ok [0-9]+ # SKIP/ || /^ok [0-9]+ # SKIP/ { sub(/^.*# SKIP */, ""); print "skip " name ": " $0; next }
    /^ok [0-9]+/ { sub(/^ok [0-9]+ (- )?/, ""); print "ok " name ": " $0; next }
    /^not ok [0-9]+/ { sub(/^not ok [0-9]+ (- )?/, ""); print "not ok " name ": " $0 }' "$output" >"$lines.part"
  planned=$(awk '/^1\.\.[0-9]+$/ { n += substr($0, 4) } END { print n + 0 }' "$output")
  reported=$(wc -l <"$lines.part")
  if [ "$planned" -eq 0 ]; then
    echo "not ok $name: listed no tests (exit code $code)" >>"$lines.part"
  elif [ "$reported" -lt "$planned" ]; then
    echo "not ok $name: reported $reported of $planned tests (exit code $code)" >>"$lines.part"
  elif [ $code -ne 0 ] && ! grep -q '^not ok ' "$lines.part"; then
    echo "not ok $name: ended with exit code $code" >>"$lines.part"
  fi
  tail -n 1 "$output.time" | awk -v name="$name" '{ printf "time %.1f %.1f %s\n", $1, $2 + $3, name }' >>"$lines.part"
  if [ $code -ne 0 ] || grep -q '^not ok ' "$lines.part"; then
    echo "---- $* (exit code $code)"
    cat "$output"
    grep '^not ok ' "$lines.part"
  else
    awk -v name="$name" '/^ok / { n++ } /^time / { s = $2; c = $3 } END { print name ": " n " ok, " s " s (CPU " c " s)" }' \
      "$lines.part"
    grep -oE 'reached.*' "$output" | sed 's/^/    /'
  fi >"$output.shown"
  mv "$lines.part" "$lines"
  flock "$work" cat "$output.shown"
}

# begin NAME COMMAND...: starts a worker as soon as fewer than TEST_JOBS run.
begin() {
  begun=$((begun + 1))
  echo "$1" >"$work/$begun.name"
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
    wait -n
  done
  run_one "$begun" "$@" &
}

fail() {
  begun=$((begun + 1))
  echo "not ok $1" | tee "$work/$begun.lines"
}

# begin_on_ranks NAME RANKS PROGRAM [ARGUMENT...]: each mpirun gets its own temporary folder. In a shared folder, an
# mpirun that ends removes files that another has just created (Open MPI 4).
begin_on_ranks() {
  begin "$1" env TMPDIR="$(mktemp -d -p "$work")" mpirun --oversubscribe -n "${@:2}"
}

# begin_program BUILD PROGRAM RANKS
begin_program() {
  local program=$2 name="${1##*/} $2" path=$1/tests/$2 ranks
  if [ ! -x "$path" ]; then
    fail "$name: was not built"
    return
  fi
  case $program in
    mpi/*)
      # MPI does not free memory that it uses for the life of the process.
      local ASAN_OPTIONS=detect_leaks=0
      local on=$3
      if [ "$program" = mpi/test_zero_comm_device ]; then
        case $1 in
          *cudasim*) begin_on_ranks "$name, 2 ranks, host" 2 "$path" host ;;
          *) on=1 ;; # to say that it is skipped; scripts/gpu_check.sh is for real GPUs
        esac
      fi
      for ranks in ${on//,/ }; do
        begin_on_ranks "$name, $ranks ranks" "$ranks" "$path"
      done
      if [ "$program" = mpi/test_zero_comm ]; then
        begin_on_ranks "$name, 3 ranks, messages" 3 "$path" messages
        begin_on_ranks "$name, 3 ranks, no overlap" 3 "$path" shared inline
      fi
      ;;
    *) begin "$name" "$path" ;;
  esac
}

# One entry per program: BUILD PROGRAM RANKS. `empty` has folders without programs, which are reported as failures.
programs=() empty=()
add_programs() {
  local build=$1 folder=${2%%=*} ranks=1,2,3,4 found
  [[ $2 == *=* ]] && ranks=${2#*=}
  found=$(grep -s "^${folder:+$folder/}" "$build/tests/list" | sort)
  if [ -z "$found" ]; then
    empty+=("${build##*/}${folder:+ $folder}: $build/tests/list names no test programs; build them with make tests")
    return
  fi
  while read -r program; do
    programs+=("$build $program $ranks")
  done <<<"$found"
}
but_not() {
  local entry kept=()
  for entry in "${programs[@]}"; do
    [[ $entry == "$1 $2 "* ]] || kept+=("$entry")
  done
  if [ ${#kept[@]} -eq ${#programs[@]} ]; then
    empty+=("${1##*/} $2: cannot be excluded, as no such program was selected")
  fi
  programs=("${kept[@]}")
}
while [ $# -gt 0 ]; do
  build=$1 whole=yes
  shift
  while [[ ${1:-} =~ ^(unit|ops|mpi|cudasim|mpi=[0-9,]+)$ ]]; do
    add_programs "$build" "$1"
    whole=no
    shift
  done
  [ $whole = no ] || add_programs "$build" ""
  while [[ ${1:-} == -* ]]; do
    but_not "$build" "${1#-}"
    shift
  done
done

# begin_programs FILTER: begins the programs for which `FILTER program` succeeds
begin_programs() {
  local entry build program ranks
  for entry in "${programs[@]}"; do
    read -r build program ranks <<<"$entry"
    if "$@" "$program"; then
      begin_program "$build" "$program" "$ranks"
    fi
  done
}
is_long() {
  [[ " ${longest//$'\n'/ } " == *" $1 "* ]]
}
is_short() {
  ! is_long "$1" && ! is_alone "$1"
}

echo "plan $((${#programs[@]} + ${#empty[@]}))" >>"$results"
for name in "${empty[@]}"; do
  fail "$name"
done
for long in $longest; do
  begin_programs test "$long" =
done
begin_programs is_short
wait
jobs=1
begin_programs is_alone
wait

# The results of each worker; one without results has died.
for ((i = 1; i <= begun; i++)); do
  lines=$work/$i.lines
  [ -f "$lines" ] || echo "not ok $(cat "$work/$i.name"): its worker died" | tee "$lines"
  passed=$((passed + $(grep -c '^ok ' "$lines")))
  failed=$((failed + $(grep -c '^not ok ' "$lines")))
  cat "$lines" >>"$results"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
