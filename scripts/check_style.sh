#!/usr/bin/env bash
# Checks formatting, include direction, dependency cycles, stale pages, and the length of files, so that reviewers need
# not. Prints each finding; exit code 1 when there is one.
set -uo pipefail
cd "$(dirname "$0")/.."
findings=0

finding() {
  echo "$*"
  findings=1
}

sources() {
  git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp'
}

# ---- formatting, by the version of clang-format that this project uses
formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [ -z "$formatter" ]; then
  echo "skip: formatting (clang-format 14 is not installed)"
elif ! output=$(sources | xargs -P"$(nproc)" -n50 "$formatter" --dry-run -Werror 2>&1); then
  files=$(sed -nE 's/^([^: ]+):[0-9]+:.*/\1/p' <<<"$output" | sort -u)
  for file in $files; do
    finding "$file: not formatted; run make format"
  done
  [ -n "$files" ] || finding "$output"
fi

# ---- include direction, dependency cycles, size of folders; in existing builds also calls
builds=()
for build in build/release build/cudasim; do
  [ -d $build ] && builds+=($build)
done
scripts/check_layout.py "${builds[@]}" || findings=1

# ---- stale sentences and pointers in the docs
scripts/check_docs.py || findings=1

# ---- length
while read -r length file; do
  [ "$file" = total ] || [ "$length" -le 1500 ] || finding "$file: $length lines, expected at most 1,500: split it by concern"
done < <(sources | xargs wc -l)

exit $findings
