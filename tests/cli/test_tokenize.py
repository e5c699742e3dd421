"""./train tokenize: the same tokens from every kind of input, errors with their place, and interruptions."""
import gzip
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

import harness
from harness import CommandCase

END = 256  # of the tokenizer "bytes"


def shard_tokens(path):
    data = path.read_bytes()
    return list(struct.unpack(f'<{(len(data) - 1024) // 2}H', data[1024:]))


def documents(n, seed=1):
    """Documents of some hundred bytes, with everything that JSON escapes."""
    draw = random.Random(seed)
    words = ['the', 'king\'s', '"quoted"', 'back\\slash', 'tab\t', 'é', '日本', '\U0001f600', '\n', '\n\n', '1611,']
    return [f'{i} ' + ' '.join(draw.choices(words, k=draw.randrange(1, 120))) for i in range(n)]


def json_lines(texts, field='text'):
    return ''.join(json.dumps({'id': i, field: text}, ensure_ascii=i % 2 == 0) + '\n' for i, text in enumerate(texts))


def expected(texts):
    return [token for text in texts if text for token in (END, *text.encode())]


class TokenizeCase(CommandCase):
    def tokenize(self, *arguments, out='out', **options):
        return self.run_train('tokenize', *arguments, '--tokenizer', 'bytes', '--out', out, **options)

    def refuses_text(self, *arguments, out='out', **options):
        return self.refuses('tokenize', *arguments, '--tokenizer', 'bytes', '--out', out, **options)

    def tokens(self, split='train', out='out'):
        return [token for path in sorted((self.folder / out).glob(f'{split}-*.bin')) for token in shard_tokens(path)]

    def meta(self, out='out'):
        return json.loads((self.folder / out / 'meta.json').read_text())

    def contents(self, out):
        return {path.name: path.read_bytes() for path in (self.folder / out).iterdir()}

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


def zstd(path):
    subprocess.run(['zstd', '-q', path], check=True)


class Inputs(TokenizeCase):
    def test_all_kinds_give_the_same_tokens(self):
        texts = documents(300)
        texts[7] = ''
        wanted = expected(texts)
        lines = json_lines(texts)
        self.write('a.jsonl', lines)
        half = lines.index('\n', len(lines) // 2) + 1
        self.write('b.jsonl.gz', gzip.compress(lines[:half].encode()) + gzip.compress(lines[half:].encode()))
        self.write('all.txt', '<|endoftext|>'.join(texts))
        self.write('folder/sub/x.jsonl', json_lines(texts[:100]))
        self.write('folder/sub/y.json', '\n' + json_lines(texts[100:200]).replace('\n', '\r\n'))
        self.write('folder/z.txt.gz', gzip.compress('<|endoftext|>'.join(texts[200:]).encode()))
        self.write('content', json_lines(texts, 'content')[:-1])  # no line end
        inputs = [(['a.jsonl'], None), (['b.jsonl.gz'], None), (['all.txt', '--end-of-text'], None),
                  (['folder', '--end-of-text'], None), (['content', '--field', 'content'], None),
                  (['-', '--field', 'text'], lines), (['-', '--end-of-text'], '<|endoftext|>'.join(texts))]
        if shutil.which('zstd'):
            zstd(self.write('c.jsonl', lines))
            os.unlink(self.folder / 'c.jsonl')
            inputs.append((['c.jsonl.zst'], None))
        for arguments, text in inputs:
            self.tokenize(*arguments, text=text)
            self.assertEqual(self.tokens(), wanted, arguments)
        meta = self.meta()
        size = sum(len(text.encode()) for text in texts)
        self.assertEqual(meta['train'], {'bytes': size, 'tokens': len(wanted), 'documents': 299, 'shards': 1})
        self.tokenize('folder', '--end-of-text', '--shard-tokens', 5000)
        self.assertEqual(self.tokens(), wanted)
        meta = self.meta()
        self.assertEqual([s['path'] for s in meta['sources']], ['folder/sub/x.jsonl', 'folder/sub/y.json', 'folder/z.txt.gz'])
        self.assertEqual([s['documents'] for s in meta['sources']], [99, 100, 100])
        self.assertEqual(sum(s['tokens'] for s in meta['sources']), len(wanted))
        self.assertEqual([s['bytes'] for s in meta['sources']],
                         [(self.folder / s['path']).stat().st_size for s in meta['sources']])
        self.assertEqual([f['file'] for f in meta['files']], sorted(p.name for p in (self.folder / 'out').glob('*.bin')))
        # equal files have equal checksums, and others do not
        shutil.copy(self.folder / 'a.jsonl', self.folder / 'again.jsonl')
        self.tokenize('a.jsonl', 'again.jsonl', 'folder/sub/x.jsonl', '--shard-tokens', len(wanted))
        meta = self.meta()
        sums = [s['xxh3'] for s in meta['sources']]
        self.assertTrue(sums[0] == sums[1] != sums[2], sums)
        sums = [f['xxh3'] for f in meta['files']]
        self.assertTrue(sums[0] == sums[1] != sums[2], sums)

    def test_threads_do_not_matter(self):
        draw = random.Random(5)
        text = ''.join(draw.choices(['word ', 'é', '\n', 'x' * 50, '<|endoftext|>', '  '], k=900_000)).encode()
        self.write('large.txt', text)  # more than a batch
        self.write('more.txt', 'the end\n')
        written = []
        for threads in 1, 3:
            out = f'out{threads}'
            self.tokenize('large.txt', 'more.txt', '--end-of-text', '--split', '0.3', '--shard-tokens', 4_000_000, out=out,
                          environment={'OMP_NUM_THREADS': str(threads)})
            written.append(self.contents(out))
        self.assertEqual(written[0], written[1])
        # the split is at the first marker after 70 % of the bytes
        cut = text.index(b'<|endoftext|>', int((len(text) + 8) * 0.7) - 12)
        parts = [part for part in text[:cut].split(b'<|endoftext|>') if part]
        data = b''.join(struct.pack(f'<{len(part) + 1}H', END, *part) for part in parts)
        shards = sorted((self.folder / 'out3').glob('train-*.bin'))
        self.assertGreater(len(shards), 1)
        self.assertTrue(b''.join(path.read_bytes()[1024:] for path in shards) == data)
        self.assertEqual(self.tokens('val', out='out3')[-9:], [END, *b'the end\n'])

    def test_the_split_of_streams(self):
        """Without sizes: the last fraction of the tokens, from a document's start."""
        texts = ['a' * 9] * 10  # 10 tokens each
        self.write('a.jsonl', json_lines(texts))
        for fraction, n in ('0.3', 7), ('0.25', 8), ('0.01', 9), ('0.99', 1):
            for arguments, text in (['a.jsonl'], None), (['-', '--end-of-text'], '<|endoftext|>'.join(texts)):
                self.tokenize(*arguments, '--split', fraction, '--shard-tokens', 8, text=text)
                self.assertEqual((self.tokens(), self.tokens('val')), (expected(texts[:n]), expected(texts[n:])))
                meta = self.meta()
                self.assertEqual(meta['train'], {'bytes': 9 * n, 'tokens': 10 * n, 'documents': n, 'shards': -(-10 * n // 8)})
                self.assertEqual(meta['val']['documents'], 10 - n)
                self.assertEqual(meta['val']['bytes'], 90 - 9 * n)
        # within a single document there is no better place
        self.tokenize('-', '--split', '0.5', text='0123456789abc')
        self.assertEqual((self.tokens(), self.tokens('val')), ([END, *b'012345'], [END, *b'6789abc']))
        self.assertEqual(self.meta()['val'], {'bytes': 7, 'tokens': 8, 'documents': 1, 'shards': 1})

    def test_memory_does_not_grow_with_the_text(self):
        if harness.SANITIZERS:
            self.skipTest('a sanitizer keeps memory')
        line = (json.dumps({'text': 'x y ' * 2000}) + '\n').encode() * 125
        # Between, a process of its own: Linux counts to a child's peak what its parent has at the start, and this one runs
        # other tests.
        measure = ('import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode; '
                   'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)')
        with subprocess.Popen([sys.executable, '-c', measure, str(harness.TRAIN), 'tokenize', '-', '--field', 'text', '--tokenizer',
                               'bytes', '--out', 'out'], cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS='2')) as process:
            for _ in range(60):  # 60 MB
                process.stdin.write(line)
            process.stdin.close()
            error, peak_kib = process.stderr.read(), int(process.stdout.read())
        self.assertEqual(process.returncode, 0, error)
        self.assertEqual(self.meta()['train']['bytes'], 60 * 125 * 8000)
        # Chunks that wait for the threads are bounded; all of the text with its ids would take 300 MB.
        self.assertLess(peak_kib * 1024, 150e6)


class BadInput(TokenizeCase):
    def test_lines(self):
        good = json_lines(documents(20))
        for bad, says in (('{"text": "a', 'x.jsonl:21:'), ('{"txt": "a"}', 'x.jsonl:21: the object has no member "text" (its members: "txt")'),
                          ('{"text": 5}', 'x.jsonl:21: "text" is not a string'), ('["a"]', 'x.jsonl:21: expected a JSON object'),
                          ('plain text', 'x.jsonl:21:1:'), (b'{"text": "\xff"}', 'x.jsonl:21:11: byte 0xff is not UTF-8')):
            self.write('x.jsonl', good.encode() + (bad if isinstance(bad, bytes) else bad.encode()) + b'\n' + good.encode())
            self.refuses_text('x.jsonl', says=[says])
            self.assertFalse((self.folder / 'out').exists())  # nothing is left behind
        self.refuses_text('-', '--field', 'text', text=good + 'x', says=['standard input:21:1:'])
        # of several, the first in the text, whichever thread meets which one first
        lines = json_lines(documents(4000)).splitlines()
        for i in 900, 1900, 2900, 3900:
            lines[i] = '{}'
        self.write('x.jsonl', '\n'.join(lines))
        for _ in range(3):
            self.refuses_text('x.jsonl', says=['x.jsonl:901: the object has no'], environment={'OMP_NUM_THREADS': '4'})

    def test_files(self):
        self.write('a.parquet', b'PAR1' + bytes(100))
        self.refuses_text('a.parquet', says=['is a Parquet file', 'pandas.read_parquet("a.parquet")'])
        self.write('folder/b.txt', 'text')
        self.write('folder/c.npy', b'\x93NUMPY' + bytes(100))
        self.refuses_text('folder', says=['folder/c.npy', 'NumPy'])
        self.refuses_text('absent.txt', says=['absent.txt'])
        self.refuses_text('-', '-', text='', says=['twice'])
        packed = gzip.compress(json_lines(documents(50)).encode())
        self.write('t.jsonl.gz', packed[:-20])
        self.refuses_text('t.jsonl.gz', says=[f't.jsonl.gz is truncated: it ends after {len(packed) - 20} bytes', 'gzip'])
        self.write('t.jsonl.gz', packed[:500] + b'\xff' * 50 + packed[550:])
        self.refuses_text('t.jsonl.gz', says=['t.jsonl.gz: its gzip data is damaged at or before byte'])
        self.write('t.jsonl.gz', gzip.compress(b''))
        self.refuses_text('t.jsonl.gz', says=['contains no text'])
        if shutil.which('zstd'):
            path = self.write('z.txt', '\n'.join(documents(50)))
            zstd(path)
            packed = (self.folder / 'z.txt.zst').read_bytes()
            self.write('z.txt.zst', packed[:-9])
            self.refuses_text('z.txt.zst', says=['z.txt.zst is truncated', 'zstd'])
            self.write('z.txt.zst', packed[:-60] + b'\xff' * 40 + packed[-20:])
            self.refuses_text('z.txt.zst', says=['z.txt.zst: its zstd data is damaged'])


class Interrupted(TokenizeCase):
    """The same command keeps the finished shards, and the files have the same bytes as without the interruption."""
    KEEPS = 'out: keeping the finished shards of an unfinished run'

    @classmethod
    def setUpClass(cls):
        # Batches are of 8 MiB at least: one is tokenized when the first shards are there.
        lines = json_lines(documents(6000))
        cls.long = lines * ((18 << 20) // len(lines))
        cls.again = 'x.jsonl', '--split', '0.1', '--shard-tokens', '3000000'
        cls.whole = None

    def setUp(self):
        super().setUp()
        self.path = self.folder / 'x.jsonl'
        self.path.write_text(self.long)
        self.shards = self.folder / 'out' / 'tokenize.unfinished'
        if not Interrupted.whole:
            self.tokenize(*self.again, out='whole')
            Interrupted.whole = self.contents('whole')

    def end(self, number, *arguments, file='record', stopped=lambda: None, **options):
        """Ends a run with a signal once it has this file of its unfinished ones."""
        for _ in range(20):
            process = self.start('tokenize', *arguments, '--tokenizer', 'bytes', '--out', 'out', preexec_fn=harness.restore_signals,
                                 **options)
            while process.poll() is None and not (self.shards / file).exists():
                time.sleep(0.0005)
            if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                stopped()
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
            error = process.communicate(timeout=60)[1]
            if process.returncode == -number:
                return
            self.assertEqual(process.returncode, 0, error)  # it was faster
            shutil.rmtree(self.folder / 'out')
        self.fail('all runs were faster')

    def expect_the_same(self, *arguments, keeps=True, whole=None, **options):
        error = self.tokenize(*(arguments or self.again), **options).error
        self.assertEqual(self.KEEPS in error, keeps, error)
        self.assertTrue(self.contents('out') == (whole or self.whole))

    def test_kills(self):
        def refuses_another():
            self.write('y.jsonl', json_lines(documents(3)))
            self.refuses_text('y.jsonl', says=['another ./train tokenize is writing to out'])
        self.end(signal.SIGKILL, *self.again, stopped=refuses_another, environment={'OMP_NUM_THREADS': '1'})
        kept = (self.shards / 'train-00000.bin').stat()
        shutil.copytree(self.folder / 'out', self.folder / 'copy')
        self.expect_the_same(environment={'OMP_NUM_THREADS': '6'})  # which has larger batches
        after = (self.folder / 'out' / 'train-00000.bin').stat()
        self.assertEqual((kept.st_ino, kept.st_mtime_ns), (after.st_ino, after.st_mtime_ns))  # it was not written again

        def begins_anew(change):
            shutil.rmtree(self.folder / 'out')
            shutil.copytree(self.folder / 'copy', self.folder / 'out')
            change()
            self.expect_the_same(keeps=False)
        begins_anew(lambda: os.truncate(self.shards / 'record', 100))
        begins_anew(lambda: os.truncate(self.shards / 'train-00000.bin', 3_000_000))
        begins_anew(lambda: os.utime(self.path))
        self.end(signal.SIGINT, *self.again)
        self.assertNotIn(self.KEEPS, self.tokenize('x.jsonl', '--split', '0.2', '--shard-tokens', '3000000').error)

    def test_a_kill_after_the_split(self):
        self.write('x.txt', self.long.replace('", "text": "', '<|endoftext|>'))
        arguments = 'x.txt', '--end-of-text', '--split', '0.6', '--shard-tokens', '2500000'
        self.tokenize(*arguments, out='other')
        self.end(signal.SIGKILL, *arguments, file='val-00000.bin')
        self.assertGreater(len(list(self.shards.glob('train-*.bin'))), 1)
        self.expect_the_same(*arguments, whole=self.contents('other'))

    def test_failures(self):
        arguments = 'x.jsonl', '--shard-tokens', '3000000'
        self.tokenize(*arguments, out='other')
        (self.folder / 'out' / 'meta.json').mkdir(parents=True)
        self.refuses_text(*arguments, says=['out/meta.json is a folder'])  # at once
        (self.folder / 'out' / 'meta.json').rmdir()
        process = self.start('tokenize', *arguments, '--tokenizer', 'bytes', '--out', 'out')
        while process.poll() is None and not (self.shards / 'record').exists():
            time.sleep(0.0005)
        process.send_signal(signal.SIGSTOP)
        (self.folder / 'out' / 'meta.json').mkdir()
        process.send_signal(signal.SIGCONT)
        error = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 1, error)
        self.assertIn('cannot replace out/meta.json', error)
        self.assertIn('run the same command again; it keeps the finished shards', error)
        (self.folder / 'out' / 'meta.json').rmdir()
        self.expect_the_same(*arguments, whole=self.contents('other'))
        # text from a pipe is there once
        self.refuses_text('-', '--field', 'text', *self.again[1:], text=self.long + 'x', says=['standard input:'])
        self.assertTrue(self.contents('out') == self.contents('other'))
        self.path.write_text(self.long + 'x')
        self.assertIn('it keeps the finished shards', self.refuses_text(*self.again, says=['x.jsonl:']).error)
        self.path.write_text(self.long)
        self.expect_the_same(keeps=False)

    @unittest.skipUnless(harness.FULL, 'a minute or two, in the full run')
    def test_kills_at_any_time(self):
        draw, n_kills = random.Random(11), 0
        for _ in range(200):
            process = self.start('tokenize', *self.again, '--tokenizer', 'bytes', '--out', 'out', preexec_fn=harness.restore_signals)
            time.sleep(draw.uniform(0.05, 0.6))
            process.kill()
            error = process.communicate(timeout=60)[1]
            if process.returncode == 0:
                break
            self.assertEqual(process.returncode, -signal.SIGKILL, error)
            n_kills += 1
        self.assertGreater(n_kills, 0)
        if process.returncode != 0:
            self.tokenize(*self.again)
        self.assertTrue(self.contents('out') == self.whole)

    @unittest.skipIf(harness.SANITIZERS, 'takes long')
    def test_a_full_disk(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
        error = self.refuses_text(*self.again, code=1, says=['cannot write out/tokenize.unfinished/train-00000.bin'],
                                  preexec_fn=limit).error
        self.assertNotIn('keep', error)  # nothing was finished yet
        self.assertFalse((self.folder / 'out').exists())
        self.expect_the_same(keeps=False)


if __name__ == '__main__':
    unittest.main()
