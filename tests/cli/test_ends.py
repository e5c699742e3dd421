"""How commands end: exit codes after signals, launchers that connect nothing, times that are too short, folders left behind."""
import os
import pathlib
import resource
import signal
import subprocess
import time
import unittest

import harness
from harness import CommandCase
from test_ranks import RankCase

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP


class AfterASignal(RankCase):
    def until(self, seen, process):
        """Polls until seen() or the end of the process, for a minute."""
        for _ in range(6000):
            if seen() or process.poll() is not None:
                return
            time.sleep(0.01)
        self.fail('nothing was seen for a minute')

    def test_what_follows_a_stopped_run_in_a_shell_does_not_run(self):
        config = self.tiny_config(train={'max_steps': 1000000})
        process = subprocess.Popen(['sh', '-c', '"$0" "$@" && touch went-on', harness.TRAIN, config], cwd=self.folder,
                                   stderr=subprocess.PIPE, preexec_fn=harness.restore_signals, start_new_session=True)
        self.wait_for_steps(2)
        for folder in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                if str(config).encode() in (folder / 'cmdline').read_bytes() and (folder / 'exe').resolve() == harness.TRAIN.resolve():
                    os.kill(int(folder.name), signal.SIGTERM)
            except OSError:
                continue
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertFalse((self.folder / 'went-on').exists())

    def test_ranks_leave_with_one_code_after_the_last_write(self):
        """A signal to the launcher, and one to a single rank: each rank leaves with its number, and everything is written."""
        config = self.ranks_config(train={'max_steps': 1000000}, checkpoint={'every': 0}, scheduler={'type': 'constant'})
        shell = 'trap "" USR1; "$0" "$@"; code=$?; echo $code >code-$OMPI_COMM_WORLD_RANK; exit $code'
        for number in signal.SIGUSR1, signal.SIGTERM:
            process = self.start_mpirun('-n', 2, 'sh', '-c', shell, harness.TRAIN, config, f'run.dir=run-{number}',
                                        'zero_optimization.stage=3')
            self.wait_for_steps(2, f'run-{number}')
            if number == signal.SIGUSR1:
                process.send_signal(number)  # which mpirun passes on
            else:
                os.kill(self.living()[1], number)
            error = self.finish(process, 128 + number).error
            self.assertIn('; resume with: mpirun -n 2 ./train', error)
            self.assertNotIn('error: ', error)
            codes = {path.read_text().strip() for path in self.folder.glob('code-[01]')}
            self.assertEqual(codes, {str(128 + number)})
            self.run_train('checkpoint', 'verify', f'run-{number}')
            done = len(self.metrics(f'run-{number}'))
            self.assertEqual(self.checkpoints(self.folder / f'run-{number}')[-1].name, f'step-{done:08d}')
            run = self.run_train('runs', f'run-{number}', '--json').out
            self.assertIn('"stopped"', run)

    def test_other_commands(self):
        """What they were doing was not done: none of them ends with 0."""
        self.run_train(self.tiny_config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'}, train={'max_steps': 2}))
        os.mkfifo(self.folder / 'pipe')
        (self.folder / 'long.txt').write_text(('the dog ran after the cat. ' * 40 + '\n') * 20000)
        pipe = str(self.folder / 'pipe')
        commands = (('tokenize', pipe, '--tokenizer', 'bytes', '--out', 'out'),
                    ('tokenizer', 'train', pipe, '--vocab-size', 300, '--out', 'a/b.tiktoken'),
                    ('eval', 'run', '--data', 'long.txt'),
                    ('generate', 'run', '--prompts', pipe),
                    ('report', 'later', '--follow', '--every', 0.1))
        for command in commands:
            for number in SIGNALS if command[0] in ('tokenize', 'report') else (signal.SIGINT,):
                with self.subTest(command=command[0], number=number):
                    process = self.start(*command, preexec_fn=harness.restore_signals)
                    if command[0] == 'report':
                        self.assertIn('waiting', process.stdout.readline())
                    else:
                        self.until(lambda: self.is_at_work(process), process)
                    process.send_signal(number)
                    process.communicate(timeout=60)
                    self.assertIn(process.returncode, (-number, 128 + number))  # a shell has 128 + number for both

    def is_at_work(self, process):
        """Whether it waits for its input, which nobody writes, or has begun to compute."""
        state, *figures = pathlib.Path(f'/proc/{process.pid}/stat').read_text().rpartition(')')[2].split()
        return state == 'S' or int(figures[10]) > 5  # ticks of the processor

    def test_a_closed_pipe_is_no_signal(self):
        process = self.start('options')
        process.stdout.close()
        process.stdout = None
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)


class Launchers(CommandCase):
    def test_processes_that_nothing_connects(self):
        config = self.tiny_config()
        for name in 'WORLD_SIZE', 'SLURM_STEP_NUM_TASKS':
            self.refuses(config, environment={name: '4'}, says=[f'{name}=4', 'mpirun -n 4', 'unset'])
            self.assertFalse((self.folder / 'run').exists())
        for variables in ({'WORLD_SIZE': '1', 'SLURM_STEP_NUM_TASKS': '1'}, {'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'},
                          {'WORLD_SIZE': 'none'}):
            self.run_train(config, environment=variables)
        self.run_train('check', config, environment={'WORLD_SIZE': '4'})  # which needs no ranks

    @unittest.skipIf(harness.SANITIZERS, "MPI's own leaks")
    def test_a_launcher_of_another_mpi(self):
        """As if it had started 3 processes: MPI connects one, or two."""
        for n in 1, 2:
            process = self.start_mpirun('-n', n, 'env', 'PMI_SIZE=3', harness.TRAIN, self.ranks_config())
            error = self.finish(process, 2).error
            self.assertIn('PMI_SIZE=3', error)
            self.assertIn(f'MPI sees {n} rank', error)
        self.assertFalse((self.folder / 'run').exists())

    @unittest.skipIf(harness.SANITIZERS, "MPI's own leaks")
    def test_ranks_in_a_job(self):
        self.run_ranks(2, self.ranks_config(), environment={'WORLD_SIZE': '8', 'SLURM_STEP_NUM_TASKS': '1', 'SLURM_NTASKS': '8'})


class TooShort(CommandCase):
    def test_minutes_of_less_than_a_few_steps(self):
        large = self.tiny_config(model={'n_layer': 4, 'n_embd': 256, 'n_head': 4},
                                 train={'train_batch_size': 64, 'micro_batch_size': 0, 'seq_len': 32, 'max_steps': 100000})
        for minutes in 1e-7, 1e-5:
            error = self.refuses(large, f'train.max_minutes={minutes}', says=[f'train.max_minutes={minutes:g} is', 'a step takes about']).error
            self.assertNotIn('step 1/', error)
            self.assertFalse((self.folder / 'run').exists())
        least = float(error.split('Set at least ')[1].split(',')[0])
        self.assertGreater(least, 1e-5)
        # A run that has begun ends by its time.
        self.run_train(self.tiny_config(), 'train.max_minutes=1', 'train.max_steps=6')
        self.run_train(self.tiny_config(), 'train.max_minutes=1e-7', 'train.max_steps=12')


class Folders(CommandCase):
    def left(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob('*'))

    def test_failures_leave_no_empty_folder(self):
        (self.folder / 'bad.jsonl').write_text('{"text": "fine"}\n{"text": 5}\n')
        (self.folder / 'ids.bin').write_bytes(b'\xff\xff\xff\xff')
        (self.folder / 'there').mkdir()
        (self.folder / 'empty.txt').write_text('')
        before = self.left()
        for out in 'out', 'a/b/c', './d//e/', 'there/f', 'there':
            self.refuses('tokenize', 'missing.txt', '--tokenizer', 'bytes', '--out', out)
            self.refuses('tokenize', 'bad.jsonl', '--tokenizer', 'bytes', '--out', out, says=['bad.jsonl:2'])
            self.refuses('tokenize', 'empty.txt', '--tokenizer', 'bytes', '--out', out)
            self.refuses('tokenize', '--raw', 'ids.bin', '--tokenizer', 'bytes', '--out', out)
            self.refuses('tokenizer', 'train', 'empty.txt', '--vocab-size', 300, '--out', f'{out}/x.tiktoken')
            self.assertEqual(self.left(), before)
        self.run_train('tokenize', 'bad.jsonl', '--field', 'text', '--tokenizer', 'bytes', '--out', 'a/b', code=2)
        (self.folder / 'good.txt').write_text('a good text')
        self.run_train('tokenize', 'good.txt', '--tokenizer', 'bytes', '--out', 'a/b')
        self.refuses('tokenize', 'bad.jsonl', '--tokenizer', 'bytes', '--out', 'a/b')
        self.assertTrue((self.folder / 'a' / 'b' / 'meta.json').exists())

    def test_a_failed_export(self):
        """At a limit on the size of files."""
        self.run_train(self.tiny_config(train={'max_steps': 1}))
        before = self.left()
        self.refuses('export', 'run', '--to', 'hf', 'a/b/out', '--tokenizer', 'none', code=1,
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
        self.assertEqual(self.left(), before)
        self.run_train('export', 'run', '--to', 'hf', 'a/b/out', '--tokenizer', 'none')


if __name__ == '__main__':
    unittest.main()
