"""Steps of torch.optim.AdamW and DeepSpeed's CPUAdam, timed on request. scripts/bench_optimizer.py starts it with a Python that
has them. Arguments: elements, threads. The first line of output is JSON: the cases, the versions, and why a library is
missing. Each line of input names a case; it is answered by a line with its seconds.
"""
import json
import sys
import time

STEP = {'lr': 1e-5, 'betas': (0.9, 0.999), 'eps': 1e-8, 'weight_decay': 0.01}


def peers(n, threads):
    """The cases by name, and the JSON that describes them."""
    cases, about = {}, {'versions': {}, 'missing': {}}
    try:
        import torch
    except ImportError as error:
        about['missing'] = {'PyTorch': str(error), 'DeepSpeed': 'needs PyTorch'}
        return cases, about
    torch.set_num_threads(threads)
    about['versions']['PyTorch'] = torch.__version__
    weights = torch.nn.Parameter(torch.full((n,), 2**-6))
    weights.grad = torch.full((n,), 2**-8)
    bf16_weights = torch.zeros(n, dtype=torch.bfloat16)
    fused = torch.optim.AdamW([weights], fused=True, **STEP)

    @torch.no_grad()
    def in_three_passes(step):
        weights.grad.mul_(0.999)
        step()
        bf16_weights.copy_(weights)

    cases['torch fused'] = fused.step
    cases['torch fused, three passes'] = lambda: in_three_passes(fused.step)
    fused.step()
    moments = fused.state[weights]
    try:
        from deepspeed.ops.op_builder import CPUAdamBuilder
        import deepspeed
        kernel = CPUAdamBuilder().load()
    except Exception as error:  # not installed, or its C++ cannot be compiled here
        about['missing']['DeepSpeed'] = ' '.join(str(error).split())[-200:]
        return cases, about
    about['versions']['DeepSpeed'] = deepspeed.__version__
    kernel.create_adam(0, STEP['lr'], *STEP['betas'], STEP['eps'], STEP['weight_decay'], True, False)
    count = [0]

    def deepspeed_step():
        count[0] += 1
        kernel.adam_update(0, count[0], STEP['lr'], *STEP['betas'], STEP['eps'], STEP['weight_decay'], True, weights.data,
                           weights.grad, moments['exp_avg'], moments['exp_avg_sq'])

    cases['DeepSpeed CPUAdam'] = deepspeed_step
    cases['DeepSpeed CPUAdam, three passes'] = lambda: in_three_passes(deepspeed_step)
    return cases, about


def main():
    # What DeepSpeed prints while it compiles and starts must not mix with the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    cases, about = peers(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({'cases': list(cases), **about}), file=answers, flush=True)
    for line in sys.stdin:
        step = cases[line.strip()]
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, file=answers, flush=True)


if __name__ == '__main__':
    main()
