"""Shapes of GPT-2, Llama, Qwen2 and Qwen3 that transformers makes: the same logits, losses, files and greedy text. In the full
run: it installs PyTorch."""
import base64
import json
import pathlib
import re
import subprocess
import unittest

import harness
from harness import LOW_PRECISION_TOLERANCES, golden_arguments, golden_expected
from test_export import ExportCase, TRANSFORMERS, read_safetensors

CHECKS = pathlib.Path(__file__).with_name('transformers_checks.py')
# Logits within 5e-6 are log-probabilities within twice that: of the token's logit, and of the logarithm of the sum.
LOG_PROBABILITY_TOLERANCE = 2 * 5e-6


@unittest.skipUnless(harness.FULL, 'full run only: tests/unit/model/test_golden has a model of each family')
@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
class Shapes(ExportCase):
    def test_gpt2(self):
        self.check_family('gpt2')

    def test_llama(self):
        self.check_family('llama')

    def test_qwen2(self):
        self.check_family('qwen2')

    def test_qwen3(self):
        self.check_family('qwen3')

    def check_family(self, family):
        made = self.check(TRANSFORMERS, 'make', family, large=True, script=CHECKS)
        for name, model in made.items():
            print(f'{name}: logits up to {model["largest_logit"]:.1f}, in float32 transformers is off by '
                  f'{model["error_of_transformers"]:.1e}')
            with self.subTest(name):
                self.compare_figures(name)
                self.compare_curves(name)
                self.compare_exports(name)
                self.compare_greedy_text(name, model)
        pairs = [part for name in made for part in (name, f'{name}-out')]
        reloaded = self.check(TRANSFORMERS, 'reload', *pairs, large=True, script=CHECKS)
        self.assertEqual(reloaded, {name: model['ids'] for name, model in made.items()})

    def compare_figures(self, name):
        """Logits (fp32: within 5e-6), gradients, losses, norms and weights, by each instruction set and in double. The program
        has the tolerances."""
        process = subprocess.run([harness.TRAIN.parent / 'tests' / 'unit' / 'model' / 'test_golden', self.folder / name],
                                 capture_output=True, encoding='utf-8', errors='replace', check=False)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        worst = {}
        for dtype, errors in re.findall(r', (fp32|bf16|fp64).*: errors of (.*)', process.stdout):
            for figure, error in re.findall(r'(\w+) ([-+.e\d]+)', errors):
                worst.setdefault(dtype, {}).setdefault(figure, []).append(float(error))
        self.assertEqual(sorted(worst), ['bf16', 'fp32', 'fp64'], process.stdout)
        for dtype, errors in worst.items():
            largest = ', '.join(f'{figure} {max(found)}' for figure, found in errors.items())
            print(f'{name}, {dtype}: largest errors of {largest}')

    def compare_curves(self, name):
        """Losses of a run from these weights, by options alone."""
        (self.folder / 'c.json').write_text('{}')
        epsilon = golden_expected(self.folder / name)['optimizer']['eps']
        for compute, tolerance in ('fp32', 1e-6), ('bf16', LOW_PRECISION_TOLERANCES['bf16']):
            run = f'{name}-{compute}-run'
            self.run_train('c.json', *golden_arguments(self.folder / name), f'optimizer.eps={epsilon}', 'device=cpu',
                           f'precision.compute={compute}', f'run.dir={run}')
            loss, norm = self.golden_errors(self.folder / name, run)
            print(f'{name}, {compute}, ./train: losses within {loss:.1e}, norms within {norm:.1e}')
            self.assertLessEqual(loss, tolerance)

    def compare_exports(self, name):
        """Tensors of an export have the bytes of those that transformers saved."""
        for dtype, given, out in ('fp32', name, f'{name}-out'), ('bf16', f'{name}-bf16', f'{name}-bf16-out'):
            self.export(given, 'hf', out, '--dtype', dtype, '--tokenizer', 'none')
            found, wanted = (read_safetensors(self.folder / folder / 'model.safetensors') for folder in (out, given))
            self.assertEqual(sorted(found), sorted(wanted))
            self.assertEqual([key for key in wanted if found[key] != wanted[key]], [])

    def write_tokenizer(self, vocabulary):
        """A tokenizer with an id for each row of the embedding: bytes, pairs of capital letters, which no prompt has, and
        end-of-text."""
        tokens = [bytes([byte]) for byte in range(256)]
        tokens += [bytes([65 + k // 26, 65 + k % 26]) for k in range(vocabulary - 257)]
        path = self.folder / 'pairs.tiktoken'
        path.write_text(''.join(f'{base64.b64encode(token).decode()} {rank}\n' for rank, token in enumerate(tokens)))
        return path

    def compare_greedy_text(self, name, model):
        """The ids that transformers continues the prompt with, and, from the key-value cache, their log-probabilities."""
        vocabulary = model['vocabulary']
        out = self.run_train('generate', name, '--tokenizer', self.write_tokenizer(vocabulary), '--prompt', model['prompt'],
                             '--tokens', model['n_tokens'], '--temperature', 0, '--json', '--logprobs', 0, '--device', 'cpu').out
        tokens = [token for token in json.loads(out)['tokens'] if token['id'] != vocabulary - 1]
        self.assertEqual([token['id'] for token in tokens], model['ids'])
        error = max(abs(token['logprob'] - wanted) for token, wanted in zip(tokens, model['log_probabilities']))
        print(f'{name}, ./train generate: log-probabilities of {len(tokens)} greedy tokens within {error:.1e}')
        self.assertLessEqual(error, LOG_PROBABILITY_TOLERANCE)


if __name__ == '__main__':
    unittest.main()
