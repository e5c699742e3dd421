#!/bin/sh
# Package: lm_eval 0.4.13.
# Guess: the model local-completions takes the log-probabilities of the tokens that it sent, by their number; an answer with another
# number of entries is an error.
# Behavior: it takes all entries after the context but the last, whatever their number. A server that draws an end of text and
# has no entry for it loses the last token of each continuation: one of a single token is certain, and greedy.
# Seen, of a context of 1 token and a continuation of 1 token with log-probability -0.5:
#   with an entry for the token that was drawn: (-0.5, True)
#   without it: (0, True)
# Exit code 1: it behaves in another way now.
set -eu
seen=$(sed -n 's/^#   //p' "$0")
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'lm_eval[api]==0.4.13' transformers==5.24.0
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - 2>/dev/null <<'PYTHON' >found
from lm_eval.models.openai_completions import LocalCompletionsAPI
logprobs, top = [None, -0.5, -0.25], [None, {'b': -0.5}, {'<|endoftext|>': -0.25}]
for what, n in ('with an entry for the token that was drawn', 3), ('without it', 2):
    choice = {'index': 0, 'logprobs': {'token_logprobs': logprobs[:n], 'top_logprobs': top[:n]}}
    print(f'{what}: {LocalCompletionsAPI.parse_logprobs({"choices": [choice]}, tokens=[[1, 2]], ctxlens=[1])[0]}')
PYTHON
cat found
test "$(cat found)" = "$seen"
