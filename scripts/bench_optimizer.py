"""Measures optimizer steps on the CPU, relative to memory bandwidth and to PyTorch and DeepSpeed. Writes
FOLDER/bench_optimizer.md and .json. scripts/bench_optimizer.sh runs it once the program is built.

Programs stay alive and run steps on request, one case after the other, for several rounds. A figure is the median over the
rounds, so changes of the machine's speed from minute to minute affect all cases alike. The limit is the best
of three plain loops over the same memory in the same rounds: c += a, a = b + k c, and scaling in place.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

from bench_zero import processor_name, usable_cores
from bench_zero_report import plural, rows_to_markdown

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {'K': 10**3, 'M': 10**6, 'G': 10**9}

# Cases of tests/bench/bench_optimizer.c in the order of the table, and the bytes per element that each reads and writes: 4 of
# gradient (2 in bf16), 8 of weight, 8 per moment (4 in bf16; in int8, 2 and a scale per 128), 2 of bf16 parameter.
SCALES = 8 / 128
LIMITS = {'add': 12, 'triad': 12, 'scale': 8}
OURS = {
    'adamw': 28, 'adamw, bf16 state': 20, 'adamw, int8 state': 16 + 2 * SCALES,
    'adamw, one pass': 30, 'adamw, one pass, bf16 gradients': 28, 'three passes': 42,
    'adam': 28, 'sgd': 20, 'lion': 20, 'lion, int8 state': 14 + SCALES,
}
PEERS = {'torch fused': 28, 'DeepSpeed CPUAdam': 28, 'torch fused, three passes': 42,
         'DeepSpeed CPUAdam, three passes': 42}
TITLES = {
    'add': 'c += a', 'triad': 'a = b + k c', 'scale': 'scaling in place',
    'adamw': 'AdamW', 'adamw, bf16 state': 'AdamW, bf16 moments', 'adamw, int8 state': 'AdamW, int8 moments',
    'adamw, one pass': 'AdamW with unscaling, clipping and bf16 parameters, one pass',
    'adamw, one pass, bf16 gradients': 'the same with bf16 gradients', 'three passes': 'the same in three passes',
    'adam': 'Adam', 'sgd': 'SGD with momentum', 'lion': 'Lion', 'lion, int8 state': 'Lion, int8 moments',
    'torch fused': 'torch.optim.AdamW(fused=True)', 'torch fused, three passes': 'the same, in three passes',
    'DeepSpeed CPUAdam, three passes': 'DeepSpeed CPUAdam, in three passes',
}
# Ratios to report: title, and the two cases whose elements/s are divided.
RATIOS = [
    ('AdamW / torch.optim.AdamW(fused=True)', 'adamw', 'torch fused'),
    ('AdamW / DeepSpeed CPUAdam', 'adamw', 'DeepSpeed CPUAdam'),
    ('one pass / three passes', 'adamw, one pass', 'three passes'),
    ('one pass, bf16 gradients / three passes', 'adamw, one pass, bf16 gradients', 'three passes'),
    ("one pass / torch's three passes", 'adamw, one pass', 'torch fused, three passes'),
    ("one pass / DeepSpeed's three passes", 'adamw, one pass', 'DeepSpeed CPUAdam, three passes'),
    ('bf16 / fp32 moments', 'adamw, bf16 state', 'adamw'),
    ('int8 / fp32 moments', 'adamw, int8 state', 'adamw'),
]
OURS_BYTES, PEERS_BYTES = 4 * 4 + 2 + SCALES, 4 * 4 + 2  # memory per element
SPARE_BYTES = 1 << 30  # left to the system and to Python


def fail(message, code=2):
    print(f'bench_optimizer: {message}', file=sys.stderr)
    sys.exit(code)


def size_of(text):
    """'124M' as a number."""
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


def size_name(n):
    for letter, unit in reversed(UNITS.items()):
        if n >= unit and n % (unit // 1000) == 0:
            return f'{n / unit:g}{letter}'
    return f'{n:,}'


def parse_arguments():
    parser = argparse.ArgumentParser(prog='bench_optimizer.sh', description="Speed of the optimizer's step on the CPU.")
    parser.add_argument('--sizes', type=lambda text: sorted({size_of(part) for part in text.split(',')}), metavar='N,N',
                        default=[16 * 10**6, 124 * 10**6, 355 * 10**6, 500 * 10**6],
                        help='elements, with K, M or G (16M,124M,355M,500M)')
    parser.add_argument('--rounds', type=int, default=11, metavar='N', help='runs of each case, in turn (11)')
    parser.add_argument('--threads', type=int, default=0, metavar='N', help='threads of each program (one per core)')
    parser.add_argument('--python', metavar='PROGRAM',
                        help='a Python with torch, deepspeed and ninja to compare with (none)')
    parser.add_argument('--huge-pages', action='store_true',
                        help="use huge pages for PyTorch's memory too; zero.c always does")
    parser.add_argument('--output', type=pathlib.Path, default=HERE.parent / 'runs' / 'bench-optimizer', metavar='FOLDER',
                        help='folder of the results (runs/bench-optimizer)')
    parser.add_argument('--program', type=pathlib.Path, metavar='PROGRAM', help=argparse.SUPPRESS,
                        default=HERE.parent / 'build' / 'release' / 'tests' / 'bench' / 'bench_optimizer')
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.threads < 0 or arguments.sizes[0] < 1:
        parser.error('expected at least one round, and sizes of at least 1')
    arguments.threads = arguments.threads or usable_cores()
    return arguments


def available_bytes():
    for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
        if line.startswith('MemAvailable'):
            return int(line.split()[1]) * 1024
    return 0


# ---- programs that run steps on request

class Worker:
    """A process that answers each line with a line. `first` is the line that it prints when ready."""

    def __init__(self, *command, **environment):
        self.command = list(map(str, command))
        try:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            env=dict(os.environ, **environment))
        except OSError as error:
            fail(f'{self.command[0]}: {error.strerror}; expected a program')
        self.first = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            fail(f'ended with exit code {self.process.wait()}: {shlex.join(self.command)}', 1)
        return line.strip()

    def ask(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        return self.answer()

    def seconds(self, case):
        return float(self.ask(case))

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def start(arguments, n, about):
    """[(worker, its cases)]. Fills `about` with devices, versions and missing libraries."""
    ours = Worker(arguments.program, '--elements', n, '--threads', arguments.threads)
    about['device'] = ours.first.removeprefix('ready ')
    workers = [(ours, [*LIMITS, *OURS])]
    if not arguments.python:
        about['missing'] = {name: 'no --python was given' for name in ('PyTorch', 'DeepSpeed')}
        return workers
    peers = Worker(arguments.python, HERE / 'bench_optimizer_peers.py', n, arguments.threads,
                   THP_MEM_ALLOC_ENABLE=str(int(arguments.huge_pages)), OMP_NUM_THREADS=str(arguments.threads))
    ready = json.loads(peers.first)
    about.update(versions=ready['versions'], missing=ready['missing'])
    workers.append((peers, ready['cases']))
    return workers


def measure(arguments, n, about):
    """{case: its seconds in each round}, after a warm-up round."""
    workers = start(arguments, n, about)
    cases = [(worker, case) for worker, names in workers for case in names]
    seconds = {case: [] for _, case in cases}
    for k in range(arguments.rounds + 1):
        # Every other round runs in reverse order, so that a steady slowdown favours no case.
        for worker, case in cases if k % 2 == 0 else reversed(cases):
            elapsed = worker.seconds(case)
            if k > 0:
                seconds[case].append(elapsed)
    for worker, _ in workers:
        worker.close()
    return seconds


# ---- the report

def summarize(n, seconds):
    median = {case: statistics.median(times) for case, times in seconds.items()}
    bytes_of = {**LIMITS, **OURS, **PEERS}
    limit = max(LIMITS[case] * n / median[case] for case in LIMITS)
    cases = {case: {'seconds': median[case], 'elements_per_s': n / median[case], 'bytes_per_element': bytes_of[case],
                    'bytes_per_s': bytes_of[case] * n / median[case],
                    'of_limit': bytes_of[case] * n / median[case] / limit, 'all_seconds': seconds[case]}
             for case in bytes_of if case in median}
    ratios = {name: median[other] / median[case] for name, case, other in RATIOS if case in median and other in median}
    return {'elements': n, 'limit_bytes_per_s': limit, 'cases': cases, 'ratios': ratios}


def table(results):
    about, lines = results['about'], []
    lines.append(f"# The optimizer's step on the CPU\n\n{results['processor']}, {plural(results['threads'], 'thread')}; "
                 f"{about.get('device', '')}. Medians of {plural(results['rounds'], 'round')}, each case in turn"
                 f"{', huge pages for all' if results['huge_pages'] else ''}. \"of "
                 'memory": bytes/s relative to the fastest of three plain loops in the same rounds.\n')
    lines += [f'- {name} {version}\n' for name, version in about.get('versions', {}).items()]
    lines += [f'- not compared with {name}: {why}\n' for name, why in about.get('missing', {}).items()]
    lines += [f"- {size_name(skipped['elements'])} elements: skipped, {skipped['reason']}\n" for skipped in results['skipped']]
    for size in results['sizes']:
        rows = [[TITLES.get(case, case), f"{one['bytes_per_element']:.3g}", f"{one['seconds'] * 1e3:,.1f}",
                 f"{one['elements_per_s'] / 1e9:.3f}", f"{one['bytes_per_s'] / 1e9:.1f}", f"{one['of_limit']:.2f}"]
                for case, one in size['cases'].items()]
        lines.append(f"\n## {size_name(size['elements'])} elements\n\n")
        lines.append(rows_to_markdown(['case', 'bytes per element', 'ms', 'G elements/s', 'GB/s', 'of memory'], rows))
        lines.append('\n')
        lines.append(rows_to_markdown(['ratio of elements/s', ''],
                                      [[name, f'{ratio:.2f}'] for name, ratio in size['ratios'].items()]))
    return ''.join(lines)


def main():
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = {'processor': processor_name(), 'threads': arguments.threads, 'rounds': arguments.rounds,
               'huge_pages': arguments.huge_pages,
               'command': 'scripts/bench_optimizer.sh ' + shlex.join(sys.argv[1:]), 'about': {}, 'sizes': [], 'skipped': []}
    try:
        for n in arguments.sizes:
            needed = n * (OURS_BYTES + (PEERS_BYTES if arguments.python else 0)) + SPARE_BYTES
            if needed > available_bytes():
                results['skipped'].append({'elements': n, 'reason': f'it needs {needed / 2**30:.1f} GiB of memory, but '
                                                                    f'{available_bytes() / 2**30:.1f} are available'})
                continue
            results['sizes'].append(summarize(n, measure(arguments, n, results['about'])))
            print(f'{size_name(n)} elements: done', flush=True)
    except KeyboardInterrupt:
        fail('interrupted; nothing was written', 130)
    text = table(results)
    (arguments.output / 'bench_optimizer.md').write_text(text)
    (arguments.output / 'bench_optimizer.json').write_text(json.dumps(results, indent=2) + '\n')
    print('\n' + text)
    print(f'written: {arguments.output}/bench_optimizer.md, .json')


if __name__ == '__main__':
    main()
