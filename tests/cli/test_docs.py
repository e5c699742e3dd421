"""README, CONTRIBUTING and docs/: every command runs; every option, flag, file, function and link exists.

Commands are the lines of ```sh blocks. They run unchanged, in a temporary folder in which two programs are wrapped:
  ./train    adds options for a tiny model and few steps, unless the command sets them; with device=cuda, the
             config is only checked (./train check); `bench` gets a tiny config
  mpirun     starts at most two ranks, on this machine
Of scripts, which have tests of their own, only names and flags are checked. `make` runs with -n.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import unittest

import harness
from harness import CommandCase, ROOT

sys.path.insert(0, str(ROOT / 'scripts'))
import check_docs  # noqa: E402, from scripts/

PAGES = [ROOT / 'README.md', ROOT / 'docs' / 'start.md', ROOT / 'CONTRIBUTING.md',
         *sorted(path for path in (ROOT / 'docs').glob('*.md') if path.name != 'start.md')]
LANGUAGES = {'sh', 'text', 'json', 'c', 'python'}
FOLDERS = {'base', 'benchmarks', 'cli', 'configs', 'data', 'docs', 'infer', 'kernels', 'model', 'scripts', 'tests', 'trainer',
           'zero'}
SOURCES = ('.c', '.h', '.cu', '.cuh', '.def', '.py', '.sh', '.md', '.json', '.svg', '.cpp', '.js')
WEIGHTS = ('.safetensors', '.bin', '.gguf')  # files of other programs that begin with the name of a section: model

TRAIN_WRAPPER = '''#!/usr/bin/env python3
import os, sys
program, arguments = {train!r}, sys.argv[1:]
if arguments and arguments[0].endswith('.json'):
    tiny = ['model.n_layer=1', 'model.n_head=2', 'model.n_embd=16', 'model.n_positions=32', 'train.seq_len=32',
            'train.max_steps=3', 'train.eval_steps=1', 'train.sample_every=0', 'scheduler.warmup_steps=1',
            'run.threads=1', 'run.dir=' + os.environ['RUN_DIR']]
    if not any(a.startswith('data.train=') for a in arguments):
        tiny += ['data.train=tokens.bin', 'data.val=tokens.bin', 'data.tokenizer=bytes', 'model.vocab_size=257']
    if not any('batch_size' in a for a in arguments):
        tiny += ['train.train_batch_size=4', 'train.micro_batch_size=0']
    given = {{a.split('=')[0] for a in arguments}}
    tiny = [a for a in tiny if a.split('=')[0] not in given]
    if 'device=cuda' in arguments:
        os.execv(program, [program, 'check', arguments[0], *tiny, *arguments[1:]])
    os.execv(program, [program, arguments[0], *tiny, *arguments[1:]])
if arguments[:1] == ['bench']:
    arguments = ['tiny.json' if a.endswith('.json') else a for a in arguments]
os.execv(program, [program, *arguments])
'''

MPIRUN_WRAPPER = '''#!/usr/bin/env python3
import os, sys
arguments, out = sys.argv[1:], []
while arguments:
    word = arguments.pop(0)
    if word == '-n':
        out += [word, str(min(2, int(arguments.pop(0))))]
    elif word == '-hostfile':
        arguments.pop(0)
    else:
        out.append(word)
os.execv({mpirun!r}, [{mpirun!r}, '--oversubscribe', *out])
'''


CURL_WRAPPER = '''#!/usr/bin/env python3
import os, sys
os.execv({curl!r}, [{curl!r}, '--fail', *(word.replace(':8000/', ':{port}/') for word in sys.argv[1:])])
'''


def blocks(page):
    """(language, line number, text) of each fenced block."""
    found = re.finditer(r'^```(\w*)\n(.*?)^```$', page.read_text(), re.MULTILINE | re.DOTALL)
    return [(m.group(1), page.read_text()[:m.start()].count('\n') + 1, m.group(2)) for m in found]


def commands(page):
    """(line number, command) of each line of the sh blocks, without comments."""
    for language, start, text in blocks(page):
        if language == 'sh':
            joined = text.replace('\\\n', '  ')
            for number, line in enumerate(joined.splitlines(), start + 1):
                if shlex.split(line, comments=True):
                    yield number, line


def expand_braces(text):
    """a.{b,c} -> a.b, a.c"""
    match = re.search(r'\{([^{}]*)\}', text)
    if not match:
        return [text]
    return [word for part in match.group(1).split(',')
            for word in expand_braces(text[:match.start()] + part + text[match.end():])]


def inline_code(page):
    """(line number, code) of `code` outside blocks. Leaves out the first column of tables in from-*.md, which names the
    options of another program."""
    text = re.sub(r'^```.*?^```$', lambda m: '\n' * m.group(0).count('\n'), page.read_text(),
                  flags=re.MULTILINE | re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith('|') and page.name.startswith('from-'):
            line = line.replace('\\|', '\0').split('|', 2)[2].replace('\0', '|')
        for code in re.findall(r'`([^`]+)`', line):
            yield number, code.replace('\\|', '|')


class Workspace:
    """A folder in which a user would type the commands."""

    def __init__(self, folder):
        self.folder, self.n_runs, self.server = folder, 0, None
        (folder / 'bin').mkdir()
        self.write_program('train', TRAIN_WRAPPER.format(train=str(harness.TRAIN)))
        self.write_program('bin/mpirun', MPIRUN_WRAPPER.format(mpirun=shutil.which('mpirun')))
        shutil.copytree(ROOT / 'configs', folder / 'configs')
        config = json.loads((ROOT / 'configs' / 'gpt2-small.json').read_text())
        config['model'].update(n_layer=2, n_head=4, n_embd=64)
        (folder / 'tiny.json').write_text(json.dumps(config))
        letters = harness.pseudo_random_tokens(20000, 26)
        words = [''.join(chr(97 + c) for c in letters[k:k + 3 + k % 5]) for k in range(0, len(letters) - 8, 4)]
        picks = harness.pseudo_random_tokens(30000, len(words), seed=2)
        (folder / 'my.txt').write_text('\n'.join(' '.join(words[i] for i in picks[k:k + 12])
                                                 for k in range(0, len(picks), 12)))
        (folder / 'ds_config.json').write_text(json.dumps({
            'train_micro_batch_size_per_gpu': 'auto', 'bf16': {'enabled': True}, 'zero_optimization': {'stage': 2},
            'optimizer': {'type': 'AdamW', 'params': {'lr': 'auto'}}}))
        harness.write_shard(folder / 'tokens.bin', harness.pseudo_random_tokens(20000, 257))

    def write_program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def stop(self):
        if self.server:
            self.server.kill()
            self.server.communicate()

    def run(self, command):
        self.n_runs += 1
        environment = dict(os.environ, PATH=f'{self.folder / "bin"}:{os.environ["PATH"]}', RUN_DIR=f'runs/{self.n_runs}',
                           OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1', OMP_WAIT_POLICY='passive')
        return subprocess.run(['bash', '-c', command], cwd=self.folder, env=environment, errors='replace', timeout=300,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


    def serve(self, words):
        """Starts a server on a free port, which curl finds where the page says 8000."""
        at = words.index('--port')
        words[at + 1] = '0'
        self.server = subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        while not lines or (lines[-1] and 'http://' not in lines[-1]):
            lines.append(self.server.stdout.readline())
        found = re.search(r'http://127.0.0.1:(\d+)', lines[-1])
        if not found:
            return ''.join(lines)
        self.write_program('bin/curl', CURL_WRAPPER.format(curl=shutil.which('curl'), port=found.group(1)))
        return None


class Commands(CommandCase):
    """The commands of docs/start.md run before those of other pages, which use the run that they create."""

    def outcome(self, command):
        """What went wrong, or None."""
        words = shlex.split(command, comments=True)
        while words and re.fullmatch(r'[A-Z_]+=\S*', words[0]):
            words.pop(0)
        if words[0].startswith('scripts/'):
            return self.check_script(words)
        if words[0] == 'make':
            process = subprocess.run(['make', '-n', *words[1:]], cwd=ROOT, text=True, capture_output=True)
            return process.stderr if process.returncode else None
        if words[:2] == ['python3', 'tests/cli/run.py']:
            return self.check_test_names(words[2:])
        programs = [word for word in words if word.startswith('build/')]
        if programs:
            return self.check_test_program(programs[0])
        if words[:2] == ['./train', 'serve']:
            return self.workspace.serve(words)
        process = self.workspace.run(command)
        if process.returncode:
            return process.stdout
        if words[1] == 'generate' and '--prompt' in words:  # its output starts with the prompt
            prompt = words[words.index('--prompt') + 1]
            return None if process.stdout.startswith(prompt) else f'printed {process.stdout!r}'
        return None

    @staticmethod
    def check_script(words):
        script = ROOT / words[0]
        if not os.access(script, os.X_OK):
            return f'{words[0]} is not executable'
        texts = script.read_text() + ''.join(p.read_text() for p in script.parent.glob(f'{script.stem}*.py'))
        missing = [word for word in words[1:] if word.startswith('--') and word not in texts]
        return f'{words[0]} has no option {missing}' if missing else None

    @staticmethod
    def check_test_names(words):
        for word in words:
            if not word.startswith('-'):
                module, *names = word.split('.')
                text = (ROOT / 'tests' / 'cli' / f'{module}.py').read_text()
                for name in names:
                    if not re.search(rf'(class|def) {name}\b', text):
                        return f'tests/cli/{module}.py has no {name}'
        return None

    @staticmethod
    def check_test_program(program):
        source = ROOT / pathlib.Path(*pathlib.Path(program).parts[2:]).with_suffix('.c')
        return None if source.exists() or source.name == 'train.c' else f'{source} does not exist'

    @unittest.skipIf(harness.SANITIZERS, 'the release build runs the commands of the docs')
    def test_commands(self):
        self.workspace = Workspace(self.folder)
        self.addCleanup(self.workspace.stop)
        n_commands = 0
        for page in PAGES:
            for number, command in commands(page):
                with self.subTest(f'{page.relative_to(ROOT)}:{number}: {command}'):
                    problem = self.outcome(command)
                    self.assertIsNone(problem, problem)
                n_commands += 1
        self.assertGreaterEqual(n_commands, 40)


class Pages(CommandCase):
    @unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
    def test_blocks_have_a_language(self):
        for page in PAGES:
            for language, number, text in blocks(page):
                self.assertIn(language, LANGUAGES, f'{page}:{number}')
                if language == 'python':
                    compile(text, f'{page}:{number}', 'exec')

    def test_configs_are_valid(self):
        for page in PAGES:
            for language, number, text in blocks(page):
                if language == 'json':
                    path = self.folder / 'page.json'
                    path.write_text(text)
                    self.run_train('check', path)

    @unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
    def test_the_readme_is_short(self):
        lines = (ROOT / 'README.md').read_text().splitlines()
        self.assertLessEqual(len(lines), 120)
        self.assertLessEqual(max(map(len, lines)), 100)

    @unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
    def test_no_option_for_what_is_not_supported(self):
        options = (ROOT / 'configs' / 'OPTIONS.md').read_text().lower()
        for word in 'lora', 'tensor_parallel', 'pipeline', 'nvme', 'fp8', 'rocm', 'metal':
            self.assertNotIn(word, options, 'README.md and docs/from-deepspeed.md say that there is no such thing')

    def test_figures_are_of_one_gpu(self):
        for page in (ROOT / 'benchmarks').glob('*.md'):
            for line in page.read_text().splitlines():
                if 'authors report' not in line:
                    several = r'(?i)\b([2-9]|\d\d+|two|three|four|eight) (x |real )?(NVIDIA|GPUs|[HAB]\d00)\b'
                    self.assertNotRegex(line, several, f'{page}: README.md says that runs on several real GPUs are still to come')

    def test_options_exist(self):
        resolved = json.loads(self.run_train('check', ROOT / 'configs' / 'gpt2-small.json').out)
        checked = 0
        for page in PAGES:
            for number, code in inline_code(page):
                for word in (w for part in code.split() for w in expand_braces(part)):
                    keys = word.split('=')[0].split('.')
                    if keys[0] not in resolved or word.endswith(SOURCES + WEIGHTS) or (len(keys) == 1 and '=' not in word):
                        continue
                    value = resolved
                    for key in keys:
                        self.assertTrue(isinstance(value, dict) and key in value, f'{page}:{number}: no option {word}')
                        value = value[key]
                    checked += 1
        self.assertGreater(checked, 50)

    def test_flags_exist(self):
        checked, helps = 0, {}  # helps: by command
        for page in PAGES:
            lines = list(inline_code(page)) + list(commands(page))
            for number, line in lines:
                words = line.replace('|', ' ').split()
                if './train' not in words:
                    continue
                words = words[words.index('./train') + 1:]
                if not words or words[0] == 'help' or not re.fullmatch(r'[a-z][a-z-]*', words[0]):
                    continue
                helps[words[0]] = helps.get(words[0]) or self.run_train('help', words[0]).out
                for flag in re.findall(r'(?<!\S)\[?(--[a-z-]+)', ' '.join(words)):
                    self.assertIn(flag, helps[words[0]], f'{page}:{number}: {line}')
                    checked += 1
        self.assertGreater(checked, 20)

    @unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
    def test_files_and_functions_exist(self):
        sources = '\n'.join(path.read_text(errors='replace') for folder in
                            ('base', 'cli', 'configs', 'data', 'infer', 'kernels', 'model', 'trainer', 'zero')
                            for path in (ROOT / folder).rglob('*.[ch]'))
        checked = 0
        for page in PAGES:
            for number, code in inline_code(page):
                is_path = re.fullmatch(r'[a-z_0-9.-]+(/[\w.-]*)+', code) and (code.endswith('/') or code.endswith(SOURCES))
                if is_path and code.split('/')[0] in FOLDERS and 'NAME' not in code:
                    self.assertTrue((ROOT / code).exists(), f'{page}:{number}: {code}')
                    checked += 1
                elif re.fullmatch(r'\w+\(\)', code):
                    self.assertRegex(sources, rf'\b{code[:-2]}\(', f'{page}:{number}: {code}')
                    checked += 1
        self.assertGreater(checked, 50)

    @unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
    def test_limits_and_pointers(self):
        """The rules of scripts/check_docs.py on these pages, and on copies in which each is broken."""
        self.assertEqual(check_docs.findings(ROOT)[1], [])
        copy = self.folder / 'copy'
        for page in *PAGES, ROOT / check_docs.LIMITS:
            (copy / page.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(page, copy / page.relative_to(ROOT))
        for folder in 'base', 'cli', 'kernels', 'model', 'trainer', 'zero', 'tests/cli', 'tests/unit':
            (copy / folder).parent.mkdir(exist_ok=True)
            (copy / folder).symlink_to(ROOT / folder)
        self.assertEqual(check_docs.findings(copy)[1], [])

        def finds(name, old, new, *says):
            path = copy / name
            text = path.read_text()
            self.assertIn(old, text)
            path.write_text(text.replace(old, new, 1))
            found = '\n'.join(check_docs.findings(copy)[1])
            for words in says:
                self.assertIn(words, found)
            path.write_text(text)
        finds('docs/start.md', 'The run is in', 'It never fails. The run is in', 'docs/start.md: no entry', '"It never fails."')
        finds('docs/data.md', '`eval` refuses UTF-16', '`eval` refuses UTF-32', 'docs/data.md: no entry',
              'docs/data.md no longer has "`eval` refuses UTF-16."')
        finds(check_docs.LIMITS, 'OtherKinds.test_text', 'OtherKinds.test_gone', 'there is no test', 'test_gone_and_empty')
        finds('docs/README.md', '](offload.md)', '](planning.md)', 'docs/README.md: no link to offload.md')
        finds('docs/zero-explained.md', '`gradients_ready()`', '`gradients_red()`', 'no gradients_red() in')
        finds('docs/architecture.md', '`gradients_acquire()` in', '`gradients_require()` in', 'no gradients_require() in')

    @unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
    def test_links_resolve(self):
        checked = 0
        for page in [*PAGES, *(ROOT / 'benchmarks').glob('*.md'), ROOT / 'CHANGELOG.md']:
            for target, section in re.findall(r'\](?:\(|: )(?!https?:)([^)#\s]*)(?:#([^)\s]*))?', page.read_text()):
                path = page.parent / target if target else page
                self.assertTrue(path.exists(), f'{page}: {target}')
                if section:
                    headings = re.findall('^#+ (.*)$', path.read_text(), re.MULTILINE)
                    self.assertIn(section, [re.sub(r'[^\w -]', '', words.lower()).replace(' ', '-') for words in headings], page)
                checked += 1
        self.assertGreater(checked, 20)


class Pictures(CommandCase):
    """Those of docs/zero-explained.md that can be drawn again, with the commands of scripts/draw_zero.py."""
    PLAN = ('plan', ROOT / 'configs' / 'gpt3-6.7b.json', '--ranks', 8, '--device-memory', '80G', 'attention=flash',
            'recompute=block', 'train.micro_batch_size=1', 'train.train_batch_size=8')

    def draw(self, *arguments):
        command = [ROOT / 'scripts' / 'draw_zero.py', *map(str, arguments)]
        return subprocess.run(command, check=True, text=True, capture_output=True).stdout

    @unittest.skipIf(harness.SANITIZERS, 'the release build draws')
    def test_memory(self):
        (self.folder / 'plan.json').write_text(self.run_train(*self.PLAN, '--json').out)
        self.assertEqual(self.draw('memory', self.folder / 'plan.json'), (ROOT / 'docs' / 'zero-memory.svg').read_text())
        page = ROOT / 'docs' / 'zero-explained.md'
        printed, (table,) = self.run_train(*self.PLAN).out, (text for language, _, text in blocks(page) if language == 'text')
        self.assertIn(table, printed)
        printed = self.run_train('plan', ROOT / 'configs' / 'gpt2-xl.json', '--ranks', 8, '--device-memory', '24G').out
        for line in next(text for _, _, text in blocks(ROOT / 'README.md') if 'GPU memory' in text).splitlines():
            self.assertTrue(line == '...' or line in printed, line)
        plan = json.loads((self.folder / 'plan.json').read_text())
        P, stages = plan['elements'], plan['plans'][0]['stages']
        states = [sum(stage['bytes'][kind] for kind in ('params', 'grads', 'master', 'moments')) for stage in stages]
        self.assertEqual((states[0], 7 * P * 4 // 8), (18 * P, stages[0]['sends']['reduce_scatter']['bytes']))
        for figure in f'{P:,}', f'{7 * P // 8:,}', f'{7 * P * 4 // 8:,}', *(f'{states[i] / 2**30:.1f} GiB' for i in (0, 3)):
            self.assertIn(figure, page.read_text())

    @unittest.skipIf(harness.SANITIZERS, 'the release build draws')
    def test_owners(self):
        """The script compares who owns what with the files that each rank wrote."""
        harness.write_shard(self.folder / 'small.bin', harness.pseudo_random_tokens(5000, 512))
        small = [f'model.{name}' for name in ('n_layer=6', 'n_embd=128', 'n_head=4', 'n_positions=64', 'vocab_size=512')]
        manifests = []
        for partition in 'even', 'layer', 'tensor':
            self.run_ranks(4, ROOT / 'configs' / 'bench-zero.json', *small, f'run.dir={partition}',
                           f'zero_optimization.partition={partition}', 'train.max_steps=1', 'precision.compute=fp32',
                           'data.train=small.bin', 'run.threads=1')
            manifests.append(self.checkpoints(partition)[-1] / 'manifest.json')
        self.assertEqual(self.draw('owners', *manifests), (ROOT / 'docs' / 'zero-owners.svg').read_text())

    def test_step(self):
        """As it was measured; the events are those of a trace, which the script reads."""
        measured = ROOT / 'docs' / 'zero-step.json'
        self.assertEqual(self.draw('step', measured), (ROOT / 'docs' / 'zero-step.svg').read_text())
        traces = []
        for stage, step in json.loads(measured.read_text()).items():
            of_steps = [(1000 * i, step['ms'], 'step', '') for i in range(3)]
            within = [(2000 + begin, *event) for begin, *event in step['events']]
            events = [{'ph': 'X', 'pid': 0, 'ts': round(1000 * begin), 'dur': round(1000 * ms), 'name': name, 'cat': phase}
                      for begin, ms, name, phase in of_steps + within]
            traces.append(self.folder / f'trace-{stage}.json')
            traces[-1].write_text(json.dumps({'traceEvents': events}))
        self.assertEqual(self.draw('events', *traces), measured.read_text())


if __name__ == '__main__':
    unittest.main()
