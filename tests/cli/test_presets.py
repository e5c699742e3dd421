"""From a preset to a run: naming the training shards is enough. What goes with them is found, or held out, and said."""
import json
import shutil
import unittest

import harness
from harness import CommandCase, ROOT, pseudo_random_tokens, write_shard

PRESET = ROOT / 'configs' / 'gpt2-small.json'
TINY = ('device=cpu', 'model.n_layer=1', 'model.n_head=2', 'model.n_embd=16', 'model.n_positions=32', 'train.seq_len=32',
        'train.micro_batch_size=2', 'train.train_batch_size=4', 'scheduler.warmup_steps=1', 'run.threads=1', 'precision.compute=fp32')


# Of the published models: the config.json of each on the Hugging Face Hub, and its number of parameters there.
LLAMA3 = {'rope_type': 'llama3', 'low_freq_factor': 1, 'high_freq_factor': 4, 'original_max_position_embeddings': 8192}
PUBLISHED = {
    'llama-3.2-1b': (1235814400, {'n_embd': 2048, 'n_layer': 16, 'n_head': 32, 'n_kv_head': 8, 'head_dim': 64, 'intermediate_size': 8192,
                                  'vocab_size': 128256, 'n_positions': 131072, 'rope_theta': 500000, 'norm_eps': 1e-5, 'tied': True,
                                  'rope_scaling': {**LLAMA3, 'factor': 32}}),
    'llama-3.1-8b': (8030261248, {'n_embd': 4096, 'n_layer': 32, 'n_head': 32, 'n_kv_head': 8, 'head_dim': 128,
                                  'intermediate_size': 14336, 'vocab_size': 128256, 'n_positions': 131072, 'rope_theta': 500000,
                                  'norm_eps': 1e-5, 'tied': False, 'rope_scaling': {**LLAMA3, 'factor': 8}}),
    'qwen2.5-0.5b': (494032768, {'n_embd': 896, 'n_layer': 24, 'n_head': 14, 'n_kv_head': 2, 'head_dim': 64, 'intermediate_size': 4864,
                                 'vocab_size': 151936, 'n_positions': 32768, 'rope_theta': 1000000, 'norm_eps': 1e-6, 'tied': True,
                                 'qkv_bias': True}),
    'qwen2.5-1.5b': (1543714304, {'n_embd': 1536, 'n_layer': 28, 'n_head': 12, 'n_kv_head': 2, 'head_dim': 128,
                                  'intermediate_size': 8960, 'vocab_size': 151936, 'n_positions': 131072, 'rope_theta': 1000000,
                                  'norm_eps': 1e-6, 'tied': True, 'qkv_bias': True}),
    'qwen3-0.6b': (596049920, {'n_embd': 1024, 'n_layer': 28, 'n_head': 16, 'n_kv_head': 8, 'head_dim': 128, 'intermediate_size': 3072,
                               'vocab_size': 151936, 'n_positions': 40960, 'rope_theta': 1000000, 'norm_eps': 1e-6, 'tied': True,
                               'qk_norm': True}),
    'smollm2-135m': (134515008, {'n_embd': 576, 'n_layer': 30, 'n_head': 9, 'n_kv_head': 3, 'head_dim': 64, 'intermediate_size': 1536,
                                 'vocab_size': 49152, 'n_positions': 8192, 'rope_theta': 100000, 'norm_eps': 1e-5, 'tied': True}),
    'tinyllama': (1100048384, {'n_embd': 2048, 'n_layer': 22, 'n_head': 32, 'n_kv_head': 4, 'head_dim': 64, 'intermediate_size': 5632,
                               'vocab_size': 32000, 'n_positions': 2048, 'rope_theta': 10000, 'norm_eps': 1e-5, 'tied': False}),
    # modded-nanogpt: blocks and embeddings of GPT-2 small, an lm_head of its own, and a table for each value embedding.
    'modern-124m': (12 * 12 * 768**2 + 2 * 50257 * 768 + 3 * 50257 * 768 + 2 * 11,
                    {'n_embd': 768, 'n_layer': 12, 'n_head': 6, 'n_kv_head': 6, 'head_dim': 128, 'intermediate_size': 3072,
                     'vocab_size': 50257, 'n_positions': 1024, 'rope_theta': 1024, 'tied': False, 'qk_norm': True, 'family': 'modern',
                     'activation': 'relu_squared', 'partial_rotary_factor': 0.5, 'soft_cap': 15, 'zero_init': True,
                     'embedding_skip': True, 'value_embeddings': [0, 1, 2], 'window': [512, 512, 512, 0]}),
}


class Sizes(CommandCase):
    def test_published_models(self):
        for name, (parameters, wanted) in PUBLISHED.items():
            with self.subTest(name):
                config = ROOT / 'configs' / f'{name}.json'
                found = json.loads(self.run_train('check', config).out)['model']
                wanted = {'family': 'llama', 'qkv_bias': False, 'qk_norm': False, 'activation': 'swiglu', 'window': [],
                          'rope_scaling': {'rope_type': 'default'}, **wanted}
                scaling = wanted.pop('rope_scaling')
                self.assertEqual({key: found['rope_scaling'][key] for key in scaling}, scaling)
                self.assertEqual({key: found[key] for key in wanted}, wanted)
                plan = json.loads(self.run_train('plan', config, 'device=cpu', 'precision.compute=bf16', '--json').out)
                self.assertEqual(plan['parameters'], parameters)


class DataAlone(CommandCase):
    def preset(self, *arguments, run='run', config=PRESET, steps=2):
        return self.run_train(config, *TINY, f'train.max_steps={steps}', f'run.dir={run}', *arguments)

    def resolved(self, run='run'):
        return json.loads((self.folder / run / 'config.json').read_text())

    def losses(self, run):
        lines = (self.folder / run / 'metrics.jsonl').read_text().splitlines()
        return [entry['val_loss'] for entry in map(json.loads, lines) if 'val_loss' in entry]

    def test_shards_of_tokenize(self):
        """The validation shards, the tokenizer and the size of the vocabulary come with the training shards."""
        (self.folder / 'my.txt').write_text('the quick brown fox jumps over the lazy dog\n' * 200)
        self.run_train('tokenizer', 'train', 'my.txt', '--vocab-size', 270, '--out', 'elsewhere/my.tiktoken')
        self.run_train('tokenize', 'my.txt', '--tokenizer', 'elsewhere/my.tiktoken', '--split', 0.2, '--out', 'my')
        for config in PRESET, ROOT / 'configs' / 'quickstart.json':
            error = self.preset('data.train=my/train-*.bin', 'train.sample_every=2', run=config.stem, config=config).error
            self.assertIn('of my/val-*.bin, found beside data.train', error)
            self.assertIn('tokenizer: elsewhere/my.tiktoken, that of data.train', error)
            self.assertIn('bits per byte', error)
            resolved = self.resolved(config.stem)
            self.assertEqual(resolved['data'], {**resolved['data'], 'val': ['my/val-*.bin'], 'val_split': 0,
                                                'tokenizer': 'elsewhere/my.tiktoken'})
            self.assertEqual(resolved['model']['vocab_size'], 270)
        self.preset(config=self.folder / 'gpt2-small' / 'config.json', run='gpt2-small', steps=3)
        self.assertIn('vocab_size is 900, but the tokenizer of data.train has 270 ids',
                      self.preset('data.train=my/train-*.bin', 'model.vocab_size=900', run='large').error)
        # moved: the tokenizer beside the shards is found first, and one that was changed is not taken
        shutil.move(self.folder / 'elsewhere' / 'my.tiktoken', self.folder / 'my')
        self.assertIn('tokenizer: my/my.tiktoken', self.preset('data.train=my/train-*.bin', run='moved').error)
        with open(self.folder / 'my' / 'my.tiktoken', 'a') as file:
            file.write('IUBAQEBA 269\n')
        error = self.preset('data.train=my/train-*.bin', run='changed').error
        self.assertRegex(error, r'tokenizer: that of data.train, my.tiktoken \(.*\), is not found beside it; set data.tokenizer')
        self.refuses(PRESET, *TINY, 'data.train=my/train-*.bin', 'train.sample_every=1', 'run.dir=other',
                     says=['train.sample_every', 'data.tokenizer'])

    def test_the_last_part_is_held_out(self):
        """The same run as on two files that are cut there, on one rank and on two, also when it is resumed."""
        tokens = pseudo_random_tokens(4000, 61)
        for name, part in ('all-a', tokens[:2500]), ('all-b', tokens[2500:]), ('b', tokens[2500:3800]), ('val', tokens[3800:]):
            write_shard(self.folder / f'{name}.bin', part)
        shutil.copy(self.folder / 'all-a.bin', self.folder / 'a.bin')
        split = 'data.train=all-?.bin', 'model.vocab_size=61'
        error = self.preset(*split).error
        self.assertIn('validation: the last 200 tokens of data.train, 0.05 of it (data.val_split)', error)
        self.assertNotIn('holds training data', error)
        cut = 'data.train=["a.bin", "b.bin"]', 'data.val=val.bin', 'model.vocab_size=61'
        self.preset(*cut, run='cut')
        self.assertEqual(self.curve(), self.curve('cut'))
        self.assertEqual(self.losses('run'), self.losses('cut'))
        self.preset(*split, steps=4)
        self.preset(*cut, run='cut', steps=4)
        self.assertEqual(self.final_state(), self.final_state('cut'))
        self.refuses(PRESET, *TINY, *split, 'run.dir=run', 'train.max_steps=5', 'data.val_split=0.1',
                     says=['data.val_split was 0.05 and is now 0.1'])
        self.finish(self.start_mpirun('-n', 2, harness.TRAIN, PRESET, *TINY, *split, 'train.max_steps=2', 'run.dir=two'), 0)
        for one, two in zip(self.losses('run'), self.losses('two')):
            self.assertLess(harness.relative(two, one), 1e-5)

    def test_llmc_names(self):
        write_shard(self.folder / 'x_train_000001.bin', pseudo_random_tokens(2000, 61))
        write_shard(self.folder / 'x_val_000000.bin', pseudo_random_tokens(300, 61, seed=2))
        for pattern, val in ('x_train_*.bin', 'x_val_*.bin'), ('x_train_000001.bin', 'x_val*.bin'):
            out = self.run_train('check', PRESET, f'data.train={pattern}').out
            self.assertEqual(json.loads(out)['data']['val'], [val])
        self.assertEqual(json.loads(self.run_train('check', PRESET, 'data.train=x_train_*.bin', 'data.val=').out)['data']['val'], [])

    def test_less_data_than_a_batch(self):
        write_shard(self.folder / 'few.bin', pseudo_random_tokens(70, 61))
        error = self.preset('data.train=few.bin', 'model.vocab_size=61', run='held').error
        self.assertIn('validation: the last 33 tokens of data.train', error)
        error = self.preset('data.train=few.bin', 'model.vocab_size=61', 'data.val_split=0').error
        self.assertIn('data.train holds 2 sequences, fewer than a batch of 4', error)

    def test_missing_data_says_what_makes_it(self):
        self.refuses(PRESET, says=['data.train', 'corpus/fineweb10B/', 'scripts/get_data.sh', './train tokenize'])
        self.refuses(ROOT / 'configs' / 'quickstart.json', says=['corpus/kjv/train-*.bin', 'scripts/corpus_kjv.sh'])
        self.refuses(PRESET, 'data.train=my/*.bin', says=['my/*.bin', './train tokenize my.txt --tokenizer FILE --out my'])


if __name__ == '__main__':
    unittest.main()
