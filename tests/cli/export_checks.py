"""What other programs read in exported folders. Run by tests/cli/test_export.py in a Python environment with their packages.

usage: python export_checks.py CHECK ARGUMENT...      Prints one JSON object; an exception fails the check.
"""
import json
import pathlib
import sys


def numpy_weights(folder):
    """All tensors of a Hugging Face folder, in float32, by the safetensors package and the index if there is one."""
    import numpy
    from safetensors import safe_open
    index = folder / 'model.safetensors.index.json'
    files = ['model.safetensors']
    if index.exists():
        content = json.loads(index.read_text())
        files = sorted(set(content['weight_map'].values()))
    weights = {}
    for name in files:
        with safe_open(folder / name, framework='numpy') as file:
            assert file.metadata() == {'format': 'pt'}, file.metadata()
            for key in file.keys():
                assert len(files) == 1 or content['weight_map'][key] == name, key
                weights[key] = file.get_tensor(key)
    if index.exists():
        assert set(weights) == set(content['weight_map'])
        assert content['metadata']['total_size'] == sum(w.nbytes for w in weights.values())
    return {name: numpy.asarray(w, numpy.float32) for name, w in weights.items()}


def logits_by_numpy(folder, tokens):
    """GPT-2's forward pass, straight from its paper and config.json, in float64."""
    import numpy as np
    config = json.loads((folder / 'config.json').read_text())
    w = {name: value.astype(np.float64) for name, value in numpy_weights(folder).items()}
    assert config['model_type'] == 'gpt2' and config['architectures'] == ['GPT2LMHeadModel']
    assert config['activation_function'] == 'gelu_new' and config['tie_word_embeddings']

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config['layer_norm_epsilon']) * w[f'{name}.weight'] + w[f'{name}.bias']

    def linear(x, name):
        return x @ w[f'{name}.weight'] + w[f'{name}.bias']
    B, T = tokens.shape
    H = config['n_head']
    x = w['wte.weight'][tokens] + w['wpe.weight'][:T]
    for k in range(config['n_layer']):
        q, key, v = (part.reshape(B, T, H, -1).swapaxes(1, 2)
                     for part in np.split(linear(norm(x, f'h.{k}.ln_1'), f'h.{k}.attn.c_attn'), 3, -1))
        scores = q @ key.swapaxes(2, 3) / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(B, T, -1)
        x = x + linear(mixed, f'h.{k}.attn.c_proj')
        u = linear(norm(x, f'h.{k}.ln_2'), f'h.{k}.mlp.c_fc')
        u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        x = x + linear(u, f'h.{k}.mlp.c_proj')
    return norm(x, 'ln_f') @ w['wte.weight'].T


def golden_batch(golden):
    """The first batch of a golden run, and the logits that PyTorch computed for it."""
    import numpy as np
    from safetensors.numpy import load_file
    expected = json.loads((golden / 'expected.json').read_text())
    tokens = np.fromfile(golden / 'tokens.bin', np.uint16, offset=1024).astype(np.int64)
    tokens = tokens[:expected['batch'] * expected['seq']].reshape(expected['batch'], expected['seq'])
    return tokens, load_file(golden / 'expected.safetensors')['logits']


def check_logits(folder, golden):
    tokens, expected = golden_batch(pathlib.Path(golden))
    return {'error': float(abs(logits_by_numpy(pathlib.Path(folder), tokens) - expected).max())}


def check_transformers(folder, golden):
    """Logits of the golden batch by transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    tokens, expected = golden_batch(pathlib.Path(golden))
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype='auto')
    with torch.no_grad():
        logits = model(torch.tensor(tokens)).logits.float().numpy()
    return {'error': float(abs(logits - expected).max()), 'dtype': str(model.dtype), 'class': type(model).__name__}


def check_generate(folder, prompt, n_tokens):
    """Greedy text by transformers, with the tokenizer of the folder as fast and as Python code."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Tokenizer
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors='pt')
    assert GPT2Tokenizer.from_pretrained(folder)(prompt)['input_ids'] == ids['input_ids'][0].tolist()
    out = model.generate(**ids, max_new_tokens=int(n_tokens), do_sample=False)[0]
    return {'text': tokenizer.decode(out), 'eos': tokenizer.eos_token_id, 'longest': tokenizer.model_max_length}


def check_save(folder, out, shard_size):
    """Saves the model and the tokenizer as transformers does."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    AutoModelForCausalLM.from_pretrained(folder, torch_dtype='auto').save_pretrained(out, max_shard_size=shard_size)
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    return sorted(p.name for p in pathlib.Path(out).iterdir())


def check_llama(path, prompt, n_tokens):
    """Greedy text by llama.cpp."""
    from llama_cpp import Llama
    model = Llama(path, n_threads=1, verbose=False)
    out = model.create_completion(prompt, max_tokens=int(n_tokens), temperature=0)['choices'][0]['text']
    return {'text': prompt + out, 'ids': model.tokenize(prompt.encode(), add_bos=False), 'eos': model.token_eos()}


def check_llama_loads(*paths):
    """Whether llama.cpp loads the files (else it raises), and what it finds in the last one."""
    from llama_cpp import Llama
    for path in paths:
        model = Llama(path, n_ctx=64, n_threads=1, verbose=False)
    return {'eos': model.token_eos(), 'template': model.metadata.get('tokenizer.chat_template')}


def check_keys(path):
    import gguf
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith('GGUF.')}


def check_gguf(path, folder):
    """Keys, and every tensor against the Hugging Face folder: dequantized, and quantized by the gguf package itself."""
    import gguf
    import numpy as np
    reader, weights = gguf.GGUFReader(path), numpy_weights(pathlib.Path(folder))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 100)
    types, worst, n = {}, 0.0, 0
    tensors = {t.name: t for t in reader.tensors}
    for name, want in weights.items():
        base, _, ending = name.rpartition('.')
        mapped = names.get_name(base)
        tensor = tensors.pop(f'{mapped}.{ending}')
        if '.c_' in name and ending == 'weight':
            want = want.T
        assert list(tensor.shape) == list(want.shape)[::-1], (name, tensor.shape, want.shape)
        assert tensor.data_offset % 32 == 0
        again = gguf.quants.quantize(np.ascontiguousarray(want), tensor.tensor_type)
        assert again.tobytes() == tensor.data.tobytes(), name
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(want.shape)
        worst = max(worst, float(abs(got - want).max() / abs(want).max()))
        types[tensor.name] = tensor.tensor_type.name
        n += 1
    assert not tensors, sorted(tensors)
    return {'keys': check_keys(path), 'types': types, 'worst': worst, 'n': n}


def check_write_gguf(folder, path, dtype):
    """Writes the weights of a Hugging Face folder with the gguf package, as llama.cpp's converter does, without a tokenizer."""
    import gguf
    import numpy as np
    folder = pathlib.Path(folder)
    config, weights = json.loads((folder / 'config.json').read_text()), numpy_weights(folder)
    name, layers = config['model_type'], config.get('n_layer') or config['num_hidden_layers']
    writer = gguf.GGUFWriter(path, name)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, name.upper()), layers)
    heads = config.get('n_head') or config['num_attention_heads']
    kv_heads = config.get('num_key_value_heads', heads)
    writer.add_context_length(config.get('n_positions') or config['max_position_embeddings'])
    writer.add_embedding_length(config.get('n_embd') or config['hidden_size'])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.get('intermediate_size') or 4 * config['n_embd'])
    writer.add_head_count(heads)
    if name == 'gpt2':
        writer.add_layer_norm_eps(config['layer_norm_epsilon'])
    else:
        writer.add_head_count_kv(kv_heads)
        writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
        writer.add_rope_freq_base(config['rope_theta'])
        if config.get('head_dim'):
            writer.add_key_length(config['head_dim'])
            writer.add_value_length(config['head_dim'])
    for key, value in weights.items():
        base, _, ending = key.rpartition('.')
        if name == 'gpt2' and '.c_' in key and ending == 'weight':
            value = value.T
        for part, n in ('q_proj.weight', heads), ('k_proj.weight', kv_heads):
            if name == 'llama' and key.endswith(part):  # LlamaModel.permute
                value = value.reshape(n, 2, len(value) // n // 2, -1).swapaxes(1, 2).reshape(value.shape)
        kind = gguf.GGMLQuantizationType[dtype if value.ndim > 1 and (dtype != 'Q8_0' or value.shape[1] % 32 == 0) else 'F32']
        writer.add_tensor(f'{names.get_name(base)}.{ending}', gguf.quants.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)
    for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
        write()
    return len(weights)


def check_tokenizer(folder, texts):
    """Ids of each text of a JSON list by the tokenizers package: from tokenizer.json, and from vocab.json with merges.txt."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    texts = json.loads(pathlib.Path(texts).read_text())
    whole = Tokenizer.from_file(f'{folder}/tokenizer.json')
    parts = ByteLevelBPETokenizer(f'{folder}/vocab.json', f'{folder}/merges.txt')
    ids = [whole.encode(text).ids for text in texts]
    assert ids == [parts.encode(text).ids for text in texts]
    assert [whole.decode(k) for k in ids] == texts
    return {'ids': ids, 'size': whole.get_vocab_size(), 'eos': whole.encode('<|endoftext|>').ids}


def check_auto_tokenizers(cases):
    """What AutoTokenizer makes of exported folders: ids of texts that are not the tokenizers package's own, from the given file."""
    import os
    os.environ['HF_HUB_OFFLINE'] = '1'
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer
    found = {}
    for case in json.loads(pathlib.Path(cases).read_text()):
        tokenizer, file = AutoTokenizer.from_pretrained(case['folder']), Tokenizer.from_file(case['file'])
        pairs = [(text[:40], tokenizer(text)['input_ids'], file.encode(text).ids) for text in case['texts']]
        found[case['folder']] = {'wrong': [(text, got[:20], wanted[:20]) for text, got, wanted in pairs if got != wanted],
                                 'ids': pairs[0][1], 'eos': tokenizer.eos_token, 'template': tokenizer.chat_template, 'n': len(tokenizer)}
    return found


if __name__ == '__main__':
    print(json.dumps(globals()[f'check_{sys.argv[1]}'](*sys.argv[2:])))
