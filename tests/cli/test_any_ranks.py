"""A run with logical ranks has the same bits on any number of ranks: losses, norms, evaluations and weights."""
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess

import harness
from harness import pseudo_random_tokens, release_only, write_shard
from test_ranks import RankCase

STAGE, EVERY = 'zero_optimization.stage=', 'zero_optimization.reduce_every_micro_batch=true'
LOGICAL = 'train.logical_ranks='


class AnyRanksCase(RankCase):
    def config(self, **sections):
        """Two micro-batches per logical rank and step on 4 logical ranks, with evaluations."""
        if not (self.folder / 'val.bin').exists():
            write_shard(self.folder / 'val.bin', pseudo_random_tokens(1500, 61, seed=2))
        train = {'train_batch_size': 16, 'micro_batch_size': 2, 'gradient_accumulation_steps': 0, 'logical_ranks': 4,
                 'max_steps': 6, 'eval_every': 3, **sections.pop('train', {})}
        data = {'val': str(self.folder / 'val.bin'), **sections.pop('data', {})}
        return self.ranks_config(train=train, data=data, checkpoint={'every': 0, **sections.pop('checkpoint', {})},
                                 scheduler={'type': 'constant', 'warmup_steps': 2}, **sections)

    def results(self, run='run'):
        """Curve and evaluations as printed in full, and a digest of the weights, if the family can be exported."""
        lines = list(map(json.loads, (self.folder / run / 'metrics.jsonl').read_text().splitlines()))
        for step in self.metrics(run):
            self.assertEqual([step[name] for name in ('comm_bytes', 'comm_calls', 'model_bytes')],
                             [step[name] for name in ('comm_planned_bytes', 'comm_planned_calls', 'model_planned_bytes')])
        model, weights = self.folder / f'{run}-model', None
        if json.loads((self.folder / run / 'config.json').read_text())['model'].get('family') != 'modern':
            self.run_train('export', self.folder / run, '--to', 'hf', model, '--force')
            weights = hashlib.sha256((model / 'model.safetensors').read_bytes()).hexdigest()
        return (self.curve(run), [entry['noise_scale'] for entry in lines if 'noise_scale' in entry],
                [entry['val_loss'] for entry in lines if 'val_loss' in entry], weights)

    def on(self, ranks, config, *arguments):
        """The results of a new run."""
        shutil.rmtree(self.folder / 'run', ignore_errors=True)
        self.run_ranks(ranks, config, *arguments)
        return self.results()

    def equal(self, config, variants, *common):
        """Each variant (ranks, then arguments) gives the results of the first."""
        first = None
        for ranks, *arguments in variants:
            with self.subTest(ranks=ranks, arguments=arguments):
                results = self.on(ranks, config, *arguments, *common)
                first = first or results
                self.assertEqual(results, first)
        return first


class LogicalRanks(AnyRanksCase):
    def test_orders_of_summation(self):
        config = self.config(train={'logical_ranks': 8, 'train_batch_size': 32})
        once = self.equal(config, ((8, f'{STAGE}0'), (2, f'{STAGE}1'), (1, f'{STAGE}0'), (4, f'{STAGE}1')))
        every = self.equal(config, ((8, f'{STAGE}3'), (4, f'{STAGE}2'), (1, f'{STAGE}3'), (2, f'{STAGE}0', EVERY),
                                    (1, f'{STAGE}1', EVERY)))
        self.assertNotEqual(once, every)
        self.assertNotEqual(once, self.on(2, config, f'{STAGE}1', f'{LOGICAL}2'))

    def test_odd_numbers(self):
        """6 logical ranks on 6, 2 and 1 ranks; 3 on 3 and 1: the tree is not balanced."""
        config = self.config(train={'train_batch_size': 24, 'micro_batch_size': 2})
        for logical, ranks in ((6, (6, 2, 1)), (3, (3, 1))):
            for stage in (1, 2):
                self.equal(config, [(n, f'{STAGE}{stage}') for n in ranks], f'{LOGICAL}{logical}')

    @release_only('the tests above run the code with sanitizers')
    def test_features(self):
        """Each feature on 4 logical ranks: 4 ranks, then fewer, with another stage, partition and number of threads."""
        features = {
            'muon': {'optimizer': {'type': 'muon', 'lr': 0.01}},
            'lion': {'optimizer': {'type': 'lion', 'lr': 0.001}},
            'int8 moments': {'optimizer': {'state_dtype': 'int8'}},
            'llama': {'model': {'family': 'llama', 'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'vocab_size': 61, 'n_positions': 32}},
            'modern': {'model': {'family': 'modern', 'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'vocab_size': 61, 'n_positions': 32}},
            'bf16': {'precision': {'compute': 'bf16'}},
            'bf16 communication': {'communication_data_type': 'bf16'},
            'fp16, skipped steps': {'precision': {'compute': 'fp16'}, 'fp16': {'initial_scale_power': 24}},
            'schedule of batches': {'train': {'batch_size_schedule': [[0, 16], [3, 32]], 'train_batch_size': 0}},
            'dropout': {'train': {'dropout': 0.1}},
            'documents': {'data': {'mask_documents': True, 'tokenizer': 'bytes'}, 'model': {'vocab_size': 257}},
            'noise scale': {'train': {'noise_scale_every': 1}},
            'frozen tensors': {'optimizer': {'groups': [{'match': ['wte', 'h.0.*'], 'freeze': True}]}},
            'ema': {'train': {'ema': {'type': 'exponential', 'decay': 0.9}}},
        }
        for k, (name, sections) in enumerate(features.items()):
            every = k % 2
            with self.subTest(feature=name):
                config = self.config(**{key: dict(value) if isinstance(value, dict) else value for key, value in sections.items()})
                stages = (2, 3) if every else (0, 1)
                self.equal(config, ((4, f'{STAGE}{stages[0]}'),
                                    (1 + k % 2, f'{STAGE}{stages[1]}', 'zero_optimization.partition=tensor', 'run.threads=2')))

    def test_a_run_moves(self):
        """8 -> 2 -> 1 -> 4 ranks without an option, and the batch derived from train_batch_size alone."""
        config = self.config(train={'logical_ranks': 0, 'train_batch_size': 32, 'micro_batch_size': 0, 'max_steps': 8})
        for stage in ((0, 1, 0, 1), (2, 3, 3, 2)):
            whole = self.on(8, config, f'{STAGE}{stage[0]}')
            shutil.rmtree(self.folder / 'run')
            for until, ranks, at in zip((2, 4, 6, 8), (8, 2, 1, 4), stage):
                error = self.run_ranks(ranks, config, f'train.max_steps={until}', f'{STAGE}{at}').error
                if until > 2:
                    self.assertIn('results are equal to the last bit', error)
            # Each part ends with an evaluation, so only curves and weights are compared.
            moved = self.results()
            self.assertEqual((moved[0], moved[3]), (whole[0], whole[3]))

    def test_the_batch_belongs_to_the_run(self):
        config = self.config(train={'micro_batch_size': 0})
        self.equal(config, ((1, f'{STAGE}2'), (4, f'{STAGE}2')))

    def test_what_cannot_be(self):
        config = self.config()
        for ranks, logical, batch, way in ((3, 4, 16, 'start 2 ranks'), (3, 4, 12, 'start 2 ranks, or train.logical_ranks=3'),
                                           (2, 7, 16, 'start 1 rank, or train.logical_ranks=4'), (4, 2, 16, 'start 2 ranks, or train.logical_ranks=4')):
            error = self.run_ranks(ranks, config, f'{LOGICAL}{logical}', f'train.train_batch_size={batch}', code=2).error
            self.assertEqual(error.count('train: error:'), 1, error)
            self.assertRegex(error, f'train.logical_ranks is {logical}, which {ranks} ranks cannot compute: .*; {way}\n')
        self.refuses(config, 'train.train_batch_size=20', says=('is not divisible by 4 logical ranks x train.micro_batch_size 2',
                                                                'choose a multiple of 8, or train.logical_ranks=2'))
        self.refuses(config, 'train.batch_size_schedule=[[0, 16], [3, 20]]',
                     says=('batch size 20, which is not divisible by 4 logical ranks x train.micro_batch_size 2',
                           'choose a multiple of 8, or train.logical_ranks=2'))
        self.refuses(config, 'train.micro_batch_size=0', 'train.gradient_accumulation_steps=2',
                     says='each of 1 rank computes 4 of 4 logical ranks')
        self.run_train(config, 'train.max_steps=2')
        self.refuses(config, f'{LOGICAL}2', says='train.logical_ranks was 4 and is now 2')
        self.refuses(config, 'train.micro_batch_size=1', says='micro-batches of 2 sequences before, of 1 now')
        self.refuses(config, f'{STAGE}2', says='gradients reduced once per step before, after every micro-batch now')
        error = self.run_train(config, f'{LOGICAL}2', 'checkpoint.resume_with=train.logical_ranks', 'train.max_steps=3').error
        self.assertIn('up to rounding, as sums are added in another order (4 logical ranks before, 2 now)', error)

    def test_resumes_that_are_equal_up_to_rounding(self):
        """Where the number of logical ranks is left open, and cannot be kept: the sums are added in another order, which is said."""
        config = self.config(train={'logical_ranks': 0, 'train_batch_size': 24, 'max_steps': 4})
        says = 'results are equal up to rounding, as sums are added in another order '
        self.run_ranks(4, config, 'train.max_steps=2', 'train.micro_batch_size=1')
        error = self.run_ranks(2, config, 'train.max_steps=3', 'train.micro_batch_size=2').error
        self.assertNotIn('up to rounding', error.replace(says + '(micro-batches of 1 sequences before, of 2 now)', ''))
        self.assertIn(says + '(4 logical ranks before, 3 now, and micro-batches of 2 sequences before, of 1 now)',
                      self.run_ranks(3, config, 'train.micro_batch_size=1').error)


class Memory(AnyRanksCase):
    """A run of 4 logical ranks, where memory is enough for fewer. The limit lies between the planned bytes."""

    def setUp(self):
        super().setUp()
        self.library = self.folder / 'memory_left.so'
        subprocess.run(['cc', '-shared', '-fPIC', '-o', self.library, harness.ROOT / 'tests' / 'cli' / 'memory_left.c', '-ldl'], check=True)

    def left(self, config, fits, ranks, *arguments):
        """Memory of a machine on which a run fits with this number of logical ranks, but not with the next."""
        needs = []
        for logical in fits, 2 * fits:
            plan = json.loads(self.run_train('plan', config, f'{LOGICAL}{logical}', *arguments, '--ranks', ranks, '--json').out)['plans'][0]
            needs.append(next(stage['total'] for stage in plan['stages'] if stage['configured']))
        self.assertLess(needs[0] + 8192, needs[1])
        return {'LD_PRELOAD': str(self.library), 'MEMORY_LEFT': str(ranks * sum(needs) // 2 // 1024)}

    @release_only('LogicalRanks has runs that go on up to rounding')
    def test_too_little_for_the_partial_sums(self):
        config = self.config(train={'logical_ranks': 0})
        for stage in 0, 2:
            with self.subTest(stage=stage):
                at = f'{STAGE}{stage}'
                self.run_ranks(4, config, at, 'train.max_steps=2')
                error = self.run_ranks(1, config, at, 'train.max_steps=3', environment=self.left(config, 2, 1, at)).error
                self.assertIn('up to rounding, as sums are added in another order (4 logical ranks before, 1 now, for lack of memory)', error)
                error = self.run_ranks(1, config, at).error  # the run has one logical rank now
                self.assertNotIn('up to rounding', error)
                for step in self.metrics():
                    self.assertEqual(step['model_memory'], step['model_memory_planned'])
                shutil.rmtree(self.folder / 'run')

    @release_only('LogicalRanks has runs that are refused')
    def test_a_given_number_is_refused(self):
        config = self.config(train={'train_batch_size': 32, 'logical_ranks': 8, 'max_steps': 1})
        for ranks, fits in ((1, 4), (1, 2), (2, 4)):
            with self.subTest(ranks=ranks, fits=fits):
                environment = self.left(config, fits, ranks)
                error = self.run_ranks(ranks, config, code=2, environment=environment).error
                self.assertEqual(error.count('train: error:'), 1, error)
                self.assertIn(f'train.logical_ranks is 8, and {"1 rank lacks" if ranks == 1 else "2 ranks lack"} the memory for so many partial '
                              f'sums of gradients; start more ranks, or choose train.logical_ranks={fits}', error)
                self.run_ranks(ranks, config, f'{LOGICAL}{fits}', environment=environment)
                shutil.rmtree(self.folder / 'run')


class RandomWalks(AnyRanksCase):
    """A random configuration, straight on as many ranks as it has logical ranks, against a walk over random numbers of
    ranks, threads, stages and partitions, with kills. No bit differs. ZERO_WALK_SEED=N repeats the walk of one seed."""

    def draw_config(self, draw):
        logical, micro = draw.choice((2, 3, 4, 4, 6, 8)), draw.choice((1, 2))
        model = draw.choice(({}, {'family': 'llama'}, {'family': 'llama', 'n_kv_head': 1}))
        optimizer = draw.choice(({}, {'state_dtype': 'int8'}, {'state_dtype': 'bf16'}, {'type': 'muon', 'lr': 0.01},
                                 {'type': 'lion', 'lr': 0.001}))
        train = draw.choice(({}, {'dropout': 0.1}, {'noise_scale_every': 1}, {'ema': {'type': 'exponential', 'decay': 0.9}}))
        batch = logical * micro * draw.choice((1, 2, 3))
        if draw.random() < 0.25:
            train = dict(train, batch_size_schedule=[[0, batch], [draw.randrange(1, 8), 2 * batch]], train_batch_size=0)
        compute = draw.choice(('fp32', 'fp32', 'bf16', 'fp16'))
        self.every = draw.random() < 0.5
        config = self.config(
            train={'train_batch_size': batch, 'micro_batch_size': micro, 'logical_ranks': draw.choice((0, logical)), 'max_steps': 8,
                   'eval_every': 0, **train},
            model={'n_layer': 2, 'n_head': 2, 'n_embd': draw.choice((32, 48)), 'vocab_size': 61, 'n_positions': 32, **model},
            optimizer=optimizer, precision={'compute': compute},
            communication_data_type=draw.choice(('fp32', 'bf16')), checkpoint={'every': 1, 'keep': 2},
            fp16={'initial_scale_power': draw.choice((10, 24))} if compute == 'fp16' else {})
        return config, logical

    def variant(self, draw):
        """A stage of the run's order of sums, and what may differ beside it."""
        once = [(f'{STAGE}0',), (f'{STAGE}1',)]
        stage = draw.choice([(f'{STAGE}2',), (f'{STAGE}3',)] + [one + (EVERY,) for one in once] if self.every else once)
        return (*stage, f'run.threads={draw.choice((1, 1, 2, 3))}',
                f'zero_optimization.partition={draw.choice(("even", "layer", "tensor"))}',
                f'zero_optimization.reduce_bucket_size={draw.choice((1000, 20000, 500000000))}')

    def walk(self, draw, config, logical):
        allowed = [n for n in range(1, logical + 1) if n == logical or (logical % n == 0 and n & (n - 1) == 0)]
        step = 2  # at least the warmup, whose length is decided from the first max_steps
        self.run_ranks(logical, config, f'train.max_steps={step}', *self.variant(draw))
        while step < 8:
            arguments, ranks = self.variant(draw), draw.choice(allowed)
            done, step = step, min(8, step + draw.randrange(1, 4))
            if draw.random() < 0.3:
                process = self.start_mpirun('-n', ranks, harness.TRAIN, config, f'train.max_steps={step}', *arguments)
                self.wait_for_steps(draw.randrange(done, step))
                for pid in self.living().values():
                    os.kill(pid, signal.SIGKILL)
                process.communicate(timeout=60)
            else:
                self.run_ranks(ranks, config, f'train.max_steps={step}', *arguments)
        self.run_ranks(draw.choice(allowed), config, *self.variant(draw))

    @release_only('the tests above run the code with sanitizers')
    def test_walks(self):
        seeds = [int(os.environ['ZERO_WALK_SEED'])] if 'ZERO_WALK_SEED' in os.environ else range(1, 201 if harness.FULL else 3)
        for seed in seeds:
            draw = random.Random(seed)
            with self.subTest(seed=seed):
                config, logical = self.draw_config(draw)
                straight = self.on(logical, config, *self.variant(draw))
                shutil.rmtree(self.folder / 'run')
                self.walk(draw, config, logical)
                moved = self.results()  # each part of the walk ends with an evaluation, so these are not compared
                self.assertEqual((*moved[:2], moved[3]), (*straight[:2], straight[3]))
                shutil.rmtree(self.folder / 'run')
