"""Failures of standard output: a full disk is an error, a closed pipe is not."""
import os
import shutil
import subprocess
import unittest

import harness
from harness import CommandCase


class Output(CommandCase):
    def commands(self):
        """Every command that prints to standard output, with arguments."""
        config = self.tiny_config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'})
        self.run_train(config)
        return {
            'usage': ['help'], 'help': ['help', 'train'], 'version': ['--version'], 'options': ['options'],
            'check': ['check', config], 'plan': ['plan', config], 'plan --json': ['plan', config, '--json'],
            'generate': ['generate', 'run', '--tokens', 4], 'eval': ['eval', 'run', '--data', 'tokens.bin'],
            'inspect run': ['inspect', 'run'], 'inspect shard': ['inspect', 'tokens.bin'],
            'encode': ['tokenizer', 'encode', harness.ROOT / 'README.md', '--tokenizer', 'bytes'],
            'decode': ['tokenizer', 'decode', 7, 8, '--tokenizer', 'bytes'],
            'checkpoint verify': ['checkpoint', 'verify', 'run'],
            'devices': ['devices'],
        }

    def finish_into(self, output, words):
        process = subprocess.run([str(harness.TRAIN), *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=subprocess.PIPE, encoding='utf-8', timeout=300)
        self.assertNotIn('Sanitizer', process.stderr)
        return process

    def test_threads_that_cannot_be_meant(self):
        """OMP_NUM_THREADS that is no number, and more threads than processors: one warning each."""
        cores = len(os.sched_getaffinity(0))
        config = self.tiny_config(run={'threads': 0}, train={'max_steps': 1})
        for value, warning in (('abc', 'OMP_NUM_THREADS is "abc", expected a number of threads from 1 to 4096; it is ignored'),
                               (cores + 1, f'{cores + 1} threads are more than the ')):
            error = self.run_train(config, 'checkpoint.resume=auto', environment={'OMP_NUM_THREADS': str(value)}).error
            self.assertEqual((error.count('warning: '), error.count('warning: ' + warning)), (1, 1), error)
            shutil.rmtree(self.folder / 'run')

    def test_a_full_disk(self):
        for name, words in self.commands().items():
            with self.subTest(name), open('/dev/full', 'w') as full:
                process = self.finish_into(full, words)
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertEqual(process.stderr.count('error:'), 1, process.stderr)
                self.assertIn('standard output', process.stderr)

    def test_a_disk_that_fills_while_printing(self):
        """The first 8,192 of about 40,000 bytes fit. The error must be kept: the last flush, of an empty buffer, succeeds."""
        def limit():
            import resource
            import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        for words in ['options'], ['plan', self.tiny_config(), '--json']:
            with self.subTest(words[0]), open(self.folder / 'out', 'w') as file:
                process = subprocess.run([str(harness.TRAIN), *map(str, words)], cwd=self.folder, stdout=file,
                                         stderr=subprocess.PIPE, encoding='utf-8', preexec_fn=limit, timeout=300)
                whole = self.run_train(*words).out
                fits = len(whole.encode()) <= 8192
                self.assertEqual(process.returncode, 0 if fits else 1, process.stderr)
                self.assertTrue(fits or 'standard output' in process.stderr)
        self.assertGreater(len(self.run_train('options').out.encode()), 8192)

    def test_a_closed_pipe(self):
        for name, words in self.commands().items():
            with self.subTest(name):
                reader, writer = os.pipe()
                os.close(reader)
                process = self.finish_into(writer, words)
                os.close(writer)
                self.assertEqual(process.returncode, 0, process.stderr)

    def test_no_standard_output(self):
        """Training prints nothing to standard output, so it runs without one."""
        config = self.tiny_config()
        for words, code in ((config,), 0), (('options',), 1):
            process = subprocess.run(['sh', '-c', 'exec "$@" >&-', 'sh', str(harness.TRAIN), *map(str, words)],
                                     cwd=self.folder, stderr=subprocess.PIPE, encoding='utf-8', timeout=300)
            self.assertEqual(process.returncode, code, process.stderr)


if __name__ == '__main__':
    unittest.main()
