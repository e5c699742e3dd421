#!/usr/bin/env python3
"""Throughput of a run that crosses a network: the same ranks on one host, and on hosts that a limited link connects, in each
ZeRO stage. Prints a table in Markdown. The hosts are namespaces of this machine (tests/cli/hosts.py), which needs root.

The global batch, and so every bit of the result, is the same in all runs; that is checked. The runs of a stage take turns, for
several rounds, and a figure is the median over all measured steps of all rounds: other load affects all runs alike.

usage: nice -n -10 scripts/bench_hosts.py [--train PROGRAM] [--other PROGRAM] [--rate 1gbit] ... [section.key=value ...]
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

from random_tokens import write_random_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'tests' / 'cli'))
from hosts import Hosts, unavailable  # noqa: E402

VOCABULARY = 4096  # of the quickstart's tokenizer: 2.56M parameters with its config


def fail(message, code=2):
    print(f'bench_hosts: {message}', file=sys.stderr)
    sys.exit(code)


def parse_arguments():
    parser = argparse.ArgumentParser(prog='bench_hosts.py', description='Throughput of one host, and of several over a link.')
    parser.add_argument('--train', type=pathlib.Path, default=ROOT / 'train', metavar='PROGRAM', help='the program (./train)')
    parser.add_argument('--other', type=pathlib.Path, metavar='PROGRAM', help='a second program, measured in turn with the first')
    parser.add_argument('--config', type=pathlib.Path, default=ROOT / 'configs' / 'quickstart.json', metavar='FILE')
    parser.add_argument('--hosts', type=int, default=2, metavar='N', help='hosts (2)')
    parser.add_argument('--ranks', type=int, default=2, metavar='N', help='ranks per host (2)')
    parser.add_argument('--batch', type=int, default=8, metavar='N', help='sequences per step (8)')
    parser.add_argument('--stages', default='0,1,2,3', metavar='N,N', help='ZeRO stages (0,1,2,3)')
    parser.add_argument('--rate', default='1gbit', metavar='RATE', help='of each link and direction, as tc writes it (1gbit)')
    parser.add_argument('--delay-ms', type=float, default=0, metavar='MS', help='of each link and direction (0)')
    parser.add_argument('--steps', type=int, default=15, metavar='N', help='measured steps of a run (15)')
    parser.add_argument('--warmup', type=int, default=3, metavar='N', help='steps before them (3)')
    parser.add_argument('--rounds', type=int, default=3, metavar='N', help='runs of each kind, in turn (3)')
    parser.add_argument('overrides', nargs='*', metavar='section.key=value', help='options of the training runs')
    arguments = parser.parse_intermixed_args()
    if reason := unavailable():
        fail(reason, 1)
    return arguments


def run_once(arguments, folder, program, n_hosts, stage, overlap):
    """Runs once; returns the measured steps, the bytes per step that left host0, and the bits of the result."""
    world, steps = arguments.hosts * arguments.ranks, arguments.warmup + arguments.steps
    shutil.rmtree(folder / 'run', ignore_errors=True)
    words = [program, arguments.config.resolve(), f'data.train={folder}/tokens.bin', 'data.val_split=0', f'model.vocab_size={VOCABULARY}',
             'train.max_minutes=0', f'train.max_steps={steps}', 'train.eval_every=0', 'train.sample_every=0', 'checkpoint.every=0',
             f'train.train_batch_size={arguments.batch}', 'train.micro_batch_size=0', 'train.gradient_accumulation_steps=1',
             'precision.compute=fp32', 'run.log_every=1', 'run.threads=1', *arguments.overrides, f'run.dir={folder}/run',
             f'zero_optimization.stage={stage}', f'zero_optimization.overlap_comm={str(overlap).lower()}']
    with Hosts(n_hosts, [folder, program.parent], rate=arguments.rate, delay_ms=arguments.delay_ms) as hosts:
        process = hosts.mpirun(world // n_hosts, *words, folder=folder)
        out, error = process.communicate()
        across = hosts.sent(0)
    if process.returncode != 0:
        fail(f'stage {stage} on {n_hosts} hosts ended with exit code {process.returncode}:\n{out}{error}', 1)
    lines = [line for line in map(json.loads, (folder / 'run' / 'metrics.jsonl').read_text().splitlines()) if 'loss' in line]
    digest = hashlib.sha256()
    for path in sorted((folder / 'run' / 'checkpoints').glob('step-*/rank-*.bin')):
        digest.update(path.read_bytes())
    return lines[arguments.warmup:], across / steps, ([line['loss'] for line in lines], digest.hexdigest())


def row(name, stage, runs):
    """A row of the table, from the runs on one host and on several, with and without overlap."""
    median = {kind: {figure: statistics.median(line[figure] for lines, _, _ in rounds for line in lines)
                     for figure in ('step_ms', 'tokens_per_s', 'comm_ms', 'comm_planned_bytes')} for kind, rounds in runs.items()}
    one, several, plain = (median[kind] for kind in ('one', 'several', 'plain'))
    across = statistics.median(across for _, across, _ in runs['several'])
    hidden = (plain['step_ms'] - several['step_ms']) / min(plain['comm_ms'], plain['step_ms'] - plain['comm_ms'])
    return [name, stage, f'{one["tokens_per_s"]:,.0f}', f'{several["tokens_per_s"]:,.0f}',
            f'{several["tokens_per_s"] / one["tokens_per_s"]:.2f}', f'{one["step_ms"]:.0f}', f'{several["step_ms"]:.0f}',
            f'{plain["step_ms"]:.0f}', f'{plain["comm_ms"]:.0f}', f'{hidden:.2f}', f'{across / 1e6:.1f}']


def main():
    arguments = parse_arguments()
    programs = {'this' if arguments.other else '': arguments.train.resolve()}
    if arguments.other:
        programs['other'] = arguments.other.resolve()
    kinds = {'one': (1, True), 'several': (arguments.hosts, True), 'plain': (arguments.hosts, False)}
    rows = []
    with tempfile.TemporaryDirectory(prefix='zero-bench-hosts-') as folder:
        folder = pathlib.Path(folder)
        write_random_tokens(folder / 'tokens.bin', 200_001, VOCABULARY)
        for stage in map(int, arguments.stages.split(',')):
            runs = {name: {kind: [] for kind in kinds} for name in programs}
            for k in range(arguments.rounds):
                turns = [(name, kind) for kind in kinds for name in programs]
                for name, kind in turns if k % 2 == 0 else reversed(turns):
                    n_hosts, overlap = kinds[kind]
                    runs[name][kind].append(run_once(arguments, folder, programs[name], n_hosts, stage, overlap))
            for name in programs:
                if any(bits != runs[name]['one'][0][2] for rounds in runs[name].values() for _, _, bits in rounds):
                    fail(f'stage {stage}, {name or "program"}: the bits differ between one host and several', 1)
                rows.append(row(name, stage, runs[name]))
                print(f'stage {stage}{" " + name if name else ""}: {" ".join(map(str, rows[-1][2:]))}', file=sys.stderr, flush=True)
    names = ['program', 'stage', 'tokens/s, one host', f'{arguments.hosts} hosts', 'ratio', 'step, ms, one host',
             f'{arguments.hosts} hosts', 'no overlap', 'its comm, ms', 'hidden', 'MB per step from a host']
    first = 0 if arguments.other else 1
    for cells in (names, ['---:'] * len(names), *rows):
        print('| ' + ' | '.join(map(str, cells[first:])) + ' |')


if __name__ == '__main__':
    main()
