"""scripts/bench_optimizer.py on few elements: its figures are consistent, and it rejects bad arguments. And bench_muon."""
import json
import subprocess
import sys
import unittest

import harness
from harness import CommandCase, ROOT

PROGRAM = harness.TRAIN.parent / 'tests' / 'bench' / 'bench_optimizer'


@unittest.skipIf(harness.SANITIZERS, 'a benchmark of the release program')
class BenchOptimizer(CommandCase):
    def bench(self, *arguments, code=0):
        command = [sys.executable, ROOT / 'scripts' / 'bench_optimizer.py', '--program', PROGRAM, '--output',
                   self.folder / 'bench', *map(str, arguments)]
        process = subprocess.run(command, text=True, capture_output=True, timeout=300)
        self.assertEqual(process.returncode, code, process.stdout + process.stderr)
        return process

    def test_table_and_json(self):
        self.bench('--sizes', '20K,100001', '--rounds', 3, '--threads', 2)
        results = json.loads((self.folder / 'bench' / 'bench_optimizer.json').read_text())
        self.assertEqual([size['elements'] for size in results['sizes']], [20000, 100001])
        for size in results['sizes']:
            limits = [size['cases'][name]['bytes_per_s'] for name in ('add', 'triad', 'scale')]
            self.assertAlmostEqual(max(limits), size['limit_bytes_per_s'], delta=1e-6 * max(limits))
            for name, case in size['cases'].items():
                self.assertEqual(len(case['all_seconds']), 3, name)
                self.assertAlmostEqual(case['elements_per_s'] * case['seconds'], size['elements'], delta=1)
                self.assertAlmostEqual(case['of_limit'] * size['limit_bytes_per_s'],
                                       case['bytes_per_element'] * case['elements_per_s'], delta=1e-6 * max(limits))
            fast, slow = (size['cases'][name]['seconds'] for name in ('adamw, one pass', 'three passes'))
            self.assertAlmostEqual(size['ratios']['one pass / three passes'], slow / fast, delta=1e-9)
        table = (self.folder / 'bench' / 'bench_optimizer.md').read_text()
        self.assertIn('## 20K elements', table)
        self.assertIn('not compared with PyTorch', table)

    def python_that(self, name, text):
        """A stand-in for a Python with PyTorch."""
        program = self.folder / name
        program.write_text(text)
        program.chmod(0o755)
        return program

    def test_other_programs_are_measured_and_compared(self):
        python = self.python_that('fake', f'''#!{sys.executable}
import json, sys
print(json.dumps({{'cases': ['torch fused'], 'versions': {{'PyTorch': '9'}}, 'missing': {{'DeepSpeed': 'not here'}}}}), flush=True)
for line in sys.stdin:
    assert line == 'torch fused\\n'
    print(1000, flush=True)
''')
        out = self.bench('--sizes', '1000', '--rounds', 2, '--python', python).stdout
        results = json.loads((self.folder / 'bench' / 'bench_optimizer.json').read_text())
        cases, ratios = results['sizes'][0]['cases'], results['sizes'][0]['ratios']
        self.assertEqual(cases['torch fused']['seconds'], 1000)
        self.assertAlmostEqual(ratios['AdamW / torch.optim.AdamW(fused=True)'], 1000 / cases['adamw']['seconds'])
        self.assertNotIn('AdamW / DeepSpeed CPUAdam', ratios)
        self.assertIn('- PyTorch 9\n- not compared with DeepSpeed: not here\n', out)

    def test_a_python_without_pytorch(self):
        (self.folder / 'torch.py').write_text("raise ImportError('no torch here')\n")
        python = self.python_that('bare', f'#!/bin/sh\nPYTHONPATH={self.folder} exec {sys.executable} "$@"\n')
        out = self.bench('--sizes', '1000', '--rounds', 1, '--python', python).stdout
        self.assertIn('- not compared with PyTorch: no torch here\n- not compared with DeepSpeed: needs PyTorch\n', out)

    def test_an_unknown_case_lists_the_cases(self):
        run = subprocess.run([PROGRAM, '--elements', '100'], input='adamw\nadamwx\n', text=True,
                             capture_output=True)
        self.assertEqual((run.returncode, len(run.stdout.splitlines())), (2, 2))
        self.assertIn('there is no case "adamwx"; there are: add;', run.stderr)

    def test_muon(self):
        config = self.tiny_config()
        sizes = json.loads(config.read_text())['model']
        width, blocks = sizes['n_embd'], sizes['n_layer']

        def bench_muon(path):
            return subprocess.run([PROGRAM.parent / 'bench_muon', path, '--quick', '--json', '--threads', '1'], text=True,
                                  capture_output=True)
        lines = map(json.loads, bench_muon(config).stdout.splitlines())
        found = {(line['rows'], line['columns']): line['matrices'] for line in lines if line['seconds'] > 0 and line['of_gemm'] > 0}
        # q, k and v are matrices of their own.
        self.assertEqual(found, {(width, width): 4 * blocks, (4 * width, width): blocks, (width, 4 * width): blocks})
        run = bench_muon(self.tiny_config(optimizer={'type': 'muon', 'groups': [{'match': 'h.*', 'type': 'adamw'}]}))
        self.assertEqual(run.returncode, 2)
        self.assertIn('leaves no matrix to Muon', run.stderr)

    def test_help(self):
        process = subprocess.run([ROOT / 'scripts' / 'bench_optimizer.sh', '--help'], capture_output=True, text=True)
        self.assertEqual(process.returncode, 0)
        for option in '--sizes', '--rounds', '--threads', '--python', '--huge-pages', '--output':
            self.assertIn(option, process.stdout)

    def test_sizes_that_do_not_fit_and_bad_arguments(self):
        self.assertIn('skipped', self.bench('--sizes', '20K,4000G', '--rounds', 1).stdout)
        for words in ('--sizes', '0'), ('--sizes', 'many'), ('--rounds', '0'), ('--python', '/no/such/python'):
            self.bench(*words, code=2)


if __name__ == '__main__':
    unittest.main()
