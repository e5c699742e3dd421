"""scripts/bench_recipe.py on a tiny model: equal time, what is kept of an interrupted call, and its error messages."""
import json
import subprocess
import sys
import unittest

import harness
from harness import CommandCase, ROOT


@unittest.skipIf(harness.SANITIZERS, 'a benchmark of the release program')
class BenchRecipe(CommandCase):
    def setUp(self):
        super().setUp()
        (self.folder / 'text.txt').write_text(''.join(f'line {i * i % 97} of the text\n' for i in range(400)))
        self.run_train('tokenize', 'text.txt', '--tokenizer', 'bytes', '--split', 0.2, '--out', 'text')
        self.recipe = self.tiny_config('recipe.json', model={'vocab_size': 257, 'n_layer': 1, 'n_head': 1, 'n_embd': 8, 'n_positions': 16},
                                       data={'train': []}, train={'micro_batch_size': 2, 'train_batch_size': 2, 'eval_steps': 1})

    def bench(self, changes, *arguments, code=0):
        (self.folder / 'changes.json').write_text(json.dumps(changes))
        command = [sys.executable, ROOT / 'scripts' / 'bench_recipe.py', '--train', harness.TRAIN, '--config', self.recipe, '--changes',
                   'changes.json', '--data', self.folder / 'text' / 'train-*.bin', '--rounds', 1, '--turn', 3, '--jobs', 1, '--output', 'out',
                   *arguments]
        process = subprocess.run(list(map(str, command)), cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(process.returncode, code, process.stdout + process.stderr)
        return process

    def rows(self):
        return {row['name']: row for row in json.loads((self.folder / 'out' / 'recipe.json').read_text())}

    def test_changes_take_the_time_of_the_recipe(self):
        base, wide, slow = ['train.train_batch_size=4'], ['model.n_embd=64', 'model.n_layer=4'], ['optimizer.lr=1e-9']
        changes = {'(the recipe)': base, 'wide': wide, 'slow': slow}
        out = self.bench(changes, '--steps', 40, '--seeds', 2).stdout
        rows = self.rows()
        self.assertEqual({name: row['overrides'] for name, row in rows.items()},
                         {'(the recipe)': base, 'wide': [*base, *wide], 'slow': [*base, *slow]})
        # A rate does not change the time of a step: it is not measured.
        self.assertEqual((rows['slow']['time'], rows['slow']['steps'], rows['(the recipe)']['steps']), (1, 40, 40))
        self.assertNotRegex(out, 'slow: .* ms a step')
        self.assertRegex(out, r'wide: \d+ ms a step')
        self.assertEqual(rows['wide']['steps'], max(1, round(40 / rows['wide']['time'])))
        for row in rows.values():
            self.assertEqual(len(row['bits_per_byte']), 2)
        self.assertGreater(rows['slow']['bits_per_byte'][0], rows['(the recipe)']['bits_per_byte'][1])
        mean = {name: sum(row['bits_per_byte']) / 2 for name, row in rows.items()}
        line = next(line for line in out.splitlines() if line.startswith('| slow '))
        self.assertAlmostEqual(float(line.split('|')[-2]), mean['slow'] - mean['(the recipe)'], delta=1e-4)

        # What is kept is not trained again, and gives the same table; a new change is trained alone.
        out = self.bench({**changes, 'slower': ['optimizer.lr=1e-10']}, '--steps', 40, '--seeds', 2).stdout
        trained = [line for line in out.splitlines() if not line.startswith('|')]
        self.assertEqual([line[:24] for line in trained], ['slower: 40 steps, seed 1', 'slower: 40 steps, seed 2'])
        again = self.rows()
        self.assertEqual({name: again[name] for name in rows}, rows)

    def test_a_run_that_fails_ends_the_benchmark(self):
        out = self.bench({'wrong': ['model.n_layers=2']}, '--steps', 2, code=1).stderr
        self.assertIn('model.n_layers', out)
        self.assertIn('model.n_layer', out)

    def test_no_held_out_text(self):
        for file in (self.folder / 'text').glob('val-*'):
            file.unlink()
        out = self.bench({}, '--steps', 2, '--seeds', 1, code=1).stderr
        self.assertIn('the run ended without validation in bits per byte', out)

    def test_bad_arguments(self):
        self.assertIn('--steps', subprocess.run([sys.executable, ROOT / 'scripts' / 'bench_recipe.py', '--data', 'x'], capture_output=True,
                                                text=True).stderr)
        self.assertIn('expected at least one step', self.bench({}, '--steps', 0, code=2).stderr)
