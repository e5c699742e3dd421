"""Runs the tests of the command line and adds a line for each to the results file that TEST_RESULTS names, first
"plan N", the number of tests that will run. Fails when a test failed, was not reported, or when there are none.

usage: run.py [--train PROGRAM] [--sanitizers] [--quickstart] [--gpu] [--full] [NAME ...]
"""
import argparse
import os
import pathlib
import sys
import unittest

import harness

parser = argparse.ArgumentParser()
parser.add_argument('--train', default=harness.TRAIN)
parser.add_argument('--sanitizers', action='store_true', help='the program has sanitizers: only bad input and short runs')
parser.add_argument('--quickstart', action='store_true', help='only the quickstart in a clean clone')
parser.add_argument('--gpu', action='store_true', help='only runs on a GPU, or a program with a simulated one')
parser.add_argument('--full', action='store_true', help='the long settings of tests that have them; or ZERO_TESTS_FULL=1')
parser.add_argument('names', nargs='*')
arguments = parser.parse_args()
harness.TRAIN = pathlib.Path(arguments.train).resolve()
harness.SANITIZERS = arguments.sanitizers
harness.FULL = arguments.full or harness.FULL
os.environ.setdefault('TSAN_OPTIONS', 'ignore_noninstrumented_modules=1')  # MPI and oneDNN have their own threads


def add_line(line):
    """At once, so that what is known survives the end of this process."""
    if 'TEST_RESULTS' in os.environ:
        with open(os.environ['TEST_RESULTS'], 'a', encoding='utf-8') as file:
            file.write(line.replace('\n', ' ') + '\n')


class Result(unittest.TextTestResult):
    """Counts as unittest does, and keeps a line per test."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_reported = 0

    def add(self, kind, test, reason=''):
        build = 'asan ' if harness.SANITIZERS else 'gpu ' if arguments.gpu else ''
        self.n_reported += 1
        add_line(f'{kind} {build}cli: {test.id()}{reason}')

    def addSuccess(self, test):
        super().addSuccess(test)
        self.add('ok', test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.add('not ok', test)

    def addError(self, test, error):
        super().addError(test, error)
        self.add('not ok', test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.add('skip', test, ': ' + reason)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self.add('not ok', subtest)


here = pathlib.Path(__file__).parent
pattern = ('test_quickstart.py' if arguments.quickstart else 'test_gpu.py' if arguments.gpu
           else 'test_[!gq]*.py')
loader = unittest.TestLoader()
suite = loader.loadTestsFromNames(arguments.names) if arguments.names else loader.discover(str(here), pattern)
n_tests = suite.countTestCases()
add_line(f'plan {n_tests}')
if n_tests == 0:
    sys.exit(f'no tests in {" ".join(arguments.names) or here / pattern}')
result = unittest.TextTestRunner(resultclass=Result, verbosity=1, stream=sys.stdout).run(suite)
if result.wasSuccessful() and result.n_reported < n_tests:
    sys.exit(f'{result.n_reported} of {n_tests} tests reported')
sys.exit(0 if result.wasSuccessful() else 1)
