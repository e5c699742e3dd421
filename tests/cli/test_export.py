"""./train export: exact layouts, round trips, what other programs read, and what is refused."""
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import time
import unicodedata
import unittest
from base64 import b64encode

import harness
from harness import CommandCase, GOLDEN, ROOT
from python_env import NEWEST, newest, python_with

CHECKS = pathlib.Path(__file__).with_name('export_checks.py')
READERS = 'gguf==0.17.1', 'tokenizers==0.20.3', 'safetensors==0.4.5', 'numpy==1.26.4'
TRANSFORMERS = 'torch==2.2.2', 'transformers==4.51.3', 'numpy==1.26.4'
NEWEST_READERS = 'gguf==0.19.0', *newest('tokenizers', 'safetensors', 'numpy')
LLAMA, NEWEST_LLAMA = ('llama-cpp-python==0.3.16',), ('llama-cpp-python==0.3.36',)

# Of a block, by Hugging Face's names.
BLOCK_TENSORS = [f'{name}.{ending}' for name in ('ln_1', 'attn.c_attn', 'attn.c_proj', 'ln_2', 'mlp.c_fc', 'mlp.c_proj')
                 for ending in ('weight', 'bias')]


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    return {name.removeprefix('transformer.'): (entry['dtype'], entry['shape'],
                                                data[8 + length + entry['data_offsets'][0]:8 + length + entry['data_offsets'][1]])
            for name, entry in header.items()}


class ExportCase(CommandCase):
    def setUp(self):
        super().setUp()
        self.model = self.folder / 'hf'
        shutil.copytree(GOLDEN / 'gpt2-tiny', self.model)

    def export(self, source, to, folder, *options, **more):
        return self.run_train('export', source, '--to', to, folder, *options, **more)

    def same(self, first, second, but=()):
        """Both folders have the same files with the same bytes, but for the card, which names the source, and files named."""
        names = sorted(p.name for p in (self.folder / first).iterdir())
        self.assertEqual(names, sorted(p.name for p in (self.folder / second).iterdir()))
        for name in names:
            if name not in ('README.md', 'export.json', *but):
                self.assertTrue((self.folder / first / name).read_bytes() == (self.folder / second / name).read_bytes(), name)

    def check(self, requirements, *arguments, large=False, script=CHECKS):
        """Runs a check of export_checks.py, or of another script, in an environment with these packages."""
        python = python_with(*requirements, large=large)
        environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
        process = subprocess.run([python, script, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr)
        return json.loads(process.stdout.splitlines()[-1])

    def make_zeros(self, **sizes):
        """A Hugging Face folder of zeros, in a sparse file."""
        folder = self.folder / 'zeros'
        folder.mkdir()
        config = {**json.loads((self.model / 'config.json').read_text()), **sizes}
        (folder / 'config.json').write_text(json.dumps(config))
        width = config['n_embd']
        shapes = {'wte.weight': [config['vocab_size'], width], 'wpe.weight': [config['n_positions'], width],
                  'ln_f.weight': [width], 'ln_f.bias': [width]}
        of_block = ([width], [width], [width, 3 * width], [3 * width], [width, width], [width], [width], [width],
                    [width, 4 * width], [4 * width], [4 * width, width], [width])
        for block in range(config['n_layer']):
            shapes.update({f'h.{block}.{name}': shape for name, shape in zip(BLOCK_TENSORS, of_block)})
        header, at = {}, 0
        for name, shape in shapes.items():
            n = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        with open(folder / 'model.safetensors', 'wb') as file:
            file.write(struct.pack('<Q', len(text)) + text)
            file.truncate(8 + len(text) + at)

    def train_a_run(self, name='run', steps=4, tokenizer=('--vocab-size', 300), **model):
        """A run on text, with a tokenizer of its own."""
        text = ''.join(f'the {k} quick brown fox, {k * k} — naïve? — jumps over it; {k % 7}\n' for k in range(400))
        (self.folder / 'my.txt').write_text(text)
        self.run_train('tokenizer', 'train', 'my.txt', *tokenizer, '--out', 'my.tiktoken')
        self.run_train('tokenize', 'my.txt', '--tokenizer', 'my.tiktoken', '--split', 0.2, '--out', 'my')
        config = self.tiny_config(
            'my.json', model={'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'n_positions': 64, 'vocab_size': 300, **model},
            data={'train': 'my/train-*.bin'}, checkpoint={'every': steps}, optimizer={'lr': 3e-3},
            train={'max_steps': steps, 'micro_batch_size': 4, 'eval_every': steps}, run={'dir': name, 'threads': 1})
        self.run_train(config)

    def same_runs_from(self, tokenizers):
        """Runs from each of the weights, which name this tokenizer, end with the same states. Returns their config."""
        config = self.folder / 'from.json'
        config.write_text(json.dumps({'device': 'cpu', 'data': {'train': 'my/train-*.bin'}, 'run': {'threads': 1}, 'checkpoint': {'every': 2},
                                      'precision': {'compute': 'fp32'},
                                      'train': {'max_steps': 2, 'micro_batch_size': 2, 'eval_every': 0}}))
        states = set()
        for path, tokenizer in tokenizers.items():
            run = f'from-{path.replace("/", "-")}'
            self.assertIn(tokenizer, self.run_train(config, f'model.init_from={path}', f'run.dir={run}').error)
            states.add(json.dumps(self.final_state(run)))
        self.assertEqual(len(states), 1)
        return config


class Layouts(ExportCase):
    def test_shards(self):
        """Files of at most the size named, unless a tensor is larger, and their index."""
        self.export('hf', 'hf', 'whole', '--tokenizer', 'none')
        self.export('hf', 'hf', 'parts', '--tokenizer', 'none', '--max-shard-size', '40 KB')
        parts = sorted((self.folder / 'parts').glob('*.safetensors'))
        self.assertGreater(len(parts), 5)
        self.assertEqual([p.name for p in parts], [f'model-{k + 1:05d}-of-{len(parts):05d}.safetensors' for k in range(len(parts))])
        index = json.loads((self.folder / 'parts' / 'model.safetensors.index.json').read_text())
        whole, together = read_safetensors(self.folder / 'whole' / 'model.safetensors'), {}
        for path in parts:
            tensors = read_safetensors(path)
            self.assertTrue(sum(len(data) for _, _, data in tensors.values()) <= 40000 or len(tensors) == 1)
            self.assertEqual({index['weight_map'][name] for name in tensors}, {path.name})
            together.update(tensors)
        self.assertTrue(together == whole == read_safetensors(self.model / 'model.safetensors'))
        self.assertEqual(index['metadata']['total_size'], sum(len(data) for _, _, data in whole.values()))
        self.export('parts', 'hf', 'again', '--tokenizer', 'none')
        self.same('whole', 'again')

    @unittest.skipIf(harness.SANITIZERS and not harness.FULL, 'with sanitizers only in the full run')
    def test_round_trips(self):
        """Import, export, import, export: the same bytes, from each format to each."""
        self.train_a_run()
        for to, dtype in ('hf', 'fp32'), ('hf', 'bf16'), ('hf', 'fp16'):
            first, second = f'{to}-{dtype}', f'{to}-{dtype}-again'
            self.export('run', to, first, '--dtype', dtype)
            self.export(first, to, second, '--dtype', dtype)
            self.same(first, second)
        for source in 'hf-fp32', 'hf-fp32/model.safetensors', 'run/checkpoints/step-00000004':
            for to in 'hf', 'gguf':
                self.export(source, to, 'by-way', '--force')
                if to == 'gguf':
                    self.export('run', 'gguf', 'gguf', '--force')
                self.same('by-way', 'gguf' if to == 'gguf' else f'{to}-fp32')
        greedy = 'generate', '--prompt', 'the 7 quick', '--tokens', 12, '--temperature', 0, '--device', 'cpu'
        expected = self.run_train(*greedy, 'run').out
        self.assertEqual(self.run_train(*greedy, 'hf-fp32').out, expected)
        losses = {self.run_train('eval', path, '--data', 'my/val-*.bin').out.split('\n')[0].split(':', 1)[-1]
                  for path in ('run', 'hf-fp32')}
        self.assertEqual(len(losses), 1, losses)

    def test_the_card(self):
        self.train_a_run()
        self.export('run', 'hf', 'out')
        card = (self.folder / 'out' / 'README.md').read_text()
        for line in '# out', 'library_name: transformers', f'trained for 4 steps on {4 * 4 * 64} tokens by zero.c', '| layers | 2 |':
            self.assertIn(line, card)
        self.export('hf', 'hf', 'plain', '--tokenizer', 'none')
        card = (self.folder / 'plain' / 'README.md').read_text()
        self.assertIn('parameters, converted by zero.c', card)
        self.assertNotIn('steps', card)


@unittest.skipIf(harness.SANITIZERS and not harness.FULL, 'with sanitizers only in the full run')
class OtherPrograms(ExportCase):
    """What the packages of other programs read."""

    def test_hugging_face(self):
        """The golden logits, computed by numpy from an exported folder, whole and in parts."""
        self.export('hf', 'hf', 'out', '--tokenizer', 'bytes', '--max-shard-size', '100 KB')
        self.assertLess(self.check(READERS, 'logits', 'out', GOLDEN / 'gpt2-tiny')['error'], 1e-5)

    def check_gguf(self, dtype, matrices, bound):
        self.export('hf', 'gguf', dtype, '--dtype', dtype, '--tokenizer', 'bytes')
        found = self.check(READERS, 'gguf', f'{dtype}/model.gguf', 'hf')
        if harness.FULL:
            self.assertEqual(found, self.check(NEWEST_READERS, 'gguf', f'{dtype}/model.gguf', 'hf'))
        self.assertEqual(found['n'], 28)
        self.assertLessEqual(found['worst'], bound)
        for name, of in found['types'].items():
            vector = name.endswith('.bias') or 'norm' in name or name == 'position_embd.weight'
            # A row of 48 is no multiple of Q8_0's blocks of 32: fp16 takes its place.
            wide = name.endswith('ffn_down.weight')
            self.assertEqual(of, 'F32' if vector else matrices[wide], name)
        return found['keys']

    def test_gguf(self):
        for dtype, matrices, bound in (('fp32', ('F32', 'F32'), 0), ('bf16', ('BF16', 'BF16'), 2**-8),
                                       ('fp16', ('F16', 'F16'), 2**-11), ('q8_0', ('F16', 'Q8_0'), 1 / 127)):
            keys = self.check_gguf(dtype, matrices, bound)
            tokens, types = keys.pop('tokenizer.ggml.tokens'), keys.pop('tokenizer.ggml.token_type')
            self.assertEqual((len(tokens), tokens[65], tokens[-1]), (257, 'A', '<|endoftext|>'))
            self.assertEqual(types, [1] * 256 + [3])
            self.assertAlmostEqual(keys.pop('gpt2.attention.layer_norm_epsilon'), 1e-5, 10)
            self.assertEqual(keys, {
                'general.architecture': 'gpt2', 'general.type': 'model', 'general.quantization_version': 2,
                'general.file_type': {'fp32': 0, 'fp16': 1, 'q8_0': 7, 'bf16': 32}[dtype],
                'gpt2.block_count': 2, 'gpt2.context_length': 64, 'gpt2.embedding_length': 48, 'gpt2.feed_forward_length': 192,
                'gpt2.attention.head_count': 3, 'gpt2.vocab_size': 257, 'tokenizer.ggml.model': 'gpt2',
                'tokenizer.ggml.pre': 'gpt-2', 'tokenizer.ggml.merges': [], 'tokenizer.ggml.bos_token_id': 256,
                'tokenizer.ggml.eos_token_id': 256, 'tokenizer.ggml.add_bos_token': False})

    def encode_lines(self, tokenizer, texts):
        """Ids of each text by this program, which encodes each file as a text."""
        for k, text in enumerate(texts):
            (self.folder / f'{k}.txt').write_bytes(text.encode())
        return [[int(word) for word in self.run_train('tokenizer', 'encode', '--tokenizer', tokenizer, f'{k}.txt').out.split()]
                for k in range(len(texts))]

    @staticmethod
    def random_unicode(n_bytes, seed=7):
        """Random characters of Unicode 3.2, whose classes all libraries know by now."""
        numbers = random.Random(seed)
        known = [chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000 and unicodedata.ucd_3_2_0.category(chr(c)) not in ('Cn', 'Co')]
        ascii_words, text, size = 'the of and 12 345 don\'t   \n\t we\'ll .,;!? '.split(' '), [], 0
        while size < n_bytes:
            word = numbers.choice(ascii_words) if numbers.random() < 0.3 else ''.join(numbers.choices(known, k=numbers.randint(1, 6)))
            text.append(word + numbers.choice(['', ' ', '  ', '\n']))
            size += len(text[-1].encode())
        return ''.join(text)

    def test_gpt2_tokenizer(self):
        gpt2 = harness.shared('data/gpt2.tiktoken')
        if not gpt2:
            self.skipTest('needs shared/data/gpt2.tiktoken')
        cases = json.loads((GOLDEN / 'gpt2-bpe.json').read_text())['cases']
        texts = [case['text'] for case in cases] + [self.random_unicode(1_000_000)]
        (self.folder / 'texts.json').write_text(json.dumps(texts))
        self.make_zeros(vocab_size=50257, n_layer=1, n_head=1, n_embd=8, n_positions=8)
        self.export('zeros', 'hf', 'out', '--tokenizer', gpt2)
        found = self.check(READERS, 'tokenizer', 'out', 'texts.json')
        self.assertEqual(found['ids'][:-1], [case['ids'] for case in cases])
        self.assertEqual((found['size'], found['eos']), (50257, [50256]))
        self.assertTrue(found['ids'][-1:] == self.encode_lines('out', texts[-1:]))
        merges = (self.folder / 'out' / 'merges.txt').read_text().splitlines()
        self.assertEqual((len(merges), merges[:4]), (50001, ['#version: 0.2', 'Ġ t', 'Ġ a', 'h e']))

    def test_own_tokenizers(self):
        """Byte-pair encodings trained here, and "bytes", in tokenizers: the same ids. Ids without a token are unused in GGUF."""
        self.train_a_run(steps=1, vocab_size=320)
        self.export('run', 'hf', 'out')
        self.export('hf', 'hf', 'plain', '--tokenizer', 'bytes')
        texts = [(self.folder / 'my.txt').read_text()[:3000], self.random_unicode(20_000)]
        (self.folder / 'texts.json').write_text(json.dumps(texts))
        for folder, tokenizer, size in ('out', 'my.tiktoken', 300), ('plain', 'bytes', 257):
            found = self.check(READERS, 'tokenizer', folder, 'texts.json')
            self.assertTrue(found['ids'] == self.encode_lines(tokenizer, texts))
            self.assertEqual((found['size'], found['eos']), (size, [size - 1]))
        self.export('run', 'gguf', 'gguf')
        keys = self.check(READERS, 'gguf', 'gguf/model.gguf', 'out')['keys']
        merges = (self.folder / 'out' / 'merges.txt').read_text().splitlines()[1:]
        vocabulary = json.loads((self.folder / 'out' / 'vocab.json').read_text())
        self.assertEqual(len(merges), 300 - 257)
        self.assertEqual(keys['tokenizer.ggml.merges'], merges)
        self.assertEqual(keys['tokenizer.ggml.tokens'], list(vocabulary) + [f'[PAD{k}]' for k in range(300, 320)])
        self.assertEqual(keys['tokenizer.ggml.token_type'], [1] * 299 + [3] + [5] * 20)
        self.assertEqual((keys['tokenizer.ggml.eos_token_id'], keys['gpt2.vocab_size']), (299, 320))

    def test_transformers(self):
        """transformers loads exported folders: the golden logits, and the same greedy text."""
        golden = GOLDEN / 'gpt2-tiny'
        for dtype, bound, name in ('fp32', 1e-4, 'float32'), ('bf16', 0.2, 'bfloat16'):
            self.export('hf', 'hf', dtype, '--dtype', dtype, '--tokenizer', 'bytes')
            for release in TRANSFORMERS, NEWEST:
                found = self.check(release, 'transformers', dtype, golden, large=True)
                self.assertLess(found.pop('error'), bound)
                self.assertEqual(found, {'dtype': f'torch.{name}', 'class': 'GPT2LMHeadModel'})
        self.train_a_run(steps=40)
        self.export('run', 'hf', 'out', '--max-shard-size', '50 KB')
        expected = self.run_train('generate', 'run', '--prompt', 'the 7 quick', '--tokens', 30, '--temperature', 0).out
        for release in TRANSFORMERS, NEWEST:
            found = self.check(release, 'generate', 'out', 'the 7 quick', '30', large=True)
            self.assertEqual(found, {'text': expected.rstrip('\n'), 'eos': 299, 'longest': 64})
        # What transformers saves is read: names with a prefix, merges as pairs, in one file and in several.
        for dtype, shard_size in ('fp32', '1GB'), ('bf16', '30KB'):
            self.export('run', 'hf', f'{dtype}-run', '--dtype', dtype)
            saved = self.check(TRANSFORMERS, 'save', f'{dtype}-run', f'{dtype}-saved', shard_size, large=True)
            self.assertIn('model.safetensors' if dtype == 'fp32' else 'model.safetensors.index.json', saved)
            self.export(f'{dtype}-saved', 'hf', f'{dtype}-again', '--dtype', dtype)
            self.same(f'{dtype}-run', f'{dtype}-again', but=('tokenizer.json',))
            again, saved = ((self.folder / f'{dtype}-{name}' / 'tokenizer.json').read_bytes() for name in ('again', 'saved'))
            self.assertTrue(again == saved)  # a tokenizer.json that was read stays as it is

    def test_llama(self):
        """llama.cpp loads the GGUF files and writes the same greedy text."""
        self.train_a_run(steps=40, vocab_size=320)
        expected = self.run_train('generate', 'run', '--prompt', 'the 7 quick', '--tokens', 30, '--temperature', 0).out
        ids = self.encode_lines('my.tiktoken', ['the 7 quick'])[0]
        for dtype in 'fp32', 'q8_0':
            self.export('run', 'gguf', dtype, '--dtype', dtype)
            for release in LLAMA, NEWEST_LLAMA:
                found = self.check(release, 'llama', f'{dtype}/model.gguf', 'the 7 quick', '30', large=True)
                self.assertEqual(found, {'text': expected.rstrip('\n'), 'ids': ids, 'eos': 299})


    FAMILIES = {'llama': ('LlamaForCausalLM', {'n_kv_head': 1, 'tied': False, 'rope_scaling': {
                    'rope_type': 'llama3', 'factor': 4, 'original_max_position_embeddings': 16}}),
                'qwen2': ('Qwen2ForCausalLM', {'n_kv_head': 1, 'qkv_bias': True, 'rope_theta': 1e6, 'norm_eps': 1e-6}),
                'qwen3': ('Qwen3ForCausalLM', {'n_kv_head': 1, 'head_dim': 32, 'qk_norm': True, 'rope_scaling': {
                    'rope_type': 'linear', 'factor': 2}})}

    def test_families(self):
        """The Llama family: golden logits in transformers; the same greedy text there and in llama.cpp."""
        for family, (name, model) in self.FAMILIES.items():
            with self.subTest(family):
                golden = GOLDEN / f'{family}-tiny'
                self.export(golden, 'hf', f'{family}-golden', '--tokenizer', 'none')
                for release in TRANSFORMERS, NEWEST:
                    found = self.check(release, 'transformers', f'{family}-golden', golden, large=True)
                    self.assertLess(found.pop('error'), 1e-4)
                    self.assertEqual(found, {'dtype': 'torch.float32', 'class': name})
                self.train_a_run(name=family, steps=40, family='llama', intermediate_size=96, **model)
                expected = self.run_train('generate', family, '--prompt', 'the 7 quick', '--tokens', 30, '--temperature', 0).out
                self.export(family, 'hf', f'{family}-hf')
                for release in TRANSFORMERS, NEWEST:
                    found = self.check(release, 'generate', f'{family}-hf', 'the 7 quick', '30', large=True)
                    self.assertEqual(found['text'], expected.rstrip('\n'))
                self.export(family, 'gguf', f'{family}-gguf')
                for release in LLAMA, NEWEST_LLAMA:
                    found = self.check(release, 'llama', f'{family}-gguf/model.gguf', 'the 7 quick', '30', large=True)
                    self.assertEqual(found['text'], expected.rstrip('\n'))

    def test_windows(self):
        """A window in all blocks, also with transformers before 4.53: the same greedy text, which has another without windows."""
        for family, option in (('qwen2', 'qkv_bias'), ('qwen3', 'qk_norm'))[:2 if harness.FULL else 1]:
            self.train_a_run(name=family, steps=40, family='llama', window=8, **{option: True})
            prompt = (self.folder / 'my.txt').read_text()[:50]
            text = self.run_train('generate', family, '--prompt', prompt, '--tokens', 30, '--temperature', 0).out.rstrip('\n')
            self.export(family, 'hf', f'{family}-hf')
            found = self.check(TRANSFORMERS, 'generate', f'{family}-hf', prompt, '30', large=True)
            self.assertEqual(found['text'], text)
            path = self.folder / f'{family}-hf' / 'config.json'
            path.write_text(path.read_text().replace('"use_sliding_window": true', '"use_sliding_window": false'))
            whole = self.run_train('generate', f'{family}-hf', '--prompt', prompt, '--tokens', 30, '--temperature', 0).out
            self.assertNotEqual(whole.rstrip('\n'), text)

    YARN = {'rope_type': 'yarn', 'factor': 4, 'original_max_position_embeddings': 16, 'attention_factor': 1.5}

    def test_yarn_in_gguf(self):
        """llama.cpp multiplies its own attention factor by the file's, and reads no beta_fast or beta_slow."""
        for i, (own, of_file) in enumerate(((1.5, 1.5 / (1 + 0.1 * math.log(4))), (0, None))):
            self.train_a_run(name=f'yarn-{i}', steps=1, family='llama', rope_scaling={**self.YARN, 'attention_factor': own})
            self.export(f'yarn-{i}', 'gguf', f'gguf-{i}')
            keys = self.check(READERS, 'keys', f'gguf-{i}/model.gguf')
            found = {name.removeprefix('llama.rope.'): value for name, value in keys.items() if '.rope.' in name}
            factor = found.pop('scaling.attn_factor', None)
            self.assertEqual(factor and round(factor, 6), of_file and round(of_file, 6))
            self.assertEqual(found, {'freq_base': 10000, 'dimension_count': 16, 'scaling.type': 'yarn', 'scaling.factor': 4,
                                     'scaling.original_context_length': 16})
        self.train_a_run(name='betas', steps=1, family='llama', rope_scaling={**self.YARN, 'beta_fast': 20})
        self.refuses('export', 'betas', '--to', 'gguf', 'out', says=['beta_fast', '--to hf'])

    def test_rotary_frequencies(self):
        """YaRN in transformers and llama.cpp, and the golden frequencies made again."""
        python = python_with(*TRANSFORMERS, large=True)
        subprocess.run([python, ROOT / 'scripts' / 'golden' / 'rope.py', self.folder / 'rope.json'], check=True, capture_output=True)
        self.assertEqual((self.folder / 'rope.json').read_text(), (GOLDEN / 'rope.json').read_text())
        self.train_a_run(name='yarn', steps=200, family='llama', rope_scaling=self.YARN)
        prompt = (self.folder / 'my.txt').read_text()[:50]
        texts = [self.run_train('generate', 'yarn', '--prompt', prompt, '--tokens', 20, '--temperature', 0).out.rstrip('\n')]
        for to in 'hf', 'gguf':
            self.export('yarn', to, f'yarn-{to}')
        texts.append(self.check(TRANSFORMERS, 'generate', 'yarn-hf', prompt, '20', large=True)['text'])
        texts.append(self.check(LLAMA, 'llama', 'yarn-gguf/model.gguf', prompt, '20', large=True)['text'])
        self.assertEqual([text.rstrip('\n') for text in texts[1:]], texts[:1] * 2)


class Refusals(ExportCase):
    def refuses_export(self, *arguments, says, **options):
        return self.refuses('export', *arguments, says=says, **options)

    def test_arguments(self):
        self.refuses_export('hf', says=['expected the weights and the folder to write', 'usage'])
        self.refuses_export('hf', 'out', says=['no format is named', '--to hf or gguf'])
        self.refuses_export('hf', 'out', '--to', 'onnx', says=['unknown format onnx'])
        self.refuses_export('hf', 'out', '--to', 'hf', '--dtype', 'int4', says=['unknown --dtype int4'])
        self.refuses_export('hf', 'out', '--to', 'llmc', says=['--to llmc was removed; use --to hf or gguf'])
        self.refuses_export('hf', 'out', '--to', 'hf', '--dtype', 'q8_0', says=['hf files cannot hold q8_0'])
        self.refuses_export('gone', 'out', '--to', 'hf', says=['gone does not exist'])
        self.refuses_export('hf', 'out', '--to', 'hf', '--tokenizer', 'gone', says=['cannot open the tokenizer gone'])
        warning = self.export('hf', 'hf', 'without').error
        self.assertIn('hf has no tokenizer', warning)
        self.assertFalse((self.folder / 'without' / 'tokenizer.json').exists())
        self.assertFalse((self.folder / 'out').exists())

    def test_tokenizers(self):
        self.train_a_run(steps=1)
        self.make_zeros(vocab_size=300, n_layer=1, n_head=1, n_embd=8, n_positions=8)
        self.refuses_export('hf', 'out', '--to', 'hf', '--tokenizer', 'my.tiktoken', says=['300 ids', 'vocab_size of 257'])
        self.refuses_export('run', 'out', '--to', 'hf', '--tokenizer', 'bytes', says=['bytes is not the tokenizer of run'])
        lines = (self.folder / 'my.tiktoken').read_text().splitlines()[:256]
        for token, says in (b'<|endoftext|>', "not made by GPT-2's pattern"), (b'xyz', 'not made by one merge of two tokens'):
            (self.folder / 'odd.tiktoken').write_text('\n'.join([*lines, f'{b64encode(token).decode()} 256']) + '\n')
            for to in 'hf', 'gguf':
                self.refuses_export('zeros', 'out', '--to', to, '--tokenizer', 'odd.tiktoken', says=['token 256', says])
        self.assertFalse((self.folder / 'out').exists())

    def test_values_that_do_not_fit(self):
        path = self.model / 'model.safetensors'
        data = bytearray(path.read_bytes())
        struct.pack_into('<f', data, len(data) - 4, 7e4)
        path.write_bytes(data)
        self.refuses_export('hf', 'out', '--to', 'hf', '--dtype', 'fp16', says=['has the value 70000, too large for fp16'])
        self.export('hf', 'hf', 'fits', '--dtype', 'bf16', '--tokenizer', 'none')
        struct.pack_into('<f', data, len(data) - 4, float('nan'))
        path.write_bytes(data)
        self.refuses_export('hf', 'out', '--to', 'gguf', says=['values that are not finite'])
        self.assertFalse((self.folder / 'out').exists())

    def test_folders_of_others(self):
        self.export('hf', 'hf', 'out', '--tokenizer', 'none', '--max-shard-size', '40 KB')
        self.export('hf', 'gguf', 'out', '--tokenizer', 'none')  # a folder that an export wrote may be used again
        self.assertEqual(sorted(p.name for p in (self.folder / 'out').iterdir()), ['export.json', 'model.gguf'])
        (self.folder / 'out' / 'notes.txt').write_text('mine')
        self.refuses_export('hf', 'out', '--to', 'hf', says=['out has files that no export wrote: notes.txt', '--force'])
        self.refuses_export('hf', 'hf', '--to', 'hf', says=['hf would be written into its own folder'])
        self.refuses_export('hf/model.safetensors', 'hf', '--to', 'gguf', says=['written into its own folder'])
        self.export('hf', 'hf', 'both', '--tokenizer', 'none')
        self.refuses_export('both', 'both', '--to', 'gguf', says=['both would be written into its own folder'])
        self.export('both', 'gguf', 'both', '--tokenizer', 'none', '--force')  # its source stays
        self.assertLessEqual({'model.gguf', 'model.safetensors', 'config.json'}, {p.name for p in (self.folder / 'both').iterdir()})
        (self.folder / 'file').write_text('mine')
        self.refuses_export('hf', 'file', '--to', 'hf', says=['file is a file'])
        self.refuses_export('hf', 'file/out', '--to', 'hf', says=['file'])
        self.export('hf', 'gguf', 'out', '--tokenizer', 'none', '--force')
        self.assertEqual(sorted(p.name for p in (self.folder / 'out').iterdir()), ['export.json', 'model.gguf', 'notes.txt'])
        self.assertEqual(json.loads((self.folder / 'out' / 'export.json').read_text())['files'], ['model.gguf'])
        for record in '{', '[]', '{"files": 5}', '{"files": ["../hf/config.json", 5]}':
            (self.folder / 'out' / 'export.json').write_text(record)
            self.refuses_export('hf', 'out', '--to', 'hf', says=['files that no export wrote'])
            self.export('hf', 'gguf', 'out', '--tokenizer', 'none', '--force')
        self.assertTrue((self.model / 'config.json').exists())
        (self.folder / 'out.export-unfinished').mkdir()  # of a process that was killed
        (self.folder / 'out' / 'notes.txt').unlink()
        self.export('hf', 'gguf', 'out', '--tokenizer', 'none')
        (self.folder / 'out').rename(self.folder / 'out.export-replaced')  # of one that was killed between its two renames
        self.refuses_export('hf', 'out', '--to', 'gguf', says=['out.export-replaced is a folder that a killed export was replacing'])
        (self.folder / 'out.export-replaced').rename(self.folder / 'out')
        self.assertEqual([p.name for p in self.folder.glob('out*')], ['out'])
        self.run_train('export', '../hf', '--to', 'gguf', '.', '--tokenizer', 'none', cwd=self.folder / 'out')
        os.symlink('out', self.folder / 'link')
        self.export('hf', 'gguf', 'link/', '--tokenizer', 'none')
        self.assertTrue((self.folder / 'link').is_symlink())
        self.assertEqual(sorted(p.name for p in (self.folder / 'out').iterdir()), ['export.json', 'model.gguf'])

    def test_a_full_disk(self):
        """A write that fails leaves the folder as it was: absent, or with the earlier export."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for to in 'hf', 'gguf':
            self.refuses_export('hf', 'out', '--to', to, '--tokenizer', 'bytes', code=1, says=['cannot write', 'File too large'],
                                preexec_fn=limit)
            self.assertFalse((self.folder / 'out').exists())
        self.export('hf', 'hf', 'out', '--tokenizer', 'bytes')
        shutil.copytree(self.folder / 'out', self.folder / 'before')
        self.refuses_export('hf', 'out', '--to', 'hf', '--dtype', 'bf16', '--tokenizer', 'bytes', code=1, says=['File too large'],
                            preexec_fn=limit)
        self.same('out', 'before')

    def test_a_signal(self):
        """Ctrl-C ends a long export, here of 1.6 billion parameters, and leaves the folder as it was."""
        self.make_zeros(n_layer=48, n_head=25, n_embd=1600, vocab_size=50257, n_positions=1024)
        process = self.start('export', 'zeros', '--to', 'gguf', 'out', '--tokenizer', 'none', preexec_fn=harness.restore_signals)
        for _ in range(1200):
            if list(self.folder.glob('out.export-unfinished/model.gguf.tmp-*')) or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        self.finish(process, 128 + signal.SIGINT)
        self.assertIn('stopped by a signal; out was not changed', process.error)
        self.assertEqual(list(self.folder.glob('out*')), [])


if __name__ == '__main__':
    unittest.main()
