"""Mixtures in data.train and data.val: sources with weights, their errors, resuming, ranks, and what is reported."""
import json
import unittest

from harness import CommandCase, pseudo_random_tokens, write_shard


class MixtureCase(CommandCase):
    """Shards of `a` hold the tokens 0 to 29, shards of `b` 30 to 59, so that a loss tells where a sequence came from."""

    def setUp(self):
        super().setUp()
        for name, first in ('a', 0), ('b', 30):
            for split, seed in ('train', 1), ('val', 2):
                tokens = [first + t for t in pseudo_random_tokens(3000, 30, seed=seed + first)]
                write_shard(self.folder / f'{name}-{split}.bin', tokens)

    def mixture(self, a=3, b=1, split='train', **more):
        sources = [{'path': str(self.folder / f'{name}-{split}.bin'), 'weight': weight}
                   for name, weight in (('a', a), ('b', b))]
        return sources + [{'path': str(self.folder / path), 'weight': weight} for path, weight in more.items()]

    def config(self, **sections):
        sections['data'] = {'train': self.mixture(), **sections.get('data', {})}
        sections.setdefault('checkpoint', {'every': 1, 'keep': 0})
        sections.setdefault('scheduler', {'type': 'constant'})
        return self.tiny_config(**sections)

    def evaluations(self, run='run'):
        lines = (self.folder / run / 'metrics.jsonl').read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if 'val_loss' in entry]


class Runs(MixtureCase):
    def test_shares_are_kept_reported_and_recorded(self):
        process = self.run_train(self.config(train={'max_steps': 20, 'train_batch_size': 8, 'micro_batch_size': 4}))
        for says in ('data.train[0] ', 'a-train.bin: 75 % of sequences, 3.00K tokens in 1 shard, 1.29 epochs up to step 20',
                     'data.train[1] ', '25 % of sequences', 'trained on data.train[0]', 'data.val[1] '):
            self.assertIn(says, process.error)
        for m in self.metrics():
            self.assertEqual(sum(m['source_tokens']), m['tokens'])
            self.assertLess(abs(m['source_tokens'][0] - 0.75 * m['tokens']), 2 * 32)
        record = json.loads((self.checkpoints()[-1] / 'manifest.json').read_text())['data']
        self.assertEqual(record['train']['sources'], [{'shards': 1, 'share': 0.75}, {'shards': 1, 'share': 0.25}])
        inspected = self.run_train('inspect', self.checkpoints()[-1]).out
        self.assertIn('source 1: 75 % of sequences, from a-train.bin', inspected)

    def test_a_resumed_run_is_the_run_without_a_stop(self):
        config = self.config(train={'max_steps': 9, 'train_batch_size': 4, 'micro_batch_size': 2})
        self.run_train(config)
        self.copy_until(4, 'run', 'again')
        self.run_train(config, f'run.dir={self.folder}/again')
        self.assertEqual(self.curve('again'), self.curve())
        self.assertEqual(self.final_state('again'), self.final_state())
        self.assertEqual([m['source_tokens'] for m in self.metrics('again')], [m['source_tokens'] for m in self.metrics()])

    def test_widths_of_ids(self):
        """A source with ids of 4 bytes gives the batches of one with the same ids of 2."""
        config = self.config(train={'max_steps': 3, 'train_batch_size': 4, 'micro_batch_size': 2})
        self.run_train(config)
        for split, seed in ('train', 1), ('val', 2):
            tokens = [30 + t for t in pseudo_random_tokens(3000, 30, seed=seed + 30)]
            write_shard(self.folder / f'b-{split}.bin', tokens, magic=20240801, version=7)
        self.run_train(config, f'run.dir={self.folder}/wide')
        self.assertEqual(self.curve('wide'), self.curve())
        self.refuses(config, 'train.max_steps=4', says=['b-train.bin', 'has changed'])  # another file: the record says so

    def test_ranks_and_micro_batches_see_the_same_batches(self):
        """The loss of the first step is a mean over the same sequences, so equal to rounding."""
        config = self.ranks_config(data={'train': self.mixture()}, train={'max_steps': 2})
        losses = []
        for ranks, micro in (1, 12), (1, 4), (3, 2):
            options = 'train.gradient_accumulation_steps=0', f'train.micro_batch_size={micro}', f'run.dir=r{ranks}-{micro}'
            self.run_ranks(ranks, config, *options)
            losses.append(self.metrics(f'r{ranks}-{micro}')[0]['loss'])
        for loss in losses:
            self.assertAlmostEqual(loss, losses[0], delta=1e-5)

    def test_validation_by_source(self):
        """The losses of the sources are those of each alone, and the whole is their mean by weight."""
        config = self.config(train={'max_steps': 6, 'eval_every': 3, 'train_batch_size': 2},
                             data={'val': self.mixture(1, 3, split='val')})
        process = self.run_train(config)
        for entry in self.evaluations():
            a, b = entry['val_sources']
            self.assertEqual((a['share'], b['share']), (0.25, 0.75))
            self.assertAlmostEqual(entry['val_loss'], 0.25 * a['val_loss'] + 0.75 * b['val_loss'], places=12)
            self.assertEqual(entry['val_sequences'], a['val_sequences'] + b['val_sequences'])
        self.assertIn('a-val.bin: val loss', process.error)
        final = self.evaluations()[-1]['val_sources']
        for index, name in enumerate('ab'):
            # With a batch of 4 sequences; every token of the shard but the last few is evaluated by both.
            out = self.run_train('eval', self.folder / 'run', '--data', self.folder / f'{name}-val.bin', '--json').out
            self.assertAlmostEqual(json.loads(out)['loss'], final[index]['val_loss'], delta=0.05)

    def test_one_source_is_plain_data(self):
        config = self.config(data={'train': self.mixture()[:1], 'val': []})
        self.run_train(config)
        self.run_train(config, f'data.train={self.folder}/a-train.bin', 'run.dir=plain')
        self.assertEqual(self.curve(), self.curve('plain'))
        self.assertNotIn('source_tokens', self.metrics()[0])
        self.assertNotIn('sources', json.loads((self.checkpoints()[-1] / 'manifest.json').read_text())['data']['train'])

    def test_without_weights_sizes_decide(self):
        write_shard(self.folder / 'b-train.bin', pseudo_random_tokens(1024, 61))
        paths = [self.mixture()[0]['path'], {'path': self.mixture()[1]['path']}]
        process = self.run_train(self.config(data={'train': paths}))
        self.assertIn('a-train.bin: 75 % of sequences', process.error)  # 93 and 31 sequences

    def test_held_out_of_each_source(self):
        process = self.run_train(self.config(data={'val': [], 'val_split': 0.1}))
        self.assertEqual(len(self.evaluations()[-1]['val_sources']), 2)
        self.assertIn('300 tokens', process.error)


class Changed(MixtureCase):
    def test_other_weights_are_refused_or_accepted(self):
        config = self.config()
        self.run_train(config)
        again = f'data.train={json.dumps(self.mixture(1, 1))}', 'train.max_steps=9'
        self.refuses(config, *again, says=['data.train', 'source 1 (a-train.bin) has a share of 0.5 instead of 0.75',
                                           'checkpoint.accept_new_data=true'])
        other = f'data.train={json.dumps(self.mixture(1, 1)[:1])}', 'train.max_steps=9'
        self.refuses(config, *other, says=['shard 2 (b-train.bin) is gone'])
        plain = f'data.train={json.dumps([s["path"] for s in self.mixture()])}', 'train.max_steps=9'
        self.refuses(config, *plain, says=['the shards are divided into 1 source instead of 2'])
        process = self.run_train(config, *again, 'checkpoint.accept_new_data=true')
        self.assertIn('50 % of sequences', process.error)
        self.assertEqual(len(self.metrics()), 9)

    def test_the_same_proportions_are_no_change(self):
        config = self.config()
        self.run_train(config)
        self.run_train(config, f'data.train={json.dumps(self.mixture(6, 2))}', 'train.max_steps=9')


class Errors(MixtureCase):
    def refused(self, train, *says):
        self.refuses(self.config(data={'train': train}), says=says)

    def test_weights(self):
        for weight, says in ((0, 'is 0, expected a number above 0'), (-1, 'is -1, expected'), ('x', 'the string "x"'),
                             (1e40, 'expected a number above 0, from 1e-30 to 1e+30'), (None, 'is null')):
            self.refused(self.mixture(1, weight), 'data.train[1].weight', says)
        config = self.config().read_text().replace('"weight": 1}', '"weight": NaN}')
        (self.folder / 'tiny.json').write_text(config)
        self.refuses(self.folder / 'tiny.json', says=['tiny.json', '(only numbers, true, false and null have none): "NaN'])
        missing = self.mixture()
        del missing[0]['weight']
        self.refused(missing, 'data.train[0]', 'has no weight, but [1] has')

    def test_sources(self):
        source = self.mixture()[0]
        self.refused([source, {**source, 'wieght': 1}], 'data.train[1]', '"wieght", did you mean weight')
        self.refused([source, {'weight': 1}], 'data.train[1] names no shards')
        self.refused([source, {'path': [], 'weight': 1}], 'data.train[1] names no shards')
        self.refused([source, {'path': 5, 'weight': 1}], 'data.train[1].path is the number 5')
        self.refused([source, ''], 'data.train[1] names no shards')
        self.refused([source, 7], 'data.train[1] is the number 7')
        self.refused([], 'data.train names no token shards')
        self.refused([source] * 300, '300 sources, at most 256')

    def test_shards(self):
        self.refused(self.mixture(**{'absent-*.bin': 1}), 'data.train[2]: no file matches', 'absent-*.bin')
        write_shard(self.folder / 'short.bin', [1] * 20)
        self.refused(self.mixture(**{'short.bin': 1}), 'data.train[2]', '20 tokens', 'no sequence')
        (self.folder / 'damaged.bin').write_bytes(b'x' * 2000)
        self.refused(self.mixture(**{'damaged.bin': 1}), 'damaged.bin is text')

    def test_tokenizers(self):
        (self.folder / 'text.txt').write_text('some words of a text that has tokens enough ' * 40)
        self.run_train('tokenizer', 'train', self.folder / 'text.txt', '--vocab-size', '270', '--out', self.folder / 't.tiktoken')
        for name, tokenizer in ('x', 'bytes'), ('y', self.folder / 't.tiktoken'):
            self.run_train('tokenize', self.folder / 'text.txt', '--tokenizer', tokenizer, '--out', self.folder / name)
        train = [{'path': str(self.folder / name / 'train-*.bin'), 'weight': 1} for name in 'xy']
        config = self.config(data={'train': train}, model={'vocab_size': 300})
        self.refuses(config, says=['data.train', 'x/train-00000.bin was tokenized with bytes', 'y/train-00000.bin with t.tiktoken'])

    def test_check_and_plan_show_the_mixture(self):
        config = self.config(train={'max_steps': 40, 'micro_batch_size': 2})
        process = self.run_train('check', config)
        self.assertEqual(json.loads(process.out)['data']['train'], self.mixture())
        self.assertIn('a-train.bin: 75 % of sequences, 3.00K tokens in 1 shard, 0.645 epochs in 40 steps', process.error)
        self.assertIn('a-train.bin: 75 % of sequences', self.run_train('plan', config).error)
        absent = self.config(data={'train': self.mixture(**{'absent-*.bin': 1})})
        self.assertIn('warning: data.train[2]: no file matches', self.run_train('check', absent).error)
        self.assertNotIn('absent', self.run_train('plan', absent).error)


if __name__ == '__main__':
    unittest.main()
