"""A run's folder and its disk: kills at random moments with a checkpoint each step, calls that fail, a disk that is slow, a
folder that is removed or renamed under a run, and readers beside a run that prunes.

ZERO_DISK_SEED=N repeats one sequence of kills or failures. A failing test prints its seed."""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import unittest

import harness
from harness import CommandCase

TIMES = 50 if harness.FULL else 6
SEED = int(os.environ.get('ZERO_DISK_SEED', 1))


class DiskCase(CommandCase):
    def preloaded(self):
        library = self.folder / 'faulty_disk.so'
        if not library.exists():
            subprocess.run(['cc', '-shared', '-fPIC', '-o', library, harness.ROOT / 'tests' / 'cli' / 'faulty_disk.c'],
                           check=True)
        return library

    def faulty(self, **what):
        """The environment of a program whose disk does this (faulty_disk.c)."""
        return {'LD_PRELOAD': str(self.preloaded()), 'DISK': str(self.folder / 'run'),
                **{f'DISK_{name.upper()}': str(value) for name, value in what.items()}}

    def config(self, name='tiny.json', **sections):
        return self.tiny_config(name, scheduler={'type': 'constant', 'warmup_steps': 2}, checkpoint={'every': 1, 'keep': 2},
                                **sections)

    def names(self):
        folder = self.folder / 'run' / 'checkpoints'
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def newest(self):
        return max((int(name.split('-')[1]) for name in self.names() if name.startswith('step-')), default=-1)

    def verified(self):
        """All checkpoints are whole. Returns what verify printed."""
        process = self.run_train('checkpoint', 'verify', 'run')
        self.assertNotRegex(process.out + process.error, 'damaged|cannot be verified')
        return process.out

    def assert_nothing_lost(self, config):
        """Goes on for a few steps without faults. The run then is that of one that was never disturbed, to the bit."""
        last = self.newest() + 3
        self.run_train(config, f'train.max_steps={last}', 'checkpoint.resume_with=train.max_steps')
        self.run_train(config, f'train.max_steps={last}', f'run.dir={self.folder / "whole"}', 'checkpoint.every=0')
        self.assertEqual([step for step, *_ in self.curve()], list(range(1, last + 1)))
        self.assertEqual(self.curve(), self.curve('whole'))
        self.assertEqual(self.final_state(), self.final_state('whole'))
        self.assertEqual(self.names(), [f'step-{step:08d}' for step in (last - 1, last)])


class Kills(DiskCase):
    def test_a_checkpoint_each_step(self):
        draw, config, log = random.Random(SEED), self.config(train={'max_steps': 10**7}), self.folder / 'log'
        for kill in range(TIMES):
            with self.subTest(f'kill {kill}; repeat with ZERO_DISK_SEED={SEED}'), log.open('w') as output:
                before = self.newest()
                process = subprocess.Popen([str(harness.TRAIN), str(config)], cwd=self.folder, stdout=output, stderr=output)
                try:
                    deadline = time.monotonic() + 120
                    while self.newest() < before + 2 and process.poll() is None and time.monotonic() < deadline:
                        time.sleep(0.002)
                    self.verified()  # beside the run, which prunes
                    time.sleep(draw.uniform(0, 0.2))
                finally:
                    process.kill()
                    process.wait()
                self.assertNotIn('error:', log.read_text())
                if before >= 0:
                    self.assertIn(f'resuming after step {before} ', log.read_text())
                self.assertGreaterEqual(self.newest(), before + 2)
                printed = self.verified()
                self.assertIn(f'step {self.newest()},', printed)
                self.assertGreaterEqual(max(step for step, *_ in self.whole_lines()), self.newest())
        self.assert_nothing_lost(config)

    def whole_lines(self):
        lines = (self.folder / 'run' / 'metrics.jsonl').read_text().split('\n')[:-1]
        return [(entry['step'],) for entry in map(json.loads, lines) if 'loss' in entry]


@unittest.skipIf(harness.SANITIZERS, 'preloads a library')
class FailingCalls(DiskCase):
    def test_writes_renames_and_removals_that_fail(self):
        """One of 25 calls fails. Most failures are gone when the call is repeated; the others end the run with a message."""
        config, ended, repeated = self.config(), 0, 0
        for start in range(TIMES):
            seed, before = 1000 * SEED + start, self.newest()
            with self.subTest(f'start {start}; repeat with ZERO_DISK_SEED={SEED}'):
                process = self.start(config, f'train.max_steps={max(before, 0) + 8}',
                                     environment=self.faulty(fails=25, seed=seed))
                out, error = process.communicate(timeout=300)
                if process.returncode == 2:  # the run did not begin
                    self.assertIn('error: cannot write files in the folder', error)
                else:
                    self.assertIn(process.returncode, (0, 1), error)
                self.assertEqual(error.count('train: error:'), process.returncode > 0, error)
                self.assertNotIn('damaged', error)
                if process.returncode == 0 or before >= 0:
                    self.assertGreaterEqual(self.newest(), before + 8 * (process.returncode == 0))
                    self.verified()
                ended += process.returncode > 0
                repeated += 'trying once more' in error or 'tried again' in error
        print(f'{TIMES} starts, {ended} ended by a failure, {repeated} with a failure that was repeated')
        self.assert_nothing_lost(config)

    def test_a_checkpoint_that_cannot_be_removed(self):
        config = self.config(train={'max_steps': 6})
        process = self.run_train(config, environment=self.faulty(keeps='checkpoints/step-00000002'))
        self.assertEqual(process.error.count('warning: '), 1, process.error)
        self.assertRegex(process.error, 'warning: cannot rename .*step-00000002 .*tried again with the next checkpoint')
        self.assertEqual(self.names(), ['step-00000002', 'step-00000005', 'step-00000006'])
        self.run_train(config, 'train.max_steps=7')
        self.assertEqual(self.names(), ['step-00000006', 'step-00000007'])

    def test_readers_of_a_checkpoint_that_is_pruned_meanwhile(self):
        """Each of these lists two checkpoints, and the run removes one before it is opened."""
        config = self.config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'})
        for words in (('checkpoint', 'verify', 'run'), ('inspect', 'run'), ('generate', 'run', '--prompt', 'a', '--tokens', 2),
                      ('eval', 'run', '--data', 'tokens.bin'), ('export', 'run', '--to', 'gguf', 'exported', '--force'),
                      ('plan', 'model.init_from=run'), (config, f'run.dir={self.folder / "other"}',
                                                        'model.init_from=run', 'train.max_steps=1')):
            if words[0] == 'plan':
                words = ('plan', config, *words[1:])
            for pruned in 5, 6:
                with self.subTest(words=words, pruned=pruned):
                    shutil.rmtree(self.folder / 'run', ignore_errors=True)
                    self.run_train(config, 'train.max_steps=6')
                    process = self.run_train(*words, environment=self.faulty(prunes=f'step-{pruned:08d}'))
                    self.assertNotRegex(process.out + process.error, 'damaged|incomplete|cannot be')
        shutil.rmtree(self.folder / 'run')
        self.run_train(config, 'train.max_steps=6')
        out = self.run_train('checkpoint', 'verify', 'run', environment=self.faulty(prunes='step-00000005')).out
        self.assertRegex(out, r'^[^\n]*step-00000006: [^\n]*: ok\n$')
        self.refuses('checkpoint', 'verify', 'run/checkpoints/step-00000006', code=1,
                     environment=self.faulty(prunes='step-00000006'), says=['removed each checkpoint before it could be read'])

    def test_a_slow_flush_is_not_a_hang(self):
        """The other rank waits for three times as long as a rank may hang, and the disk is named."""
        config = self.ranks_config(train={'max_steps': 3}, checkpoint={'every': 2})
        environment = ['env', *(f'{name}={value}' for name, value in self.faulty(seconds=15).items())]
        words = ['-n', 1, *environment, harness.TRAIN, config, 'run.hang_timeout_s=3', ':',
                 '-n', 1, harness.TRAIN, config, 'run.hang_timeout_s=3']
        process = self.finish(self.start_mpirun(*words), 0)
        self.assertEqual(process.error.count('warning: rank 0 has waited for the disk'), 1, process.error)
        self.assertRegex(process.error, r'waited for the disk for \d+ s: \S*run/')
        self.assertEqual(len(self.metrics()), 3)


class Folder(DiskCase):
    """The folder of a run is no longer its folder."""

    def while_it_runs(self, act, *arguments):
        config = self.config(train={'max_steps': 10**7})
        process = self.start(config, *arguments)
        self.wait_for_steps(3)
        process.send_signal(signal.SIGSTOP)
        try:
            act()
        finally:
            process.send_signal(signal.SIGCONT)
        _, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, error)
        self.assertEqual(error.count('error:'), 1, error)
        self.assertNotIn('could not be saved', error)
        return error

    def test_removed(self):
        for every in 1, 0:
            with self.subTest(every=every):
                error = self.while_it_runs(lambda: shutil.rmtree(self.folder / 'run'), f'checkpoint.every={every}')
                self.assertIn(f'the run folder {self.folder / "run"} was removed', error.replace(', or its lock,', ''))
                self.assertNotIn('is kept', error)
                self.assertFalse((self.folder / 'run').exists())

    def test_renamed(self):
        error = self.while_it_runs(lambda: (self.folder / 'run').rename(self.folder / 'moved'))
        self.assertRegex(error, f'was renamed to {self.folder / "moved"} .* run.dir={self.folder / "moved"}')
        self.assertFalse((self.folder / 'run').exists())
        self.run_train('checkpoint', 'verify', 'moved')
        last = self.curve('moved')[-1][0]
        self.run_train(self.config(), f'train.max_steps={last + 2}', f'run.dir={self.folder / "moved"}',
                       'checkpoint.resume_with=train.max_steps')
        self.assertEqual([step for step, *_ in self.curve('moved')], list(range(1, last + 3)))

    def test_replaced_by_another_run(self):
        def replace():
            (self.folder / 'run').rename(self.folder / 'moved')
            self.run_train(self.config('other.json'), 'train.seed=2', 'train.max_steps=2')
        error = self.while_it_runs(replace)
        self.assertIn('another one has its place', error)
        self.assertEqual(self.names(), ['step-00000001', 'step-00000002'])
        for path in self.checkpoints():
            self.assertEqual(json.loads((path / 'manifest.json').read_text())['config']['train']['seed'], 2)
        self.assertEqual(len(self.metrics()), 2)
        self.assertEqual((self.folder / 'run' / 'sessions.jsonl').read_text().count('"event": "end"'), 1)

    def test_metrics_removed_while_the_run_writes(self):
        """A warning, and the lines of the steps that follow."""
        process = self.start(self.config(train={'max_steps': 10**7}))
        self.wait_for_steps(3)
        process.send_signal(signal.SIGSTOP)
        (self.folder / 'run' / 'metrics.jsonl').unlink()
        process.send_signal(signal.SIGCONT)
        self.wait_for_steps(2)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, error)
        self.assertEqual(error.count('metrics.jsonl was removed while the run wrote to it'), 1, error)
        steps = [step for step, *_ in self.curve()]
        self.assertEqual(self.names()[-1], f'step-{steps[-1]:08d}')
        self.assertEqual(steps, list(range(steps[0], steps[-1] + 1)))

    def test_a_cut_metrics_file_is_warned_of(self):
        config = self.config()
        self.run_train(config)
        path = self.folder / 'run' / 'metrics.jsonl'
        lines = path.read_text().splitlines(keepends=True)
        for kept, missing in ((''.join(lines[:4])[:-5], 3), ('', 6)):
            path.write_text(kept)
            error = self.run_train(config, 'train.max_steps=7', f'run.dir={self.copied()}').error
            self.assertRegex(error, f'warning: .*metrics.jsonl was cut: it lacks the lines of {missing} of the steps up to 6')
        path.write_text(''.join(lines))
        self.assertNotIn('was cut', self.run_train(config, 'train.max_steps=7').error)

    def copied(self):
        target = pathlib.Path(self.folder / f'copy-{len(list(self.folder.iterdir()))}')
        shutil.copytree(self.folder / 'run', target)
        return target

    def test_what_killed_runs_left_is_removed(self):
        config = self.config()
        self.run_train(config)
        run = self.folder / 'run'
        left = ['config.json.tmp-123', 'metrics.jsonl.tmp-7', '.meeting-1-2', '.tmp-probe-0', 'samples/.tmp-probe-1',
                'checkpoints/.tmp-removed-step-00000003']
        (run / 'samples').mkdir(exist_ok=True)
        for name in left:
            (run / name).mkdir() if 'step' in name else (run / name).touch()
        (run / 'notes.tmp-1').touch()  # not a run's
        self.run_train(config, 'train.max_steps=7')
        self.assertEqual([name for name in left if (run / name).exists()], [])
        self.assertTrue((run / 'notes.tmp-1').exists())


if __name__ == '__main__':
    unittest.main()
