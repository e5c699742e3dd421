"""train audit: an honest run is proved; what was altered is found, at its step, by name; a run folder is never written to."""
import hashlib
import json
import re
import shutil
import signal

from golden_weights import xxh3
from harness import CommandCase, pseudo_random_tokens, write_shard

STEPS = 12


def forge(checkpoint):
    """Changes one bit of a weight in a checkpoint of one rank, and its checksums."""
    path = checkpoint / 'manifest.json'
    text, content = path.read_text(), bytearray((checkpoint / 'rank-00000.bin').read_bytes())
    content[4 * 17] ^= 1
    (checkpoint / 'rank-00000.bin').write_bytes(content)
    text = text.replace(json.loads(text)['ranks'][0][1], xxh3(bytes(content)))
    sealed = text[:text.index('  "manifest_xxh3"')]
    path.write_text(f'{sealed}  "manifest_xxh3": "{xxh3(sealed.encode())}"\n}}\n')


def chained(contents):
    """The lines of a ledger without signatures, with their hashes."""
    head, lines = bytes(32), []
    for content in contents:
        head = hashlib.blake2b(head + content.encode(), digest_size=32, person=b'ledger line').digest()
        lines.append(f'{content},"hash":"{head.hex()}"}}\n')
    return ''.join(lines)


class AuditCase(CommandCase):
    def run_of(self, *arguments, ranks=1, **sections):
        sections.setdefault('checkpoint', {'every': 4, 'keep': 0})
        sections.setdefault('run', {'dir': str(self.folder / 'run'), 'threads': 1, 'audit_every': 3})
        sections.setdefault('train', {}).setdefault('max_steps', STEPS)
        self.config = self.ranks_config(**sections)
        if ranks == 1:
            return self.run_train(self.config, *arguments)
        return self.run_ranks(ranks, self.config, *arguments)

    def contents(self):
        return {path.relative_to(self.folder): (path.stat().st_mtime_ns, path.read_bytes())
                for path in sorted((self.folder / 'run').rglob('*')) if path.is_file()}

    def audit(self, *arguments, code=0, ranks=1, says=()):
        """Audits the run; nothing in its folder may change. Returns what was printed."""
        before = self.contents()
        process = (self.run_train('audit', 'run', *arguments, code=code) if ranks == 1 else
                   self.run_ranks(ranks, 'audit', 'run', *arguments, code=code))
        self.assertEqual(self.contents(), before)
        self.printed = process.out + process.error
        for words in says:
            self.assertIn(words, self.printed)
        return self.printed

    def ledger_contents(self):
        """The lines without their hashes."""
        text = (self.folder / 'run' / 'audit.jsonl').read_text()
        return [line[:line.index(',"hash"')] for line in text.splitlines()]

    def write_ledger(self, contents):
        (self.folder / 'run' / 'audit.jsonl').write_text(chained(contents))

    def lines(self):
        return [json.loads(line) for line in (self.folder / 'run' / 'audit.jsonl').read_text().splitlines()]


class Honest(AuditCase):
    def test_the_whole_run_and_some_steps_are_proved(self):
        self.run_of()
        lines = self.lines()
        self.assertEqual([line['line'] for line in lines], ['session'] + 6 * ['entry'])
        self.assertEqual([line['step'] for line in lines], [0, 3, 4, 6, 8, 9, 12])
        steps = [step for line in lines[1:] for step in line['steps']]
        self.assertEqual([step[0] for step in steps], list(range(1, STEPS + 1)))
        self.assertEqual([(step[0], step[3], step[4]) for step in steps], self.curve())
        self.assertEqual(lines[0]['bound']['optimizer.lr'], 6e-4)
        self.audit(says=['12 steps are trained again', 'proved: 12 steps', 'not proved: that this ledger'])
        self.assertNotIn('is honest', self.printed)
        self.audit('--steps', '9..11', says=['proved: 4 steps between step 8 and step 12', 'checkpoint of step 8 is honest'])
        self.audit('--head', lines[4]['hash'])
        self.audit('--head', 'ab' * 32, code=1, says=['no line of'])
        self.audit('--key', 'ab' * 32, code=3, says=['line 1', 'no signature'])
        self.audit('--sample', 30, says=['proved: 4 steps, drawn at random'])
        self.audit('--steps', '9..13', code=2, says=['0..12'])
        self.audit('optimizer.lr=1', code=2, says=['optimizer.lr decides'])

    def test_other_stages_on_two_ranks(self):
        for sections in {}, {'optimizer': {'type': 'muon'}}, {'optimizer': {'state_dtype': 'int8'}, 'precision': {'compute': 'bf16'}}:
            with self.subTest(sections):
                shutil.rmtree(self.folder / 'run', ignore_errors=True)
                self.run_of('zero_optimization.stage=2', ranks=2, train={'ema': {'type': 'exponential'}}, **sections)
                for stage in 0, 3:
                    self.audit(f'zero_optimization.stage={stage}', 'zero_optimization.partition=layer', '--ranks', 2,
                               says=['proved: 12 steps'])
        self.audit(code=0, says=['proved: 12 steps'])

    def test_a_run_that_moved(self):
        for ranks, until in (4, 5), (2, 9), (1, STEPS):
            process = self.run_ranks(ranks, self.ranks_config(
                checkpoint={'every': 0}, run={'dir': str(self.folder / 'run'), 'threads': 1, 'audit_every': 3},
                train={'max_steps': until, 'train_batch_size': 8, 'micro_batch_size': 1, 'gradient_accumulation_steps': 0},
                scheduler={'type': 'constant'}))
        self.assertNotIn('rounding', process.error)
        self.audit(says=['proved: 12 steps'])
        self.audit('--ranks', 2, 'zero_optimization.stage=1', says=['proved: 12 steps'])

    def test_the_digest_does_not_depend_on_the_partition(self):
        roots = set()
        for n, (ranks, stage, partition) in enumerate([(2, 0, 'even'), (2, 1, 'layer'), (2, 3, 'tensor')]):
            self.run_of(f'zero_optimization.stage={stage}', f'zero_optimization.partition={partition}', f'run.dir=run{n}', ranks=ranks,
                        model={'vocab_size': 3000, 'n_embd': 32})
            lines = (self.folder / f'run{n}' / 'audit.jsonl').read_text().splitlines()
            roots.add(tuple(json.loads(line).get('root') for line in lines))
        self.assertEqual(len(roots), 1)

    def test_a_run_with_time_limit_repeats_its_decisions(self):
        self.run_of('train.max_minutes=0.1', 'train.max_steps=100000', 'run.audit_every=1000', 'checkpoint.every=0')
        self.assertTrue(any(line.get('decisions') for line in self.lines()))
        self.audit(says=['proved: '])

    def test_signatures(self):
        process = self.run_of('run.audit_key=key')
        public = re.search('public key is ([0-9a-f]{64})', process.error).group(1)
        self.assertEqual((self.folder / 'key').stat().st_mode & 0o777, 0o600)
        self.audit('--key', public, says=['not proved: that no lines were cut'])
        self.audit('--key', public, '--head', self.lines()[-1]['hash'])
        self.assertNotIn('not proved', self.printed)
        with self.subTest('another key'):
            self.assertIn('no key proves all of it', self.run_train(self.config, 'train.max_steps=14').error)
        self.audit('--key', 'ab' * 32, code=1, says=['line 1', 'is not signed by'])


class Resumed(AuditCase):
    def kill_at(self, step):
        """As if the run had been killed after `step`, later than its newest checkpoint: only the ledger knows more."""
        for checkpoint in self.checkpoints():
            if int(checkpoint.name[5:]) > step:
                shutil.rmtree(checkpoint)

    def test_after_a_kill_repeated_steps_are_compared(self):
        self.run_of()
        before = (self.folder / 'run' / 'audit.jsonl').read_bytes()
        self.kill_at(7)
        with (self.folder / 'run' / 'audit.jsonl').open('ab') as file:
            file.write(b'{"line":"entry","st')
        self.run_train(self.config)
        after = (self.folder / 'run' / 'audit.jsonl').read_bytes()
        self.assertTrue(after.startswith(before))
        self.assertEqual([(line['line'], line['step']) for line in self.lines()[7:]], [('session', 4)])
        self.assertEqual(self.lines()[7]['bound'], self.lines()[0]['bound'])
        self.run_train(self.config, 'train.max_steps=14')
        self.audit(says=['proved: 14 steps'])

    def test_a_difference_after_a_kill_ends_the_run(self):
        self.run_of()
        self.kill_at(7)
        tokens = pseudo_random_tokens(4000, 61)
        write_shard(self.folder / 'tokens.bin', tokens)
        self.refuses(self.config, code=1, environment={'ZERO_INJECT_GRADIENTS': '6:1.5'},
                     says=['step 6 differs in its gradient norm', 'train audit'])
        self.assertEqual([path.name[-2:] for path in self.checkpoints()], ['04'])
        self.run_train(self.config)
        self.audit(says=['proved: 12 steps'])

    def test_a_changed_option_makes_a_history_of_its_own(self):
        self.run_of()
        self.kill_at(7)
        self.run_train(self.config, 'optimizer.lr=1e-3', 'checkpoint.resume_with=optimizer.lr')
        first, second = (line for line in self.lines() if line['line'] == 'session')
        self.assertEqual(second['step'], 4)
        self.assertEqual([name for name in first['bound'] if first['bound'][name] != second['bound'][name]], ['optimizer.lr'])
        self.audit(says=['proved: 12 steps'])
        for checkpoint in self.checkpoints()[:1]:
            shutil.rmtree(checkpoint)
        self.audit(says=['proved: 12 steps'])  # the second part begins with the last state of the first

    def test_a_checkpoint_among_known_steps(self):
        self.run_of()
        self.kill_at(7)
        self.run_train(self.config, 'checkpoint.every=5')
        self.assertEqual([(line['line'], line['step'], line.get('steps')) for line in self.lines()[8:]], [('entry', 5, []), ('entry', 10, [])])
        self.audit(says=['proved: 12 steps'])

    def test_other_data_makes_a_history_of_its_own(self):
        self.run_of('checkpoint.accept_new_data=true')
        self.kill_at(7)
        write_shard(self.folder / 'tokens.bin', pseudo_random_tokens(5000, 61))
        self.run_train(self.config, 'checkpoint.accept_new_data=true')
        self.audit(code=1, says=['step 1 differs in its data'])
        self.audit('--steps', '4..12', says=['proved: 8 steps'])

    def test_a_ledger_that_begins_late(self):
        self.run_of('run.audit_every=0', 'checkpoint.keep=2')
        self.run_train(self.config, 'train.max_steps=20', 'checkpoint.keep=2')
        self.audit(code=3, says=['proved: 4 steps', 'steps 12..16: there is no checkpoint from which to begin'])

    def test_stopped_by_a_signal(self):
        config = self.ranks_config(train={'max_steps': 100000}, run={'dir': str(self.folder / 'run'), 'audit_every': 1000})
        process = self.start(config)
        self.wait_for_steps(5)
        process.send_signal(signal.SIGTERM)
        process.communicate()
        self.assertEqual([line['line'] for line in self.lines()][-1], 'entry')
        self.audit(says=['proved: '])


class Forged(AuditCase):
    def setUp(self):
        super().setUp()
        self.run_of()

    def replace(self, name, before, after):
        path = self.folder / 'run' / name
        text = path.read_text()
        self.assertIn(before, text)
        path.write_text(text.replace(before, after, 1))

    def test_an_altered_line(self):
        line = (self.folder / 'run' / 'audit.jsonl').read_text().splitlines()[3]
        loss = str(self.lines()[3]['steps'][0][3])
        self.replace('audit.jsonl', line, line.replace(loss, loss[:-1] + ('1' if loss[-1] != '1' else '2')))
        self.audit(code=1, says=['line 4 of', 'step 6', 'altered'])

    def test_a_removed_line(self):
        line = (self.folder / 'run' / 'audit.jsonl').read_text().splitlines()[3]
        self.replace('audit.jsonl', line + '\n', '')
        self.audit(code=1, says=['line 4 of', 'step 8', 'altered'])

    def test_one_bit_of_a_weight(self):
        forge(self.checkpoints()[1])
        self.audit(code=1, says=['step 8 differs in its weights', 'step-00000008'])
        self.audit('--steps', '9..12', code=1, says=['step 8 differs in its weights'])
        self.audit('--steps', '4..6', code=0)
        self.refuses(self.config, f'checkpoint.resume={self.checkpoints()[1]}', code=1, says=['step 8 differs in its weights'])

    def test_a_damaged_checkpoint(self):
        path = self.checkpoints()[2] / 'rank-00000.bin'
        path.write_bytes(path.read_bytes()[:-1])
        self.audit(code=1, says=['step 12 differs', 'damaged'])

    def test_a_checkpoint_without_an_entry(self):
        self.run_train(self.config, 'train.max_steps=16', 'checkpoint.every=2', 'run.audit_every=0')
        self.run_train(self.config, 'train.max_steps=18')
        self.audit(code=3, says=['proved: 14 steps', 'step 14: the ledger does not have this step', 'steps 12..16: the ledger has no figures'])
        shutil.copytree(self.checkpoints()[0], self.folder / 'run' / 'checkpoints' / 'step-00000006')
        self.audit(code=1, says=['step 6 differs', 'step 4'])

    def test_one_token(self):
        tokens = pseudo_random_tokens(4000, 61)
        tokens[2000] = (tokens[2000] + 1) % 61
        write_shard(self.folder / 'tokens.bin', tokens)
        self.run_train(self.config, 'run.dir=other')
        of_steps = [{step[0]: step[1] for line in map(json.loads, (self.folder / run / 'audit.jsonl').read_text().splitlines())
                     for step in line.get('steps', [])} for run in ('run', 'other')]
        first = min(step for step in of_steps[0] if of_steps[0][step] != of_steps[1][step])
        self.audit(code=1, says=[f'step {first} differs in its data'])

    def test_a_ledger_with_new_hashes(self):
        """Whoever alters a line and computes all hashes again is found by the training, or by an anchor."""
        head, loss = self.lines()[-1]['hash'], str(self.lines()[3]['steps'][0][3])
        contents = self.ledger_contents()
        self.assertEqual(chained(contents), (self.folder / 'run' / 'audit.jsonl').read_text())
        contents[3] = contents[3].replace(loss, loss[:-1] + ('1' if loss[-1] != '1' else '2'))
        self.write_ledger(contents)
        self.audit(code=1, says=['metrics.jsonl', 'step 5 differs in its loss'])
        (self.folder / 'run' / 'metrics.jsonl').unlink()
        self.audit(code=1, says=['step 5 differs in its loss'])
        self.audit('--head', head, code=1, says=['cut or written anew'])

    def test_another_learning_rate_for_one_step(self):
        """The run is resumed for one step at another rate, and the ledger then written as if it had not been."""
        shutil.rmtree(self.folder / 'run')
        self.run_of('scheduler.type=constant', 'checkpoint.every=1')
        for step, rate in (4, 1e-3), (5, 6e-4):
            for checkpoint in self.checkpoints()[step:]:
                shutil.rmtree(checkpoint)
            self.run_train(self.config, 'scheduler.type=constant', 'checkpoint.every=1', f'optimizer.lr={rate}',
                           'checkpoint.resume_with=optimizer.lr')
        self.audit(says=['proved: 12 steps'])
        by_step = {}
        for content in self.ledger_contents():
            line = json.loads(content + '}')
            if line['line'] != 'session' or line['step'] == 0:
                by_step[line['step']] = content
        self.write_ledger(by_step.values())
        self.audit(code=1, says=['step 5 differs in its learning rate'])

    def test_what_the_ledger_binds(self):
        """Hashes are computed again; the options of a ledger are not taken on trust."""
        contents = self.ledger_contents()
        first = json.loads(contents[0] + '}')
        def bind(code, says, **changes):
            bound = {name: value for name, value in (first['bound'] | changes).items() if value is not None}
            self.write_ledger([json.dumps(first | {'bound': bound}, separators=(',', ':'))[:-1], *contents[1:]])
            self.audit(code=code, says=says)
        bind(1, ['step 0', 'data.train is unknown here'], **{'data.train': 'other.bin'})
        bind(1, ['step 0', 'optimizer.betas is', 'but missing in'], **{'optimizer.betas': None})
        bind(2, ['with the options that the ledger binds', 'optimizer.lr'], **{'optimizer.lr': 'x'})
        bind(3, ['fingerprint is'], fingerprint='0' * 32)
        bind(0, ['is repeated by'], program='zero.c 0.0.1')
        self.write_ledger([contents[0].replace('"bound":{', '"bound":{"optimizer.lr":1,'), *contents[1:]])
        self.audit(code=1, says=['line 1 of'])
        self.write_ledger([contents[0], re.sub(r',\[2,[^]]*\]', '', contents[1]), *contents[2:]])
        self.audit(code=1, says=['line 2 of', 'step 3', 'does not continue'])

    def test_what_a_later_session_replaced(self):
        head = self.lines()[-1]['hash']
        shutil.rmtree(self.checkpoints()[2])
        self.audit('--head', head)
        self.run_train(self.config, 'optimizer.lr=1e-3', 'checkpoint.resume_with=optimizer.lr')
        self.audit('--head', head, code=1, says=['a later session replaced its steps'])

    def test_a_checkpoint_after_the_end(self):
        self.write_ledger(self.ledger_contents()[:-1])
        self.audit(code=3, says=['proved: 9 steps', 'step 12: the ledger does not have this step'])

    def test_metrics(self):
        loss = self.metrics()[6]['loss']
        self.replace('metrics.jsonl', f'"loss": {loss}', '"loss": 1.25')
        self.audit(code=1, says=['metrics.jsonl', 'step 7 differs in its loss: it is 1.25'])
