#!/usr/bin/env bash
# Creates the King James corpus: text, a byte-pair tokenizer trained on all but the last 5 %, and token shards.
# Files that exist are kept.
#
# usage: scripts/corpus_kjv.sh [FOLDER]     (corpus/kjv)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-corpus/kjv}
vocab_size=${VOCAB_SIZE:-4096}
held_out=0.05

mkdir -p "$folder"
if [ ! -s "$folder/kjv.txt" ]; then
  # One verse per line, after its reference ("Ge1:1 In the beginning ..."), which is not part of the text.
  bible -f Gen1:1-Rev22:21 | sed 's/^[^ ]* //' >"$folder/kjv.txt.tmp"
  if [ "$(wc -l <"$folder/kjv.txt.tmp")" -ne 31102 ]; then
    echo "corpus_kjv.sh: expected 31102 verses from the bible program, got $(wc -l <"$folder/kjv.txt.tmp")" >&2
    exit 1
  fi
  mv "$folder/kjv.txt.tmp" "$folder/kjv.txt"
fi
[ -s "$folder/tokenizer.tiktoken" ] || ./train tokenizer train "$folder/kjv.txt" --split "$held_out" \
  --vocab-size "$vocab_size" --out "$folder/tokenizer.tiktoken"
[ -s "$folder/meta.json" ] || ./train tokenize "$folder/kjv.txt" --split "$held_out" \
  --tokenizer "$folder/tokenizer.tiktoken" --out "$folder"
