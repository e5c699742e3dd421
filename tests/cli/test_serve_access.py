"""Who may ask ./train serve: hosts, pages of other sites, keys; requests whose end is unclear; hundreds of hostile clients."""
import http.client
import http.server
import json
import pathlib
import random
import re
import socket
import struct
import threading
import time
import unittest

import chromium
import harness
from serving import MODEL, ServerCase, read_all, together

BODY = '{"prompt": "a", "max_tokens": 1, "temperature": 0}'


def request(*lines, body=''):
    return ('\r\n'.join([*lines, '', '']) + body).encode('latin-1')


class AccessCase(ServerCase):
    def exchange(self, data):
        """What a connection on which these bytes are sent gets until it is closed."""
        with self.connect() as link:
            link.sendall(data)
            return read_all(link)

    def codes(self, data):
        return [int(code) for code in re.findall(rb'HTTP/1\.1 (\d+) ', self.exchange(data))]

    def code(self, *headers, target='/health', method='GET', version='1.1', body=''):
        """The status of the only answer to a request with these headers."""
        length = [f'Content-Length: {len(body)}'] if body else []
        code, = self.codes(request(f'{method} {target} HTTP/{version}', *headers, *length, 'Connection: close', body=body))
        return code

    def post(self, *headers, body=BODY):
        return self.code('Host: localhost', *headers, target='/v1/completions', method='POST', body=body)


class Hosts(AccessCase):
    """A name that is not the server's may be one that a page made to point at this machine."""

    def check(self, answered=(), foreign=(), malformed=()):
        for hosts, code in (answered, 200), (foreign, 403), (malformed, 400):
            for host in hosts:
                self.assertEqual(self.code(f'Host: {host}'), code, host)

    def test_this_machine_only(self):
        process = self.serve('--allow-host', 'GPU.example.com:8000', '--allow-host', '.Lan', '--allow-host', '[fd00::5]')
        self.check(answered=('localhost', 'LocalHost:1', 'localhost.', 'a.localhost', '127.0.0.1', '127.0.0.1:99', '127.3.2.1',
                             '[::1]', '[::1]:80', 'gpu.example.com', 'gpu.EXAMPLE.com.:80', 'a.lan', '[fd00::5]:80', 'localhost:'),
                   foreign=('evil.example', 'localhost.evil.example', '127.0.0.1.evil.example', 'evil-localhost',
                            'x.gpu.example.com', '10.0.0.1', '0.0.0.0', '[::2]', '[::]', '2130706433', 'lan', 'notlan', 'a' * 255),
                   malformed=('', ' ', '::1', '[::1', 'localhost:x', 'a b', 'me@localhost', 'localhost/', 'localhost,evil', 'a' * 300,
                              '.'))
        error = self.refused(403, None, 'unknown host "evil.example"', '--allow-host', path='http://evil.example/', method='GET')
        self.assertEqual(error['code'], 'host_not_allowed')
        self.assertEqual(self.code(), 400)  # HTTP/1.1 needs one
        self.assertEqual(self.code(version='1.0'), 200)
        self.assertEqual(self.code('Host: localhost', 'Host: localhost'), 400)
        self.assertEqual(self.code('Host: evil.example', target='/v1/completions', method='POST', body=BODY), 403)
        self.end(process)

    def test_absolute_form(self):
        """GET http://HOST/PATH is GET /PATH with this host, whatever the header says (RFC 9112, 3.2.2)."""
        process = self.serve()
        for target in 'http://localhost/health', 'HTTP://LOCALHOST:8000/health?x=1', f'http://127.0.0.1:{self.port}/health':
            self.assertEqual(self.code('Host: evil.example', target=target), 200, target)
        self.assertEqual(self.code('Host: localhost', target='http://localhost/v1/completions', method='POST', body=BODY), 200)
        self.assertIn(b'</html>', self.exchange(request('GET http://localhost HTTP/1.1', 'Host: localhost', 'Connection: close')))
        self.assertEqual(self.code('Host: localhost', target='http://evil.example/health'), 403)
        self.assertEqual(self.code('Host: localhost', target='http:///health'), 400)
        self.assertEqual(self.code('Host: localhost', target='http://a@localhost/health'), 400)
        self.assertEqual(self.code('Host: localhost', target='https://localhost/health'), 404)
        self.end(process)

    def test_all_addresses(self):
        """The server cannot know its addresses behind a container's port, but a name has to be given."""
        process = self.serve('--host', '0.0.0.0', '--allow-host', 'llm')
        self.check(answered=('localhost', '127.0.0.1', '10.1.2.3:80', '[fd00::1]', '0.0.0.0', 'llm', 'llm:8000'),
                   foreign=('evil.example', '10.1.2.3.evil.example', 'llm.evil.example', socket.gethostname() + '.evil.example'))
        self.assertEqual(self.code('Host: 10.1.2.3', 'Origin: http://10.1.2.3:80'), 200)
        self.assertEqual(self.code('Host: 10.1.2.3', 'Origin: http://10.1.2.4'), 403)
        self.assertIn('ZERO_API_KEY', self.end(process)[1])
        process = self.serve('--host', '0.0.0.0', '--api-key', 'k')
        self.assertNotIn('ZERO_API_KEY', self.end(process)[1])
        self.assertNotIn('ZERO_API_KEY', self.end(self.serve())[1])

    def test_command_line(self):
        for name in 'http://a', '', 'a b', 'fd00::1', 'a/b':
            self.refuses('serve', *MODEL, '--allow-host', name, says=['--allow-host', '.NAME'])
        for origin in 'a', 'http://', 'http://a/', 'null', 'http://*.a', '':
            self.refuses('serve', *MODEL, '--cors', origin, says=['--cors', 'http://HOST:PORT'])
        for key in '', 'a b', 'a\n', 'ä':
            self.refuses('serve', *MODEL, '--api-key', key, says=['key'])
        self.refuses('serve', *MODEL, says=['key'], environment={'ZERO_API_KEY': ''})


class Pages(AccessCase):
    def test_other_sites(self):
        process = self.serve()
        own = f'Origin: http://127.0.0.1:{self.port}'
        for origin in 'http://evil.example', 'null', 'http://localhost.evil.example', 'evil', 'http://localhost/x', 'http://', '':
            self.assertEqual(self.post(f'Origin: {origin}', 'Content-Type: application/json'), 403, origin)
        for origin in own, 'Origin: http://localhost:1', 'Origin: https://LOCALHOST', 'Origin: http://[::1]:5':
            self.assertEqual(self.post(origin, 'Content-Type: application/json'), 200, origin)
        for site, code in ('cross-site', 403), ('new-value', 403), ('same-origin', 200), ('same-site', 200), ('none', 200):
            self.assertEqual(self.code('Host: localhost', f'Sec-Fetch-Site: {site}'), code, site)
        for mode, into, code in ('navigate', 'document', 200), ('navigate', 'iframe', 403), ('no-cors', 'image', 403):
            self.assertEqual(self.code('Host: localhost', 'Sec-Fetch-Site: cross-site', f'Sec-Fetch-Mode: {mode}',
                                       f'Sec-Fetch-Dest: {into}', target='/'), code)  # a link, and what embeds the page
        self.assertEqual(self.post('Sec-Fetch-Site: cross-site', 'Sec-Fetch-Mode: navigate', 'Sec-Fetch-Dest: document'), 403)
        self.assertEqual(self.post(own, own, 'Content-Type: application/json'), 400)
        self.end(process)

    def test_types(self):
        """What a page may send to any site without a preflight is not taken from it; `curl -d` says a form and no origin."""
        process = self.serve()
        own, same = f'Origin: http://127.0.0.1:{self.port}', 'Sec-Fetch-Site: same-origin'
        form = 'Content-Type: application/x-www-form-urlencoded'
        for headers in ([], [form], [form + '; charset=utf-8'], ['Content-Type: Application/JSON;charset=utf-8'],
                        ['Content-Type: '], [own, 'Content-Type: application/json'], [same, 'Content-Type: application/json ; x=y']):
            self.assertEqual(self.post(*headers), 200, headers)
        for headers in (['Content-Type: text/plain'], ['Content-Type: multipart/form-data; boundary=x'],
                        ['Content-Type: text/json'], ['Content-Type: application/jsonx'],
                        ['Content-Type: application/json, text/plain'], [own], [own, form], [same], [same, form],
                        [own, 'Content-Type: text/plain'], ['Content-Type: text/plain', 'Expect: 100-continue']):
            self.assertEqual(self.post(*headers), 415, headers)
        code, headers, body = self.request('POST', '/v1/completions', BODY, {'Content-Type': 'text/plain'})
        self.assertEqual((code, headers['Content-Type'], json.loads(body)['error']['code']),
                         (415, 'application/json', 'unsupported_media_type'))
        self.end(process)

    def test_cors(self):
        process = self.serve('--cors', 'http://page.example:3000', '--cors', 'https://other.example', '--api-key', 'k')
        page = {'Origin': 'http://page.example:3000', 'Sec-Fetch-Site': 'cross-site'}
        ask = {**page, 'Access-Control-Request-Method': 'POST',
               'Access-Control-Request-Headers': 'authorization,content-type,x-a'}
        code, headers, body = self.request('OPTIONS', '/v1/completions', headers=ask)
        self.assertEqual((code, body), (200, b''))
        self.assertEqual(headers['Access-Control-Allow-Origin'], page['Origin'])
        self.assertEqual(headers['Access-Control-Allow-Headers'], 'authorization,content-type,x-a')
        self.assertIn('POST', headers['Access-Control-Allow-Methods'])
        self.assertEqual(headers['Vary'], 'Origin')
        send = dict(page, **{'Content-Type': 'application/json', 'Authorization': 'Bearer k'})
        for stream in False, True:
            code, headers, _ = self.request('POST', '/v1/completions', {'prompt': 'a', 'max_tokens': 2, 'stream': stream}, send)
            self.assertEqual((code, headers['Access-Control-Allow-Origin'], headers['Vary']), (200, page['Origin'], 'Origin'))
        for wrong in {'Authorization': 'Bearer x'}, {'Content-Type': 'text/plain'}:  # a page can read why it is refused
            code, headers, body = self.request('POST', '/v1/completions', BODY, dict(send, **wrong))
            self.assertEqual((code in (401, 415), headers['Access-Control-Allow-Origin']), (True, page['Origin']))
        for origin in 'http://page.example', 'https://page.example:3000', 'http://evil.example', 'null':
            code, headers, body = self.request('OPTIONS', '/v1/completions', headers=dict(ask, Origin=origin))
            self.assertEqual((code, headers['Access-Control-Allow-Origin']), (403, None), origin)
        code, headers, body = self.request('GET', '/health')
        self.assertEqual((code, headers['Access-Control-Allow-Origin'], headers['Vary']), (200, None, 'Origin'))
        self.end(process)
        process = self.serve('--cors', '*')
        self.assertEqual(self.request('GET', '/health', headers={'Origin': 'null'})[1]['Access-Control-Allow-Origin'], 'null')
        self.end(process)


class Keys(AccessCase):
    def check(self, process):
        for header in (None, 'Bearer', 'Bearer ', 'Bearer s3cre', 'Bearer s3cret!', 'Bearer S3cret', 'Basic s3cret', 's3cret'):
            headers = {'Authorization': header} if header is not None else {}
            for method, path in ('POST', '/v1/completions'), ('GET', '/v1/models'), ('GET', '/metrics'), ('GET', '/nothing'):
                code, got, body = self.request(method, path, BODY if method == 'POST' else None, headers)
                self.assertEqual((code, got['WWW-Authenticate']), (401, 'Bearer'))
                self.assertEqual(json.loads(body)['error']['code'], 'invalid_api_key')
        for header in 'Bearer s3cret', 'bearer s3cret':
            self.assertEqual(self.request('POST', '/v1/completions', BODY, {'Authorization': header})[0], 200)
        self.assertEqual(self.request('GET', '/')[0], 200)
        self.assertEqual(self.request('GET', '/health')[0], 200)
        self.end(process)

    def test_keys(self):
        self.check(self.serve('--api-key', 's3cret', environment={'ZERO_API_KEY': 'other'}))
        self.check(self.serve(environment={'ZERO_API_KEY': 's3cret'}))


class Ends(AccessCase):
    """A request whose end a proxy in front may see elsewhere: refused, and nothing of the connection is read any more."""

    def test_smuggling(self):
        process = self.serve()
        second = request('GET /v1/models HTTP/1.1', 'Host: localhost')
        chunked = f'{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n'
        for method in 'POST', 'GET':
            for headers, body in ((['Content-Length: 0', f'Content-Length: {len(BODY)}'], BODY),
                                  ([f'Content-Length: {len(BODY)}'] * 2, BODY),
                                  ([f'Content-Length: {len(BODY)}', 'Transfer-Encoding: chunked'], chunked),
                                  (['Transfer-Encoding: chunked', 'Content-Length: 0'], chunked),
                                  (['Transfer-Encoding: chunked', 'Transfer-Encoding: identity'], chunked),
                                  (['Transfer-Encoding: gzip, chunked'], chunked), (['Transfer-Encoding: x'], BODY),
                                  (['Content-Length : 5'], ''),
                                  (['Transfer-Encoding\t: chunked'], chunked), (['Content-Length: +5'], BODY),
                                  (['Content-Length: 5, 5'], BODY), (['Content-Length: -1'], BODY), (['Content-Length: 0x5'], BODY)):
                target = '/v1/completions' if method == 'POST' else '/health'
                codes = self.codes(request(f'{method} {target} HTTP/1.1', 'Host: localhost', *headers, body=body) + second)
                self.assertEqual(set(codes), {400}, (method, headers))  # libmicrohttpd repeats the head of its own answers
        of_http10 = request('POST /v1/completions HTTP/1.0', 'Transfer-Encoding: chunked', body=chunked)
        self.assertEqual(self.codes(of_http10 + second), [400])
        huge = request('POST /v1/completions HTTP/1.1', 'Host: localhost', 'Content-Length: 99999999999999999999')
        self.assertEqual(set(self.codes(huge + second)), {413})
        self.end(process)

    def test_forms_that_are_right(self):
        process = self.serve()
        close = 'Connection: close'
        chunked = f'5;x=y\r\n{BODY[:5]}\r\n{len(BODY) - 5:X}\r\n{BODY[5:]}\r\n0\r\nContent-Length: 3\r\nHost: evil\r\n\r\n'
        self.assertEqual(self.codes(request('POST /v1/completions HTTP/1.1', 'Host: localhost', 'Transfer-Encoding: Chunked',
                                            close, body=chunked)), [200])
        health = request('GET /health HTTP/1.1', 'Host: localhost')
        last = request('GET /health HTTP/1.1', 'Host: localhost', close)
        post = request('POST /v1/completions HTTP/1.1', 'Host: localhost', f'Content-Length: {len(BODY)}', body=BODY)
        self.assertEqual(self.codes(health + post + health + post + last), [200] * 5)
        refused = request('POST /v1/completions HTTP/1.1', 'Host: evil', f'Content-Length: {len(BODY)}', body=BODY)
        self.assertEqual(self.codes(refused + health + refused + last), [403, 200, 403, 200])  # its body was read
        with self.connect() as link:
            link.sendall(request('POST /v1/completions HTTP/1.1', 'Host: localhost', 'Expect: 100-continue', close,
                                 f'Content-Length: {len(BODY)}'))
            self.assertIn(b' 100 ', link.recv(100))
            link.sendall(BODY.encode())
            self.assertIn(b' 200 ', read_all(link))
        for method, target, codes in (('HEAD', '/v1/models', [200]), ('HEAD', '/v1/completions', [405]), ('BREW', '/health', [405]),
                                      ('get', '/health', [405]), ('OPTIONS', '*', [200]), ('CONNECT', 'a:80', [404])):
            self.assertEqual(self.codes(request(f'{method} {target} HTTP/1.1', 'Host: localhost', close)), codes, method)
        stream = json.dumps({'prompt': 'a', 'max_tokens': 3, 'stream': True})
        answer = self.exchange(request('POST /v1/completions HTTP/1.0', f'Content-Length: {len(stream)}', body=stream))
        self.assertTrue(answer.endswith(b'data: [DONE]\n\n'), answer)
        self.end(process)


class Limits(AccessCase):
    def test_connections_of_an_address(self):
        process = self.serve('--max-per-address', 3)
        links = [self.connect() for _ in range(3)]
        for link in links:
            link.sendall(request('GET /health HTTP/1.1', 'Host: localhost'))
            self.assertIn(b' 200 ', link.recv(1000))
        with self.connect() as link:
            self.assertEqual(read_all(link), b'')
        links.pop().close()

        def is_answered():
            try:
                return self.request('GET', '/health')[0] == 200
            except (http.client.HTTPException, ConnectionError):
                return False
        self.wait_for(is_answered)
        self.end(process)

    def test_who_does_not_read(self):
        """A stream that nobody reads ends as others do: its slots are free, and after --timeout its connection is closed."""
        process = self.serve('--slots', 2, '--timeout', 2)
        links = []
        for stream in True, True, False:
            link = socket.socket()
            self.addCleanup(link.close)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            link.connect(('127.0.0.1', self.port))
            body = json.dumps({'prompt': 'a', 'max_tokens': 60, 'n': 80, 'stream': stream, 'logprobs': 5})
            link.sendall(request('POST /v1/completions HTTP/1.1', 'Host: localhost', f'Content-Length: {len(body)}', body=body))
            links.append(link)
        self.wait_for(lambda: self.metric('zero_prompt_tokens_total') == 3, 60)
        self.wait_for(lambda: self.metric('zero_texts_running') + self.metric('zero_texts_waiting') == 0, 120)
        self.complete(prompt='a', max_tokens=2, n=2)
        self.wait_for(lambda: self.metric('zero_connections') == 1, 60)
        self.end(process)

    def test_slow_heads(self):
        """A head that drips is cut long before --timeout; a body and an answer have that."""
        process = self.serve('--timeout', 1000)
        body = self.connect()
        body.sendall(request('POST /v1/completions HTTP/1.1', 'Host: localhost', f'Content-Length: {len(BODY)}', 'Connection: close',
                             body=BODY[:5]))
        kept = self.connect()
        kept.sendall(request('GET /health HTTP/1.1', 'Host: localhost') + b'GET /hea')
        slow = [self.connect() for _ in range(3)]
        drips = 0
        while not all(self.drip(link) for link in slow):
            drips += 1
            self.assertLess(drips, 1200)
            time.sleep(0.1)
        self.assertIn(b' 200 ', read_all(kept))
        body.sendall(BODY[5:].encode())
        self.assertIn(b' 200 ', read_all(body))
        self.end(process)

    @staticmethod
    def drip(link):
        """Sends a byte of a header's value; whether the connection is closed."""
        try:
            link.sendall(b'G' if link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 else b'')
            link.setblocking(False)
            return link.recv(1) == b''
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            link.setblocking(True)


class Hostile(AccessCase):
    """Clients that send what no client should: the server lives, and no slot, connection or byte of the cache is lost."""
    SLOTS, PER_ADDRESS = 4, 40

    @staticmethod
    def hostile_bytes(dice):
        def pick(right, *wrong):
            return right if dice.random() < 0.85 else dice.choice(wrong)
        ask = json.dumps({'prompt': 'a' * dice.randrange(31), 'max_tokens': dice.randrange(34), 'n': dice.randrange(1, 40),
                          'stream': dice.random() < 0.5, 'logprobs': dice.choice([None, 0, 5])})
        body = pick(ask, '', '[' * 5000, '{"prompt": ' + '[1,' * 3000, '{"a":1,' * 500, '\0' * 50, '\xff' * 99, ask * 2, ask[:-1])
        method = pick('POST', 'GET', 'HEAD', 'OPTIONS', 'PUT', 'X' * 3000)
        target = pick('/v1/completions', 'http://localhost/v1/completions', '/', '*', '/' + '%00/..' * 500, '//', 'http://')
        version = pick('HTTP/1.1', 'HTTP/1.0', 'HTTP/2.0', '', 'HTTP/1.1 x')
        host = pick('localhost', 'evil.example', '[::1]', '[', '', '127.0.0.1:' + '9' * 400)
        length = pick(f'Content-Length: {len(body)}', 'Content-Length: 9999999', 'Content-Length: -1', 'Transfer-Encoding: x',
                      'Content-Length: 3\r\nContent-Length: 4', 'Transfer-Encoding: chunked')
        lines = [f'{method} {target} {version}', f'Host: {host}', length]
        for extra in ('Expect: 100-continue', 'Origin: http://evil.example', 'Content-Type: text/plain', 'Connection: close',
                      'no colon', ' folded', 'X: ' + 'y' * 40000, 'Cookie: ' + 'a=b;' * 2000, 'Authorization: Bearer ' + 'z' * 5000,
                      'Sec-Fetch-Site: cross-site', 'Access-Control-Request-Method: POST', 'Upgrade: websocket',
                      'Content-Type: ' + 'a' * 9000):
            if dice.random() < 0.06:
                lines.insert(dice.randrange(1, len(lines) + 1), extra)
        data = bytearray(request(*lines, body=body) * dice.choice([1, 1, 1, 1, 3]))
        for _ in range(dice.choice([0, 0, 0, 1, 5, 50])):
            data[dice.randrange(len(data))] = dice.randrange(256)
        return bytes(data[:dice.randrange(len(data))] if dice.random() < 0.2 else data)

    def attack(self, i):
        dice = random.Random(i)
        link = self.connect()
        link.settimeout(dice.choice([0.05, 0.3, 2]))
        try:
            if dice.random() < 0.1:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            link.sendall(self.hostile_bytes(dice))
            if dice.random() < 0.2:
                link.shutdown(socket.SHUT_WR)
            if dice.random() < 0.7:
                link.recv(dice.choice([1, 100, 1 << 20]))
        except OSError:
            pass
        if dice.random() < 0.3:  # a reset instead of an orderly end
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        link.close()

    def test_hostile_requests(self):
        n, workers = (500 if harness.FULL else 60), 12
        process = self.serve('--slots', self.SLOTS, '--max-per-address', self.PER_ADDRESS, '--timeout', 5, '--max-queue', 1000)
        open_files = len(list(pathlib.Path(f'/proc/{process.pid}/fd').iterdir()))
        together(workers, lambda worker: [self.attack(i) for i in range(worker, n, workers)])
        self.wait_for(lambda: self.metric('zero_texts_running') + self.metric('zero_texts_waiting') == 0, 120)
        self.assertEqual(self.metric('zero_cache_positions_used'), 0)
        self.wait_for(lambda: self.metric('zero_connections') == 1, 120)
        self.wait_for(lambda: len(list(pathlib.Path(f'/proc/{process.pid}/fd').iterdir())) <= open_files, 120)
        self.assertEqual(len(self.texts(prompt='a', n=4 * self.SLOTS, max_tokens=8)), 4 * self.SLOTS)
        links = [self.connect() for _ in range(self.PER_ADDRESS - 1)]
        for link in links:
            link.sendall(request('GET /health HTTP/1.1', 'Host: localhost', 'Connection: close'))
        self.assertEqual({read_all(link).split(b'\r\n')[0] for link in links}, {b'HTTP/1.1 200 OK'})
        self.end(process)


FOREIGN_PAGE = '''<!DOCTYPE html><link rel="icon" href="data:,"><script>
async function ask(address, options) {
  try {
    const answer = await fetch(address, options);
    return `${answer.status} ${(await answer.text()).includes('[DONE]')}`;
  } catch (error) { return error.name; }
}
const body = '{"prompt": "a", "max_tokens": 2, "stream": true}';
const post = type => ({method: 'POST', headers: {'Content-Type': type}, body});
</script>'''


@unittest.skipIf(harness.SANITIZERS or not chromium.PROGRAM, 'needs chromium, with the release build')
class InBrowser(AccessCase):
    def browser(self):
        browser = chromium.Browser(self.folder / 'profile', 900, 700)
        self.addCleanup(browser.close)
        return browser

    def until(self, browser, expression):
        self.wait_for(lambda: browser.value(expression), 120)

    def test_the_page_asks_for_the_key(self):
        process = self.serve('--api-key', 's3cret')
        browser = self.browser()
        browser.load(f'http://localhost:{self.port}/')
        self.until(browser, "!$('key').parentElement.hidden && $('state').className === 'bad'")
        browser.value("$('key').value = 's3cret', $('key').dispatchEvent(new Event('change')), 0")
        self.until(browser, "$('model').textContent === 'gpt2-tiny' && $('state').textContent === ''")
        browser.value("$('prompt').value = 'abc', $('form').requestSubmit(), 0")
        self.until(browser, "/^\\d+ tokens/.test($('state').textContent) && $('out').textContent.length > 3")
        self.end(process)

    def test_pages(self):
        """The server's own page works; one of another port gets an answer only with --cors."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                self.send_response(200)
                self.send_header('Content-Type', 'text/html')
                self.end_headers()
                self.wfile.write(FOREIGN_PAGE.encode())

            def log_message(self, *arguments):  # pylint: disable=arguments-differ
                pass
        site = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.addCleanup(site.server_close)
        self.addCleanup(site.shutdown)
        threading.Thread(target=site.serve_forever, daemon=True).start()
        page = f'http://127.0.0.1:{site.server_port}'
        browser = self.browser()
        for flags, expected in ((), 'TypeError'), (('--cors', page), '200 true'):
            process = self.serve(*flags)
            own = f'http://127.0.0.1:{self.port}'
            browser.load(own + '/')
            self.until(browser, "$('model').textContent === 'gpt2-tiny'")
            browser.value("$('prompt').value = 'abc', $('form').requestSubmit(), 0")
            self.until(browser, "/^\\d+ tokens/.test($('state').textContent)")
            self.assertEqual(browser.complaints, [])
            browser.load(page)
            self.assertEqual(browser.value(f"ask('{own}/v1/completions', post('application/json'))"), expected)
            self.assertEqual(self.metric('zero_prompt_tokens_total'), 3 + bool(flags))
            browser.value(f"ask('{own}/v1/completions', post('text/plain'))")
            browser.value(f"ask('{own}/v1/completions', {{method: 'POST', mode: 'no-cors', body: '{{}}'}})")
            self.assertEqual(self.metric('zero_requests_total{code="415"}'), 2)
            browser.complaints.clear()
            self.end(process)


if __name__ == '__main__':
    unittest.main()
