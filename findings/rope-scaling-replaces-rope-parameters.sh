#!/bin/sh
# transformers 5.24.0: a config.json with "rope_parameters", as this version saves it, and a "rope_scaling" beside it, as model cards
# say to add for longer contexts.
# Guess: the keys of rope_scaling are added to rope_parameters.
# Behavior: rope_scaling replaces rope_parameters as a whole, without a warning. Its rope_theta is then the default, 10000, not the one
# that the model was trained with.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0
cat >"$folder/run.py" <<'PY'
from transformers import Qwen3Config
config = Qwen3Config.from_dict({
    'model_type': 'qwen3', 'rope_parameters': {'rope_type': 'default', 'rope_theta': 1000000.0},
    'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32768}})
print(config.rope_parameters['rope_type'], config.rope_parameters['rope_theta'])
PY
seen=$("$folder/venv/bin/python" "$folder/run.py" 2>/dev/null)
echo "$seen" # yarn 10000.0
test "$seen" = 'yarn 10000.0'
