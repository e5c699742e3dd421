"""Models that transformers makes, with random weights, in shapes that tests/golden has not, and their figures in float64. Run by
tests/cli/test_transformers.py in a Python environment with PyTorch and transformers.

usage: python transformers_checks.py CHECK ARGUMENT...      Prints one JSON object; an exception fails the check.
"""
import contextlib
import json
import os
import pathlib
import sys
from unittest import mock

os.environ['HF_HUB_OFFLINE'] = '1'  # a folder that is missing fails at once
import torch
import transformers
from safetensors.torch import save_file

import harness

STEPS = 10
# Those of harness.golden_arguments but for eps: with 1e-8, elements whose gradients are nearly zero, and rounding noise in fp32,
# get updates as large as those of others, whose gradients are around 1e-3.
SETTINGS = {'lr': 1e-3, 'betas': [0.9, 0.95], 'eps': 1e-5, 'weight_decay': 0.1}
PROMPT = 'a quick fox of no one'  # of tokens of one byte: see write_tokenizer in test_transformers.py
GREEDY_TOKENS = 24

LLAMA3 = {'rope_type': 'llama3', 'factor': 4.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
          'original_max_position_embeddings': 16}
# transformers takes max_position_embeddings / original_max_position_embeddings for YaRN's factor: they are equal here.
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}


def gpt2(layers, heads, width, vocabulary, positions):
    return {'n_layer': layers, 'n_head': heads, 'n_embd': width, 'vocab_size': vocabulary, 'n_positions': positions}


def llama(layers, heads, kv_heads, width, inner, vocabulary, **more):
    return {'num_hidden_layers': layers, 'num_attention_heads': heads, 'num_key_value_heads': kv_heads, 'hidden_size': width,
            'intermediate_size': inner, 'vocab_size': vocabulary, 'max_position_embeddings': 64, **more}


# family -> name -> options of its config, batch, sequence length. Sizes are no multiples of a vector or a tile, and sequences
# reach beyond the original context of llama3 and YaRN.
SHAPES = {
    'gpt2': {
        'head-24': (gpt2(3, 3, 72, 331, 61), 3, 27),
        'head-15': (gpt2(2, 3, 45, 301, 57), 2, 43),
        'one-layer': (gpt2(1, 1, 40, 257, 50), 1, 50),
    },
    'llama': {
        'llama3-untied': (llama(3, 6, 3, 72, 100, 331, head_dim=24, rope_scaling=LLAMA3), 3, 27),
        'linear-tied': (llama(2, 5, 1, 40, 77, 300, tie_word_embeddings=True, rms_norm_eps=1e-5,
                              rope_scaling={'rope_type': 'linear', 'factor': 2.5}), 2, 43),
        'yarn': (llama(2, 3, 3, 72, 90, 331, rope_scaling=YARN), 2, 51),
        # betas that interpolate other pairs than the defaults, 32 and 1, do
        'yarn-options': (llama(2, 4, 2, 48, 65, 257, head_dim=24, rope_theta=5e4, rope_scaling={
            **YARN, 'beta_fast': 1.0, 'beta_slow': 0.25, 'attention_factor': 1.5}), 2, 37),
    },
    'qwen2': {
        'tied': (llama(3, 3, 1, 72, 100, 331, tie_word_embeddings=True, rope_theta=1e6), 3, 27),
        'untied': (llama(2, 6, 3, 60, 110, 509), 2, 33),
        'window': (llama(3, 3, 1, 72, 100, 331, use_sliding_window=True, sliding_window=7, max_window_layers=0), 3, 27),
        'window-of-some': (llama(3, 6, 3, 72, 90, 301, use_sliding_window=True, sliding_window=5, max_window_layers=1), 2, 43),
    },
    'qwen3': {
        'tied': (llama(3, 3, 1, 72, 100, 331, head_dim=32, tie_word_embeddings=True, rope_theta=1e6), 3, 27),
        'untied': (llama(2, 4, 2, 44, 70, 509, head_dim=10), 2, 43),
        'yarn-window': (llama(2, 6, 3, 72, 90, 301, head_dim=24, rope_scaling=YARN, use_sliding_window=True, sliding_window=20,
                              max_window_layers=1), 2, 51),
    },
}


def window_some_layers(model):
    """This version of transformers masks by the window in all layers, also in those below max_window_layers, unless flash
    attention computes them, which needs a GPU. These layers get the mask without a window."""
    def mask_the_future(_, arguments, options):
        mask = options['attention_mask']
        future = torch.arange(mask.shape[-1]) > options['cache_position'][:, None]
        mask = torch.zeros_like(mask).masked_fill(future, torch.finfo(mask.dtype).min)
        return arguments, {**options, 'attention_mask': mask}
    if getattr(model.config, 'use_sliding_window', False):
        for layer in model.model.layers[:model.config.max_window_layers]:
            layer.register_forward_pre_hook(mask_the_future, with_kwargs=True)


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation='eager', torch_dtype=torch.float32)
    window_some_layers(model)
    return model.eval()  # without GPT-2's dropout


def random_model(family, options, seed):
    """Norms and biases that count, and matrices as those of tests/golden: logits of a few units. With matrices of 0.2
    transformers' own logits in float32 are up to 3e-5 from those in float64."""
    end = options['vocab_size'] - 1
    config = transformers.AutoConfig.for_model(family, bos_token_id=end, eos_token_id=end, **options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=numbers)
            is_norm = parameter.dim() == 1 and name.endswith('weight')
            is_bias = parameter.dim() == 1 and not is_norm
            parameter.copy_(1 + 0.25 * values if is_norm else 0.1 * values if is_bias else 0.07 * values)
    return model


@contextlib.contextmanager
def in_float64(folder):
    """The model, to be used within. transformers computes norms, softmax and rotary angles in float32 whatever the type of the
    weights is, by the names that are replaced here."""
    model = load(folder).double()
    with mock.patch.multiple(torch, float32=torch.float64, float=torch.float64), \
            mock.patch.object(torch.Tensor, 'float', torch.Tensor.double):
        if model.config.model_type != 'gpt2':
            model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)  # frequencies that never were in float32
            assert model.model.rotary_emb.inv_freq.dtype == torch.float64
        yield model


def loss_of(model, tokens, targets):
    logits = model(tokens, use_cache=False).logits
    assert logits.dtype == torch.float64
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def train(model, tokens, batch, length):
    """The curve of a training run, and tensors as in tests/golden."""
    named = dict(model.named_parameters())
    decayed, others = ([p for p in named.values() if (p.dim() >= 2) == decays] for decays in (True, False))
    optimizer = torch.optim.AdamW([{'params': decayed}, {'params': others, 'weight_decay': 0.0}], **SETTINGS)
    curve, tensors = [], {}
    for step in range(STEPS):
        of_step = tokens[step * batch * length:(step + 1) * batch * length + 1]
        optimizer.zero_grad()
        loss, logits = loss_of(model, of_step[:-1].view(batch, length), of_step[1:].view(batch, length))
        loss.backward()
        if step == 0:
            tensors['logits'] = logits.detach()
            tensors.update({f'grad.{name}': p.grad.clone() for name, p in named.items()})
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append({'step': step, 'loss': loss.item(), 'grad_norm': norm.item()})
    tensors.update({f'final.{name}': p.detach() for name, p in named.items()})
    return curve, tensors


def write_figures(folder, batch, length):
    """tokens.bin, expected.json and expected.safetensors, as tests/golden/README.md has them. Returns the largest logit,
    and the largest error of transformers' own logits in float32, for comparison."""
    numbers = torch.Generator().manual_seed(7)
    vocabulary = transformers.AutoConfig.from_pretrained(folder).vocab_size
    tokens = torch.randint(vocabulary, (STEPS * batch * length + 1,), generator=numbers)
    harness.write_shard(folder / 'tokens.bin', tokens.tolist())
    with in_float64(folder) as model:
        curve, tensors = train(model, tokens, batch, length)
    optimizer = {**SETTINGS, 'clip_grad_norm': 1.0}
    (folder / 'expected.json').write_text(json.dumps({'batch': batch, 'seq': length, 'accum': 1, 'optimizer': optimizer,
                                                      'curve': curve}))
    save_file({name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}, folder / 'expected.safetensors')
    logits = tensors['logits']
    with torch.no_grad():
        in_float32 = load(folder)(tokens[:batch * length].view(batch, length), use_cache=False).logits
    return {'largest_logit': logits.abs().max().item(), 'error_of_transformers': (in_float32 - logits).abs().max().item()}


def greedy(model):
    """The ids that continue the prompt, up to end-of-text."""
    prompt, end = torch.tensor([list(PROMPT.encode())]), model.config.vocab_size - 1
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=GREEDY_TOKENS,
                         eos_token_id=end, pad_token_id=end)[0, prompt.shape[1]:].tolist()
    return ids[:ids.index(end)] if end in ids else ids


def log_probabilities(folder, ids):
    """Of these ids after the prompt, in float64."""
    text = torch.tensor([list(PROMPT.encode()) + ids])
    with in_float64(folder) as model, torch.no_grad():
        found = model(text, use_cache=False).logits[0].log_softmax(-1)
    return [found[-len(ids) - 1 + i, token].item() for i, token in enumerate(ids)]


def check_make(family):
    """Writes a folder for each shape, FAMILY-NAME, and the same model in bf16, FAMILY-NAME-bf16."""
    made = {}
    for seed, (name, (options, batch, length)) in enumerate(SHAPES[family].items()):
        folder = pathlib.Path(f'{family}-{name}')
        model = random_model(family, options, seed)
        model.save_pretrained(folder)
        model.to(torch.bfloat16).save_pretrained(f'{folder}-bf16')
        figures = write_figures(folder, batch, length)
        ids = greedy(load(folder))
        made[folder.name] = {'vocabulary': options['vocab_size'], 'prompt': PROMPT, 'n_tokens': GREEDY_TOKENS, 'ids': ids,
                             'log_probabilities': log_probabilities(folder, ids), **figures}
    return made


def check_reload(*pairs):
    """Pairs of a folder and an export of it: the same logits, to the bit, and the ids of greedy text from the export."""
    found = {}
    for given, exported in zip(pairs[::2], pairs[1::2]):
        tokens = torch.arange(40)[None, :] * 37 % 251
        with torch.no_grad():
            first, second = (load(folder)(tokens).logits for folder in (given, exported))
        assert torch.equal(first, second), exported
        found[given] = greedy(load(exported))
    return found


if __name__ == '__main__':
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print(json.dumps(globals()[f'check_{sys.argv[1]}'](*sys.argv[2:])))
