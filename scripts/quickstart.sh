#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a trained model: installs packages, builds, creates the corpus, trains
# configs/quickstart.json (five minutes, on any machine), evaluates the model on held-out text and prints samples.
# When run again, it skips finished steps and resumes the training run.
#
# usage: scripts/quickstart.sh [section.key=value ...]     overrides for the training run
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n== %s\n' "$*"
}

step "packages"
scripts/install.sh --corpus
echo "all installed"

step "build"
# make compiles CUDA code for this machine's GPUs. Without a GPU, skip it, because it takes minutes.
if nvidia-smi -L >/dev/null 2>&1; then
  make -j"$(nproc)" train
else
  make -j"$(nproc)" CUDA=no train
fi

step "corpus: the King James text"
scripts/corpus_kjv.sh corpus/kjv
cat corpus/kjv/meta.json

run=runs/quickstart
for argument in "$@"; do
  case $argument in run.dir=*) run=${argument#run.dir=} ;; esac
done

# Ctrl-C during training stops it after its step, with exit code 130; this script then stops too.
trap : INT
step "training: configs/quickstart.json"
./train configs/quickstart.json "$@" || {
  code=$?
  [ $code -le 128 ] || printf '\nquickstart.sh: training was stopped; run the same command again to resume it\n' >&2
  exit $code
}
trap - INT
if [ ! -d "$run/checkpoints" ]; then
  echo "quickstart.sh: training left no checkpoint in $run" >&2
  exit 1
fi

step "evaluation on the held-out 5 % of the text"
./train eval "$run" --data "corpus/kjv/val-*.bin"

step "samples"
for prompt in "In the beginning" "And Jesus said" "The LORD is"; do
  ./train generate "$run" --prompt "$prompt" --tokens 96 --temperature 0.8 --top-p 0.95 --seed 1
  printf '\n\n'
done

echo "The run: $run (config.json, metrics.jsonl, log.txt, checkpoints/)"
echo "Its curves, as a page: ./train report $run"
echo "More text: ./train generate $run --prompt 'And it came to pass'"
