"""scripts/get_data.sh, against a server on this machine that drops connections."""
import collections
import gzip
import hashlib
import http.server
import os
import pathlib
import pty
import shutil
import struct
import subprocess
import threading
import unittest

import harness
from harness import CommandCase, ROOT, write_shard

HUB = 'huggingface.co/datasets'
HELLASWAG = 'raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl'


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files of a folder, with ranges and, as the Hub does, redirects with facts of the file. Misbehaves as told by
    `server.plans`: for a path, what to do with each next request for its contents."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        server, path = self.server, self.path
        data = server.files.get(path.removeprefix('/moved'))
        server.requests.append((self.command, path, self.headers.get('Range')))
        plan = server.plans[path].popleft() if with_body and server.plans[path] else None
        if data is None or isinstance(plan, int):
            self.send_response(plan or 404)
            self.send_header('Content-Length', '0')
            self.end_headers()
            return
        if HUB in path and not path.startswith('/moved'):
            self.send_response(302)
            self.send_header('Location', '/moved' + path)
            self.send_header('X-Linked-Size', str(len(data)))
            self.send_header('X-Linked-Etag', f'"{server.sums.get(path, hashlib.sha256(data).hexdigest())}"')
            self.send_header('Content-Length', '0')
            self.end_headers()
            return
        first = 0
        if self.headers.get('Range') and plan != 'no ranges':
            first = int(self.headers['Range'].removeprefix('bytes=').removesuffix('-'))
        self.send_response(206 if first else 200)
        if first:
            self.send_header('Content-Range', f'bytes {first}-{len(data) - 1}/{len(data)}')
        self.send_header('Content-Length', str(len(data) - first))
        self.send_header('ETag', f'"{hashlib.md5(data).hexdigest()}"')
        self.end_headers()
        if with_body:
            end = first + 1000 if plan in ('drop', 'slow') else len(data)
            self.wfile.write(data[first:end])
            if plan == 'slow':
                self.wfile.flush()
                server.go_on.wait(60)
                self.wfile.write(data[end:])
            self.close_connection = True


@unittest.skipIf(harness.SANITIZERS, 'a script, which the release run tests')
@unittest.skipUnless(shutil.which('curl'), 'curl is not installed')
class GetData(CommandCase):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.server.files, self.server.sums, self.server.requests = {}, {}, []
        self.server.go_on = threading.Event()
        self.server.plans = collections.defaultdict(collections.deque)
        threading.Thread(target=self.server.serve_forever, kwargs={'poll_interval': 0.02}, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f'http://127.0.0.1:{self.server.server_port}'
        self.script = self.folder / 'here' / 'scripts' / 'get_data.sh'
        self.script.parent.mkdir(parents=True)
        shutil.copy(ROOT / 'scripts' / 'get_data.sh', self.script)
        self.out = self.folder / 'my data'

    def get(self, *arguments, code=0, says=(), **environment):
        environment = {'ZERO_DATA_URL': self.url, 'ZERO_DATA_RETRY_S': '0.01', 'no_proxy': '*', **environment}
        process = subprocess.run([self.script, *map(str, arguments)], text=True, capture_output=True, timeout=120,
                                 env={**os.environ, **environment})
        self.assertEqual(process.returncode, code, process.stderr)
        for part in says:
            self.assertIn(part, process.stdout + process.stderr)
        return process

    def publish(self, path, data):
        self.server.files['/' + path] = data
        return hashlib.sha256(data).hexdigest()

    def ranges(self, path):
        return [asked for method, at, asked in self.server.requests if method == 'GET' and at == '/' + path]

    def test_dropped_connections(self):
        data = os.urandom(9500)
        found = self.publish(HELLASWAG, data)
        # connections end early, the server fails for a moment, and cannot continue at once
        self.server.plans['/' + HELLASWAG].extend(['drop', 'drop', 503, 'drop', 'no ranges'])
        self.get('hellaswag', self.out, says=['the connection failed', 'trying again'])
        self.assertEqual((self.out / 'hellaswag_val.jsonl').read_bytes(), data)
        self.assertEqual(self.ranges(HELLASWAG), [None, 'bytes=1000-', 'bytes=2000-', 'bytes=2000-', 'bytes=3000-', None])
        self.assertEqual((self.out / 'SHA256SUMS').read_text(), f'{found}  hellaswag_val.jsonl\n')
        self.assertEqual([path.name for path in self.out.glob('*.part*')], [])
        # nothing is fetched twice
        n = len(self.server.requests)
        self.get('hellaswag', self.out)
        self.assertEqual(len(self.server.requests), n)
        self.get('hellaswag', self.out, '--verify')
        (self.out / 'hellaswag_val.jsonl').write_bytes(data[:-1])
        self.get('hellaswag', self.out, '--verify', code=1, says=['hellaswag_val.jsonl has changed since'])
        # what was recorded must come again
        os.unlink(self.out / 'hellaswag_val.jsonl')
        self.publish(HELLASWAG, b'other')
        self.get('hellaswag', self.out, code=1, says=['when it was first downloaded', 'SHA256SUMS'])
        self.assertFalse((self.out / 'hellaswag_val.jsonl').exists())

    def test_an_interrupted_download_continues(self):
        data = os.urandom(5000)
        self.publish(HELLASWAG, data)
        self.server.plans['/' + HELLASWAG].extend(['drop'] + [500] * 6)
        self.get('hellaswag', self.out, code=1, says=['gave up after 6 attempts', 'the same command continues'])
        self.assertEqual((self.out / 'hellaswag_val.jsonl.part').read_bytes(), data[:1000])
        self.get('hellaswag', self.out)
        self.assertEqual((self.out / 'hellaswag_val.jsonl').read_bytes(), data)
        self.assertEqual(self.ranges(HELLASWAG)[-1], 'bytes=1000-')
        # but not with the rest of another version
        os.unlink(self.out / 'hellaswag_val.jsonl'), os.unlink(self.out / 'SHA256SUMS')
        self.server.plans['/' + HELLASWAG].extend(['drop'] + [500] * 6)
        self.get('hellaswag', self.out, code=1)
        self.publish(HELLASWAG, data[::-1])
        self.get('hellaswag', self.out, says=['published anew since its download began'])
        self.assertEqual((self.out / 'hellaswag_val.jsonl').read_bytes(), data[::-1])

    def test_progress_on_a_terminal(self):
        data = os.urandom(4_000_000)
        self.publish(HELLASWAG, data)
        self.server.plans['/' + HELLASWAG].append('slow')
        terminal, end = pty.openpty()
        process = subprocess.Popen([self.script, 'hellaswag', self.out], stdout=subprocess.DEVNULL, stderr=end,
                                   env={**os.environ, 'ZERO_DATA_URL': self.url, 'no_proxy': '*'})
        os.close(end)
        shown = b''
        while b'0.0 MB of 4.0 MB, 0 %' not in shown:
            shown += os.read(terminal, 1000)
        self.server.go_on.set()
        try:
            while True:
                shown += os.read(terminal, 1000)
        except OSError:  # the other end is closed
            pass
        os.close(terminal)
        self.assertEqual(process.wait(60), 0, shown)
        self.assertTrue(shown.endswith(b'\r\x1b[K'), shown)
        self.assertEqual((self.out / 'hellaswag_val.jsonl').read_bytes(), data)

    def test_the_hub(self):
        stories = f'{HUB}/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-'
        for name, text in ('valid', b'Once.<|endoftext|>'), ('train', b'Upon a time.<|endoftext|>' * 100):
            self.publish(f'{stories}{name}.txt', text)
        self.server.plans[f'/moved/{stories}train.txt'].append('drop')
        self.get('tinystories', self.out, says=['next: ./train tokenize'])
        self.assertEqual((self.out / 'TinyStoriesV2-GPT4-train.txt').read_bytes(), b'Upon a time.<|endoftext|>' * 100)
        # the Hub's checksum is compared
        os.unlink(self.out / 'TinyStoriesV2-GPT4-train.txt')
        self.server.sums[f'/{stories}train.txt'] = '0' * 64
        self.get('tinystories', self.out, code=1, says=['its publisher states ' + '0' * 64, 'was removed'])
        self.assertEqual(sorted(path.name for path in self.out.iterdir() if path.name[0] != '.'),
                         ['SHA256SUMS', 'TinyStoriesV2-GPT4-valid.txt'])
        self.publish(f'{HUB}/stanford-cs336/owt-sample/resolve/main/owt_valid.txt.gz', gzip.compress(b'a'))
        self.publish(f'{HUB}/stanford-cs336/owt-sample/resolve/main/owt_train.txt.gz', gzip.compress(b'a page<|endoftext|>'))
        self.get('openwebtext')  # to the default folder
        self.run_train('tokenize', self.folder / 'here/corpus/openwebtext/owt_train.txt.gz', '--end-of-text', '--tokenizer',
                       'bytes', '--out', 'out')
        self.assertEqual(struct.unpack('<7H', (self.folder / 'out/train-00000.bin').read_bytes()[1024:]), (256, *b'a page'))

    def test_published_checksums(self):
        for name, host in (('tinyshakespeare', 'raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'),
                           ('gpt2-tokenizer', 'openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe')):
            self.publish(host, b'another file')
            self.get(name, self.out, code=1, says=['its publisher states'])
            self.assertFalse((self.out / pathlib.PurePosixPath(host).name).exists())

    def test_fineweb(self):
        for name, n in ('val_000000', 100), ('train_000001', 200), ('train_000002', 300):
            path = self.folder / 'shard'
            write_shard(path, [1] * n, count=301 if n == 300 else None)
            self.publish(f'{HUB}/kjj0/fineweb10B-gpt2/resolve/main/fineweb_{name}.bin', path.read_bytes())
        self.get('fineweb-10B', '--shards', 1, says=['1 training shards and one for validation'])
        out = self.script.parents[1] / 'corpus' / 'fineweb10B'
        self.assertEqual(sorted(path.name for path in out.glob('*.bin')), ['fineweb_train_000001.bin', 'fineweb_val_000000.bin'])
        self.get('fineweb-10B', '--shards=2', code=1, says=['fineweb_train_000002.bin is not a complete token shard'])
        self.get('fineweb-10B', '--shards=3', code=1)
        self.get('fineweb-10B', '--shards', 104, code=2, says=['has 103 shards'])

    def test_what_cannot_be(self):
        data = b'x' * 100
        self.get('hellaswag', self.out, code=1, says=['does not exist (any more) (HTTP 404)'])
        self.publish(HELLASWAG, data)
        self.server.plans['/' + HELLASWAG].append(403)
        self.get('hellaswag', self.out, code=1, says=['access is denied (HTTP 403)'])
        self.get('hellaswag', self.out, code=1, says=['is this machine offline'], ZERO_DATA_URL='http://127.0.0.1:9')
        self.get('hellaswag', self.out, code=1, says=['cannot reach no-such-host.invalid'],
                 ZERO_DATA_URL='http://no-such-host.invalid')
        bin_folder = self.folder / 'bin'
        bin_folder.mkdir()
        (bin_folder / 'df').write_text('#!/bin/sh\necho Avail\necho 99\n')
        (bin_folder / 'df').chmod(0o755)
        self.get('hellaswag', self.out, code=1, says=['needs 0.00 GB more', '0.00 GB free'],
                 PATH=f'{bin_folder}:{os.environ["PATH"]}')
        self.get('hellaswag', self.out)
        for arguments in (), ('wikitext',), ('hellaswag', 'a', 'b'), ('hellaswag', '--shards', 1), ('--shards', 'x'), ('--x',):
            self.get(*arguments, code=2, says=['--help'])
        self.assertIn('--verify', self.get('--help').stdout)


if __name__ == '__main__':
    unittest.main()
