"""Shared code of the command-line tests: a folder for each test, running ./train, tiny configs, reading metrics."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / 'build' / 'release' / 'train'
SANITIZERS = False
GPU = False
FULL = bool(os.environ.get('ZERO_TESTS_FULL'))  # longer settings, in tests that have them
GOLDEN = ROOT / 'tests' / 'golden'
# Relative tolerances of losses: the same number of epsilons for both types.
LOW_PRECISION_TOLERANCES = {'bf16': 1e-2, 'fp16': 1e-2 * 2**-10 / 2**-7}


def release_only(covered):
    """For tests of what the program computes, not of its memory: with sanitizers only in the full run. covered: what runs their
    code with sanitizers in the short one."""
    return unittest.skipIf(SANITIZERS and not FULL, f'with sanitizers only in the full run: {covered}')


def shared(name):
    """The path of a file that is too large for the repository, or None if absent."""
    folder = pathlib.Path(os.environ.get('ZERO_SHARED', ROOT.parent / 'shared'))
    path = folder / name
    return path if path.exists() else None


def write_shard(path, tokens, magic=20240520, version=1, count=None):
    """A token shard; with magic=20240801 and version=7 one with tokens of 4 bytes."""
    header = struct.pack('<256i', magic, version, len(tokens) if count is None else count, *([0] * 253))
    code = 'I' if magic == 20240801 else 'H'
    pathlib.Path(path).write_bytes(header + struct.pack(f'<{len(tokens)}{code}', *tokens))


def pseudo_random_tokens(n, vocabulary, seed=1):
    tokens, state = [], seed
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append((state >> 33) % vocabulary)
    return tokens


def restore_signals():
    """A preexec_fn: restores signals that are ignored when a shell starts the tests in the background or under nohup."""
    for number in signal.SIGINT, signal.SIGHUP:
        signal.signal(number, signal.SIG_DFL)


def relative(value, expected):
    return abs(value - expected) / abs(expected)


def golden_expected(name):
    """The figures of a golden run: PyTorch's, in float64."""
    return json.loads((GOLDEN / name / 'expected.json').read_text())


def golden_arguments(name, ranks=1, steps=None, weights=None):
    """Options that repeat a golden run, or its first steps, on this many ranks. Callers add run.dir and their own options.
    weights: where ./train reads them, if not in the golden folder (golden_weights)."""
    expected = golden_expected(name)
    return (f'model.init_from={weights or GOLDEN / name}', f'data.train={GOLDEN / name / "tokens.bin"}', 'data.shuffle=false',
            f'train.seq_len={expected["seq"]}', f'train.train_batch_size={expected["batch"] * expected["accum"]}',
            f'train.micro_batch_size={max(1, expected["batch"] // ranks)}',
            f'train.max_steps={steps or len(expected["curve"])}', 'optimizer.lr=1e-3', 'optimizer.betas=[0.9, 0.95]',
            'optimizer.eps=1e-8', 'optimizer.weight_decay=0.1', 'train.gradient_clipping=1.0',
            'scheduler.type=constant', 'scheduler.warmup_steps=0', 'checkpoint.every=0')


class CommandCase(unittest.TestCase):
    """A test with a temporary folder."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='zero-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, *arguments, **options):
        starts_ranks = '--ranks' in arguments and 'plan' not in arguments  # with MPI's own leaks
        environment = dict(os.environ, OMP_WAIT_POLICY='passive', ASAN_OPTIONS=f'detect_leaks={int(not starts_ranks)}')
        environment.update(options.pop('environment', {}))
        return subprocess.Popen([str(TRAIN), *map(str, arguments)], cwd=options.pop('cwd', self.folder),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8',
                                errors='replace', env=environment, **options)

    def run_train(self, *arguments, code=0, text=None, **options):
        """Runs ./train, checks its exit code and that no sanitizer reported an error, and returns the process with its output."""
        process = self.start(*arguments, stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL, **options)
        out, error = process.communicate(text, timeout=300)
        self.assertNotIn('Sanitizer', error)
        self.assertEqual(process.returncode, code, f'{arguments}\n{out}\n{error}')
        process.out, process.error = out, error
        return process

    def refuses(self, *arguments, code=2, says=(), **options):
        """Runs ./train on bad input; checks the exit code and that exactly one error message is printed, with these words."""
        process = self.run_train(*arguments, code=code, **options)
        messages = [line for line in process.error.splitlines() if 'error:' in line]
        self.assertEqual(len(messages), 1, process.error)
        for part in says:
            self.assertIn(str(part), process.error)
        return process

    def start_mpirun(self, *words, **options):
        """mpirun with these words, such as '-n', 2, TRAIN, config."""
        # A temporary folder of its own: in a shared one, an mpirun that ends removes what another has just made (Open MPI 4).
        temporary = tempfile.mkdtemp(prefix='zero-mpi-')
        self.addCleanup(shutil.rmtree, temporary, ignore_errors=True)
        environment = dict(os.environ, OMP_WAIT_POLICY='passive', OMPI_ALLOW_RUN_AS_ROOT='1', TMPDIR=temporary,
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1', ASAN_OPTIONS='detect_leaks=0')  # MPI's own leaks
        environment.update(options.pop('environment', {}))
        return subprocess.Popen(['mpirun', '--oversubscribe', *map(str, words)], cwd=self.folder, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8', errors='replace',
                                **options)

    def finish(self, process, code):
        began = time.monotonic()
        out, error = process.communicate(timeout=300)
        process.seconds = time.monotonic() - began
        self.assertNotIn('Sanitizer', error)
        self.assertEqual(process.returncode, code, f'{process.args}\n{out}\n{error}')
        process.out, process.error = out, error
        return process

    def run_ranks(self, n, *arguments, code=0, **options):
        """Runs ./train on n ranks and checks mpirun's exit code."""
        return self.finish(self.start_mpirun('-n', n, TRAIN, *arguments, **options), code)

    def tiny_config(self, name='tiny.json', **sections):
        """A model that trains in milliseconds, on 4,000 generated tokens."""
        shard = self.folder / 'tokens.bin'
        if not shard.exists():
            write_shard(shard, pseudo_random_tokens(4000, 61))
        config = {
            'device': 'cpu',
            'model': {'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'vocab_size': 61, 'n_positions': 32},
            'data': {'train': str(shard)},
            'train': {'max_steps': 6, 'micro_batch_size': 2, 'eval_every': 0},
            'precision': {'compute': 'fp32'},
            'scheduler': {'warmup_steps': 2},
            'checkpoint': {'every': 0},
            'run': {'dir': str(self.folder / 'run'), 'threads': 2},
        }
        for section, options in sections.items():
            if isinstance(options, dict):
                config.setdefault(section, {}).update(options)
            else:
                config[section] = options
        path = self.folder / name
        path.write_text(json.dumps(config))
        return path

    def ranks_config(self, **sections):
        """A tiny_config that 1, 2, 3, 4, 6 and 12 ranks can train, all with the same batch."""
        sections.setdefault('train', {}).setdefault('train_batch_size', 12)
        sections['train'].setdefault('gradient_accumulation_steps', 1)
        sections['train'].setdefault('micro_batch_size', 0)
        sections.setdefault('run', {'dir': str(self.folder / 'run'), 'threads': 1})
        return self.tiny_config(**sections)

    def metrics(self, run='run'):
        """The training steps of metrics.jsonl, parsed, each with what sessions.jsonl has for its session."""
        lines = (self.folder / run / 'metrics.jsonl').read_text().splitlines()
        constants = self.constants(run)
        return [next(one for one in reversed(constants) if one['step'] <= entry['step']) | entry
                for entry in map(json.loads, lines) if 'loss' in entry]

    def constants(self, run='run'):
        """What does not change in a session, of each that did a step."""
        lines = map(json.loads, (self.folder / run / 'sessions.jsonl').read_text().splitlines())
        return [line for line in lines if line['event'] == 'constants']

    def wait_for_steps(self, n, run='run'):
        path = self.folder / run / 'metrics.jsonl'
        for _ in range(1200):
            if path.exists() and path.read_text().count('"loss"') >= n:
                return
            time.sleep(0.05)
        self.fail(f'{path} did not reach {n} steps within a minute')

    def curve(self, run='run'):
        return [(m['step'], m['loss'], m['grad_norm']) for m in self.metrics(run)]

    def golden_errors(self, name, run='run'):
        """The largest relative errors of a golden run's losses and norms."""
        expected, measured = golden_expected(name)['curve'], self.metrics(run)
        self.assertEqual([m['step'] for m in measured], [want['step'] + 1 for want in expected[:len(measured)]])
        return tuple(max(relative(m[figure], want[figure]) for m, want in zip(measured, expected))
                     for figure in ('loss', 'grad_norm'))

    def checkpoints(self, run='run'):
        return sorted(p for p in (self.folder / run / 'checkpoints').iterdir() if p.name.startswith('step-'))

    def copy_until(self, step, run, target):
        """A copy of a run that had a checkpoint after every step, as if it had been killed after `step`."""
        shutil.copytree(self.folder / run, self.folder / target, symlinks=True)
        for checkpoint in self.checkpoints(target)[step:]:
            shutil.rmtree(checkpoint)
        return self.folder / target

    def state_bytes(self, run='run'):
        """The first data file of the newest checkpoint."""
        return (self.checkpoints(run)[-1] / 'rank-00000.bin').read_bytes()

    def final_state(self, run='run'):
        """Digests of the newest checkpoint's data files. (unittest takes minutes to print the difference of the bytes.)"""
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(self.checkpoints(run)[-1].glob('rank-*.bin'))}
