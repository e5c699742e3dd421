"""The parts of gpu_check: what is checked and measured. A part gets the Check and a dictionary for its figures; it raises
Skipped or Failed."""
import collections
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

from gpu_check_run import Failed, Skipped, follow, run
from random_tokens import write_random_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEER = ROOT / 'scripts' / 'bench_cpu_peers.py'

Part = collections.namedtuple('Part', 'name title seconds quick_seconds run')  # quick_seconds 0: not part of --quick
Model = collections.namedtuple('Model', 'title layers heads width vocabulary T batch options', defaults=[()])

LLAMA = 'model.family=llama',
MODERN = ('model.family=modern', 'model.window=[512,512,512,0]', 'model.value_embeddings=[0,1,2]', 'optimizer.type=muon',
          'optimizer.lr=0.02')
GPT2_124M = Model('GPT-2 124M', 12, 12, 768, 50257, 1024, 64)
GPT2_1558M = Model('GPT-2 1.5B', 48, 25, 1600, 50257, 1024, 32)
LLAMA_124M = GPT2_124M._replace(title='Llama 124M', options=LLAMA)
MODERN_124M = GPT2_124M._replace(title='modern-124m with Muon', heads=6, options=MODERN)
TINY = Model('a tiny model', 1, 2, 64, 257, 32, 4)
TINY_MODERN = TINY._replace(title='a tiny modern model', layers=4, options=MODERN)

# warmup: steps that are not measured; the first one loads code, and graphs are captured in it
Sizes = collections.namedtuple('Sizes', 'small large llama modern warmup steps compared tokens width vocabulary')
SIZES = {'whole': Sizes(GPT2_124M, GPT2_1558M, LLAMA_124M, MODERN_124M, 5, 40, 12, 8192, 768, 50304),
         'quick': Sizes(GPT2_124M, GPT2_1558M, LLAMA_124M, MODERN_124M, 4, 15, 8, 4096, 768, 50304),
         'tiny': Sizes(TINY, TINY._replace(title='another tiny model', layers=2), TINY._replace(title='a tiny Llama', options=LLAMA),
                       TINY_MODERN, 1, 3, 2, 64, 64, 257)}


# ---- training runs

def config_of(check, model, name, steps, **top):
    """A configuration of the model on random tokens, in a folder of the check."""
    shard = check.folder / f'tokens-{model.vocabulary}-{model.T}.bin'
    if not shard.exists():
        write_random_tokens(shard, 32 * model.T * model.batch + 1, model.vocabulary)
    config = {'device': 'cuda', **top,
              'model': {'n_layer': model.layers, 'n_head': model.heads, 'n_embd': model.width, 'vocab_size': model.vocabulary,
                        'n_positions': model.T},
              'data': {'train': str(shard)},
              'train': {'max_steps': steps, 'train_batch_size': model.batch, 'micro_batch_size': 'auto', 'eval_every': 0},
              'precision': {'compute': 'bf16'}, 'checkpoint': {'every': 0}, 'run': {'dir': str(check.folder / name)}}
    path = check.folder / f'{name}.json'
    path.write_text(json.dumps(config))
    return path


def train(check, model, name, steps, overrides=(), ranks=1, **top):
    """The first steps of a run. Without all of them it is Failed, or Skipped if the program refuses it or memory is short."""
    config = config_of(check, model, name, 10**6, **top)
    words = [check.train, config, *model.options, *overrides]
    if ranks > 1:
        words = [check.mpirun, '--oversubscribe', '--allow-run-as-root', '-n', ranks, *words]
    outcome, found = follow(words, check.folder / name, steps, check.left(), check.environment)
    if len(found) >= steps:
        return found[:steps]
    message = outcome.last_line()
    if outcome.code == 2 or (outcome.code == 1 and re.search('GPU memory|model memory', message)):
        raise Skipped(message)
    if outcome.code:
        raise Failed(message)
    if len(found) > 1:  # the time limit is over, on a slow GPU
        return found
    raise subprocess.TimeoutExpired(words, 0)


def figures_of(steps, warmup):
    """Medians over the steps after the first ones."""
    steps = steps[min(warmup, len(steps) - 1):]
    figures = {key: statistics.median(step[key] for step in steps)
               for key in ('tokens_per_s', 'step_ms', 'mfu', 'of_gemm', 'device_bytes', 'device_planned_bytes')}
    figures.update(mfu_of=steps[0]['mfu_of'], slowest_ms=max(step['step_ms'] for step in steps), steps=len(steps))
    return figures


def curve(steps, n):
    return [(step['loss'], step['grad_norm']) for step in steps[:n]]


def require_option(check, option):
    if option not in check.options:
        raise Skipped(f'this build has no option {option}')


def require_mpirun(check):
    if not check.mpirun:
        raise Skipped('mpirun is not installed')


# ---- operations

def outcomes_of(text):
    """{test: outcome}, parsed from the TAP output of a cmocka program."""
    found = re.findall(r'^(not ok|ok) \d+ - (?:cuda: )?([^#\n]*\S)(.*)$', text or '', re.M)
    return {name: 'skipped' if 'SKIP' in rest else outcome for name, outcome, rest in ((n, o, r) for o, n, r in found)}


def run_operations(check, figures, program, *words):
    path = check.build / 'tests' / 'ops' / program
    if not path.exists():
        raise Skipped(f'{path} does not exist; build it with: make tests')
    outcomes = figures.setdefault('outcomes', {})
    try:
        process = check.run(path, *words, CMOCKA_MESSAGE_OUTPUT='TAP')
        outcomes.update(found := outcomes_of(process.out))
    except subprocess.TimeoutExpired as late:
        outcomes.update(outcomes_of(late.output))
        raise
    wrong = [name for name, outcome in found.items() if outcome != 'ok']
    if wrong or process.code or not found:
        tail = ' '.join(line.strip() for line in (process.out + process.error).splitlines() if 'expected' in line or 'wrong' in line)
        raise Failed(f'{len(found) - len(wrong)} of {len(found)} passed; failed: '
                     f'{", ".join(wrong) or "the test program, " + process.last_line()} {tail[:400]}'.strip())


def operations(check, figures):
    run_operations(check, figures, 'test_kernels_cuda')
    run_operations(check, figures, 'test_kernels_rotation', 'cuda: *')


def training_sizes(check, figures):
    sizes = check.sizes
    run_operations(check, figures, 'test_kernels_training_sizes', sizes.tokens, sizes.width, sizes.vocabulary)


def bench(check, figures):
    words = ['--quick'] if check.arguments.quick or check.arguments.tiny else []
    process = check.run(check.train, 'bench', '--device', 'cuda', '--json', *words)
    if process.code:
        raise Failed(process.last_line())
    figures.update(json.loads(process.out))


def newton_schulz(check, figures):
    """The matrices of the small model, in a CUDA graph."""
    config = config_of(check, check.sizes.small, 'newton-schulz', 1)
    program = check.build / 'tests' / 'bench' / 'bench_muon'
    if not program.exists():
        raise Skipped(f'{program} does not exist; build it with: make tests')
    process = check.run(program, config, '--device', 'cuda', '--json', '--quick')
    if process.code:
        raise Failed(process.last_line())
    figures['matrices'] = list(map(json.loads, process.out.splitlines()))


# ---- whole runs

def run_tests(check, figures, *names):
    # One at a time: a run compares the memory that it takes with what its GPU has left.
    process = check.run(sys.executable, ROOT / 'tests' / 'cli' / 'run.py', '--gpu', '--jobs', 1, '--train', check.train, *names)
    figures['lines'] = [line.strip() for line in process.out.splitlines() if 'within' in line]
    if process.code:
        bad = [line.strip() for line in (process.out + process.error).splitlines() if re.search(r'FAIL|ERROR|Error:|failed', line)]
        raise Failed('; '.join(bad)[:600] or process.last_line())


def golden(check, figures):
    run_tests(check, figures, 'test_gpu.GoldenCurves')


def families(check, figures):
    run_tests(check, figures, *('test_gpu_families test_gpu_muon test_gpu_averaging test_gpu_regularization test_gpu_divergence '
                                'test_gpu_schedules test_gpu_documents'.split()))


def resuming(check, figures):
    run_tests(check, figures, 'test_gpu.Resuming', 'test_gpu.Activations.test_same_bits_in_less_memory')


def stages(check, figures):
    require_mpirun(check)
    run_tests(check, figures, 'test_gpu.Ranks')


def graphs(check, figures):
    require_option(check, 'cuda_graphs')
    curves = {}
    for word in 'true', 'false':
        steps = train(check, check.sizes.small, f'graphs-{word}', check.sizes.compared, [f'cuda_graphs={word}'])
        curves[word] = curve(steps, check.sizes.compared)
        figures[f'cuda_graphs={word}'] = figures_of(steps, check.sizes.warmup)
    n = min(map(len, curves.values()))
    if curves['true'][:n] != curves['false'][:n]:
        raise Failed('losses or norms differ with and without graphs')


def attention(check, figures):
    require_option(check, 'attention')
    curves = {}
    for word in 'flash', 'cudnn':
        steps = train(check, check.sizes.small, f'attention-{word}', check.sizes.compared, [f'attention={word}'])
        curves[word] = curve(steps, check.sizes.compared)
        figures[f'attention={word}'] = figures_of(steps, check.sizes.warmup)
    # Results differ in the order of bf16 rounding (epsilon 2^-7), so the first losses must agree to half an epsilon.
    for (flash, _), (cudnn, _) in zip(curves['flash'][:3], curves['cudnn'][:3]):
        if abs(flash - cudnn) > 2**-8 * abs(flash):
            raise Failed(f'losses differ: flash {flash:.5f}, cuDNN {cudnn:.5f}')


def nccl(check, figures):
    require_option(check, 'comm.backend')
    if check.n_gpus < 2:
        raise Skipped('one GPU: NCCL needs two')
    require_mpirun(check)
    curves = {}
    for word in 'nccl', 'mpi':
        steps = train(check, check.sizes.small, f'comm-{word}', check.sizes.compared, [f'comm.backend={word}'], ranks=check.n_gpus)
        curves[word] = curve(steps, check.sizes.compared)
        figures[f'comm.backend={word}'] = figures_of(steps, check.sizes.warmup)
    n = min(map(len, curves.values()))
    if curves['nccl'][:n] != curves['mpi'][:n]:
        raise Failed('losses or norms differ between NCCL and MPI')


def sanitizer(check, figures):
    """Checks a few steps, which run every training kernel, for memory errors and uninitialized reads."""
    tool = shutil.which('compute-sanitizer') or '/usr/local/cuda/bin/compute-sanitizer'
    if not pathlib.Path(tool).exists():
        raise Skipped('compute-sanitizer is not installed')
    config = config_of(check, TINY, 'sanitizer', 2)
    process = check.run(tool, '--tool', 'memcheck', '--error-exitcode', 9, check.train, config)
    found = [line.strip() for line in (process.out + process.error).splitlines() if line.startswith('=========')]
    figures['summary'] = found[-1].strip('= ') if found else ''
    if process.code == 9:
        raise Failed('; '.join(line.strip('= ') for line in found[:3]) or 'errors were found')
    if process.code:
        raise Skipped(f'compute-sanitizer does not work here: {process.last_line()}')


def measure(check, figures, model, name):
    sizes = check.sizes
    figures['model'] = model._asdict()
    steps = train(check, model, name, sizes.warmup + sizes.steps)
    figures.update(figures_of(steps, sizes.warmup))
    figures['micro_batch_size'] = json.loads((check.folder / name / 'config.json').read_text())['train']['micro_batch_size']
    # Arenas are padded to whole allocations, 2 MiB each, of which a run has at most a few dozen.
    beyond = figures['device_bytes'] - figures['device_planned_bytes']
    if abs(beyond) > 64 << 20:
        raise Failed(f'{figures["device_bytes"]:,.0f} bytes of GPU memory were taken and {figures["device_planned_bytes"]:,.0f} planned')


def small_model(check, figures):
    measure(check, figures, check.sizes.small, 'small')


def large_model(check, figures):
    measure(check, figures, check.sizes.large, 'large')


def llama_model(check, figures):
    require_option(check, 'model.family')
    measure(check, figures, check.sizes.llama, 'llama')


def modern_model(check, figures):
    require_option(check, 'model.value_embeddings')
    measure(check, figures, check.sizes.modern, 'modern')


def pytorch(check, figures, model, **family):
    """A model in PyTorch, compiled, with fused AdamW and attention. It keeps all logits in fp32, so steps are of 16 sequences."""
    figures['of'] = model.title
    batch = min(model.batch, 16)
    sizes = {'layers': model.layers, 'heads': model.heads, 'width': model.width, 'vocabulary': model.vocabulary, 'batch': batch,
             'length': model.T, 'type': 'bf16', 'compiled': True, 'threads': 4, 'device': 'cuda', **family}
    outcome = run([check.arguments.python, PEER, json.dumps(sizes)], check.left(), os.environ, text='5\n')
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    if not answers or 'missing' in answers[0]:
        raise Skipped(f'PyTorch cannot run here: {answers[0]["missing"] if answers else "no answer"}')
    step_s = statistics.median(answers[1]['seconds'])
    figures.update(version=answers[0]['version'], step_ms=step_s * 1e3, tokens_per_s=batch * model.T / step_s,
                   peak_bytes=answers[1]['peak_bytes'])
    steps = train(check, model._replace(batch=batch), f'beside-pytorch-{model.title.split()[0]}', check.sizes.warmup + check.sizes.steps)
    figures['zero.c with steps of that size'] = figures_of(steps, check.sizes.warmup)


def pytorch_gpt2(check, figures):
    pytorch(check, figures, check.sizes.small)


def pytorch_llama(check, figures):
    model = check.sizes.llama
    pytorch(check, figures, model, family='llama', intermediate=-(-8 * model.width // 3 // 256) * 256)


PARTS = (Part('operations', 'Operations against the reference in double', 90, 45, operations),
         Part('sizes', 'Products and attention at training sizes', 60, 30, training_sizes),
         Part('bench', 'Each operation against its limit', 40, 25, bench),
         Part('newton-schulz', "Muon's Newton-Schulz", 20, 15, newton_schulz),
         Part('small', 'GPT-2 124M', 60, 40, small_model),
         Part('golden', 'Golden curves', 60, 30, golden),
         Part('graphs', 'CUDA graphs on and off', 40, 30, graphs),
         Part('attention', 'Attention: flash and cuDNN', 40, 30, attention),
         Part('llama', 'Llama 124M', 40, 30, llama_model),
         Part('modern', 'modern-124m with Muon', 40, 30, modern_model),
         Part('large', 'GPT-2 1.5B', 70, 40, large_model),
         Part('families', 'Other families and optimizers against the CPU', 90, 0, families),
         Part('pytorch', 'PyTorch, compiled', 90, 0, pytorch_gpt2),
         Part('pytorch-llama', 'PyTorch with Llama, compiled', 90, 0, pytorch_llama),
         Part('stages', 'ZeRO stages with two ranks on the GPU', 60, 0, stages),
         Part('nccl', 'NCCL against MPI', 40, 30, nccl),
         Part('resuming', 'Resuming, and recomputed activations', 60, 0, resuming),
         Part('sanitizer', 'compute-sanitizer', 60, 0, sanitizer))
NAMES = [part.name for part in PARTS]
