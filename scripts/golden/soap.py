#!/usr/bin/env python3
"""Writes tests/golden/optimizers/soap.json: the weights of matrices after steps of SOAP in float64, computed by PyTorch
as algorithm 3 of arXiv 2409.11321 and github.com/nikhilvyas/SOAP do. Needs PyTorch.

Gradients have spectra that fall off, so that eigenvectors are determined; the longer side of a matrix that is not square
has no basis, but for one row or column more, as the order of equal eigenvalues (zeros) is not defined.

usage: soap.py [FOLDER]
"""
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ((8, 8, 10000), (6, 7, 10000), (7, 6, 10000), (5, 20, 8), (20, 5, 8), (3, 4, 2), (1, 9, 8))
STEPS, KEPT = 24, (2, 6, 7, 24)
FREQUENCY = 5
LR, BETAS, EPSILON, DECAY = 3e-3, (0.9, 0.95), 1e-8, 0.01


def rotate(x, bases, back=False):
    left, right = bases
    if left is not None:
        x = (left if back else left.T) @ x
    if right is not None:
        x = x @ (right.T if back else right)
    return x


def refresh(sides, bases, second):
    """The new bases, and the second moments in their order."""
    out = []
    for axis, (side, basis) in enumerate(zip(sides, bases)):
        if basis is None:
            out.append(None)
            continue
        order = torch.argsort(torch.diag(basis.T @ side @ basis), descending=True)
        second = second.index_select(axis, order)
        out.append(torch.linalg.qr(side @ basis[:, order]).Q)
    return out, second


def soap(weight, gradients, longest, lr=LR, decay=DECAY, epsilon=EPSILON, stored=lambda side: side):
    """Yields the weights after each step. A step takes its gradient when its weights are asked for.

    stored: a preconditioner as it is kept from step to step.
    """
    sides = [torch.zeros(n, n).double() if n <= longest else None for n in weight.shape]
    bases, first, second = None, torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in enumerate(gradients):  # the first only makes the bases: its number is 0
        if step > 0:
            turned = rotate(gradient, bases)
            first = first.lerp(turned, 1 - BETAS[0])
            second = second.lerp(turned ** 2, 1 - BETAS[1])
            size = lr * (1 - BETAS[1] ** step) ** 0.5 / (1 - BETAS[0] ** step)
            weight = weight - size * rotate(first / (second.sqrt() + epsilon), bases, back=True)
            weight = weight * (1 - lr * decay)
        grams = gradient @ gradient.T, gradient.T @ gradient
        sides = [None if side is None else stored(side.lerp(gram, 1 - BETAS[1])) for side, gram in zip(sides, grams)]
        if step == 0:
            bases = [None if side is None else torch.linalg.eigh(side).eigenvectors.flip(1) for side in sides]
        elif step % FREQUENCY == 0:
            first = rotate(first, bases, back=True)
            bases, second = refresh(sides, bases, second)
            first = rotate(first, bases)
        yield weight


def spread(n):
    """A random rotation with columns of falling lengths."""
    return torch.linalg.qr(torch.randn(n, n).double()).Q * 0.6 ** torch.arange(n)


def numbers(matrix):
    return [float(x) for x in matrix.flatten()]


def random_case(rows, columns):
    """Weights, and the gradients of all steps."""
    left, right = spread(rows), spread(columns)
    short = lambda x, unit: torch.round(x * unit) / unit  # exact in float32, and few digits
    gradients = [short(left @ torch.randn(rows, columns).double() @ right.T, 4096) for _ in range(STEPS)]
    return short(torch.randn(rows, columns).double() * 0.5, 256), gradients


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / 'tests/golden/optimizers'
    torch.manual_seed(11)
    cases = []
    for rows, columns, longest in CASES:
        weight, gradients = random_case(rows, columns)
        weights = list(soap(weight, gradients, longest))
        cases.append({'rows': rows, 'columns': columns, 'max_precond_dim': longest, 'weight': numbers(weight),
                      'gradients': [numbers(g) for g in gradients],
                      'after': [{'step': k, 'weight': numbers(weights[k - 1])} for k in KEPT]})
    folder.mkdir(parents=True, exist_ok=True)
    settings = {'torch': torch.__version__, 'lr': LR, 'betas': BETAS, 'eps': EPSILON, 'weight_decay': DECAY,
                'precondition_frequency': FREQUENCY}
    with open(folder / 'soap.json', 'w') as out:
        out.write('{"settings": ' + json.dumps(settings) + ',\n "cases": [\n')
        out.write(',\n'.join(json.dumps(case) for case in cases) + '\n]}\n')


if __name__ == '__main__':
    main()
