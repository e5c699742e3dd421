"""./train serve on a GPU: texts of different lengths decoded together."""
import json
import unittest

from harness import GOLDEN
from serving import ServerCase, together


class Serve(ServerCase):
    model = GOLDEN / 'gpt2-tiny', '--tokenizer', 'bytes', '--device', 'cuda', '--threads', 1

    def test_completions(self):
        process = self.serve('--slots', 4, model=self.model)
        ask = dict(prompt='abc', max_tokens=10, seed=3, top_k=40, min_p=0.01, repetition_penalty=1.2, logprobs=1)
        expected = json.loads(self.run_train('generate', *self.model, '--json', '--prompt', 'abc', '--tokens', 10, '--seed', 3,
                                             '--top-k', 40, '--min-p', 0.01, '--repetition-penalty', 1.2).out)
        self.assertEqual(self.texts(**ask), [expected['text']])
        for i, answer in enumerate(together(6, lambda i: self.complete(prompt='x' * (1 + 9 * i), max_tokens=12, temperature=0))):
            self.assertEqual(answer['usage'], {'prompt_tokens': 1 + 9 * i, 'completion_tokens': 12, 'total_tokens': 13 + 9 * i})
        self.end(process)


if __name__ == '__main__':
    unittest.main()
