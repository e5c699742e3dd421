"""Run by test_golden_optimizers.py in an environment with PyTorch, timm and pytorch_optimizer: steps the optimizers of
scripts/golden beside published ones, in float64, on the same random gradients. Prints as JSON, for each comparison, the largest
difference of weights after any step, relative to the largest weight, and its bound.

optimizer_checks.py SCRIPTS_FOLDER, the one with optimizers.py and soap.py
"""
import json
import math
import sys
from unittest import mock

import timm.optim.lamb
import torch
from pytorch_optimizer import SOAP

sys.path.insert(0, sys.argv[1])
import optimizers  # noqa: E402
import soap  # noqa: E402

EPSILON = 2**-52
STEPS = 12
SHAPES = (1, 7), (8, 8), (6, 20), (20, 6), (17, 12), (48, 3)
# LAMB and Muon. A step of LAMB has about 20 roundings, and norms sums of up to 204 squares in orders of their own: below 64
# epsilons of an update, so 64 * 12 steps * 2.2e-16 = 1.7e-13. Muon's five iterations stretch small singular values, and with them
# roundings of a few epsilons, by up to 3.4445^5 = 485; updates are 0.02 * sqrt(48 / 3) = 0.08 times that or less, of weights of about
# 1: 12 steps * 0.08 * 485 * 4 epsilons = 4e-13.
BOUND = 1e-12


def stepped(make, weights, gradients):
    """The weights after each step of the optimizer of one parameter or several, one below the other."""
    parameters, out = [torch.nn.Parameter(part.clone()) for part in weights], []
    rule = make(parameters)
    for gradient in gradients:
        for parameter, part in zip(parameters, gradient.chunk(len(parameters)), strict=True):
            parameter.grad = part.clone()
        rule.step()
        out.append(torch.cat([parameter.detach() for parameter in parameters]))
    return out


def difference(mine, theirs):
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(mine, theirs, strict=True))


def random_gradients(shape):
    return [optimizers.random(shape, 0.1) for _ in range(STEPS)]


# ---- LAMB: timm's, which as ours leaves out the ratio where there is no weight decay


class Clipped:
    """timm's trust ratio, then limits as DeepSpeed's FusedLamb has them (csrc/lamb/fused_lamb_cuda_kernel.cu): where a norm is 0,
    none. timm itself has an upper limit of 1 only. Counts which limits took effect."""

    def __init__(self, limits):
        self.ratio_of, self.limits, self.counts = timm.optim.lamb._lamb_trust_ratio, limits, [0, 0, 0]

    def __call__(self, w_norm, g_norm, trust_clip):
        ratio = self.ratio_of(w_norm, g_norm, trust_clip)
        if not w_norm or not g_norm:
            return ratio
        self.counts[0 if ratio < self.limits[0] else 2 if ratio > self.limits[1] else 1] += 1
        return ratio.clamp(*self.limits)


def lamb_case(weight, gradients, decay, limits, layers, clipped):
    options = {'lr': 0.05, 'weight_decay': decay, 'betas': (0.9, 0.95), 'eps': 1e-8}
    mine = stepped(lambda p: optimizers.Lamb([{'params': p, 'layers': layers, **options}], limits), [weight], gradients)

    def theirs(**more):
        return stepped(lambda p: timm.optim.Lamb(p, max_grad_norm=None, **options, **more), weight.chunk(layers), gradients)

    if limits[0] == 0:
        return max(difference(mine, theirs(trust_clip=limits[1] == 1, foreach=foreach)) for foreach in (False, True))
    with mock.patch.object(timm.optim.lamb, '_lamb_trust_ratio', clipped):
        return difference(mine, theirs(foreach=False))


def lamb_differences():
    narrow = 0.45, 0.6
    out, clipped = {}, Clipped(narrow)
    for decay in 0.1, 0:
        for limits in (0, math.inf), (0, 1), narrow:
            worst = 0
            for shape in (*SHAPES, (12,)):
                # Weights of zeros have a ratio of 1 in the first step; q, k and v of one tensor a ratio each.
                for scale, layers in ((0.5, 1), (0, 1)) + (((0.5, 3), (0, 3)) if shape[0] % 3 == 0 else ()):
                    case = optimizers.random(shape, scale), random_gradients(shape)
                    worst = max(worst, lamb_case(*case, decay, limits, layers, clipped))
            out[f'LAMB, limits {limits}, weight decay {decay}'] = worst, BOUND
    assert min(clipped.counts) >= 10, clipped.counts
    return out


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
                    theirs = stepped(lambda p: torch.optim.Muon(p, **options), [weight], gradients)
                worst = max(worst, difference(mine, theirs))
            out[f'Muon, {scale}, weight decay {decay}'] = worst, BOUND
    return out


# ---- SOAP: pytorch_optimizer's port of the authors' code, its QR decompositions in float64 instead of float32


def soap_differences():
    """The port keeps the first moment unrotated, and rotates it in each step: the same but for roundings. Eigenvectors are as
    sensitive as their eigenvalues are close or small, so the bound is 32 times what gradients with an error of one epsilon make
    (eigenvectors and QR of up to 8 rows have backward errors of a few epsilons), and 64 epsilons."""
    out = {}
    for rows, columns, longest in soap.CASES:
        weight, gradients = soap.random_case(rows, columns)
        assert (len(gradients) - 1) // soap.FREQUENCY >= 3  # refreshes
        for decay in soap.DECAY, 0:
            def mine(gradients, decay=decay):
                return list(soap.soap(weight, gradients, longest, decay=decay))

            options = {'lr': soap.LR, 'betas': soap.BETAS, 'weight_decay': decay, 'eps': soap.EPSILON,
                       'precondition_frequency': soap.FREQUENCY, 'max_precondition_dim': longest}
            with mock.patch.object(torch, 'float32', torch.float64):  # read by get_orthogonal_matrix_qr
                theirs = stepped(lambda p: SOAP(p, **options), [weight], gradients)
            assert torch.equal(theirs[0], weight)
            moved = [[g * (1 + EPSILON * torch.randn(g.shape).double()) for g in gradients] for _ in range(4)]
            sensitivity = max(difference(mine(g), mine(gradients)) for g in moved)
            out[f'SOAP, {rows} x {columns}, sides of up to {longest}, weight decay {decay}'] = (
                difference(mine(gradients), theirs), 32 * sensitivity + 64 * EPSILON)
    return out


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(json.dumps({**lamb_differences(), **muon_differences(), **soap_differences()}))


if __name__ == '__main__':
    main()
