"""What transformers, tokenizers, tiktoken and llama.cpp make of files that ./train reads. Run by tests/cli/test_import.py in a Python
environment with these packages.

usage: python import_checks.py CHECK ARGUMENT...      Prints one JSON object; an exception fails the check.
"""
import json
import math
import os
import pathlib
import sys

os.environ['HF_HUB_OFFLINE'] = '1'  # a folder that is missing fails at once

import harness

N_TOKENS = 60
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}
# name -> family, options of its config, what is done to its files
MODELS = {
    'biases': ('llama', {'attention_bias': True}, None),
    'qwen3-biases': ('qwen3', {'attention_bias': True, 'head_dim': 24}, None),
    'mistral': ('mistral', {'sliding_window': None}, None),
    'mistral-window': ('mistral', {'sliding_window': 5}, None),
    'swish': ('llama', {'hidden_act': 'swish'}, None),
    'gelu-tanh': ('gpt2', {'activation_function': 'gelu_pytorch_tanh'}, None),
    'mscale': ('llama', {'rope_scaling': {**YARN, 'mscale': 0.7}}, None),
    'mscale-ratio': ('llama', {'rope_scaling': {**YARN, 'mscale': 0.7, 'mscale_all_dim': 0.3}}, None),
    'double': ('qwen2', {}, 'double'),
    'head-only': ('llama', {'tie_word_embeddings': True}, 'head-only'),
    'gpt2-head-only': ('gpt2', {}, 'head-only'),
    'other-head': ('llama', {'tie_word_embeddings': True}, 'other-head'),
    'no-metadata': ('llama', {}, 'no-metadata'),
}


def tokens():
    return [i * 37 % 251 for i in range(N_TOKENS)]


def random_model(family, options):
    import torch
    import transformers
    sizes = ({'n_layer': 2, 'n_head': 4, 'n_embd': 64, 'n_positions': 64} if family == 'gpt2' else
             {'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'hidden_size': 64,
              'intermediate_size': 96, 'max_position_embeddings': 64})
    config = transformers.AutoConfig.for_model(family, vocab_size=300, bos_token_id=0, eos_token_id=0, **{**sizes, **options})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 and name.endswith('weight') else 0.0, 0.1)
    return model


def change(path, how):
    import torch
    from safetensors.torch import load_file, save_file
    if how == 'no-metadata':
        data = path.read_bytes()
        length = int.from_bytes(data[:8], 'little')
        header = json.dumps({**json.loads(data[8:8 + length]), '__metadata__': None}).encode()
        path.write_bytes(len(header).to_bytes(8, 'little') + header + data[8 + length:])
        return
    tensors = load_file(path)
    embedding = next(name for name in tensors if name.endswith(('embed_tokens.weight', 'wte.weight')))
    if how == 'double':
        tensors = {name: tensor.double() for name, tensor in tensors.items()}
    elif how == 'head-only':
        tensors['lm_head.weight'] = tensors.pop(embedding)
    else:
        tensors['lm_head.weight'] = torch.randn(tensors[embedding].shape, generator=torch.Generator().manual_seed(9)) * 0.1
    save_file(tensors, path, metadata={'format': 'pt'})


def make(folder, *names):
    """The models, and the loss that transformers has with each, read again."""
    import torch
    import transformers
    folder = pathlib.Path(folder)
    harness.write_shard(folder / 'tokens.bin', tokens())
    ids, losses = torch.tensor([tokens()]), {}
    for name in names or MODELS:
        family, options, how = MODELS[name]
        random_model(family, options).save_pretrained(folder / name)
        if how:
            change(folder / name / 'model.safetensors', how)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, torch_dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        losses[name] = torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()
    return losses


def save_by_llama(path, saved):
    """The loss of llama.cpp with a GGUF file, which it saves to another, and with that."""
    import llama_cpp
    losses = {}
    for file in path, saved:
        llama = llama_cpp.Llama(file, n_ctx=64, verbose=False, logits_all=True)
        llama.eval(tokens()[:-1])
        rows = llama.scores[:N_TOKENS - 1].astype('float64')
        largest = rows.max(axis=1, keepdims=True)
        totals = [math.log(sum(map(math.exp, row - top))) + top[0] for row, top in zip(rows, largest)]
        losses[file] = sum(total - row[token] for total, row, token in zip(totals, rows, tokens()[1:])) / (N_TOKENS - 1)
        if file == path:
            llama_cpp.llama_model_save_to_file(llama._model.model, saved.encode())
    return losses


def encode(folder, texts):
    """The ids of texts by the tokenizer.json of a folder, control tokens as text."""
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(f'{folder}/tokenizer.json')
    tokenizer.encode_special_tokens = True
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in json.loads(texts)]


def resave(folder, out, config):
    """Saves the tokenizer of a folder as transformers does, with added tokens."""
    import transformers
    pathlib.Path(folder, 'tokenizer_config.json').write_text(config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(['<think>', transformers.AddedToken('<raw>', special=False, normalized=False)])
    tokenizer.save_pretrained(out)
    return {}


def tiktoken_ids(name, path, texts):
    """The ids that tiktoken gives with the ranks of a file and the pattern of an encoding."""
    import base64
    import tiktoken
    from unittest import mock
    import tiktoken_ext.openai_public as public
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, open(path, encoding='ascii'))}
    with mock.patch.object(public, 'load_tiktoken_bpe', lambda *_, **__: ranks):
        pattern = getattr(public, name)()['pat_str']
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [encoding.encode_ordinary(text) for text in json.loads(texts)]


if __name__ == '__main__':
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
