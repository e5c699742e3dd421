"""Virtual environments with packages of PyPI for tests that compare with other programs.

They are kept in ZERO_TEST_PYTHON (default: ~/.cache/zero.c/python), one for each set of requirements, so that a second
run takes them as they are. Nothing else of the machine's Python is used.
"""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import harness

# The newest releases that the full run compares with, in one environment, which takes minutes and gigabytes.
NEWEST = ('torch==2.15.0', 'transformers==5.24.0', 'tokenizers==0.23.3', 'safetensors==0.8.0', 'lm_eval[api,hf]==0.4.13',
          'deepspeed==0.19.8', 'schedulefree==1.4.1', 'numpy==2.2.6')


def newest(*packages):
    """Their requirements in NEWEST, for a test that needs nothing else of it."""
    pins = {pin.split('==')[0].split('[')[0]: pin for pin in NEWEST}
    return tuple(pins[package] for package in packages)


def python_with(*requirements, large=False):
    """The Python of an environment with these requirements, such as 'gguf==0.10.0'. Skips the test where it cannot be had.

    large: hundreds of megabytes, such as PyTorch; made only in the full run, and used wherever it is there already.
    """
    home = pathlib.Path(os.environ.get('ZERO_TEST_PYTHON', pathlib.Path.home() / '.cache' / 'zero.c' / 'python'))
    name = hashlib.sha256('\n'.join((sys.version, *requirements)).encode()).hexdigest()[:16]
    folder = home / name
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f'{name}.lock', 'w', encoding='utf-8') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not (folder / 'complete').exists():
            if large and not harness.FULL:
                raise unittest.SkipTest(f'{", ".join(requirements)}: installed by the full run only')
            create(folder, requirements)
    return folder / 'bin' / 'python'


def create(folder, requirements):
    """Makes the environment, or skips the test with the last line of what failed."""
    shutil.rmtree(folder, ignore_errors=True)
    # The program's own variables, such as a sanitizer's, are not pip's.
    environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
    with contextlib.ExitStack() as failed:
        failed.callback(shutil.rmtree, folder, ignore_errors=True)
        for command in ([sys.executable, '-m', 'venv', folder],
                        [folder / 'bin' / 'python', '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check',
                         *requirements]):
            process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     encoding='utf-8', errors='replace', check=False)
            if process.returncode:
                lines = process.stdout.strip().splitlines() or [f'exit code {process.returncode}']
                raise unittest.SkipTest(f'no Python environment with {", ".join(requirements)}: {lines[-1]}')
        (folder / 'complete').write_text('\n'.join(requirements) + '\n', encoding='utf-8')
        failed.pop_all()
