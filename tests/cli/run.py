"""Runs the tests of the command line and adds a line for each to the results file that TEST_RESULTS names, first
"plan N", the number of tests that will run. Fails when a test failed, was not reported, or when there are none.

Test classes are shared out among worker processes, each of which takes the next class when it is done with one. A class
that says `alone = True`, because it measures time or waits for moments of a run, runs after them, one test at a time.

usage: run.py [--train PROGRAM] [--sanitizers] [--quickstart] [--gpu] [--full] [--jobs N] [NAME ...]
"""
import argparse
import contextlib
import io
import itertools
import multiprocessing
import os
import pathlib
import resource
import sys
import time
import unittest

import harness

parser = argparse.ArgumentParser()
parser.add_argument('--train', default=harness.TRAIN)
parser.add_argument('--sanitizers', action='store_true', help='the program has sanitizers: only bad input and short runs')
parser.add_argument('--quickstart', action='store_true', help='only the quickstart in a clean clone')
parser.add_argument('--gpu', action='store_true', help='only runs on a GPU, or a program with a simulated one')
parser.add_argument('--full', action='store_true', help='the long settings of tests that have them; or ZERO_TESTS_FULL=1')
parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)), help='worker processes; default: one per core')
parser.add_argument('names', nargs='*')


class Result(unittest.TextTestResult):
    """Counts as unittest does, and adds lines to the results file: one per test, and the seconds that it took."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_reported = 0

    def name(self, test):
        return f'{"asan " if harness.SANITIZERS else "gpu " if harness.GPU else ""}cli: {test.id()}'

    def startTest(self, test):
        self.began = time.monotonic(), cpu_seconds()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        began, used = self.began
        add_line(f'time {time.monotonic() - began:.1f} {cpu_seconds() - used:.1f} {self.name(test)}')

    def add(self, kind, test, reason=''):
        self.n_reported += 1
        add_line(f'{kind} {self.name(test)}{reason}')

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


def add_line(line):
    """At once and in one write, so that what is known survives the end of this process."""
    if 'TEST_RESULTS' in os.environ:
        with open(os.environ['TEST_RESULTS'], 'a', encoding='utf-8') as file:
            file.write(line.replace('\n', ' ') + '\n')


def cpu_seconds():
    """User and system time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def classes_of(suite):
    """The suite's tests, a list per class: a class may have fixtures of its own."""
    def flat(part):
        return [test for inner in part for test in flat(inner)] if isinstance(part, unittest.TestSuite) else [part]
    return [list(tests) for _, tests in itertools.groupby(flat(suite), type)]


def work(groups, next_group, lock, sender):
    """A worker: takes class after class until none is left; sends how many tests each reported, and whether they passed."""
    while True:
        with next_group.get_lock():
            group, next_group.value = next_group.value, next_group.value + 1
        if group >= len(groups):
            return
        output = io.StringIO()  # printed as a whole, so that the lines of two workers do not mix
        began = time.monotonic()
        with contextlib.redirect_stdout(output):
            result = unittest.TextTestRunner(resultclass=Result, verbosity=1, stream=output).run(unittest.TestSuite(groups[group]))
        with lock:
            name = type(groups[group][0])
            print(f'---- {name.__module__}.{name.__qualname__}: {time.monotonic() - began:.1f} s\n{output.getvalue().strip()}',
                  flush=True)
        sender.send((result.n_reported, result.wasSuccessful()))


def run_groups(groups, n_workers):
    """Runs the classes in so many worker processes. Gives the number of tests that were reported, and whether all is well."""
    processes = multiprocessing.get_context('fork')
    next_group, lock = processes.Value('i', 0), processes.Lock()
    workers, receivers = [], []
    for _ in range(min(n_workers, len(groups))):
        receiver, sender = processes.Pipe(duplex=False)
        workers.append(processes.Process(target=work, args=(groups, next_group, lock, sender)))
        workers[-1].start()
        sender.close()
        receivers.append(receiver)
    n_reported, good = 0, True
    for worker, receiver in zip(workers, receivers):
        worker.join()
        with contextlib.suppress(EOFError):
            while True:
                n, passed = receiver.recv()
                n_reported, good = n_reported + n, good and passed
        if worker.exitcode:
            print(f'a worker ended with exit code {worker.exitcode}')
            good = False
    return n_reported, good


def main():
    arguments = parser.parse_args()
    harness.TRAIN = pathlib.Path(arguments.train).resolve()
    harness.SANITIZERS, harness.GPU = arguments.sanitizers, arguments.gpu
    harness.FULL = arguments.full or harness.FULL
    os.environ.setdefault('TSAN_OPTIONS', 'ignore_noninstrumented_modules=1')  # MPI and oneDNN have their own threads
    here = pathlib.Path(__file__).parent
    pattern = ('test_quickstart.py' if arguments.quickstart else 'test_gpu.py' if arguments.gpu
               else 'test_[!gq]*.py')
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(arguments.names) if arguments.names else loader.discover(str(here), pattern)
    n_tests = suite.countTestCases()
    add_line(f'plan {n_tests}')
    if n_tests == 0:
        sys.exit(f'no tests in {" ".join(arguments.names) or here / pattern}')
    alone = [group for group in classes_of(suite) if getattr(group[0], 'alone', False)]
    shared = [group for group in classes_of(suite) if not getattr(group[0], 'alone', False)]
    n_reported, good = 0, True
    for groups, n_workers in (shared, arguments.jobs), (alone, 1):
        n, passed = run_groups(groups, n_workers)
        n_reported, good = n_reported + n, good and passed
    if n_reported < n_tests:
        print(f'{n_reported} of {n_tests} tests reported')
        good = False
    sys.exit(0 if good else 1)


if __name__ == '__main__':
    main()
