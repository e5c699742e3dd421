"""Shared code of the tests of ./train serve: a server on a free port, and requests to it."""
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

import harness
from harness import CommandCase, GOLDEN

POSITIONS = 64  # of the model
MODEL = GOLDEN / 'gpt2-tiny', '--tokenizer', 'bytes', '--device', 'cpu', '--threads', 1


class ServerCase(CommandCase):
    """Starts servers; they end with exit code 0 and without a sanitizer's report."""

    def serve(self, *arguments, model=MODEL, **options):
        """Starts a server; the tests' requests go to the last one."""
        process = self.start('serve', *model, '--port', 0, *arguments, stdin=subprocess.DEVNULL,
                             preexec_fn=harness.restore_signals, **options)
        self.addCleanup(self.kill, process)
        line = process.stdout.readline()
        found = re.search(r'http://[^:]*:(\d+) ', line)
        if not found:
            self.fail(line + process.stderr.read())
        self.port = int(found.group(1))
        return process

    @staticmethod
    def kill(process):
        process.kill()
        process.communicate()

    def end(self, process, number=signal.SIGTERM, code=0):
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        self.assertNotIn('Sanitizer', error)
        self.assertEqual(process.returncode, code, error)
        return out, error

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of the answer; a body that is a dictionary is sent as JSON."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def complete(self, **body):
        """The answer to a request that must succeed."""
        code, _, answer = self.request('POST', '/v1/completions', body)
        self.assertEqual(code, 200, answer)
        return json.loads(answer)

    def texts(self, **body):
        answer = self.complete(**body)
        self.assertEqual([choice['index'] for choice in answer['choices']], list(range(len(answer['choices']))))
        return [choice['text'] for choice in answer['choices']]

    def events(self, **body):
        """The objects of a streamed answer, without its [DONE]."""
        code, headers, answer = self.request('POST', '/v1/completions', dict(body, stream=True))
        self.assertEqual((code, headers['Content-Type']), (200, 'text/event-stream'), answer)
        lines = answer.decode().split('\n\n')
        self.assertEqual(lines[-2:], ['data: [DONE]', ''])
        return [json.loads(line.removeprefix('data: ')) for line in lines[:-2]]

    def refused(self, code, body, *says, path='/v1/completions', method='POST'):
        """The error object of a request that must fail with this code and these words."""
        got, headers, answer = self.request(method, path, body)
        self.assertEqual(got, code, answer)
        self.assertEqual(headers['Content-Type'], 'application/json')
        error = json.loads(answer)['error']
        for word in says:
            self.assertIn(word, error['message'])
        self.assertEqual(set(error), {'message', 'type', 'param', 'code'})
        return error

    def metric(self, name):
        """A value of /metrics by its name with labels."""
        code, _, page = self.request('GET', '/metrics')
        self.assertEqual(code, 200)
        values = dict(line.rsplit(' ', 1) for line in page.decode().splitlines() if not line.startswith('#'))
        return float(values.get(name, 0))

    def wait_for(self, what, seconds=30):
        until = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)

    def connect(self):
        link = socket.create_connection(('127.0.0.1', self.port), timeout=60)
        self.addCleanup(link.close)
        return link

    def send(self, body, path='/v1/completions'):
        """A socket on which a whole request was sent."""
        link = self.connect()
        data = json.dumps(body).encode()
        link.sendall(f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n'.encode() + data)
        return link


def together(n, work):
    """Runs work(i) on n threads; returns their results, and raises what one of them raised."""
    results, errors = [None] * n, []

    def run(i):
        try:
            results[i] = work(i)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def read_all(link):
    data = b''
    while True:
        try:
            part = link.recv(65536)
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part
