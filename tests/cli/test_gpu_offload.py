"""Runs on the (simulated) GPU with optimizer states and parameters in host memory."""
import json
import shutil
import signal
import unittest

import harness
from harness import pseudo_random_tokens, write_shard
from test_gpu import GpuCase, HOST, PADDING, PARAMS, RATIO, SIMULATED, STAGE, reordered


class Offload(GpuCase):
    """Optimizer states and parameters on the host: the same bits as without offload, and memory as planned."""

    def config(self, **sections):
        train = {'max_steps': 4, 'train_batch_size': 4, 'gradient_clipping': 2.15, **sections.pop('train', {})}
        model = {'n_layer': 3, 'n_embd': 64, 'vocab_size': 300, **sections.pop('model', {})}
        # With this threshold, stage 3 gathers and releases matrices, and keeps vectors on every rank.
        stage = {'stage3_param_persistence_threshold': 1000, **sections.pop('zero_optimization', {})}
        return self.ranks_config(device='cuda', train=train, model=model, zero_optimization=stage, **sections)

    def results(self):
        """The results of a run: curve, evaluations, samples and last checkpoint."""
        lines = map(json.loads, (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines())
        samples = {path.name: path.read_bytes() for path in (self.folder / 'run' / 'samples').glob('*')}
        return self.curve(), [entry for entry in lines if 'val_loss' in entry], samples, self.final_state()

    def same_bits(self, config, ranks, variants):
        """Each variant (a seed for reordered(), then overrides) gives the results of the first."""
        first, memory = None, []
        for seed, *overrides in variants:
            with self.subTest(ranks=ranks, overrides=overrides, seed=seed):
                self.run_ranks(ranks, config, *overrides, environment=reordered(seed))
                here = self.results()
                first = first or here
                self.assertEqual(here, first)
                for step in self.metrics():
                    self.assertEqual(step['comm_bytes'], step['comm_planned_bytes'])
                    self.assertEqual(step['comm_calls'], step['comm_planned_calls'])
                    self.assertEqual(step['model_memory'], step['model_memory_planned'])
                    self.assertLess(abs(step['device_bytes'] - step['device_planned_bytes']), PADDING)
                memory.append(self.metrics()[-1]['device_planned_bytes'])
            shutil.rmtree(self.folder / 'run', ignore_errors=True)
        return memory

    def test_average(self):
        """train.ema and schedule-free AdamW: evaluated weights replace the latest ones wherever those are."""
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(481, 61, seed=2))
        train = {'max_steps': 2, 'eval_every': 1, 'eval_steps': 1, 'gradient_clipping': 0}
        for compute, averages in (('fp32', {'ema': {'type': 'exponential', 'decay': 0.75}}), ('bf16', {'ema': {'type': 'exponential', 'decay': 0.5}}),
                                  ('fp32', {}))[:3 if harness.FULL else 1]:
            config = self.config(precision={'compute': compute}, train={**train, **averages}, data={'val': str(self.folder / 'val.bin')},
                                 optimizer={'type': 'adamw' if averages else 'schedulefree_adamw'}, model={'n_layer': 1, 'n_embd': 32})
            self.same_bits(config, 1, ((0,), (1, HOST, RATIO + '0.5'), (3, HOST, PARAMS, STAGE + '3')))

    def test_one_rank(self):
        for compute in ('fp32', 'bf16') if harness.FULL else ('fp32',):  # test_ranks has bf16
            config = self.config(precision={'compute': compute})
            memory = self.same_bits(config, 1, (
                (0,), (1, HOST), (2, HOST, RATIO + '0.3'), (0, HOST, RATIO + '0'),
                (1, HOST, 'zero_optimization.stage=2'), (2, HOST, RATIO + '0.5', 'zero_optimization.stage=2'),
                (3, HOST, PARAMS, 'zero_optimization.stage=3'),
                (2, HOST, PARAMS, 'zero_optimization.stage=3', 'zero_optimization.stage3_param_persistence_threshold=0',
                 'zero_optimization.stage3_prefetch_bucket_size=0'),
                (1, HOST, PARAMS, STAGE + '3', 'recompute=block'),
                (3, HOST, PARAMS, STAGE + '3', 'zero_optimization.stage3_param_persistence_threshold=0'),
                (1, HOST, RATIO + '0.01', STAGE + '2')))  # none of the last unit is on the host
            self.assertLess(memory[1], memory[2])
            self.assertLess(memory[2], memory[3])

    def test_accumulated_micro_batches(self):
        config = self.config(train={'micro_batch_size': 1, 'gradient_accumulation_steps': 0})
        every = 'zero_optimization.reduce_every_micro_batch=true'
        self.same_bits(config, 1, (
            (0, every), (1, every, HOST), (2, HOST, 'zero_optimization.stage=2'),
            (3, HOST, STAGE + '3'), (1, HOST, RATIO + '0.6', STAGE + '3', 'recompute=attention'),
            (3, HOST, RATIO + '0.4', 'zero_optimization.stage=2'), (1, HOST, PARAMS, 'zero_optimization.stage=3'),
            (2, HOST, RATIO + '0.7', 'zero_optimization.stage=1', every)))

    def test_ranks(self):
        small = ('zero_optimization.reduce_bucket_size=5001', 'zero_optimization.allgather_bucket_size=7001')
        config = self.config(precision={'compute': 'bf16'})
        for ranks, every in (2, 1), (4, 1 if harness.FULL else 4):  # each fourth variant on four ranks
            self.same_bits(config, ranks, (
                (0,), (1, HOST), (2, HOST, RATIO + '0.3', 'zero_optimization.stage=1', *small),
                (3, HOST, 'zero_optimization.stage=2'),
                (1, HOST, PARAMS, 'zero_optimization.stage=3', *small),
                (2, HOST, PARAMS, 'zero_optimization.stage=3', 'zero_optimization.overlap_comm=false'),
                (3, HOST, PARAMS, STAGE + '3', 'zero_optimization.stage3_param_persistence_threshold=100000'),
                (4, HOST, PARAMS, STAGE + '3', 'zero_optimization.stage3_param_persistence_threshold=0'),
                (3, STAGE + '3', 'recompute=block', *small),
                (1, HOST, PARAMS, STAGE + '3', 'recompute=block'),
                (3, HOST, PARAMS, STAGE + '3', 'zero_optimization.stage3_param_persistence_threshold=0',
                 *small),
                (3, HOST, RATIO + '0.6', 'zero_optimization.stage=2', *small))[::every])

    def test_optimizers_and_state_dtypes(self):
        for optimizer, state in ('lion', 'fp32'), ('sgd', 'bf16'), ('adam', 'int8'), ('adamw', 'int8'):
            config = self.config(optimizer={'type': optimizer, 'state_dtype': state}, precision={'compute': 'bf16'})
            with self.subTest(optimizer=optimizer, state=state):
                self.same_bits(config, 1, ((0,), (1, HOST, 'zero_optimization.stage=1'),
                                           (2, HOST, RATIO + '0.3', 'zero_optimization.stage=2')))

    def test_frozen_tensors(self):
        """No step writes them, on the GPU or on the host."""
        frozen = [{'match': ['wte.*', 'h.1.mlp.*', '*.attn.c_proj.weight'], 'freeze': True}, {'match': '*.bias', 'lr': 1e-3}]
        config = self.config(optimizer={'groups': frozen}, precision={'compute': 'bf16'}, train={'gradient_clipping': 1.6})
        memory = self.same_bits(config, 1, (
            (0,), (1, HOST, PARAMS, STAGE + '3'), (2, HOST, RATIO + '0.4', STAGE + '1'),
            (3, HOST, RATIO + '0.7', STAGE + '2')))
        self.assertLess(memory[1], memory[0])

    def test_backward_that_ends_early(self):
        """Units without gradients, at the bottom and in the middle, over micro-batches; checkpoints of activations too."""
        frozen = {'match': ['wte', 'wpe', 'h.0.*', 'h.2'], 'freeze': True}
        config = self.config(model={'n_layer': 5}, optimizer={'groups': [frozen]}, precision={'compute': 'bf16'},
                             train={'micro_batch_size': 1, 'gradient_accumulation_steps': 0, 'ema': {'type': 'exponential'}})
        every, activations = 'zero_optimization.reduce_every_micro_batch=true', ('recompute=block', 'offload_activations=cpu')
        self.same_bits(config, 1, (
            (0, every), (1, HOST, STAGE + '2'), (2, HOST, STAGE + '3'), (3, HOST, RATIO + '0.4', STAGE + '2'),
            (1, HOST, PARAMS, STAGE + '3'), (2, HOST, PARAMS, *activations, STAGE + '3'), (3, every, *activations),
            (4, HOST, RATIO + '0.6', *activations, STAGE + '2')))
        self.same_bits(config, 2, (
            (0, every), (2, HOST, STAGE + '2'), (3, HOST, PARAMS, *activations, STAGE + '3')))
        layer = 'zero_optimization.partition=layer'
        self.same_bits(config, 2, ((0, every, layer), (4, HOST, PARAMS, layer, STAGE + '3'), (1, HOST, layer, STAGE + '2')))

    def test_steps_that_overflow_are_discarded(self):
        config = self.config(precision={'compute': 'fp16'}, fp16={'initial_scale_power': 30},
                             train={'max_steps': 12, 'overfit_one_batch': True})
        self.same_bits(config, 1, (
            (0,), (3, HOST), (2, HOST, PARAMS, STAGE + '3')))

    def test_resuming_with_another_placement(self):
        for state in 'fp32', 'int8':
            config = self.config(optimizer={'state_dtype': state}, precision={'compute': 'bf16'},
                                 checkpoint={'every': 1, 'keep': 0})
            self.run_train(config, 'run.dir=whole')
            for overrides in (HOST,), (HOST, PARAMS, 'zero_optimization.stage=3'):
                run = self.copy_until(2, 'whole', 'resumed')
                self.run_train(config, f'run.dir={run}', *overrides)
                self.assertEqual(self.curve(run.name), self.curve('whole'))
                self.assertEqual(self.final_state(run.name), self.final_state('whole'))
                self.remove_run(run.name)
            self.remove_run('whole')

    def test_ranks_that_own_nothing(self):
        """Partition "layer": three whole units on four ranks."""
        config = self.config(model={'n_layer': 1}, zero_optimization={'partition': 'layer'}, precision={'compute': 'bf16'})
        self.same_bits(config, 4, (
            (0,), (1, HOST, STAGE + '1'), (2, HOST, RATIO + '0.5', STAGE + '2'),
            (3, HOST, PARAMS, STAGE + '3')))

    def test_evaluations_and_samples_between_steps(self):
        config = self.config(data={'tokenizer': 'bytes', 'val': str(self.folder / 'tokens.bin')},
                             train={'eval_every': 1, 'eval_steps': 3, 'sample_every': 2, 'sample_tokens': 6})
        for ranks in (1, 2) if harness.FULL else (2,):
            self.same_bits(config, ranks, (
                (0,), (1, HOST), (3, HOST, PARAMS, STAGE + '3')))

    def test_stopping_and_resuming_with_another_placement(self):
        config = self.config(train={'max_steps': 1000000, 'micro_batch_size': 1, 'gradient_accumulation_steps': 0},
                             scheduler={'type': 'constant'})
        steps = 0
        for seed, *overrides in (1, HOST, PARAMS, STAGE + '3'), (2, HOST, RATIO + '0.5', STAGE + '2'):
            process = self.start(config, *overrides, environment=reordered(seed))
            self.wait_for_steps(steps + 2)
            process.send_signal(signal.SIGTERM)
            self.finish(process, 128 + signal.SIGTERM)
            steps = len(self.curve())
        self.run_train(config, f'train.max_steps={steps}', STAGE + '2', 'run.dir=whole')
        self.assertEqual(self.curve(), self.curve('whole'))
        self.assertEqual(self.final_state(), self.final_state('whole'))

    def fails_cleanly(self, code, says, ranks, *arguments, seed=1):
        """A run fails with one message; no work is pending when GPU memory is freed (a finding), and no rank waits forever."""
        process = self.run_ranks(ranks, *arguments, code=code, environment=reordered(seed))
        self.assertEqual(process.error.count('train: error:'), 1, process.error)
        self.assertIn(says, process.error)
        self.assertNotIn('cudasim:', process.error)

    def test_bad_data_between_micro_batches(self):
        """Copies of the previous micro-batch are still in flight; the last complete step is saved."""
        tokens = pseudo_random_tokens(4000, 61)
        tokens[(2 * 4 + 3) * 32 + 5] = 60000  # step 2, its last micro-batch
        write_shard(self.folder / 'tokens.bin', tokens)
        config = self.config(data={'shuffle': False}, train={'micro_batch_size': 1, 'gradient_accumulation_steps': 0})
        first = None
        for seed, *overrides in (0, STAGE + '2'), (3, HOST, STAGE + '2'), (6, HOST, PARAMS, STAGE + '3'):
            with self.subTest(overrides=overrides):
                self.fails_cleanly(2, 'outside the vocabulary', 1, config, *overrides, seed=seed)
                self.assertEqual(self.checkpoints()[-1].name, 'step-00000002')
                first = first or self.results()
                self.assertEqual(self.results(), first)
            self.remove_run()

    def test_runs_that_diverge(self):
        """The norm is not finite while gradient copies are in flight."""
        config = self.config(optimizer={'lr': 1e6}, scheduler={'type': 'constant', 'warmup_steps': 0}, train={'max_steps': 40})
        for ranks, seed, *overrides in (1, 3, HOST), (2, 3, HOST, PARAMS, STAGE + '3'):
            with self.subTest(ranks=ranks, overrides=overrides):
                self.fails_cleanly(1, 'the run has diverged', ranks, config, *overrides, seed=seed)
            self.remove_run()

    @unittest.skipUnless(SIMULATED, 'faults of the GPU are simulated')
    def test_faults_of_the_gpu(self):
        """One of two ranks fails within a step, with copies and reductions in flight."""
        config = self.config()
        for seed, at, *overrides in ((1, 300, HOST, STAGE + '2'), (3, 450, HOST, RATIO + '0.5', STAGE + '1'),
                                     (2, 600, HOST, PARAMS, STAGE + '3')):
            with self.subTest(overrides=overrides):
                rank = ['-n', 1, '-x', f'CUDASIM_REORDER={seed}']
                process = self.start_mpirun(*rank, harness.TRAIN, config, *overrides, ':',
                                            *rank, '-x', f'CUDASIM_FAIL={at}', harness.TRAIN, config, *overrides)
                self.finish(process, 1)
                self.assertEqual(process.error.count('train: error:'), 1, process.error)
                self.assertIn('rank 1: CUDA: ', process.error)
            self.remove_run()

    @unittest.skipUnless(SIMULATED, 'the size of the GPU is simulated')
    def test_too_little_memory_on_the_gpu(self):
        config = self.config()
        for ranks in 1, 2:
            for kibibytes in 100, 500, 800:
                with self.subTest(ranks=ranks, kibibytes=kibibytes):
                    process = self.run_ranks(ranks, config, HOST, PARAMS, STAGE + '3', code=1,
                                             environment={'CUDASIM_MEMORY': f'{kibibytes}K', **reordered(1)})
                    self.assertIn('GPU memory', process.error)
                    self.assertNotIn('cudasim:', process.error)
