"""GGUF models as input: what was exported and what the gguf package writes comes back to the bit, and what is refused."""
import json
import re
import shutil
import struct

import harness
from harness import GOLDEN, release_only
from test_export import READERS, ExportCase, read_safetensors

FAMILIES = 'gpt2', 'llama', 'qwen2', 'qwen3'
LLAMA3 = {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 128}
SCALINGS = {'linear': {'rope_type': 'linear', 'factor': 2.5}, 'llama3': LLAMA3,
            'flat': {**LLAMA3, 'original_max_position_embeddings': 4},  # every pair turns less than once
            'yarn': {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'attention_factor': 1.5}}


class GGUFCase(ExportCase):
    def same_weights(self, first, second):
        """Both Hugging Face folders have the same tensors to the bit, and the same model in config.json."""
        self.assertTrue(read_safetensors(self.folder / first / 'model.safetensors') ==
                        read_safetensors(self.folder / second / 'model.safetensors'))
        configs = [json.loads((self.folder / folder / 'config.json').read_text()) for folder in (first, second)]
        for config in configs:  # ids of the tokenizer
            config.pop('bos_token_id'), config.pop('eos_token_id')
        self.assertEqual(*configs)

    def golden(self, family):
        return GOLDEN / f'{family}-tiny'


class RoundTrips(GGUFCase):
    def test_families(self):
        """Import, export, import, export: the same bytes in every type, and those of the Hugging Face folder."""
        for family in FAMILIES:
            self.export(self.golden(family), 'hf', f'{family}-given', '--tokenizer', 'none')
            for dtype in 'fp32', 'bf16', 'fp16', 'q8_0':
                with self.subTest(family=family, dtype=dtype):
                    first, second = f'{family}-{dtype}', f'{family}-{dtype}-again'
                    self.export(self.golden(family), 'gguf', first, '--dtype', dtype, '--tokenizer', 'bytes')
                    self.export(first, 'gguf', second, '--dtype', dtype)
                    self.same(first, second)
            self.export(f'{family}-fp32/model.gguf', 'hf', f'{family}-hf')
            self.same_weights(f'{family}-given', f'{family}-hf')

    def test_scalings_of_rope(self):
        """The factors of Llama 3's frequencies are a tensor, from which its numbers are found again."""
        for name, scaling in SCALINGS.items():
            with self.subTest(name):
                shutil.copytree(self.golden('llama'), self.folder / name)
                path = self.folder / name / 'config.json'
                path.write_text(json.dumps({**json.loads(path.read_text()), 'rope_theta': 100.0, 'rope_scaling': scaling}))
                self.export(name, 'gguf', f'{name}-gguf', '--tokenizer', 'none')
                self.export(f'{name}-gguf', 'gguf', f'{name}-again', '--tokenizer', 'none')
                self.same(f'{name}-gguf', f'{name}-again')
                self.export(f'{name}-gguf', 'hf', f'{name}-hf', '--tokenizer', 'none')
                found = json.loads((self.folder / f'{name}-hf' / 'config.json').read_text())
                self.assertEqual(found['rope_theta'], 100)
                for key, value in scaling.items() if name != 'flat' else ():
                    if isinstance(value, str):
                        self.assertEqual(found['rope_scaling'][key], value)
                    else:
                        self.assertAlmostEqual(found['rope_scaling'][key] / value, 1, 6, key)

    @release_only('the readers have unit tests and a fuzzer')
    def test_files_of_the_gguf_package(self):
        for family in FAMILIES:
            self.export(self.golden(family), 'hf', f'{family}-given', '--tokenizer', 'none')
            for dtype, of in ('F32', 'fp32'), ('F16', 'fp16'), ('BF16', 'bf16'):
                with self.subTest(family=family, dtype=dtype):
                    self.check(READERS, 'write_gguf', self.golden(family), f'{family}-{of}.gguf', dtype)
                    self.export(f'{family}-{of}.gguf', 'hf', f'{family}-{of}', '--dtype', of, '--tokenizer', 'none')
                    self.export(self.golden(family), 'hf', f'{family}-{of}-given', '--dtype', of, '--tokenizer', 'none')
                    found, wanted = (read_safetensors(self.folder / folder / 'model.safetensors')
                                     for folder in (f'{family}-{of}', f'{family}-{of}-given'))
                    # Vectors are fp32 in the file, and matrices are rounded by the package as here.
                    self.assertTrue(found == wanted)
        self.check(READERS, 'write_gguf', self.golden('gpt2'), 'q8_0.gguf', 'Q8_0')
        self.export('q8_0.gguf', 'gguf', 'again', '--dtype', 'q8_0', '--tokenizer', 'none')
        self.assertIn('Q8_0', self.run_train('inspect', 'again').out)

    def test_a_run_goes_on_from_gguf(self):
        """The same run as from the Hugging Face folder, also on several ranks; the tokenizer inside the file is used and kept."""
        self.train_a_run(steps=20, family='llama', intermediate_size=96, n_kv_head=1, tied=False)
        self.export('run', 'gguf', 'gguf')
        self.export('run', 'hf', 'out')
        config = self.same_runs_from({'gguf': 'model.gguf', 'gguf/model.gguf': 'model.gguf', 'out': 'tokenizer.json'})
        self.run_ranks(2, config, 'model.init_from=out', 'run.dir=two-hf')
        self.run_ranks(2, config, 'model.init_from=gguf', 'run.dir=two', 'zero_optimization.stage=3')
        self.assertEqual(self.curve('two'), self.curve('two-hf'))
        greedy = 'generate', '--prompt', 'the 7 quick', '--tokens', 12, '--temperature', 0, '--device', 'cpu'
        texts = {self.run_train(*greedy, path).out for path in ('run', 'gguf', 'gguf/model.gguf')}
        self.assertEqual(len(texts), 1)
        encode = 'tokenizer', 'encode', 'my.txt', '--tokenizer'
        self.assertEqual(len({self.run_train(*encode, path).out for path in ('my.tiktoken', 'gguf', 'gguf/model.gguf')}), 1)
        losses = {self.run_train('eval', path, '--data', 'my/val-*.bin').out.split('\n')[0].split(':', 1)[-1]
                  for path in ('run', 'gguf')}
        self.assertEqual(len(losses), 1, losses)
        self.assertIn('GGUF, architecture llama, 21 tensors', self.run_train('inspect', 'gguf').out)


class Refusals(GGUFCase):
    def setUp(self):
        super().setUp()
        self.export(self.golden('llama'), 'gguf', 'good', '--tokenizer', 'none')
        self.data = (self.folder / 'good' / 'model.gguf').read_bytes()

    def refuse(self, data, says):
        (self.folder / 'bad.gguf').write_bytes(data)
        self.refuses('export', 'bad.gguf', 'out', '--to', 'hf', '--tokenizer', 'none', says=['bad.gguf', *says])
        self.assertFalse((self.folder / 'out').exists())

    def change(self, found, to):
        """The file with these bytes in place of those, which are as many."""
        self.assertEqual((self.data.count(found), len(found)), (1, len(to)))
        return self.data.replace(found, to)

    @staticmethod
    def text(word):
        return struct.pack('<Q', len(word)) + word

    def type_of(self, name, shape, number):
        """The description of a tensor up to its type."""
        return self.text(name) + struct.pack(f'<I{len(shape)}QI', len(shape), *shape, number)

    def test_files(self):
        good = self.data
        self.refuse(good[:200], ['cut short'])
        self.refuse(good[:-40], ['beyond the file', 'cut short'])
        self.refuse(good[:4] + b'\1\0\0\0' + good[8:], ['version 1 of GGUF', 'expected 2 or 3'])
        self.refuse(good[:4] + b'\0\0\0\3' + good[8:], ['big-endian'])
        self.refuse(good[:8] + struct.pack('<Q', 2**40) + good[16:], ['more than its', 'can hold'])
        self.refuse(self.change(self.text(b'llama.block_count'), self.text(b'llama.block_coint')), ['"llama.block_count" is missing'])
        self.refuse(self.change(self.text(b'general.architecture') + b'\x08\0\0\0' + self.text(b'llama'),
                                self.text(b'general.architecture') + b'\x08\0\0\0' + self.text(b'bloom')),
                    ['architecture is "bloom"', 'gpt2, llama, qwen2 or qwen3'])

    def test_tensors(self):
        shape = self.type_of(b'blk.1.attn_k.weight', (48, 16), 0)
        self.refuse(self.change(shape, self.type_of(b'blk.1.attn_k.weight', (16, 48), 0)), ['blk.1.attn_k.weight', '(48, 16)', 'expected (16, 48)'])
        self.refuse(self.change(shape, self.type_of(b'blk.1.attn_k.weight', (48, 16), 12)), ['blk.1.attn_k.weight'])
        self.refuse(self.change(shape, self.type_of(b'blk.1.attn_k.weight', (48, 16), 24)), ['is I8, expected F32', 'llama-quantize'])
        self.refuse(self.change(shape, self.type_of(b'blk.9.attn_k.weight', (48, 16), 0)), ['"blk.1.attn_k.weight" is missing'])
        self.refuse(self.change(shape, self.type_of(b'blk.0.attn_k.weight', (48, 16), 0)), ['"blk.0.attn_k.weight" appears twice'])

    def test_tokenizers(self):
        """A file without a tokenizer, and one of another kind: it is named, and the weights alone are exported."""
        warning = self.export('good', 'hf', 'without').error
        self.assertIn('good has no tokenizer', warning)
        self.refuses('tokenizer', 'encode', '--tokenizer', 'good/model.gguf', text='x', says=['good/model.gguf', 'tokenizer.ggml.model'])
        self.export(self.golden('llama'), 'gguf', 'bytes', '--tokenizer', 'bytes')
        data = (self.folder / 'bytes' / 'model.gguf').read_bytes()
        (self.folder / 'other.gguf').write_bytes(data.replace(self.text(b'gpt-2'), self.text(b'dbrx2')))
        self.assertIn('tokenizer.ggml.pre', self.export('other.gguf', 'hf', 'other').error)


class Tokens(GGUFCase):
    def test_ends(self):
        """Ids that end generation come from the file, and go on into exports."""
        self.export(self.golden('llama'), 'gguf', 'bytes', '--tokenizer', 'bytes')
        out = self.run_train('inspect', 'bytes/model.gguf').out
        self.assertTrue(re.search(r'token_embd\.weight +F32 +\(257, 48\)', out), out)
        self.export('bytes', 'hf', 'hf2')
        config = json.loads((self.folder / 'hf2' / 'generation_config.json').read_text())
        self.assertEqual(config['eos_token_id'], 256)
        for name in 'tokenizer.json', 'vocab.json', 'merges.txt':
            self.export('hf', 'hf', 'plain', '--tokenizer', 'bytes', '--force')
            self.assertEqual((self.folder / 'hf2' / name).read_bytes(), (self.folder / 'plain' / name).read_bytes())
