"""Training data that changes before a run is resumed: it is refused, naming the shard, or with
checkpoint.accept_new_data accepted, reported and recorded."""
import json
import shutil
import socket
import unittest

import harness
from harness import CommandCase, pseudo_random_tokens, write_shard


class DataCase(CommandCase):
    def shard(self, name, seed, n=4000, folder='data'):
        (self.folder / folder).mkdir(exist_ok=True)
        write_shard(self.folder / folder / name, pseudo_random_tokens(n, 61, seed=seed))

    def shards(self, folder='data', **names):
        for name, seed in names.items():
            self.shard(f'{name}.bin', seed, folder=folder)

    def config(self, **sections):
        sections.setdefault('data', {})['train'] = str(self.folder / 'data' / '*.bin')
        sections.setdefault('checkpoint', {'every': 1, 'keep': 0})
        sections.setdefault('scheduler', {'type': 'constant'})  # the same whatever train.max_steps is
        return self.tiny_config(**sections)

    def record(self, run='run', checkpoint=-1):
        return json.loads((self.checkpoints(run)[checkpoint] / 'manifest.json').read_text())['data']


class ChangedData(DataCase):
    def refuses_resume(self, config, *says):
        before = self.curve(), self.final_state()
        self.refuses(config, 'train.max_steps=9', says=['data.train', 'up to step 6', 'checkpoint.accept_new_data=true',
                                                        'Restore data.train', *says])
        self.assertEqual((self.curve(), self.final_state()), before)

    def test_changed_shards_are_refused_and_named(self):
        self.shards(b=1, c=2, d=3)
        config = self.config()
        self.run_train(config)
        self.shard('a.bin', 9)
        self.refuses_resume(config, '3 shards of 12000 tokens, now 4 of 16000', 'shard 1 (a.bin) is new')
        (self.folder / 'data' / 'a.bin').unlink()
        self.shard('c.bin', 8)
        self.refuses_resume(config, '3 shards of 12000 tokens, now 3 of 12000', 'shard 2 (c.bin) has changed')
        self.shard('c.bin', 2, n=3000)
        self.refuses_resume(config, 'now 3 of 11000', 'shard 2 (c.bin) has changed')
        (self.folder / 'data' / 'c.bin').unlink()
        self.refuses_resume(config, 'now 2 of 8000', 'shard 2 (c.bin) is gone')
        self.shard('c.bin', 3), self.shard('d.bin', 2)
        self.refuses_resume(config, 'in another order')
        self.shard('c.bin', 2), self.shard('d.bin', 3)
        self.run_train(config, 'train.max_steps=9')

    def test_moved_files_are_the_same_data(self):
        self.shards(a=1, b=2)
        config = self.config()
        self.run_train(config, 'train.max_steps=9', 'run.dir=whole')
        self.run_train(config)
        moved = self.folder / 'moved'
        moved.mkdir()
        (self.folder / 'data' / 'a.bin').rename(moved / 'x.bin')
        (self.folder / 'data' / 'b.bin').rename(moved / 'y.bin')
        self.run_train(config, f'data.train={moved}/*.bin', 'train.max_steps=9')
        self.assertEqual(self.curve(), self.curve('whole'))
        self.assertEqual(self.final_state(), self.final_state('whole'))

    def test_accepted_data_starts_a_new_recorded_order(self):
        """The bits do not depend on how often the run is resumed afterwards, or on the flag then."""
        self.shards(a=1, b=2)
        config = self.config(train={'max_steps': 6})
        self.run_train(config)
        self.shards(c=3)
        shutil.copytree(self.folder / 'run', self.folder / 'again')
        process = self.run_train(config, 'train.max_steps=12', 'checkpoint.accept_new_data=true')
        for part in 'data.train has changed', 'now 3 of 12000', 'shard 3 (c.bin) is new', 'From step 6 on':
            self.assertIn(part, process.error)
        orders = self.record()['orders']
        self.assertEqual([(o['step'], o['shards'], o['tokens']) for o in orders], [(0, 2, 8000), (6, 3, 12000)])
        self.assertEqual([o['step'] for o in self.record(checkpoint=5)['orders']], [0])
        again = f'run.dir={self.folder / "again"}'
        self.run_train(config, again, 'train.max_steps=8', 'checkpoint.accept_new_data=true')
        process = self.run_train(config, again, 'train.max_steps=12')
        self.assertNotIn('has changed', process.error)
        self.assertEqual(self.curve('again'), self.curve())
        self.assertEqual(self.final_state('again'), self.final_state())
        # The order differs from that of a run with all three shards from the start.
        self.run_train(config, 'run.dir=fresh', 'train.max_steps=12')
        self.assertNotEqual(self.curve('fresh')[6:], self.curve()[6:])

    def test_unshuffled_data_restarts_at_its_first_token(self):
        self.shards(a=1)
        config = self.config(data={'shuffle': False}, train={'max_steps': 2, 'micro_batch_size': 1})
        self.run_train(config)
        tokens = [k % 61 for k in range(4000)]
        tokens[32] = 61  # beyond the vocabulary: the target that ends the first sequence
        write_shard(self.folder / 'data' / 'a.bin', tokens)
        self.refuses(config, 'train.max_steps=4', 'checkpoint.accept_new_data=true', says=['token 32'])

    def test_evaluation_data_may_change(self):
        self.shards(a=1)
        val = self.folder / 'val.bin'
        write_shard(val, pseudo_random_tokens(500, 61, seed=2))
        config = self.config(data={'val': str(val)})
        self.assertNotIn('has changed', self.run_train(config).error)
        write_shard(val, pseudo_random_tokens(500, 61, seed=3))
        self.assertIn('data.val has changed', self.run_train(config, 'train.max_steps=7').error)
        self.assertNotIn('data.val has changed', self.run_train(config, 'train.max_steps=8').error)

    def test_a_change_among_thousands_of_shards(self):
        names = [f's{n:04d}' for n in range(1500)]
        for name in names:
            self.shard(f'{name}.bin', 1, n=70)
        config = self.config(checkpoint={'every': 0})
        self.run_train(config)
        self.assertEqual(len(self.record()['train']['entries']), 750)
        self.shard('s1001.bin', 2, n=70)
        self.refuses_resume(config, 'now 1500 of 105000', 'at least one of shards 1001 to 1002 (s1000.bin, ...) has changed')


@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
class Ranks(DataCase):
    def test_ranks_that_see_other_data_of_the_same_size(self):
        for name, seed in (('here', 5), ('there', 6)):
            self.shards(folder=name, a=1, b=seed)
        config = self.ranks_config(data={'train': '*.bin'})
        words = []
        for name in 'here', 'there':
            words += [':', '-n', 1, '--wdir', self.folder / name, harness.TRAIN, config]
        process = self.finish(self.start_mpirun(*words[1:]), 2)
        self.assertEqual(process.error.count('train: error:'), 1, process.error)
        self.assertIn('rank 1: data.train', process.error)
        self.assertIn('shard 2 (b.bin) differs', process.error)

    def test_ranks_with_other_weights_to_begin_with(self):
        """Weights of the same sizes: each rank would read its part of the model from another one."""
        config = self.tiny_config(train={'max_steps': 1})
        for name, seed in ('here', 1), ('there', 2):
            (self.folder / name).mkdir()
            self.run_train(config, f'run.dir={self.folder / name / "first"}', f'train.seed={seed}')
            self.run_train('export', f'{name}/first', '--to', 'hf', f'{name}/hf', '--tokenizer', 'none')
            self.run_train('export', f'{name}/first', '--to', 'gguf', f'{name}/gguf', '--tokenizer', 'none')
        for weights, file in (('first', 'manifest.json'), ('hf', 'model.safetensors'), ('gguf', 'model.gguf')):
            for there, code in ('there', 2), ('here', 0):
                with self.subTest(weights=weights, there=there):
                    words = []
                    for folder in 'here', there:
                        words += [':', '-n', 1, '--wdir', self.folder / folder, harness.TRAIN, config, f'model.init_from={weights}']
                    error = self.finish(self.start_mpirun(*words[1:]), code).error
                    if code:
                        self.assertRegex(error, r'rank 1: model.init_from: \S*/there/' + weights + r'/\S*' + file + r' has \d+ '
                                         r'bytes, checksum \w+, but on rank 0 \(\S+\) it has \d+ bytes, checksum \w+;')
                    else:
                        shutil.rmtree(self.folder / 'run')

    def test_files_that_one_rank_lacks_are_named_first(self):
        """Not what would be derived from them: the vocabulary of the shards, the validation data beside them."""
        text = self.folder / 'text.txt'
        text.write_text('to be or not to be\n' * 400)
        self.run_train('tokenizer', 'train', text, '--vocab-size', 262, '--out', 'my.tiktoken')
        for name in 'here', 'there':
            self.run_train('tokenize', text, '--tokenizer', 'my.tiktoken', '--split', 0.2, '--shard-tokens', 1500, '--out',
                           f'{name}/shards')
            (self.folder / name / 'my.tiktoken').write_bytes((self.folder / 'my.tiktoken').read_bytes())
            (self.folder / name / 'task.jsonl').write_text('{"text": "to be or not"}\n')
        config = json.loads(self.tiny_config(data={'train': 'shards/train-*.bin', 'tokenizer': 'my.tiktoken'},
                                             eval={'tasks': 'lambada=task.jsonl'}).read_text())
        del config['model']['vocab_size']
        (self.folder / 'tiny.json').write_text(json.dumps(config))

        def run(code, *folders):
            words = []
            for folder in folders:
                words += [':', '-n', 1, '--wdir', self.folder / folder, harness.TRAIN, self.folder / 'tiny.json']
            process = self.finish(self.start_mpirun(*words[1:]), code)
            self.assertEqual(process.error.count('train: error:'), code // 2, process.error)
            return process.error

        run(0, 'here', 'there')
        host, there = socket.gethostname(), self.folder / 'there'
        for option, name in (('data.train', 'shards/train-00000.bin'), ('data.train', 'shards/train-00001.bin'),
                             ('data.val', 'shards/val-00000.bin'), ('data.tokenizer', 'my.tiktoken'), ('eval.tasks', 'task.jsonl')):
            with self.subTest(name=name):
                kept = (there / name).read_bytes()
                (there / name).unlink()
                self.assertIn(f'rank 1: {option}: {host}:{there / name} is missing, but on rank 0 ({host}) it is there',
                              run(2, 'here', 'there'))
                if name in ('shards/train-00000.bin', 'shards/val-00000.bin'):
                    self.assertIn(f'rank 1: {option}: {host}:{self.folder / "here" / name} is there, but on rank 0 '
                                  f'({host}) it is missing', run(2, 'there', 'here'))
                (there / name).write_bytes(kept)
        shutil.rmtree(self.folder / 'run')
        for name in 'here', 'there':  # on neither: as with one rank
            for shard in (self.folder / name / 'shards').glob('train-*'):
                shard.unlink()
        self.assertIn('data.train: no file matches shards/train-*.bin', run(2, 'here', 'there'))


class Tokenizers(DataCase):
    """Ids mean nothing to another tokenizer: shards and checkpoints record theirs, and a mismatch is refused by name."""
    texts = {'a': 'the quick brown fox jumps over the lazy dog. ', 'b': 'pack my box with five dozen liquor jugs; '}

    def setUp(self):
        super().setUp()
        for name, sentence in self.texts.items():
            (self.folder / f'{name}.txt').write_text(sentence * 100)
            self.run_train('tokenizer', 'train', f'{name}.txt', '--vocab-size', 265, '--out', f'{name}.tiktoken')
            self.run_train('tokenize', 'a.txt', '--tokenizer', f'{name}.tiktoken', '--split', 0.2, '--out', name)

    def config(self, train='a', **data):
        data = {'train': str(self.folder / train / 'train-*.bin'), 'tokenizer': str(self.folder / 'a.tiktoken'), **data}
        return self.tiny_config(data=data, model={'vocab_size': 265}, train={'max_steps': 2}, checkpoint={'every': 1})

    def test_another_tokenizer_is_refused(self):
        config = self.config()
        self.run_train(config)
        manifest = json.loads((self.checkpoints()[-1] / 'manifest.json').read_text())
        meta = json.loads((self.folder / 'a' / 'meta.json').read_text())
        self.assertEqual(manifest['tokenizer_xxh3'], meta['tokenizer_xxh3'])
        self.assertIn(f'a.tiktoken (265 ids, checksum {meta["tokenizer_xxh3"]})',
                      self.run_train('inspect', 'a/train-00000.bin').out)
        other = json.loads((self.folder / 'b' / 'meta.json').read_text())['tokenizer_xxh3']
        self.assertNotEqual(other, meta['tokenizer_xxh3'])
        before = self.curve(), self.final_state()
        shutil.move(self.folder / 'a.tiktoken', self.folder / 'kept')
        shutil.copy(self.folder / 'b.tiktoken', self.folder / 'a.tiktoken')  # the same path and size
        self.refuses(config, 'train.max_steps=4', says=[
            'data.tokenizer', 'up to step 2', f'it was a.tiktoken (265 ids, checksum {meta["tokenizer_xxh3"]})',
            f'now it is a.tiktoken (265 ids, checksum {other})', 'another run.dir'])
        self.refuses('eval', 'run', '--data', 'b/val-*.bin', says=['b/val-00000.bin', 'b.tiktoken', other])
        self.refuses('generate', 'run', '--tokenizer', 'b.tiktoken',
                     says=['b.tiktoken is not the tokenizer of run', other, "the model's is the checkpoint's (265 ids"])
        self.assertEqual((self.curve(), self.final_state()), before)
        self.run_train(config, 'train.max_steps=4', 'data.tokenizer=')  # the checkpoint has a copy
        manifest = json.loads((self.checkpoints()[-1] / 'manifest.json').read_text())
        self.assertEqual((manifest['step'], manifest['tokenizer_xxh3']), (4, meta['tokenizer_xxh3']))

    def test_what_does_not_belong_together_is_refused(self):
        self.refuses(self.config(train='b'), says=['data.train was tokenized with b.tiktoken', 'is a.tiktoken (265 ids'])
        self.refuses(self.config(val=str(self.folder / 'b' / 'val-*.bin')),
                     says=['data.train was tokenized with a.tiktoken', 'data.val with b.tiktoken'])
        self.refuses(self.config(tokenizer=''), 'model.vocab_size=260',
                     says=['data.train', 'a.tiktoken (265 ids', 'model.vocab_size 260'])
        both = [str(self.folder / name / 'train-00000.bin') for name in 'ab']
        self.refuses(self.config(), f'data.train={json.dumps(both)}',
                     says=['a/train-00000.bin was tokenized with a.tiktoken', 'b/train-00000.bin with b.tiktoken'])

    @unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
    def test_ranks_with_different_tokenizers(self):
        write_shard(self.folder / 'data.bin', pseudo_random_tokens(4000, 265))  # records no tokenizer
        config = self.config(train='.', tokenizer='t.tiktoken')
        words = []
        for name in 'ab':
            folder = self.folder / f'rank-{name}'
            folder.mkdir()
            shutil.copy(self.folder / f'{name}.tiktoken', folder / 't.tiktoken')
            words += [':', '-n', 1, '--wdir', folder, harness.TRAIN, config, f'data.train={self.folder / "data.bin"}',
                      'train.train_batch_size=4', 'run.threads=1']
        process = self.finish(self.start_mpirun(*words[1:]), 2)
        self.assertEqual(process.error.count('train: error:'), 1, process.error)
        self.assertIn('rank 1: the tokenizer is t.tiktoken (265 ids', process.error)
        self.assertIn('on rank 0', process.error)

    def test_validation_on_training_data_is_warned_of(self):
        shutil.copy(self.folder / 'a' / 'train-00000.bin', self.folder / 'copy.bin')
        warned = 'data.val holds training data: copy.bin has the contents of train-00000.bin'
        process = self.run_ranks(2, self.config(val=str(self.folder / 'copy.bin')),
                                 'train.train_batch_size=4', 'run.threads=1')
        self.assertEqual(process.error.count(warned), 1, process.error)
        process = self.run_train(self.config(val=str(self.folder / 'a' / 'val-*.bin')), 'run.dir=other')
        self.assertNotIn('holds training data', process.error)


if __name__ == '__main__':
    unittest.main()
