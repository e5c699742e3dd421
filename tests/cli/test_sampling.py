"""./train generate: prompts, JSON, log-probabilities, stop strings, penalties, and the interactive mode."""
import fcntl
import json
import math
import os
import pty
import select
import subprocess
import termios
import time
import unittest

import harness
from harness import CommandCase
from serving import MODEL


class Generate(CommandCase):
    def generated(self, *arguments, **options):
        out = self.run_train('generate', *MODEL, '--json', *arguments, **options).out
        return [json.loads(line) for line in out.splitlines()]

    def test_log_probabilities(self):
        """They are the model's: those of greedy tokens are the largest, with any temperature; all ids together sum to 1."""
        text, = self.generated('--prompt', 'abc', '--tokens', 12, '--temperature', 0, '--logprobs', 20)
        for token in text['tokens']:
            self.assertEqual(token['logprob'], token['top_logprobs'][0]['logprob'])
            self.assertEqual(token['id'], token['top_logprobs'][0]['id'])
            tops = [top['logprob'] for top in token['top_logprobs']]
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertLess(sum(map(math.exp, tops)), 1)
        self.assertEqual(b''.join(bytes(token['bytes']) for token in text['tokens']).decode('utf-8', 'replace').count('a'),
                         text['text'].count('a'))
        hot, = self.generated('--prompt', 'abc', '--tokens', 1, '--temperature', 3, '--logprobs', 20)
        self.assertEqual(hot['tokens'][0]['top_logprobs'], text['tokens'][0]['top_logprobs'])
        without, = self.generated('--prompt', 'abc', '--tokens', 12, '--temperature', 0)
        self.assertNotIn('tokens', without)
        self.assertEqual(without['text'], text['text'])

    def test_filters(self):
        """What only the most likely token survives is greedy; the penalty keeps greedy text from repeating tokens."""
        ask = '--prompt', 'abc', '--tokens', 30
        greedy, = self.generated(*ask, '--temperature', 0)
        for only in ('--top-k', 1), ('--top-p', 0), ('--min-p', 1):
            self.assertEqual(self.generated(*ask, *only), [greedy])
        penalized, = self.generated(*ask, '--temperature', 0, '--repetition-penalty', 10, '--logprobs', 0)
        ids = [token['id'] for token in penalized['tokens']]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertFalse(set(ids) & set(b'abc'))
        self.assertNotEqual(penalized['text'], greedy['text'])

    def test_prompts(self):
        """Lines and jsonl give the same texts, in order, whatever is generated together, with lengths beyond the context."""
        prompts = ['a', 'x' * 90, '', 'the quick brown', 'ä"\\', 'b' * 63]
        (self.folder / 'lines').write_text('\n'.join(prompts))
        (self.folder / 'objects.jsonl').write_text(''.join(json.dumps({'id': 1, 'prompt': prompt}) + '\n' for prompt in prompts))
        ask = '--tokens', 70, '--samples', 2, '--stop', 'a', '--stop', '\n', '--logprobs', 1
        expected = self.generated('--prompts', 'lines', '--batch', 1, *ask)
        self.assertEqual([text['prompt'] for text in expected], [prompt for prompt in prompts for _ in range(2)])
        self.assertEqual([text['index'] for text in expected], list(range(12)))
        self.assertIn('stop', {text['finish_reason'] for text in expected})
        for text in expected:
            self.assertFalse(set(text['text']) & set('a\n'))
        for batch in 5, 40:
            self.assertEqual(self.generated('--prompts', 'objects.jsonl', '--batch', batch, *ask), expected)
        self.assertEqual(self.generated('--prompts', '-', *ask, text='\n'.join(prompts)), expected)
        for line, says in (('{"prompt": 5}', 'prompt'), ('["a"]', 'expected a JSON object'), ('{', 'bad.jsonl:2'), ('{"text": "a"}', 'prompt')):
            (self.folder / 'bad.jsonl').write_text('{"prompt": "a"}\n' + line + '\n')
            self.refuses('generate', *MODEL, '--prompts', 'bad.jsonl', says=['bad.jsonl:2', says])

    def test_flags(self):
        for flags, says in ((['--logprobs', 1], '--json'), (['--json', '--logprobs', 21], '20'), (['--stop', ''], '--stop'),
                            (['--interactive', '--prompt', 'a'], '--interactive'), (['--in-prefix', 'a'], '--interactive'),
                            (['--min-p', 2], '--min-p'), (['--repetition-penalty', 0], '--repetition-penalty'),
                            (['--stop', 'a'] * 17, '16 times')):
            self.refuses('generate', *MODEL, *flags, says=[says])

    def test_interactive_in_a_pipe(self):
        """Lines continue one text: each answer is that of ./train generate on the text so far."""
        lines = 'abc\n/again\n\n/set top_k 1\nde\n/set\n/new\nde\n/set tokens x\n/nonsense\n/quit\nnever read\n'
        process = self.run_train('generate', *MODEL, '--interactive', '--tokens', 6, '--in-prefix', '<', '--in-suffix', '>', '--stop', 'z',
                                 '--top-k', 1, text=lines)
        answer = self.generated('--prompt', '<abc>', '--tokens', 6, '--top-k', 1, '--stop', 'z')[0]['text']
        fresh = self.generated('--prompt', '<de>', '--tokens', 6, '--top-k', 1)[0]['text']
        out = process.out
        self.assertTrue(out.startswith(f'{answer}\n{answer}\n'), out)
        self.assertIn(f'repetition_penalty 1  tokens 6  seed 1\n{fresh}\ntokens: expected an integer from 1', out)
        self.assertIn('there is no command "/nonsense"', out)
        self.assertNotIn('never', out)
        self.assertEqual(self.run_train('generate', *MODEL, '--interactive', text='').out, '')


@unittest.skipIf(harness.SANITIZERS, 'libedit leaks its terminal')
class Terminal(CommandCase):
    """The interactive mode in a pseudo-terminal: editing, history, and Ctrl-C."""

    def read_until(self, *words):
        data, until = b'', time.monotonic() + 60  # a read may end within a character
        while not all(word in data.decode(errors='replace') for word in words):
            self.assertLess(time.monotonic(), until, data)
            if select.select([self.screen], [], [], 1)[0]:
                data += os.read(self.screen, 65536)
        return data.decode(errors='replace')

    def type(self, keys):
        """Types once the line is being edited: libedit prints its prompt before it takes over the terminal."""
        until = time.monotonic() + 60
        while termios.tcgetattr(self.screen)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        os.write(self.screen, keys)

    def test_editing_history_and_interrupts(self):
        self.screen, line = pty.openpty()
        self.addCleanup(os.close, self.screen)
        process = subprocess.Popen([str(harness.TRAIN), 'generate', *map(str, MODEL), '--interactive', '--tokens', '5', '--top-k', '1'],
                                   cwd=self.folder, env=dict(os.environ, TERM='xterm', HOME=str(self.folder), OMP_WAIT_POLICY='passive'),
                                   stdin=line, stdout=line, stderr=line, preexec_fn=self.take_terminal)
        os.close(line)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.read_until('/help', '> ')
        self.type(b'/set seeed 7\x1b[D\x1b[D\x1b[D\x7f\n')  # back over "d 7", and removes an e
        self.read_until('\n> ')
        self.type(b'/set\n')
        self.read_until('tokens 5  seed 7', '\n> ')
        self.type(b'\x1b[A\x1b[A\x7f8\n')  # the line before the last one, with another end
        self.read_until('\n> ')
        self.type(b'/set tokens 1000000\n')
        self.read_until('\n> ')
        self.type(b'abc\n')
        self.read_until('abc\r\n')
        time.sleep(0.3)
        os.write(self.screen, b'\x03')  # Ctrl-C stops the text
        self.read_until('\n> ')
        self.type(b'/set tokens 3\n')
        self.read_until('\n> ')
        self.type(b'/set\n')
        self.read_until('tokens 3  seed 8', '\n> ')
        self.type(b'not this')
        self.read_until('not this')
        self.type(b'\x03')  # and drops a line
        self.read_until('\n> ')
        self.type(b'\x04')
        self.assertEqual(process.wait(timeout=60), 0)

    @staticmethod
    def take_terminal():
        harness.restore_signals()
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


if __name__ == '__main__':
    unittest.main()
