"""Tokenizers of published models' forms: the ids of the tokenizers package, what shards, checkpoints and exports hold."""
import base64
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

import harness
from harness import CommandCase, release_only
from python_env import python_with
from test_export import READERS, ExportCase

FORMS = pathlib.Path(__file__).with_name('tokenizer_forms.py')


def byte_alphabet():
    """GPT-2's characters for the bytes, as a table from characters."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


class TokenizerCase(CommandCase):
    """self.forms: the folder that tokenizer_forms.py fills, once for all tests."""
    forms = None

    def setUp(self):
        super().setUp()
        if not TokenizerCase.forms:
            folder = pathlib.Path(harness.tempfile.mkdtemp(prefix='zero-forms-'))
            self.addClassCleanup(self.remove_forms)
            TokenizerCase.forms = folder
            self.python(FORMS, folder, 400_000 if harness.FULL else 30_000)
            TokenizerCase.expected = json.loads((folder / 'expected.json').read_text())

    @classmethod
    def remove_forms(cls):
        shutil.rmtree(TokenizerCase.forms)
        TokenizerCase.forms = None

    def python(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
        process = subprocess.run([python_with(*READERS), *map(str, arguments)], cwd=self.folder, env=environment,
                                 capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr)
        return process.stdout

    def content(self, name):
        return json.loads((self.forms / name / 'tokenizer.json').read_text())

    def write(self, content, name='changed'):
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / 'tokenizer.json').write_text(json.dumps(content))
        return name

    def encode(self, tokenizer, *arguments, **options):
        return list(map(int, self.run_train('tokenizer', 'encode', '--tokenizer', tokenizer, *arguments, **options).out.split()))

    def same_ids(self, got, wanted, what):
        k = next((k for k, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]), min(len(got), len(wanted)))
        self.assertTrue(got == wanted, f'{what}: id {k}: {got[k - 3:k + 3]} instead of {wanted[k - 3:k + 3]}')


class InGGUF(TokenizerCase, ExportCase):
    @release_only('the fuzzer of tokenizers reads them too')
    def test_forms(self):
        """The tokenizer inside a GGUF file is that of the tokenizer.json; written again it has the same bytes."""
        self.make_zeros(vocab_size=1600, n_layer=1, n_head=1, n_embd=8, n_positions=8)
        # GGUF does not say whether text is normalized: Qwen2's pattern without it, a form made for these tests, is read as Qwen2's.
        for name, texts in ((name, texts) for name, texts in self.expected.items() if name != 'shuffled'):
            with self.subTest(name):
                self.export('zeros', 'gguf', f'{name}-gguf', '--tokenizer', self.forms / name)
                self.export(f'{name}-gguf', 'gguf', f'{name}-again')
                self.same(f'{name}-gguf', f'{name}-again')
                self.export(f'{name}-gguf', 'hf', f'{name}-hf')
                for path in f'{name}-gguf', f'{name}-gguf/model.gguf', f'{name}-hf':
                    for text, expected in texts.items():
                        self.same_ids(self.encode(path, self.forms / f'{text}.txt'), expected['ids'], f'{path}, {text}')
                end, n = (re.search(r'end-of-text is (\d+)\), longest token (\d+)', self.run_train('inspect', path).out).groups()
                          for path in (self.forms / name / 'tokenizer.json', f'{name}-hf/tokenizer.json'))
                self.assertEqual(end, n)


class Ids(TokenizerCase):
    @release_only('test_files and the fuzzer of tokenizers encode with every form')
    def test_ids(self):
        self.check_every_form()
        self.check_words_that_no_merge_makes()
        self.check_control_tokens_are_not_read_in_text()

    def check_every_form(self):
        for name, texts in self.expected.items():
            for text, expected in texts.items():
                ids = self.encode(self.forms / name, self.forms / f'{text}.txt')
                self.same_ids(ids, expected['ids'], f'{name}, {text}')
                (self.folder / 'ids').write_text(' '.join(map(str, ids)))
                out = self.run_train('tokenizer', 'decode', '--tokenizer', self.forms / name, text=(self.folder / 'ids').read_text()).out
                if name != 'smollm':  # of which the package shows bytes that are lost in another way
                    wanted = re.sub('\r\n?', '\n', expected['text'])  # as Python reads the output
                    self.assertTrue(out == wanted, (name, text))

    def check_words_that_no_merge_makes(self):
        vocab = self.content('llama3')['model']['vocab']
        self.assertEqual(self.encode(self.forms / 'llama3', text='xyzzy plugh'), [vocab['xyzzy'], vocab['Ġplugh']])

    def check_control_tokens_are_not_read_in_text(self):
        for name, token in ('llama3', '<|eot_id|>'), ('qwen2', '<|im_end|>'), ('llama2', '</s>'), ('smollm', '<|im_end|>'):
            ids = self.encode(self.forms / name, text=f'a{token}b')
            added = {item['id'] for item in self.content(name)['added_tokens']}
            self.assertFalse(added & set(ids), name)
            out = self.run_train('tokenizer', 'decode', '--tokenizer', self.forms / name, text=' '.join(map(str, ids))).out
            self.assertEqual(out, f'a{token}b')

    def test_tiktoken_files(self):
        """Llama 3's and Qwen's files hold the tokens only; a tokenizer.json made of them works as they do."""
        alphabet = byte_alphabet()
        for form, file, first, n in ('llama3', 'tokenizer.model', '<|begin_of_text|>', 256), ('qwen2', 'qwen.tiktoken', '<|endoftext|>', 208):
            vocab = self.content(form)['model']['vocab']
            tokens = [bytes(alphabet[c] for c in token) for token in sorted(vocab, key=vocab.get)]
            folder = self.folder / form
            folder.mkdir()
            (folder / file).write_text(''.join(f'{base64.b64encode(t).decode()} {k}\n' for k, t in enumerate(tokens)))
            for text in 'words', 'characters':
                ids = self.encode(form, self.forms / f'{text}.txt')
                self.same_ids(ids, self.expected[form][text]['ids'], f'{form}, {text}')
            self.assertIn(f'{len(tokens) + n} ids', self.run_train('inspect', folder / file).out)
            self.train_with(form)
            made = self.checkpoint_tokenizer()
            content = json.loads(made.read_text())
            self.assertEqual(content['added_tokens'][0], {'id': len(tokens), 'content': first, 'single_word': False, 'lstrip': False,
                                                          'rstrip': False, 'normalized': False, 'special': True})
            self.same_ids(self.encode(made, self.forms / 'words.txt'), self.expected[form]['words']['ids'], form)
            self.assertEqual(self.python('-c', 'import sys, tokenizers; t = tokenizers.Tokenizer.from_file(sys.argv[1]); '
                                         'print(t.encode("The king\'s 12345 \\u00e9\\n\\nX").ids)', made).strip(),
                             str([*([len(tokens)] if form == 'llama3' else []), *self.encode(made, text="The king's 12345 é\n\nX")]))
            shutil.rmtree(self.folder / 'run')
        (self.folder / 'llama3' / 'config.json').write_text('{"model_type": "grok"}')
        self.refuses('inspect', 'llama3/tokenizer.model', says=["Llama 3's tokenizer", 'grok'])

    def train_with(self, tokenizer):
        (self.folder / 'text.txt').write_text('the king said: 1611 times the king.\n' * 40)
        self.run_train('tokenize', 'text.txt', '--tokenizer', tokenizer, '--split', 0.2, '--out', 'shards')
        config = self.tiny_config(data={'train': 'shards/train-*.bin', 'val': 'shards/val-*.bin', 'tokenizer': str(tokenizer)},
                                  model={'vocab_size': 1400}, train={'max_steps': 1})
        return self.run_train(config)

    def checkpoint_tokenizer(self):
        return self.checkpoints()[-1] / 'tokenizer.json'


class Files(TokenizerCase):
    train_with, checkpoint_tokenizer = Ids.train_with, Ids.checkpoint_tokenizer

    def shard_tokens(self, name):
        data = (self.folder / 'out' / f'{name}-00000.bin').read_bytes()
        words = struct.unpack('<8i', data[:32])
        return words[7], list(struct.unpack(f'<{words[2]}H', data[1024:]))

    def test_files(self):
        self.check_documents()
        self.check_ends()
        self.check_refused()

    def check_documents(self):
        """With bos: bos before and end-of-text after each document; else end-of-text before each."""
        texts = 'the king', '12 naïve\n', 'x'
        (self.folder / 'a.txt').write_text('<|endoftext|>'.join(texts))
        lines = ''.join(json.dumps({'text': text}) + '\n' for text in texts)
        for name in 'llama3', 'llama2', 'qwen2', 'smollm':
            added = {item['content']: item['id'] for item in self.content(name)['added_tokens']}
            end = next(added[token] for token in ('<|endoftext|>', '<|end_of_text|>', '</s>') if token in added)
            bos = added.get('<|begin_of_text|>', added.get('<s>'))
            encoded = [self.encode(self.forms / name, text=text) for text in texts]
            wanted = [[bos, *ids, end] if bos is not None else [end, *ids] for ids in encoded]
            self.run_train('tokenize', 'a.txt', '--end-of-text', '--tokenizer', self.forms / name, '--out', 'out')
            self.assertEqual(self.shard_tokens('train'), ((end if bos is None else bos) + 1, sum(wanted, [])), name)
            self.run_train('tokenize', '-', '--field', 'text', '--split', 0.1, '--tokenizer', self.forms / name, '--out', 'out', text=lines)
            self.assertEqual(self.shard_tokens('train')[1], wanted[0] + wanted[1], name)
            self.assertEqual(self.shard_tokens('val')[1], wanted[2], name)
            meta = json.loads((self.folder / 'out' / 'meta.json').read_text())
            self.assertEqual([meta[split]['documents'] for split in ('train', 'val')], [2, 1], name)
            self.assertEqual([meta[split]['bytes'] for split in ('train', 'val')], [18, 1], name)

    def test_runs(self):
        """The checkpoint and the export have the same tokenizer.json; generation begins with bos and without the space."""
        for name in 'llama3', 'llama2':
            original = (self.forms / name / 'tokenizer.json').read_bytes()
            self.assertIn('bits per byte', self.train_with(self.forms / name).error)
            self.assertEqual(self.checkpoint_tokenizer().read_bytes(), original)
            self.run_train('run/config.json', 'train.max_steps=2', 'data.mask_documents=true', 'checkpoint.resume_with=data.mask_documents')
            self.run_train('export', 'run', '--to', 'hf', 'hf')
            self.assertEqual((self.folder / 'hf' / 'tokenizer.json').read_bytes(), original)
            self.assertFalse((self.folder / 'hf' / 'vocab.json').exists())
            config = json.loads((self.folder / 'hf' / 'config.json').read_text())
            tokenizer_config = json.loads((self.folder / 'hf' / 'tokenizer_config.json').read_text())
            added = {item['id']: item['content'] for item in self.content(name)['added_tokens']}
            self.assertEqual(tokenizer_config['bos_token'], added[config['bos_token_id']])
            self.assertEqual(tokenizer_config['eos_token'], added[config['eos_token_id']])
            out = self.run_train('generate', 'hf', '--tokens', 4, '--temperature', 0, '--prompt', 'the king').out
            self.assertTrue(out.startswith('the king'), out)
            self.run_train('export', 'run', '--to', 'gguf', 'gguf')
            self.check_gguf(name)
            for folder in 'run', 'hf', 'gguf':
                shutil.rmtree(self.folder / folder)

    def test_ends(self):
        """What ends generation, known from the files beside the tokenizer only, is in the checkpoint and the export."""
        content = self.content('llama3')
        end, other = content['added_tokens'][1:3]
        end['content'] = '<|the_end|>'
        self.write(content)
        ids = {'eos_token_id': [end['id'], other['id']]}
        (self.folder / 'changed' / 'generation_config.json').write_text(json.dumps(ids))
        self.train_with('changed')
        beside = self.checkpoint_tokenizer().with_name('generation_config.json')
        self.assertEqual(json.loads(beside.read_text()), ids)
        self.run_train('checkpoint', 'verify', 'run')
        self.run_train('export', 'run', '--to', 'hf', 'hf')
        for name in 'config.json', 'generation_config.json':
            self.assertEqual(json.loads((self.folder / 'hf' / name).read_text())['eos_token_id'], ids['eos_token_id'])
        self.assertIn(f'end-of-text is {end["id"]})', self.run_train('inspect', 'hf/tokenizer.json').out)
        beside.unlink()
        self.refuses('checkpoint', 'verify', 'run', says=['failed verification'])

    def check_gguf(self, name):
        keys = json.loads(self.python('-c', '''
import gguf, json
fields = gguf.GGUFReader('gguf/model.gguf').fields
def value(field):
    parts = [field.parts[k].tolist() for k in field.data]
    text = gguf.GGUFValueType.STRING in field.types
    parts = [bytes(part).decode() for part in parts] if text else [part[0] for part in parts]
    return parts if gguf.GGUFValueType.ARRAY in field.types else parts[0]
print(json.dumps({key[15:]: value(field) for key, field in fields.items() if key.startswith('tokenizer.ggml.')}))'''))
        content = self.content(name)
        vocab = {**content['model']['vocab'], **{item['content']: item['id'] for item in content['added_tokens']}}
        self.assertEqual(keys['tokens'][:len(vocab)], sorted(vocab, key=vocab.get))
        types = {0: 2 if name == 'llama2' else 1, **{item['id']: 3 for item in content['added_tokens'] if item['content'] != '<unk>'}}
        for token, id in vocab.items():
            self.assertEqual(keys['token_type'][id], 6 if token.startswith('<0x') else types.get(id, 1), token)
        self.assertEqual(keys['token_type'][len(vocab):], [5] * (len(keys['tokens']) - len(vocab)))
        self.assertEqual((keys['model'], keys['pre']), ('gpt2', 'llama-bpe') if name == 'llama3' else ('llama', 'default'))
        self.assertTrue(keys['add_bos_token'])
        if name == 'llama3':
            self.assertEqual(keys['merges'], [' '.join(merge) for merge in content['model']['merges']])
        else:  # a merge of lower rank has the higher score
            made = list(dict.fromkeys(''.join(merge) for merge in content['model']['merges']))
            self.assertEqual([keys['scores'][vocab[token]] for token in made], [-k for k in range(len(made))])
            self.assertEqual(keys['unknown_token_id'], 0)

    def check_ends(self):
        """End-of-text has a known name, or the files beside the tokenizer say which token it is."""
        content = self.content('llama3')
        end = content['added_tokens'][1]
        end['content'] = '<|the_end|>'
        self.write(content)
        self.refuses('inspect', 'changed/tokenizer.json', says=['none of its added tokens is <|endoftext|>', 'eos_token'])
        for name, text in (('config.json', json.dumps({'eos_token_id': [end['id'], 3]})),
                           ('tokenizer_config.json', json.dumps({'eos_token': {'content': '<|the_end|>'}})),
                           ('generation_config.json', json.dumps({'eos_token_id': end['id']}))):
            (self.folder / 'changed' / name).write_text(text)
            self.assertIn(f'end-of-text is {end["id"]})', self.run_train('inspect', 'changed/tokenizer.json').out)
            (self.folder / 'changed' / name).unlink()

    def check_refused(self):
        def refuses(form, change, *says):
            content = self.content(form)
            change(content)
            self.refuses('inspect', f'{self.write(content)}/tokenizer.json', says=says)
        refuses('llama3', lambda c: c['pre_tokenizer']['pretokenizers'][0]['pattern'].update(Regex='[a-z]+'), 'pattern', '[a-z]+')
        refuses('llama3', lambda c: c['pre_tokenizer']['pretokenizers'][0].update(behavior='Removed'), 'pattern')
        refuses('llama3', lambda c: c['post_processor']['processors'][1]['single'].append(c['post_processor']['processors'][1]['single'][0]),
                'post_processor', 'none after it')
        refuses('llama3', lambda c: c['model']['vocab'].pop('Ġplugh'), 'ids must have no gaps')
        refuses('qwen2', lambda c: c.update(normalizer={'type': 'NFKC'}), 'normalizer is NFKC')
        refuses('smollm', lambda c: c['pre_tokenizer']['pretokenizers'][0].update(individual_digits=False), 'pre_tokenizer is Sequence')
        refuses('llama2', lambda c: c.update(pre_tokenizer={'type': 'Metaspace'}), 'pre_tokenizer is Metaspace')
        refuses('llama2', lambda c: c.update(decoder={'type': 'Fuse'}), 'decoder is Fuse')
        refuses('llama2', lambda c: c['model'].update(unk_token='<none>'), 'unk_token', '<none>')

        def rename(content, old, new):
            vocab = content['model']['vocab']
            vocab[new] = vocab.pop(old)
        refuses('llama2', lambda c: rename(c, '<0x07>', 'beep'), '255 tokens for bytes')
        refuses('llama2', lambda c: rename(c, '<0x07>', 'a\u2581b'), 'spans several words')
        refuses('llama2', lambda c: rename(c, '<0x07>', 'a b'), 'has a space')
        (self.folder / 'tokenizer.model').write_bytes(b'\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02' * 9)
        self.refuses('tokenizer', 'encode', '--tokenizer', 'tokenizer.model', text='x', says=['SentencePiece', 'tokenizer.json'])
        (self.folder / 'text.txt').write_text('text')
        for name in 'llama3', 'smollm':
            error = self.run_train('tokenize', 'text.txt', '--tokenizer', self.forms / name, '--out', 'out').error
            self.assertEqual('has no token for' in error, name == 'smollm', error)
