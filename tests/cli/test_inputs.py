"""What every command that takes text makes of packed texts, JSON Lines, other encodings, and files that are no text."""
import gzip
import json
import lzma
import random
import shutil
import struct
import subprocess
import unittest
import zlib

import harness
import python_env
from harness import CommandCase, GOLDEN, pseudo_random_tokens, write_shard

END = 256  # of the tokenizer "bytes"
MODEL = GOLDEN / 'gpt2-tiny'
TEXT = 'The dog ran after the cat.\nAnd the cat ran up the tree.\n' * 40


def png():
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    pixels = random.Random(1).randbytes(64 * 193)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 64, 64, 8, 2, 0, 0, 0)) +
            chunk(b'IDAT', zlib.compress(pixels)) + chunk(b'IEND', b''))


# Of an Arrow stream of one column of strings: the marker, the length of the schema's message, and its start.
ARROW = b'\xff\xff\xff\xff\x78\0\0\0\x10\0\0\0\0\0\x0a\0\x0c\0\x06\0\x05\0\x08\0\x0a\0\0\0' + bytes(96) + TEXT.encode()


class InputCase(CommandCase):
    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def tokenize(self, *arguments, **options):
        self.run_train('tokenize', *arguments, '--tokenizer', 'bytes', '--out', 'out', **options)
        data = (self.folder / 'out' / 'train-00000.bin').read_bytes()
        return list(struct.unpack(f'<{(len(data) - 1024) // 2}H', data[1024:]))

    def encode(self, *arguments, **options):
        out = self.run_train('tokenizer', 'encode', *arguments, '--tokenizer', 'bytes', **options).out
        return [int(word) for word in out.split()]

    def evaluate(self, *arguments):
        out = self.run_train('eval', MODEL, '--tokenizer', 'bytes', '--device', 'cpu', '--json', '--data', *arguments).out
        return {name: value for name, value in json.loads(out).items() if name in ('loss', 'tokens')}

    def prompts(self, name, *arguments, **options):
        out = self.run_train('generate', MODEL, '--tokenizer', 'bytes', '--device', 'cpu', '--tokens', 1, '--json',
                             '--prompts', name, *arguments, **options).out
        return [json.loads(line)['prompt'] for line in out.splitlines()]

    def learned(self, *arguments, **options):
        self.run_train('tokenizer', 'train', '--vocab-size', 270, *arguments, '--out', 'learned', **options)
        return (self.folder / 'learned').read_bytes()


class NotText(InputCase):
    """Files that are no text are refused by name by every command, wherever they are: in a folder, packed, on standard input."""

    def test_each_command(self):
        files = {'stream.arrow': (ARROW, 'is an Arrow file'), 'p.png': (png(), 'is a picture'),
                 'p.jpg': (b'\xff\xd8\xff\xe0\0\x10JFIF\0' + random.Random(2).randbytes(999), 'is a picture'),
                 'a.pdf': (b'%PDF-1.4\n1 0 obj\n', 'is a PDF file'),
                 't.xz': (lzma.compress(TEXT.encode()), 'is compressed with xz'),
                 'noise': (random.Random(3).randbytes(5000), 'is a binary file'),
                 'utf32.txt': (TEXT.encode('utf-32-le'), 'is a binary file'),
                 'p.txt.gz': (gzip.compress(png()), 'is a picture, unpacked')}
        config = self.tiny_config()
        for name, (data, says) in files.items():
            self.write(f'folder/{name}', data)
            self.write('folder/a.txt', TEXT)
            for arguments in (['tokenize', 'folder', '--tokenizer', 'bytes', '--out', 'out'],
                              ['tokenizer', 'train', 'folder', '--vocab-size', 257, '--out', 'learned'],
                              ['tokenizer', 'encode', 'folder', '--tokenizer', 'bytes'],
                              ['generate', MODEL, '--tokenizer', 'bytes', '--device', 'cpu', '--prompts', f'folder/{name}']):
                self.refuses(*arguments, says=[f'folder/{name}', says, 'expected text'])
            self.refuses('eval', MODEL, '--tokenizer', 'bytes', '--device', 'cpu', '--data', f'folder/{name}', says=[name])
            self.refuses('check', config, f'data.train=folder/{name}', says=[name])
            process = subprocess.run([harness.TRAIN, 'tokenize', '-', '--tokenizer', 'bytes', '--out', 'out'], input=data,
                                     cwd=self.folder, stderr=subprocess.PIPE, check=False)
            self.assertEqual(process.returncode, 2)
            self.assertIn(('standard input ' + says).encode(), process.stderr)
            shutil.rmtree(self.folder / 'folder')

    def test_text_about_formats_is_text(self):
        for text in 'GGUF is a format of llama.cpp\n', 'PAR1 is a signature', 'ARROW1: another', 'GIF89a, a third':
            self.write('a.txt', text)
            self.assertEqual(self.tokenize('a.txt'), [END, *text.encode()])

    def test_files_of_arrow(self):
        """Streams and files of the newest pyarrow and of an old one."""
        write = ('import sys, pyarrow as pa, pyarrow.ipc as ipc; t = pa.table({"text": ["a text", "another"] * 99})\n'
                 'for name, new in ("stream", ipc.new_stream), ("file", ipc.new_file):\n'
                 '    with pa.OSFile(sys.argv[1] + "/" + name, "wb") as f, new(f, t.schema) as writer: writer.write_table(t)')
        for requirement in 'pyarrow', 'pyarrow==17.0.0':
            python = python_env.python_with(requirement, large=True)
            subprocess.run([python, '-c', write, self.folder], check=True)
            for name in 'stream', 'file':
                self.refuses('tokenize', name, '--tokenizer', 'bytes', '--out', 'out', says=[f'{name} is an Arrow file'])


class SameText(InputCase):
    """The forms of a text give the same tokens, whichever command reads them."""

    def test_forms(self):
        lines = ''.join(json.dumps({'text': part, 'body': part}) + '\n' for part in ('', TEXT, '', 'ab cd')).encode()
        plain = f'<|endoftext|>{TEXT}<|endoftext|><|endoftext|>ab cd<|endoftext|>'.encode()
        forms = [(self.write('a.jsonl', lines), ()),
                 (self.write('bom.jsonl', b'\xef\xbb\xbf' + lines.replace(b'\n', b'\r\n\r\n')), ()),
                 (self.write('a.json.gz', gzip.compress(lines)), ()), (self.write('a.dat', lines), ('--field', 'body')),
                 (self.write('a.txt', plain), ('--end-of-text',)),
                 (self.write('bom.txt', b'\xef\xbb\xbf' + plain), ('--end-of-text',)),
                 (self.write('packed', gzip.compress(plain)), ('--end-of-text',))]
        if shutil.which('zstd'):
            subprocess.run(['zstd', '-q', self.folder / 'a.jsonl'], check=True)
            forms.append((self.folder / 'a.jsonl.zst', ()))
        wanted = [END, *TEXT.encode(), END, *b'ab cd']
        tokenizers = set()
        for path, flags in forms:
            self.assertEqual(self.tokenize(path.name, *flags), wanted, path)
            self.assertEqual(self.encode(path.name, *flags), wanted[1:], path)
            tokenizers.add(self.learned(path.name, *flags))
        self.assertEqual(len(tokenizers), 1)
        self.tokenize('a.jsonl')
        of_shards = self.evaluate('out/train-00000.bin')
        self.assertEqual(of_shards['tokens'], len(wanted) - 1)
        for path, flags in forms:
            self.assertEqual(self.evaluate(path.name, *flags), of_shards, path)

    def test_a_folder_and_standard_input(self):
        self.write('folder/a.txt', 'ab')
        self.write('folder/b.jsonl', '{"text": "cd"}\n')
        self.assertEqual(self.encode('folder'), [*b'ab', END, *b'cd'])
        self.assertEqual(self.encode(text='ab<|endoftext|>cd'), [*b'ab<|endoftext|>cd'])
        self.assertEqual(self.encode('--field', 'text', text='{"text": "ab"}'), [*b'ab'])

    def test_a_split_of_json_lines(self):
        """A tokenizer learns from what tokenize leaves for training."""
        documents = ['abab ' * 20] * 5 + ['zqzq ' * 200]
        self.write('a.jsonl', ''.join(json.dumps({'text': text}) + '\n' for text in documents))
        self.write('train.txt', '<|endoftext|>'.join(documents[:5]))
        learned = self.learned('a.jsonl', '--split', 0.5, '--vocab-size', 259)
        self.assertEqual(learned, self.learned('train.txt', '--end-of-text', '--vocab-size', 259))
        self.assertNotEqual(learned, self.learned('a.jsonl', '--vocab-size', 259))

    def test_words_end_with_their_document(self):
        self.write('a.jsonl', ''.join(json.dumps({'text': text}) + '\n' for text in ['ab', 'cd'] * 50))
        error = self.refuses('tokenizer', 'train', 'a.jsonl', '--vocab-size', 260, '--out', 'learned').error
        self.assertIn('only 259 token ids', error)  # ab and cd, not bc


class Prompts(InputCase):
    def test_lines(self):
        for data in 'ab\ncd\n\nef', 'ab\r\ncd\r\n\r\nef\r\n', '\ufeffab\r\ncd\n\nef\n':
            self.write('p.txt', data)
            self.assertEqual(self.prompts('p.txt'), ['ab', 'cd', '', 'ef'])
        self.write('p.txt.gz', gzip.compress(b'ab\r\ncd\n'))
        self.assertEqual(self.prompts('p.txt.gz'), ['ab', 'cd'])
        self.assertEqual(self.prompts('-', text='\ufeffab\r\n'), ['ab'])
        self.write('p.txt', 'ab\ncd'.encode('utf-16'))
        self.refuses('generate', MODEL, '--tokenizer', 'bytes', '--prompts', 'p.txt', says=['p.txt is UTF-16 text', 'iconv'])

    def test_json_lines(self):
        lines = '\ufeff{"prompt": "ab"}\r\n\r\n{"prompt": "", "x": 1}\r\n{"prompt": "a\\r\\nb"}'
        self.write('p.jsonl', lines)
        self.write('p.ndjson.gz', gzip.compress(lines.encode()))
        for name in 'p.jsonl', 'p.ndjson.gz':
            self.assertEqual(self.prompts(name), ['ab', '', 'a\r\nb'])
        self.assertEqual(self.prompts('-', '--field', 'question', text='{"question": "ab"}'), ['ab'])
        self.refuses('generate', MODEL, '--tokenizer', 'bytes', '--prompts', 'p.jsonl', '--field', 'question',
                     says=['p.jsonl:1: the object has no member "question" (its members: "prompt")'])

    def test_interactive(self):
        out = [self.run_train('generate', MODEL, '--tokenizer', 'bytes', '--device', 'cpu', '--interactive', '--tokens', 8,
                              '--temperature', 0, text=text).out for text in ('ab\ncd\n', '\ufeffab\r\ncd\r\n')]
        self.assertEqual(*out)


class RawIds(InputCase):
    """--raw says that a file holds ids: what its start looks like does not overrule it."""

    def raw(self, name, *arguments):
        process = self.run_train('tokenize', '--raw', name, '--out', 'raw', *arguments)
        data = (self.folder / 'raw' / 'train-00000.bin').read_bytes()[1024:]
        return data, process.error

    def test_ids_of_bytes(self):
        ids = struct.pack(f'<{len(TEXT)}H', *TEXT.encode())  # as UTF-16 would be
        self.write('byte.bin', ids)
        for flags in (), ('--dtype', 'uint16'), ('--tokenizer', 'bytes'):
            self.assertEqual(self.raw('byte.bin', *flags)[0], ids)
        self.refuses('check', self.tiny_config(), 'data.train=byte.bin', says=['UTF-16', './train tokenize --raw byte.bin'])

    def test_few_ids_and_ids_that_are_text(self):
        self.write('few.bin', b'aabbccdd')
        self.assertEqual(self.raw('few.bin')[0], b'aabbccdd')
        self.write('long.bin', TEXT)
        self.refuses('tokenize', '--raw', 'long.bin', '--out', 'raw', says=['is text', 'add --dtype'])
        data, error = self.raw('long.bin', '--dtype', 'uint16')
        self.assertEqual(data, TEXT.encode())
        self.assertIn('long.bin looks like text, and is read as token ids', error)


class Check(InputCase):
    """check refuses what a run refuses."""

    def test_data(self):
        config = self.tiny_config()
        self.write('a.txt', TEXT)
        write_shard(self.folder / 'short.bin', [1] * 20)
        for option in 'data.train=a.txt', 'data.val=a.txt', 'data.train=["a.txt"]':
            refused = self.refuses('check', config, option).error
            self.assertEqual(refused.splitlines()[-1], self.refuses(config, option).error.splitlines()[-1])
        # what has too little data is warned of: train.seq_len may change
        error = self.refuses(config, 'data.train=short.bin').error.removeprefix('train: error: ')
        self.assertIn('warning: ' + error, self.run_train('check', config, 'data.train=short.bin').error)
        self.assertIn('no file matches absent.bin', self.run_train('check', config, 'data.train=absent.bin').error)
        self.tokenize('a.txt')
        error = self.refuses('check', config, 'data.train=out/train-00000.bin', 'data.val=', 'model.vocab_size=200').error
        self.assertIn('more ids than model.vocab_size 200', error)


class Sequences(InputCase):
    """Sequences are what is trained on: how many there are, and what is left out, is said by source."""

    def shards(self, name, sizes):
        for i, n in enumerate(sizes):
            write_shard(self.folder / f'{name}-{i:03d}.bin', pseudo_random_tokens(n, 60, seed=i))

    def test_what_is_left_out(self):
        self.shards('a', [32] * 9 + [40])
        self.shards('b', [3001])
        config = self.tiny_config(train={'seq_len': 32, 'max_steps': 1, 'train_batch_size': 1, 'micro_batch_size': 1})
        some = 'data.train[0] a-*.bin: 1 sequence of 32 tokens, 32 of 328 tokens; 296 (90 %) left out: the rest of each shard'
        few = 'data.train[1] b-*.bin: 93 sequences of 32 tokens, 2976 of 3001 tokens; 25 (0.83 %) left out'
        for command in ['check', config], [config]:
            error = self.run_train(*command, 'data.train=[{"path": "a-*.bin"}, {"path": "b-*.bin"}]', 'data.val=b-000.bin').error
            self.assertIn('warning: ' + some, error)
            self.assertIn(few, error)
            self.assertNotIn('warning: ' + few, error)
            self.assertIn('data.val: 93 sequences of 32 tokens, 2976 of 3001 tokens; 25 (0.83 %) left out', error)
        error = self.run_train('check', config, 'data.train=a-*.bin', 'data.val=').error
        self.assertIn('warning: ' + some.replace('[0] a-*.bin', ''), error)

    def test_val_split_with_a_short_last_shard(self):
        """At least one sequence is held out, and training goes on as without the short shard."""
        self.shards('b', [3001])
        config = self.tiny_config(train={'seq_len': 32, 'max_steps': 1, 'train_batch_size': 1, 'micro_batch_size': 1})
        options = 'data.val=', 'data.val_split=0.001'
        alone = self.run_train(config, 'data.train=b-*.bin', *options, 'run.dir=alone').error
        write_shard(self.folder / 'b-001.bin', [1] * 19)
        both = self.run_train(config, 'data.train=b-*.bin', *options, 'run.dir=both').error
        for error in alone, both:
            self.assertIn('(all 1 sequences of data.val)', error)
        self.assertIn('warning: data.val_split: 1 sequence of 32 tokens, 32 of 52 tokens; 20 (38 %) left out', both)
        self.assertEqual(self.curve('alone'), self.curve('both'))


if __name__ == '__main__':
    unittest.main()
