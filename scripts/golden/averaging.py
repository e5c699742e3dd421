#!/usr/bin/env python3
"""Writes tests/golden/averaging/expected.json: averages of the weights of a training run (train.ema) and the losses
evaluated with them, in float64, by PyTorch's torch.optim.swa_utils.AveragedModel. The run is that of tests/golden/gpt2-tiny;
its tokens are evaluated too. Needs PyTorch and NumPy.

usage: averaging.py [FOLDER]
"""
import json
import pathlib
import sys

import numpy
import torch
import torch.nn.functional as F
from regularization import ROOT, gpt2, read_weights
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

MODEL, EVAL_EVERY = 'gpt2-tiny', 4
STRIDE = 61  # of each tensor, every 61st element is written; a prime, so that they are of all columns
CASES = [{'type': 'exponential', 'decay': 0.9, 'start_ratio': 0, 'every': 1},
         {'type': 'exponential', 'decay': 0.5, 'start_ratio': 0.25, 'every': 3},
         {'type': 'uniform', 'start_ratio': 0.5, 'every': 1},
         {'type': 'uniform', 'start_ratio': 0, 'every': 2}]


class Gpt2(torch.nn.Module):
    def __init__(self, config, weights):
        super().__init__()
        self.config, self.names, self.weights = config, list(weights), torch.nn.ParameterList(weights.values())

    def named(self):
        return dict(zip(self.names, self.weights))

    def forward(self, tokens):
        return gpt2(self.named(), self.config, tokens, lambda x, unit, group: x).flatten(0, 1)


class Average:
    """One of CASES."""

    def __init__(self, ema, model, steps):
        self.ema, self.steps, self.losses = ema, steps, []
        self.model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema['decay']) if 'decay' in ema else None)

    def after(self, update, model):
        """Update 1 is the first. It was made when (update - 1) / steps of the schedule were done."""
        if (update - 1) / self.steps >= self.ema['start_ratio'] and update % self.ema['every'] == 0:
            self.model.update_parameters(model)

    def updates(self):
        return int(self.model.n_averaged)

    def evaluate(self, step, model, loss):
        """With the latest weights as long as there is no average."""
        shown = self.model if self.updates() else model
        self.losses.append({'step': step, 'averaged_updates': self.updates(), 'val_loss': loss(shown), 'latest_val_loss': loss(model)})

    def figures(self):
        average = {name.removeprefix('transformer.'): w.detach().flatten()[::STRIDE].tolist()
                   for name, w in self.model.module.named().items()}
        return {'ema': self.ema, 'evaluations': self.losses, 'average': average}


def train(model, tokens, run, averages):
    """The losses of the run."""
    decays = [[w for w in model.parameters() if (w.dim() > 1) == decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW([{'params': decays[0], 'weight_decay': 0.1}, {'params': decays[1], 'weight_decay': 0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    B, T, steps, out = run['batch'], run['seq'], len(run['curve']), []
    inputs, targets = tokens[:steps * B * T].view(-1, T), tokens[1:steps * B * T + 1].view(-1, T)

    def loss(model, rows=slice(None)):
        return F.cross_entropy(model(inputs[rows]), targets[rows].flatten())

    @torch.no_grad()
    def evaluated(model):
        return loss(model).item()

    for update in range(1, steps + 1):
        optimizer.zero_grad()
        current = loss(model, slice((update - 1) * B, update * B))
        current.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        out.append(current.item())
        for average in averages:
            average.after(update, model)
            if update % EVAL_EVERY == 0:
                average.evaluate(update, model, evaluated)
    return out


def main():
    source = ROOT / 'tests/golden' / MODEL
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/averaging'
    config, run = (json.loads((source / file).read_text()) for file in ('config.json', 'expected.json'))
    tokens = torch.from_numpy(numpy.fromfile(source / 'tokens.bin', numpy.uint16)[512:].astype(numpy.int64))
    model = Gpt2(config, read_weights(source / 'model.safetensors'))
    averages = [Average(ema, model, len(run['curve'])) for ema in CASES]
    for mine, want in zip(train(model, tokens, run, averages), run['curve'], strict=True):
        assert abs(mine / want['loss'] - 1) < 1e-12, (mine, want)  # the run is that of the golden curve
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / 'expected.json', 'w') as out:
        out.write(json.dumps({'torch': torch.__version__, 'model': MODEL, 'eval_every': EVAL_EVERY, 'stride': STRIDE})[:-1])
        out.write(', "cases": [\n' + ',\n'.join(json.dumps(average.figures()) for average in averages) + '\n]}\n')


if __name__ == '__main__':
    main()
