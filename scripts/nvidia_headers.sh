#!/usr/bin/env bash
# Collects the headers and libraries of NCCL and cuDNN in build/nvidia/include and build/nvidia/lib: links to the files
# installed on this machine, or else the files of NVIDIA's wheels on PyPI. Only tests need them: the program has its own
# declarations, and opens the libraries at run time.
#
# Prints a line per package: where it is from, or "skip: REASON".
#
# usage: scripts/nvidia_headers.sh [--download]      --download: fetch what is missing, up to 0.8 GB
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/nvidia
download=no
case "${1:-}" in
  "") ;;
  --download) download=yes ;;
  *)
    echo "$1: expected nothing or --download" >&2
    exit 2
    ;;
esac
mkdir -p $folder/include $folder/lib

# Each wheel is for one major version of CUDA: take the toolkit's, if there is one.
cuda=$( (nvcc --version || /usr/local/cuda/bin/nvcc --version) 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p')
[ "${cuda:-13}" = 12 ] || cuda=13

# installed HEADER LIBRARY: prints the folders of both, if this machine has them.
installed() {
  local include lib
  for include in /usr/local/cuda/include /usr/include "/usr/include/$(uname -m)-linux-gnu" /usr/local/include; do
    for lib in /usr/local/cuda/lib64 "/usr/lib/$(uname -m)-linux-gnu" /usr/lib64 /usr/local/lib; do
      if [ -e "$include/$1" ] && [ -e "$lib/$2" ]; then
        echo "$include" "$lib"
        return
      fi
    done
  done
}

# collect NAME HEADER LIBRARY WHEEL: NAME begins the names of all its headers.
collect() {
  local name=$1 header=$2 library=$3 wheel=$4 include lib
  read -r include lib <<<"$(installed "$header" "$library")"
  if [ -z "${include:-}" ] && [ -e "$folder/wheels/$wheel/done" ]; then
    include=$PWD/$folder/wheels/$wheel/include lib=$PWD/$folder/wheels/$wheel/lib
  elif [ -z "${include:-}" ] && [ $download = yes ]; then
    if ! fetch "$name" "$wheel"; then
      echo "skip: $name is not installed, and $wheel could not be fetched from PyPI"
      return
    fi
    include=$PWD/$folder/wheels/$wheel/include lib=$PWD/$folder/wheels/$wheel/lib
  elif [ -z "${include:-}" ]; then
    echo "skip: $name is not installed; scripts/nvidia_headers.sh --download fetches it"
    return
  fi
  ln -sf "$include/$name"* $folder/include/
  ln -sf "$lib/lib$name"*.so* $folder/lib/
  echo "$name: $include, $lib"
}

# fetch NAME WHEEL==VERSION: unpacks the wheel's include and lib folders.
fetch() {
  local into=$folder/wheels/$2
  rm -rf "$into" && mkdir -p "$into" &&
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$into" "$2" &&
    python3 -m zipfile -e "$into"/*.whl "$into" && rm -f "$into"/*.whl &&
    mv "$into/nvidia/$1/include" "$into/nvidia/$1/lib" "$into/" && rm -rf "$into/nvidia" && touch "$into/done"
}

collect nccl nccl.h libnccl.so.2 "nvidia-nccl-cu$cuda==2.28.9"
collect cudnn cudnn.h libcudnn.so.9 "nvidia-cudnn-cu$cuda==9.28.0.42"
