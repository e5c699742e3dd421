"""Run by test_golden_optimizers.py in an environment with PyTorch: steps Muon of scripts/golden beside the published one, in
float64, on the same random gradients. Prints as JSON, for each comparison, the largest difference of weights after any step,
relative to the largest weight, and its bound.

optimizer_checks.py SCRIPTS_FOLDER, the one with optimizers.py
"""
import json
import sys
from unittest import mock

import torch

sys.path.insert(0, sys.argv[1])
import optimizers  # noqa: E402

STEPS = 12
SHAPES = (1, 7), (8, 8), (6, 20), (20, 6), (17, 12), (48, 3)
# Muon's five iterations stretch small singular values, and with them roundings of a few epsilons, by up to 3.4445^5 = 485; updates
# are 0.02 * sqrt(48 / 3) = 0.08 times that or less, of weights of about 1: 12 steps * 0.08 * 485 * 4 epsilons = 4e-13.
BOUND = 1e-12


def stepped(make, weight, gradients):
    """The weights after each step of the optimizer of one parameter."""
    parameter, out = torch.nn.Parameter(weight.clone()), []
    rule = make([parameter])
    for gradient in gradients:
        parameter.grad = gradient.clone()
        rule.step()
        out.append(parameter.detach().clone())
    return out


def difference(mine, theirs):
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(mine, theirs, strict=True))


def random_gradients(shape):
    return [optimizers.random(shape, 0.1) for _ in range(STEPS)]


# ---- Muon: PyTorch's, its Newton-Schulz iterations in float64 instead of bfloat16


def muon_differences():
    out = {}
    for scale, name in ('moonlight', 'match_rms_adamw'), ('jordan', 'original'):
        for decay in 0.1, 0:
            options = {'lr': optimizers.LR, 'weight_decay': decay, 'momentum': optimizers.MOMENTUM, 'adjust_lr_fn': name}
            worst = 0
            for shape in SHAPES:
                weight, gradients = optimizers.random(shape, 0.5), random_gradients(shape)
                mine = list(optimizers.muon(weight, gradients, scale, decay=decay))
                with mock.patch.object(torch, 'bfloat16', torch.float64):  # read by torch.optim._muon in each step
                    theirs = stepped(lambda p: torch.optim.Muon(p, **options), weight, gradients)
                worst = max(worst, difference(mine, theirs))
            out[f'Muon, {scale}, weight decay {decay}'] = worst, BOUND
    return out


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(json.dumps(muon_differences()))


if __name__ == '__main__':
    main()
