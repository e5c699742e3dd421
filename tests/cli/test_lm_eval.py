"""Tasks and served log-probabilities against lm-evaluation-harness, on exported models that were trained here. In the full run:
it installs PyTorch."""
import json
import os
import pathlib
import random
import subprocess
import unittest

import harness
from harness import CommandCase
from python_env import NEWEST, python_with
from serving import ServerCase
from test_eval import write_items
from test_tokenizers import TokenizerCase

CHECKS = pathlib.Path(__file__).with_name('lm_eval_checks.py')
SERVED = pathlib.Path(__file__).with_name('lm_eval_served.py')
# NumPy 1, as this PyTorch wants it; newer versions of the others want NumPy 2.
REQUIREMENTS = ('torch==2.2.2', 'transformers==4.46.3', 'numpy==1.26.4', 'lm_eval[api]==0.4.5', 'datasets==2.21.0',
                'pyarrow==17.0.0')

SUBJECTS = ['the old farmer', 'a small cat', 'my sister', 'the naïve king', 'every sailor']
VERBS = {'eats': ['warm bread', 'an apple', 'soup'], 'reads': ['a long letter', 'the book', 'old maps'],
         'builds': ['a wooden house', 'the bridge', 'a boat'], 'sings': ['a quiet song', 'all night', 'to the moon']}


def sentences(n, seed):
    """Text with a little structure: what follows a verb belongs to it."""
    generator = random.Random(seed)
    for _ in range(n):
        verb = generator.choice(list(VERBS))
        yield generator.choice(SUBJECTS), verb, generator.choice(VERBS[verb])


def choices(generator, verb, right):
    """The right ending and three of other verbs, in any order; the index of the right one."""
    others = [ending for other, endings in VERBS.items() if other != verb for ending in endings]
    endings = generator.sample(others, 3) + [right]
    generator.shuffle(endings)
    return endings, endings.index(right)


@unittest.skipUnless(harness.FULL, 'full run only: test_eval has figures of its own')
@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
class LmEval(CommandCase):
    def make_items(self):
        generator, swag, lambada, multiple = random.Random(5), [], [], []
        for i, (subject, verb, ending) in enumerate(sentences(200, seed=4)):
            endings, label = choices(generator, verb, ending)
            swag.append({'ind': i, 'activity_label': 'Telling stories', 'ctx_a': f'{subject} {verb} [title]  {ending}.',
                         'ctx_b': f'{subject} {verb}', 'ctx': 'unused', 'label': label,
                         'endings': [f'{text}. [step] {"And" * (i % 3)}' for text in endings]})
            multiple.append({'context': f'{subject} {verb}' + ' \n'[i % 3:i % 3 + 1], 'choices': endings, 'label': label})
            lambada.append({'text': ' '.join([f'{subject} {verb} {ending}.'] * (1 + i % 20))})  # some are cut
        return [write_items(self.folder / f'{name}.jsonl', items)
                for name, items in (('hellaswag', swag), ('lambada', lambada), ('multiple_choice', multiple))]

    def test_the_same_figures(self):
        python = python_with(*REQUIREMENTS, large=True)
        (self.folder / 'my.txt').write_text('\n'.join(' '.join(parts) + '.' for parts in sentences(3000, seed=3)))
        self.run_train('tokenizer', 'train', 'my.txt', '--vocab-size', 320, '--out', 'my.tiktoken')
        self.run_train('tokenize', 'my.txt', '--tokenizer', 'my.tiktoken', '--out', 'my')
        self.run_train(self.tiny_config(
            model={'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'n_positions': 64, 'vocab_size': 320}, data={'train': 'my/*.bin'},
            train={'max_steps': 300, 'micro_batch_size': 4}, optimizer={'lr': 1e-2}, run={'dir': 'run', 'threads': 2}))
        self.run_train('export', 'run', '--to', 'hf', 'exported')
        files = self.make_items()
        arguments = [word for path in files for word in ('--task', f'{path.stem}={path}')]
        ours = json.loads(self.run_train('eval', 'run', '--json', *arguments).out)['tasks']
        environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
        process = subprocess.run([python, CHECKS, 'exported', *files], cwd=self.folder, env=environment, check=False,
                                 capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        theirs = json.loads(process.stdout.splitlines()[-1])
        for task, figures in ('hellaswag', ('acc', 'acc_norm')), ('multiple_choice', ('acc', 'acc_norm')), ('lambada', ('acc',)):
            for figure in figures:
                self.assertAlmostEqual(ours[task][figure], theirs[task][figure], places=9, msg=(task, figure))
        self.assertAlmostEqual(ours['lambada']['perplexity'] / theirs['lambada']['perplexity'], 1, delta=1e-4)
        self.assertGreater(ours['multiple_choice']['acc'], 0.4)  # 0.25 is chance
        self.assertNotEqual(ours['hellaswag']['acc'], ours['hellaswag']['acc_norm'])


@unittest.skipUnless(harness.FULL, 'full run only: test_logprobs compares serve, generate and eval')
@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
class Served(TokenizerCase, ServerCase):
    """Log-likelihoods by our server's answers are those of the exported folder, whatever the tokenizer."""
    context = 128  # and more ids than any of the tokenizers has

    def requests(self):
        """Contexts and continuations: of the training text, of all kinds of characters, and without a context."""
        generator = random.Random(6)
        for subject, verb, ending in sentences(30, seed=7):
            endings, _ = choices(generator, verb, ending)
            yield from ([f'{subject} {verb}', f' {text}.'] for text in endings[:2])
        yield from (['', 'the old farmer'], ['', ' a'], ['x', 'y'], ['naïve e\u0301', ' 日本 1611, \U0001f600'], ['a\n\n', '  b\n'],
                    ["don't", ' we\'ll  12345'], ['<unk>', '<s>x'], ['the king', ' eats the bridge. a small cat sings all night.'])

    def run_of(self, form, tokenizer, family):
        self.run_train('tokenize', 'my.txt', '--tokenizer', tokenizer, '--out', f'{form}-data')
        self.run_train(self.tiny_config(
            model={'family': family, 'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'n_positions': self.context, 'vocab_size': 1100},
            data={'train': f'{form}-data/*.bin'}, train={'max_steps': 150, 'micro_batch_size': 4, 'seq_len': 64},
            optimizer={'lr': 1e-2}, run={'dir': f'{form}-run', 'threads': 2}))
        self.run_train('export', f'{form}-run', '--to', 'hf', f'{form}-hf')

    def make_models(self):
        """A run for each form of tokenizer, and GGUF files of some of them: {name: what is served}."""
        (self.folder / 'my.txt').write_text('\n'.join(' '.join(parts) + '.' for parts in sentences(3000, seed=3)))
        self.run_train('tokenizer', 'train', 'my.txt', '--vocab-size', 320, '--out', 'my.tiktoken')
        merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in self.content('gpt2')['model']['merges']]
        (self.folder / 'vocab.bpe').write_text('\n'.join(['#version: 0.2', *merges, '']))
        runs = {'tiktoken': 'my.tiktoken', 'vocab.bpe': 'vocab.bpe', 'bytes': 'bytes'}
        runs |= {path.name: path / 'tokenizer.json' for path in self.forms.iterdir() if path.is_dir()}
        for form, tokenizer in runs.items():
            self.run_of(form, tokenizer, 'llama' if form.startswith(('llama', 'metaspace')) else 'gpt2')
        served = {form: f'{form}-run' for form in runs}
        for form in 'gpt2', 'llama3', 'llama2':
            self.run_train('export', f'{form}-run', '--to', 'gguf', f'{form}-gguf')
            served[f'{form}-gguf'] = f'{form}-gguf'
        return served

    def compare(self, requirements, models):
        environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
        process = subprocess.run([python_with(*requirements, large=True), SERVED, models, 'requests.json'], cwd=self.folder,
                                 env=environment, check=False, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        for name, (of_folder, of_server) in json.loads(process.stdout.splitlines()[-1]).items():
            with self.subTest(name):
                self.assertEqual([greedy for _, greedy in of_server], [greedy for _, greedy in of_folder])
                for (theirs, _), (ours, _) in zip(of_folder, of_server, strict=True):
                    self.assertAlmostEqual(ours / theirs, 1, delta=2e-5)  # logits in fp32, by another order of sums

    def test_local_completions(self):
        models, processes = {}, []
        for name, path in self.make_models().items():
            processes.append(self.serve('--name', name, model=(path, '--device', 'cpu', '--threads', 1)))
            models[name] = {'folder': f'{name.removesuffix("-gguf")}-hf', 'url': f'http://127.0.0.1:{self.port}/v1/completions',
                            'context': self.context, 'bos': name.startswith(('llama', 'metaspace'))}
        (self.folder / 'models.json').write_text(json.dumps(models))
        (self.folder / 'requests.json').write_text(json.dumps(list(self.requests())))
        for requirements in NEWEST, REQUIREMENTS:
            with self.subTest(requirements):
                self.compare(requirements, 'models.json')
        for process in processes:
            self.end(process)


if __name__ == '__main__':
    unittest.main()
