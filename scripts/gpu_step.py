#!/usr/bin/env python3
"""The cost of a micro-batch of a config on a GPU, counted in a dry run without a GPU: launches, FLOPs and bytes
of each operation (`./train plan --json`), and the time that they imply at given rates. An estimate, not a
measurement: each operation takes the longer of computing and moving its data, and each launch a fixed time.

    scripts/gpu_step.py                                   GPT-2 124M, micro-batches of 4 and 16, T = 1024
    scripts/gpu_step.py recompute=none                    the same, with a setting of the config changed
    scripts/gpu_step.py --config configs/gpt2-xl.json --micro-batch 4
    scripts/gpu_step.py --json                            the counts and times, for programs
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Rates of an H100 SXM in bf16. Its limits are 989 TFLOP/s and 3.35 TB/s; these are what large products, this
# project's attention (causal, head size 64) and streaming kernels are expected to reach of them.
PRODUCTS, ATTENTION_FORWARD, ATTENTION_BACKWARD = 522e12, 193e12, 131e12  # FLOP/s
MEMORY = 2.7e12  # bytes/s
LAUNCH = 1.5e-6  # seconds between two dependent kernels
PEAK = 989e12


def rate_of(operation):
    return {'attention_forward': ATTENTION_FORWARD, 'attention_backward': ATTENTION_BACKWARD}.get(operation, PRODUCTS)


def seconds_of(row):
    return max(row['flops'] / rate_of(row['operation']), row['bytes'] / MEMORY) + LAUNCH * row['launches']


def plan(options, micro_batch):
    """The rows of the first and of a further micro-batch of a step."""
    command = [options.train, 'plan', options.config, '--ranks', '1', '--device-memory', '80G', '--json', 'device=cuda',
               'precision.compute=bf16', f'train.micro_batch_size={micro_batch}', 'train.gradient_accumulation_steps=2',
               f'train.train_batch_size={2 * micro_batch}', *options.overrides]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    case = json.loads(done.stdout)['plans'][0]
    if 'refused' in case:
        sys.exit(case['refused'])
    return case['micro_batch'], case['further_micro_batch']


def summary(rows):
    sums = {key: sum(row[key] for row in rows) for key in ('calls', 'launches', 'flops', 'bytes')}
    sums['seconds'] = sum(map(seconds_of, rows))
    return sums


def print_table(name, micro_batch, rows):
    print(f'### {name}, micro-batch {micro_batch}\n')
    print('| operation | calls | launches | GFLOP | GB | ms |\n|---|---:|---:|---:|---:|---:|')
    for row in sorted(rows, key=seconds_of, reverse=True):
        layer = f', {row["in"]} to {row["out"]}' if row['in'] else ''
        print(f'| {row["operation"]}{layer} | {row["calls"]} | {row["launches"]} | {row["flops"] / 1e9:.1f} |'
              f' {row["bytes"] / 1e9:.3f} | {seconds_of(row) * 1e3:.3f} |')
    sums = summary(rows)
    print(f'| **all** | {sums["calls"]} | {sums["launches"]} | {sums["flops"] / 1e9:.1f} | {sums["bytes"] / 1e9:.3f} |'
          f' {sums["seconds"] * 1e3:.3f} |\n')
    print(f'{sums["flops"] / sums["seconds"] / PEAK:.1%} of {PEAK / 1e12:.0f} TFLOP/s.\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('overrides', nargs='*', metavar='SECTION.KEY=VALUE')
    parser.add_argument('--train', default=str(ROOT / 'train'), help='the program (./train)')
    parser.add_argument('--config', default='configs/gpt2-small.json')
    parser.add_argument('--micro-batch', default='4,16', help='sequences, separated by commas (4,16)')
    parser.add_argument('--json', action='store_true')
    options = parser.parse_args()
    name = Path(options.config).stem
    found = []
    for micro_batch in map(int, options.micro_batch.split(',')):
        for kind, rows in zip(('first', 'further'), plan(options, micro_batch)):
            found.append({'micro_batch': micro_batch, 'kind': kind, 'rows': rows, **summary(rows)})
            if not options.json and kind == 'first':
                print_table(name, micro_batch, rows)
    if options.json:
        return print(json.dumps(found, indent=1))
    print('| micro-batch | of a step | launches | TFLOP | GB | ms |\n|---:|---|---:|---:|---:|---:|')
    for one in found:
        print(f'| {one["micro_batch"]} | {one["kind"]} | {one["launches"]} | {one["flops"] / 1e12:.3f} |'
              f' {one["bytes"] / 1e9:.2f} | {one["seconds"] * 1e3:.2f} |')


if __name__ == '__main__':
    main()
