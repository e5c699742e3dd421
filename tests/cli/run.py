"""Runs the tests of the command line and adds a line for each to the results file that TEST_RESULTS names, first
"plan N", the number of tests that will run. Fails if a test fails, is not reported, or if there are no tests.

Worker processes take one test after the other. There are two workers more than cores, because tests often wait for idle
processes. The output of a test is shown when it ends, with its wall seconds and the CPU seconds of its processes.

usage: run.py [--train PROGRAM] [--sanitizers] [--gpu] [--full] [--jobs N] [NAME ...]
"""
import argparse
import contextlib
import io
import multiprocessing
import os
import pathlib
import resource
import sys
import textwrap
import time
import unittest

import harness

parser = argparse.ArgumentParser()
parser.add_argument('--train', default=harness.TRAIN)
parser.add_argument('--sanitizers', action='store_true', help='the program has sanitizers: only bad input and short runs')
parser.add_argument('--gpu', action='store_true', help='only runs on a GPU, or a program with a simulated one')
parser.add_argument('--full', action='store_true', help='the long settings of tests that have them; or ZERO_TESTS_FULL=1')
parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)) + 2, help='worker processes')
parser.add_argument('names', nargs='*')

LONGEST = ('test_hosts.SameRun.test_every_stage', 'test_hosts.Disappearances.test_open_mpi',
           'test_quickstart.Quickstart.test_from_a_clean_clone_to_samples_and_again',
           'test_export.OtherPrograms.test_families', 'test_random_faults.Faults.test_draws', 'test_docs.Commands.test_commands',
           'test_export.OtherPrograms.test_transformers', 'test_golden_optimizers.Published.test_scripts_write_the_committed_figures',
           'test_ranks.Together.test_memory_is_what_was_planned',
           'test_ranks.Failures.test_a_rank_that_hangs', 'test_gpu_offload.Offload.test_ranks', 'test_gpu_offload.Offload.test_one_rank',
           'test_gpu.Fitting.test_proposals_train_on_a_gpu_of_that_size',
           'test_kill_loop.KillLoop.test_every_start_resumes_and_the_end_has_the_same_bits',
           'test_runner.WholeRun.test_each_command_broken_in_turn')


class Result(unittest.TextTestResult):
    """Counts as unittest does, and adds lines to the results file: the outcome of each test, and its time."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_reported = 0
        self.took = 'not run'

    def name(self, test):
        return f'{"asan " if harness.SANITIZERS else "gpu " if harness.GPU else ""}cli: {test.id()}'

    def startTest(self, test):
        self.began = time.monotonic(), cpu_seconds()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        began, used = self.began
        seconds, computed = time.monotonic() - began, cpu_seconds() - used
        self.took = f'{seconds:.1f} s (CPU {computed:.1f} s)'
        add_line(f'time {seconds:.1f} {computed:.1f} {self.name(test)}')

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
    """Appends a line at once and in one write, so that it survives the end of this process."""
    if 'TEST_RESULTS' in os.environ:
        with open(os.environ['TEST_RESULTS'], 'a', encoding='utf-8') as file:
            file.write(line.replace('\n', ' ') + '\n')


def cpu_seconds():
    """User and system time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tests_of(suite):
    """The tests of a suite, longest first, so that no long test starts last."""
    def flat(part):
        return [test for inner in part for test in flat(inner)] if isinstance(part, unittest.TestSuite) else [part]
    return sorted(flat(suite), key=lambda test: LONGEST.index(test.id()) if test.id() in LONGEST else len(LONGEST))


def work(tests, next_test, lock, sender):
    """A worker: takes test after test until none is left; sends the number of results of each, and whether it passed."""
    while True:
        with next_test.get_lock():
            taken, next_test.value = next_test.value, next_test.value + 1
        if taken >= len(tests):
            return
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            result = unittest.TextTestRunner(resultclass=Result, verbosity=0, stream=io.StringIO()).run(
                unittest.TestSuite([tests[taken]]))
        with lock:  # a test's lines stay together
            good = result.wasSuccessful()
            print(f'{tests[taken].id()}: {"skipped" if result.skipped else "ok" if good else "FAILED"}, {result.took}')
            print(textwrap.indent(output.getvalue(), '    '), end='')
            for test, trace in result.errors + result.failures:
                print(f'---- {test}\n{trace}')
            sys.stdout.flush()
        sender.send((result.n_reported, good))


def run(tests, n_workers):
    """Runs the tests in this many worker processes. Returns the number of results, and whether all passed."""
    processes = multiprocessing.get_context('fork')
    next_test, lock = processes.Value('i', 0), processes.Lock()
    workers, receivers = [], []
    for _ in range(min(n_workers, len(tests))):
        receiver, sender = processes.Pipe(duplex=False)
        workers.append(processes.Process(target=work, args=(tests, next_test, lock, sender)))
        workers[-1].start()
        sender.close()
        receivers.append(receiver)
    n_reported, good = 0, True
    for worker, receiver in zip(workers, receivers):
        with contextlib.suppress(EOFError):  # until the worker ends, in any way
            while True:
                n, passed = receiver.recv()
                n_reported, good = n_reported + n, good and passed
        worker.join()
        if worker.exitcode:
            print(f'a worker ended with exit code {worker.exitcode}')
            good = False
    return n_reported, good


def main():
    arguments = parser.parse_args()
    harness.TRAIN = pathlib.Path(arguments.train).resolve()
    harness.SANITIZERS, harness.GPU = arguments.sanitizers, arguments.gpu
    harness.FULL = arguments.full or harness.FULL
    os.environ.setdefault('ZERO_MEASURE_SECONDS', '0.002')  # spent on measuring at each run's start
    os.environ.setdefault('TSAN_OPTIONS', 'ignore_noninstrumented_modules=1')  # MPI and oneDNN have their own threads
    here = pathlib.Path(__file__).parent
    patterns = ('test_gpu*.py',) if arguments.gpu else ('test_[!gq]*.py' if arguments.sanitizers else 'test_[!g]*.py', 'test_g[!p]*.py')
    loader = unittest.TestLoader()
    suite = (loader.loadTestsFromNames(arguments.names) if arguments.names else
             unittest.TestSuite(loader.discover(str(here), pattern) for pattern in patterns))
    n_tests = suite.countTestCases()
    add_line(f'plan {n_tests}')
    if n_tests == 0:
        sys.exit(f'no tests in {" ".join(arguments.names or patterns)}')
    n_reported, good = run(tests_of(suite), arguments.jobs)
    if n_reported < n_tests:
        print(f'{n_reported} of {n_tests} tests reported')
        good = False
    sys.exit(0 if good else 1)


if __name__ == '__main__':
    main()
