#!/usr/bin/env python3
"""Writes tests/golden/optimizer-curves/expected.json: losses and gradient norms of training with Muon, in
float64, by PyTorch. The model and the data are those of tests/golden/gpt2-tiny, the optimizer that of optimizers.py in
this folder. Needs PyTorch, NumPy, and schedulefree 1.4.1 from PyPI.

usage: optimizer_curves.py [FOLDER]
"""
import json
import pathlib
import sys

import numpy
import torch
import torch.nn.functional as F
from optimizers import muon
from regularization import ROOT, gpt2, read_weights

MODEL = 'gpt2-tiny'
ADAMW_LR, DECAY = 1e-3, 0.1
CASES = {
    'adamw': {'type': 'adamw', 'lr': 1e-3},  # the run of gpt2-tiny itself; checked, not written
    'muon-moonlight': {'type': 'muon', 'lr': 0.01, 'muon_scale': 'moonlight', 'adamw_lr': ADAMW_LR},
    'muon-jordan': {'type': 'muon', 'lr': 0.02, 'muon_scale': 'jordan', 'adamw_lr': ADAMW_LR},
}


class Matrix:
    """A matrix of a block, and its optimizer. q, k and v are three of them."""

    def __init__(self, tensor, rows, rule):
        self.tensor, self.rows = tensor, rows
        self.weights = rule(tensor.detach()[rows].clone(), self.gradients())

    def gradients(self):
        while True:
            yield self.tensor.grad[self.rows].clone()

    def step(self):
        with torch.no_grad():
            self.tensor[self.rows] = next(self.weights)


class Optimizer:
    """The optimizer of one of CASES, for the tensors of a GPT-2."""

    def __init__(self, tensors, options):
        name, lr, decay = options['type'], options['lr'], lambda w: DECAY if w.dim() > 1 else 0
        self.matrices, rest = [], tensors
        if name == 'muon':
            inside = {key: w for key, w in tensors.items() if '.h.' in f'.{key}' and w.dim() > 1}
            rest = {key: w for key, w in tensors.items() if key not in inside}
            rule = lambda w, gradients: muon(w, gradients, options['muon_scale'], lr, DECAY)
            for key, w in inside.items():
                parts = 3 if 'c_attn' in key else 1
                n = w.shape[0] // parts
                self.matrices += [Matrix(w, slice(i * n, (i + 1) * n), rule) for i in range(parts)]
        self.rule = torch.optim.AdamW([{'params': [w], 'weight_decay': decay(w)} for w in rest.values()],
                                      lr=options.get('adamw_lr', lr), betas=(0.9, 0.95), eps=1e-8)

    def step(self):
        self.rule.step()
        for matrix in self.matrices:
            matrix.step()


def is_conv1d(name):
    return name.endswith('.weight') and ('.attn.' in name or '.mlp.' in name)


def curve(options):
    folder = ROOT / 'tests/golden' / MODEL
    config, run = (json.loads((folder / file).read_text()) for file in ('config.json', 'expected.json'))
    # Matrices are (out, in), as in the program.
    tensors = {name: (w.detach().T.contiguous() if is_conv1d(name) else w.detach()).requires_grad_()
               for name, w in read_weights(folder / 'model.safetensors').items()}
    tokens = torch.from_numpy(numpy.fromfile(folder / 'tokens.bin', numpy.uint16)[512:].astype(numpy.int64))
    optimizer, B, T, out = Optimizer(tensors, options), run['batch'], run['seq'], []
    for step in range(len(run['curve'])):
        first = step * B * T
        inputs, targets = tokens[first:first + B * T].view(B, T), tokens[first + 1:first + B * T + 1]
        logits = gpt2({name: w.T if is_conv1d(name) else w for name, w in tensors.items()}, config, inputs, lambda x, *_: x)
        loss = F.cross_entropy(logits.flatten(0, 1), targets)
        for w in tensors.values():
            w.grad = None
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        optimizer.step()
        out.append({'step': step, 'loss': loss.item(), 'grad_norm': norm.item()})
    return out


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/optimizer-curves'
    cases = {name: {'optimizer': options, 'curve': curve(options)} for name, options in CASES.items()}
    expected = json.loads((ROOT / 'tests/golden' / MODEL / 'expected.json').read_text())['curve']
    for mine, want in zip(cases.pop('adamw')['curve'], expected, strict=True):
        assert abs(mine['loss'] / want['loss'] - 1) < 1e-12, (mine, want)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / 'expected.json', 'w') as out:
        out.write(json.dumps({'torch': torch.__version__, 'model': MODEL})[:-1] + ', "cases": {\n')
        out.write(',\n'.join(f'{json.dumps(name)}: {json.dumps(case)}' for name, case in cases.items()) + '\n}}\n')


if __name__ == '__main__':
    main()
