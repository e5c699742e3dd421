"""File system faults: unusable files are refused at the start, and later failures lose no progress."""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

from harness import CommandCase, pseudo_random_tokens, restore_signals, write_shard


class Folders(CommandCase):
    """/proc is the read-only folder, because root, who may run the tests, can write everywhere else."""

    def refuses_at_start(self, config, *arguments, says):
        self.refuses(config, *arguments, says=says)
        self.assertFalse((self.folder / 'run' / 'metrics.jsonl').exists(), 'the run began')

    def test_folders_that_cannot_be_used(self):
        config = self.tiny_config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'}, train={'sample_every': 3})
        for name in 'checkpoints', 'samples':
            for kind in 'file', 'unwritable':
                with self.subTest(name=name, kind=kind):
                    path = self.folder / 'run' / name
                    path.parent.mkdir()
                    path.touch() if kind == 'file' else path.symlink_to('/proc')
                    self.refuses_at_start(config, says=[path])
                    if name == 'samples':
                        path.unlink()
                        path.touch()
                        self.run_train(config, 'train.sample_every=0')  # no samples, no folder needed
                    shutil.rmtree(path.parent)
        self.run_train(config)
        self.assertFalse(list((self.folder / 'run').glob('**/.tmp-*')))

    def test_fifos_and_devices_in_place_of_files(self):
        config = self.tiny_config()
        for name in 'metrics.jsonl', 'log.txt', 'lock', 'config.json':
            for kind in 'FIFO', 'device':
                with self.subTest(name=name, kind=kind):
                    path = self.folder / 'run' / name
                    path.parent.mkdir()
                    os.mkfifo(path) if kind == 'FIFO' else path.symlink_to('/dev/zero')
                    process = self.start(config)
                    try:
                        _, error = process.communicate(timeout=60)
                    finally:
                        process.kill()
                    self.assertEqual(process.returncode, 2, error)
                    self.assertIn(f'{path} is a {kind}', error)
                    shutil.rmtree(path.parent)
        data = self.folder / 'fifo.bin'
        os.mkfifo(data)
        self.refuses(config, f'data.train={data}', says=[f'{data} is a FIFO'])


class Signals(CommandCase):
    def test_sighup_saves_unless_it_is_ignored(self):
        config = self.tiny_config(train={'max_steps': 1000000})
        process = self.start(config, preexec_fn=restore_signals)
        self.wait_for_steps(2)
        process.send_signal(signal.SIGHUP)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGHUP, error)
        self.assertEqual(self.checkpoints()[-1].name, f'step-{len(self.curve()):08d}')
        shutil.rmtree(self.folder / 'run')
        process = self.start(config, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps(2)
        process.send_signal(signal.SIGHUP)
        self.wait_for_steps(len(self.curve()) + 50)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, error)

    def test_threads_that_compute_are_not_interrupted(self):
        """A signal frame on the stack of oneDNN's GEMM corrupts it, so only one thread may receive signals."""
        process = self.start(self.tiny_config(train={'max_steps': 1000000}), preexec_fn=restore_signals)
        self.wait_for_steps(2)
        wanted = sum(1 << number - 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
        masks = {}
        for status in pathlib.Path(f'/proc/{process.pid}/task').glob('*/status'):
            masks[int(status.parent.name)] = int(re.search(r'^SigBlk:\s*(\w+)', status.read_text(), re.M)[1], 16) & wanted
        self.assertEqual(masks[process.pid], wanted)
        self.assertEqual(sorted(masks.values()), [0] + [wanted] * (len(masks) - 1))
        self.assertGreater(len(masks), 2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.communicate(timeout=60) and process.returncode, 128 + signal.SIGTERM)


class Pipes(CommandCase):
    """Commands that wait for the text of a FIFO end at the first signal."""

    def test_sigterm(self):
        os.mkfifo(self.folder / 'text')
        commands = (('tokenize', 'text', '--tokenizer', 'bytes', '--out', 'out'), ('tokenize', '--raw', 'text', '--out', 'out'),
                    ('tokenizer', 'train', 'text', '--out', 'my.tiktoken'), ('tokenizer', 'encode', 'text', '--tokenizer', 'bytes'))
        for words in commands:
            for writes in False, True:
                with self.subTest(words=words, writes=writes):
                    process = self.start(*words, stdin=subprocess.DEVNULL)
                    self.addCleanup(process.communicate)
                    self.addCleanup(process.kill)
                    writer = open(self.folder / 'text', 'wb') if writes else None  # returns when the command has opened it
                    if writer:
                        writer.write(b'some text\n')
                        writer.flush()
                    else:
                        self.wait_until_blocked(process.pid)
                    process.send_signal(signal.SIGTERM)
                    self.assertIn(process.wait(timeout=60), (-signal.SIGTERM, 128 + signal.SIGTERM))
                    if writer:
                        writer.close()

    def wait_until_blocked(self, process):
        """Until it waits in the open of the FIFO, or in what it does instead."""
        for _ in range(1200):
            if 'S (sleeping)' in pathlib.Path(f'/proc/{process}/status').read_text():
                return
            time.sleep(0.05)
        self.fail('the command does not wait for the FIFO')


class LaterFailures(CommandCase):
    """A failure after the first step ends the run with the original message and a checkpoint."""

    def ends_saved(self, process, *says):
        _, error = process.communicate(timeout=120)
        self.assertNotIn('Sanitizer', error)
        self.assertEqual(process.returncode, 1, error)
        messages = [line for line in error.splitlines() if 'error:' in line]
        self.assertEqual(len(messages), 1, error)
        for part in says:
            self.assertIn(str(part), messages[0])
        step = len(self.curve())
        self.assertEqual(self.checkpoints()[-1].name, f'step-{step:08d}')
        self.run_train('checkpoint', 'verify', 'run')
        return step

    def long_run(self, **sections):
        sections['train'] = {'max_steps': 1000000, **sections.get('train', {})}
        return self.tiny_config(**sections)

    def test_a_shard_that_is_truncated(self):
        config = self.long_run()
        process = self.start(config)
        self.wait_for_steps(2)
        os.truncate(self.folder / 'tokens.bin', 1024)
        self.ends_saved(process, 'tokens.bin was truncated while in use')

    def test_evaluation_data_that_is_truncated(self):
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(4000, 61, seed=2))
        process = self.start(self.long_run(train={'eval_every': 7}, data={'val': str(self.folder / 'val.bin')}))
        self.wait_for_steps(2)
        os.truncate(self.folder / 'val.bin', 1024)
        self.assertEqual(self.ends_saved(process, 'val.bin was truncated') % 7, 0)

    def test_samples_that_cannot_be_written(self):
        process = self.start(self.long_run(model={'vocab_size': 257}, data={'tokenizer': 'bytes'},
                                           train={'sample_every': 9, 'sample_tokens': 2}))
        self.wait_for_steps(10)
        process.send_signal(signal.SIGSTOP)  # no sample may be written between the next two lines
        shutil.rmtree(self.folder / 'run' / 'samples')
        (self.folder / 'run' / 'samples').symlink_to('/proc')
        process.send_signal(signal.SIGCONT)
        self.assertEqual(self.ends_saved(process, self.folder / 'run' / 'samples') % 9, 0)

    def test_metrics_that_cannot_be_written(self):
        """A limit on file sizes simulates a full disk: a checkpoint fits, the metrics of all steps do not."""
        self.run_train(self.tiny_config(), 'run.dir=other')
        limit = len(self.state_bytes('other')) + 10000

        def no_space():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        process = self.start(self.long_run(run={'log_every': 100000}), preexec_fn=no_space)
        _, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, error)
        self.assertIn('metrics.jsonl: File too large', error)
        lines = (self.folder / 'run' / 'metrics.jsonl').read_text().count('\n')  # the line after them is incomplete
        self.assertEqual(self.checkpoints()[-1].name, f'step-{lines + 1:08d}')


class DeadRuns(CommandCase):
    def test_a_run_that_only_skips_steps_ends_and_keeps_its_checkpoints(self):
        """The loss scale exceeds fp32, so every step overflows; a resumed run continues the count of skipped steps."""
        config = self.tiny_config(fp16={'loss_scaling': 'on', 'loss_scale': 1e300}, checkpoint={'every': 10, 'keep': 2},
                                  train={'max_steps': 300})
        for _ in range(2):
            message = self.refuses(config, code=1, says=['step 50: 50 steps in a row', 'fixed loss scale',
                                                         'fp16.loss_scale']).error
            self.assertNotIn('checkpoint.resume', message)  # no checkpoint is older than the first skipped step
            self.assertEqual([p.name for p in self.checkpoints()], [f'step-{n:08d}' for n in (10, 20, 30, 40)])


class Tokenizing(CommandCase):
    def test_a_full_disk_keeps_the_existing_shards(self):
        """A limit on file sizes simulates a full disk: train-00000.bin fits, val-00000.bin does not."""
        def tokenize(words, code=0, **options):
            text = self.folder / 'text.txt'
            text.write_text('the quick brown fox ' * words)
            return self.run_train('tokenize', text, '--tokenizer', 'bytes', '--out', 'shards', '--split', '0.8',
                                  code=code, **options)

        def contents():
            return {path.name: path.read_bytes() for path in (self.folder / 'shards').iterdir()}

        def no_space():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        tokenize(100)
        before = contents()
        self.assertEqual(sorted(before), ['meta.json', 'train-00000.bin', 'val-00000.bin'])
        self.assertIn('val-00000.bin', tokenize(1000, code=1, preexec_fn=no_space).error)
        self.assertEqual(contents(), before)
        tokenize(1000)
        self.assertEqual(sorted(contents()), sorted(before))
        self.assertTrue(all(contents()[name] != data for name, data in before.items()))


class Size(CommandCase):
    def test_a_config_of_many_paths(self):
        """Parsing takes half a second for 300,000 paths; if its time were quadratic, two minutes."""
        config = self.tiny_config(data={'train': ['tokens.bin'] * 300000})
        began = time.monotonic()
        self.run_train('check', config)
        self.assertLess(time.monotonic() - began, 30)


class Evaluation(CommandCase):
    def test_a_batch_is_no_larger_than_the_data(self):
        """eval must not allocate for a million sequences at a time when there are only 125."""
        self.run_train(self.tiny_config())
        results = [self.run_train('eval', 'run', '--data', 'tokens.bin', '--json', '--batch-size', n).out
                   for n in (125, 1000000)]
        self.assertEqual(*results)

    def test_more_memory_than_available(self):
        config = self.tiny_config(model={'n_positions': 4096, 'vocab_size': 65536}, train={'seq_len': 32})
        self.run_train(config, 'train.max_steps=0')
        shard = self.folder / 'large.bin'
        write_shard(shard, [1] * 60_000_000)
        self.refuses('eval', 'run', '--data', shard, '--batch-size', 1000000, code=1,
                     says=['--batch-size', '14649 sequences', 'are available'])


if __name__ == '__main__':
    unittest.main()
