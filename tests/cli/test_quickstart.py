"""scripts/quickstart.sh in a clean clone, in a folder whose name has spaces, with a read-only home directory."""
import json
import os
import shutil
import signal
import subprocess
import unittest

import harness
from harness import CommandCase, ROOT


class Quickstart(CommandCase):
    def start(self, *overrides):
        home = self.folder / 'home'
        home.mkdir(exist_ok=True)
        home.chmod(0o500)
        environment = dict(os.environ, HOME=str(home))
        if not harness.FULL:
            environment['CUDA'] = 'no'
        # A sample of a model that has hardly trained may not be UTF-8.
        return subprocess.Popen(['scripts/quickstart.sh', *overrides], cwd=self.clone, text=True, errors='replace', stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, env=environment, preexec_fn=harness.restore_signals, start_new_session=True)

    def quickstart(self, *overrides):
        process = self.start(*overrides)
        out, _ = process.communicate(timeout=900)
        self.assertEqual(process.returncode, 0, out)
        return out

    def check_that_ctrl_c_stops_it(self):
        process = self.start('train.max_steps=1000000', 'run.dir=runs/stopped')
        self.wait_for_steps(1, self.clone / 'runs' / 'stopped')
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out)
        self.assertIn('run the same command again to resume it', out.splitlines()[-1])
        self.assertNotIn('evaluation on the held-out', out)

    def test_from_a_clean_clone_to_samples_and_again(self):
        self.clone = self.folder / 'a clean clone'
        subprocess.run(['git', 'clone', '-q', str(ROOT), str(self.clone)], check=True)
        if not harness.FULL:
            self.copy_objects()
        # A busy machine may need more than the preset's five minutes, which would end the run before its last step.
        budget = ['train.max_steps=16', 'train.max_minutes=60', 'scheduler.warmup_steps=4', 'train.eval_every=8']
        out = self.quickstart(*budget)
        self.assertIn('bits per byte', out)
        self.assertIn('In the beginning', out)
        self.assertIn('runs/quickstart', out)
        written = {p: p.stat().st_mtime_ns for p in self.files()}
        again = self.quickstart(*budget)
        self.assertIn('train.max_steps', again)  # complete: names the option to raise
        kept = {p: p.stat().st_mtime_ns for p in self.files()}
        self.assertEqual(written, kept)
        self.check_that_ctrl_c_stops_it()
        if harness.FULL:
            self.check_that_state_dtypes_learn_as_well()

    def copy_objects(self):
        """The short test run has shown that a clean clone builds: here only what differs without CUDA is built again."""
        shutil.copytree(ROOT / 'build' / 'release', self.clone / 'build' / 'release', ignore=shutil.ignore_patterns('tests'))
        for path in (self.clone / 'build').rglob('*'):
            os.utime(path)  # newer than the clone's sources

    def check_that_state_dtypes_learn_as_well(self):
        """At one step of one schedule: the preset's five minutes would end a run on a busy machine early."""
        losses = {}
        for state in 'fp32', 'bf16', 'int8':
            run = self.clone / f'runs/{state}'
            subprocess.run(['./train', 'configs/quickstart.json', 'device=cpu', 'train.max_steps=300', 'train.max_minutes=0',
                            'train.sample_every=0', f'optimizer.state_dtype={state}', f'run.dir={run}'], cwd=self.clone, check=True,
                           stdout=subprocess.DEVNULL, timeout=3600)
            lines = map(json.loads, (run / 'metrics.jsonl').read_text().splitlines())
            last = [line for line in lines if 'val_loss' in line][-1]
            self.assertEqual(last['step'], 300)
            losses[state] = last['val_loss']
        print(f'quickstart, 300 steps, loss by state_dtype: {losses}')
        for state in 'bf16', 'int8':
            self.assertLess(abs(losses[state] - losses['fp32']) / losses['fp32'], 0.01)

    def files(self):
        """The files that a second run must not rewrite: program, corpus, checkpoints."""
        for pattern in 'build/release/train', 'corpus/kjv/*', 'runs/quickstart/checkpoints/*/*':
            yield from self.clone.glob(pattern)


if __name__ == '__main__':
    unittest.main()
