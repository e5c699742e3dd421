#!/usr/bin/env python3
"""Writes tests/golden/modern-tiny: figures of model.family=modern in float64, from the recipe written out in PyTorch
with every piece on: grouped heads, a window, rotary positions on half of each head, qk-norm, ReLU squared, a soft-cap,
value embeddings on one block, and blocks that mix the embedding in. Needs PyTorch.

usage: modern.py [FOLDER]
"""
import json
import math
import pathlib
import struct
import sys

import torch
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = {'n_layer': 3, 'n_head': 4, 'n_embd': 32, 'vocab_size': 257, 'n_positions': 64, 'family': 'modern', 'n_kv_head': 2,
         'head_dim': 8, 'intermediate_size': 80, 'norm_eps': 1e-5, 'qkv_bias': False, 'qk_norm': True, 'tied': False,
         'rope': {'type': 0, 'original_positions': 0, 'theta': 1024, 'factor': 0, 'low_freq_factor': 0, 'high_freq_factor': 0,
                  'beta_fast': 0, 'beta_slow': 0, 'attention_factor': 0},
         'window': [6, 0], 'activation': 'relu_squared', 'partial_rotary_factor': 0.5, 'soft_cap': 2, 'embedding_skip': True,
         'value_embeddings': [1]}
BATCH, SEQ, STEPS = 4, 32, 20
OPTIMIZER = {'type': 'AdamW', 'lr': 1e-3, 'betas': [0.9, 0.95], 'eps': 1e-8, 'weight_decay': 0.1,
             'decays': 'tensors of 2 or more dimensions', 'clip_grad_norm': 1.0}
SHARD_MAGIC = 20240520


def initial_weights():
    """Names as in the table of parameters. No projection is zero and no weight of a mix is 0 or 1, so that errors in them show."""
    C, V, H, K, D = (MODEL[key] for key in ('n_embd', 'vocab_size', 'n_head', 'n_kv_head', 'head_dim'))
    inner, weights = MODEL['intermediate_size'], {}
    random = lambda std, *shape: (torch.randn(shape) * std).double()  # exact in float32
    weights['model.embed_tokens.weight'] = random(1, V, C)
    for i in range(MODEL['n_layer']):
        layer = f'model.layers.{i}.'
        if i > 0:
            weights[layer + 'residual_weight'] = 1 + random(0.2, 1)
            weights[layer + 'embedding_weight'] = random(0.5, 1)
        for name, rows in ('q_proj', H * D), ('k_proj', K * D), ('v_proj', K * D):
            weights[f'{layer}self_attn.{name}.weight'] = random(0.5 / math.sqrt(C), rows, C)
        if i in MODEL['value_embeddings']:
            weights[layer + 'self_attn.value_embedding.weight'] = random(1, V, K * D)
        weights[layer + 'self_attn.o_proj.weight'] = random(0.5 / math.sqrt(H * D), C, H * D)
        weights[layer + 'mlp.up_proj.weight'] = random(0.5 / math.sqrt(C), inner, C)
        weights[layer + 'mlp.down_proj.weight'] = random(0.5 / math.sqrt(inner), C, inner)
    weights['lm_head.weight'] = random(0.5 / math.sqrt(C), V, C)
    return weights


def norm(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + MODEL['norm_eps'])


def rotate(x):
    """Rotates (B, T, heads, D): the first D f / 2 of the pairs (i, i + D / 2)."""
    T, D = x.shape[1], x.shape[3]
    rotated = int(D * MODEL['partial_rotary_factor']) // 2
    frequencies = torch.zeros(D // 2, dtype=torch.float64)
    frequencies[:rotated] = MODEL['rope']['theta'] ** (-torch.arange(rotated, dtype=torch.float64) / rotated)
    angles = torch.arange(T, dtype=torch.float64)[:, None] * frequencies
    c, s = angles.cos()[:, None, :], angles.sin()[:, None, :]
    x1, x2 = x[..., :D // 2], x[..., D // 2:]
    return torch.cat((c * x1 - s * x2, c * x2 + s * x1), -1)


def attention(w, layer, block, h, tokens):
    B, T, _ = h.shape
    H, K, D = MODEL['n_head'], MODEL['n_kv_head'], MODEL['head_dim']
    q, k, v = (h @ w[f'{layer}self_attn.{name}.weight'].T for name in ('q_proj', 'k_proj', 'v_proj'))
    if block in MODEL['value_embeddings']:
        v = v + w[layer + 'self_attn.value_embedding.weight'][tokens]
    q, k = rotate(norm(q.view(B, T, H, D))), rotate(norm(k.view(B, T, K, D)))
    k, v = (x.view(B, T, K, D).repeat_interleave(H // K, 2) for x in (k, v))
    back = torch.arange(T)[:, None] - torch.arange(T)
    window = MODEL['window'][block % len(MODEL['window'])]
    seen = (back >= 0) & ((back < window) if window else (back >= 0))
    scores = torch.einsum('bihd,bjhd->bhij', q, k) / math.sqrt(D)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    out = torch.einsum('bhij,bjhd->bihd', weights, v).reshape(B, T, H * D)
    return out @ w[layer + 'self_attn.o_proj.weight'].T


def mix(w, layer, x, embedding, term_norms):
    """Backward stores in `term_norms`, by name, the norm of the terms that add up to each weight's gradient."""
    inputs = {layer + 'residual_weight': x, layer + 'embedding_weight': embedding}
    out = sum(w[name] * tensor for name, tensor in inputs.items())
    out.register_hook(lambda d: term_norms.update({name: (d * tensor).norm().item() for name, tensor in inputs.items()}))
    return out


def logits_of(w, tokens, term_norms):
    embedding = x = w['model.embed_tokens.weight'][tokens]
    for block in range(MODEL['n_layer']):
        layer = f'model.layers.{block}.'
        if block > 0:
            x = mix(w, layer, x, embedding, term_norms)
        x = x + attention(w, layer, block, norm(x), tokens)
        hidden = (norm(x) @ w[layer + 'mlp.up_proj.weight'].T).relu().square()
        x = x + hidden @ w[layer + 'mlp.down_proj.weight'].T
    cap = MODEL['soft_cap']
    return cap * torch.tanh(norm(x) @ w['lm_head.weight'].T / cap)


def write_safetensors(path, tensors):
    header, data = {}, b''
    for name, tensor in sorted(tensors.items()):
        values = struct.pack(f'<{tensor.numel()}f', *tensor.detach().flatten().tolist())
        header[name] = {'dtype': 'F32', 'shape': list(tensor.shape), 'data_offsets': [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    path.write_bytes(struct.pack('<Q', len(text)) + text + data)


def write_shard(path, tokens):
    path.write_bytes(struct.pack('<256i', SHARD_MAGIC, 1, len(tokens), *[0] * 253) + struct.pack(f'<{len(tokens)}H', *tokens))


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/modern-tiny'
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    # Each token depends on the one before it, so that there is something to learn.
    tokens = torch.randint(0, MODEL['vocab_size'], (STEPS * BATCH * SEQ + 1,)).tolist()
    for i in range(1, len(tokens)):
        if tokens[i] % 3:
            tokens[i] = (tokens[i - 1] * 5 + 7) % MODEL['vocab_size']
    weights = initial_weights()
    write_shard(folder / 'tokens.bin', tokens)
    write_safetensors(folder / 'model.safetensors', weights)
    (folder / 'config.json').write_text(json.dumps(MODEL, indent=1) + '\n')
    weights = {name: value.clone().requires_grad_() for name, value in weights.items()}
    groups = [{'params': [x for x in weights.values() if (x.dim() >= 2) == decays], 'weight_decay': 0.1 * decays}
              for decays in (True, False)]
    adamw = torch.optim.AdamW(groups, lr=OPTIMIZER['lr'], betas=OPTIMIZER['betas'], eps=OPTIMIZER['eps'])
    expected, curve, term_norms = {}, [], {}
    for step in range(STEPS):
        first = step * BATCH * SEQ
        batch = torch.tensor(tokens[first:first + BATCH * SEQ + 1])
        logits = logits_of(weights, batch[:-1].view(BATCH, SEQ), term_norms)
        loss = F.cross_entropy(logits.view(BATCH * SEQ, -1), batch[1:])
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            expected['logits'] = logits
            expected.update({f'grad.{name}': value.grad.clone() for name, value in weights.items()})
            first_term_norms = dict(sorted(term_norms.items()))
        total = torch.nn.utils.clip_grad_norm_(weights.values(), OPTIMIZER['clip_grad_norm'])
        curve.append({'step': step, 'loss': loss.item(), 'grad_norm': total.item()})
        adamw.step()
    expected.update({f'final.{name}': value for name, value in weights.items()})
    write_safetensors(folder / 'expected.safetensors', expected)
    about = {'about': 'float64 reference by scripts/golden/modern.py; micro-batches read in order from tokens.bin',
             'batch': BATCH, 'seq': SEQ, 'accum': 1, 'optimizer': OPTIMIZER, 'gradient_term_norms': first_term_norms,
             'curve': curve}
    (folder / 'expected.json').write_text(json.dumps(about, indent=1) + '\n')


if __name__ == '__main__':
    main()
