"""Log-probabilities, ends and offsets: one definition in ./train serve, generate and eval, for every kind of tokenizer."""
import json
import pathlib
import random
import unittest

from harness import ROOT, write_shard
from serving import ServerCase

CORPUS = ROOT / 'tests' / 'fuzz' / 'corpus' / 'data_tokenizer'
# The tokenizer, its end-of-text, and what a document begins with. All have fewer ids than the model.
FORMS = {'llama2': ('</s>', 2, 1), 'llama3': ('<|end_of_text|>', 262, 261), 'qwen2': ('<|endoftext|>', 261, 261),
         'smollm': ('<|endoftext|>', 246, 246), 'bytes': ('<|endoftext|>', 256, 256)}
CONTROL = {'<s>', '<|begin_of_text|>'} | {name for name, _, _ in FORMS.values()}
TEXT = 'the the thé 12\nath  e'


def bytes_of(name):
    """The bytes that a name in "tokens" shows."""
    if name in CONTROL:
        return b''
    return bytes.fromhex(name.removeprefix('bytes:').replace('\\x', '')) if name.startswith('bytes:') else name.encode()


def shown(data):
    """Bytes as the characters that an answer has: one that is not UTF-8 is U+FFFD. And the byte that each begins at."""
    text, begins, at = '', [], 0
    while at < len(data):
        size = next((n for n in (1, 2, 3, 4) if data[at:at + n].decode(errors='ignore').encode() == data[at:at + n]), 0)
        text += data[at:at + size].decode() if size else '\ufffd'
        begins.append(at)
        at += size or 1
    return text, begins


def without_duplicates(pairs):
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


class Forms(ServerCase):
    def setUp(self):
        super().setUp()
        draw = random.Random(3)  # the model learns that a quarter of the tokens are ends
        tokens = [draw.choice([2, 246, 256, 261, 262] if draw.random() < 0.25 else range(3, 270)) for _ in range(4000)]
        write_shard(self.folder / 'ends.bin', tokens)
        self.run_train(self.tiny_config(
            model={'n_layer': 1, 'vocab_size': 320, 'n_positions': 64}, data={'train': str(self.folder / 'ends.bin')},
            train={'max_steps': 20, 'micro_batch_size': 4}, optimizer={'lr': 1e-2}, run={'dir': 'run', 'threads': 1}))
        (self.folder / 'text').write_text(TEXT)
        (self.folder / 'prompt').write_text(json.dumps({'prompt': TEXT}))

    def model(self, form):
        path = self.folder / form / 'tokenizer.json'
        if form != 'bytes':
            path.parent.mkdir()
            path.write_bytes((CORPUS / f'json_{form}').read_bytes().lstrip(b'\x80'))
        return 'run', '--tokenizer', 'bytes' if form == 'bytes' else path, '--device', 'cpu', '--threads', 1

    def test_forms(self):
        for form in FORMS:
            with self.subTest(form):
                model = self.model(form)
                process = self.serve('--max-logprobs', 20, model=model)
                self.check_the_model_s_distribution(form, model)
                self.check_ends(form, model)
                self.check_offsets(form)
                self.check_names()
                self.end(process)

    def check_the_model_s_distribution(self, form, model):
        """eval, serve and generate: over all ids of the model, of which the tokenizer has fewer."""
        evaluated = json.loads(self.run_train('eval', *model, '--data', 'text', '--json').out)
        ids = self.run_train('tokenizer', 'encode', *model[1:3], text=TEXT).out.split()
        _, end, start = FORMS[form]  # an end is predicted where documents begin with another token
        prompt = [start, *map(int, ids), *[end] * (start != end)]
        echoed = self.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1)['choices'][0]
        served = echoed['logprobs']['token_logprobs']
        self.assertEqual((served[0], len(served)), (None, evaluated['tokens'] + 1))
        self.assertAlmostEqual(-sum(served[1:]) / evaluated['tokens'], evaluated['loss'], places=5)
        self.assertEqual(echoed['text'], TEXT)

    def check_ends(self, form, model):
        """The token that ends a text is one of its tokens."""
        before = self.metric('zero_generated_tokens_total')
        ask = dict(prompt=TEXT, max_tokens=30, n=8, seed=5, logprobs=0)
        answer = self.complete(**ask)
        lists = [choice['logprobs'] for choice in answer['choices']]
        self.assertEqual(answer['usage']['completion_tokens'], sum(len(each['tokens']) for each in lists))
        self.assertEqual(self.metric('zero_generated_tokens_total') - before, answer['usage']['completion_tokens'])
        self.assertIn('stop', [choice['finish_reason'] for choice in answer['choices']])
        out = self.run_train('generate', *model, '--prompt', TEXT, '--tokens', 30, '--samples', 8, '--seed', 5, '--json', '--logprobs', 0)
        for choice, generated in zip(answer['choices'], map(json.loads, out.out.splitlines()), strict=True):
            tokens, each = generated['tokens'], choice['logprobs']
            self.assertEqual((choice['text'], choice['finish_reason']), (generated['text'], generated['finish_reason']))
            self.assertEqual(each['token_logprobs'], [token['logprob'] for token in tokens])
            self.assertEqual(shown(b''.join(bytes(token['bytes']) for token in tokens))[0], choice['text'])
            ended = choice['finish_reason'] == 'stop'
            self.assertEqual([token['id'] == FORMS[form][1] for token in tokens], [False] * (len(tokens) - 1) + [ended])
            if ended:
                self.assertEqual((each['tokens'][-1], each['text_offset'][-1]), (FORMS[form][0], len(choice['text'])))
        name, _, start = FORMS[form]
        for i in range(8):  # what lm-evaluation-harness asks: the last entry is that of the token that was drawn
            echoed = self.complete(prompt=[start, *range(9 * i, 9 * i + 59)], max_tokens=1, temperature=0, logprobs=1, echo=True)['choices'][0]
            self.assertEqual(len(echoed['logprobs']['token_logprobs']), 61)
        named = '<|begin_of_text|>' if form == 'llama3' else name  # a control token's name is no text, and ends one
        stopped = self.complete(**dict(ask, stop=named))['choices']
        self.assertIn(named, [choice['logprobs']['tokens'][-1] for choice in stopped])
        for choice in stopped:
            self.assertNotIn(named, choice['logprobs']['tokens'][:-1])

    def check_offsets(self, form):
        """Offsets count the text that the answer has, echoed or not, whole or streamed."""
        prompts = TEXT, [FORMS[form][2], 130, 40, FORMS[form][1], 200, 198], ''
        for prompt, echo in [(prompt, echo) for prompt in prompts for echo in (False, True)]:
            ask = dict(prompt=prompt, max_tokens=30, n=4, seed=7, logprobs=0, echo=echo)
            streamed = [{'text': '', 'tokens': [], 'text_offset': []} for _ in range(4)]
            for event in self.events(**ask):
                choice, = event['choices']
                streamed[choice['index']]['text'] += choice['text']
                for key in 'tokens', 'text_offset':
                    streamed[choice['index']][key] += choice['logprobs'][key]
            for choice, events in zip(self.complete(**ask)['choices'], streamed):
                tokens, data, at = choice['logprobs']['tokens'], b'', []
                begins = prompt == '' or echo  # Llama 2's tokenizers put a space before a text
                for name in tokens:
                    at.append(len(data))
                    part = bytes_of(name)
                    data += part[1:] if form == 'llama2' and begins and part[:1] == b' ' else part
                    begins = name in CONTROL
                text, starts = shown(data)
                offsets = [sum(start < byte for start in starts) for byte in at]
                self.assertEqual(choice['text'], text)
                self.assertEqual(choice['logprobs']['text_offset'], offsets)
                self.assertEqual(events, {'text': choice['text'], 'tokens': tokens, 'text_offset': offsets})

    def check_names(self):
        """Tokens that have the same text, and ids that have none, have different keys."""
        body = {'prompt': TEXT, 'max_tokens': 30, 'n': 8, 'seed': 9, 'logprobs': 20, 'temperature': 3}
        code, _, answer = self.request('POST', '/v1/completions', body)
        self.assertEqual(code, 200, answer)
        for choice in json.loads(answer, object_pairs_hook=without_duplicates)['choices']:
            each = choice['logprobs']
            for name, logprob, top in zip(each['tokens'], each['token_logprobs'], each['top_logprobs'], strict=True):
                self.assertIn(len(top), (20, 21))
                self.assertEqual(top[name], logprob)


if __name__ == '__main__':
    unittest.main()
