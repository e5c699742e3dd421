#!/usr/bin/env bash
# Downloads a public data set. Files that are complete are kept, and an interrupted download continues where it stopped:
# run the same command again.
#
# usage: scripts/get_data.sh NAME [FOLDER] [--shards N] [--verify]        FOLDER: corpus/NAME unless a line below says more
#   tinyshakespeare    1 MB of text
#   tinystories        2.2 GB of short stories as text, <|endoftext|> between them
#   openwebtext        the sample of OpenWebText that Stanford's CS336 publishes: text packed with gzip, <|endoftext|>
#                      between its pages
#   fineweb-10B        FineWeb as token shards for GPT-2's tokenizer, 200 MB each, and a validation shard; 103 shards, to
#                      corpus/fineweb10B, which configs/gpt2-small.json names
#   fineweb-100B       1030 shards, to corpus/fineweb100B (gpt2-medium, gpt2-large, gpt3-*)
#   fineweb-edu-10B    FineWeb-Edu: the first 100 shards of the next line
#   fineweb-edu-100B   1000 shards, to corpus/edu_fineweb100B (gpt2-xl)
#   hellaswag          the validation questions, as JSON Lines
#   gpt2-tokenizer     GPT-2's tokenizer (vocab.bpe)
#
#   --shards N   of fineweb: only the first N training shards
#   --verify     also compares files that are there already with FOLDER/SHA256SUMS
#
# Checksums: those that the publisher states are compared: of tinyshakespeare and gpt2-tokenizer in this script, of files
# on the Hugging Face Hub in the headers of their download. Every checksum is recorded in FOLDER/SHA256SUMS. If none is
# published (hellaswag), the first download is trusted, and later ones must equal it.
#
# Environment:
#   ZERO_DATA_URL      a mirror: https://HOST/PATH is fetched from $ZERO_DATA_URL/HOST/PATH
#   ZERO_DATA_RETRY_S  seconds to wait before the second attempt (1); each further wait is twice as long
#   https_proxy, ...   as curl reads them
set -euo pipefail
cd "$(dirname "$0")/.."

hub=https://huggingface.co/datasets
attempts=6 # without progress
retry_s=${ZERO_DATA_RETRY_S:-1}
shard_bytes=200001024
work= shower=

say() { echo "get_data.sh: $*" >&2; }
fail() {
  say "$*"
  exit 1
}
misused() {
  say "$*; see: scripts/get_data.sh --help"
  exit 2
}
help() { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; }

# ---- one file

# header NAME: prints the header's value in the last response in $work/headers that has it
header() { sed -n "s/^$1: *//Ip" "$work/headers" | tr -d '\r' | tail -n 1; }

host_of() { sed -E 's|^https?://([^/]*).*|\1|' <<<"$1"; }

# Prints a reason to give up, given curl's exit code ($1), the HTTP status ($2), the URL ($3) and the file ($4). Prints
# nothing if the error may be temporary.
reason() {
  case $1 in
  5 | 6 | 7) echo "cannot reach $(host_of "$3"): is this machine offline, or behind a proxy (https_proxy)?" ;;
  23) echo "cannot write $4: is the disk full?" ;;
  35 | 51 | 58 | 60) echo "cannot connect to $(host_of "$3") securely (curl: error $1)" ;;
  22) case $2 in
    401 | 403) echo "$3: access is denied (HTTP $2)" ;;
    404 | 410) echo "$3 does not exist (any more) (HTTP $2)" ;;
    408 | 416 | 425 | 429 | 5??) ;;
    *) echo "$3: HTTP error $2" ;;
    esac ;;
  esac
}

size_of() { stat -c %s "$1" 2>/dev/null || echo 0; }

# try COMMAND...: runs curl with the arguments until it succeeds. Waits between attempts; an attempt that extended $path.part
# resets the count.
try() {
  local attempt=1 before wait=$retry_s code status why
  while true; do
    before=$(size_of "$path.part")
    code=0
    status=$(curl --fail --silent --show-error --connect-timeout 30 --speed-limit 1000 --speed-time 60 \
      --write-out '%{http_code}' "$@" 2>"$work/error") || code=$?
    [ "$code" -eq 0 ] && return
    # The server cannot continue from here (33), or has no further bytes (416): start again.
    if [ "$code" -eq 33 ] || [ "$status" = 416 ]; then
      rm -f "$path.part"
    fi
    why=$(reason "$code" "$status" "$url" "$path")
    # Retry an unreachable server only once.
    if [ -n "$why" ] && { [ "$code" -gt 7 ] || [ "$attempt" -gt 1 ]; }; then
      fail "$why
What was fetched so far is kept; the same command continues there."
    fi
    [ "$(size_of "$path.part")" -gt "$before" ] && attempt=1 wait=$retry_s
    if [ "$attempt" -ge "$attempts" ]; then
      fail "$url: gave up after $attempts attempts without progress: $(tail -n 1 "$work/error")
What was fetched so far is kept; the same command continues there."
    fi
    say "$(basename "$path"): the connection failed ($(tail -n 1 "$work/error" | sed 's/^curl: //')); trying again in $wait s"
    sleep "$wait"
    wait=$(awk "BEGIN { print 2 * $wait }")
    attempt=$((attempt + 1))
  done
}

# Shows the size of $path.part until it is killed: on a terminal every second, elsewhere every minute.
show_progress() {
  local last now step=60
  [ ! -t 2 ] || step=1
  last=$(size_of "$path.part")
  while true; do
    # Waits without a process that would outlive this one. Nothing is written to this pipe.
    read -r -t "$step" <> <(:) || true
    now=$(size_of "$path.part")
    awk -v now="$now" -v last="$last" -v total="${total:-0}" -v step="$step" -v tty="$([ ! -t 2 ] || echo 1)" 'BEGIN {
      rate = (now - last) / step
      printf "%s  %.1f MB", tty ? "\r\033[K" : "", now / 1e6
      if (total > 0) printf " of %.1f MB, %d %%", total / 1e6, 100 * now / total
      printf ", %.1f MB/s", rate / 1e6
      if (total > 0 && rate > 0) printf ", %d:%02d left", (total - now) / rate / 60, (total - now) / rate % 60
      if (!tty) printf "\n"
    }' >&2
    last=$now
  done
}

end_progress() {
  [ -n "$shower" ] || return 0
  kill "$shower" 2>/dev/null || true
  wait "$shower" 2>/dev/null || true
  shower=
  [ ! -t 2 ] || printf '\r\033[K' >&2
}

# A token shard is a header of 1024 bytes, whose third number counts the tokens, and 2 bytes per token.
is_shard() {
  local magic tokens
  read -r magic _ tokens < <(od -An -td4 -N12 "$1") || return 1
  [ "$magic" = 20240520 ] && [ "$(size_of "$1")" -eq $((1024 + 2 * tokens)) ]
}

recorded_sum() { [ -e "$folder/SHA256SUMS" ] && awk -v name="$1" '$2 == name { print $1 }' "$folder/SHA256SUMS"; }

record_sum() {
  { [ ! -e "$folder/SHA256SUMS" ] || awk -v name="$1" '$2 != name' "$folder/SHA256SUMS"; } >"$folder/SHA256SUMS.new"
  echo "$2  $1" >>"$folder/SHA256SUMS.new"
  mv "$folder/SHA256SUMS.new" "$folder/SHA256SUMS"
}

free_bytes() { df --output=avail -B1 "$1" | tail -n 1 | tr -d ' '; }

gigabytes() { awk "BEGIN { printf \"%.2f GB\", $1 / 1e9 }"; }

need_space() {
  local free
  free=$(free_bytes "$folder")
  [ "$1" -le "$free" ] || fail "$folder needs $(gigabytes "$1") more, but its disk has $(gigabytes "$free") free; name another \
FOLDER, or fetch less"
}

# Requests the headers: the size, the publisher's checksum, and the tag that identifies the version of the file.
ask_headers() {
  local ask=(--head --dump-header "$work/headers" --output /dev/null "$url")
  : >"$work/headers"
  try "${ask[@]}"
  # The Hub's answer has the file's size and checksum, and redirects to a server that may refuse HEAD requests.
  if [ -z "$(header x-linked-size)" ] && [ -n "$(header location)" ]; then
    try --location "${ask[@]}"
  fi
  total=$(header x-linked-size)
  total=${total:-$(header content-length)}
  version=$(header etag)
  # For files in Git LFS, the Hub states the SHA-256.
  linked=$(header x-linked-etag | tr -d '"')
  if [[ $linked =~ ^[0-9a-f]{64}$ ]]; then
    version=$linked
    [ -n "$sum" ] || sum=$linked
  fi
}

# fetch URL [SHA256]: downloads a file to $folder, under its own name
fetch() {
  local url=$1 sum=${2:-} path name recorded found total version linked
  name=$(basename "$url")
  path=$folder/$name
  [ -z "${ZERO_DATA_URL:-}" ] || url=${ZERO_DATA_URL%/}/${url#https://}
  recorded=$(recorded_sum "$name" || true)
  if [ -e "$path" ]; then
    if [ -z "$verify" ] || [ -z "$recorded" ]; then
      return
    fi
    [ "$(sha256sum <"$path" | cut -d' ' -f1)" = "$recorded" ] && return
    fail "$path has changed since it was downloaded (its SHA-256 is not the one in $folder/SHA256SUMS); remove it and run \
the same command again"
  fi
  ask_headers
  # The partial file may be of another version.
  if [ -e "$path.part" ] && [ "$(cat "$path.part.version" 2>/dev/null)" != "$version" ]; then
    say "$name was published anew since its download began; beginning again"
    rm -f "$path.part"
  fi
  echo "$version" >"$path.part.version"
  if [[ $total =~ ^[0-9]+$ ]]; then
    need_space $((total - $(size_of "$path.part")))
    echo "$path ($(gigabytes "$total"))"
  else
    total=
    echo "$path"
  fi
  if [ -z "$total" ] || [ "$(size_of "$path.part")" -ne "$total" ]; then
    show_progress &
    shower=$!
    try --location --continue-at - --output "$path.part" "$url"
    end_progress
  fi
  finish
}

# Checks the download and gives it its final name.
finish() {
  if [ -n "$total" ] && [ "$(size_of "$path.part")" -ne "$total" ]; then
    rm -f "$path.part" "$path.part.version"
    fail "$url has another size than the server said; run the same command again"
  fi
  found=$(sha256sum <"$path.part" | cut -d' ' -f1)
  if [ -n "$sum" ] && [ "$found" != "$sum" ]; then
    rm -f "$path.part" "$path.part.version"
    fail "$name has the SHA-256 $found, but its publisher states $sum. It was removed: run the same command again"
  fi
  if [ -n "$recorded" ] && [ "$found" != "$recorded" ]; then
    fail "$name has the SHA-256 $found, but $recorded when it was first downloaded ($folder/SHA256SUMS): its publisher has \
changed it. To accept that, remove its line from $folder/SHA256SUMS and run the same command again"
  fi
  if [[ $name == *.bin ]] && ! is_shard "$path.part"; then
    rm -f "$path.part" "$path.part.version"
    fail "$url is not a complete token shard"
  fi
  record_sum "$name" "$found"
  mv "$path.part" "$path"
  rm -f "$path.part.version"
}

# ---- the data sets

# fetch_shards REPOSITORY PREFIX MOST
fetch_shards() {
  local n missing=0 most=${shards:-$3} names=("$2_val_000000.bin") name
  [ "$most" -le "$3" ] || misused "$set has $3 shards, --shards asks for $most"
  for n in $(seq 1 "$most"); do
    names+=("$(printf '%s_train_%06d.bin' "$2" "$n")")
  done
  for name in "${names[@]}"; do
    [ -e "$folder/$name" ] || missing=$((missing + 1))
    [ ! -e "$folder/$name.part" ] || missing=$((missing - 1)) # its own check counts the rest
  done
  need_space $((missing * shard_bytes))
  for name in "${names[@]}"; do
    fetch "$hub/$1/resolve/main/$name"
  done
  echo "$folder: $most training shards and one for validation: data.train='$folder/$2_train_*.bin'"
}

# next WORDS...: prints what to do next with the text
tokenize_next() {
  echo "next: ./train tokenize $* --tokenizer corpus/gpt2-tokenizer --out $folder"
}

set= folder= shards= verify=
while [ $# -gt 0 ]; do
  case $1 in
  --help | -h)
    help
    exit 0
    ;;
  --verify) verify=1 ;;
  --shards | --shards=*)
    if [ "$1" = --shards ]; then
      [ $# -gt 1 ] || misused "--shards needs a number"
      shards=$2
      shift
    else
      shards=${1#*=}
    fi
    [[ $shards =~ ^[1-9][0-9]{0,5}$ ]] || misused "--shards is '$shards', expected a number from 1 on"
    ;;
  -*) misused "unknown option $1" ;;
  *)
    if [ -z "$set" ]; then
      set=$1
    elif [ -z "$folder" ]; then
      folder=$1
    else
      misused "unexpected argument '$1'"
    fi
    ;;
  esac
  shift
done

case $set in
tinyshakespeare | tinystories | openwebtext | hellaswag | gpt2-tokenizer) folder=${folder:-corpus/$set} ;;
fineweb-10B) folder=${folder:-corpus/fineweb10B} ;;
fineweb-100B) folder=${folder:-corpus/fineweb100B} ;;
fineweb-edu-10B | fineweb-edu-100B) folder=${folder:-corpus/edu_fineweb100B} ;;
'') misused "name a data set" ;;
*) misused "there is no data set '$set'" ;;
esac
[ -z "$shards" ] || [[ $set == fineweb-* ]] || misused "--shards is for fineweb sets only"
for program in curl sha256sum od df awk; do
  command -v $program >/dev/null || fail "needs $program; install it (scripts/install.sh installs curl; the others belong to coreutils and awk)"
done
mkdir -p "$folder"
exec 9>"$folder/.get_data.lock"
flock -n 9 || fail "another get_data.sh is downloading to $folder"
work=$(mktemp -d)
trap 'end_progress; rm -rf "$work"' EXIT

case $set in
tinyshakespeare)
  fetch https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt \
    86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
  tokenize_next "$folder/input.txt --split 0.1"
  ;;
tinystories)
  fetch $hub/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-valid.txt
  fetch $hub/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-train.txt
  tokenize_next "$folder/TinyStoriesV2-GPT4-train.txt --end-of-text --split 0.01"
  ;;
openwebtext)
  fetch $hub/stanford-cs336/owt-sample/resolve/main/owt_valid.txt.gz
  fetch $hub/stanford-cs336/owt-sample/resolve/main/owt_train.txt.gz
  tokenize_next "$folder/owt_train.txt.gz --end-of-text --split 0.01"
  ;;
fineweb-10B) fetch_shards kjj0/fineweb10B-gpt2 fineweb 103 ;;
fineweb-100B) fetch_shards kjj0/fineweb100B-gpt2 fineweb 1030 ;;
fineweb-edu-10B) fetch_shards karpathy/fineweb-edu-100B-gpt2-token-shards edu_fineweb 100 ;;
fineweb-edu-100B) fetch_shards karpathy/fineweb-edu-100B-gpt2-token-shards edu_fineweb 1000 ;;
hellaswag) fetch https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl ;;
gpt2-tokenizer)
  fetch https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe \
    1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
  ;;
esac
