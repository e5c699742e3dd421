"""Tasks against lm-evaluation-harness, on an exported model that was trained here. In the full run: it installs PyTorch."""
import json
import os
import pathlib
import random
import subprocess
import unittest

import harness
from harness import CommandCase
from python_env import python_with
from test_eval import write_items

CHECKS = pathlib.Path(__file__).with_name('lm_eval_checks.py')
# NumPy 1, as this PyTorch wants it; newer versions of the others want NumPy 2.
REQUIREMENTS = ('torch==2.2.2', 'transformers==4.46.3', 'numpy==1.26.4', 'lm_eval==0.4.5', 'datasets==2.21.0',
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


if __name__ == '__main__':
    unittest.main()
