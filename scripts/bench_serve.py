#!/usr/bin/env python3
"""Measures ./train serve under load, against the decoding steps alone (./train bench --generate), in turns.

usage: scripts/bench_serve.py RUN CONFIG [--clients N] [--seconds S] [--rounds N] [--max-tokens N] [--prompt TEXT]
                              [--slots N] [--train PROGRAM]

RUN: what is served. CONFIG: a configuration with the model sizes of RUN, for bench --generate, whose largest batch (32) is the
comparison. Each client sends one streaming request after the other; a different seed each. Prints a table and a JSON line.
"""
import argparse
import http.client
import json
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('run')
    parser.add_argument('config')
    parser.add_argument('--clients', type=int, default=64)
    parser.add_argument('--seconds', type=float, default=60, help='of load, per round')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--max-tokens', type=int, default=128)
    parser.add_argument('--prompt', default='Once upon a time there was')
    parser.add_argument('--slots', type=int, default=32)
    parser.add_argument('--type', default='bf16', help='compute type of RUN')
    parser.add_argument('--train', default=str(ROOT / 'train'))
    return parser.parse_args()


def bench(options):
    """tokens/s of decoding steps of 32 texts."""
    out = subprocess.run([options.train, 'bench', '--generate', options.config, '--quick', '--json'], check=True,
                         capture_output=True, text=True).stdout
    rates = [json.loads(line) for line in out.splitlines()]
    return next(rate['tokens_per_s'] for rate in rates if rate['type'] == options.type and rate['batch'] == 32)


class Load:
    """Clients that send one request after the other until `stop`."""

    def __init__(self, options, port):
        self.options, self.port, self.stop = options, port, False
        self.errors, self.first_token_s, self.request_s = [], [], []
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(options.clients)]
        for thread in self.threads:
            thread.start()

    def work(self, client):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=600)
        n = 0
        while not self.stop:
            n += 1
            try:
                self.request(connection, client * 1000003 + n)
            except Exception as error:  # pylint: disable=broad-except
                self.errors.append(repr(error))
                connection.close()

    def request(self, connection, seed):
        body = {'prompt': self.options.prompt, 'max_tokens': self.options.max_tokens, 'seed': seed, 'stream': True}
        began = time.monotonic()
        connection.request('POST', '/v1/completions', json.dumps(body))
        answer = connection.getresponse()
        first = answer.readline()
        self.first_token_s.append(time.monotonic() - began)
        text = first + answer.read()
        if answer.status != 200 or not text.endswith(b'data: [DONE]\n\n'):
            raise RuntimeError(f'{answer.status}: {text[-300:]!r}')
        self.request_s.append(time.monotonic() - began)

    def end(self):
        self.stop = True
        for thread in self.threads:
            thread.join()


def metric(port, name):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
    connection.request('GET', '/metrics')
    page = connection.getresponse().read().decode()
    return float(re.search(rf'^{name} (.*)$', page, re.MULTILINE).group(1))


def main():
    options = parse()
    ratios, served, steps = [], [], []
    server = subprocess.Popen([options.train, 'serve', options.run, '--port', '0', '--slots', str(options.slots),
                               '--max-per-address', str(options.clients + 8)],
                              stdout=subprocess.PIPE, text=True)
    port = int(re.search(r':(\d+) ', server.stdout.readline()).group(1))
    before = bench(options)
    for _ in range(options.rounds):
        load = Load(options, port)
        time.sleep(min(5, options.seconds))  # until the first requests have ended and the load is steady
        began, tokens = time.monotonic(), metric(port, 'zero_generated_tokens_total')
        time.sleep(options.seconds)
        rate = (metric(port, 'zero_generated_tokens_total') - tokens) / (time.monotonic() - began)
        load.end()
        if load.errors:
            raise SystemExit(f'{len(load.errors)} errors, the first: {load.errors[0]}')
        after = bench(options)
        served.append(rate)
        steps.append((before + after) / 2)
        ratios.append(rate / steps[-1])
        before = after
        print(f'{rate:9.1f} tokens/s served to {options.clients} clients  {steps[-1]:9.1f} tokens/s of steps of 32  '
              f'ratio {ratios[-1]:.2f}  first token {statistics.median(load.first_token_s):.2f} s  '
              f'request {statistics.median(load.request_s):.2f} s  {len(load.request_s)} requests', flush=True)
    server.send_signal(signal.SIGTERM)
    server.wait()
    print(json.dumps({'clients': options.clients, 'tokens_per_s': statistics.median(served),
                      'step_tokens_per_s': statistics.median(steps), 'ratio': statistics.median(ratios)}))


if __name__ == '__main__':
    main()
