"""Figures that stand in several outputs: one definition, one value, and the unit beside it."""
import json
import math
import re

from harness import GOLDEN, CommandCase, pseudo_random_tokens, write_shard
from serving import ServerCase
from test_report import Page
from test_training import events_of

SIZES = {'B': 1, 'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}


def llama2_tokenizer(folder):
    """A tokenizer.json of Llama 2's form, which puts a space before each text: bytes, letters, and tokens with that space."""
    vocab = {'<unk>': 0, '<s>': 1, '</s>': 2, **{f'<0x{byte:02X}>': 3 + byte for byte in range(256)}}
    for token in '\u2581', *'abcdefghijklmnopqrstuvwxyz', '\u2581\u2581', '\u2581a', '\u2581\u2581a':
        vocab.setdefault(token, len(vocab))
    added = [{'id': i, 'content': name, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
             for i, name in enumerate(['<unk>', '<s>', '</s>'])]
    piece = {'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}
    pair = {'SpecialToken': {'id': '<s>', 'type_id': 1}}, {'Sequence': {'id': 'B', 'type_id': 1}}
    content = {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added, 'pre_tokenizer': None,
        'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'Prepend', 'prepend': '\u2581'},
                                                           {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\u2581'}]},
        'post_processor': {'type': 'TemplateProcessing', 'single': list(piece), 'pair': [*piece, *pair],
                           'special_tokens': {'<s>': {'id': '<s>', 'ids': [1], 'tokens': ['<s>']}}},
        'decoder': {'type': 'Sequence', 'decoders': [{'type': 'Replace', 'pattern': {'String': '\u2581'}, 'content': ' '}, {'type': 'ByteFallback'},
                                                     {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'fuse_unk': True, 'byte_fallback': True, 'ignore_merges': False, 'vocab': vocab,
                  'merges': ['\u2581 \u2581', '\u2581\u2581 a', '\u2581 a']}}
    folder.mkdir()
    (folder / 'tokenizer.json').write_text(json.dumps(content))
    return len(vocab)


class BytesOfText(CommandCase):
    """Figures per byte count what the text shows: without the space that a tokenizer adds, and nothing for control tokens."""

    def evaluate(self, *arguments):
        return json.loads(self.run_train('eval', 'run', *arguments, '--json').out)

    def test_a_tokenizer_that_adds_a_space(self):
        n_ids = llama2_tokenizer(self.folder / 'tokenizer')
        texts = [' a b', '  ', 'ab cd', 'a\n', '\u00e9 z', ' ', 'x' * 30]
        n_bytes = sum(len(text.encode()) for text in texts)
        lines = ''.join(json.dumps({'text': text}) + '\n' for text in texts)
        (self.folder / 'all.txt').write_text('<|endoftext|>'.join(texts))
        for name, source, flags in ('lines', '-', ['--field', 'text']), ('text', 'all.txt', ['--end-of-text']):
            process = self.run_train('tokenize', source, *flags, '--tokenizer', 'tokenizer', '--out', name, text=lines if source == '-' else None)
            self.assertIn(f'train: {n_bytes} bytes', process.error)
            self.assertEqual(json.loads((self.folder / name / 'meta.json').read_text())['train']['bytes'], n_bytes)
        (shard,) = (self.folder / 'lines').glob('train-*.bin')
        tokens = (shard.stat().st_size - 1024) // 2
        T = next(T for T in range(32, 1, -1) if (tokens - 1) % T == 0)  # validation leaves no token out
        self.run_train(self.tiny_config(model={'family': 'llama', 'vocab_size': n_ids}, train={'seq_len': T, 'max_steps': 1}), f'data.train={shard}', f'data.val={shard}')
        of_shard, of_text = self.evaluate('--data', shard, '--seq-len', T), self.evaluate('--data', 'all.txt', '--end-of-text', '--seq-len', T)
        self.assertEqual([of_shard[name] for name in ('bytes', 'tokens')], [n_bytes, tokens - 1])
        self.assertEqual(of_text['bytes'], n_bytes)
        self.assertEqual(self.evaluate('--data', shard, '--seq-len', T - 1)['bytes'], n_bytes)  # wherever windows begin
        (line,) = [json.loads(line) for line in (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines() if '"final"' in line]
        self.assertAlmostEqual(line['val_bits_per_byte'], of_shard['bits_per_byte'], delta=1e-6 * of_shard['bits_per_byte'])
        # The loss of control tokens counts, and they show no byte.
        self.assertAlmostEqual(of_shard['bits_per_byte'], of_shard['loss'] * (tokens - 1) / math.log(2) / n_bytes, places=9)

    def test_what_is_held_out(self):
        """Of packed text and JSON Lines the split is known last: its bytes are those that eval counts, and the rest is the other's."""
        n_ids = llama2_tokenizer(self.folder / 'tokenizer')
        lines = ''.join(json.dumps({'text': f'{"ab cd " * i}ab'}) + '\n' for i in range(40))
        self.run_train('tokenize', '-', '--field', 'text', '--split', 0.3, '--tokenizer', 'tokenizer', '--out', 'out', text=lines)
        meta = json.loads((self.folder / 'out' / 'meta.json').read_text())
        self.run_train(self.tiny_config(model={'vocab_size': n_ids}, train={'max_steps': 1}), f'data.train={self.folder}/out/train-*.bin')
        for split in 'train', 'val':
            self.assertEqual(self.evaluate('--data', f'out/{split}-*.bin')['bytes'], meta[split]['bytes'], split)
        self.assertEqual(meta['train']['bytes'] + meta['val']['bytes'], sum(6 * i + 2 for i in range(40)))


class OneRun(CommandCase):
    """Every output of one run, read and compared: log, metrics.jsonl, TensorBoard's events, report, runs, eval, plan, inspect."""

    def setUp(self):
        super().setUp()
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(4 * 32 + 1, 61, seed=2))  # four sequences, no rest
        config = self.tiny_config(model={'vocab_size': 30000},  # losses above 10: four decimals are six digits
                                  data={'tokenizer': 'bytes', 'val': 'val.bin'}, train={'eval_every': 3, 'eval_steps': 0},
                                  checkpoint={'every': 6}, run={'dir': 'run', 'threads': 2, 'log_every': 1})
        self.log = self.run_train(config).error
        lines = [json.loads(line) for line in (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines()]
        self.steps, self.evals = self.metrics(), [line for line in lines if 'val_loss' in line]
        self.events = events_of(self.folder / 'run')
        self.run_train('report', 'run')
        (self.report,) = Page((self.folder / 'run' / 'report.html').read_text()).data['runs']
        (self.listed,) = json.loads(self.run_train('runs', 'run', '--json').out)
        self.evaluated = json.loads(self.run_train('eval', 'run', '--data', 'val.bin', '--json').out)
        (self.plan,) = json.loads(self.run_train('plan', config, '--ranks', 1, '--json').out)['plans']

    def logged(self, pattern):
        """The groups of each line of the log that has this."""
        return [match.groups() if match.re.groups > 1 else match[1] for match in re.finditer(pattern, self.log)]

    def test_one_value_everywhere(self):
        # Each step.
        self.assertEqual(len(self.steps), 6)
        figures = self.logged(r'(?m)^step \d/6  .*?loss ([\d.]+)  norm ([\d.]+)  lr ([\d.e+-]+)  ([\d.]+)(K?) tok/s')
        self.assertEqual(len(figures), 6)
        for step, (loss, norm, lr, rate, unit) in zip(self.steps, figures):
            self.assertEqual((loss, norm, lr), (f'{step["loss"]:.4f}', f'{step["grad_norm"]:.3f}', f'{step["lr"]:.2e}'))
            self.assertAlmostEqual(float(rate) * (1000 if unit else 1) / step['tokens_per_s'], 1, delta=max(0.006, 0.51 / step['tokens_per_s']))
        for name in 'loss', 'grad_norm', 'lr', 'tokens_per_s':
            wanted = [(step['step'], step[name]) for step in self.steps]
            drawn = list(zip(self.report['points']['step'], self.report['points'][name]['mean']))
            for found, digits in (self.events[f'train/{name}'], 6), (drawn, 5):
                self.assertEqual([step for step, _ in found], [step for step, _ in wanted], name)
                for (_, value), (_, exact) in zip(found, wanted):
                    self.assertAlmostEqual(value, exact, delta=10**-digits * abs(exact), msg=name)
        for mean, step in zip(self.report['points']['loss']['mean'], self.steps):
            self.assertEqual(f'{mean:.4f}', f'{step["loss"]:.4f}')  # as the page shows it
        # Validation, in training and afterwards.
        final = self.evals[-1]
        self.assertEqual([(line['step'], line['final']) for line in self.evals], [(3, False), (6, True)])
        self.assertEqual(self.logged(r'final val loss ([\d.]+)  ([\d.]+) bits per byte'), [(f'{final["val_loss"]:.4f}', f'{final["val_bits_per_byte"]:.4f}')])
        text = self.run_train('eval', 'run', '--data', 'val.bin').out
        self.assertIn(f'loss {final["val_loss"]:.4f} nats per token', text)
        self.assertIn(f'{final["val_bits_per_byte"]:.4f} bits per byte (128 tokens)', text)
        for name, others in {'val_loss': (self.listed['val_loss'], self.report['figures']['val_loss'], self.evaluated['loss'], self.events['val/final_loss'][-1][1]),
                             'val_bits_per_byte': (self.report['figures']['bits_per_byte'], self.evaluated['bits_per_byte'],
                                                   self.events['val/final_bits_per_byte'][-1][1])}.items():
            for other in others:
                self.assertAlmostEqual(other, final[name], delta=1e-6 * final[name], msg=name)
        # Means of the run.
        mean = sum(step['loss'] for step in self.steps) / 6
        rate = sum(step['tokens_per_s'] * step['step_ms'] for step in self.steps) / sum(step['step_ms'] for step in self.steps)
        for found in self.listed, self.report['figures']:
            self.assertAlmostEqual(found['loss'], mean, places=9)
            self.assertAlmostEqual(found['tokens_per_s'] / rate, 1, delta=1e-9)
        self.assertIn(f'{mean:.4f}', self.run_train('runs', 'run').out)
        # Tokens, parameters, steps.
        self.assertEqual((self.report['figures']['tokens'], self.report['step'], self.listed['step']), (self.steps[-1]['tokens'], 6, 6))
        session = json.loads((self.folder / 'run' / 'sessions.jsonl').read_text().splitlines()[0])
        parameters = json.loads(self.run_train('plan', 'tiny.json', '--json').out)['parameters']
        self.assertEqual((session['parameters'], self.report['session']['parameters']), (parameters, parameters))
        (described,) = self.logged(r'model: .*?([\d.]+[KM]) parameters')
        self.assertIn(described, self.run_train('inspect', next((self.folder / 'run' / 'checkpoints').glob('step-*'))).out)

    def test_memory_and_rates_have_their_units(self):
        last, totals = self.steps[-1], self.report['totals']
        self.assertEqual((totals['host'], totals['host_planned']), (last['total_bytes'], last['total_planned_bytes']))
        self.assertEqual(self.report['memory'], {'planned': last['model_memory_planned'], 'measured': last['model_memory']})
        self.assertEqual(self.plan['stages'][0]['total'], last['model_planned_bytes'])
        (number, unit), = self.logged(r'step 6/6 .*  total ([\d.]+) (\w+)')
        self.assertAlmostEqual(float(number) * SIZES[unit] / last['total_bytes'], 1, delta=0.006)
        (flops,) = self.logged(r'GEMM ([\d.]+) GFLOP/s')
        self.assertAlmostEqual(self.report['session']['gemm_flops'] / 1e9, float(flops), delta=0.51)

    def test_no_size_has_two_units(self):
        """Sizes are in KiB, MiB, GiB and decimal units only where a rate of the hardware is; FLOPs are never thousand millions called B."""
        out = self.run_train('plan', 'tiny.json', 'device=cuda', '--device-memory', '8G').out
        self.assertRegex(out, r'stage +GPU memory +host memory')  # the first two columns are no part of one another
        out += self.run_train('plan', 'tiny.json', 'device=cuda', '--device-memory', '8G', '--host-memory', '8G', '--fit').out
        self.assertRegex(out, r'\d [kMGTP]?FLOP')
        self.assertNotRegex(self.log + out, r'\d[A-Za-z]*FLOP|\d ?[KMGT]B\b')


class Served(ServerCase):
    def test_the_cache_of_grouped_heads(self):
        """Its size in the log is that of key-value heads."""
        model = GOLDEN / 'llama-tiny'
        config = json.loads((model / 'config.json').read_text())
        process = self.serve('--slots', 3, '--context', 16, model=(model, '--tokenizer', 'bytes', '--device', 'cpu', '--threads', 1))
        _, error = self.end(process)
        (number, unit), = re.findall(r'model, ([\d.]+) (\w+) cache \(3 texts of 16 tokens\)', error)
        width = config['num_key_value_heads'] * config.get('head_dim', config['hidden_size'] // config['num_attention_heads'])
        self.assertLess(width, config['hidden_size'])
        exact = {size * 3 * 16 * 2 * width * config['num_hidden_layers'] for size in (2, 4)}  # bf16, fp32
        self.assertTrue(any(abs(float(number) * SIZES[unit] / size - 1) < 0.006 for size in exact), (number, unit, exact))
