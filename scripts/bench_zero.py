"""Memory and throughput of the ZeRO stages: trains one model for a few steps at each stage and number of ranks, and
writes FOLDER/bench_zero.md, .json and .svg. scripts/bench_zero.sh runs it once the program is built.

The global batch is the same at each number of ranks, so rows differ only in how the work is divided. The stages of one
number of ranks are measured in turn, for several rounds, and a figure is the median over all rounds: other load on the
machine affects all stages alike.
"""
import argparse
import json
import math
import os
import pathlib
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time

from bench_zero_report import STATES, figure, plural, table
from random_tokens import write_random_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_TOKENS = 4_000_000  # in the random shard; longer runs repeat it
BUSY = 0.1  # if others take a larger fraction of the processor time, it is reported
OURS = 'zero_optimization.stage', 'run.dir', 'train.max_steps'  # options that the benchmark itself sets


def fail(message, code=2):
    print(f'bench_zero: {message}', file=sys.stderr)
    sys.exit(code)


def numbers(text):
    """'1,2,4' as sorted numbers."""
    return sorted({int(part) for part in text.split(',')})


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog='bench_zero.sh', formatter_class=argparse.RawDescriptionHelpFormatter,
        description='Memory and throughput of the ZeRO stages: a table, JSON and a figure.',
        epilog='On a cluster, FOLDER must be shared by all machines:\n'
               '  scripts/bench_zero.sh --config configs/gpt2-xl.json --ranks 8,16,32 \\\n'
               '    --mpirun "mpirun -hostfile hosts" --output /shared/bench train.train_batch_size=128')
    parser.add_argument('--config', type=pathlib.Path, default=ROOT / 'configs' / 'bench-zero.json', metavar='FILE',
                        help='the model and its batch (configs/bench-zero.json: 23M parameters)')
    parser.add_argument('--ranks', type=numbers, default=[1, 2, 4], metavar='N,N', help='numbers of ranks (1,2,4)')
    parser.add_argument('--stages', type=numbers, default=[0, 1, 2, 3], metavar='N,N', help='ZeRO stages (0,1,2,3)')
    parser.add_argument('--steps', type=int, default=5, metavar='N', help='measured steps of a run (5)')
    parser.add_argument('--warmup', type=int, default=2, metavar='N', help='warm-up steps before them, which do not count (2)')
    parser.add_argument('--rounds', type=int, default=3, metavar='N', help='runs of each stage, in turn (3)')
    parser.add_argument('--mpirun', metavar='COMMAND',
                        help='launcher without -n, such as "mpirun -hostfile hosts" (mpirun on this machine)')
    parser.add_argument('--output', type=pathlib.Path, default=ROOT / 'runs' / 'bench-zero', metavar='FOLDER',
                        help='folder of the results (runs/bench-zero)')
    parser.add_argument('--train', type=pathlib.Path, default=ROOT / 'train', metavar='PROGRAM',
                        help=argparse.SUPPRESS)
    parser.add_argument('overrides', nargs='*', metavar='section.key=value', help='options of the training runs')
    arguments = parser.parse_intermixed_args()
    for override in arguments.overrides:
        key = override.partition('=')[0]
        if key == override:
            parser.error(f'"{override}" is not section.key=value')
        if key in OURS:
            parser.error(f'{key} is set by the benchmark itself; see --stages, --steps and --output')
    if not set(arguments.stages) <= {0, 1, 2, 3} or arguments.ranks[0] < 1:
        parser.error('expected stages of 0 to 3, and ranks of 1 or more')
    if arguments.steps < 1 or arguments.rounds < 1 or arguments.warmup < 0:
        parser.error('expected at least one step and one round')
    return arguments


# ---- the machine

def usable_cores():
    """Cores that this process may use: its affinity, within a container's quota, as ./train counts them."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = pathlib.Path('/sys/fs/cgroup/cpu.max').read_text().split()
        if quota != 'max':
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def machine_seconds():
    """Busy seconds of all processors since boot, in total, including stolen time."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path('/proc/stat').read_text().split(None, 9)[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf('SC_CLK_TCK')


def own_seconds():
    """Processor seconds of this process and of its ended descendants."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Others:
    """The fraction of the machine's processor time that other processes took since this object was created."""

    def __init__(self):
        self.began, self.machine, self.own = time.monotonic(), machine_seconds(), own_seconds()

    def fraction(self):
        worked = machine_seconds() - self.machine - (own_seconds() - self.own)
        return max(0.0, worked / ((time.monotonic() - self.began) * os.cpu_count()))


def processor_name():
    try:
        for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    except OSError:
        pass
    return 'unknown processor'


def launcher(arguments, ranks):
    """The words before the program's name."""
    if arguments.mpirun:
        return [*shlex.split(arguments.mpirun), '-n', str(ranks)]
    if ranks == 1:
        return []
    if not shutil.which('mpirun'):
        fail('mpirun was not found; install an MPI (scripts/install.sh), or name a launcher with --mpirun', 1)
    version = subprocess.run(['mpirun', '--version'], capture_output=True, text=True).stdout
    # By default, Open MPI refuses more ranks than cores, and binds a rank of two threads to one core.
    extra = ['--oversubscribe', '--bind-to', 'none'] if 'Open MPI' in version else []
    return ['mpirun', *extra, '-n', str(ranks)]


def environment():
    """Containers often run as root, which Open MPI allows only with two variables."""
    as_root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'} if os.geteuid() == 0 else {}
    return dict(os.environ, **as_root)


# ---- runs

def resolve(arguments):
    """The config with every option, resolved for one rank."""
    process = subprocess.run([arguments.train, 'check', arguments.config, *arguments.overrides],
                             capture_output=True, text=True)
    if process.returncode != 0:
        sys.stderr.write(process.stderr)
        sys.exit(process.returncode)
    return json.loads(process.stdout)


def batch_of(config, ranks):
    """(micro_batch_size, gradient_accumulation_steps) per rank: the largest micro-batch up to the config's that fits."""
    batch, most = config['train']['train_batch_size'], config['train']['micro_batch_size']
    if batch % ranks:
        fail(f'the batch of {batch} sequences does not divide among {ranks} ranks; set train.train_batch_size to a '
             f'multiple of {math.lcm(batch, ranks)}, or other --ranks')
    share = batch // ranks
    micro = max(size for size in range(1, min(most, share) + 1) if share % size == 0)
    return micro, share // micro


def prepare(arguments, notes):
    """Writes and returns the config that all runs share: training steps only, on random tokens."""
    config = resolve(arguments)
    train, steps = config['train'], arguments.warmup + arguments.steps
    given = {override.partition('=')[0] for override in arguments.overrides}
    if 'data.train' not in given:
        step_tokens = train['train_batch_size'] * train['seq_len']
        n = max(step_tokens, min(steps * step_tokens, MAX_TOKENS)) + 1
        shard = arguments.output / 'tokens.bin'
        write_random_tokens(shard, n, config['model']['vocab_size'])
        config['data']['train'] = [str(shard)]
    config['data'].update(val=[], val_split=0, tokenizer='')
    train.update(max_steps=steps, eval_every=0, sample_every=0)
    config['scheduler']['warmup_steps'] = min(config['scheduler']['warmup_steps'], steps)
    config['checkpoint'].update(every=0, resume='auto')
    config['run']['log_every'] = 1
    if config['precision']['compute'] == 'auto':
        # With auto, each run measures which dtype is faster, so two runs of one table might choose differently.
        config['precision']['compute'] = 'bf16'
        notes.append('`precision.compute` is `auto` in the config; here all runs use bf16, so that they are comparable.')
    (arguments.output / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
    return config


def threads_of(arguments, config, ranks):
    """Cores divided among the ranks. On other machines, or if the config sets it, ./train decides."""
    if arguments.mpirun or config['run']['threads']:
        return config['run']['threads']
    return max(1, usable_cores() // ranks)


def run_once(arguments, config, ranks, stage):
    """Runs once; returns the lines of its metrics, the manifest of its final state, and the fraction of processor time that others took."""
    folder = arguments.output / 'run'
    shutil.rmtree(folder, ignore_errors=True)
    micro, accumulation = batch_of(config, ranks)
    command = [*launcher(arguments, ranks), str(arguments.train.resolve()), str(arguments.output / 'config.json'),
               f'run.dir={folder}', f'run.threads={threads_of(arguments, config, ranks)}',
               f'zero_optimization.stage={stage}', f'train.micro_batch_size={micro}',
               f'train.gradient_accumulation_steps={accumulation}']
    others = Others()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors='replace', env=environment())
    try:
        out, _ = process.communicate()
        others = None if arguments.mpirun else others.fraction()  # the ranks may be on other machines
    except KeyboardInterrupt:
        process.communicate()  # the ranks receive the signal too and end themselves; killing mpirun would orphan them
        raise
    if process.returncode != 0:
        sys.stderr.write(out)
        fail(f'stage {stage} on {plural(ranks, "rank")} ended with exit code {process.returncode}: '
             f'{shlex.join(command)}', 1)
    sessions, lines = ([json.loads(line) for line in (folder / name).read_text().splitlines()]
                       for name in ('sessions.jsonl', 'metrics.jsonl'))
    (constants,) = (line for line in sessions if line['event'] == 'constants')
    manifest = json.loads(next((folder / 'checkpoints').glob('step-*/manifest.json')).read_text())
    shutil.rmtree(folder)
    return [constants | line for line in lines if 'loss' in line], manifest, others


def measure(arguments, config):
    """All runs: {(ranks, stage): [(lines, manifest, others) of each round]}."""
    runs = {(ranks, stage): [] for ranks in arguments.ranks for stage in arguments.stages}
    for ranks in arguments.ranks:
        for k in range(arguments.rounds):
            # Every other round runs in reverse order, so that a steady slowdown favours no stage.
            for stage in arguments.stages if k % 2 == 0 else reversed(arguments.stages):
                lines, manifest, others = run_once(arguments, config, ranks, stage)
                runs[ranks, stage].append((lines, manifest, others))
                speed = statistics.median(line['tokens_per_s'] for line in lines[arguments.warmup:])
                print(f'{plural(ranks, "rank")}, stage {stage}, round {k + 1} of {arguments.rounds}: '
                      f'{speed:,.0f} tokens/s' + (f'; busy: others took {others:.0%} of the processors'
                                                   if others and others > BUSY else ''), flush=True)
    return runs


# ---- the results

def bits(run):
    """The results that must be equal between stages: losses, gradient norms, and the checksums of the final state."""
    lines, manifest, _ = run
    return [(m['step'], m['loss'], m['grad_norm']) for m in lines], [xxh3 for _, xxh3 in manifest['ranks']]


def same_arithmetic(config, ranks, stage, stages):
    """The lowest stage that must give the same bits. With accumulation, stages 0 and 1 reduce gradients once per step,
    2 and 3 once per micro-batch, so they add in different orders, unless reduce_every_micro_batch is set."""
    _, accumulation = batch_of(config, ranks)
    two_orders = accumulation > 1 and not config['zero_optimization']['reduce_every_micro_batch']
    return next(s for s in stages if not two_orders or (s >= 2) == (stage >= 2))


def n_weights(manifest):
    return sum(math.prod(tensor['shape']) for tensor in manifest['tensors'])


def states_by_formula(manifest, ranks, stage):
    """Bytes per rank of params, gradients, fp32 master weights and optimizer states: ZeRO (arXiv 1910.02054), section 5,
    with this program's fp32 gradients. Without padding and without the small tensors that stage 3 keeps whole."""
    is_16_bit = manifest['compute'] != 'fp32'
    n, params, state = n_weights(manifest), 2 if is_16_bit else 4, 4 * len(manifest['state'])
    state -= 0 if is_16_bit else 4  # with fp32 compute, the parameters are the master weights
    divided = [ranks if stage >= lowest else 1 for lowest in (3, 2, 1)]
    return sum(n * size / by for size, by in zip((params, 4, state), divided))


def cell_of(arguments, config, runs, ranks, stage):
    here = runs[ranks, stage]
    measured = [line for lines, _, _ in here for line in lines[arguments.warmup:]]
    like = same_arithmetic(config, ranks, stage, arguments.stages)
    expected = bits(runs[ranks, like][0])
    every = [line for lines, _, _ in here for line in lines]
    last = measured[-1]
    micro, accumulation = batch_of(config, ranks)

    def over_steps(key):
        return statistics.median(line[key] for line in measured)

    speeds = sorted(line['tokens_per_s'] for line in measured)
    cut = (len(speeds) - 1) / 4
    return {
        'ranks': ranks, 'stage': stage, 'threads': last['threads'],
        'others': None if arguments.mpirun else max(others for _, _, others in here),
        'micro_batch_size': micro, 'gradient_accumulation_steps': accumulation,
        'tokens_per_s': statistics.median(speeds),
        'tokens_per_s_quartiles': [speeds[math.floor(cut)], speeds[math.ceil(3 * cut)]],
        'step_ms': over_steps('step_ms'),
        'memory': last['model_memory'], 'memory_planned': last['model_memory_planned'],
        'states_bytes': sum(last['model_memory'][kind] for kind in STATES),
        'states_planned_bytes': sum(last['model_memory_planned'][kind] for kind in STATES),
        'states_formula_bytes': states_by_formula(here[-1][1], ranks, stage),
        'model_bytes': sum(last['model_memory'].values()), 'model_planned_bytes': sum(last['model_memory_planned'].values()),
        'peak_bytes': max(line['total_bytes'] for line in every),
        'comm_bytes': last['comm_bytes'], 'comm_planned_bytes': last['comm_planned_bytes'],
        'comm_calls': last['comm_calls'], 'comm_planned_calls': last['comm_planned_calls'],
        'comm_ms': over_steps('comm_ms'), 'comm_hidden': over_steps('comm_hidden'),
        'same_bits_as': like, 'same_bits': all(bits(run) == expected for run in here),
        'as_planned': all(line['model_memory'] == line['model_memory_planned'] and line['comm_bytes'] == line['comm_planned_bytes']
                          and line['comm_calls'] == line['comm_planned_calls'] for line in every),
    }


def summarize(arguments, config, runs, notes):
    cells = [cell_of(arguments, config, runs, ranks, stage) for ranks, stage in runs]
    first = {cell['ranks']: cell for cell in reversed(cells)}  # the lowest stage of each number of ranks
    for cell in cells:
        cell['of_lowest_stage'] = cell['tokens_per_s'] / first[cell['ranks']]['tokens_per_s']
    cores, here = usable_cores(), not arguments.mpirun
    crowded = [ranks for ranks, cell in first.items() if here and ranks * cell['threads'] > cores]
    if crowded:
        each = ' and '.join(f'{plural(ranks, "rank")} x {plural(first[ranks]["threads"], "thread")}' for ranks in crowded)
        notes.append(f'Oversubscribed: {each} are more than the {plural(cores, "core")} of this machine: there tokens/s compares '
                     'stages only; it does not show scaling.')
    busiest = max((cell['others'] or 0) for cell in cells)
    if busiest > BUSY:
        notes.append(f'Busy: other processes, or the host, took up to {busiest:.0%} of the processor time of this machine during '
                     'a run; speeds are lower than on an idle machine, and less exact.')
    divided = [ranks for ranks, cell in first.items() if cell['gradient_accumulation_steps'] > 1]
    if divided and not config['zero_optimization']['reduce_every_micro_batch']:
        notes.append(f'Where a step has several micro-batches (here on {" and ".join(map(str, sorted(divided)))} ranks), '
                     'stages 0 and 1 must give the same bits, and so must 2 and 3. With '
                     '`zero_optimization.reduce_every_micro_batch=true`, all four must.')
    manifest = next(iter(runs.values()))[0][1]
    return {
        'program': manifest['version'], 'processor': processor_name() if here else None,
        'cores': cores if here else None, 'crowded_ranks': crowded,
        'parameters': n_weights(manifest), 'compute': manifest['compute'],
        'steps': arguments.steps, 'warmup': arguments.warmup, 'rounds': arguments.rounds,
        'command': 'scripts/bench_zero.sh ' + shlex.join(sys.argv[1:]), 'notes': notes,
        'same_bits': all(cell['same_bits'] for cell in cells), 'as_planned': all(cell['as_planned'] for cell in cells),
        'cells': cells, 'config': config,
    }


def main():
    arguments = parse_arguments()
    arguments.output = arguments.output.resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    notes = []
    config = prepare(arguments, notes)
    for ranks in arguments.ranks:
        batch_of(config, ranks)
    try:
        results = summarize(arguments, config, measure(arguments, config), notes)
    except KeyboardInterrupt:
        fail('interrupted; nothing was written', 130)
    finally:
        shutil.rmtree(arguments.output / 'run', ignore_errors=True)
        (arguments.output / 'tokens.bin').unlink(missing_ok=True)
    text = table(results)
    for name, content in (('md', text), ('json', json.dumps(results, indent=2) + '\n'), ('svg', figure(results))):
        (arguments.output / f'bench_zero.{name}').write_text(content)
    print('\n' + text)
    print(f'written: {arguments.output}/bench_zero.md, .json, .svg')
    if not results['same_bits']:
        fail('stages differ in their losses, gradient norms or final weights: see "same bits" above', 1)
    if not results['as_planned']:
        fail('measured memory or traffic differs from the plan: see "as planned" above', 1)


if __name__ == '__main__':
    main()
