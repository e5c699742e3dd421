#!/bin/sh
# Package: transformers 5.24.0, with tokenizers 0.23.3.
# Guess: AutoTokenizer gives the ids of a folder's tokenizer.json where tokenizer_config.json has the class PreTrainedTokenizerFast.
# Behavior: it does with config.json's model_type llama. With qwen2 it builds Qwen2Tokenizer, whose pattern and normalization take
# the place of the file's, without a warning; the entry auto_map, with a class that is not loaded, keeps it from that.
# Seen:
#   llama: TokenizersBackend, the ids of the file
#   qwen2: Qwen2Tokenizer, other ids
#   qwen2 with auto_map: TokenizersBackend, the ids of the file
# Exit code 1: it behaves in another way now.
set -eu
seen=$(sed -n 's/^#   //p' "$0")
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 tokenizers==0.23.3
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python - 2>/dev/null <<'PYTHON' >found
import json, os
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer
letters = ['<|endoftext|>', *sorted(pre_tokenizers.ByteLevel.alphabet()), 'Ġ1']
tokenizer = Tokenizer(models.BPE(vocab={token: k for k, token in enumerate(letters)}, merges=[('Ġ', '1')]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.add_special_tokens(['<|endoftext|>'])
for name, model_type, more in (('llama', 'llama', {}), ('qwen2', 'qwen2', {}),
                               ('qwen2 with auto_map', 'qwen2', {'auto_map': {'AutoTokenizer': ['PreTrainedTokenizerFast'] * 2}})):
    os.makedirs(name)
    tokenizer.save(f'{name}/tokenizer.json')
    settings = {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '<|endoftext|>', **more}
    for file, content in ('config', {'model_type': model_type}), ('tokenizer_config', settings):
        with open(f'{name}/{file}.json', 'w', encoding='utf-8') as out:
            json.dump(content, out)
    read = AutoTokenizer.from_pretrained(name)
    same = read('x 1').input_ids == tokenizer.encode('x 1').ids
    print(f'{name}: {type(read).__name__}, {"the ids of the file" if same else "other ids"}')
PYTHON
cat found
test "$(cat found)" = "$seen"
