"""Compares registers, shared memory and spills of each CUDA kernel, as ptxas reported them during a build, with
kernels/cuda/RESOURCES.md. It fails if a kernel spills, or if figures differ from the file and both come from the same nvcc.
A build for some of the file's architectures is compared with their columns. --update writes the file; it needs a build
for all of them.

usage: cuda_resources.py [--update] [BUILD]         BUILD: build/release
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMPILING = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)a?'")
STACK = re.compile(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads')
USED = re.compile(r'Used (\d+) registers(?:.*?(\d+) bytes smem)?')

Use = collections.namedtuple('Use', 'registers shared spilled')


def demangle(names):
    """Names as in the source, without parameters and namespace."""
    out = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for line in out.splitlines():
        line = line.replace('(anonymous namespace)::', '').removeprefix('void ')
        line = re.sub(r'\((?:bool|int|unsigned int)\)(-?\d+)', r'\1', line)
        depth = 0
        for i, letter in enumerate(line):
            depth += (letter == '<') - (letter == '>')
            if letter == '(' and depth == 0:
                line = line[:i]
                break
        short.append(line.replace('__nv_bfloat16', 'bf16').replace('__half', 'half'))
    return short


def read_logs(build):
    """{source: {kernel: {architecture: Use}}} from every .log file that nvcc wrote beside its object."""
    kernels = {}
    for log in sorted((build / 'kernels' / 'cuda').rglob('*.log'), key=lambda log: log.stem):
        found, spilled = {}, (0, 0)
        for line in log.read_text().splitlines():
            if match := COMPILING.search(line):
                name, architecture = match[1], int(match[2])
            elif match := STACK.search(line):
                spilled = int(match[2]) + int(match[3])
            elif match := USED.search(line):
                found.setdefault(name, {})[architecture] = Use(int(match[1]), int(match[2] or 0), spilled)
        if found:
            kernels[log.stem] = dict(sorted(zip(demangle(found), found.values())))
    return kernels


def nvcc_version(build):
    path = build / 'kernels' / 'cuda' / 'nvcc-version'
    return path.read_text().strip() if path.exists() else 'unknown'


def to_text(kernels, version):
    architectures = sorted({a for source in kernels.values() for uses in source.values() for a in uses})
    lines = ['# Registers of each CUDA kernel', '',
             f'Written by `scripts/cuda_resources.py --update` from the output of ptxas {version}. No kernel spills: '
             'the tests of a build fail if one does. Shared memory is static shared memory, in bytes.', '']
    for source, found in kernels.items():
        lines += [f'## {source}.cu', '', '| kernel | shared | ' + ' | '.join(f'sm_{a}' for a in architectures) + ' |',
                  '|---|---:' + '|---:' * len(architectures) + '|']
        for name, uses in found.items():
            shared = max(use.shared for use in uses.values())
            lines.append(f'| `{name}` | {shared} | '
                         + ' | '.join(str(uses[a].registers) if a in uses else '-' for a in architectures) + ' |')
        lines.append('')
    return '\n'.join(lines)


def from_text(text):
    """Reads the output of to_text: {(source, kernel, architecture): (registers, shared)}, as text."""
    found, source, architectures = {}, None, ()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split(' | ')]
        if line.startswith('## '):
            source = line[3:]
        elif line.startswith('| kernel |'):
            architectures = cells[2:]
        elif line.startswith('| `'):
            found.update({(source, cells[0], architecture): (registers, cells[1])
                          for architecture, registers in zip(architectures, cells[2:]) if registers != '-'})
    return found


def differences(text, known):
    """A line for each kernel and architecture whose figures differ between this build and the file."""
    now, file = from_text(text), from_text(known)
    built = {architecture for _, _, architecture in now}
    file = {key: figures for key, figures in file.items() if key[2] in built}
    return [f'{source} {kernel} {architecture}: (registers, shared) {now.get(key)}, in the file {file.get(key)}'
            for key in sorted(now.keys() | file.keys()) if now.get(key) != file.get(key)
            for source, kernel, architecture in (key,)]


def main():
    parser = argparse.ArgumentParser(description='Registers, shared memory and spills of the CUDA kernels.')
    parser.add_argument('--update', action='store_true', help='write the file instead of comparing with it')
    parser.add_argument('--file', type=pathlib.Path, default=ROOT / 'kernels' / 'cuda' / 'RESOURCES.md')
    parser.add_argument('build', nargs='?', type=pathlib.Path, default=ROOT / 'build' / 'release')
    arguments = parser.parse_args()
    kernels, version = read_logs(arguments.build), nvcc_version(arguments.build)
    if not kernels:
        print(f'skip: registers and spills of the CUDA kernels ({arguments.build} was built without nvcc)')
        return 0
    failed = False
    for source, found in kernels.items():
        for name, uses in found.items():
            for architecture, use in uses.items():
                if use.spilled:
                    print(f'{source}.cu: {name} spills {use.spilled} bytes on sm_{architecture}')
                    failed = True
    text = to_text(kernels, version)
    known = arguments.file.read_text() if arguments.file.exists() else ''
    missing = {a for _, _, a in from_text(known)} - {a for _, _, a in from_text(text)}
    if arguments.update and missing:
        print(f'this build lacks {" ".join(sorted(missing))}, which {arguments.file.name} has; build for all architectures: make CUDA_ARCH=all')
        return 1
    if arguments.update:
        arguments.file.write_text(text)
        return failed
    if f'ptxas {version}.' not in known:
        print(f'skip: registers are not compared with {arguments.file.name}, which was written with another nvcc than {version}')
    elif found := differences(text, known):
        print('\n'.join(found))
        print(f'{arguments.file} differs from this build; find out why, then run: '
              'python3 scripts/cuda_resources.py --update')
        failed = True
    return failed


if __name__ == '__main__':
    sys.exit(main())
