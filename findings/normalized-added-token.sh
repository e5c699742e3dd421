#!/bin/sh
# tokenizers 0.23.3: a token added to a tokenizer of Llama 2's form, whose normalizer puts U+2581 before a text.
# Guess: the token is found wherever its name is in a text.
# Behavior: add_tokens takes a name as "normalized" by default; the normalizer puts U+2581 before the name as well, so the token is
# found after a blank or where a text begins, and not after a letter. With AddedToken(name, normalized=False) it is found everywhere.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
cat >"$folder/run.py" <<'PY'
from tokenizers import AddedToken, Tokenizer, models, normalizers
tokenizer = Tokenizer(models.BPE(vocab={'<unk>': 0, '\u2581': 1, 'a': 2}, merges=[], unk_token='<unk>', fuse_unk=True))
tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581')])
tokenizer.add_tokens(['<x>', AddedToken('<y>', normalized=False)])
print(tokenizer.encode('a <x>').ids, tokenizer.encode('a<x>').ids, tokenizer.encode('a<y>').ids)
PY
seen=$("$folder/venv/bin/python" "$folder/run.py")
echo "$seen" # [1, 2, 3] [1, 2, 0] [1, 2, 4]
test "$seen" = '[1, 2, 3] [1, 2, 0] [1, 2, 4]'
