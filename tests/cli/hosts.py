"""Several hosts on one machine, for tests and benchmarks of runs that cross a network.

A host is a set of namespaces: network, host name, mounts and System V IPC. It has its own /tmp and /dev/shm, so ranks on
different hosts cannot share memory. An interface eth0 connects it to a bridge, which has a network namespace of its own.
Nothing of it is visible outside, and it all ends with the process that created it. Needs root, or the capabilities to do
the same, and iproute2.

Processes keep the pid namespace of this machine. ./train takes ranks with other host names as ranks of other machines.
"""
import contextlib
import functools
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACES = ('-m', '-u', '-n', '-i')

# Open MPI 4 notices a silent host only if its connections between daemons are probed: first after `time` seconds of silence, then
# `probes` times every `intvl` seconds. By default that takes 480 s. These flags end mpirun after 9 s, with a message that names the
# host. They work only while nothing is being sent. Once mpirun sends to the lost daemon, because ranks have ended or by a
# signal, it waits for the kernel to give up, 15 minutes by default (sysctl net.ipv4.tcp_retries2). So the probes must end before
# run.hang_timeout_s, or tcp_retries2 must be lower. MPICH's hydra has no such flag.
KEEPALIVE = ('--mca', 'oob_tcp_keepalive_time', 3, '--mca', 'oob_tcp_keepalive_intvl', 2, '--mca', 'oob_tcp_keepalive_probes', 3)


@functools.cache
def unavailable():
    """Why this machine cannot have hosts; empty if it can."""
    try:
        script = ('ip link add name switch type bridge; ip link add name port type veth peer name eth0; mount -t tmpfs none /tmp\n'
                  'tc qdisc add dev eth0 root tbf rate 1gbit burst 128k latency 50ms; ls /dev/net/tun >/dev/null')
        process = subprocess.run(['unshare', *NAMESPACES, 'sh', '-e', '-c', script], capture_output=True, text=True)
    except FileNotFoundError:
        return 'unshare (util-linux) is not installed'
    return f'hosts need namespaces, iproute2 and TAP devices: {process.stderr.strip()}' if process.returncode else ''


class Hosts:
    """A context: hosts host0, host1, ... with addresses 10.77.0.1, 10.77.0.2, ..., until it is left.

    shared   folders that all hosts see, besides what is outside /tmp
    private  folders that each host has for itself, empty at first
    rate     of each link and direction, as tc writes it ('1gbit'); None: no limit
    delay_ms, loss  of each link and direction: milliseconds, and the fraction of frames that are lost
    """

    def __init__(self, n, shared=(), private=(), rate=None, delay_ms=0, loss=0.0):
        self.names = [f'host{k}' for k in range(n)]
        self.shared, self.private = [ROOT, *map(pathlib.Path, shared)], list(map(pathlib.Path, private))
        self.rate, self.delay_ms, self.loss = rate, delay_ms, loss
        self.holders = []  # a process that keeps the namespaces of each host
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        try:
            self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix='zero-hosts-')))
            self.shared.append(self.folder)
            lines = ['127.0.0.1 localhost', *(f'10.77.0.{k + 1} {name}' for k, name in enumerate(self.names))]
            (self.folder / 'hosts').write_text('\n'.join(lines) + '\n')
            self.switch = self.hold('ip link add name switch type bridge; ip link set switch up', '-n')
            for k, name in enumerate(self.names):
                self.holders.append(self.hold(self.set_up(name), *NAMESPACES))
                (self.folder / f'{name}.pid').write_text(f'{self.holders[k].pid}\n')
                self.connect(k)
            self.agent = self.folder / 'agent'
            self.agent.write_text('#!/bin/sh\n# agent [-options] HOST COMMAND ...: what ssh is elsewhere\n'
                                  'while [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
                                  f'nsenter -t "$(cat {self.folder}/$host.pid)" {" ".join(NAMESPACES)} --wd=/ sh -c "$*"\ncode=$?\n'
                                  f'[ ! -e {self.folder}/$host.silent ] || exec sleep infinity\nexit $code\n')
            self.agent.chmod(0o755)
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error):
        for k in range(len(self.holders)):
            self.signal(k, signal.SIGKILL)
        self.stack.close()

    def hold(self, script, *namespaces):
        """Starts a process in new namespaces, which keeps them until this process ends or closes its stdin."""
        process = subprocess.Popen(['unshare', *namespaces, 'sh', '-c', f'set -e\n{script}\necho ready; exec cat'],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.stack.callback(process.stdin.close)
        self.stack.callback(process.stdout.close)
        if process.stdout.readline() != 'ready\n':
            raise OSError(f'cannot set up a host: {script}')
        return process

    def set_up(self, name):
        """Commands that give new namespaces their name and mounts. /dev/shm keeps shared folders while /tmp is replaced."""
        commands = [f'echo {name} >/proc/sys/kernel/hostname', 'mount -t tmpfs none /dev/shm']
        shared = [path for path in self.shared if path.is_relative_to('/tmp')]
        for k, path in enumerate(shared):
            commands += [f'mkdir /dev/shm/{k}', f'mount --bind {path} /dev/shm/{k}']
        commands.append('mount -t tmpfs -o mode=1777 none /tmp')
        for k, path in enumerate(shared):
            commands += [f'mkdir -p {path}', f'mount --bind /dev/shm/{k} {path}', f'umount /dev/shm/{k}', f'rmdir /dev/shm/{k}']
        commands += [f'mkdir -p {path}; mount -t tmpfs none {path}' for path in self.private]
        return '\n'.join([*commands, f'mount --bind {self.folder}/hosts /etc/hosts', 'ip link set lo up'])

    def connect(self, k):
        """Connects a host to the bridge: by a pair of veth or, for a link with delay or loss, by two TAPs and a relay."""
        host, limit = self.holders[k].pid, ''
        if self.delay_ms or self.loss:
            program = self.folder / 'link_relay'
            if not program.exists():
                subprocess.run(['cc', '-O2', '-o', program, ROOT / 'tests' / 'cli' / 'link_relay.c'], check=True)
            relay = subprocess.Popen([program, str(host), 'eth0', str(self.switch.pid), f'port{k}', str(self.delay_ms), str(self.loss),
                                      str(k + 1)], stdout=subprocess.PIPE, text=True)
            self.stack.callback(relay.wait)
            self.stack.callback(relay.kill)
            self.stack.callback(relay.stdout.close)
            if relay.stdout.readline() != 'ready\n':
                raise OSError('the relay of a link did not start')
        else:
            self.enter(self.switch, f'ip link add name port{k} type veth peer name eth0 netns {host}')
        if self.rate:
            limit = f'tc qdisc add dev %s root tbf rate {self.rate} burst 128k latency 50ms'
            self.enter(self.switch, limit % f'port{k}')
            self.enter(self.holders[k], limit % 'eth0')
        self.enter(self.switch, f'ip link set port{k} master switch up')
        self.enter(self.holders[k], f'ip address add 10.77.0.{k + 1}/24 dev eth0; ip link set eth0 up')

    @staticmethod
    def enter(holder, script):
        """Runs commands in the network namespace of a host or of the bridge."""
        subprocess.run(['nsenter', '-t', str(holder.pid), '-n', 'sh', '-e', '-c', script], check=True)

    # ---- links

    def sent(self, k):
        """Bytes that a host has sent over its link, headers included. The kernel sends several frames as one, with one header."""
        for line in pathlib.Path(f'/proc/{self.holders[k].pid}/net/dev').read_text().splitlines():
            name, _, counters = line.partition(':')
            if name.strip() == 'eth0':
                return int(counters.split()[8])
        raise OSError(f'host{k} has no link')

    def link(self, k, up):
        """Takes a host's link down or up. While it is down, the host cannot tell an agent that its command has ended."""
        (silent := self.folder / f'{self.names[k]}.silent').unlink(missing_ok=True)
        if not up:
            silent.touch()
        self.enter(self.switch, f'ip link set port{k} {"up" if up else "down"}')

    # ---- processes

    def processes(self, k, name=None):
        """The processes of a host, or those of a program."""
        found, host = [], os.readlink(f'/proc/{self.holders[k].pid}/ns/net')
        for folder in pathlib.Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                if (os.readlink(folder / 'ns' / 'net') == host and int(folder.name) != self.holders[k].pid
                        and name in (None, (folder / 'comm').read_text().strip())):
                    found.append(int(folder.name))
        return found

    def signal(self, k, number):
        """Sends a signal to all processes of a host; SIGKILL until none is left."""
        while pids := self.processes(k):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number != signal.SIGKILL:
                break
            time.sleep(0.01)

    def start(self, k, *words, folder='/', environment=None, **options):
        """Starts a program on a host."""
        return subprocess.Popen(['nsenter', '-t', str(self.holders[k].pid), *NAMESPACES, f'--wd={folder}', *map(str, words)],
                                env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1', TMPDIR='/tmp',
                                         OMP_WAIT_POLICY='passive', **(environment or {})),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8',
                                errors='replace', **options)

    def mpirun(self, ranks, *words, flags=(), **options):
        """Starts Open MPI's mpirun on host0, with this many ranks on each host."""
        return self.start(0, 'mpirun', '--oversubscribe', '--bind-to', 'none', '--mca', 'plm_rsh_agent', self.agent, *flags, '--host',
                          ','.join(f'{name}:{ranks}' for name in self.names), '-n', ranks * len(self.names), *words, **options)

    def hydra(self, mpiexec, ranks, *words, **options):
        """Starts MPICH's mpiexec on host0, with this many ranks on each host."""
        return self.start(0, mpiexec, '-launcher', 'rsh', '-launcher-exec', self.agent, '-hosts',
                          ','.join(f'{name}:{ranks}' for name in self.names), '-n', ranks * len(self.names), *words, **options)
