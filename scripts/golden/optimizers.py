#!/usr/bin/env python3
"""Writes tests/golden/optimizers/{muon,groups,schedule_free}.json: figures of optimizers in float64, computed by PyTorch as the
published implementations do. Needs PyTorch, and schedulefree 1.4.1 from PyPI.

Muon: K. Jordan's reference (https://kellerjordan.github.io/posts/muon, github.com/KellerJordan/Muon) with every cast to
bfloat16 left out; its scale, or the one of Moonlight (arXiv 2502.16982), both as in torch.optim.Muon.

Groups: parameter groups of torch.optim.AdamW over the tensors of a small GPT-2, with clipping and a learning rate that
changes; frozen tensors have requires_grad=False.

Schedule-free AdamW: the package itself (github.com/facebookresearch/schedule_free).

usage: optimizers.py [FOLDER]
"""
import fnmatch
import json
import math
import pathlib
import sys

import schedulefree
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = ((1, 7), (8, 8), (6, 20), (20, 6), (17, 12))
STEPS = 3
LR, MOMENTUM, DECAY = 0.02, 0.95, 0.1


def zeropower(gradient, steps=5, epsilon=1e-7):
    """Newton-Schulz iterations whose fixed points have singular values near 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.T if gradient.size(0) > gradient.size(1) else gradient
    x = x / x.norm().clamp(min=epsilon)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if gradient.size(0) > gradient.size(1) else x


def scale_of(name, rows, columns):
    return 0.2 * math.sqrt(max(rows, columns)) if name == 'moonlight' else math.sqrt(max(1, rows / columns))


def muon(weight, gradients, scale, lr=LR, decay=DECAY):
    """Yields the weights after each step. A step computes its gradient when its weights are requested."""
    momentum = torch.zeros_like(weight)
    for gradient in gradients:
        momentum = momentum.lerp(gradient, 1 - MOMENTUM)
        update = zeropower(gradient.lerp(momentum, MOMENTUM))
        weight = weight * (1 - lr * decay) - lr * scale_of(scale, *weight.shape) * update
        yield weight


def numbers(matrix):
    return [float(x) for x in matrix.flatten()]


def random(shape, scale):
    return (torch.randn(shape) * scale).double()  # exact in float32


def write_muon(path):
    torch.manual_seed(7)
    cases = []
    for shape in SHAPES:
        weight, gradients = random(shape, 0.5), [random(shape, 0.1) for _ in range(STEPS)]
        cases.append({'rows': shape[0], 'columns': shape[1], 'orthogonal': numbers(zeropower(gradients[0])),
                      'weight': numbers(weight), 'gradients': [numbers(g) for g in gradients],
                      'moonlight': numbers(list(muon(weight, gradients, 'moonlight'))[-1]),
                      'jordan': numbers(list(muon(weight, gradients, 'jordan'))[-1])})
    settings = {'torch': torch.__version__, 'lr': LR, 'momentum': MOMENTUM, 'weight_decay': DECAY}
    with open(path, 'w') as out:
        out.write('{"settings": ' + json.dumps(settings) + ',\n "cases": [\n')
        out.write(',\n'.join(json.dumps(case) for case in cases) + '\n]}\n')


# ---- schedule-free AdamW

def schedule_free(weight, gradients, settings):
    """The weights that gradients are taken at, and those for evaluation, after each step."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = schedulefree.AdamWScheduleFree([parameter], foreach=False, **settings)
    latest, average = [], []
    for gradient in gradients:
        optimizer.train()
        parameter.grad = gradient.clone()
        optimizer.step()
        latest.append(numbers(parameter.data))
        optimizer.eval()
        average.append(numbers(parameter.data))
    return latest, average


def write_schedule_free(path):
    cases = []
    for decay, warmup in (0.1, 4), (0, 0):
        settings = {'lr': 0.02, 'betas': (0.9, 0.95), 'eps': 1e-8, 'weight_decay': decay, 'warmup_steps': warmup}
        weight, gradients = random((40,), 0.5), [random((40,), 0.1) for _ in range(12)]
        latest, average = schedule_free(weight, gradients, settings)
        cases.append({**settings, 'weight': numbers(weight), 'gradients': [numbers(g) for g in gradients],
                      'latest': latest, 'average': average})
    with open(path, 'w') as out:
        versions = {'torch': torch.__version__, 'schedulefree': '1.4.1'}
        out.write('{"settings": ' + json.dumps(versions) + ',\n "cases": [\n')
        out.write(',\n'.join(json.dumps(case) for case in cases) + '\n]}\n')


# ---- groups

MODEL = {'n_layer': 2, 'n_head': 1, 'n_embd': 4, 'vocab_size': 5, 'n_positions': 3}
GROUPS = [{'match': ['h.1.attn.*', 'wpe.weight'], 'freeze': True},
          {'match': ['*.bias', '*ln_*'], 'lr': 0.004, 'weight_decay': 0.25},
          {'match': 'transformer.wte.*', 'lr': 0.05},
          {'match': 'h.0.mlp.*', 'weight_decay': 0}]
FACTORS = (1, 0.5, 0.25, 2)  # factors on the learning rates, one per step


def gpt2_shapes():
    c, shapes = MODEL['n_embd'], {}
    shapes['wte.weight'], shapes['wpe.weight'] = (MODEL['vocab_size'], c), (MODEL['n_positions'], c)
    for layer in range(MODEL['n_layer']):
        for name, shape in (('attn.c_attn', (3 * c, c)), ('attn.c_proj', (c, c)), ('mlp.c_fc', (4 * c, c)),
                            ('mlp.c_proj', (c, 4 * c)), ('ln_1', (c,)), ('ln_2', (c,))):
            shapes[f'h.{layer}.{name}.weight'], shapes[f'h.{layer}.{name}.bias'] = shape, shape[:1]
    shapes['ln_f.weight'] = shapes['ln_f.bias'] = (c,)
    return shapes


def group_of(name):
    for group in GROUPS:
        patterns = group['match'] if isinstance(group['match'], list) else [group['match']]
        if any(fnmatch.fnmatchcase(full, p) for p in patterns for full in (name, 'transformer.' + name)):
            return group
    return {}


def groups_case(lr, clip):
    weights = {name: torch.nn.Parameter(random(shape, 0.5)) for name, shape in gpt2_shapes().items()}
    start = {name: numbers(w.detach()) for name, w in weights.items()}
    settings = []
    for name, w in weights.items():
        group = group_of(name)
        w.requires_grad = 'freeze' not in group
        if w.requires_grad:
            settings.append({'params': [w], 'lr': group.get('lr', lr),
                             'weight_decay': group.get('weight_decay', DECAY if w.dim() > 1 else 0)})
    rule = torch.optim.AdamW(settings, betas=(0.9, 0.95), eps=1e-8)
    trained, gradients, norms = [w for w in weights.values() if w.requires_grad], [], []
    rates = [group['lr'] for group in rule.param_groups]
    for factor in FACTORS:
        gradients.append({name: random(w.shape, 0.2) for name, w in weights.items()})
        for name, w in weights.items():
            w.grad = gradients[-1][name].clone() if w.requires_grad else None
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, clip)))
        for group, rate in zip(rule.param_groups, rates):
            group['lr'] = rate * factor
        rule.step()
    config = {'optimizer': {'type': 'adamw', 'lr': lr, 'betas': [0.9, 0.95], 'eps': 1e-8, 'weight_decay': DECAY,
                            'groups': GROUPS}, 'train': {'gradient_clipping': clip}}
    return {'config': config, 'norms': norms,
            'tensors': [{'name': name, 'weight': start[name], 'gradients': [numbers(g[name]) for g in gradients],
                         'result': numbers(w.detach())} for name, w in weights.items()]}


def write_groups(path):
    torch.manual_seed(11)
    case = groups_case(0.02, 2.5)
    with open(path, 'w') as out:
        out.write('{"torch": ' + json.dumps(torch.__version__) + ', "model": ' + json.dumps(MODEL) +
                  ', "factors": ' + json.dumps(FACTORS) + ',\n "cases": [\n')
        out.write(json.dumps(case) + '\n]}\n')


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/optimizers'
    folder.mkdir(parents=True, exist_ok=True)
    write_muon(folder / 'muon.json')
    write_schedule_free(folder / 'schedule_free.json')
    write_groups(folder / 'groups.json')


if __name__ == '__main__':
    main()
