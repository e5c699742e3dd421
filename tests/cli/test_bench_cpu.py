"""scripts/bench_cpu.py on tiny models: its figures are consistent, and it rejects bad arguments."""
import json
import os
import statistics
import subprocess
import sys
import unittest

import harness
from harness import CommandCase, ROOT

TINY = '2-2-32-61:2x16'


@unittest.skipIf(harness.SANITIZERS, 'a benchmark of the release program')
class BenchCpu(CommandCase):
    def bench(self, *arguments, code=0):
        command = [sys.executable, ROOT / 'scripts' / 'bench_cpu.py', '--train', harness.TRAIN, '--output',
                   self.folder / 'bench', '--seconds', '0.02', *map(str, arguments)]
        # Its runs lie in a folder of this test's, by which their processes are found.
        self.runs = self.folder / 'runs'
        self.runs.mkdir(exist_ok=True)
        process = subprocess.run(command, text=True, capture_output=True, timeout=300, env={**os.environ, 'TMPDIR': str(self.runs)})
        self.assertEqual(process.returncode, code, process.stdout + process.stderr)
        return process

    def results(self, name='bench_cpu'):
        return json.loads((self.folder / 'bench' / f'{name}.json').read_text())

    def python_that(self, text):
        """A stand-in for a Python with PyTorch."""
        program = self.folder / 'fake'
        program.write_text(f'#!{sys.executable}\nimport json, sys\nsizes = json.loads(sys.argv[2])\n{text}')
        program.chmod(0o755)
        return program

    def test_table_and_json(self):
        out = self.bench('--cases', f'{TINY},1-2-16-61:1x8', '--rounds', 2, '--threads', 1).stdout
        results = self.results()
        self.assertEqual([(one['case'], one['type']) for one in results['cases']],
                         [(case, kind) for case in ('2-2-32-61, 2 x 16', '1-2-16-61, 1 x 8') for kind in ('fp32', 'bf16')])
        for one in results['cases']:
            ours = one['programs']['ours']
            self.assertEqual(len(ours['turns']), 2)
            self.assertEqual(ours['step_seconds'], statistics.median(turn['step_seconds'] for turn in ours['turns']))
            self.assertAlmostEqual(ours['of_gemm'] * one['gemm_flops_per_s'] / (ours['tokens_per_s'] * one['flops_per_token']),
                                   1, delta=1e-9)
            self.assertEqual(one['gemm_flops_per_s'], statistics.median(turn['flops_per_s'] for turn in one['gemm']))
            self.assertGreaterEqual(one['most_stolen'], 0)
            self.assertLessEqual(one['most_stolen'], 1.01)
            self.assertGreater(ours['peak_bytes'], 1 << 20)
        first = results['cases'][0]
        # The benchmark counts parameters as ./train does. Its models have as many positions as a sequence has tokens.
        config = self.tiny_config(model={'n_positions': 16}, train={'seq_len': 16})
        plan = json.loads(self.run_train('plan', config, '--ranks', 1, '--json').out)
        self.assertEqual(first['parameters'], plan['parameters'])
        self.assertEqual(first['flops_per_token'], 6 * plan['parameters'] + 6 * 2 * 32 * 16)
        self.assertIn('## 1-2-16-61, 1 x 8, bf16', out)
        self.assertIn('not compared with PyTorch: no --python was given', out)

    def test_comparison_with_pytorch(self):
        python = self.python_that('''print(json.dumps({'version': '9'}), flush=True)
for line in sys.stdin:
    print(json.dumps({'seconds': [100, 300, 200] if sizes['compiled'] else [1000], 'peak_bytes': 1 << 40}), flush=True)
''')
        out = self.bench('--cases', TINY, '--types', 'bf16', '--rounds', 3, '--python', python).stdout
        one = self.results()['cases'][0]
        self.assertEqual(one['programs']['eager']['step_seconds'], 1000)
        self.assertEqual(one['programs']['compiled']['tokens_per_s'], 2 * 16 / 200)
        self.assertAlmostEqual(one['ratios']['compiled']['speed'], 200 / one['programs']['ours']['step_seconds'])
        self.assertAlmostEqual(one['ratios']['eager']['memory'], one['programs']['ours']['peak_bytes'] / 2**40)
        self.assertTrue(one['interleaved'])
        self.assertIn('- PyTorch 9\n', out)

    def test_a_busy_machine_another_build_and_ranks(self):
        out = self.bench('--cases', TINY, '--types', 'fp32', '--rounds', 1, '--busy', 1, '--other', harness.TRAIN,
                         '--ranks', 2).stdout
        one = self.results()['cases'][0]
        programs = one['programs']
        self.assertEqual(list(programs), ['ours', 'other', 'ours busy', 'other busy'])
        for name in 'ours', 'other':
            self.assertEqual(programs[f'{name} busy']['of_idle'],
                             programs[f'{name} busy']['tokens_per_s'] / programs[name]['tokens_per_s'])
        self.assertEqual(one['ratios']['other busy']['speed'],
                         programs['ours busy']['tokens_per_s'] / programs['other busy']['tokens_per_s'])
        self.assertIn('| zero.c, the other build, busy machine |', out)
        self.assertIn('beside 1 busy process;', out)
        self.assertIn(', 2 ranks of ', out)
        self.assertEqual(subprocess.run(['pgrep', '-f', f'run.dir={self.runs}/'], capture_output=True).stdout, b'')

    def test_a_python_without_torch(self):
        python = self.python_that("print(json.dumps({'missing': 'no torch here'}), flush=True)\nsys.stdin.read()\n")
        out = self.bench('--cases', TINY, '--types', 'fp32', '--rounds', 1, '--python', python, '--peers', 'eager').stdout
        self.assertIn('- not compared with 2-2-32-61, 2 x 16, fp32: PyTorch eager: no torch here\n', out)
        self.assertEqual(list(self.results()['cases'][0]['programs']), ['ours'])

    def test_growth(self):
        out = self.bench('--growth', '--cases', TINY, '--growing-lengths', '2-2-32-61:1x8,2-2-32-61:1x16', '--growing-models',
                         '1-2-16-61:1x16,774M:9999x1024', '--types', 'fp32', '--rounds', 1, '--threads', 2).stdout
        growth = self.results('bench_cpu_growth')['growth']
        self.assertEqual([[point['threads'] for point in points] for points in growth.values()], [[2, 2], [2, 2], [1, 2]])
        for point in growth['longer sequences, fp32']:
            self.assertAlmostEqual(point['of_gemm'] * point['gemm_flops_per_s'] * point['seconds_per_token']
                                   / point['flops_per_token'], 1, delta=1e-9)
        self.assertIn('GiB of memory', growth['larger models, fp32'][1]['skipped'])
        self.assertIn('## more threads, fp32', out)

    def test_help_and_bad_arguments(self):
        process = subprocess.run([ROOT / 'scripts' / 'bench_cpu.sh', '--help'], capture_output=True, text=True)
        self.assertEqual(process.returncode, 0)
        for option in '--cases', '--types', '--rounds', '--threads', '--python', '--growth', '--output':
            self.assertIn(option, process.stdout)
        for words in (('--cases', '124M'), ('--cases', '99M:1x1'), ('--cases', '1-1-1:1x1'), ('--types', 'int4'), ('--rounds', '0'),
                      ('--cases', '124M:0x4'), ('--cases', TINY, '--python', '/no/such/python'), ('--cases', TINY, '--ranks', '3'), ('--ranks', '2', '--growth')):
            self.bench(*words, code=2)


if __name__ == '__main__':
    unittest.main()
