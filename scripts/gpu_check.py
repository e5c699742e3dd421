"""Checks and measures the CUDA backend on this machine's GPU, and writes OUTPUT/gpu-NAME.md and .json.
scripts/gpu_check.sh runs it after building the program.

It checks three things:
  - each operation, against the reference in double
  - whole runs (golden curves, resuming, ZeRO stages), by tests/cli/test_gpu.py
  - the speed of one model, relative to the rate of the GPU's matrix products measured in the same run
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from random_tokens import write_random_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
NO_GPU = 77  # the exit code that test runners report as "skipped"
WARMUP = 5   # steps that are not measured; the first one chooses algorithms for matrix products

# The model that is measured. --quick uses one that is too small to measure a GPU.
MEASURED = {'title': 'GPT-2 124M', 'layers': 12, 'heads': 12, 'width': 768, 'vocabulary': 50257, 'T': 1024,
            'batch': 16, 'steps': 50}
QUICK = {'title': 'a model of 0.1M', 'layers': 2, 'heads': 2, 'width': 64, 'vocabulary': 257, 'T': 64, 'batch': 2,
         'steps': 8}


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog='gpu_check.sh', description='Checks and measures the CUDA backend on the GPU of this machine.')
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build' / 'release', metavar='FOLDER',
                        help='use this build (its train and tests/) instead of building one')
    parser.add_argument('--quick', action='store_true',
                        help='use a tiny model and skip the whole-run tests, to check the script itself')
    parser.add_argument('--batch', type=int, metavar='N', help='sequences per step of the measured model (16)')
    parser.add_argument('--output', type=pathlib.Path, default=ROOT / 'benchmarks', metavar='FOLDER',
                        help='folder for the report (benchmarks/)')
    arguments = parser.parse_args()
    for name in 'train', 'tests/ops/test_kernels_cuda':
        if not (arguments.build / name).exists():
            parser.error(f'{arguments.build / name} does not exist; build it with: make tests')
    return arguments


def find_gpu(train):
    """The description of the GPU, or None after printing what is missing."""
    out = subprocess.run([train, 'devices'], capture_output=True, text=True, check=True).stdout
    line = next(line for line in out.splitlines() if line.startswith('cuda'))
    description = line.partition(' ')[2].strip()
    if description.startswith('none: '):
        print(f'gpu_check: no GPU here: {description.removeprefix("none: ")}')
        return None
    return description


# ---- correctness

def check_operations(build):
    """{operation: outcome} on the device."""
    process = subprocess.run([build / 'tests' / 'ops' / 'test_kernels_cuda'], capture_output=True, text=True,
                             env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT='TAP'))
    found = re.findall(r'^(not ok|ok) \d+ - (?:cuda: )?(\S+)(.*)$', process.stdout, re.M)
    outcomes = {name: 'skipped' if 'SKIP' in rest else outcome for outcome, name, rest in found}
    if process.returncode != 0 or set(outcomes.values()) != {'ok'}:
        sys.stdout.write(process.stdout + process.stderr)
        if set(outcomes.values()) <= {'ok'}:  # the program failed outside of its tests
            outcomes['the test program'] = 'not ok'
    return outcomes


def check_runs(build):
    """Whether the tests of whole runs passed, and the figures they printed."""
    process = subprocess.run([sys.executable, ROOT / 'tests' / 'cli' / 'run.py', '--gpu', '--train', build / 'train'],
                             capture_output=True, text=True)
    if process.returncode != 0:
        sys.stdout.write(process.stdout + process.stderr)
    figures = [line.strip() for line in process.stdout.splitlines() if 'within' in line]
    return process.returncode == 0, figures


# ---- speed

def measure(train, model, folder):
    shard = folder / 'tokens.bin'
    write_random_tokens(shard, 64 * model['T'] * model['batch'] + 1, model['vocabulary'])
    config = {
        'device': 'cuda',
        'model': {'n_layer': model['layers'], 'n_head': model['heads'], 'n_embd': model['width'],
                  'vocab_size': model['vocabulary'], 'n_positions': model['T']},
        'data': {'train': str(shard)},
        'train': {'max_steps': model['steps'], 'micro_batch_size': model['batch'], 'eval_every': 0},
        'precision': {'compute': 'bf16'},
        'checkpoint': {'every': 0},
        'run': {'dir': str(folder / 'run')},
    }
    (folder / 'config.json').write_text(json.dumps(config))
    process = subprocess.run([train, folder / 'config.json'], capture_output=True, text=True)
    if process.returncode != 0:
        sys.stdout.write(process.stdout + process.stderr)
        return None
    lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
    steps = [entry for entry in map(json.loads, lines) if 'loss' in entry][min(WARMUP, model['steps'] // 2):]
    figures = {key: statistics.median(step[key] for step in steps)
               for key in ('tokens_per_s', 'step_ms', 'mfu', 'device_bytes', 'device_planned_bytes')}
    figures['slowest_ms'] = max(step['step_ms'] for step in steps)
    figures['steps'] = len(steps)
    return figures


# ---- the report

def write_report(arguments, gpu, operations, runs, model, figures):
    slug = re.sub(r'[^a-z0-9]+', '-', gpu.split(',')[1].strip().lower()).strip('-')
    wrong = [name for name, outcome in operations.items() if outcome != 'ok']
    lines = [f'# {gpu}', '', 'Written by `scripts/gpu_check.sh`' + (' with --quick' if arguments.quick else '') + '.', '']
    lines.append(f'Operations against the reference in double: {len(operations) - len(wrong)} of {len(operations)} '
                 'passed' + (f'; failed: {", ".join(wrong)}' if wrong else '') + '.')
    if runs:
        lines += ['', 'Whole runs (`tests/cli/test_gpu.py`): ' + ('all passed' if runs[0] else 'failed') + '.', '']
        lines += [f'- {figure}' for figure in runs[1]]
    lines += ['', f'{model["title"]}, bf16, {model["batch"]} x {model["T"]}, medians of {figures["steps"]} steps:', '',
              '| tokens/s | ms per step (slowest) | of the measured GEMM rate | GPU memory (planned) |',
              '|---:|---:|---:|---:|',
              f'| {figures["tokens_per_s"]:,.0f} | {figures["step_ms"]:.1f} ({figures["slowest_ms"]:.1f}) | '
              f'{figures["mfu"]:.2f} | {figures["device_bytes"] / 2**20:,.0f} MiB '
              f'({figures["device_planned_bytes"] / 2**20:,.0f}) |', '']
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f'gpu-{slug}.md'
    path.write_text('\n'.join(lines))
    path.with_suffix('.json').write_text(json.dumps(
        {'gpu': gpu, 'quick': arguments.quick, 'operations': operations, 'runs': runs and runs[0], 'model': model,
         'figures': figures}, indent=2) + '\n')
    print('\n'.join(lines))
    print(f'written to {path}')


def main():
    arguments = parse_arguments()
    train = (arguments.build / 'train').resolve()
    gpu = find_gpu(train)
    if gpu is None:
        return NO_GPU
    print(f'gpu_check: {gpu}', flush=True)
    operations = check_operations(arguments.build.resolve())
    runs = None if arguments.quick else check_runs(arguments.build.resolve())
    model = dict(QUICK if arguments.quick else MEASURED)
    model['batch'] = arguments.batch or model['batch']
    with tempfile.TemporaryDirectory(prefix='zero-') as folder:
        figures = measure(train, model, pathlib.Path(folder))
    if figures is None:
        return 1
    write_report(arguments, gpu, operations, runs, model, figures)
    right = all(outcome == 'ok' for outcome in operations.values()) and (runs is None or runs[0])
    return 0 if right else 1


sys.exit(main())
