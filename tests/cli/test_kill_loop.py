"""A run that is killed at random moments: each start resumes from the newest checkpoint, and the final state has the bits
of an undisturbed run.

ZERO_KILL_SEED=N repeats one sequence of signals. A failing test prints its seed."""
import os
import random
import re
import signal
import subprocess
import time
import unittest

import harness
from harness import CommandCase, pseudo_random_tokens, write_shard

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STARTS = 200 if harness.FULL else 8
SLOWER = 6 if harness.SANITIZERS else 1


@unittest.skipIf(harness.SANITIZERS and not harness.FULL, 'with sanitizers only in the full run')
class KillLoop(CommandCase):
    def loop_config(self):
        for name, n, seed in (('text.bin', 40000, 1), ('val.bin', 4000, 2)):
            write_shard(self.folder / name, pseudo_random_tokens(n, 256, seed))
        return self.tiny_config(
            model={'vocab_size': 257},
            data={'train': str(self.folder / 'text.bin'), 'val': str(self.folder / 'val.bin'), 'tokenizer': 'bytes'},
            train={'max_steps': 10000000, 'eval_every': 50, 'eval_steps': 5, 'sample_every': 70, 'sample_tokens': 40},
            scheduler={'type': 'constant'}, checkpoint={'every': 37, 'keep': 3})

    def newest_step(self):
        folder = self.folder / 'run' / 'checkpoints'
        return int(self.checkpoints()[-1].name.split('-')[1]) if folder.exists() and self.checkpoints() else 0

    def wait_for(self, process, log, text):
        for _ in range(3000):
            if text in log.read_text(errors='replace') or process.poll() is not None:
                return
            time.sleep(0.002)

    def send(self, process, draw, log):
        """Sends one or two signals; half of the time while the run is loading its checkpoint."""
        if draw.random() < 0.5:
            self.wait_for(process, log, 'resuming after')
            time.sleep(draw.uniform(0, 0.02 * SLOWER))
        else:
            time.sleep(draw.uniform(0, 0.4 * SLOWER))
        first = draw.choice(SIGNALS)
        process.send_signal(first)
        if draw.random() < 0.2:
            time.sleep(draw.uniform(0, 0.01))
            second = draw.choice(SIGNALS)
            process.send_signal(second)
            return first, second
        return (first,)

    def start_and_kill(self, config, draw, log):
        before = self.newest_step()
        with log.open('w') as output:
            process = subprocess.Popen([str(harness.TRAIN), str(config)], cwd=self.folder, stdout=output, stderr=output,
                                       env=dict(os.environ, OMP_WAIT_POLICY='passive'), preexec_fn=harness.restore_signals)
            try:
                sent = self.send(process, draw, log)
                code = process.wait(timeout=60 * SLOWER)
            finally:
                process.kill()
        printed = log.read_text(errors='replace')  # samples may contain invalid UTF-8
        # A signal that kills; 128 + its number: stopped and saved, or ended at once by a second one.
        self.assertIn(code, {-s for s in sent} | {128 + s for s in sent if s != signal.SIGKILL}, f'{sent}\n{printed}')
        self.assertNotRegex(printed, 'Sanitizer|damaged|corrupted|error:')
        stopped = re.search(r'stopped after step (\d+)', printed)
        if code > 0 and len(sent) == 1:
            self.assertTrue(stopped, printed)
        if stopped:
            self.assertEqual(self.newest_step(), int(stopped[1]))
        resumed = re.search(r'resuming after step (\d+)', printed)
        if resumed:
            self.assertEqual(int(resumed[1]), before, printed)
        elif re.search(r'^step 1/', printed, re.M):
            self.assertEqual(before, 0, printed)
        self.assertGreaterEqual(self.newest_step(), before)
        return bool(resumed)

    def test_every_start_resumes_and_the_end_has_the_same_bits(self):
        seed = int(os.environ.get('ZERO_KILL_SEED', 1))
        draw = random.Random(seed)
        config, log = self.loop_config(), self.folder / 'log'
        n_resumed = 0
        for start in range(STARTS):
            with self.subTest(f'start {start}; repeat with ZERO_KILL_SEED={seed}'):
                n_resumed += self.start_and_kill(config, draw, log)
        self.assertGreater(n_resumed, 0, 'no start got as far as resuming')
        final = self.start(config)
        self.wait_for_steps(len(self.curve()) + 100)
        final.send_signal(signal.SIGTERM)
        self.finish(final, 128 + signal.SIGTERM)
        last = self.newest_step()
        self.run_train(config, f'train.max_steps={last}', f'run.dir={self.folder / "whole"}', 'checkpoint.every=0')
        self.assertEqual(self.curve(), self.curve('whole'))
        self.assertEqual(self.final_state(), self.final_state('whole'))
        print(f'{STARTS} starts, {n_resumed} resumed, {last} steps')


if __name__ == '__main__':
    unittest.main()
