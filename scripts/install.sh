#!/usr/bin/env bash
# Installs the packages that zero.c needs to build and run, with apt-get (Debian 12, Ubuntu 22.04 and 24.04). Prints each
# missing package with its purpose, asks no questions, and does nothing if all are installed.
#
# usage: scripts/install.sh [--corpus] [--tests] [--benchmarks]
set -euo pipefail

build_packages=(
  "gcc|C compiler with OpenMP"
  "libc6-dev|C library headers"
  "make|builds the program"
  "libdnnl-dev|oneDNN: matrix products on the CPU"
  "libcjson-dev|cJSON: configuration files"
  "libutf8proc-dev|utf8proc: Unicode classes for the tokenizer"
  "libxxhash-dev|xxHash: checksums of checkpoints"
  "libsodium-dev|libsodium: digests and signatures of ./train audit"
  "zlib1g-dev|zlib: texts packed with gzip"
  "libzstd-dev|libzstd: texts packed with zstd"
  "libhwloc-dev|hwloc: NUMA nodes of the machine"
  "libmicrohttpd-dev|libmicrohttpd: the HTTP server of ./train serve"
  "libedit-dev|libedit: line editing in ./train generate --interactive"
  "curl|downloads data sets"
  "openmpi-bin|Open MPI: mpirun, for several ranks"
  "libopenmpi-dev|Open MPI: headers, for several ranks"
)
corpus_packages=(
  "bible-kjv-text|the King James text, a corpus of 4 MB"
  "bible-kjv|the program that prints it"
)
benchmark_packages=(
  "python3|runs the benchmarks, writes their tables and figures"
)
test_packages=(
  "zstd|packs texts"
  "git|clones the repository in tests"
  "libcmocka-dev|cmocka: unit tests"
  "python3|tests of the command line"
  "python3-venv|environments for comparisons with other programs"
  "g++|C++: the simulated GPU"
  "clang|the second compiler"
  "libomp-dev|OpenMP for clang"
  "clang-format-14|the formatting check"
  "iproute2|hosts made of network namespaces, for tests over links"
  "ccache|recompiles only what has changed"
)

packages=("${build_packages[@]}")
for argument in "$@"; do
  case $argument in
    --corpus) packages+=("${corpus_packages[@]}") ;;
    --tests) packages+=("${test_packages[@]}") ;;
    --benchmarks) packages+=("${benchmark_packages[@]}") ;;
    *)
      echo "install.sh: unknown argument '$argument'; usage: scripts/install.sh [--corpus] [--tests] [--benchmarks]" >&2
      exit 2
      ;;
  esac
done

missing=()
for entry in "${packages[@]}"; do
  name=${entry%%|*}
  if [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
    missing+=("$name")
    printf 'missing: %-18s %s\n' "$name" "${entry#*|}"
  fi
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "install.sh: this system has no apt-get; install the packages named above with its package manager" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: not root and no sudo; as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing ${#missing[@]} packages with apt-get"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
install_missing() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1
}
# The package lists may be outdated or absent: update them only if the first attempt fails.
if ! install_missing; then
  "${as_root[@]}" apt-get update >>"$log" 2>&1 || true
  if ! install_missing; then
    tail -n 20 "$log" >&2
    echo "install.sh: apt-get could not install: ${missing[*]} (its last lines are above)" >&2
    exit 1
  fi
fi
