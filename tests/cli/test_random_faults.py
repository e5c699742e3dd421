"""One fault at a random moment of a run on 2, 3 or 4 ranks. Every rank must end in time, with one message that names the
rank and the cause. The newest good checkpoint must load, and the run resumed from it must end with the same bits as an
undisturbed run.

14 draws, 200 with --full, each from its own seed. ZERO_FAULT_SEED=N repeats the draw of one seed, ZERO_FAULT_KIND=NAME
draws only faults of that class."""
import collections
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

import harness
from harness import pseudo_random_tokens, write_shard
from test_ranks import RankCase, SECONDS

STEPS, EVERY = 60, 5    # steps of a run; steps between checkpoints
BATCH, LENGTH = 12, 32  # sequences per step, tokens per sequence
HANG_SECONDS = 2
SMALL_DISK = 60000      # bytes; smaller than a rank's checkpoint file, larger than the other files of a run
SEEDS = range(1, 201 if harness.FULL else 15)


class Fault:
    """What goes wrong in one draw. Subclasses override what they need."""

    code = None        # the exit code; None: any but 0
    says = ()          # regular expressions for the text after "train: error:"; {rank} is the faulty rank
    arguments = ()     # options of the run
    mid_run = True     # strikes while the run trains, not before it starts

    def __init__(self, draw, case, ranks):
        self.draw, self.case, self.ranks = draw, case, ranks
        self.rank = draw.randrange(ranks)
        self.step = draw.randrange(-STEPS // 4, STEPS - 2 * EVERY)  # below 0: while the run starts
        self.delay = draw.uniform(0, case.start_seconds[ranks] if self.step < 0 else 0.02)

    def __str__(self):
        when = '' if not self.mid_run else ' during the start' if self.step < 0 else f' after step {self.step}'
        return f'{type(self).__name__}, rank {self.rank} of {self.ranks}{when}'

    def prepare(self):
        """Called before the run; returns each rank's working folder."""
        return [self.case.work] * self.ranks

    def prefix(self, rank):
        """Words that precede this rank's program on the command line."""
        return ()

    def elsewhere(self, share_run):
        """Working folders of which the faulty rank has its own. share_run: with a link to the shared run folder."""
        there = self.case.work / 'there'
        there.mkdir()
        shutil.copy(self.case.work / 'tokens.bin', there)
        if share_run:
            (self.case.work / 'run').mkdir()
            (there / 'run').symlink_to(self.case.work / 'run')
        folders = [self.case.work] * self.ranks
        folders[self.rank] = there
        return folders

    def strike(self, process):
        """Called when the fault strikes. True: the run must now fail."""
        return True

    def wait(self, error):
        """Called every second until the run has ended, with what it has written to stderr."""

    def afterwards(self):
        """Called when the run has ended. Returns how many of the newest checkpoints it has damaged."""
        return 0

    def to_rank(self, act):
        """Calls act(pid) for this rank's process. False: the process has ended."""
        try:
            act(self.case.living()[self.rank])
        except (KeyError, ProcessLookupError):
            return False
        return True


class Killed(Fault):
    says = ('rank {rank}',)

    def strike(self, process):
        return self.to_rank(lambda pid: os.kill(pid, signal.SIGKILL))


class Stopped(Fault):
    says = ('rank {rank}|all work is done, but another rank', 'hang_timeout_s')
    arguments = (f'run.hang_timeout_s={HANG_SECONDS}',)

    def strike(self, process):
        return self.to_rank(lambda pid: os.kill(pid, signal.SIGSTOP))

    def wait(self, error):
        # Stopped in MPI_Finalize, when the run and the other ranks have ended: only mpirun is left, and waits.
        if 'train: error:' not in error and set(self.case.living()) == {self.rank}:
            self.to_rank(lambda pid: os.kill(pid, signal.SIGCONT))


class FullDisk(Fault):
    """A limit on file sizes simulates a full disk. The next checkpoint exceeds it."""

    code = 1
    says = ('rank {rank}: ', 'File too large')

    def strike(self, process):
        return self.to_rank(lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (SMALL_DISK, SMALL_DISK)))


class OtherFolder(Fault):
    """One rank has its own run.dir."""

    says = ('rank', 'run')
    mid_run = False

    def prepare(self):
        return self.elsewhere(share_run=False)


class UnreadableData(Fault):
    """One rank's shard is missing, truncated or longer."""

    code = 2
    says = ('rank', 'tokens.bin|data.train')
    mid_run = False

    def prepare(self):
        folders = self.elsewhere(share_run=True)
        shard = folders[self.rank] / 'tokens.bin'
        damage = self.draw.choice(('missing', 'cut', 'longer'))
        if damage == 'missing':
            shard.unlink()
        elif damage == 'cut':
            shard.write_bytes(shard.read_bytes()[:self.draw.randrange(shard.stat().st_size)])
        else:
            write_shard(shard, self.case.tokens + [1])
        return folders


class TruncatedData(Fault):
    """One rank's shard is truncated while in use."""

    says = ('rank {rank}: ', 'tokens.bin')

    def prepare(self):
        self.folders = self.elsewhere(share_run=True)
        return self.folders

    def strike(self, process):
        os.truncate(self.folders[self.rank] / 'tokens.bin', self.draw.choice((0, resource.getpagesize())))
        return True


class OtherTokens(Fault):
    """One token of one rank's shard differs."""

    code = 2
    says = ('rank', 'tokens.bin. differs')
    mid_run = False

    def prepare(self):
        folders = self.elsewhere(share_run=True)
        tokens = list(self.case.tokens)
        place = self.draw.randrange(len(tokens))
        tokens[place] = (tokens[place] + 1) % 61
        write_shard(folders[self.rank] / 'tokens.bin', tokens)
        return folders


class WrongMessage(Fault):
    """From some message on, one rank sends the call number of another collective."""

    code = 1
    says = ('rank {rank} sends collective', 'are in different collectives')
    arguments = ('comm.shared_memory=false',)
    mid_run = False

    def prefix(self, rank):
        return () if rank != self.rank else (
            'env', f'LD_PRELOAD={self.case.wrong_message}', f'WRONG_MESSAGE_AFTER={self.draw.randrange(20, 200)}')


class DamagedCheckpoint(Fault):
    """The run stops; then its newest checkpoint is damaged. The one before it is used."""

    code = 128 + signal.SIGUSR1

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.step = abs(self.step) + EVERY  # so that there is an older checkpoint

    def strike(self, process):
        process.send_signal(signal.SIGUSR1)  # which mpirun passes on
        return False

    def afterwards(self):
        path = self.draw.choice(sorted(self.case.saved()[-1].iterdir()))
        data = bytearray(path.read_bytes())
        damage = self.draw.choice(('a bit', 'cut', 'missing'))
        if damage == 'a bit':
            data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
            path.write_bytes(data)
        elif damage == 'cut':
            path.write_bytes(data[:self.draw.randrange(len(data))])
        else:
            path.unlink()
        return 1


FAULTS = (Killed, Stopped, FullDisk, OtherFolder, UnreadableData, TruncatedData, OtherTokens, WrongMessage,
          DamagedCheckpoint)


@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
class Faults(RankCase):
    undisturbed = {}    # by number of ranks: curve and final state, the same in every stage
    start_seconds = {}  # and how long it took from when the ranks had connected to the first step

    def setUp(self):
        super().setUp()
        self.tokens = pseudo_random_tokens(4000, 61)
        self.work = self.folder / 'undisturbed'
        self.config = self.ranks_config(
            data={'train': 'tokens.bin', 'shuffle': False}, checkpoint={'every': EVERY, 'keep': 0},
            run={'dir': 'run', 'threads': 1},
            train={'max_steps': STEPS, 'train_batch_size': BATCH}, scheduler={'type': 'constant', 'warmup_steps': 2})
        self.faults = [fault for fault in FAULTS
                       if os.environ.get('ZERO_FAULT_KIND', fault.__name__) == fault.__name__]
        self.wrong_message = self.preloaded('wrong_message.c')

    def begin(self, name):
        self.work = self.folder / name
        self.work.mkdir()
        shutil.copy(self.folder / 'tokens.bin', self.work)

    def launch(self, folders, *arguments, fault=None):
        """Starts one rank in each of these folders."""
        words = []
        for rank, folder in enumerate(folders):
            words += [':', '-n', 1, '--wdir', folder, *(fault.prefix(rank) if fault else ()), harness.TRAIN, self.config,
                      *arguments]
        return self.start_mpirun(*words[1:])

    def saved(self):
        return self.checkpoints(f'{self.work.name}/run') if (self.work / 'run' / 'checkpoints').exists() else []

    def result(self):
        run = f'{self.work.name}/run'
        return self.curve(run), self.final_state(run)

    def reference(self, ranks):
        if ranks not in self.undisturbed:
            work = self.work
            self.begin(f'undisturbed-{ranks}')
            process = self.launch([self.work] * ranks)
            self.wait_for_moment(process, -1)
            began = time.monotonic()
            self.wait_for_moment(process, 1)
            self.start_seconds[ranks] = time.monotonic() - began
            self.finish(process, 0)
            self.undisturbed[ranks] = self.result()
            self.work = work
        return self.undisturbed[ranks]

    def wait_for_moment(self, process, step):
        """Waits until this many steps are done; below 0: until the ranks have connected."""
        metrics, lock = self.work / 'run' / 'metrics.jsonl', self.work / 'run' / 'lock'
        while process.poll() is None:
            if (lock.exists() if step < 0 else metrics.exists() and metrics.read_text().count('"loss"') >= step):
                return
            time.sleep(0.002)

    def outcome(self, process, fault):
        """What the run has written, once it has ended; and for how many seconds this machine stood still meanwhile."""
        began = now = time.monotonic()
        still = 0
        while True:
            try:
                return *process.communicate(timeout=1), still
            except subprocess.TimeoutExpired as so_far:
                if now - began > 30 * SECONDS:  # a hang; what is slow is judged by the load that it had
                    raise
                fault.wait((so_far.stderr or b'').decode())
            before, now = now, time.monotonic()
            still += max(0, now - before - 1.5)

    def run_with_fault(self, fault, arguments):
        """Runs until the fault ends the run, and checks how it ends. False: the run ended before the fault."""
        process = self.launch(fault.prepare(), *fault.arguments, *arguments, fault=fault)
        fails, limit = True, SECONDS * (1 if fault.mid_run else 3) + (HANG_SECONDS if fault.arguments else 0)
        if fault.mid_run:
            self.wait_for_moment(process, fault.step)
            time.sleep(fault.delay)
            fails = fault.strike(process)
        began = time.monotonic()
        out, error, still = self.outcome(process, fault)
        limit = self.here(limit) + 2 * still  # after which the watchdog waits anew
        self.assertLess(time.monotonic() - began, limit, error)
        while self.living() and time.monotonic() - began < limit:
            time.sleep(0.05)  # mpirun may have ended first
        self.assertFalse(self.living(), 'a rank is left')
        if not fails or (fault.mid_run and process.returncode == 0):
            stops = isinstance(fault, DamagedCheckpoint)
            self.assertIn(process.returncode, (0, fault.code) if stops else (0,), error)
            return stops
        if fault.mid_run and 'done: ' in out + error and 'train: error:' not in error:
            return False  # a rank was killed while it ended: mpirun fails, the run did not
        if fault.code is None:
            self.assertNotEqual(process.returncode, 0, error)
        else:
            self.assertEqual(process.returncode, fault.code, error)
        self.assertEqual(error.count('train: error:'), 1, out + error)
        for words in fault.says:
            self.assertRegex(error[error.index('train: error:'):], words.format(rank=fault.rank))
        return True

    def resume(self, ranks, arguments, n_damaged):
        """Resumes from the newest good checkpoint and checks the final bits against an undisturbed run."""
        saved = [int(path.name.split('-')[1]) for path in self.saved()]
        good = saved[:len(saved) - n_damaged]
        process = self.finish(self.launch([self.work] * ranks, *arguments), 0)
        if good and good[-1] < STEPS:
            self.assertIn(f'resuming after step {good[-1]} of', process.error)
        self.assertEqual(process.error.count('damaged checkpoint'), n_damaged, process.error)
        self.assertEqual(self.result(), self.reference(ranks))

    def draw(self, seed):
        draw = random.Random(seed)
        self.begin(f'draw-{seed}')
        ranks = draw.choice((2, 3, 4))
        self.reference(ranks)
        fault = draw.choice(self.faults)(draw, self, ranks)
        before, after = [(f'zero_optimization.stage={draw.randrange(4)}',
                          f'zero_optimization.overlap_comm={draw.choice(("true", "false"))}') for _ in range(2)]
        with self.subTest(f'{fault}, {" ".join(before)}: repeat with ZERO_FAULT_SEED={seed}'):
            try:
                struck = self.run_with_fault(fault, before)
                self.outcomes[type(fault).__name__ if struck else 'too late'] += 1
                self.resume(ranks, after, fault.afterwards())
            finally:
                for pid in self.living().values():
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.work)

    def test_draws(self):
        seeds = [int(os.environ['ZERO_FAULT_SEED'])] if 'ZERO_FAULT_SEED' in os.environ else SEEDS
        self.outcomes = collections.Counter()
        for seed in seeds:
            self.draw(seed)
        print(f'{len(seeds)} draws: ' + ', '.join(f'{n} {kind}' for kind, n in sorted(self.outcomes.items())))
        self.assertLess(self.outcomes['too late'], max(1, len(seeds) / 4), 'too many runs ended before their faults')


if __name__ == '__main__':
    unittest.main()
