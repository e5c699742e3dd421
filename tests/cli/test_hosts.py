"""Runs over several hosts (hosts.py): the same bits as on one host, the bytes that cross the link, and hosts that disappear.

Open MPI is the one that the program was built with. ZERO_MPICH=PREFIX names an installation of MPICH (PREFIX/bin/mpicc, such as a
Python environment with the package mpich); its tests build a second program in build/mpich."""
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import subprocess
import time
import unittest

import harness
from harness import ROOT, pseudo_random_tokens, write_shard
from hosts import KEEPALIVE, Hosts, unavailable
from test_ranks import RankCase

HANG_SECONDS = 10
# What the ranks take beyond run.hang_timeout_s: their turns to ask, 5 s for answers, 5 s until each ends itself.
LIMIT = HANG_SECONDS + 15
MPICH = pathlib.Path(os.environ.get('ZERO_MPICH', '/nonexistent'))


@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
@unittest.skipIf(unavailable(), unavailable())
class HostCase(RankCase):
    def config(self, **sections):
        return self.ranks_config(data={'train': str(self.folder / 'tokens.bin'), 'shuffle': False}, **sections)

    def run_hosts(self, n, ranks, run, *arguments, start=Hosts.mpirun, program=None, config=None, code=0, **options):
        """Trains on n hosts with this many ranks each. Returns the process, and the bytes that host0 has sent."""
        with Hosts(n, [self.folder, MPICH], **options) as hosts:
            process = self.finish(start(hosts, ranks, program or harness.TRAIN, config or self.config(), f'run.dir={self.folder / run}',
                                        *arguments, folder=self.folder), code)
            return process, hosts.sent(0)

    def result(self, run):
        """Steps with losses and norms, and SHA-256 digests of the final state."""
        return self.curve(run), self.final_state(run)


class SameRun(HostCase):
    def test_two_hosts(self):
        """The same bits as on one host. The bytes that cross the link are those planned."""
        arguments = 'zero_optimization.stage=0', 'train.max_steps=12'
        _, nothing = self.run_hosts(1, 4, 'one', *arguments)
        process, sent = self.run_hosts(2, 2, 'two', *arguments)
        self.assertIn('ranks: 4, 2 on this machine', process.error)
        self.assertEqual(self.result('two'), self.result('one'))
        self.assertLess(nothing, 10_000)
        planned = self.across(self.metrics('two'), 2, 2)
        self.assertGreater(sent, planned)
        self.assertLess(sent, 1.05 * planned + 200_000)  # connecting, comparing what all have; agreeing at each step

    def across(self, metrics, hosts, ranks):
        """Bytes that the ranks of one host send to other hosts, where every rank sends as much to each other rank (no Muon)."""
        for entry in metrics:
            self.assertEqual(entry['comm_bytes'], entry['comm_planned_bytes'])
        return sum(entry['comm_bytes'] for entry in metrics) * ranks * ranks * (hosts - 1) // (hosts * ranks - 1)

    @unittest.skipUnless(harness.FULL, 'in the full run')
    def test_every_stage(self):
        """Two hosts, where bytes are within 2 % of those planned for the steps; and four hosts on slow, far and lossy links."""
        model = {'n_layer': 2, 'n_head': 4, 'n_embd': 128, 'vocab_size': 1024, 'n_positions': 32}
        config = self.config(model=model)
        write_shard(self.folder / 'tokens.bin', pseudo_random_tokens(4000, 1024))
        links = {'rate': '200mbit'}, {'delay_ms': 2}, {'delay_ms': 0.2, 'loss': 0.002}, {'rate': '1gbit', 'delay_ms': 0.5}
        worst = 1
        for stage, link in enumerate(links):
            with self.subTest(stage=stage, link=link):
                options = f'zero_optimization.stage={stage}', 'train.max_steps=12'
                self.run_hosts(1, 4, f'one-{stage}', *options, config=config)
                self.assertEqual(self.result(f'one-{stage}'), self.result('one-0'))
                self.run_hosts(4, 1, f'four-{stage}', *options, config=config, **link)
                self.assertEqual(self.result(f'four-{stage}'), self.result('one-0'))
                _, sent = self.run_hosts(2, 2, f'two-{stage}', *options, config=config)
                self.assertEqual(self.result(f'two-{stage}'), self.result('one-0'))
                # A shorter run shows what is sent before and after the steps.
                _, around = self.run_hosts(2, 2, f'short-{stage}', *options, 'train.max_steps=2', config=config)
                planned = self.across(self.metrics(f'two-{stage}')[2:], 2, 2)
                worst = max(worst, (sent - around) / planned)
                self.assertGreaterEqual(sent - around, planned)
                self.assertLess(sent - around, 1.02 * planned)
        print(f'bytes across: at most {worst:.4f} of those planned')

    @unittest.skipUnless(harness.FULL, 'in the full run')
    def test_a_link_that_comes_back(self):
        """A link that is down for less than run.hang_timeout_s changes nothing."""
        options = self.config(train={'max_steps': 200}), 'zero_optimization.stage=2'
        self.run_ranks(4, *options, f'run.dir={self.folder / "one"}')
        with Hosts(2, [self.folder]) as hosts:
            process = hosts.mpirun(2, harness.TRAIN, *options, f'run.dir={self.folder / "two"}', folder=self.folder)
            self.wait_for_steps(20, 'two')
            hosts.link(1, False)
            time.sleep(2)
            done = len(self.metrics('two'))
            time.sleep(1)
            self.assertEqual(len(self.metrics('two')), done)
            hosts.link(1, True)
            self.finish(process, 0)
        self.assertEqual(self.result('two'), self.result('one'))

    @unittest.skipUnless(harness.FULL, 'in the full run')
    def test_a_run_folder_that_is_not_shared(self):
        process, _ = self.run_hosts(2, 1, 'run', private=[self.folder / 'run'], code=2)
        messages = [line for line in process.error.splitlines() if 'train: error:' in line]
        self.assertEqual(len(messages), 1, process.error)
        self.assertRegex(messages[0], 'rank 1.*host1.*run')

    @unittest.skipUnless(harness.FULL and MPICH.exists(), 'in the full run, with ZERO_MPICH')
    def test_mpich(self):
        for stage in range(4):
            options = f'zero_optimization.stage={stage}', 'train.max_steps=12'
            self.run_hosts(1, 4, f'one-{stage}', *options)
            self.run_hosts(2, 2, f'mpich-{stage}', *options, start=hydra, program=mpich_program())
            self.assertEqual(self.result(f'mpich-{stage}'), self.result(f'one-{stage}'))


def hydra(hosts, *words, **options):
    return hosts.hydra(MPICH / 'bin' / 'mpiexec.hydra', *words, **options)


def mpich_program():
    subprocess.run(['make', '-j2', 'BUILD=build/mpich', f'MPICC={MPICH}/bin/mpicc', 'CUDA=no', 'build/mpich/train'], cwd=ROOT,
                   check=True, stdout=subprocess.DEVNULL)
    return ROOT / 'build' / 'mpich' / 'train'


class Disappearance:
    """What happens to one of two hosts at a random moment. {host} and {ranks} in `message` are what the other side has lost."""

    flags = ()                                   # of mpirun
    ends = {'host0', 'host1', 'launcher'}        # what ends in time: the ranks of a host, the launcher
    message = r'train: error: rank [{ranks}]: '  # what the launcher prints, if its host is left
    ends_host = False                            # no process of the host is left

    def __init__(self, draw, hosts):
        self.hosts, self.host = hosts, draw.randrange(2)
        self.stage, self.step, self.delay = draw.randrange(4), draw.randrange(40), draw.uniform(0, 0.1)

    def __str__(self):
        return f'{type(self).__name__} of host{self.host}, stage {self.stage}, after step {self.step}'

    def strike(self):
        raise NotImplementedError

    def lost(self):
        return self.host

    def signal_ranks(self, number, only_last=False):
        pids = {}
        for pid in self.hosts.processes(self.host, 'train'):
            words = pathlib.Path(f'/proc/{pid}/environ').read_bytes().split(b'\0')
            rank = next(word for word in words if word.startswith((b'OMPI_COMM_WORLD_RANK=', b'PMI_RANK=')))
            pids[int(rank.partition(b'=')[2])] = pid
        for rank, pid in pids.items():
            if not only_last or rank == max(pids):
                os.kill(pid, number)


class RankKilled(Disappearance):
    """The other rank of the host says so."""

    def strike(self):
        self.signal_ranks(signal.SIGKILL, only_last=True)


class RanksStopped(Disappearance):
    def strike(self):
        self.signal_ranks(signal.SIGSTOP)


class RanksKilled(Disappearance):
    """No rank of the host is left to notice at once. mpirun does, and ends the others."""

    message = 'rank [{ranks}] with PID [0-9]+ on node host{host} exited on signal 9|rank [{ranks}]: '

    def strike(self):
        self.signal_ranks(signal.SIGKILL)


class Ended(Disappearance):
    """All processes end while the link is up, as in a shutdown. mpirun ends all, with a message that names nothing."""

    message, ends_host = '', True

    def strike(self):
        self.hosts.signal(self.host, signal.SIGKILL)


class Cut(Disappearance):
    """The link goes down. mpirun's flags end all before the ranks have waited for run.hang_timeout_s."""

    flags, message = KEEPALIVE, 'lost communication with a remote daemon(?s:.*)on node host{host}'

    def strike(self):
        self.hosts.link(self.host, False)

    def lost(self):
        return 1  # as host0 sees it, where the launcher is


class Gone(Cut):
    """The host loses power: no process is left, and nobody is told."""

    ends_host = True

    def strike(self):
        super().strike()
        self.hosts.signal(self.host, signal.SIGKILL)


class CutWithoutFlags(Cut):
    """The ranks end by themselves; the launcher waits for the lost host."""

    flags, ends, message = (), {'host0', 'host1'}, Disappearance.message


class GoneWithoutFlags(Gone):
    flags, ends, message = (), {'host0', 'host1'}, Disappearance.message


class KilledUnderHydra(RankKilled):
    """hydra kills all others before they can print anything."""

    message = ''


class StoppedUnderHydra(RanksStopped):
    """hydra leaves the stopped ranks as they are, and waits for them."""

    @property
    def ends(self):
        return {f'host{1 - self.host}'}


@unittest.skipUnless(harness.FULL, 'in the full run')
class Disappearances(HostCase):
    """Several draws at a time: they wait more than they compute. ZERO_HOST_SEED=N repeats the draw of one seed."""

    def draw(self, seed, kinds, start, program):
        """One disappearance. Returns its name, its kind, when each host's ranks and the launcher ended, what was wrong, and what the
        launcher printed."""
        draw, run = random.Random(seed), f'run-{seed}'
        with Hosts(2, [self.folder, MPICH]) as hosts:
            fault = kinds[seed % len(kinds)](draw, hosts)
            process = start(hosts, 2, program, self.configuration, f'run.dir={self.folder / run}', f'run.hang_timeout_s={HANG_SECONDS}',
                            f'zero_optimization.stage={fault.stage}', folder=self.folder, **{'flags': fault.flags} if fault.flags else {})
            self.wait_for_steps(fault.step, run)
            time.sleep(fault.delay)
            fault.strike()
            began, ended = time.monotonic(), {}
            lives = {'host0': lambda: hosts.processes(0, 'train'), 'host1': lambda: hosts.processes(1, 'train'),
                     'launcher': lambda: process.poll() is None}
            while fault.ends - set(ended) and time.monotonic() - began < self.here(LIMIT):
                time.sleep(0.1)
                ended.update({name: round(time.monotonic() - began, 1) for name in lives if name not in ended and not lives[name]()})
            for k in range(2):
                hosts.signal(k, signal.SIGKILL)
            _, error = process.communicate(timeout=60)
        wrong = [f'{name} has not ended' for name in sorted(fault.ends - set(ended))]
        if process.returncode == 0:
            wrong.append('exit code 0')
        if error.count('train: error:') > 1:
            wrong.append('several messages')
        ranks = f'{2 * fault.lost()}{2 * fault.lost() + 1}'
        if not (fault.ends_host and fault.host == 0) and not re.search(fault.message.format(host=fault.lost(), ranks=ranks), error):
            wrong.append('no message that names what was lost')
        return f'{fault}: repeat with ZERO_HOST_SEED={seed}', type(fault).__name__, ended, wrong, error

    def draws(self, n, kinds, start, program):
        self.configuration = self.config(train={'max_steps': 1000000})
        seeds = [int(os.environ['ZERO_HOST_SEED'])] if 'ZERO_HOST_SEED' in os.environ else range(n)
        slowest = collections.defaultdict(float)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for name, kind, ended, wrong, error in pool.map(lambda seed: self.draw(seed, kinds, start, program), seeds):
                slowest[kind] = max(slowest[kind], *ended.values())
                with self.subTest(name):
                    self.assertFalse(wrong, f'{ended}\n{error}')
        print(f'{len(seeds)} hosts disappeared; seconds until all had ended: '
              + ', '.join(f'{kind} {seconds}' for kind, seconds in sorted(slowest.items())))

    def test_open_mpi(self):
        kinds = RankKilled, RanksStopped, RanksKilled, Ended, Cut, Gone, CutWithoutFlags, GoneWithoutFlags
        self.draws(20, kinds, Hosts.mpirun, harness.TRAIN)

    @unittest.skipUnless(MPICH.exists(), 'ZERO_MPICH does not name an MPICH')
    def test_mpich(self):
        kinds = KilledUnderHydra, StoppedUnderHydra, Ended, CutWithoutFlags, GoneWithoutFlags
        self.draws(5, kinds, hydra, mpich_program())


if __name__ == '__main__':
    unittest.main()
