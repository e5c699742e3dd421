"""Running programs for gpu_check: with a limit of time, and following a training run."""
import collections
import json
import os
import pathlib
import signal
import subprocess
import time


PIPE_SECONDS = 3  # to read what a stopped program printed


class Skipped(Exception):
    """The part cannot run here; the text gives the reason."""


class Failed(Exception):
    """The check found a fault; the text describes it."""


class Outcome:
    def __init__(self, code, out, error):
        self.code, self.out, self.error = code, out, error

    def last_line(self):
        """The last output of a failed program: its error message."""
        lines = [line.strip() for line in (self.error or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f'exit code {self.code}'


def descendants(pid):
    """The processes that a process started, and those that they started. mpirun gives each rank a process group of its own."""
    children = collections.defaultdict(list)
    for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
        try:
            fields = stat.read_text().rpartition(')')[2].split()
        except OSError:  # it has ended
            continue
        children[int(fields[1])].append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def stop(process):
    """Ends the process and all its descendants."""
    for pid in descendants(process.pid) if process.poll() is None else ():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def run(words, seconds, environment, text=None):
    """Runs a program to its end, with `text` as its input. Raises subprocess.TimeoutExpired, with the output so far, after that many
    seconds."""
    try:
        process = subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE if text else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors='replace', env=environment,
                                   start_new_session=True)
    except OSError as error:
        return Outcome(127, '', f'{words[0]}: {error.strerror}')
    try:
        out, error = process.communicate(text, timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        stop(process)
        try:
            out, error = process.communicate(timeout=PIPE_SECONDS)
        except subprocess.TimeoutExpired as late:  # a process that left its parent still holds the pipes
            out, error = (stream.decode(errors='replace') if isinstance(stream, bytes) else stream or ''
                          for stream in (late.stdout, late.stderr))
        raise subprocess.TimeoutExpired(words, seconds, out, error) from None
    return Outcome(process.returncode, out, error)


def steps_of(folder):
    """The steps in a run's metrics.jsonl, without a last line that is not complete, each with what its session's lines
    leave to sessions.jsonl."""
    sessions, lines = (list(map(json.loads, path.read_text().split('\n')[:-1] if path.exists() else []))
                       for path in (folder / 'sessions.jsonl', folder / 'metrics.jsonl'))
    constants = [line for line in sessions if line['event'] == 'constants'] or [{}]
    return [constants[-1] | entry for entry in lines if 'loss' in entry]


def follow(words, folder, wanted, seconds, environment):
    """Starts a training run with the run folder `folder`, and stops it once it took `wanted` steps or the time is over.
    Returns (its Outcome, its steps). The end of a run, with its checkpoint, is thus never waited for."""
    log = folder.with_suffix('.out')
    deadline = time.monotonic() + seconds
    with open(log, 'w') as stream:
        process = subprocess.Popen(list(map(str, words)), stdout=stream, stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True)
    while process.poll() is None and time.monotonic() < deadline and len(steps_of(folder)) < wanted:
        time.sleep(0.1)
    code = process.poll()
    stop(process)
    return Outcome(0 if code is None else code, '', log.read_text(errors='replace')), steps_of(folder)
