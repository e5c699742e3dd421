"""What a terminal shows: the progress line at several widths, while it is resized, and the answers to Ctrl-C."""
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

import harness
from harness import CommandCase, restore_signals, write_shard

FIELDS = {'step': r'step \d+/\d+', 'loss': r'loss \d+\.\d{4}', 'norm': r'norm [\d.]+', 'rate': r'[\d.]+[KM]? tok/s',
          'lr': r'lr [\d.e+-]+', 'ms': r'\d+ ms|[\d.]+ s( of about \d+ s)?', 'GEMM': r'\d+% of GEMM', 'memory': r'total [\d.]+ [MG]iB',
          'left': r'(\d+:)?\d+:\d\d left|\d+d \d\dh left'}
# Of a line that is drawn within a step, or between two, if that takes more than half a second.
WITHIN = {'micro-batch': r'micro-batch \d+/\d+', 'between': 'evaluation|checkpoint'}


class Terminal(CommandCase):
    """A run in a pseudo-terminal."""

    def open(self, *arguments, columns):
        self.screen, line = pty.openpty()
        self.addCleanup(os.close, self.screen)
        self.resize(columns)
        environment = dict(os.environ, OMP_WAIT_POLICY='passive', TERM='xterm', ASAN_OPTIONS='detect_leaks=1')
        self.process = subprocess.Popen([str(harness.TRAIN), *map(str, arguments)], cwd=self.folder, env=environment,
                                        stdin=subprocess.DEVNULL, stdout=line, stderr=line, preexec_fn=restore_signals)
        os.close(line)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.text = ''

    def resize(self, columns):
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack('4H', 24, columns, 0, 0))

    def read_until(self, enough, seconds=60):
        """Reads until enough(text); returns all text since the last call."""
        data, until = b'', time.monotonic() + seconds  # a read may end within a character
        while not enough(data.decode(errors='replace')):
            self.assertLess(time.monotonic(), until, data)
            try:
                data += os.read(self.screen, 65536)
            except OSError:  # closed by the last process
                break
        return data.decode(errors='replace')

    def lines(self):
        """The next progress lines, without those that were drawn before this call: of steps until the one after the last in
        metrics.jsonl, to which a step is written after its line was drawn."""
        self.wait_for_steps(1)
        drawn = self.metrics()[-1]['step'] + 1

        def later(text):
            lines = re.findall(r'\r(step (\d+)[^\r\n\x1b]*)\x1b\[K', text)
            return [line for line, step in lines if int(step) > drawn]

        return later(self.read_until(lambda text: len(later(text)) >= 30))

    def check(self, line, columns, *names):
        """The line is narrower than the terminal, and has whole fields: these, unless it was drawn within a step."""
        self.assertLess(len(line), columns)
        patterns = FIELDS | WITHIN
        found = {next((name for name, pattern in patterns.items() if re.fullmatch(pattern, field)), field)
                 for field in line.split('  ')}
        self.assertEqual(found - set(patterns), set(), line)
        if not found & set(WITHIN):
            self.assertLessEqual(set(names), found, line)

    def test_widths_and_resizing(self):
        config = self.tiny_config(train={'max_steps': 100000}, checkpoint={'every': 100})
        self.open(config, columns=120)
        four = 'step', 'loss', 'rate', 'left'
        for columns, names in (130, FIELDS), (50, four[:3]), (80, (*four, 'memory')), (60, four), (200, FIELDS):
            self.resize(columns)
            for line in self.lines():
                self.check(line, columns, *names)
        before = len(self.checkpoints())
        self.process.send_signal(signal.SIGINT)
        text = self.read_until(lambda text: False)
        self.assertEqual(self.process.wait(timeout=60), 128 + signal.SIGINT)
        self.assertRegex(text, 'finishing (this step|the current work|checkpoint).*; a second signal stops at once\r\n')
        self.assertIn('; resume with: ./train', text)
        self.assertGreaterEqual(len(self.checkpoints()), min(before, 1))

    def without_orders(self, text):
        """Checks that a terminal got no control characters but those of the progress line."""
        plain = re.sub(r'\r(?=\n)|\r(?=step |evaluation|\x1b\[K)|\x1b\[K', '', text)
        self.assertNotRegex(plain, r'[\x00-\x08\x0b-\x1f\x7f-\x9f]')
        return plain

    def test_control_characters_are_escaped(self):
        """What a model writes and what files say gives a terminal no orders. Pipes and files get all bytes as they are."""
        config = self.tiny_config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'},
                                  train={'sample_every': 3, 'sample_prompt': 'a\x1b]0;title\x07b', 'sample_tokens': 16})
        self.open(config, columns=100)
        self.assertIn('sample: a\\x1b]0;title\\x07b', self.without_orders(self.read_until(lambda text: False)))
        self.assertEqual(self.process.wait(timeout=60), 0)
        sample = (self.folder / 'run' / 'samples' / 'step-00000006.txt').read_bytes()
        self.assertTrue(sample.startswith(b'a\x1b]0;title\x07b'))
        prompt = 'x\x1b[31m\x9by\tz'
        words = 'generate', 'run', '--prompt', prompt, '--tokens', 200, '--temperature', 2
        self.open(*words, columns=100)
        self.assertIn('x\\x1b[31m\\xc2\\x9by', self.without_orders(self.read_until(lambda text: False)))
        self.process.wait(timeout=60)
        with open(self.folder / 'out', 'wb') as out:
            subprocess.run([str(harness.TRAIN), *map(str, words)], cwd=self.folder, stdout=out, stderr=subprocess.DEVNULL, check=True)
        self.assertTrue((self.folder / 'out').read_bytes().startswith(prompt.encode()))
        self.assertRegex((self.folder / 'out').read_bytes()[len(prompt):], rb'[\x00-\x08\x0b-\x1f\x7f]')  # the model wrote some
        (self.folder / '\x1b[2Jname.bin').write_bytes((self.folder / 'tokens.bin').read_bytes())
        for words, shown in ((('inspect', '\x1b[2Jname.bin'), '\\x1b[2Jname'), ((config, 'train.\x1b[2Jx=1'), '\\x1b[2Jx')):
            self.open(*words, columns=100)
            self.assertIn(shown, self.without_orders(self.read_until(lambda text: False)))
            self.process.wait(timeout=60)

    def test_micro_batches_and_a_second_signal(self):
        """A step of 100,000 micro-batches takes seconds."""
        write_shard(self.folder / 'tokens.bin', [1, 2, 3, 4] * 50000)
        config = self.tiny_config(train={'max_steps': 3, 'micro_batch_size': 1, 'train_batch_size': 100000, 'seq_len': 8})
        self.open(config, columns=80)
        text = self.read_until(lambda text: text.count('micro-batch') > 1)
        self.assertRegex(text, r'\rstep 0/3  micro-batch \d+/100000  ')
        self.process.send_signal(signal.SIGINT)
        text = self.read_until(lambda text: 'at once\r\n' in text)  # the end of a line can come in a read of its own
        self.assertRegex(text, r'finishing this step \(about (\d+ s|[\d:]+)\); a second signal stops at once\r\n')
        time.sleep(0.6)  # two signals within half a second are one request
        self.process.send_signal(signal.SIGINT)
        text = self.read_until(lambda text: False)
        self.assertEqual(self.process.wait(timeout=60), 128 + signal.SIGINT)
        self.assertIn('stopped at once, before the first checkpoint: nothing of this run is kept\r\n', text)


if __name__ == '__main__':
    unittest.main()
