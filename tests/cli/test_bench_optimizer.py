"""scripts/bench_optimizer.py on few elements: figures that agree with each other, and what it refuses."""
import json
import subprocess
import sys
import unittest

import harness
from harness import CommandCase, ROOT


@unittest.skipIf(harness.SANITIZERS, 'a benchmark of the release program')
class BenchOptimizer(CommandCase):
    def bench(self, *arguments, code=0):
        command = [sys.executable, ROOT / 'scripts' / 'bench_optimizer.py', '--train', harness.TRAIN, '--output',
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

    def test_what_does_not_fit_is_skipped_and_bad_words_are_refused(self):
        self.assertIn('skipped', self.bench('--sizes', '20K,4000G', '--rounds', 1).stdout)
        for words in ('--sizes', '0'), ('--sizes', 'many'), ('--rounds', '0'), ('--python', '/no/such/python'):
            self.bench(*words, code=2)


if __name__ == '__main__':
    unittest.main()
