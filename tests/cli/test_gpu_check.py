"""scripts/gpu_check.sh: its parts, its limits of time and its report. Most tests replace the programs of the build by scripts, so
that each way to fail can be had; others run the build on the simulated GPU."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

import harness
from harness import ROOT, CommandCase

SIMULATED = 'cudasim' in str(harness.TRAIN)

# A ./train that writes a run's metrics without training. FAKE: words, each of which makes it misbehave.
TRAIN = '''#!{python}
import json, os, sys, time
fake, words = os.environ.get('FAKE', ''), sys.argv[1:]
if words[0] == 'devices':
    print('cpu   CPU\\ncuda  GPU 0, Fake 9000, 80.0 GiB, sm_90, CUDA 13.0')
elif words[0] == 'options':
    for name in '' if 'old' in fake else ('cuda_graphs', 'attention', 'comm.backend', 'model.family', 'model.value_embeddings'):
        print('| `' + name + '` | choice |')
elif words[0] == 'bench':
    print(json.dumps(dict(device='GPU', gemm_fp32_flops_per_s=5e13, gemm_bf16_flops_per_s=7e14, gemm_fp16_flops_per_s=7e14,
                          dense_peak_bf16_flops_per_s=1e15, bandwidth_bytes_per_s=3e12,
                          operations=[dict(operation='linear_forward', type='bf16', seconds=1e-3, flops=1, bytes=1, limit='GEMM',
                                           of_limit=0.5)])))
else:
    config = json.load(open(words[0]))
    run = config['run']['dir']
    name = os.path.basename(run)
    for way in fake.split():
        kind, _, of = way.partition(':')
        if kind == 'refuses' and of == name:
            print('train: error: not offered here', file=sys.stderr)
            os._exit(2)
        if kind == 'crashes' and of == name:
            print('train: error: an illegal memory access', file=sys.stderr)
            os._exit(1)
        if kind == 'short' and of == name:
            print('train: error: the run needs 30 GiB of GPU memory', file=sys.stderr)
            os._exit(1)
        if kind == 'hangs' and of == name:
            time.sleep(600)
    os.makedirs(run, exist_ok=True)
    resolved = dict(config, train=dict(config['train'], micro_batch_size=2))
    json.dump(resolved, open(run + '/config.json', 'w'))
    planned = 2**30
    taken = planned + (2**30 if 'larger:' + name in fake else 0)
    with open(run + '/sessions.jsonl', 'w') as out:
        out.write(json.dumps(dict(event='constants', step=1, mfu_of='dense peak', device_bytes=taken,
                                  device_planned_bytes=planned)) + '\\n')
    with open(run + '/metrics.jsonl', 'w') as out:
        for step in range(1, 100):
            loss = 5 - 0.01 * step + (0.1 if 'differs:' + name in fake and step > 1 else 0)
            out.write(json.dumps(dict(step=step, loss=loss, grad_norm=1.0, tokens_per_s=1000.0 + step, step_ms=10.0, mfu=0.4,
                                      of_gemm=0.5)) + '\\n')
            out.flush()
    time.sleep(600)  # the check must stop it
'''
OPERATIONS = '#!/bin/sh\necho "ok 1 - cuda: add"\necho "ok 2 - test_heads_too_wide_or_many_are_refused"\n'
# A Python with PyTorch, as scripts/bench_cpu_peers.py answers.
PEER = '''#!/bin/sh
echo '{"version": "9.9"}'
echo '{"seconds": [0.5, 0.25, 0.25], "peak_bytes": 1073741824}'
'''
SANITIZER = '#!/bin/sh\necho "========= ERROR SUMMARY: 0 errors"\n'
TOOLS = {'nvidia-smi': '#!/bin/sh\necho "GPU 0: Fake"\necho "GPU 1: Fake"\n', 'compute-sanitizer': SANITIZER,
         'mpirun': '#!/bin/sh\nwhile [ "$1" != -n ]; do shift; done\nshift 2\nexec "$@"\n'}
OF_TESTS = 'golden', 'families', 'resuming', 'stages'  # parts that run tests/cli/test_gpu.py
WITH_FAKES = 'operations,sizes,bench,newton-schulz,small,graphs,attention,llama,modern,large,pytorch,pytorch-llama,nccl,sanitizer'


class CheckCase(CommandCase):
    def script(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def fake_build(self, operations=OPERATIONS):
        build = self.folder / 'build'
        self.script(build / 'train', TRAIN.replace('{python}', sys.executable))
        matrices = json.dumps(dict(rows=768, columns=768, matrices=48, seconds=1e-3, flops=2e11, of_gemm=0.25))
        self.script(build / 'tests' / 'bench' / 'bench_muon', f"#!/bin/sh\necho '{matrices}'\n")
        for name in 'test_kernels_cuda', 'test_kernels_rotation', 'test_kernels_training_sizes':
            self.script(build / 'tests' / 'ops' / name, operations)
        return build

    def check(self, build, *words, tools=TOOLS, code=0, **environment):
        """Runs the check, with only these tools in its PATH."""
        shutil.rmtree(self.folder / 'bin', ignore_errors=True)
        for name, text in tools.items():
            self.script(self.folder / 'bin' / name, text)
        process = subprocess.run([sys.executable, ROOT / 'scripts' / 'gpu_check.py', '--build', build, '--output', self.folder, '--tiny',
                                  '--python', self.script(self.folder / 'peer', PEER), *map(str, words)],
                                 env=dict(os.environ, PATH=str(self.folder / 'bin'), **environment), capture_output=True, text=True,
                                 timeout=300)
        self.assertEqual(process.returncode, code, process.stdout + process.stderr)
        self.assertEqual(process.stderr, '')
        return process.stdout

    def report(self, slug='fake-9000'):
        found = json.loads((self.folder / f'gpu-{slug}.json').read_text())
        return found, {part['name']: part for part in found['parts']}, (self.folder / f'gpu-{slug}.md').read_text()


@unittest.skipUnless(SIMULATED, 'replaces the programs of a build')
class Parts(CheckCase):
    def test_all_parts(self):
        out = self.check(self.fake_build(), '--only', WITH_FAKES)
        found, parts, text = self.report()
        self.assertEqual({part['outcome'] for part in found['parts']}, {'passed'}, out)
        self.assertEqual(','.join(parts), WITH_FAKES)
        self.assertEqual((found['gpus'], found['quick'], found['tiny']), (2, False, True))
        self.assertEqual(parts['operations']['figures']['outcomes'], {'add': 'ok', 'test_heads_too_wide_or_many_are_refused': 'ok'})
        small = parts['small']['figures']
        self.assertEqual((small['tokens_per_s'], small['mfu'], small['of_gemm'], small['micro_batch_size'], small['device_bytes']),
                         (1003, 0.4, 0.5, 2, 2**30))  # the median of steps 2 to 4
        self.assertIn('| a tiny model, bf16, 4 x 32 in micro-batches of 2 | 1,003 | 10.0 (10.0) | 0.400 of dense peak | 0.500 | '
                      '1,024 MiB (1,024 MiB) |', text)
        self.assertIn('| CUDA graphs on and off: cuda_graphs=true |', text)
        self.assertIn('| PyTorch 9.9, compiled: a tiny model | 512 | 250.0 |', text)
        self.assertIn('| PyTorch 9.9, compiled: a tiny Llama | 512 | 250.0 |', text)
        self.assertIn('| PyTorch, compiled: zero.c with steps of that size | 1,003 |', text)
        self.assertIn('| 48 of 768 x 768 | 1.000 | 200.0 | 0.25 |', text)
        self.assertIn('bf16 700.0 TFLOP/s, 70% of the dense peak', text)
        self.assertIn('| linear_forward | bf16 | 1.000 | 0.50 of GEMM |', text)
        self.assertIn(text, out)

    def test_a_part_that_fails_does_not_stop_the_rest(self):
        out = self.check(self.fake_build(), '--only', WITH_FAKES, code=1, FAKE='differs:graphs-false differs:attention-cudnn '
                         'differs:comm-mpi crashes:large larger:small')
        _, parts, text = self.report()
        expected = {'graphs': 'differ with and without graphs', 'attention': 'losses differ: flash', 'nccl': 'between NCCL and MPI',
                    'large': 'an illegal memory access', 'small': 'of GPU memory were taken'}
        for name, part in parts.items():
            with self.subTest(name):
                self.assertEqual(part['outcome'], 'failed' if name in expected else 'passed', out)
                self.assertIn(expected.get(name, ''), part['reason'])
                self.assertIn(part['reason'], text)

    def test_what_cannot_run_here_is_skipped_with_its_reason(self):
        self.check(self.fake_build(), '--only', WITH_FAKES + ',stages', '--quick', tools={}, FAKE='refuses:attention-cudnn short:large')
        _, parts, text = self.report()
        expected = {'attention': 'train: error: not offered here', 'large': 'train: error: the run needs 30 GiB of GPU memory',
                    'nccl': 'one GPU', 'pytorch': 'not part of --quick', 'pytorch-llama': 'not part of --quick', 'stages': 'not part of --quick',
                    'sanitizer': 'not part of --quick'}
        for name, part in parts.items():
            with self.subTest(name):
                self.assertEqual(part['outcome'], 'skipped' if name in expected else 'passed', part['reason'])
                self.assertIn(expected.get(name, ''), part['reason'])
        self.assertIn('with --quick --tiny.', text)

    def test_missing_tools_and_older_builds(self):
        build = self.fake_build()
        self.check(build, '--only', 'stages,sanitizer,pytorch,graphs,nccl', '--python', '/nowhere/python', tools={}, FAKE='old')
        _, parts, _ = self.report()
        expected = {'stages': 'mpirun is not installed', 'sanitizer': 'compute-sanitizer is not installed',
                    'pytorch': 'PyTorch cannot run here', 'graphs': 'this build has no option cuda_graphs',
                    'nccl': 'this build has no option comm.backend'}
        for name, reason in expected.items():
            self.assertEqual((parts[name]['outcome'], reason in parts[name]['reason']), ('skipped', True), parts[name])
        (build / 'tests' / 'ops' / 'test_kernels_cuda').unlink()
        self.check(build, '--only', 'operations,nccl', tools={'nvidia-smi': TOOLS['nvidia-smi']})
        _, parts, _ = self.report()
        self.assertIn('test_kernels_cuda does not exist', parts['operations']['reason'])
        self.assertEqual(parts['nccl']['reason'], 'mpirun is not installed')

    def command_lines(self):
        found = []
        for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
            with contextlib.suppress(OSError):
                found += path.read_bytes().decode(errors='replace').split('\0')
        return found

    def test_a_part_that_hangs(self):
        """It is stopped with what it started, its figures so far are kept, and there is no time left for the rest. A process that
        left it, and holds its output, is not waited for."""
        build = self.fake_build(OPERATIONS + '(sleep 12 &)\nsetsid sleep 61.1611 & sleep 61.2\n')
        began = time.monotonic()
        self.check(build, '--only', 'operations,small', '--seconds', 4, code=1, tools={name: f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n' for name in ('sleep', 'setsid')})
        self.assertLess(time.monotonic() - began, 60)
        self.assertNotIn('61.1611', self.command_lines())
        _, parts, text = self.report()
        self.assertEqual(parts['operations']['outcome'], 'timed out')
        self.assertRegex(parts['operations']['reason'], r'^stopped after \d+ s$')
        self.assertEqual(set(parts['operations']['figures']['outcomes']), {'add', 'test_heads_too_wide_or_many_are_refused'})
        self.assertEqual((parts['small']['outcome'], parts['small']['reason']), ('skipped', 'no time was left'))
        self.assertIn('| timed out |', text)
        self.check(self.fake_build(), '--only', 'small', '--seconds', 4, code=1, FAKE='hangs:small')
        self.assertEqual(self.report()[1]['small']['outcome'], 'timed out')

    def test_an_operation_that_is_wrong(self):
        for script, reason in (('echo "ok 1 - cuda: add"\necho "not ok 2 - cuda: cast"\nexit 1', '1 of 2 passed; failed: cast'),
                               ('echo "ok 1 - cuda: add"\nexit 3', 'the test program'), ('true', '0 of 0 passed')):
            with self.subTest(reason):
                self.check(self.fake_build(f'#!/bin/sh\n{script}\n'), '--only', 'operations', code=1)
                self.assertIn(reason, self.report()[1]['operations']['reason'])

    def test_tests_that_parts_run(self):
        """Their names are those of tests, and a failing one fails the part."""
        text = (ROOT / 'scripts' / 'gpu_check_parts.py').read_text()
        names = [word for word in text.replace("'", ' ').replace(',', ' ').split() if word.startswith('test_gpu.')]
        self.assertEqual(len(names), 4, names)
        loader = unittest.TestLoader()
        self.assertGreater(loader.loadTestsFromNames(names).countTestCases(), 4)
        self.assertEqual(loader.errors, [])
        self.check(self.fake_build(), '--only', 'golden', code=1)  # its run folder has no figures of that run
        self.assertIn('GoldenCurves', self.report()[1]['golden']['reason'])

    def test_bad_arguments(self):
        for words, says in ((['--only', 'opertions'], 'no part is called opertions'), (['--build', self.folder], 'train does not exist')):
            process = subprocess.run([sys.executable, ROOT / 'scripts' / 'gpu_check.py', '--build', self.fake_build(), *words],
                                     capture_output=True, text=True)
            self.assertEqual(process.returncode, 2)
            self.assertIn(says, process.stderr)


@unittest.skipUnless(SIMULATED, 'on the simulated GPU')
class OnTheSimulator(CheckCase):
    def test_without_a_gpu_it_prints_one_line(self):
        process = subprocess.run([ROOT / 'scripts' / 'gpu_check.sh', '--build', harness.TRAIN.parent, '--output', self.folder],
                                 env=dict(os.environ, CUDASIM_NO_DEVICE='driver'), capture_output=True, text=True)
        self.assertEqual((process.returncode, process.stderr), (77, ''))
        self.assertRegex(process.stdout, r'\Agpu_check: no GPU here: .*driver.*\n\Z')

    def test_a_run(self):
        """In --full, all parts that the simulator has time for."""
        parts = 'operations,sizes,small,golden,large,stages' if harness.FULL else 'sizes,small'
        process = subprocess.run([sys.executable, ROOT / 'scripts' / 'gpu_check.py', '--build', harness.TRAIN.parent, '--tiny', '--only',
                                  parts, '--output', self.folder, '--seconds', '3000'],
                                 env=dict(os.environ, CUDASIM_NAME='NVIDIA L40S', CUDASIM_CAPABILITY='8.9'), capture_output=True,
                                 text=True, timeout=3000)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        found, parts, text = self.report('nvidia-l40s')
        self.assertEqual({part['outcome'] for part in found['parts']}, {'passed'}, text)
        small = parts['small']['figures']
        self.assertEqual((small['mfu_of'], small['micro_batch_size']), ('dense peak', 4))
        self.assertLess(abs(small['device_bytes'] - small['device_planned_bytes']), 64 << 10)
        self.assertGreater(small['tokens_per_s'], 0)

    def test_a_packed_build(self):
        """Runs with its own libraries, from another folder; a folder that is in use is refused."""
        def pack(folder):
            return subprocess.run([sys.executable, ROOT / 'scripts' / 'gpu_check.py', '--build', harness.TRAIN.parent, '--pack', folder],
                                  capture_output=True, text=True)
        process = pack(self.folder / 'packed')
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertRegex(process.stdout, r'5 programs, \d+ libraries, \d+ MiB')
        shutil.move(self.folder / 'packed', self.folder / 'carried')
        libraries = {path.name for path in (self.folder / 'carried' / 'lib').iterdir()}
        self.assertTrue(any(name.startswith('libmpi') for name in libraries), libraries)
        self.assertFalse(any(name.startswith(('libc.so', 'ld-linux', 'libcuda.so')) for name in libraries), libraries)
        maps = subprocess.run([self.folder / 'carried' / 'train', 'devices'], env=dict(os.environ, LD_DEBUG='libs'), capture_output=True,
                              text=True)
        self.assertIn('simulated GPU', maps.stdout)
        self.assertIn(f'{self.folder}/carried/lib/libmpi', maps.stderr)
        if (self.folder / 'carried' / 'mpirun').exists():  # it packs Open MPI's only
            config = self.tiny_config(device='cuda', train={'max_steps': 1, 'micro_batch_size': 1, 'train_batch_size': 2})
            environment = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'PATH': '/usr/bin:/bin'}
            process = subprocess.run([self.folder / 'carried' / 'mpirun', '--oversubscribe', '-n', '2', self.folder / 'carried' / 'train',
                                      config], env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
            self.assertIn('ranks: 2', process.stderr)
        again = pack(self.folder / 'carried')
        self.assertEqual(again.returncode, 2)
        self.assertIn('is not empty', again.stdout)

    def test_an_archive(self):
        """A build is packed, and the check runs from the archive alone."""
        archive = self.folder / 'build.tar.gz'
        process = subprocess.run([sys.executable, ROOT / 'scripts' / 'gpu_check.py', '--build', harness.TRAIN.parent, '--pack', archive],
                                 capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        process = subprocess.run([ROOT / 'scripts' / 'gpu_check.sh', '--build', archive, '--tiny', '--only', 'sizes', '--output',
                                  self.folder], capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertEqual(self.report('simulated-gpu')[1]['sizes']['outcome'], 'passed')


if __name__ == '__main__':
    unittest.main()
