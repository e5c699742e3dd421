"""Checks and measures the CUDA backend on this machine's GPU, and writes OUTPUT/gpu-NAME.md and .json.
scripts/gpu_check.sh runs it after building the program.

The check is a list of parts (gpu_check_parts.py). Each has a limit of time, and all share a deadline. A part that fails,
hangs, or lacks a tool does not stop the others; the report is written again after each, so that nothing is lost if the
machine is taken away.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import gpu_check_pack
import gpu_check_parts
import gpu_check_report
from gpu_check_run import Failed, Skipped, run

ROOT = pathlib.Path(__file__).resolve().parents[1]
NO_GPU = 77  # the exit code that test runners report as "skipped"
SECONDS, QUICK_SECONDS = 480, 180
LEAST_SECONDS = 3  # a part is not begun with less time left


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog='gpu_check.sh', description='Checks and measures the CUDA backend on the GPU of this machine.')
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build' / 'release', metavar='PATH',
                        help='use this build (its train and tests/), or an archive of --pack, instead of building one')
    parser.add_argument('--pack', type=pathlib.Path, metavar='PATH',
                        help='copy the build with its libraries to a folder or a .tar.gz, to be carried to a machine with a GPU, and '
                             'check nothing')
    parser.add_argument('--quick', action='store_true', help=f'the most important parts, in {QUICK_SECONDS} s instead of {SECONDS}')
    parser.add_argument('--seconds', type=float, metavar='S', help='another limit for all parts together; a longer one gives each part more, in proportion')
    parser.add_argument('--only', metavar='PARTS', help='these parts only, with commas: ' + ','.join(gpu_check_parts.NAMES))
    parser.add_argument('--tiny', action='store_true', help='tiny sizes, which measure nothing: to test this script')
    parser.add_argument('--python', default=sys.executable, metavar='PROGRAM', help='a Python that has PyTorch, to be measured beside it')
    parser.add_argument('--output', type=pathlib.Path, default=ROOT / 'benchmarks', metavar='FOLDER',
                        help='folder for the report (benchmarks/)')
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    unknown = set(arguments.only.split(',') if arguments.only else ()) - set(gpu_check_parts.NAMES)
    if unknown:
        parser.error(f'--only: no part is called {", ".join(sorted(unknown))}; expected {", ".join(gpu_check_parts.NAMES)}')
    archive = gpu_check_pack.is_archive(arguments.build) and arguments.build.exists()
    if not archive and not (arguments.build / 'train').exists():
        parser.error(f'{arguments.build / "train"} does not exist; build it with: make')
    return arguments


def library_folders():
    """Folders with NVIDIA's libraries that the dynamic linker may not search: those of the toolkit and of Python packages."""
    found = [folder for folder in (pathlib.Path('/usr/local/cuda/lib64'),) if folder.is_dir()]
    for folder in map(pathlib.Path, sys.path + ['/usr/local/lib/python3/dist-packages']):
        found += sorted(folder.glob('nvidia/*/lib'))
    return list(map(str, found))


class Check:
    """The state that all parts share."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.build = gpu_check_pack.unpack(arguments.build, folder / 'build')
        self.train = self.build / 'train'
        self.sizes = gpu_check_parts.SIZES['tiny' if arguments.tiny else 'quick' if arguments.quick else 'whole']
        usual = QUICK_SECONDS if arguments.quick else SECONDS
        limit = arguments.seconds or usual
        self.scale = max(1, limit / usual)  # factor on the parts' time limits
        self.deadline = time.monotonic() + limit
        path = [*filter(None, [os.environ.get('LD_LIBRARY_PATH')]), *library_folders()]
        self.environment = dict(os.environ, LD_LIBRARY_PATH=':'.join(path)) if path else dict(os.environ)
        self.environment.pop('TEST_RESULTS', None)  # tests run by a part do not belong to a test suite around this program
        # A packed build contains the mpirun of its MPI library; that of another version would not start its ranks.
        self.environment['PATH'] = f'{self.build}:{os.environ["PATH"]}'
        self.mpirun = shutil.which('mpirun', path=self.environment['PATH'])
        self.part_deadline = self.deadline

    def left(self):
        """Seconds that the part may still take."""
        return min(self.part_deadline, self.deadline) - time.monotonic()

    def run(self, *words, **environment):
        return run(words, self.left(), dict(self.environment, **environment))

    def find_gpu(self):
        """The description of the GPU, or None after printing what is missing."""
        process = self.run(self.train, 'devices')
        line = next((line for line in process.out.splitlines() if line.startswith('cuda')), None)
        if line is None:
            print(f'gpu_check: {self.train} does not start here: {process.last_line()}')
            return None
        description = line.partition(' ')[2].strip()
        if description.startswith('none: '):
            print(f'gpu_check: no GPU here: {description.removeprefix("none: ")}')
            return None
        return description

    def find_options(self):
        """The names of the options that this build has; an older build may lack some."""
        return set(re.findall(r'^\| `([\w.]+)` \|', self.run(self.train, 'options').out, re.M))

    def count_gpus(self):
        if not shutil.which('nvidia-smi'):
            return 1
        out = self.run('nvidia-smi', '-L').out
        return max(1, len(re.findall(r'^GPU \d+:', out, re.M)))


def run_part(check, part):
    """One part's entry in the report."""
    began = time.monotonic()
    seconds = (part.quick_seconds if check.arguments.quick else part.seconds) * check.scale
    entry = {'name': part.name, 'title': part.title, 'outcome': 'passed', 'reason': '', 'figures': {}}
    try:
        if not seconds:
            raise Skipped('not part of --quick')
        check.part_deadline = began + seconds
        if check.left() < min(LEAST_SECONDS, seconds):
            raise Skipped('no time was left')
        part.run(check, entry['figures'])
    except Skipped as skipped:
        entry.update(outcome='skipped', reason=str(skipped))
    except Failed as failed:
        entry.update(outcome='failed', reason=str(failed))
    except subprocess.TimeoutExpired:
        entry.update(outcome='timed out', reason=f'stopped after {time.monotonic() - began:.0f} s')
    except Exception as error:  # a bug in this script is reported like a failure, so that the other parts still run
        entry.update(outcome='failed', reason=f'{type(error).__name__}: {error}')
    entry['seconds'] = round(time.monotonic() - began, 1)
    return entry


def main():
    arguments = parse_arguments()
    if arguments.pack:
        return gpu_check_pack.pack(arguments.build, arguments.pack)
    with tempfile.TemporaryDirectory(prefix='zero-') as folder:
        check = Check(arguments, pathlib.Path(folder))
        gpu = check.find_gpu()
        if gpu is None:
            return NO_GPU
        print(f'gpu_check: {gpu}', flush=True)
        check.options, check.n_gpus = check.find_options(), check.count_gpus()
        report = gpu_check_report.Report(arguments, gpu, check.n_gpus)
        for part in gpu_check_parts.PARTS:
            if arguments.only and part.name not in arguments.only.split(','):
                continue
            print(f'{part.title} ... ', end='', flush=True)
            entry = run_part(check, part)
            print(f'{entry["outcome"]}, {entry["seconds"]:.0f} s{": " + entry["reason"] if entry["reason"] else ""}', flush=True)
            report.add(entry)
    print(f'\n{report.text()}\nwritten to {report.path}')
    return 1 if report.failed() else 0


if __name__ == '__main__':
    sys.exit(main())
