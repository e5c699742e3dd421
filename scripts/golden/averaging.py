#!/usr/bin/env python3
"""Writes tests/golden/averaging/expected.json: the average of the weights of a training run (train.ema) and the losses
evaluated with it, in float64, by PyTorch's torch.optim.swa_utils.AveragedModel. The run is that of tests/golden/gpt2-tiny;
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
STRIDE = 61  # every 61st element of each tensor is written; 61 is prime, so that all columns are covered
EMA = {'type': 'exponential', 'decay': 0.9}


class Gpt2(torch.nn.Module):
    def __init__(self, config, weights):
        super().__init__()
        self.config, self.names, self.weights = config, list(weights), torch.nn.ParameterList(weights.values())

    def named(self):
        return dict(zip(self.names, self.weights))

    def forward(self, tokens):
        return gpt2(self.named(), self.config, tokens, lambda x, unit, group: x).flatten(0, 1)


class Average:
    def __init__(self, model):
        self.losses, self.model = [], AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(EMA['decay']))

    def evaluate(self, step, model, loss):
        self.losses.append({'step': step, 'averaged_updates': int(self.model.n_averaged), 'val_loss': loss(self.model),
                            'latest_val_loss': loss(model)})

    def figures(self):
        average = {name.removeprefix('transformer.'): w.detach().flatten()[::STRIDE].tolist()
                   for name, w in self.model.module.named().items()}
        return {'ema': EMA, 'evaluations': self.losses, 'average': average}


def train(model, tokens, run, average):
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
        average.model.update_parameters(model)
        if update % EVAL_EVERY == 0:
            average.evaluate(update, model, evaluated)
    return out


def main():
    source = ROOT / 'tests/golden' / MODEL
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/averaging'
    config, run = (json.loads((source / file).read_text()) for file in ('config.json', 'expected.json'))
    tokens = torch.from_numpy(numpy.fromfile(source / 'tokens.bin', numpy.uint16)[512:].astype(numpy.int64))
    model = Gpt2(config, read_weights(source / 'model.safetensors'))
    average = Average(model)
    for mine, want in zip(train(model, tokens, run, average), run['curve'], strict=True):
        assert abs(mine / want['loss'] - 1) < 1e-12, (mine, want)  # the run reproduces the golden curve
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / 'expected.json', 'w') as out:
        out.write(json.dumps({'torch': torch.__version__, 'model': MODEL, 'eval_every': EVAL_EVERY, 'stride': STRIDE,
                              **average.figures()}) + '\n')


if __name__ == '__main__':
    main()
