"""Measures speed and memory of training on the CPU, relative to this machine's GEMM rate and to PyTorch. Writes
FOLDER/bench_cpu.md and .json. scripts/bench_cpu.sh runs it once the program is built.

Programs take turns of some seconds each, for several rounds, and a figure is the median over the rounds: changes of the
machine's speed from minute to minute affect all programs alike. One program only multiplies matrices, in the same dtype;
its rate is the GEMM limit for the others. PyTorch's processes stay alive between their turns; zero.c is started for each
turn and killed before it writes a checkpoint. First steps are warm-up and do not count. On a virtual machine, the
report shows how much processor time the host gave to others.

With --busy, each turn is followed by one beside busy processes, as on a machine that is shared. With one busy process per
core, a fair share is half of the idle speed.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from bench_optimizer import Worker, available_bytes
from bench_zero import processor_name, usable_cores
from bench_zero_report import plural, rows_to_markdown
from random_tokens import write_random_tokens

HERE = pathlib.Path(__file__).resolve().parent
# Layers, heads, width, vocabulary. Names with "llama" are of that family: RMSNorm, RoPE, SwiGLU of 8/3 of the width.
MODELS = {'quickstart': (2, 4, 128, 4096), '10M': (4, 3, 192, 50257), '35M': (6, 6, 384, 50257), '124M': (12, 12, 768, 50257),
          'llama-124M': (12, 12, 768, 50257), '350M': (24, 16, 1024, 50257), '774M': (36, 20, 1280, 50257), '1.5B': (48, 25, 1600, 50257)}
CASES = '124M:4x64,124M:4x1024,350M:1x1024,quickstart:2x256'
GROWING_T = '124M:1x256,124M:1x512,124M:1x1024,124M:1x2048,124M:1x4096,124M:1x8192'
GROWING_P = '10M:1x512,35M:1x512,124M:1x512,350M:1x512,774M:1x512,1.5B:1x512'
SPARE_BYTES = 1 << 30  # kept free for the system
# Options for models that do not fit otherwise. Recomputation adds a quarter to the FLOPs, which flops_per_token counts.
FRUGAL = ('recompute=block', 'optimizer.state_dtype=int8')
WAIT_S = 3600  # seconds to wait for the first steps of the largest model


def fail(message, code=2):
    print(f'bench_cpu: {message}', file=sys.stderr)
    sys.exit(code)


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    batch: int
    length: int

    @property
    def name(self):
        return f'{self.model}, {self.batch} x {self.length}'

    @property
    def family(self):
        return 'llama' if self.model.startswith('llama') else 'gpt2'

    @property
    def intermediate(self):
        """The width of the MLP. For Llama: 8/3 of the model's width, rounded up to a multiple of 256."""
        return -(-8 * self.width // 3 // 256) * 256 if self.family == 'llama' else 4 * self.width

    @property
    def parameters(self):
        C = self.width
        if self.family == 'llama':
            return self.layers * (4 * C * C + 3 * C * self.intermediate + 2 * C) + C + C * self.vocabulary
        return self.layers * (12 * C * C + 13 * C) + 2 * C + C * (self.vocabulary + self.length)

    def flops_per_token(self, frugal=False):
        """6 P + 6 L C T; with recomputation, also a block's forward pass without its last product."""
        L, C = self.layers, self.width
        again = (L - 1) * (16 * C * C + 2 * C * self.length) if frugal else 0
        return 6 * self.parameters + 6 * L * C * self.length + again


def case_of(text):
    """'124M:4x1024', or sizes instead of the name: '2-2-32-61:1x16'."""
    try:
        model, _, shape = text.partition(':')
        sizes = MODELS[model] if model in MODELS else tuple(map(int, model.split('-')))
        batch, length = map(int, shape.split('x'))
        case = Case(model, *sizes, batch, length)
    except (ValueError, TypeError):
        raise argparse.ArgumentTypeError(f'"{text}": expected MODEL:BATCHxLENGTH with one of {", ".join(MODELS)}, or '
                                         'LAYERS-HEADS-WIDTH-VOCABULARY')
    if min(case.layers, case.heads, case.width, case.vocabulary, batch, length) < 1:
        raise argparse.ArgumentTypeError(f'"{text}": expected sizes of at least 1')
    return case


def cases_of(text):
    return [case_of(part) for part in text.split(',')]


def types_of(text):
    types = text.split(',')
    if not set(types) <= {'fp32', 'bf16', 'fp16'}:
        raise argparse.ArgumentTypeError(f'"{text}": expected fp32, bf16 or fp16')
    return types


def parse_arguments():
    parser = argparse.ArgumentParser(prog='bench_cpu.sh', description='Speed and memory of training on the CPU.')
    parser.add_argument('--cases', type=cases_of, default=cases_of(CASES), metavar='MODEL:BxT,...',
                        help=f'models and batches ({CASES})')
    parser.add_argument('--types', type=types_of, default=['fp32', 'bf16'], metavar='TYPE,...', help='(fp32,bf16)')
    parser.add_argument('--rounds', type=int, default=5, metavar='N', help='turns of each program (5)')
    parser.add_argument('--seconds', type=float, default=5, metavar='S', help='length of a turn, at least two steps (5)')
    parser.add_argument('--threads', type=int, default=0, metavar='N', help='threads of each program (one per core)')
    parser.add_argument('--ranks', type=int, default=1, metavar='N', help='ranks of ./train under mpirun, which share the batch (1)')
    parser.add_argument('--python', metavar='PROGRAM', help='a Python with torch to compare with (none)')
    parser.add_argument('--peers', type=lambda text: text.split(','), default=['eager', 'compiled'], metavar='WAY,...',
                        help='modes of PyTorch (eager,compiled)')
    parser.add_argument('--busy', type=int, default=0, metavar='N', help='measure also beside N busy processes (0)')
    parser.add_argument('--other', type=pathlib.Path, metavar='PROGRAM', help='another build of ./train to take turns with')
    parser.add_argument('--growth', action='store_true', help='measure the cost per token as sequences, models and threads grow, instead')
    parser.add_argument('--growing-lengths', type=cases_of, default=cases_of(GROWING_T), metavar='MODEL:BxT,...',
                        help=f'sequence lengths of --growth ({GROWING_T})')
    parser.add_argument('--growing-models', type=cases_of, default=cases_of(GROWING_P), metavar='MODEL:BxT,...',
                        help=f'models of --growth ({GROWING_P})')
    parser.add_argument('--output', type=pathlib.Path, default=HERE.parent / 'runs' / 'bench-cpu', metavar='FOLDER',
                        help='folder of the results (runs/bench-cpu)')
    parser.add_argument('--train', type=pathlib.Path, default=HERE.parent / 'train', metavar='PROGRAM', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.threads < 0 or arguments.busy < 0 or not set(arguments.peers) <= {'eager', 'compiled'}:
        parser.error('expected at least one round, no negative number, and peers eager or compiled')
    if arguments.ranks < 1 or arguments.ranks > 1 and (arguments.python or arguments.growth):
        parser.error('--ranks takes at least one rank; PyTorch and --growth are measured on one')
    if any(case.batch % arguments.ranks for case in arguments.cases):
        parser.error(f'the {arguments.ranks} ranks cannot share a batch equally; choose --cases whose batches they divide')
    arguments.threads = arguments.threads or max(1, usable_cores() // arguments.ranks)
    return arguments


# ---- programs that take turns; turn() returns the seconds per step and the peak memory so far

class Gemm:
    """The matrix products of the model's linear layers; turn() returns their overall rate."""

    def __init__(self, arguments, case, kind, threads):
        self.worker = Worker(arguments.train, 'bench', '--gemm', '--device', 'cpu', '--threads', threads)
        self.request = f'{kind} {case.batch * case.length} {case.width} {arguments.seconds}'

    def turn(self):
        return {'flops_per_s': float(self.worker.ask(self.request))}

    def close(self):
        self.worker.close()


class Ours:
    def __init__(self, arguments, case, kind, threads, folder, program=None):
        shard = folder / f'tokens-{case.vocabulary}.bin'
        if not shard.exists():
            write_random_tokens(shard, 1 << 18, case.vocabulary)
        self.case, self.seconds, self.run = case, arguments.seconds, folder / 'run'
        (folder / 'config.json').write_text('{}')
        self.launcher = ['mpirun', '--oversubscribe', '-n', str(arguments.ranks)] if arguments.ranks > 1 else []
        self.command = [str(program or arguments.train), str(folder / 'config.json'), 'device=cpu', f'run.dir={self.run}',
                        f'run.threads={threads}', f'precision.compute={kind}', f'model.n_layer={case.layers}',
                        f'model.n_head={case.heads}', f'model.n_embd={case.width}', f'model.vocab_size={case.vocabulary}',
                        f'model.n_positions={case.length}', f'data.train={shard}',
                        f'train.micro_batch_size={case.batch // arguments.ranks}', f'train.train_batch_size={case.batch}', 'train.max_steps=1000000', 'train.eval_every=0',
                        'optimizer.lr=1e-4', 'scheduler.type=constant', 'scheduler.warmup_steps=0', 'checkpoint.every=0',
                        'run.log_every=1000000']
        if case.family != 'gpt2':  # gpt2 needs no option, so that older builds can take part
            self.command.append(f'model.family={case.family}')

    def needed_bytes(self):
        command = [self.command[0], 'plan', *self.command[1:], '--ranks', '1', '--json']
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode != 0:
            fail(f'{shlex.join(command)}: {process.stderr.strip()}', 1)
        stages = json.loads(process.stdout)['plans'][0]['stages']
        return stages[0]['total']

    def save_memory(self):
        self.command += FRUGAL

    def steps_so_far(self):
        """The complete lines of the run's metrics, without the first step, which is warm-up."""
        try:
            lines = (self.run / 'metrics.jsonl').read_text().split('\n')[:-1]
        except OSError:
            return []
        return [entry for entry in map(json.loads, lines) if 'loss' in entry][1:]

    def kill(self, process):
        """Stops the run without a checkpoint, by killing the ranks: mpirun then ends by itself. Killing mpirun would leave the ranks."""
        ranks = pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text() if self.launcher else ''
        for pid in map(int, ranks.split()):
            os.kill(pid, signal.SIGKILL)
        if not ranks:
            process.kill()

    def turn(self):
        shutil.rmtree(self.run, ignore_errors=True)
        process = subprocess.Popen(self.launcher + self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        began, steps = time.monotonic(), []
        while len(steps) < 2 or sum(step['step_ms'] for step in steps) < self.seconds * 1e3:
            if process.poll() is not None or time.monotonic() - began > WAIT_S:
                self.kill(process)
                fail(f'{shlex.join(self.command)}: {process.communicate()[1].strip()[-500:]}', 1)
            time.sleep(0.05)
            steps = self.steps_so_far()
        self.kill(process)
        process.communicate()
        step = statistics.median(step['step_ms'] for step in steps) / 1e3
        key = 'total_bytes' if 'total_bytes' in steps[0] else 'memory_peak_bytes'  # older name, used by version 0.2.0 (for --other)
        return {'step_seconds': step, 'peak_bytes': max(entry[key] for entry in steps)}

    def close(self):
        shutil.rmtree(self.run, ignore_errors=True)


class PyTorch:
    def __init__(self, arguments, case, kind, way):
        sizes = {'family': case.family, 'layers': case.layers, 'heads': case.heads, 'width': case.width,
                 'intermediate': case.intermediate, 'vocabulary': case.vocabulary,
                 'batch': case.batch, 'length': case.length, 'type': kind, 'compiled': way == 'compiled',
                 'threads': arguments.threads}
        self.worker = Worker(arguments.python, HERE / 'bench_cpu_peers.py', json.dumps(sizes),
                             OMP_NUM_THREADS=str(arguments.threads))
        self.answer, self.seconds = json.loads(self.worker.first), arguments.seconds

    def turn(self):
        answer = json.loads(self.worker.ask(str(self.seconds)))
        return {'step_seconds': statistics.median(answer['seconds']), 'peak_bytes': answer['peak_bytes']}

    def close(self):
        self.worker.close()


class Beside:
    """Wraps a program so that its turns run beside N busy processes."""

    def __init__(self, program, n):
        self.program, self.n = program, n

    def turn(self):
        others = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(self.n)]
        try:
            time.sleep(0.3)  # until they are busy
            return self.program.turn()
        finally:
            for other in others:
                other.kill()
                other.wait()

    def close(self):
        pass


# ---- measuring

def fits(ours, n_programs):
    """Whether this many programs fit into memory at the same time; PyTorch keeps more activations than zero.c."""
    return ours.needed_bytes() * (1 + 1.5 * (n_programs - 1)) + SPARE_BYTES < available_bytes()


def start_peers(arguments, case, kind, ways, about):
    programs = {}
    for way in ways:
        peer = PyTorch(arguments, case, kind, way)
        if 'missing' in peer.answer:
            about['missing'][f'{case.name}, {kind}: PyTorch {way}'] = peer.answer['missing']
            peer.close()
        else:
            about['PyTorch'] = peer.answer['version']
            programs[way] = peer
    return programs


def stolen_seconds():
    """Stolen time of all processors since boot, in total."""
    return int(pathlib.Path('/proc/stat').read_text().split('\n', 1)[0].split()[8]) / os.sysconf('SC_CLK_TCK')


def timed_turn(program):
    began, stolen = time.monotonic(), stolen_seconds()
    turn = program.turn()
    return {**turn, 'stolen': (stolen_seconds() - stolen) / ((time.monotonic() - began) * os.cpu_count())}


def take_turns(programs, rounds):
    turns = {name: [] for name in programs}
    for k in range(rounds):
        # Every other round runs in reverse order, so that a steady slowdown favours no program.
        for name in list(programs) if k % 2 == 0 else list(reversed(programs)):
            turns[name].append(timed_turn(programs[name]))
    for program in programs.values():
        program.close()
    return turns


def compare(arguments, case, kind, folder, about):
    ours = Ours(arguments, case, kind, arguments.threads, folder)
    ways = arguments.peers if arguments.python else []
    if not fits(ours, 1):
        return {'case': case.name, 'type': kind, 'skipped': f'it needs {ours.needed_bytes() / 2**30:.1f} GiB of memory'}
    together, gemm = fits(ours, 1 + len(ways)), Gemm(arguments, case, kind, arguments.threads * arguments.ranks)
    builds = {'ours': ours}
    if arguments.other:
        builds['other'] = Ours(arguments, case, kind, arguments.threads, folder, arguments.other)

    def turns_of(programs):
        busy = {f'{name} busy': Beside(one, arguments.busy) for name, one in programs.items() if name != 'gemm'}
        return take_turns(programs | busy if arguments.busy else programs, arguments.rounds)

    if together:
        turns = turns_of({'gemm': gemm, **builds, **start_peers(arguments, case, kind, ways, about)})
    else:  # one at a time
        turns = turns_of({'gemm': gemm, **builds})
        for way in ways:
            turns |= turns_of(start_peers(arguments, case, kind, [way], about))
    return {'case': case.name, 'type': kind, 'parameters': case.parameters, 'flops_per_token': case.flops_per_token(),
            'interleaved': together, **summary(case, turns)}


def of_gemm(turns):
    """The median GEMM rate, and the largest fraction of a turn that the host gave to other machines."""
    return {'gemm_flops_per_s': statistics.median(turn['flops_per_s'] for turn in turns['gemm']), 'gemm': turns['gemm'],
            'most_stolen': max(turn['stolen'] for of_one in turns.values() for turn in of_one)}


def summary(case, turns):
    gemm, programs = of_gemm(turns), {}
    rate = gemm['gemm_flops_per_s']
    for name, all_turns in turns.items():
        if name == 'gemm':
            continue
        seconds = statistics.median(turn['step_seconds'] for turn in all_turns)
        tokens = case.batch * case.length / seconds
        programs[name] = {'step_seconds': seconds, 'tokens_per_s': tokens, 'of_gemm': tokens * case.flops_per_token() / rate,
                          'peak_bytes': max(turn['peak_bytes'] for turn in all_turns), 'turns': all_turns}
    ratios = {}
    for name, one in programs.items():
        ours = programs['ours busy' if name.endswith(' busy') else 'ours']
        if name.endswith(' busy'):
            one['of_idle'] = one['tokens_per_s'] / programs[name.removesuffix(' busy')]['tokens_per_s']
        if one is not ours:
            ratios[name] = {'speed': ours['tokens_per_s'] / one['tokens_per_s'], 'memory': ours['peak_bytes'] / one['peak_bytes']}
    return {**gemm, 'programs': programs, 'ratios': ratios}


def grow(arguments, case, kind, threads, folder):
    ours = Ours(arguments, case, kind, threads, folder)
    frugal = not fits(ours, 1)
    if frugal:
        ours.save_memory()
    point = {'case': case.name, 'type': kind, 'threads': threads, 'frugal': frugal, 'parameters': case.parameters,
             'length': case.length, 'flops_per_token': case.flops_per_token(frugal)}
    if not fits(ours, 1):
        return {**point, 'skipped': f'it needs {ours.needed_bytes() / 2**30:.1f} GiB of memory'}
    turns = take_turns({'gemm': Gemm(arguments, case, kind, threads), 'ours': ours}, arguments.rounds)
    gemm = of_gemm(turns)
    seconds = statistics.median(turn['step_seconds'] for turn in turns['ours']) / (case.batch * case.length)
    return {**point, **gemm, 'seconds_per_token': seconds, 'peak_bytes': turns['ours'][-1]['peak_bytes'],
            'of_gemm': point['flops_per_token'] / seconds / gemm['gemm_flops_per_s'], 'turns': turns['ours']}


# ---- the report

TITLES = {'ours': 'zero.c', 'other': 'zero.c, the other build', 'eager': 'PyTorch, eager', 'compiled': 'PyTorch, compiled'}


def title_of(name):
    return TITLES[name.removesuffix(' busy')] + (', busy machine' if name.endswith(' busy') else '')


def head(results):
    ranks = f"{plural(results['ranks'], 'rank')} of " if results['ranks'] > 1 else ''
    lines = [f"{results['processor']}, {ranks}{plural(results['threads'], 'thread')}. Medians of {plural(results['rounds'], 'round')} in "
             'turn. "of GEMM": (6 P + 6 L C T) FLOPs per token, relative to the rate of matrix products alone in turns of '
             'the same length.\n']
    if results['busy']:
        lines.append(f"\n\"Busy machine\": turns beside {plural(results['busy'], 'busy process', 'busy processes')}; \"of idle\": "
                     'relative to the same program\'s speed without them.\n')
    if 'PyTorch' in results['about']:
        lines.append(f"\n- PyTorch {results['about']['PyTorch']}\n")
    lines += [f'- not compared with {name}: {why}\n' for name, why in results['about']['missing'].items()]
    return ''.join(lines)


def comparison_table(results):
    lines = ['# Training on the CPU\n\n', head(results)]
    for one in results['cases']:
        lines.append(f"\n## {one['case']}, {one['type']}\n\n")
        if 'skipped' in one:
            lines.append(f"Skipped: {one['skipped']}.\n")
            continue
        lines.append(f"GEMM {one['gemm_flops_per_s'] / 1e9:.1f} GFLOP/s"
                     f"{'' if one['interleaved'] else '; programs ran one after the other, since memory fits only one'}. The host took up to "
                     f"{one['most_stolen']:.0%} of a turn's processor time away.\n\n")
        rows = [[title_of(name), f"{p['tokens_per_s']:,.1f}", f"{p['step_seconds'] * 1e3:,.1f}", f"{p['of_gemm']:.2f}",
                 *([f"{p['of_idle']:.2f}" if 'of_idle' in p else ''] if results['busy'] else []),
                 f"{p['peak_bytes'] / 2**30:.2f}", *([f'{one["ratios"][name][what]:.2f}' for what in ('speed', 'memory')]
                                                     if name in one['ratios'] else ['', ''])]
                for name, p in one['programs'].items()]
        lines.append(rows_to_markdown(['program', 'tokens/s', 'ms per step', 'of GEMM', *(['of idle'] if results['busy'] else []),
                                       'total GiB', 'speedup of zero.c', 'relative memory'], rows))
    return ''.join(lines)


def growth_table(results):
    """Rows are relative to the first of their group: where the cost is proportional to FLOPs, both ratios are equal."""
    lines = ['# How the cost of a token grows\n\n', head(results)]
    for title, points in results['growth'].items():
        lines.append(f'\n## {title}\n\n')
        rows, first = [], None
        for point in points:
            name = point['case'] + (', blocks recomputed, int8 moments' if point['frugal'] else '')
            if 'skipped' in point:
                rows.append([name, str(point['threads']), f"skipped: {point['skipped']}", '', '', '', '', '', ''])
                continue
            first = first or point
            rows.append([name, str(point['threads']), f"{1e3 * point['seconds_per_token']:.3f}",
                         f"{point['seconds_per_token'] / first['seconds_per_token']:.3f}",
                         f"{point['flops_per_token'] / 1e9:.3f}", f"{point['flops_per_token'] / first['flops_per_token']:.3f}",
                         f"{point['of_gemm']:.2f}", f"{point['peak_bytes'] / 2**30:.2f}", f"{point['most_stolen']:.0%}"])
        lines.append(rows_to_markdown(['case', 'threads', 'ms per token', 'relative', 'GFLOP per token',
                                       'relative', 'of GEMM', 'total GiB', 'taken by the host'], rows))
    return ''.join(lines)


def measure(arguments, results, folder):
    """Fills `results`; yields the name of each case or group when it is complete."""
    if not arguments.growth:
        for case in arguments.cases:
            for kind in arguments.types:
                results['cases'].append(compare(arguments, case, kind, folder, results['about']))
                yield f'{case.name}, {kind}'
        return
    counts = sorted({1, arguments.threads})
    for kind in arguments.types:
        groups = {f'longer sequences, {kind}': [(case, arguments.threads) for case in arguments.growing_lengths],
                  f'larger models, {kind}': [(case, arguments.threads) for case in arguments.growing_models],
                  f'more threads, {kind}': [(arguments.cases[0], threads) for threads in counts]}
        for title, points in groups.items():
            results['growth'][title] = [grow(arguments, case, kind, threads, folder) for case, threads in points]
            yield title


def main():
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = {'processor': processor_name(), 'threads': arguments.threads, 'ranks': arguments.ranks, 'rounds': arguments.rounds,
               'busy': arguments.busy,
               'command': 'scripts/bench_cpu.sh ' + shlex.join(sys.argv[1:]), 'about': {'missing': {}}}
    if not arguments.python:
        results['about']['missing']['PyTorch'] = 'no --python was given'
    name, table = ('bench_cpu_growth', growth_table) if arguments.growth else ('bench_cpu', comparison_table)
    results['growth' if arguments.growth else 'cases'] = {} if arguments.growth else []
    markdown = arguments.output / f'{name}.md'
    with tempfile.TemporaryDirectory(prefix='bench-cpu-') as folder:
        try:
            for done in measure(arguments, results, pathlib.Path(folder)):
                markdown.write_text(table(results))  # after each case, since all of them take long
                (arguments.output / f'{name}.json').write_text(json.dumps(results, indent=2) + '\n')
                print(f'{done}: done', flush=True)
        except KeyboardInterrupt:
            fail(f'interrupted; the cases done so far are in {arguments.output}', 130)
    print('\n' + markdown.read_text())
    print(f'written: {arguments.output}/{name}.md, .json')


if __name__ == '__main__':
    main()
