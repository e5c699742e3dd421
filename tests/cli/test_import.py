"""What is made of files that other programs wrote: the same ids and logits, or a refusal, or a line in the log."""
import base64
import json
import pathlib
import re
import shutil
import struct

import harness
from harness import GOLDEN
from import_checks import MODELS
from python_env import NEWEST, newest
from test_export import LLAMA, NEWEST_LLAMA, TRANSFORMERS, ExportCase, read_safetensors
from test_tokenizers import TokenizerCase

CHECKS = pathlib.Path(__file__).with_name('import_checks.py')
TIKTOKEN, OLD_TIKTOKEN = ('tiktoken==0.14.0',), ('tiktoken==0.7.0',)
# Two sums of 59 logarithms of probabilities in fp32, of logits within 5e-6 of each other (test_transformers).
LOSS_TOLERANCE = 1e-5


def text(word):
    return struct.pack('<Q', len(word)) + word


def value(number):
    """Of a GGUF key, with its type before it."""
    if isinstance(number, bool):
        return struct.pack('<I?', 7, number)
    if isinstance(number, list):
        return struct.pack(f'<IIQ{len(number)}I', 9, 4, len(number), *number)
    if isinstance(number, str):
        return struct.pack('<I', 8) + text(number.encode())
    return struct.pack('<If', 6, number) if isinstance(number, float) else struct.pack('<II', 4, number)


def with_keys(data, keys):
    """A GGUF file with these keys too; one more fills up to the alignment of the data."""
    added = b''.join(text(name.encode()) + value(number) for name, number in keys.items())
    fill = text(b'general.description') + struct.pack('<I', 8)
    fill += text(b'x' * (-(len(added) + len(fill) + 8) % 32))
    n_keys = struct.unpack('<Q', data[16:24])[0]
    return data[:16] + struct.pack('<Q', n_keys + len(keys) + 1) + added + fill + data[24:]


class ImportCase(ExportCase):
    def setUp(self):
        super().setUp()
        self.tokens = GOLDEN / 'llama-tiny' / 'tokens.bin'

    def loss(self, path, tokens=None, **options):
        process = self.run_train('eval', path, '--data', tokens or self.tokens, '--json', '--device', 'cpu', **options)
        self.warnings = [line for line in process.error.splitlines() if 'warning' in line]
        return json.loads(process.out)['loss']


class HuggingFace(ImportCase):
    def changed(self, family='llama', **keys):
        folder = self.folder / 'changed'
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(GOLDEN / f'{family}-tiny', folder)
        config = json.loads((folder / 'config.json').read_text())
        (folder / 'config.json').write_text(json.dumps({**config, **keys}))
        return 'changed'

    def refuses_config(self, *says, **keys):
        self.refuses('eval', self.changed(**keys), '--data', self.tokens, says=['changed/config.json', *says])

    def test_config(self):
        usual = self.loss(GOLDEN / 'llama-tiny')
        theta = json.loads((GOLDEN / 'llama-tiny' / 'config.json').read_text())['rope_theta']
        scaling = {'rope_type': 'linear', 'factor': 2.0}
        self.refuses_config('"is_causal" must be true', is_causal=False)
        self.refuses_config('"is_causal" must be true', family='gpt2', is_causal=False)
        self.refuses_config('"rope_parameters"', '"rope_scaling" that differ in rope.type', 'Remove "rope_scaling"', 'move',
                            rope_parameters={'rope_type': 'default', 'rope_theta': theta}, rope_scaling=scaling)
        self.refuses_config('"rope_scaling" that differ in rope.theta', 'a theta of 10000', rope_theta=None,
                            rope_parameters={**scaling, 'rope_theta': 5e5}, rope_scaling=scaling)
        self.assertEqual(self.loss(self.changed(rope_parameters={**scaling, 'rope_theta': theta}, rope_scaling=scaling)),
                         self.loss(self.changed(rope_scaling=scaling)))
        self.assertEqual(self.loss(self.changed(hidden_act='swish', rope_scaling={})), usual)
        self.assertEqual(self.warnings, [])
        self.assertEqual(self.loss(self.changed('llama', attention_multiplier=0.5, unused=None, rope_scaling={
            'rope_type': 'default', 'mrope_section': [1, 2]})), usual)
        self.assertEqual([re.findall(r'"(\w+)"', line) for line in self.warnings], [['mrope_section'], ['attention_multiplier']])

    def test_tied_heads(self):
        """Of a tied pair a file may hold either tensor; where they differ, they are not tied."""
        data = read_safetensors(GOLDEN / 'qwen2-tiny' / 'model.safetensors')
        usual, folder, embedding = self.loss(GOLDEN / 'qwen2-tiny'), self.changed('qwen2'), 'model.embed_tokens.weight'
        dtype, shape, values = data[embedding]
        self.write(folder, {**{k: v for k, v in data.items() if k != embedding}, 'lm_head.weight': data[embedding]})
        self.assertEqual(self.loss(folder), usual)
        self.write(folder, {**data, 'lm_head.weight': data[embedding]})
        self.assertEqual(self.loss(folder), usual)
        self.assertEqual(self.warnings, [])
        self.write(folder, {**data, 'lm_head.weight': (dtype, shape, values[4:] + values[:4])})
        self.assertNotEqual(self.loss(folder), usual)
        self.assertIn('differs from the embedding', self.warnings[0])
        self.write(folder, {k: ('F64', v[1], struct.pack(f'<{len(v[2]) // 4}d', *struct.unpack(f'<{len(v[2]) // 4}f', v[2])))
                            for k, v in data.items()}, metadata=None)
        self.assertEqual(self.loss(folder), usual)

    def test_attention_bias(self):
        """Biases of transformers' attention_bias are trained, and come back from an export."""
        self.train_a_run(steps=3, family='llama', qkv_bias=True, o_bias=True)
        self.export('run', 'hf', 'out', '--tokenizer', 'none')
        bias = read_safetensors(self.folder / 'out' / 'model.safetensors')['model.layers.0.self_attn.o_proj.bias']
        self.assertEqual(bias[1], [32])
        self.assertTrue(any(struct.unpack('<32f', bias[2])))
        config = json.loads((self.folder / 'out' / 'config.json').read_text())
        self.assertEqual((config['architectures'], config['attention_bias']), (['LlamaForCausalLM'], True))
        self.assertEqual(self.loss('out', 'my/val-*.bin'), self.loss('run', 'my/val-*.bin'))
        self.assertEqual(self.warnings, [])
        self.refuses('export', 'run', '--to', 'gguf', 'gguf', says=['model.o_bias'])
        self.train_a_run(name='one', steps=1, family='llama', o_bias=True)
        self.refuses('export', 'one', '--to', 'hf', 'hf2', says=['model.o_bias alone'])

    def write(self, folder, tensors, **more):
        header, body = {'__metadata__': more.get('metadata', {'format': 'pt'})}, b''
        for name, (dtype, shape, data) in tensors.items():
            header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(body), len(body) + len(data)]}
            body += data
        head = json.dumps(header).encode()
        (self.folder / folder / 'model.safetensors').write_bytes(struct.pack('<Q', len(head)) + head + body)


class GGUF(ImportCase):
    def setUp(self):
        super().setUp()
        self.export(GOLDEN / 'llama-tiny', 'gguf', 'good', '--tokenizer', 'none')
        self.data = (self.folder / 'good' / 'model.gguf').read_bytes()

    def changed(self, data=None, **keys):
        keys = {f'llama.{name.replace("__", ".")}': number for name, number in keys.items()}
        (self.folder / 'changed.gguf').write_bytes(with_keys(data or self.data, keys))
        return 'changed.gguf'

    def renamed(self, name, other):
        name, other = (text(f'llama.{word}'.encode()) for word in (name, other))
        self.assertEqual((self.data.count(name), len(name)), (1, len(other)))
        return self.data.replace(name, other)

    def test_keys(self):
        usual = self.loss('good')
        for name, number in {'attention__causal': False, 'attention__scale': 0.5, 'logit_scale': 2.0, 'residual_scale': 0.5,
                             'attention__clamp_kqv': 8.0, 'expert_count': 4}.items():
            self.refuses('eval', self.changed(**{name: number}), '--data', self.tokens,
                         says=['changed.gguf', name.replace('__', '.')])
        # What llama.cpp writes of a model that has none of these.
        self.assertEqual(self.loss(self.changed(
            attention__causal=True, attention__scale=0.0, logit_scale=0.0, attn_logit_softcapping=50.0, expert_count=0,
            final_logit_softcapping=30.0, token_shift_count=2, rope__scaling__yarn_ext_factor=-1.0,
            use_parallel_residual=False, rope__scaling__type='linear', rope__scaling__factor=0.0, rope__scaling__finetuned=False,
            rope__scaling__attn_factor=1.0, pooling_type=2**32 - 1, decoder_start_token_id=2**32 - 1, wkv__head_size=0)), usual)
        self.assertEqual(self.warnings, [])
        self.assertNotEqual(self.loss(self.changed(rope__scaling__factor=2.0)), usual)  # the type is linear
        self.assertEqual(self.loss(self.changed(rope__scale_linear=2.0)), self.loss(self.changed(rope__scaling__factor=2.0)))
        self.assertEqual(self.loss(self.changed(attention__temperature_scale=0.5)), usual)
        self.assertIn('"llama.attention.temperature_scale"', self.warnings[0])
        (self.folder / 'bad.gguf').write_bytes(self.renamed('attention.layer_norm_rms_epsilon', 'attention.layer_norm_rms_epsilom'))
        self.refuses('eval', 'bad.gguf', '--data', self.tokens, says=['"llama.attention.layer_norm_rms_epsilon" is missing'])

    def test_values_of_layers(self):
        config = json.loads((GOLDEN / 'llama-tiny' / 'config.json').read_text())
        n, heads = config['num_hidden_layers'], config['num_key_value_heads']
        other = self.renamed('attention.head_count_kv', 'attention.head_count_kw')
        self.assertEqual(self.loss(self.changed(other, attention__head_count_kv=[heads] * n)), self.loss('good'))
        self.refuses('eval', self.changed(other, attention__head_count_kv=[heads] * (n - 1) + [heads + 1]), '--data', self.tokens,
                     says=['"llama.attention.head_count_kv"', f'for layer {n - 1}', 'the same for all'])

    def test_ids_of_the_tokenizer(self):
        """llama.cpp's 2^32 - 1 is none."""
        self.export(GOLDEN / 'llama-tiny', 'gguf', 'bytes', '--tokenizer', 'bytes')
        (self.folder / 'changed.gguf').write_bytes(with_keys((self.folder / 'bytes' / 'model.gguf').read_bytes(), {
            'tokenizer.ggml.eot_token_id': 2**32 - 1, 'tokenizer.ggml.add_eos_token': True}))
        process = self.run_train('tokenizer', 'encode', '--tokenizer', 'changed.gguf', text='ab')
        self.assertEqual(process.out.split(), ['97', '98'])
        self.assertIn('"tokenizer.ggml.add_eos_token"', process.error)


class Tokenizers(ImportCase):
    """Without other programs: the ids are those that tokenizers 0.23.3 and tiktoken 0.14.0 gave."""
    LLAMA2 = {'normalizer': {'type': 'Sequence', 'normalizers': [
        {'type': 'Prepend', 'prepend': '▁'}, {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}]}, 'pre_tokenizer': None}
    METASPACE = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'first', 'split': False}
    ALWAYS = {**METASPACE, 'prepend_scheme': 'always'}
    DOUBLED = {'normalizer': {'type': 'Sequence', 'normalizers': [
        {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'},
        {'type': 'Replace', 'pattern': {'Regex': '\\A▁'}, 'content': '▁▁'}]},
        'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [ALWAYS]}}
    # 3: a blank; 4: a; 5: <raw>; 6: <think>, normalized
    IDS = {'a a': [3, 4, 3, 4], ' a': [3, 4], 'a<raw>a': [3, 4, 5, 4], '<raw> a': [5, 3, 4], 'a<think>a': [3, 4, 6, 4]}
    ADDED = [{'id': 5, 'content': '<raw>', 'special': False, 'normalized': False},
             {'id': 6, 'content': '<think>', 'special': False, 'normalized': True}]

    def write(self, folder='llama2', added=None, vocab=None, **changes):
        (self.folder / folder).mkdir(exist_ok=True)
        vocab = vocab or {'<unk>': 0, '<s>': 1, '</s>': 2, '▁': 3, 'a': 4}
        special = [{'id': id, 'content': name, 'special': True} for name, id in vocab.items() if name in ('<unk>', '<s>', '</s>', '<|endoftext|>')]
        content = {'version': '1.0', 'added_tokens': special + (self.ADDED if added is None else added), 'decoder': None, 'post_processor': None,
                   'model': {'type': 'BPE', 'unk_token': '<unk>' if '<unk>' in vocab else None, 'fuse_unk': True, 'vocab': vocab, 'merges': []}, **changes}
        (self.folder / folder / 'tokenizer.json').write_text(json.dumps(content))
        return folder

    def encode(self, tokenizer, words, **options):
        process = self.run_train('tokenizer', 'encode', '--tokenizer', tokenizer, text=words, **options)
        self.warnings = [line for line in process.error.splitlines() if 'warning' in line]
        return list(map(int, process.out.split()))

    def test_spaces(self):
        """Forms of Llama 2's tokenizer, as transformers 4 and 5 save it."""
        first = {'normalizer': None, 'pre_tokenizer': self.METASPACE}
        always = {'normalizer': None, 'pre_tokenizer': self.ALWAYS}
        forms = {
            'first': (first, self.IDS),
            'always': (always, {**self.IDS, 'a<raw>a': [3, 4, 5, 3, 4], 'a<think>a': [3, 4, 6, 3, 4]}),
            # "▁<think>" is the name that is looked for, which is not there
            'legacy': (self.LLAMA2, {**self.IDS, ' a': [3, 3, 4], 'a<raw>a': [3, 4, 5, 3, 4], '<raw> a': [5, 3, 3, 4],
                                     'a<think>a': [3, 4, 0, 4], 'a <think>a': [3, 4, 6, 4]}),
        }
        for name, (form, texts) in forms.items():
            self.write(**form)
            for words, ids in texts.items():
                self.assertEqual(self.encode('llama2', words), ids, (name, words))
        self.write(added=self.ADDED[:1], **self.DOUBLED)
        for words, ids in {'a a': [3, 4, 3, 4], ' a': [3, 3, 4], 'a<raw>a': [3, 4, 5, 3, 4], '<raw> a': [5, 3, 3, 4]}.items():
            self.assertEqual(self.encode('llama2', words), ids, words)
        self.assertEqual(self.warnings, [])
        for says, form in {'normalized': self.DOUBLED, 'pre_tokenizer is Metaspace': {**self.LLAMA2, 'pre_tokenizer': self.METASPACE},
                           'pre_tokenizer is Sequence': {'normalizer': None, 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{
                               **self.METASPACE, 'split': True}]}}}.items():
            self.refuses('tokenizer', 'encode', '--tokenizer', self.write(**form), text='a', says=[says])

    def test_added_tokens(self):
        byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
        bytes_of = {chr(byte): byte for byte in range(33, 127)}
        vocab = {**{character: k for k, character in enumerate(self.alphabet())}, '<|endoftext|>': 256}
        added = [{'id': 257, 'content': '<think>', 'special': False, 'normalized': True},
                 {'id': 258, 'content': '<thinking>', 'special': False}, {'id': 259, 'content': 'é!', 'special': False, 'normalized': True}]

        def ids(words):
            return [bytes_of[word] if isinstance(word, str) else word for word in words]
        self.write('bpe', added, vocab, pre_tokenizer=byte_level, normalizer={'type': 'NFC'})
        for words, wanted in {'a<think>b': ['a', 257, 'b'], '<thinking><think': [258, *'<think'], 'e\u0301!<think>\u0338': [
                259, *'<think', 0xe2, 0x89, 0xaf], '<|endoftext|>': list('<|endoftext|>')}.items():
            self.assertEqual(self.encode('bpe', words), ids(wanted), words)
        self.assertEqual(self.encode('bpe', 'a<think>' * 400_000), ids(['a', 257]) * 400_000)  # in chunks
        for key in 'lstrip', 'rstrip', 'single_word':
            self.write('bpe', [{**added[0], key: True}], vocab, pre_tokenizer=byte_level)
            self.refuses('tokenizer', 'encode', '--tokenizer', 'bpe', text='a', says=['"<think>"', key])

    def alphabet(self):
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = iter(range(256, 512))
        return [chr(byte if byte in printable else next(others)) for byte in range(256)]

    def test_what_is_not_read_is_named(self):
        self.write(added=[], pre_tokenizer=None, normalizer={**self.LLAMA2['normalizer'], 'unheard': 1}, truncation={'max_length': 5})
        folder = self.folder / 'llama2'
        (folder / 'tokenizer_config.json').write_text(json.dumps({'add_bos_token': True, 'add_eos_token': True, 'novel': 3, 'legacy': True}))
        (folder / 'generation_config.json').write_text(json.dumps({'eos_token_id': 2, 'temperature': 0.6, 'top_p': None}))
        self.encode('llama2', 'a')
        said = '\n'.join(self.warnings)
        for part in ('tokenizer.json has keys that this program ignores: "truncation"', '"unheard"', '"add_bos_token"', '"add_eos_token"',
                     'tokenizer_config.json has keys that this program ignores: "novel"', 'generation_config.json has keys that this program ignores: "temperature"'):
            self.assertEqual(said.count(part), 1, (part, said))
        self.assertEqual(len(self.warnings), 6, said)

    def test_tiktoken_files(self):
        """By name, or by the number of ranks; else a token that GPT-2's pattern cannot make is refused."""
        tokens = [bytes([b]) for b in range(256)] + [b'12', b'.h', b'el', b'lo', b'ello', b'.hello', b' 1', b' 12', b'\n ', b'aH', b'\n/']

        def write(name, tokens=tokens):
            lines = (f'{base64.b64encode(token).decode()} {rank}\n' for rank, token in enumerate(tokens))
            (self.folder / name).write_text(''.join(lines))
            return name
        n = len(tokens)
        for name, end in ('cl100k_base.tiktoken', n + 1), ('o200k_base.tiktoken', n + 1):
            self.assertEqual(self.encode(write(name), 'x.hello'), [120, 261])
            self.assertEqual(self.encode(name, 'I 12'), [73, 32, 256])
            out = self.run_train('inspect', name).out
            self.assertIn(f'end-of-text is {end})', out)
            self.assertIn(f'pattern: {name.split(".")[0]}', out)
        self.assertEqual(self.encode('cl100k_base.tiktoken', 'a\n '), [97, 264])  # all white space at the end
        self.assertEqual(self.encode('o200k_base.tiktoken', 'a\n '), [97, 10, 32])
        self.assertEqual(self.encode('cl100k_base.tiktoken', 'aH.\n/'), [265, 46, 10, 47])
        self.assertEqual(self.encode('o200k_base.tiktoken', 'aH.\n/'), [97, 72, 46, 266])
        self.refuses('tokenizer', 'encode', '--tokenizer', write('my.tiktoken'), text='a', says=[
            'my.tiktoken: its token 257, ".h", is not made by GPT-2\'s pattern', 'tokenizer.json', 'cl100k_base.tiktoken'])
        gpt2 = [bytes([b]) for b in range(256)] + [b" 'r", b"'r"] + [bytes([0x80 + k, 0x80 + j]) for k in range(60) for j in range(60)]
        self.refuses('inspect', write('my.tiktoken', gpt2), says=['token 256'])
        self.assertEqual(self.encode(write('my.tiktoken', [token for token in gpt2 if token != b" 'r"]), "'r"), [39, 114])


class WithOthers(TokenizerCase, ImportCase):
    """Against the newest release and an old one of each program."""
    TEXTS = [' a', 'a a', '\u2581a', '  <raw>  a<raw> b', 'the <think> king<think>s', '<think>', '<raw> x', '\u2581<think>', "king's 12 é",
             'e\u0301 日本 x', '\n <raw>\n']

    def ids_agree(self, requirements, folder, texts=()):
        texts = [*self.TEXTS, *texts]
        wanted = self.check(requirements, 'encode', folder, json.dumps(texts), script=CHECKS)
        for words, ids in zip(texts, wanted):
            self.same_ids(self.encode(folder, text=words), ids, (folder, words))

    def check_tokenizers(self, requirements):
        for name in 'gpt2', 'llama3', 'qwen2', 'smollm', 'llama2':
            content = self.content(name)
            n = max(max(content['model']['vocab'].values()), *(item['id'] for item in content['added_tokens'])) + 1
            more = {'single_word': False, 'lstrip': False, 'rstrip': False, 'special': False}
            content['added_tokens'] = [item for item in content['added_tokens'] if item['content'] != '<think>'] + [
                {'id': n, 'content': '<raw>', 'normalized': False, **more}]
            taken = {item['id'] for item in content['added_tokens']} | set(content['model']['vocab'].values())
            content['added_tokens'].append({'id': min(set(range(n + 2)) - taken), 'content': '<think>', 'normalized': True, **more})
            content['added_tokens'].sort(key=lambda item: item['id'])
            self.ids_agree(requirements, self.write(content, f'added-{name}'))

    def test_newest_tokenizers(self):
        self.check_tokenizers(newest('tokenizers'))

    def test_old_tokenizers(self):
        from test_export import READERS
        self.check_tokenizers(READERS)

    def test_folders_that_transformers_saves(self):
        for requirements in NEWEST, TRANSFORMERS:
            for legacy in True, False:
                config = {'tokenizer_class': 'LlamaTokenizer', 'legacy': legacy, 'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>'}
                self.write(self.content('llama2'), 'given')
                self.check(requirements, 'resave', 'given', 'saved', json.dumps(config), script=CHECKS, large=True)
                self.ids_agree(requirements, 'saved')

    def test_tiktoken(self):
        vocab = self.content('llama3')['model']['vocab']
        alphabet = {character: byte for byte, character in enumerate(Tokenizers.alphabet(self))}
        tokens = [bytes(alphabet[c] for c in token) for token in sorted(vocab, key=vocab.get)]
        texts = [*self.TEXTS, 'a \n \n ', '\n  ', "HELLO'S heLLo ǅx ʰ a\u0301B \u0301AB", 'x/\n/y .\n/', "don'T", '12345 67', '日本Ab']
        for name in 'cl100k_base', 'o200k_base':
            path = self.folder / f'{name}.tiktoken'
            path.write_text(''.join(f'{base64.b64encode(token).decode()} {rank}\n' for rank, token in enumerate(tokens)))
            for requirements in TIKTOKEN, OLD_TIKTOKEN:
                wanted = self.check(requirements, 'tiktoken_ids', name, path, json.dumps(texts), script=CHECKS)
                for words, ids in zip(texts, wanted):
                    if requirements == TIKTOKEN or name == 'o200k_base' or not re.search(r'\n\s*[^\S\n]\s*$', words):
                        self.same_ids(self.encode(path, text=words), ids, (name, words))

    def check_models(self, requirements, but=()):
        names = [name for name in MODELS if name not in but]
        losses = self.check(requirements, 'make', '.', *names, large=True, script=CHECKS)
        self.assertEqual(sorted(losses), sorted(names))
        for name, loss in losses.items():
            self.assertAlmostEqual(self.loss(name, 'tokens.bin'), loss, delta=LOSS_TOLERANCE, msg=name)

    def test_newest_transformers(self):
        self.check_models(NEWEST)

    def test_old_transformers(self):
        # It ties whatever the file has; whether it finds a tied tensor by its other name does not matter here.
        self.check_models(TRANSFORMERS, but=('other-head', 'head-only', 'gpt2-head-only'))

    def test_llama_cpp(self):
        self.tokens = self.folder / 'tokens.bin'
        harness.write_shard(self.tokens, [i * 37 % 251 for i in range(60)])
        for family in 'gpt2', 'llama', 'qwen2', 'qwen3':
            self.export(GOLDEN / f'{family}-tiny', 'gguf', f'{family}-gguf', '--tokenizer', 'bytes')
            given = f'{family}-gguf/model.gguf'
            for requirements in NEWEST_LLAMA, LLAMA:
                losses = self.check(requirements, 'save_by_llama', given, 'saved.gguf', large=True, script=CHECKS)
                self.assertAlmostEqual(losses[given], losses['saved.gguf'], delta=LOSS_TOLERANCE)
                self.assertEqual(self.loss('saved.gguf'), self.loss(given))
                self.assertAlmostEqual(self.loss(given), losses[given], delta=3e-3)  # its keys and values are fp16
                self.assertEqual(self.encode('saved.gguf', text='ab\n'), [97, 98, 10])


if __name__ == '__main__':
    harness.unittest.main()
