"""The scripts that run the tests, on builds and suites with one fault each. None may count as passed."""
import os
import shutil
import subprocess
import sys
import unittest

import harness
from harness import CommandCase

SCRIPTS = harness.ROOT / 'scripts'
CLI = harness.ROOT / 'tests' / 'cli'

# A test program, and the line by which its failure is reported; None where it passes.
PROGRAMS = {
    'good': ('echo 1..2; echo "ok 1 - a"; echo "ok 2 - b"', None),
    'two groups': ('echo 1..1; echo "ok 1 - a"; echo 1..1; echo "ok 1 - b"', None),
    'skipped': ('echo 1..1; echo "not ok 1 # SKIP a"', None),
    'silent': ('exit 0', 'listed no tests (exit code 0)'),
    'dies before its first test': ('kill -9 $$', 'listed no tests (exit code 137)'),
    'dies after half its tests': ('echo 1..2; echo "ok 1 - a"; exit 3', 'reported 1 of 2 tests (exit code 3)'),
    'killed after half its tests': ('echo 1..2; echo "ok 1 - a"; kill -SEGV $$', 'reported 1 of 2 tests (exit code 139)'),
    'fewer than planned': ('echo 1..3; echo "ok 1 - a"; echo "ok 2 - b"', 'reported 2 of 3 tests (exit code 0)'),
    'fails, and reports one of three': ('echo 1..3; echo "not ok 1 - a"; exit 1', 'reported 1 of 3 tests (exit code 1)'),
    'dies after its last test': ('echo 1..1; echo "ok 1 - a"; kill -ABRT $$', 'ended with exit code 134'),
    'fails with exit code 0': ('echo 1..2; echo "ok 1 - a"; echo "not ok 2 - b"', ': b'),
}

# A module of command-line tests, and whether it passes.
TESTS = 'import os, signal, unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        pass\n'
MODULES = {
    'good': (TESTS, True),
    'skipped': (TESTS + '    @unittest.skip("why")\n    def test_b(self):\n        pass\n', True),
    'fails': (TESTS + '    def test_b(self):\n        self.fail()\n', False),
    'without tests': ('', False),
    'cannot be imported': ('import no_such_module\n', False),
    'cannot be parsed': ('def\n', False),
    'ends half-way with exit code 0': (TESTS + '    def test_b(self):\n        os._exit(0)\n', False),
    'is killed half-way': (TESTS + '    def test_b(self):\n        os.kill(os.getpid(), signal.SIGKILL)\n', False),
    'cannot be set up': (TESTS + '    @classmethod\n    def setUpClass(cls):\n        raise OSError\n', False),
}


def write_script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/bash\n{text}\n')
    path.chmod(0o755)


@unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
class RunnerCase(CommandCase):
    def suite(self, *command, **options):
        """Runs a suite; returns its exit code and its results by kind."""
        results = self.folder / 'results'
        results.write_text('')
        process = subprocess.run([SCRIPTS / 'run_suite.sh', results, 'the suite', *map(str, command)], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, **options)
        lines = results.read_text().splitlines()
        for line in lines:
            self.assertRegex(line, '^(ok|not ok|skip|time [0-9.]+ [0-9.]+) ', process.stdout)
        kinds = {kind: [line for line in lines if line.startswith(kind + ' ')] for kind in ('ok', 'not ok', 'skip')}
        self.assertEqual(process.returncode == 0, not kinds['not ok'], process.stdout)
        return process.returncode, kinds


class Builds(RunnerCase):
    def build(self, program, listed=('unit/test_it',)):
        build = self.folder / 'build'
        shutil.rmtree(build, ignore_errors=True)
        for name in listed:
            write_script(build / 'tests' / name, program)
        (build / 'tests' / 'list').write_text(''.join(name + '\n' for name in listed))
        return build

    def test_programs(self):
        for name, (program, problem) in PROGRAMS.items():
            with self.subTest(name):
                code, kinds = self.suite(SCRIPTS / 'run_tests.sh', self.build(program))
                self.assertEqual(code == 0, problem is None)
                if problem:
                    self.assertEqual(len([line for line in kinds['not ok'] if line.endswith(problem)]), 1, kinds)
        code, kinds = self.suite(SCRIPTS / 'run_tests.sh', self.build(PROGRAMS['good'][0], ('unit/test_a', 'ops/test_b')))
        self.assertEqual((code, len(kinds['ok'])), (0, 4))

    def test_missing_builds_and_programs(self):
        build = self.build(PROGRAMS['good'][0], ('unit/test_a', 'unit/test_b'))
        self.assertEqual(self.suite(SCRIPTS / 'run_tests.sh', build)[0], 0)
        self.assertEqual(self.suite(SCRIPTS / 'run_tests.sh', build, 'ops')[0], 1)
        (build / 'tests' / 'unit' / 'test_b').unlink()
        code, kinds = self.suite(SCRIPTS / 'run_tests.sh', build)
        self.assertEqual((code, len(kinds['ok'])), (1, 2))
        self.assertIn('test_b: was not built', kinds['not ok'][0])
        (build / 'tests' / 'list').unlink()
        self.assertEqual(self.suite(SCRIPTS / 'run_tests.sh', build)[0], 1)
        shutil.rmtree(build)
        build.mkdir()
        self.assertEqual(self.suite(SCRIPTS / 'run_tests.sh', build)[0], 1)
        build.rmdir()
        self.assertEqual(self.suite(SCRIPTS / 'run_tests.sh', build)[0], 1)

    def test_several_builds_and_ranks(self):
        """TEST_JOBS programs run at a time; each is reported, excluded ones are not."""
        build = self.build(PROGRAMS['good'][0], ('unit/test_a', 'unit/test_b', 'ops/test_c', 'mpi/test_d'))
        for jobs in 1, 3:
            code, kinds = self.suite(SCRIPTS / 'run_tests.sh', build, 'unit', 'mpi=2,3', '-unit/test_a', build, 'ops',
                                     env=dict(os.environ, TEST_JOBS=str(jobs)))
            self.assertEqual(code, 0, kinds)
            names = {line.partition(': ')[0] for line in kinds['ok']}
            self.assertEqual(names, {f'ok build {name}' for name in ('unit/test_b', 'ops/test_c', 'mpi/test_d, 2 ranks',
                                                                     'mpi/test_d, 3 ranks')})
        code, kinds = self.suite(SCRIPTS / 'run_tests.sh', build, 'unit', '-unit/test_none')
        self.assertEqual((code, len(kinds['not ok'])), (1, 1))
        code, kinds = self.suite(SCRIPTS / 'run_tests.sh', build, 'unit', build, 'cudasim')
        self.assertEqual((code, len(kinds['ok']), len(kinds['not ok'])), (1, 4, 1))

    def test_a_worker_that_dies(self):
        """A program whose worker is killed is not reported as passed; the other program is still reported."""
        build = self.build(PROGRAMS['good'][0], ('unit/test_a', 'unit/test_b'))
        write_script(build / 'tests' / 'unit' / 'test_a', 'kill -9 $(ps -o ppid= $PPID); sleep 0.2')
        code, kinds = self.suite(SCRIPTS / 'run_tests.sh', build, env=dict(os.environ, TEST_JOBS='2'))
        self.assertEqual((code, len(kinds['ok'])), (1, 2), kinds)
        self.assertIn('test_a: its worker died', kinds['not ok'][0])

    def test_without_a_results_file(self):
        environment = {name: value for name, value in os.environ.items() if name != 'TEST_RESULTS'}
        for program, code, last in (('good', 0, '2 passed, 0 failed'), ('silent', 1, '0 passed, 1 failed')):
            process = subprocess.run([SCRIPTS / 'run_tests.sh', self.build(PROGRAMS[program][0])], text=True,
                                     stdout=subprocess.PIPE, env=environment, timeout=60)
            self.assertEqual((process.returncode, process.stdout.splitlines()[-1]), (code, last))


class Suites(RunnerCase):
    def test_modules_of_command_line_tests(self):
        for name, (module, passes) in MODULES.items():
            with self.subTest(name):
                (self.folder / 'module.py').write_text(module)
                shutil.rmtree(self.folder / '__pycache__', ignore_errors=True)
                code, kinds = self.suite(sys.executable, CLI / 'run.py', 'module',
                                         env=dict(os.environ, PYTHONPATH=str(self.folder)))
                self.assertEqual(code == 0, passes, kinds)
        code, kinds = self.suite(sys.executable, CLI / 'run.py', 'no_such_module')
        self.assertEqual((code, len(kinds['not ok'])), (1, 1))

    def test_suites_that_do_not_run(self):
        for command in (['/no/such/program'], ['true'], ['false'], ['sh', '-c', 'kill -9 $$']):
            self.assertEqual(self.suite(*command)[0], 1)
        for script, code in (('echo plan 1; echo ok a', 0), ('echo plan 2; echo ok a', 1), ('echo ok a', 1), ('echo plan 1', 1),
                             ('echo plan 0; echo ok a', 1), ('echo plan 1; echo ok a; exit 3 ', 1),
                             ('echo plan 2; echo ok a; echo skip b', 0)):
            self.assertEqual(self.suite('bash', '-c', f'{{ {script}; }} >>"$TEST_RESULTS"')[0], code, script)


# A fuzzer, and whether it passes.
STATS = 'echo "stat::number_of_executed_units: 900"'
FUZZERS = {
    'good': (STATS, True),
    'finds something': (f'{STATS}; exit 77', False),
    'killed': ('kill -9 $$', False),
    'ends without a report': ('exit 0', False),
    'runs no new input': ('echo "stat::number_of_executed_units: 1"', False),
}


class Fuzzers(RunnerCase):
    def test_fuzzers(self):
        root = self.folder / 'root'
        for name, (fuzzer, passes) in FUZZERS.items():
            with self.subTest(name):
                shutil.rmtree(root, ignore_errors=True)
                for path, text in (('tests/fuzz/fuzz_base_it.c', ''), ('tests/fuzz/corpus/base_it/seed', 'x')):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).write_text(text)
                write_script(root / 'build/fuzz-clang/tests/fuzz/fuzz_base_it', fuzzer)
                (root / 'scripts').mkdir()
                shutil.copy(SCRIPTS / 'fuzz.sh', root / 'scripts')
                code, kinds = self.suite(root / 'scripts' / 'fuzz.sh', 1)
                self.assertEqual(code == 0, passes)
                self.assertEqual(kinds['ok' if passes else 'not ok'], ['ok fuzz base_it' if passes else 'not ok fuzz base_it'])


class WholeRun(RunnerCase):
    """scripts/test.sh with its commands replaced by scripts that record their calls."""

    GOOD = 'echo plan 1 >>"$TEST_RESULTS"; echo "ok it" >>"$TEST_RESULTS"'

    def setUp(self):
        super().setUp()
        scripts = self.folder / 'scripts'
        scripts.mkdir()
        for name in 'test.sh', 'run_suite.sh':
            shutil.copy(SCRIPTS / name, scripts)
        # Records each call. The call that equals BROKEN runs the command BREAK.
        call = 'echo "$0 $*" >>calls; if [ "$0 $*" = "$BROKEN" ]; then eval "$BREAK"; fi; '
        for name in 'install.sh', 'check_style.sh', 'check_nvidia.sh':
            write_script(scripts / name, call)
        for name in 'run_tests.sh', 'fuzz.sh':
            write_script(scripts / name, call + self.GOOD)
        write_script(self.folder / 'bin' / 'make', call + 'touch train; chmod +x train')
        write_script(self.folder / 'bin' / 'python3', call + f'case $1 in tests/*) {self.GOOD};; esac')

    def whole_run(self, *arguments, broken='', how=''):
        """The exit code, the last line, and the calls."""
        environment = dict(os.environ, PATH=f'{self.folder / "bin"}:{os.environ["PATH"]}', BROKEN=broken, BREAK=how)
        (self.folder / 'calls').write_text('')
        process = subprocess.run([self.folder / 'scripts' / 'test.sh', *arguments], text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, env=environment, timeout=60)
        return process.returncode, process.stdout.splitlines()[-1], (self.folder / 'calls').read_text().splitlines()

    def test_each_command_broken_in_turn(self):
        code, last, calls = self.whole_run()
        self.assertEqual(code, 0, last)
        self.assertRegex(last, '^[0-9]+ passed, 0 failed$')
        self.assertEqual(len(set(calls)), len(calls))
        suites = [call for call in calls if any(name in call for name in ('run_tests.sh', 'fuzz.sh', 'tests/cli/run.py'))]
        self.assertEqual(len(suites), 5)
        for call in calls:
            for how in ('exit 0', 'kill -9 $$', 'kill -9 $PPID') if call in suites else ('exit 1',):
                code, last, _ = self.whole_run(broken=call, how=how)
                self.assertEqual(code, 1, (call, how))
                self.assertRegex(last, '^[0-9]+ passed, 1 failed', (call, how))

    def test_full(self):
        calls, full = self.whole_run()[2], self.whole_run('--full')[2]
        self.assertGreater(len(full), len(calls))
        for build in 'release', 'release-clang', 'asan', 'cudasim-asan', 'cudasim-race':  # the short run has some of each
            for words in calls, full:
                self.assertTrue(any(f'build/{build} ' in call + ' ' for call in words if 'run_tests.sh' in call), build)
        whole = next(call for call in full if 'run_tests.sh' in call)
        for build in 'asan', 'cudasim', 'cudasim-asan':
            self.assertRegex(whole + ' build/', f'build/{build} build/')  # all of its folders
        self.assertNotIn(' -', whole)
        self.assertEqual(self.whole_run('--ful')[0], 2)
        write_script(self.folder / 'scripts' / 'run_tests.sh', '[ "$ZERO_TESTS_FULL" = 1 ] || exit 1; ' + self.GOOD)
        self.assertEqual(self.whole_run('--full')[0], 0)


if __name__ == '__main__':
    unittest.main()
