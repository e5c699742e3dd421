"""Copies a build with the libraries that it needs, for gpu_check.sh --build on a machine that has only the NVIDIA driver."""
import pathlib
import re
import shutil
import subprocess

PROGRAMS = ('train', 'tests/ops/test_kernels_cuda', 'tests/ops/test_kernels_training_sizes')
# Of the C library and the driver, which must be the machine's own.
OF_THE_MACHINE = re.compile(r'^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|cuda|nvidia-.*))\.so')
WRAPPER = '''#!/bin/sh
# Runs the program with the libraries that were packed with it, after those of LD_LIBRARY_PATH.
here=$(dirname "$(realpath "$0")")
LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$here/{up}lib" exec "$here/{up}bin/{name}" "$@"
'''


def libraries_of(program):
    """The shared libraries of a program, as paths. Fails if one is missing."""
    out = subprocess.run(['ldd', program], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r'^\s*(\S+) => not found', out, re.M):
        raise SystemExit(f'gpu_check: {program} needs {", ".join(missing)}, which this machine lacks')
    return [pathlib.Path(path) for name, path in re.findall(r'^\s*(\S+) => (/\S+)', out, re.M) if not OF_THE_MACHINE.match(name)]


def copy_program(source, target):
    """Without debugging information, where strip is installed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    if shutil.which('strip'):
        subprocess.run(['strip', '--strip-debug', target], stderr=subprocess.DEVNULL, check=False)


def pack(build, folder):
    """Fills the folder and prints its size. Returns the exit code."""
    if folder.exists() and any(folder.iterdir()):
        print(f'gpu_check: {folder} is not empty; name a new folder')
        return 2
    libraries = set()
    for name in PROGRAMS:
        source = build / name
        if not source.exists():
            print(f'gpu_check: {source} does not exist; build it with: make tests')
            return 2
        libraries.update(libraries_of(source))
        copy_program(source, folder / 'bin' / source.name)
        wrapper = folder / name
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        wrapper.write_text(WRAPPER.format(up='../' * name.count('/'), name=source.name))
        wrapper.chmod(0o755)
    for library in libraries:
        copy_program(library, folder / 'lib' / library.name)
    size = sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())
    print(f'{folder}: {len(PROGRAMS)} programs, {len(libraries)} libraries, {size / 2**20:.0f} MiB; '
          f'there: scripts/gpu_check.sh --build {folder}')
    return 0
