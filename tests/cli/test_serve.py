"""./train serve: OpenAI's completions, errors, limits, and clients that are slow, cut off or gone."""
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import time
import unittest

import harness
from harness import GOLDEN
from python_env import python_with
from serving import MODEL, POSITIONS, ServerCase, read_all, together


class Completions(ServerCase):
    """What requests ask for, against ./train generate and against each other."""

    def generated(self, *arguments):
        out = self.run_train('generate', *MODEL, '--json', *arguments).out
        return [json.loads(line) for line in out.splitlines()]

    def check_the_api(self):
        answer = self.complete(prompt='abc', max_tokens=9, seed=5, temperature=0.7, top_k=50, top_p=0.9, min_p=0.02,
                               repetition_penalty=1.3, logprobs=3)
        expected, = self.generated('--prompt', 'abc', '--tokens', 9, '--seed', 5, '--temperature', 0.7, '--top-k', 50,
                                   '--top-p', 0.9, '--min-p', 0.02, '--repetition-penalty', 1.3, '--logprobs', 3)
        choice, = answer['choices']
        self.assertEqual(choice['text'], expected['text'])
        self.assertEqual(choice['logprobs']['token_logprobs'], [token['logprob'] for token in expected['tokens']])
        for top, token in zip(choice['logprobs']['top_logprobs'], expected['tokens']):
            self.assertLessEqual({each['logprob'] for each in token['top_logprobs']}, set(top.values()))
            self.assertIn(token['logprob'], top.values())
        self.assertEqual(answer['usage'], {'prompt_tokens': 3, 'completion_tokens': 9, 'total_tokens': 12})
        self.assertEqual((answer['object'], answer['model'], choice['finish_reason']), ('text_completion', 'gpt2-tiny', 'length'))
        self.assertEqual(self.texts(prompt=list(b'abc'), max_tokens=9, seed=5), self.texts(prompt='abc', max_tokens=9, seed=5))
        self.assertNotEqual(self.texts(prompt='a', max_tokens=9), self.texts(prompt='a', max_tokens=9))  # seeds differ
        self.assertNotEqual(self.texts(prompt='', temperature=0), [''])

    def check_several(self):
        """Choice p n + j continues prompt p, as ./train generate counts its texts."""
        (self.folder / 'prompts').write_text('abc\nde\n')
        expected = [text['text'] for text in self.generated('--prompts', 'prompts', '--samples', 2, '--tokens', 8, '--seed', 3)]
        ask = dict(max_tokens=8, seed=3, n=2)
        self.assertEqual(self.texts(prompt=['abc', 'de'], **ask), expected)
        self.assertEqual(self.texts(prompt=[list(b'abc'), list(b'de')], **ask), expected)
        streamed, ended = [''] * 4, set()
        events = self.events(prompt=['abc', 'de'], stream_options={'include_usage': True}, **ask)
        for event in events[:-1]:
            choice, = event['choices']
            self.assertNotIn(choice['index'], ended)
            streamed[choice['index']] += choice['text']
            ended |= {choice['index']} if choice['finish_reason'] else set()
        self.assertEqual(streamed, expected)
        self.assertEqual(ended, {0, 1, 2, 3})
        self.assertEqual((events[-1]['choices'], events[-1]['usage']['completion_tokens']), ([], 32))

    def check_stop(self):
        """The text ends before the string, whose tokens are not listed, and usage counts them."""
        whole = self.complete(prompt='abc', max_tokens=30, seed=2, logprobs=0)['choices'][0]
        tokens = whole['logprobs']['tokens']
        known = [i for i, token in enumerate(tokens) if not token.startswith('bytes:')]
        at = next(i for i in known[5:] if i + 1 in known)
        stop = tokens[at] + tokens[at + 1]
        cut = whole['text'].index(stop)
        answer = self.complete(prompt='abc', max_tokens=30, seed=2, logprobs=0, stop=['never occurs', stop])
        choice = answer['choices'][0]
        self.assertEqual((choice['text'], choice['finish_reason']), (whole['text'][:cut], 'stop'))
        self.assertEqual(choice['logprobs']['tokens'], tokens[:len(choice['logprobs']['tokens'])])
        self.assertGreaterEqual(answer['usage']['completion_tokens'], len(choice['logprobs']['tokens']) + 2)
        events = self.events(prompt='abc', max_tokens=30, seed=2, logprobs=0, stop=stop)
        self.assertEqual(''.join(event['choices'][0]['text'] for event in events), choice['text'])
        self.assertEqual(sum((event['choices'][0]['logprobs']['tokens'] for event in events), []), choice['logprobs']['tokens'])

    def check_echo(self):
        """The prompt's log-probabilities are those that the same tokens have when they are drawn."""
        drawn = self.complete(prompt='a', max_tokens=12, seed=7, logprobs=1, temperature=2)['choices'][0]['logprobs']
        ids = [97] + [int(token[len('bytes:\\x'):], 16) if token.startswith('bytes:') else ord(token) for token in drawn['tokens']]
        choice = self.complete(prompt=ids, max_tokens=0, logprobs=1, echo=True)['choices'][0]
        echoed = choice['logprobs']
        self.assertEqual(echoed['tokens'], ['a', *drawn['tokens']])
        self.assertIsNone(echoed['token_logprobs'][0])
        for a, b in zip(echoed['token_logprobs'][1:], drawn['token_logprobs']):
            self.assertEqual(a, b)  # the same steps, to the bit
        self.assertEqual(echoed['text_offset'], sorted(echoed['text_offset']))
        self.assertEqual(self.texts(prompt=['ab', ''], max_tokens=0, echo=True), ['ab', ''])
        answer = self.complete(prompt='ab', max_tokens=3, echo=True, logprobs=0, seed=1)['choices'][0]
        self.assertEqual(answer['text'], 'ab' + self.texts(prompt='ab', max_tokens=3, seed=1)[0])
        self.assertEqual(len(answer['logprobs']['tokens']), 5)

    def test_completions(self):
        process = self.serve()
        self.check_the_api()
        self.check_several()
        self.check_stop()
        self.check_echo()
        self.end(process)

    def test_clients_do_not_change_each_other(self):
        """Requests of all kinds at once, more than there are slots: each answer is the one that it gets alone."""
        process = self.serve('--slots', 3)
        kinds = [dict(prompt='x' * (1 + 7 * i % 40), max_tokens=4 + 5 * i % 17, seed=i, temperature=0.5 + i / 8) for i in range(8)]
        kinds[1].update(repetition_penalty=1.5)
        kinds[2].update(logprobs=2, echo=True)
        kinds[3].update(n=2)
        kinds[4].update(top_k=5)
        kinds[5].update(temperature=0, min_p=0.1)

        def choices(i):
            return self.complete(**kinds[i])['choices']
        alone = [choices(i) for i in range(len(kinds))]
        for answers in together(8, lambda i: [(k, choices(k)) for k in range(i, i + 4)] if i < 5 else [(i, choices(i))] * 2):
            for k, answer in answers:
                self.assertEqual(answer, alone[k])
        self.assertEqual(self.metric('zero_texts_running'), 0)
        self.assertGreater(self.metric('zero_generated_tokens_total'), 8 * 4)
        self.end(process, signal.SIGINT)

    def test_other_pages(self):
        process = self.serve('--name', 'mine')
        models = json.loads(self.request('GET', '/v1/models')[2])
        self.assertEqual([(model['id'], model['max_model_len']) for model in models['data']], [('mine', POSITIONS)])
        self.assertEqual(json.loads(self.request('GET', '/v1/models/mine?x=1')[2])['id'], 'mine')
        self.assertEqual(self.request('GET', '/health')[0::2], (200, b'{"status": "ok"}\n'))
        self.assertEqual(self.request('HEAD', '/health')[0::2], (200, b''))
        code, headers, page = self.request('GET', '/')
        self.assertEqual((code, headers['Content-Type']), (200, 'text/html; charset=utf-8'))
        self.assertIn(b'</html>', page)
        for external in b'http:', b'https:', b'src=', b'@import':
            self.assertNotIn(external, page)
        self.complete(model='mine', prompt='a', user='me', n=None, temperature=0)
        page = self.request('GET', '/metrics')[2].decode()
        self.assertIn('zero_requests_total{code="200"} 6\n', page)
        self.assertIn('zero_first_token_seconds_count 1\n', page)
        self.assertIn('zero_request_seconds_bucket{le="+Inf"} 1\n', page)
        self.refused(404, None, '/v1/chat', path='/v1/chat/completions', method='GET')
        self.refused(404, None, 'yours', path='/v1/models/yours', method='GET')
        self.refused(405, None, 'GET', path='/health', method='DELETE')
        self.assertEqual(self.request('GET', '/v1/completions')[1]['Allow'], 'POST')
        self.end(process)


class Refusals(ServerCase):
    """Requests that are wrong or too much."""

    def test_members(self):
        process = self.serve('--max-texts', 4, '--max-body', '64KiB', '--max-tokens', 50)
        for body, *says in (
                ('', 'empty'), ('{"prompt": "a",}', 'request:1:'), ('[1]', 'not a JSON object'), (b'\xff\xfe', 'UTF-8'),
                ('[' * 5000, 'JSON'), ('{"prompt": "a", "prompt": "b"}', 'twice'), ({}, 'prompt is missing'),
                ({'prompt': None}, 'prompt is missing'), ({'prompt': 3}, 'prompt'), ({'prompt': []}, 'empty'), ({'prompt': [[]]}, 'at least one token id'),
                ({'prompt': [1, 'a']}, 'token ids'), ({'prompt': ['a', 3]}, 'expected a string'), ({'prompt': [257]}, 'below 257'),
                ({'prompt': [-1]}, 'below'), ({'prompt': [1.5]}, 'integers'), ('{"prompt": [1e999]}',),
                ({'prompt': 'a', 'max_tokens': -1}, 'max_tokens', '0 to 50'), ({'prompt': 'a', 'max_tokens': 51}, '50'),
                ({'prompt': 'a', 'max_tokens': '5'}, 'integer'), ({'prompt': 'a', 'temperature': -1}, 'temperature'),
                ('{"prompt": "a", "temperature": NaN}',), ({'prompt': 'a', 'top_p': 1.1}, 'top_p'), ({'prompt': 'a', 'n': 5}, '1 to 4'),
                ({'prompt': ['a', 'b', 'c'], 'n': 2}, 'more than 4 texts'), ({'prompt': ['a'] * 5}, 'at most 4'),
                ({'prompt': 'a', 'logprobs': 6}, '0 to 5'), ({'prompt': 'a', 'logprobs': True}, 'logprobs'),
                ({'prompt': 'a', 'stop': ''}, 'stop'), ({'prompt': 'a', 'stop': ['x'] * 17}, '16'), ({'prompt': 'a', 'stop': [1]}, 'stop'),
                ({'prompt': 'a', 'stream': 1}, 'true or false'), ({'prompt': 'a', 'echo': 'yes'}, 'true or false'),
                ({'prompt': 'a', 'best_of': 2}, 'best_of'), ({'prompt': 'a', 'suffix': 'b'}, 'suffix'), ({'prompt': 'a', 'seed': 0.5}, 'seed'),
                ({'prompt': 'a', 'presence_penalty': 1}, 'repetition_penalty'), ({'prompt': 'a', 'logit_bias': {'5': 1}}, 'logit_bias'),
                ({'prompt': 'a', 'presence_penalty': ''}, 'not supported'), ({'prompt': 'a', 'logit_bias': 0}, 'not supported'),
                ({'prompt': 'a', 'stream_options': {'include_usage': True}}, 'stream'), ({'prompt': 'a', 'max_token': 5}, 'max_token'),
                ({'prompt': 'a' * 60, 'max_tokens': 10}, 'context of 64'), ({'prompt': 'a' * 65}, 'context')):
            self.refused(400, body, *says)
        self.assertEqual(self.refused(404, {'prompt': 'a', 'model': 'x'})['code'], 'model_not_found')
        self.assertEqual(self.refused(400, {'prompt': 'a' * 65})['code'], 'context_length_exceeded')
        self.refused(413, {'prompt': 'a' * 70000}, '65536 bytes')
        self.assertEqual(self.complete(prompt='a' * 60, temperature=0)['usage']['total_tokens'], 64)  # 4 fit
        self.assertGreater(self.metric('zero_requests_total{code="400"}'), 40)
        self.end(process)

    def test_command_line(self):
        self.refuses('serve', says=['expected a run'])
        self.refuses('serve', 'nowhere', says=['nowhere'])
        self.refuses('serve', *MODEL, '--context', 65, says=['--context', '64'])
        self.refuses('serve', *MODEL, '--host', 'no such name', says=['no such name'])
        self.refuses('serve', GOLDEN / 'gpt2-tiny', says=['--tokenizer'])
        with socket.create_server(('127.0.0.1', 0)) as other:
            port = other.getsockname()[1]
            self.refuses('serve', *MODEL, '--port', port, says=[str(port), 'in use', '--port'])

    def test_queue(self):
        """One text runs and one may wait: a third is refused at once, and is served later."""
        process = self.serve('--slots', 1, '--max-queue', 1)
        long = dict(prompt='a', max_tokens=63, stream=True, temperature=0)
        for attempt in range(50):  # a tiny model may have written both texts before the third arrives
            with self.send(dict(long, n=2)):
                try:
                    error = self.refused(429, {'prompt': 'a', 'n': 2}, 'try again')
                    break
                except AssertionError:
                    if attempt == 49:
                        raise
            self.wait_for(lambda: self.metric('zero_texts_running') + self.metric('zero_texts_waiting') == 0)
        self.assertEqual(error['code'], 'rate_limit_exceeded')
        self.wait_for(lambda: self.metric('zero_texts_running') + self.metric('zero_texts_waiting') == 0)
        self.complete(prompt='a', max_tokens=1, n=2)
        self.end(process)


class Clients(ServerCase):
    """Clients that are slow, send garbage, or leave. Others are served, and memory stays bounded."""

    def resident(self, process):
        fields = (harness.pathlib.Path('/proc') / str(process.pid) / 'statm').read_text().split()
        return int(fields[1]) * 4096

    def is_served(self):
        """A client is served, unless the machine was so busy that it was slow itself."""
        for attempt in range(5):
            try:
                return self.complete(prompt='a', max_tokens=1)
            except (http.client.HTTPException, ConnectionError):
                if attempt == 4:
                    raise

    def test_slow_and_huge(self):
        process = self.serve('--timeout', 2, '--max-body', '1MiB')
        self.is_served()
        before = self.resident(process)
        slow = [self.connect() for _ in range(20)]
        body = self.connect()
        body.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"prompt"')
        began = time.monotonic()
        for i in range(12):
            for link in slow:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    link.sendall(b'POST /v1/completions HTTP/1.1\r\nX: '[i * 3:i * 3 + 3])
            self.is_served()
            time.sleep(0.05)
        for link in (*slow, body):
            self.assertEqual(read_all(link), b'')
        self.assertLess(time.monotonic() - began, 30)
        for data in b'GET / HTTP/1.1\r\n' + b'X: ' + b'y' * 100000 + b'\r\n\r\n', b'\0' * 1000 + b'\r\n\r\n', b'nonsense\r\n\r\n':
            with self.connect() as link:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    link.sendall(data)
                self.assertNotIn(b' 200 ', read_all(link)[:20])  # refused, or cut after two seconds
        link = self.connect()  # a body without an end, in chunks
        link.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n')
        try:
            for _ in range(300):
                link.sendall(b'10000\r\n' + b'a' * 65536 + b'\r\n')
            link.sendall(b'0\r\n\r\n')
            self.assertIn(b' 413 ', read_all(link)[:20])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it took longer than two seconds
        link = self.connect()
        link.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n')
        self.assertIn(b' 413 ', read_all(link)[:20])
        self.is_served()
        if not harness.SANITIZERS:
            self.assertLess(self.resident(process) - before, 16 << 20)
        self.end(process)

    def test_who_leaves_frees_the_slots(self):
        process = self.serve('--slots', 2, '--max-queue', 1000, '--max-texts', 200)
        for stream in True, False:
            links = [self.send(dict(prompt='a', max_tokens=63, n=100, stream=stream)) for _ in range(3)]
            if stream:
                links[0].recv(100)
            gone = self.metric('zero_disconnected_total')
            for link in links:
                link.close()
            self.complete(prompt='b', max_tokens=2)
            self.wait_for(lambda: self.metric('zero_texts_running') + self.metric('zero_texts_waiting') == 0)
            self.wait_for(lambda: self.metric('zero_disconnected_total') > gone)
        self.assertEqual(self.metric('zero_cache_positions_used'), 0)
        self.end(process)

    def test_deadline(self):
        process = self.serve('--slots', 1, '--deadline', 0.3, '--max-queue', 10000, '--max-texts', 5000)
        ask = dict(prompt='a', max_tokens=63, n=5000)
        self.assertEqual(self.refused(504, ask, '0.3 seconds')['code'], 'deadline_exceeded')
        code, _, events = self.request('POST', '/v1/completions', dict(ask, stream=True))
        self.assertEqual(code, 200)
        last = events.decode().rsplit('data: ', 1)[1]
        self.assertIn('deadline_exceeded', last)
        self.end(process)

    @staticmethod
    def answer(link):
        answer = http.client.HTTPResponse(link)
        answer.begin()
        return answer.status, answer.read()

    def send_to_the_end(self, body):
        data = json.dumps(body).encode()
        link = self.connect()
        link.sendall(f'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n'
                     f'Content-Length: {len(data)}\r\n\r\n'.encode() + data)
        return link

    def test_end_with_texts_under_way(self):
        """Running texts end; those that wait, and all after the grace period, get an error."""
        for grace, n in ((20, 1), (0, 3000)):
            process = self.serve('--slots', 1, '--grace', grace, '--max-queue', 10000, '--max-texts', 5000)
            running = self.send_to_the_end(dict(prompt='a', max_tokens=63, n=n, stream=True, temperature=0))
            running.recv(1, socket.MSG_PEEK)
            waiting = self.send_to_the_end(dict(prompt='a'))
            self.wait_for(lambda: self.metric('zero_texts_waiting') + self.metric('zero_requests_total{code="200"}') >= 1)
            self.end(process)
            self.assertIn(b'[DONE]' if n == 1 else b'shutting down', self.answer(running)[1][-400:])
            self.assertIn(self.answer(waiting)[0], (200, 503) if n == 1 else (503,))


OPENAI_CLIENT = '''
import sys
import openai
client = openai.OpenAI(base_url=f'http://127.0.0.1:{sys.argv[1]}/v1', api_key='none', max_retries=0)
model = client.models.list().data[0].id
ask = dict(model=model, prompt='abc', max_tokens=9, seed=4, temperature=0.8)
whole = client.completions.create(**ask, n=2, logprobs=3, extra_body={'top_k': 40, 'min_p': 0.01})
assert [choice.index for choice in whole.choices] == [0, 1] and whole.usage.total_tokens == 3 + 2 * 9, whole
logprobs = whole.choices[0].logprobs
assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 9
assert all(3 <= len(top) <= 4 and max(top.values()) <= 0 for top in logprobs.top_logprobs)
text = client.completions.create(**ask).choices[0].text
parts = list(client.completions.create(**ask, stream=True, stream_options={'include_usage': True}))
assert ''.join(part.choices[0].text for part in parts if part.choices) == text
assert parts[-1].usage.completion_tokens == 9 and parts[-2].choices[0].finish_reason == 'length', parts
for wrong, kind in ((dict(max_tokens=100), openai.BadRequestError), (dict(model='other'), openai.NotFoundError)):
    try:
        client.completions.create(**{**ask, **wrong})
        raise SystemExit(f'{wrong} was accepted')
    except kind as error:
        assert error.body['message'], error
print('good')
'''


@unittest.skipIf(harness.SANITIZERS, 'the release build serves other clients')
class OpenAIClient(ServerCase):
    def test_completes_streams_and_gets_log_probabilities(self):
        python = python_with('openai==1.99.9', large=True)
        process = self.serve()
        client = subprocess.run([python, '-c', OPENAI_CLIENT, str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, timeout=300, check=False)
        self.assertEqual(client.stdout, 'good\n')
        self.end(process)


class Load(ServerCase):
    """Many clients for a minute (full run), or a few for a moment: no error, and no text is lost."""

    def test_load(self):
        n, seconds = (64, 60) if harness.FULL else (8, 2)
        process = self.serve()
        until = time.monotonic() + seconds

        def work(i):
            served = 0
            while time.monotonic() < until:
                ask = dict(prompt='ab' * (1 + (i + served) % 10), max_tokens=20, seed=i)
                if (i + served) % 2:
                    choice = self.events(**ask)[-1]['choices'][0]
                else:
                    choice = self.complete(**ask)['choices'][0]
                self.assertIn(choice['finish_reason'], ('length', 'stop'))
                served += 1
            return served
        counts = together(n, work)
        self.assertGreater(min(counts), 0)
        self.assertEqual(self.metric('zero_requests_total{code="200"}'), sum(counts))
        self.end(process)


if __name__ == '__main__':
    unittest.main()
