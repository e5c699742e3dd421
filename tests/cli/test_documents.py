"""data.mask_documents: the same run in every stage, on any number of ranks and after a resume; generation that attends as the
run does; what it needs and refuses."""
import json
import unittest

from harness import CommandCase, pseudo_random_tokens, release_only, write_shard
from serving import ServerCase

END_OF_TEXT = 256  # of the tokenizer "bytes"
LLAMA = 'model.family=llama', 'model.n_kv_head=1', 'model.window=[6, 0]'


class DocumentCase(CommandCase):
    """Documents of some ten tokens, so that each sequence of 32 has several."""

    def setUp(self):
        super().setUp()
        for name, seed in ('train', 1), ('val', 2):
            tokens = pseudo_random_tokens(4000, 60, seed=seed)
            for i in range(0, len(tokens), 3):
                tokens[i] = END_OF_TEXT if tokens[i] < 18 else tokens[i]
            write_shard(self.folder / f'{name}.bin', tokens)

    def config(self, ranks=False, **sections):
        sections['data'] = {'train': str(self.folder / 'train.bin'), 'tokenizer': 'bytes', 'mask_documents': True,
                            **sections.get('data', {})}
        sections['model'] = {'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'vocab_size': 257, 'n_positions': 32}
        sections.setdefault('checkpoint', {'every': 1, 'keep': 0})
        sections.setdefault('scheduler', {'type': 'constant'})
        return self.ranks_config(**sections) if ranks else self.tiny_config(**sections)


class Runs(DocumentCase, ServerCase):
    def test_the_mask_changes_the_run(self):
        config = self.config(train={'max_steps': 6, 'eval_every': 3})
        process = self.run_train(config)
        self.assertIn('documents: attention stays within each, from one end-of-text (id 256)', process.error)
        self.run_train(config, 'data.mask_documents=false', 'run.dir=across')
        self.assertNotEqual(self.curve()[0], self.curve('across')[0])
        for m in self.metrics():
            self.assertEqual(m['model_memory'], m['model_memory_planned'])
        # The starts of documents: an int32 for each token.
        data = [self.metrics(run)[0]['model_memory']['data'] for run in ('run', 'across')]
        self.assertGreaterEqual(data[0] - data[1], 2 * 32 * 4)

    def test_generation_masks_like_the_run(self):
        """With positions that are relative, a document after another one is what it is alone."""
        self.run_train(self.config(data={'val': []}, train={'max_steps': 4}, optimizer={'lr': 0.02}), *LLAMA)
        process = self.serve(model=(self.folder / 'run', '--device', 'cpu', '--threads', 1))
        before, document = [7, 30, END_OF_TEXT, 12, 51, 2, 44, 5, 19], [END_OF_TEXT, 40, 9, 9, 33, 21, 2]

        def logprobs(prompt, **ask):
            return self.complete(prompt=prompt, temperature=0, logprobs=0, **ask)['choices'][0]['logprobs']
        alone, read = logprobs(document, max_tokens=14), logprobs(document, max_tokens=0, echo=True)
        for n in 1, len(before):
            after = logprobs(before[:n] + document, max_tokens=14)
            self.assertEqual(after['tokens'], alone['tokens'])
            after_read = logprobs(before[:n] + document, max_tokens=0, echo=True)
            for got, expected in ((after['token_logprobs'], alone['token_logprobs']),
                                  (after_read['token_logprobs'][n + 1:], read['token_logprobs'][1:])):
                self.assertEqual(len(got), len(expected))
                for a, b in zip(got, expected):
                    self.assertAlmostEqual(a, b, places=4)
        # Without end-of-text it is not.
        across = logprobs(before + document[1:], max_tokens=0, echo=True)['token_logprobs'][-5:]
        self.assertGreater(max(abs(a - b) for a, b in zip(across, read['token_logprobs'][-5:])), 1e-2)
        self.end(process)

    @release_only('unit/model/test_documents, and the next test')
    def test_stages_and_ranks(self):
        config = self.config(ranks=True, data={'val': []}, train={'max_steps': 3})
        for family, options, stages in ('gpt2', (), (0, 1, 2, 3)), ('llama', LLAMA, (0, 3)):
            for stage in stages:
                self.run_ranks(2, config, *options, f'zero_optimization.stage={stage}', f'run.dir={family}-{stage}')
                self.assertEqual(self.curve(f'{family}-{stage}'), self.curve(f'{family}-0'))
            self.run_train(config, *options, f'run.dir={family}')
            for alone, two in zip(self.curve(family), self.curve(f'{family}-0')):
                self.assertAlmostEqual(alone[1], two[1], delta=1e-5)

    def test_resuming(self):
        config = self.config(train={'max_steps': 6})
        for run, options in ('llama', LLAMA), ('run', ()):
            self.run_train(config, *options, f'run.dir={run}')
            again = self.copy_until(3, run, f'{run}-again')
            self.run_train(config, *options, f'run.dir={again}')
            self.assertEqual(self.curve(again.name), self.curve(run))
            self.assertEqual(self.final_state(again.name), self.final_state(run))
        change = 'data.mask_documents=false', 'train.max_steps=8'
        self.refuses(config, *change, says=['data.mask_documents', 'checkpoint.resume_with'])
        self.run_train(config, *change, 'checkpoint.resume_with=data.mask_documents')

    def test_recomputation_changes_no_bit(self):
        config = self.config(data={'val': []}, train={'max_steps': 3})
        for family, options in ('gpt2', ()), ('llama', LLAMA):
            for level in 'none', 'attention', 'block':
                self.run_train(config, *options, f'recompute={level}', f'run.dir={family}-{level}')
                self.assertEqual(self.curve(f'{family}-{level}'), self.curve(f'{family}-none'))

    def test_eval_masks_like_the_run(self):
        """Validation leaves out what remains after whole windows: 4000 tokens are 124 windows of 32 and 31 tokens."""
        self.run_train(self.config(train={'max_steps': 4}))
        lines = (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines()
        final = [entry for entry in map(json.loads, lines) if 'val_loss' in entry][-1]['val_loss']
        tokens = (self.folder / 'val.bin').read_bytes()[1024:1024 + 2 * (124 * 32 + 1)]
        write_shard(self.folder / 'whole.bin', [int.from_bytes(tokens[i:i + 2], 'little') for i in range(0, len(tokens), 2)])
        out = self.run_train('eval', self.folder / 'run', '--data', self.folder / 'whole.bin', '--json').out
        self.assertAlmostEqual(json.loads(out)['loss'], final, places=5)


class Refusals(DocumentCase):
    def test_end_of_text_must_be_known(self):
        self.refuses(self.config(data={'tokenizer': ''}), says=['data.mask_documents needs to know end-of-text', 'data.tokenizer'])

    def test_shards_may_tell(self):
        (self.folder / 'text.txt').write_text('one<|endoftext|>two three ' * 400)
        self.run_train('tokenize', self.folder / 'text.txt', '--tokenizer', 'bytes', '--end-of-text', '--out', self.folder / 'made')
        process = self.run_train(self.config(data={'train': str(self.folder / 'made' / 'train-*.bin'), 'val': []}))
        self.assertIn('end-of-text (id 256)', process.error)

    def test_cudnn(self):
        self.refuses(self.config(attention='cudnn'), says=['data.mask_documents is true, but attention is cudnn', 'attention=flash'])


if __name__ == '__main__':
    unittest.main()
