"""./train runs: the states of runs, and what the list has of them."""
import json
import resource
import shutil
import signal
import unittest

from harness import CommandCase, restore_signals
from runs_written import smooth_loss, write_run


class Runs(CommandCase):
    def listed(self, folder='.'):
        return {run['path']: run for run in json.loads(self.run_train('runs', folder, '--json').out)}

    def state(self):
        return self.listed('run')['run']['state']

    def test_states_of_a_run(self):
        config = self.tiny_config(train={'max_steps': 1000000}, checkpoint={'every': 0})
        process = self.start(config, preexec_fn=restore_signals)
        self.addCleanup(process.kill)
        self.wait_for_steps(3)
        run = self.listed('run')['run']
        self.assertEqual((run['state'], run['total']), ('running', 1000000))
        self.assertGreater(run['seconds_left'], 0)
        self.assertLess(run['age_s'], 60)
        self.assertGreater(run['disk_bytes'], 1000)
        process.kill()
        process.communicate()
        self.assertEqual(self.state(), 'stale')
        shutil.rmtree(self.folder / 'run')
        process = self.start(config, preexec_fn=restore_signals)
        self.addCleanup(process.kill)
        self.wait_for_steps(3)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, out + error)
        self.assertEqual(self.state(), 'stopped')
        done = self.listed('run')['run']['step']
        self.run_train(config, f'train.max_steps={done + 2}', 'checkpoint.resume_with=train.max_steps')
        run = self.listed('run')['run']
        self.assertEqual((run['state'], run['step'], run['total'], run['seconds_left']), ('finished', done + 2, done + 2, None))
        last = self.metrics()[-100:]
        self.assertAlmostEqual(run['loss'], sum(step['loss'] for step in last) / len(last))

    def test_a_run_that_fails(self):
        """At a limit on the size of files: the message is kept."""
        process = self.run_train(self.tiny_config(train={'max_steps': 100}), code=1,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
        run = self.listed('run')['run']
        self.assertEqual(run['state'], 'failed')
        self.assertIn(run['message'][:200], process.error)
        self.assertIn('run failed: ' + run['message'][:40], self.run_train('runs', 'run').out)

    def test_the_list(self):
        write_run(self.folder / 'runs' / 'a', 200, every=50)
        write_run(self.folder / 'runs' / 'deep' / 'er' / 'b\x1b[31m', 20, end='stopped', every=0)
        (self.folder / 'runs' / 'not-a-run').mkdir()
        (self.folder / 'runs' / 'circle').symlink_to('.')
        runs = self.listed('runs')
        self.assertEqual(set(runs), {'runs/a', 'runs/deep/er/b\ufffd[31m'})
        a = runs['runs/a']
        self.assertEqual((a['state'], a['step'], a['val_loss']), ('finished', 200, 7.5))
        self.assertAlmostEqual(a['loss'], sum(smooth_loss(step) for step in range(101, 201)) / 100, places=5)
        self.assertIsNone(runs['runs/deep/er/b\ufffd[31m']['val_loss'])
        self.assertEqual(set(self.listed('runs/')), set(runs))
        out = self.run_train('runs').out  # the default folder
        self.assertNotIn('\x1b', out)
        self.assertRegex(out, r'RUN +STATE +STEP +LOSS +VAL LOSS')
        self.assertRegex(out, rf'runs/a +finished +200/200 +{a["loss"]:.4f} +7\.5000 +- +\d+ \w+ +[\d.]+ KiB')
        self.assertEqual(len({len(line) for line in out.splitlines()}), 1, out)
        self.assertEqual(self.run_train('runs', 'runs/not-a-run').out, 'no runs in runs/not-a-run\n')
        self.assertEqual(json.loads(self.run_train('runs', 'runs/not-a-run', '--json').out), [])
        self.refuses('runs', 'absent', says=['absent is not a folder'])

    def test_an_evaluation_far_back(self):
        """Evaluations before the end of the file that the list reads first."""
        run = write_run(self.folder / 'far', 10, every=5)
        filler = json.dumps({'note': 'x' * 990}) + '\n'
        with open(run / 'metrics.jsonl', 'a') as file:
            for _ in range(9):
                file.write(filler * 1000)
            file.write('{"step": 11, "wall_time": 1700000100, "loss": 3}\n')
        config = json.loads((run / 'config.json').read_text())
        (run / 'config.json').write_text(json.dumps(config | {'data': {'val': ['val.bin']}}))
        found = self.listed('far')['far']
        self.assertEqual((found['step'], found['val_loss']), (11, 7.5))


if __name__ == '__main__':
    unittest.main()
