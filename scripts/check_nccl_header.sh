#!/usr/bin/env bash
# Compares zero/comm/nccl_api.h, with which the program is built, with NVIDIA's nccl.h. Exit code 77, with the reason,
# where that header is missing.
#
# usage: scripts/check_nccl_header.sh [FOLDER ...]     folders with nccl.h and cuda_runtime.h
#        default: build/nvidia/include, those of the CUDA toolkit, and the compiler's own
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- build/nvidia/include "${CUDA_HOME:-/usr/local/cuda}/include"
folders=()
for folder in "$@"; do
  folders+=(-isystem "$folder")
done
for header in nccl.h cuda_runtime.h; do
  if ! echo "#include <$header>" | ${CC:-gcc} "${folders[@]}" -E -x c - >/dev/null 2>&1; then
    echo "check_nccl_header: $header was not found in $* (package libnccl-dev, or PyPI's nvidia-nccl-cu13)"
    exit 77
  fi
done
version=$(printf '#include <nccl.h>\nNCCL_MAJOR NCCL_MINOR NCCL_PATCH\n' |
  ${CC:-gcc} "${folders[@]}" -E -P -x c - | tail -1 | tr ' ' .)
${CC:-gcc} -std=c17 -Wall -Wextra -Werror -I. "${folders[@]}" -fsyntax-only tests/headers/nccl.c
echo "check_nccl_header: zero/comm/nccl_api.h agrees with nccl.h $version"
