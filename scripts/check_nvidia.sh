#!/usr/bin/env bash
# Checks this project's declarations of NVIDIA's libraries against their headers (tests/nvidia/check_NAME.c), for
# libraries that this machine has or that --download fetches. Checks without a GPU that cuDNN accepts the attention
# graphs (tests/nvidia/judge_cudnn.c). Lines that begin with "skip:" name the checks that could not run.
#
# usage: scripts/check_nvidia.sh [--download]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/nvidia_headers.sh "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CC=${CC:-gcc}
flags=(-std=gnu17 -Wall -Wextra -Werror -D_GNU_SOURCE -I. -isystem build/nvidia/include)
[ -e build/nvidia/include/cuda_runtime.h ] || flags+=(-isystem /usr/local/cuda/include)

for check in tests/nvidia/check_*.c; do
  name=$(basename "$check" .c)
  name=${name#check_}
  if [ ! -e "build/nvidia/include/$name.h" ]; then
    continue # scripts/nvidia_headers.sh said why
  fi
  if ! echo '#include <cuda_runtime_api.h>' | $CC "${flags[@]}" -fsyntax-only -x c - 2>/dev/null; then
    echo "skip: $name.h needs CUDA's headers, and there is no toolkit in /usr/local/cuda"
    continue
  fi
  $CC "${flags[@]}" -fsyntax-only "$check"
  echo "$name.h agrees with what the project declares"
done

if [ -e build/nvidia/lib/libcudnn.so.9 ]; then
  $CC -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so.1" tests/nvidia/driver.c
  $CC "${flags[@]}" -O1 -o "$work/judge_cudnn" tests/nvidia/judge_cudnn.c kernels/cuda/cudnn/*.c kernels/attention.c base/status.c -lm -ldl -lpthread
  libraries=$(dirname "$(readlink -f build/nvidia/lib/libcudnn.so.9)")
  LD_LIBRARY_PATH=$work:$libraries:/usr/local/cuda/lib64 "$work/judge_cudnn" "$libraries/libcudnn.so.9"
fi
