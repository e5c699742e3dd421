"""What the newest and an old release of other programs make of exported files: tokenizers of every form with models of every
family, the token that ends a chat and its template, and models that a reader cannot have."""
import json
import shutil
import struct
import unittest

import harness
from harness import GOLDEN
from python_env import newest
from test_export import ExportCase, LLAMA, NEWEST_LLAMA, read_safetensors
from test_tokenizers import TokenizerCase, byte_alphabet

TRANSFORMERS = newest('transformers', 'tokenizers'), ('transformers==4.51.3', 'tokenizers==0.21.4')  # without PyTorch
TEXTS = ['  12', ' 12 345', 'e\u0301', ' a', '', '\n\n', 'a<|im_end|>b', '<think>x</think>', "KING'S 1611,\r\n  x", '\u1100\u1161 \u212b']
MERGED = 'ĠĠ', 'Ġ1', '12', 'ab'
TEMPLATE = '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"\\\'é\n'
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class ReaderCase(ExportCase):
    def weights(self, family, n_ids):
        """The golden model of a family with a vocabulary of so many ids, of zeros."""
        name = f'{family}-{n_ids}'
        shutil.copytree(GOLDEN / f'{family}-tiny', self.folder / name)
        path = self.folder / name / 'config.json'
        path.write_text(json.dumps({**json.loads(path.read_text()), 'vocab_size': n_ids}))
        tensors = read_safetensors(self.folder / name / 'model.safetensors')
        header, data = {}, b''
        for key, (dtype, shape, value) in tensors.items():
            if key.rpartition('.')[0].endswith(('wte', 'embed_tokens', 'lm_head')):
                shape = [n_ids, shape[1]]
                value = bytes(4 * n_ids * shape[1])
            header[key] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(data), len(data) + len(value)]}
            data += value
        text = json.dumps(header).encode()
        text += b' ' * (-len(text) % 8)
        (self.folder / name / 'model.safetensors').write_bytes(struct.pack('<Q', len(text)) + text + data)
        return name

    def tokenizer(self, name, pattern, normalizer=None, added=('<|endoftext|>',), **beside):
        """A tokenizer.json of bytes and four merges, with other JSON files beside it."""
        byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
        firsts = {'gpt2': None, 'smollm': {'type': 'Digits', 'individual_digits': True},
                  'qwen2': {'type': 'Split', 'pattern': {'Regex': QWEN2}, 'behavior': 'Isolated', 'invert': False}}
        pre_tokenizer = byte_level if pattern == 'gpt2' else {'type': 'Sequence', 'pretokenizers': [
            firsts[pattern], {**byte_level, 'use_regex': pattern != 'qwen2'}]}
        vocab = {**byte_alphabet(), **{token: 256 + k for k, token in enumerate(MERGED)}}
        model = dict(type='BPE', dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                     byte_fallback=False, ignore_merges=False, vocab=vocab, merges=[' '.join(token) for token in MERGED])
        tokens = [dict(id=len(vocab) + k, content=token, single_word=False, lstrip=False, rstrip=False, normalized=False,
                       special=token != '<think>') for k, token in enumerate(added)]
        content = dict(version='1.0', truncation=None, padding=None, added_tokens=tokens, normalizer=normalizer and {'type': normalizer},
                       pre_tokenizer=pre_tokenizer, post_processor=None, decoder=byte_level, model=model)
        (self.folder / name).mkdir()
        for file, what in {'tokenizer': content, **beside}.items():
            (self.folder / name / f'{file}.json').write_text(json.dumps(what))
        return name

    def settings(self, folder, file='tokenizer_config'):
        return json.loads((self.folder / folder / f'{file}.json').read_text())

    def ids(self, tokenizer, text):
        return list(map(int, self.run_train('tokenizer', 'encode', '--tokenizer', tokenizer, text=text).out.split()))


class Classes(ReaderCase):
    """transformers 5 builds the rules of a class that it is told, and ignores the file's."""
    # form -> pattern, normalizer, added tokens, class, and the ids that the tokenizers package gave the text
    TEXT = '  12 abe\u0301'
    FORMS = {'gpt2-plain': ('gpt2', None, ('<|endoftext|>',), 'GPT2Tokenizer', [32, 257, 50, 32, 259, 101, 204, 129]),
             'gpt2-nfc': ('gpt2', 'NFC', ('<|endoftext|>',), 'PreTrainedTokenizerFast', [32, 257, 50, 32, 259, 195, 169]),
             'gpt2-chat': ('gpt2', None, ('<|endoftext|>', '<|im_end|>'), 'PreTrainedTokenizerFast', [32, 257, 50, 32, 259, 101, 204, 129]),
             'smollm': ('smollm', None, ('<|endoftext|>', '<think>'), 'PreTrainedTokenizerFast', [256, 49, 50, 32, 259, 101, 204, 129]),
             'qwen2': ('qwen2', 'NFC', ('<|endoftext|>', '<|im_end|>', '<think>'), 'Qwen2Tokenizer', [32, 32, 49, 50, 32, 259, 195, 169]),
             'qwen2-no-nfc': ('qwen2', None, ('<|endoftext|>',), 'PreTrainedTokenizerFast', [32, 32, 49, 50, 32, 259, 101, 204, 129]),
             'qwen2-no-name': ('qwen2', 'NFC', ('</s>',), 'PreTrainedTokenizerFast', [32, 32, 49, 50, 32, 259, 195, 169])}
    FAMILIES = 'gpt2', 'llama', 'qwen2', 'qwen3'

    def exports(self, families):
        """(form, folder, family) of each form with the models of these families."""
        for family in families:
            weights = self.weights(family, 270)
            for name, (pattern, normalizer, added, *_) in self.FORMS.items():
                if not (self.folder / name).exists():
                    self.tokenizer(name, pattern, normalizer, added)
                self.export(weights, 'hf', f'{family}-{name}', '--tokenizer', name)
                yield name, f'{family}-{name}', family

    def test_classes(self):
        for name, folder, family in self.exports(self.FAMILIES if harness.FULL else ('qwen2', 'llama')):
            found, (*_, wanted, ids) = self.settings(folder), self.FORMS[name]
            self.assertEqual(found['tokenizer_class'], wanted, folder)
            is_overruled = family == 'qwen2' and wanted != 'Qwen2Tokenizer'
            self.assertEqual(found.get('auto_map'), {'AutoTokenizer': [wanted] * 2} if is_overruled else None, folder)
            self.assertEqual(self.ids(folder, self.TEXT), ids, folder)

    @unittest.skipUnless(harness.FULL, 'full run only: the short one checks what they read')
    def test_transformers(self):
        cases = [{'folder': folder, 'file': f'{name}/tokenizer.json', 'texts': [self.TEXT, *TEXTS]}
                 for name, folder, _ in self.exports(self.FAMILIES)]
        (self.folder / 'cases.json').write_text(json.dumps(cases))
        for release in TRANSFORMERS:
            found = self.check(release, 'auto_tokenizers', 'cases.json')
            self.assertEqual({folder: of['wrong'] for folder, of in found.items() if of['wrong']}, {}, release)
            for name, (*_, ids) in self.FORMS.items():
                self.assertEqual(found[f'llama-{name}']['ids'], ids, name)


class PublishedForms(TokenizerCase, ReaderCase):
    @unittest.skipUnless(harness.FULL, 'full run only')
    def test_transformers(self):
        """Long texts with tokenizers of the forms that published models have."""
        texts = [(self.forms / f'{name}.txt').read_bytes().decode()[:100_000] for name in ('words', 'characters')]
        cases = []
        for family in 'gpt2', 'llama', 'qwen2', 'qwen3':
            weights = self.weights(family, 1600)
            for name in self.expected:
                self.export(weights, 'hf', f'{family}-{name}', '--tokenizer', self.forms / name)
                cases.append({'folder': f'{family}-{name}', 'file': str(self.forms / name / 'tokenizer.json'), 'texts': [*TEXTS, *texts]})
        (self.folder / 'cases.json').write_text(json.dumps(cases))
        for release in TRANSFORMERS:
            found = self.check(release, 'auto_tokenizers', 'cases.json')
            self.assertEqual({folder: of['wrong'] for folder, of in found.items() if of['wrong']}, {}, release)


class Chat(ReaderCase):
    """The token that ends a chat and the template come with the tokenizer, and go on into all that is written."""
    def chat(self, name, template=TEMPLATE, pattern='qwen2', added=('<|endoftext|>', '<|im_start|>', '<|im_end|>'), **ids):
        settings = {'eos_token': {'content': added[-1]}, 'chat_template': template}
        return self.tokenizer(name, pattern, 'NFC' if pattern == 'qwen2' else None, added, tokenizer_config=settings,
                              **{file: {'eos_token_id': ends} for file, ends in ids.items()})

    def check_hf(self, folder, ends, template=TEMPLATE, token='<|im_end|>'):
        settings = self.settings(folder)
        self.assertEqual((settings['eos_token'], settings.get('chat_template')), (token, template), folder)
        self.assertEqual(self.settings(folder, 'special_tokens_map')['eos_token'], token)
        for file in 'config', 'generation_config':
            self.assertEqual(self.settings(folder, file)['eos_token_id'], ends, folder)

    def test_export_import_training(self):
        self.chat('chat', generation_config=[260, 262])
        weights = self.weights('qwen2', 270)
        for to in 'hf', 'gguf':
            self.export(weights, to, f'to-{to}', '--tokenizer', 'chat')
            self.export(f'to-{to}', 'hf', f'{to}-hf')
            self.export(f'to-{to}', 'gguf', f'{to}-gguf')
        for to in 'hf', 'gguf':
            self.same(f'{to}-gguf', 'to-gguf')
        for folder in 'to-hf', 'hf-hf', 'gguf-hf':
            self.check_hf(folder, [262, 260])
        (self.folder / 'text.txt').write_text('ab 12\n' * 400)
        self.run_train('tokenize', 'text.txt', '--tokenizer', 'to-hf', '--split', 0.2, '--out', 'shards')
        (self.folder / 'c.json').write_text(json.dumps({
            'device': 'cpu', 'data': {'train': 'shards/train-*.bin'}, 'run': {'dir': 'run', 'threads': 1}, 'model': {'init_from': 'to-hf'},
            'precision': {'compute': 'fp32'}, 'train': {'max_steps': 1, 'micro_batch_size': 2, 'eval_every': 0}}))
        self.run_train('c.json')
        self.run_train('run/config.json', 'train.max_steps=2')
        self.run_train('checkpoint', 'verify', 'run')
        self.export('run', 'hf', 'run-hf')
        self.check_hf('run-hf', [262, 260])

    def test_plain_tokenizers(self):
        """Like GPT-2's, whose checkpoints have a tiktoken file."""
        self.chat('chat', pattern='gpt2', added=('<|endoftext|>',))
        weights = self.weights('gpt2', 270)
        (self.folder / 'text.txt').write_text('ab 12\n' * 400)
        self.run_train('tokenize', 'text.txt', '--tokenizer', 'chat', '--split', 0.2, '--out', 'shards')
        self.run_train(self.tiny_config(data={'train': 'shards/train-*.bin', 'val': 'shards/val-*.bin', 'tokenizer': 'chat'},
                                        model={'vocab_size': 270}, train={'max_steps': 1}))
        self.export('run', 'hf', 'run-hf')
        self.export(weights, 'gguf', 'gguf', '--tokenizer', 'chat')
        self.export('gguf', 'hf', 'gguf-hf')
        for folder in 'run-hf', 'gguf-hf':
            self.check_hf(folder, 260, token='<|endoftext|>')

    def test_forms_of_templates(self):
        """In a file of its own, which counts first; several with names."""
        self.chat('chat')
        weights = self.weights('llama', 270)
        several = [{'name': 'default', 'template': 'one'}, {'name': 'tool_use', 'template': TEMPLATE}]
        self.export(weights, 'hf', 'several-hf', '--tokenizer', self.chat('several', several))
        self.check_hf('several-hf', [262, 260], several)
        (self.folder / 'chat' / 'chat_template.jinja').write_text(TEMPLATE * 2)
        self.export(weights, 'hf', 'file-hf', '--tokenizer', 'chat')
        self.check_hf('file-hf', [262, 260], TEMPLATE * 2)
        self.export(weights, 'hf', 'without-hf', '--tokenizer', self.tokenizer('without', 'gpt2'))
        self.assertNotIn('chat_template', self.settings('without-hf'))

    def test_llama_3(self):
        """Three ends: GGUF has a key for each."""
        names = '<|endoftext|>', '<|eom_id|>', '<|eot_id|>'
        self.chat('chat', added=names, generation_config=[260, 261, 262])
        self.export(self.weights('llama', 270), 'gguf', 'gguf', '--tokenizer', 'chat')
        self.export('gguf', 'hf', 'gguf-hf')
        self.check_hf('gguf-hf', [262, 260, 261], token='<|eot_id|>')


class GGUF(ReaderCase):
    """What llama.cpp does not have is refused, or said."""
    def changed(self, family, **config):
        name = f'{family}-changed'
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(GOLDEN / f'{family}-tiny', self.folder / name)
        path = self.folder / name / 'config.json'
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
        return name

    SCALINGS = {'linear': {'rope_type': 'linear', 'factor': 2.0},
                'yarn': {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16},
                'llama3': {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
                           'original_max_position_embeddings': 32}}

    def scalings(self):
        """Exports models of all scalings that llama.cpp has, and yields the files."""
        for family in 'llama', 'qwen2', 'qwen3':
            for name, scaling in self.SCALINGS.items():
                model = self.changed(family, rope_scaling=scaling)
                arguments = 'export', model, '--to', 'gguf', f'{family}-{name}', '--tokenizer', 'none'
                if name == 'llama3' and family != 'llama':
                    self.refuses(*arguments, says=['llama3', 'Qwen2 and Qwen3', '--to hf'])
                else:
                    self.run_train(*arguments)
                    yield f'{family}-{name}/model.gguf'

    def test_scalings(self):
        self.assertEqual(len(list(self.scalings())), 7)

    @unittest.skipUnless(harness.FULL, 'full run only: it builds llama.cpp')
    def test_llama_cpp(self):
        """It loads all that is written, and finds the chat's end and template."""
        paths = list(self.scalings())
        name = self.tokenizer('chat', 'qwen2', 'NFC', ('<|endoftext|>', '<|im_end|>'),
                              tokenizer_config={'eos_token': '<|im_end|>', 'chat_template': TEMPLATE})
        self.export(self.weights('qwen2', 270), 'gguf', 'gguf', '--tokenizer', name)
        for release in LLAMA, NEWEST_LLAMA:
            found = self.check(release, 'llama_loads', *paths, 'gguf/model.gguf', large=True)
            self.assertEqual(found, {'eos': 261, 'template': TEMPLATE})

    def test_normalization(self):
        """It is said where llama.cpp does not have it, and read again as it was."""
        weights = self.weights('llama', 270)
        for pattern in 'gpt2', 'smollm', 'qwen2':
            for normalizer in 'NFC', None:
                name = self.tokenizer(f'{pattern}-{normalizer}', pattern, normalizer)
                said = self.export(weights, 'gguf', f'{name}-gguf', '--tokenizer', name).error
                self.assertEqual('does not normalize' in said, normalizer == 'NFC', said)
                wanted = self.ids(name, 'e\u0301')
                self.assertEqual(self.ids(f'{name}-gguf', 'e\u0301'), wanted)
                self.assertEqual(len(wanted), 2 if normalizer else 3)
                self.export(f'{name}-gguf', 'gguf', f'{name}-again')
                self.same(f'{name}-gguf', f'{name}-again')
        self.assertIn('normalized', self.export('qwen2-NFC-gguf', 'hf', 'said').error)


if __name__ == '__main__':
    unittest.main()
