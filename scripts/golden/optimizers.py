#!/usr/bin/env python3
"""Writes tests/golden/optimizers/muon.json: figures of optimizers in float64, computed by PyTorch as the published
implementations do. Needs PyTorch.

Muon: K. Jordan's reference (https://kellerjordan.github.io/posts/muon, github.com/KellerJordan/Muon) with every cast to
bfloat16 left out; its scale, or the one of Moonlight (arXiv 2502.16982), both as in torch.optim.Muon.

usage: optimizers.py [FOLDER]
"""
import json
import math
import pathlib
import sys

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


def muon(weight, gradients, scale):
    """The weights after each step."""
    momentum, out = torch.zeros_like(weight), []
    for gradient in gradients:
        momentum = momentum.lerp(gradient, 1 - MOMENTUM)
        update = zeropower(gradient.lerp(momentum, MOMENTUM))
        weight = weight * (1 - LR * DECAY) - LR * scale_of(scale, *weight.shape) * update
        out.append(weight)
    return out


def numbers(matrix):
    return [float(x) for x in matrix.flatten()]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/optimizers'
    torch.manual_seed(7)
    random = lambda shape, scale: (torch.randn(shape) * scale).double()  # exact in float32
    cases = []
    for shape in SHAPES:
        weight, gradients = random(shape, 0.5), [random(shape, 0.1) for _ in range(STEPS)]
        cases.append({'rows': shape[0], 'columns': shape[1], 'orthogonal': numbers(zeropower(gradients[0])),
                      'weight': numbers(weight), 'gradients': [numbers(g) for g in gradients],
                      'moonlight': numbers(muon(weight, gradients, 'moonlight')[-1]),
                      'jordan': numbers(muon(weight, gradients, 'jordan')[-1])})
    folder.mkdir(parents=True, exist_ok=True)
    settings = {'torch': torch.__version__, 'lr': LR, 'momentum': MOMENTUM, 'weight_decay': DECAY}
    with open(folder / 'muon.json', 'w') as out:
        out.write('{"settings": ' + json.dumps(settings) + ',\n "cases": [\n')
        out.write(',\n'.join(json.dumps(case) for case in cases) + '\n]}\n')


if __name__ == '__main__':
    main()
