#!/usr/bin/env python3
"""Writes tests/golden/regularization/expected.json: losses and gradient norms of training with dropout, label smoothing
and a z-loss, in float64, by PyTorch. The models, the data and the optimizer are those of tests/golden/gpt2-tiny and
llama-tiny. Masks come from a port of kernels/dropout.h. Needs PyTorch and NumPy.

usage: regularization.py [FOLDER]
"""
import json
import math
import pathlib
import struct
import sys

import numpy
import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = 1337  # train.seed
GROUPS, ATTN_PROJ, FC_PROJ = 4, 1, 3  # enum sublayer
CASES = {
    'gpt2-dropout': ('gpt2-tiny', {'dropout': 0.2}),
    'gpt2-label-smoothing': ('gpt2-tiny', {'label_smoothing': 0.1}),
    'gpt2-z-loss': ('gpt2-tiny', {'z_loss': 0.01}),
    'llama-all': ('llama-tiny', {'dropout': 0.1, 'label_smoothing': 0.1, 'z_loss': 0.001}),
}

# ---- kernels/dropout.h


def mixed(x):
    with numpy.errstate(over='ignore'):
        x = numpy.asarray(x, numpy.uint64) + numpy.uint64(0x9e3779b97f4a7c15)
        x = (x ^ x >> numpy.uint64(30)) * numpy.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ x >> numpy.uint64(27)) * numpy.uint64(0x94d049bb133111eb)
        return x ^ x >> numpy.uint64(31)


def factors(p, unit, group, first_token, B, T, C):
    """The factors of the elements of a (B, T, C) tensor. Sequence b begins with token first_token + b T of the run."""
    key = mixed(numpy.uint64(SEED) ^ mixed(unit * GROUPS + group))
    sequences = (first_token + numpy.arange(B) * T).astype(numpy.uint64)[:, None]
    with numpy.errstate(over='ignore'):
        row = mixed(mixed(key ^ mixed(sequences)) + numpy.arange(T, dtype=numpy.uint64))[..., None]
        low, high = (row & numpy.uint64(0xffffffff)).astype(numpy.uint32), (row >> numpy.uint64(32)).astype(numpy.uint32)
        x = numpy.arange(C, dtype=numpy.uint32) * numpy.uint32(0x9e3779b9) + low
        x = (x ^ x >> numpy.uint32(16)) * numpy.uint32(0x21f0aaad)
        x ^= high
        x = (x ^ x >> numpy.uint32(15)) * numpy.uint32(0x735a2d97)
        x ^= x >> numpy.uint32(15)
    p = float(numpy.float32(p))
    return torch.from_numpy(numpy.where(x >> numpy.uint32(8) >= int(p * 2**24 + 0.5), 1 / (1 - p), 0.0))


# ---- the models, as in their papers


def rotate(x, theta):
    T, D = x.shape[-2:]
    angles = torch.arange(T).double()[:, None] * theta ** (-torch.arange(0, D, 2).double() / D)
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def attend(q, k, v, heads, kv_heads, theta=None):
    split = lambda x, n: x.unflatten(-1, (n, -1)).transpose(1, 2)
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    if theta:
        q, k = rotate(q, theta), rotate(k, theta)
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def gpt2(w, config, tokens, drop):
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[f'{name}.weight'], w[f'{name}.bias'], 1e-5)
    linear = lambda x, name: x @ w[f'{name}.weight'] + w[f'{name}.bias']  # Conv1D
    w = {name.removeprefix('transformer.'): tensor for name, tensor in w.items()}
    x = drop(w['wte.weight'][tokens] + w['wpe.weight'][:tokens.shape[1]], 0, 0)
    for i in range(config['n_layer']):
        q, k, v = linear(norm(x, f'h.{i}.ln_1'), f'h.{i}.attn.c_attn').chunk(3, -1)
        x = x + drop(linear(attend(q, k, v, config['n_head'], config['n_head']), f'h.{i}.attn.c_proj'), i + 1, ATTN_PROJ)
        hidden = F.gelu(linear(norm(x, f'h.{i}.ln_2'), f'h.{i}.mlp.c_fc'), approximate='tanh')
        x = x + drop(linear(hidden, f'h.{i}.mlp.c_proj'), i + 1, FC_PROJ)
    return norm(x, 'ln_f') @ w['wte.weight'].T


def llama(w, config, tokens, drop):
    norm = lambda x, name: x * (x.square().mean(-1, keepdim=True) + config['rms_norm_eps']).rsqrt() * w[f'model.{name}.weight']
    linear = lambda x, name: x @ w[f'model.{name}.weight'].T
    x = drop(w['model.embed_tokens.weight'][tokens], 0, 0)
    for i in range(config['num_hidden_layers']):
        h, block = norm(x, f'layers.{i}.input_layernorm'), f'layers.{i}.self_attn'
        q, k, v = (linear(h, f'{block}.{name}_proj') for name in 'qkv')
        y = attend(q, k, v, config['num_attention_heads'], config['num_key_value_heads'], config['rope_theta'])
        x = x + drop(linear(y, f'{block}.o_proj'), i + 1, ATTN_PROJ)
        h, block = norm(x, f'layers.{i}.post_attention_layernorm'), f'layers.{i}.mlp'
        hidden = F.silu(linear(h, f'{block}.gate_proj')) * linear(h, f'{block}.up_proj')
        x = x + drop(linear(hidden, f'{block}.down_proj'), i + 1, FC_PROJ)
    return norm(x, 'norm') @ w['lm_head.weight'].T


# ---- training


def read_weights(path):
    """A safetensors file of float32 tensors."""
    data = path.read_bytes()
    end = 8 + struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:end])
    header.pop('__metadata__', None)
    return {name: torch.frombuffer(bytearray(data[end:][slice(*of['data_offsets'])]), dtype=torch.float32).reshape(of['shape'])
            .double().requires_grad_() for name, of in header.items()}


def curve(name, dropout=0, label_smoothing=0, z_loss=0):
    folder = ROOT / 'tests/golden' / name
    config, run = (json.loads((folder / file).read_text()) for file in ('config.json', 'expected.json'))
    weights, model = read_weights(folder / 'model.safetensors'), gpt2 if name.startswith('gpt2') else llama
    tokens = torch.from_numpy(numpy.fromfile(folder / 'tokens.bin', numpy.uint16)[512:].astype(numpy.int64))
    decays = [w for w in weights.values() if w.dim() > 1]
    optimizer = torch.optim.AdamW([{'params': decays, 'weight_decay': 0.1},
                                   {'params': [w for w in weights.values() if w.dim() < 2], 'weight_decay': 0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    B, T, out = run['batch'], run['seq'], []
    for step in range(len(run['curve'])):
        first = step * B * T
        inputs, targets = tokens[first:first + B * T].view(B, T), tokens[first + 1:first + B * T + 1]

        def drop(x, unit, group, first=first):
            return x * factors(dropout, unit, group, first, *x.shape) if dropout else x

        logits = model(weights, config, inputs, drop).flatten(0, 1)
        loss = F.cross_entropy(logits, targets, label_smoothing=label_smoothing) + z_loss * logits.logsumexp(-1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        out.append({'step': step, 'loss': loss.item(), 'grad_norm': norm.item()})
    return out


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/regularization'
    for name in 'gpt2-tiny', 'llama-tiny':  # the models of the golden curves
        expected = json.loads((ROOT / 'tests/golden' / name / 'expected.json').read_text())['curve']
        for mine, want in zip(curve(name), expected):
            assert abs(mine['loss'] / want['loss'] - 1) < 1e-12, (name, mine, want)
    folder.mkdir(parents=True, exist_ok=True)
    cases = {case: {'model': name, 'train': options, 'curve': curve(name, **options)} for case, (name, options) in CASES.items()}
    (folder / 'expected.json').write_text(json.dumps({'torch': torch.__version__, 'cases': cases}, indent=1) + '\n')


if __name__ == '__main__':
    main()
