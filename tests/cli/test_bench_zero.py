"""scripts/bench_zero.sh on a tiny model: its files, its figures and its error messages."""
import json
import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree

import harness
from harness import CommandCase, GOLDEN, ROOT

SVG = '{http://www.w3.org/2000/svg}'


@unittest.skipIf(harness.SANITIZERS, 'a benchmark of the release program')
class BenchZero(CommandCase):
    def bench(self, *arguments, code=0):
        command = [sys.executable, ROOT / 'scripts' / 'bench_zero.py', '--train', harness.TRAIN, '--output', 'out',
                   '--steps', '2', '--warmup', '1', *arguments]
        process = subprocess.run(list(map(str, command)), cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(process.returncode, code, process.stdout + process.stderr)
        return process

    def config(self, **train):
        return self.tiny_config(data={'train': []}, train={'micro_batch_size': 4, 'train_batch_size': 4, **train},
                                precision={'compute': 'bf16'}, run={'threads': 1})

    def results(self):
        return json.loads((self.folder / 'out' / 'bench_zero.json').read_text())

    def rows(self):
        """The table's rows by section, each a list of (title, text)."""
        sections = {}
        for part in (self.folder / 'out' / 'bench_zero.md').read_text().split('\n## ')[1:]:
            for table in part.split('\n\n'):  # columns that do not fit are in another table, after ranks and stage again
                lines = [[text.strip() for text in line.strip('|').split('|')]
                         for line in table.splitlines() if line.startswith('|')]
                self.assertLessEqual(max(map(len, table.splitlines())), 100)
                if lines:
                    rows = sections.setdefault(part.splitlines()[0], [[] for _ in lines[2:]])
                    for row, line in zip(rows, lines[2:]):
                        row += list(zip(lines[0], line))[2 * bool(row):]
        return sections

    def test_table_json_and_figure(self):
        out = self.bench('--config', self.config(), '--ranks', '1,2', '--stages', '0,3', '--rounds', '2').stdout
        self.assertEqual(sorted(p.name for p in (self.folder / 'out').iterdir()),
                         ['bench_zero.json', 'bench_zero.md', 'bench_zero.svg', 'config.json'])
        self.assertIn((self.folder / 'out' / 'bench_zero.md').read_text(), out)

        results = self.results()
        self.assertTrue(results['same_bits'] and results['as_planned'])
        cells = results['cells']
        self.assertEqual([(c['ranks'], c['stage']) for c in cells], [(1, 0), (1, 3), (2, 0), (2, 3)])
        for cell in cells:
            self.assertEqual(cell['memory'], cell['memory_planned'])
            self.assertEqual(cell['comm_bytes'], cell['comm_planned_bytes'])
            self.assertEqual(cell['comm_calls'], cell['comm_planned_calls'])
            self.assertEqual(cell['comm_bytes'] > 0, cell['ranks'] > 1)
            self.assertEqual(cell['same_bits_as'], 0)
            self.assertGreater(cell['tokens_per_s'], 0)
            self.assertGreater(cell['peak_bytes'], cell['model_bytes'] // 2)
        # Stage 0, bytes per parameter: 2 of bf16 parameter, 4 of gradient, 4 of master weight, 8 of moments.
        for cell in cells[0], cells[2]:
            self.assertEqual(cell['states_formula_bytes'], 18 * results['parameters'])
        self.assertEqual(cells[3]['states_formula_bytes'], 9 * results['parameters'])

        sections = self.rows()
        self.assertEqual(list(sections), ['Speed and traffic', 'Memory of rank 0, MiB'])
        for rows in sections.values():
            self.assertEqual([[text for _, text in row[:2]] for row in rows],
                             [['1', '0'], ['1', '3'], ['2', '0'], ['2', '3']])
            for row in rows:
                for (_, measured), (title, planned) in zip(row, row[1:]):
                    if title == 'planned':
                        self.assertEqual(measured, planned)
        for row in sections['Speed and traffic']:
            self.assertEqual((dict(row)['same bits'], dict(row)['as planned']), ('yes', 'yes'))

        svg = xml.etree.ElementTree.parse(self.folder / 'out' / 'bench_zero.svg').getroot()
        self.assertEqual(svg.tag, SVG + 'svg')
        words = [text.text for text in svg.iter(SVG + 'text')]
        for word in 'MiB per rank', 'tokens/s', '1 rank', '2 ranks', 'moments':
            self.assertIn(word, words)
        height = float(svg.get('height'))
        for rect in svg.iter(SVG + 'rect'):
            self.assertTrue(0 <= float(rect.get('y', 0)) <= height and float(rect.get('height')) >= 0)

    def test_weights_give_the_sizes(self):
        config = self.folder / 'weights.json'
        config.write_text(json.dumps({'model': {'init_from': str(GOLDEN / 'gpt2-tiny')}, 'run': {'threads': 1},
                                      'train': {'train_batch_size': 2}, 'precision': {'compute': 'fp32'}}))
        self.bench('--config', config, '--ranks', '1', '--stages', '0', '--rounds', '1')
        self.assertEqual(self.results()['parameters'], 72048)

    def test_several_micro_batches_per_step(self):
        """Stages that add gradients in the same order are compared; with reduce_every_micro_batch, all stages are."""
        config = self.config(micro_batch_size=1)
        self.bench('--config', config, '--ranks', '2', '--rounds', '1')
        self.assertEqual([c['same_bits_as'] for c in self.results()['cells']], [0, 0, 2, 2])
        notes = [note for note in self.results()['notes'] if not note.startswith('Busy: ')]
        self.assertEqual(len(notes), 1 + (self.results()['cores'] < 2))
        self.bench('--config', config, '--ranks', '2', '--rounds', '1', 'zero_optimization.reduce_every_micro_batch=true')
        self.assertEqual([c['same_bits_as'] for c in self.results()['cells']], [0, 0, 0, 0])

    def test_a_busy_and_oversubscribed_machine_is_named(self):
        """Beside one busy process per core, and with more threads than cores; threads are those of the run."""
        cores = len(os.sched_getaffinity(0))
        busy = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(cores)]
        try:
            out = self.bench('--config', self.config(), '--ranks', '1', '--stages', '0', '--rounds', '1',
                             f'run.threads={cores + 1}', 'model.n_layer=8').stdout
        finally:
            for process in busy:
                process.kill()
                process.wait()
        cell, = self.results()['cells']
        self.assertEqual(cell['threads'], cores + 1)
        self.assertGreater(cell['others'], 0.1)
        self.assertEqual([dict(row)['threads'] for row in self.rows()['Speed and traffic']], [str(cores + 1)])
        self.assertRegex(out, r'round 1 of 1: .* tokens/s; busy: others took \d+% of the processors')
        self.assertRegex(out, r'\nBusy: other processes, or the host, took up to \d+% of the processor time')
        self.assertIn(f'\nOversubscribed: 1 rank x {cores + 1} threads are more than the {cores} core', out)
        self.assertEqual(self.results()['crowded_ranks'], [1])

    def test_stages_that_differ_are_an_error(self):
        """A program that trains stage 1 with another seed simulates a faulty stage."""
        program = self.folder / 'train'
        program.write_text('#!/bin/sh\ncase "$*" in *stage=1*) set -- "$@" train.seed=7 ;; esac\n'
                           f'exec "{harness.TRAIN}" "$@"\n')
        program.chmod(0o755)
        process = self.bench('--config', self.config(), '--ranks', '1', '--stages', '0,1', '--rounds', '1',
                             '--train', program, code=1)
        self.assertIn('differ', process.stderr)
        self.assertEqual([c['same_bits'] for c in self.results()['cells']], [True, False])
        self.assertIn(' NO |', process.stdout)

    def test_bad_arguments(self):
        config = self.config()
        for arguments, word in (
            (['--ranks', '3'], 'train.train_batch_size'),
            (['--ranks', '0'], 'ranks'),
            (['--stages', '4'], 'stages'),
            (['zero_optimization.stage=1'], '--stages'),
            (['optimizer.lrr=1'], 'optimizer.lr'),
        ):
            with self.subTest(arguments):
                self.assertIn(word, self.bench('--config', config, *arguments, code=2).stderr)

    def test_help(self):
        process = subprocess.run([ROOT / 'scripts' / 'bench_zero.sh', '--help'], capture_output=True, text=True)
        self.assertEqual(process.returncode, 0)
        for option in '--config', '--ranks', '--stages', '--steps', '--mpirun', '--output':
            self.assertIn(option, process.stdout)


if __name__ == '__main__':
    unittest.main()
