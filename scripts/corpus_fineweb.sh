#!/usr/bin/env bash
# Fetches FineWeb as token shards of GPT-2's tokenizer from Hugging Face: a validation shard, then training shards of
# 100 million tokens (200 MB) each. The presets read these folders. Files that are complete are kept, and an
# interrupted download is continued.
#
# usage: scripts/corpus_fineweb.sh [SET] [SHARDS]     SET: 10B (default), 100B or edu100B; SHARDS: how many (10)
#   10B      corpus/fineweb10B: gpt2-small
#   100B     corpus/fineweb100B: gpt2-medium, gpt2-large, gpt3-*
#   edu100B  corpus/edu_fineweb100B: gpt2-xl
# FINEWEB_URL replaces https://huggingface.co/datasets
set -euo pipefail
cd "$(dirname "$0")/.."
set=${1:-10B}
shards=${2:-10}
base=${FINEWEB_URL:-https://huggingface.co/datasets}

case $set in
10B) repository=kjj0/fineweb10B-gpt2 folder=corpus/fineweb10B prefix=fineweb most=103 ;;
100B) repository=kjj0/fineweb100B-gpt2 folder=corpus/fineweb100B prefix=fineweb most=1030 ;;
edu100B)
  repository=karpathy/fineweb-edu-100B-gpt2-token-shards folder=corpus/edu_fineweb100B prefix=edu_fineweb most=1000
  ;;
*)
  echo "corpus_fineweb.sh: the set is $set, expected 10B, 100B or edu100B" >&2
  exit 2
  ;;
esac
if ! [[ $shards =~ ^[0-9]+$ ]] || [ "$shards" -lt 1 ] || [ "$shards" -gt "$most" ]; then
  echo "corpus_fineweb.sh: the number of shards is $shards, expected 1 to $most" >&2
  exit 2
fi
if ! command -v curl >/dev/null; then
  echo "corpus_fineweb.sh: needs curl; install it (apt-get install curl)" >&2
  exit 1
fi

# A shard is a header of 1024 bytes, whose third number counts the tokens, and 2 bytes per token.
is_complete() {
  [ -s "$1" ] || return 1
  local header tokens
  header=$(od -An -td4 -N12 "$1")
  read -r magic _ tokens <<<"$header"
  [ "$magic" = 20240520 ] && [ "$(stat -c %s "$1")" -eq $((1024 + 2 * tokens)) ]
}

fetch() {
  local path=$folder/$1
  if [ -e "$path" ] && is_complete "$path"; then
    return
  fi
  echo "$path"
  curl --fail --location --silent --show-error --retry 5 --continue-at - --output "$path.part" \
    "$base/$repository/resolve/main/$1"
  if ! is_complete "$path.part"; then
    echo "corpus_fineweb.sh: $base/$repository/resolve/main/$1 is not a complete token shard; remove $path.part and try again" >&2
    exit 1
  fi
  mv "$path.part" "$path"
}

mkdir -p "$folder"
fetch "${prefix}_val_000000.bin"
for n in $(seq 1 "$shards"); do
  fetch "$(printf '%s_train_%06d.bin' "$prefix" "$n")"
done
echo "$folder: $shards training shards and one for validation"
