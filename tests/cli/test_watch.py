"""./train watch: the screen at several sizes, what it follows, and a terminal that is as before."""
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

import harness
from harness import CommandCase, restore_signals
from runs_written import step_line, write_run

SEQUENCE = re.compile(r'\x1b\[[?0-9;]*[a-zA-Z]')
ENTER, LEAVE = '\x1b[?1049h', '\x1b[?1049l'


class Watch(CommandCase):
    """./train watch in a pseudo-terminal."""

    def open(self, run, columns=80, rows=24, locale='C.UTF-8'):
        self.screen, self.line = pty.openpty()
        self.addCleanup(os.close, self.screen)
        self.addCleanup(os.close, self.line)
        self.settings = termios.tcgetattr(self.line)
        self.columns, self.rows = columns, rows
        self.resize(columns, rows)
        environment = dict(os.environ, TERM='xterm', LC_ALL=locale, ASAN_OPTIONS='detect_leaks=1')
        # The terminal controls a session of its own, so that it gets the signals of its keys and of resizing.
        self.process = subprocess.Popen([str(harness.TRAIN), 'watch', run, '--every', '0.1'], cwd=self.folder, env=environment, stdin=self.line,
                                        stdout=self.line, stderr=self.line, start_new_session=True,
                                        preexec_fn=lambda: (restore_signals(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.text = ''
        self.decoder = codecs.getincrementaldecoder('utf-8')('replace')  # a read may end within a character

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack('4H', rows, columns, 0, 0))

    def frame(self, enough, seconds=60):
        """The lines of the first whole frame for which enough(text) holds."""
        until = time.monotonic() + seconds
        while True:
            frames = self.text.split('\x1b[H')
            for whole in frames[1:-1]:
                lines = SEQUENCE.sub('', whole).replace('\r', '').rstrip('\n').split('\n')
                if enough('\n'.join(lines)):
                    self.text = '\x1b[H' + frames[-1]
                    return lines
            self.text = '\x1b[H' + frames[-1] if len(frames) > 1 else self.text
            self.assertLess(time.monotonic(), until, self.text)
            if select.select([self.screen], [], [], 1)[0]:
                self.text += self.decoder.decode(os.read(self.screen, 65536))

    def fits(self, lines):
        self.assertLessEqual(len(lines), self.rows)
        self.assertLessEqual(max(map(len, lines)), self.columns, lines)

    def ends(self, act):
        """The program ends after act(), with the terminal as it was."""
        os.set_blocking(self.screen, False)
        act()
        self.assertEqual(self.wait(), 0)
        self.assertTrue(self.text.endswith('\x1b[?25h' + LEAVE), repr(self.text[-60:]))
        self.assertEqual(termios.tcgetattr(self.line), self.settings)

    def wait(self):
        until = time.monotonic() + 60
        while self.process.poll() is None:
            self.assertLess(time.monotonic(), until)
            self.drain()
            time.sleep(0.01)
        self.drain()
        return self.process.returncode

    def drain(self):
        try:
            while True:
                self.text += self.decoder.decode(os.read(self.screen, 65536))
        except BlockingIOError:
            pass

    def test_a_run_from_before_its_beginning_to_its_end(self):
        self.open('run')
        self.fits(self.frame(lambda text: 'run  not begun' in text))
        write_run(self.folder / 'run', 300, every=100, end=None)
        lines = self.frame(lambda text: 'stale  step 300/300 (100%)' in text)
        self.fits(lines)
        shown = '\n'.join(lines)
        self.assertRegex(shown, r'val 7\.5000  best \d\.\d{4}')
        self.assertIn('training loss', shown)
        self.assertRegex(shown, '[\u2801-\u28ff]{3}')
        self.assertIn('●', shown)  # evaluations
        (self.folder / 'run' / 'samples').mkdir()
        (self.folder / 'run' / 'samples' / 'step-00000300.txt').write_text('In the\x1b[2J beginning €' + 'x' * 500)
        lines = self.frame(lambda text: 'sample after step 300' in text)
        self.fits(lines)
        self.assertIn('In the\ufffd[2J beginning €xxx', '\n'.join(lines))
        with open(self.folder / 'run' / 'metrics.jsonl', 'a') as file:
            file.write(step_line(301, 1.2345) + '\n')
        self.frame(lambda text: 'step 301' in text and 'loss 1.2345' in text)
        # A resumed run replaces the file.
        (self.folder / 'run' / 'new').write_text(step_line(1, 4.4444) + '\n')
        os.replace(self.folder / 'run' / 'new', self.folder / 'run' / 'metrics.jsonl')
        self.frame(lambda text: 'step 1/300' in text and 'loss 4.4444' in text)
        with open(self.folder / 'run' / 'sessions.jsonl', 'a') as file:
            file.write('{"event": "end", "wall_time": 1.7e9, "step": 1, "total": 300, "state": "failed", "message": "disk full"}\n')
        self.frame(lambda text: 'failed  step 1/300' in text and 'disk full' in text)
        self.ends(lambda: os.write(self.screen, b'q'))

    def test_sizes_and_keys(self):
        write_run(self.folder / 'run', 300, every=100)
        self.open('run', locale='C')
        lines = self.frame(lambda text: 'training loss' in text)
        self.fits(lines)
        self.assertTrue('\n'.join(lines).isascii(), lines)
        for columns, rows in (30, 10), (20, 4), (5, 2), (1, 1), (200, 60), (80, 24):
            self.resize(columns, rows)
            before = self.frame(lambda text: True)  # one that may be of the size before
            while len(before) > rows or max(map(len, before)) > columns:
                before = self.frame(lambda text: True)
            self.fits(self.frame(lambda text, rows=rows: rows < 60 or 'learning rate' in text))
        os.write(self.screen, b'\t')
        self.frame(lambda text: 'gradient norm' in text and 'training loss' not in text)
        os.write(self.screen, b'l')
        self.frame(lambda text: 'gradient norm, log scale' in text)
        os.write(self.screen, b'z')
        self.frame(lambda text: re.search(r'^ {8}225 +300$', text, re.MULTILINE))
        os.write(self.screen, b'\x1b[A\x00?')  # other keys
        self.frame(lambda text: True)
        self.ends(lambda: os.write(self.screen, b'\x03'))

    def test_signals_and_a_closed_terminal(self):
        write_run(self.folder / 'run', 30, every=10)
        for signal_ in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
            self.open('run')
            self.frame(lambda text: 'training loss' in text)
            self.ends(lambda signal_=signal_: self.process.send_signal(signal_))
        self.open('run')
        self.frame(lambda text: 'training loss' in text)
        # The terminal's window is closed; its descriptor stays valid for the cleanup.
        os.close(self.line)
        self.line = os.open(os.devnull, os.O_RDWR)
        os.dup2(self.line, self.screen)
        self.assertEqual(self.process.wait(timeout=60), 0)

    def test_without_a_terminal(self):
        write_run(self.folder / 'run', 300, every=100, end='failed')
        out = self.run_train('watch', 'run').out
        self.assertTrue(out.startswith('run: failed  step 300/300 (100%)\n  loss '), out)
        self.assertIn('no space left', out)
        self.assertNotIn('\x1b', out)
        (self.folder / 'empty').mkdir()
        self.assertEqual(self.run_train('watch', 'empty').out, 'empty: not begun  step 0\n')
        (self.folder / 'file').write_text('')
        self.refuses('watch', says=['no run named'])
        self.refuses('watch', 'file', says=['file is a file'])
        self.refuses('watch', 'absent', says=['absent is not a folder'])
        self.refuses('watch', 'run', '--every', '0', says=['--every'])


if __name__ == '__main__':
    unittest.main()
