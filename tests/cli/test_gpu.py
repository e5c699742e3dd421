"""Whole runs with the CUDA backend, on the simulated GPU of tests/cudasim (or, with --train, on a real one): golden
curves, resuming, ZeRO stages over MPI. The simulator can reorder the work of streams as far as CUDA's rules permit; then
a missing event changes bits."""
import itertools
import json
import os
import re
import shutil
import statistics
import unittest
from unittest import mock

import harness
import test_profile
from golden_weights import golden_weights
from harness import (CommandCase, LOW_PRECISION_TOLERANCES, golden_arguments, golden_expected, pseudo_random_tokens, relative,
                     write_shard)
from test_families import LLAMA

SIMULATED = 'cudasim' in str(harness.TRAIN)
PADDING = (64 << 10) if SIMULATED else (32 << 20)  # each arena is padded to whole allocations, which are 2 MiB on a GPU
REORDERED = [{'CUDASIM_REORDER': str(seed)} for seed in (1, 2)]


class GpuCase(CommandCase):
    def golden(self, name, *overrides, ranks=1, steps=None, environment=None):
        (self.folder / 'c.json').write_text('{}')
        arguments = ('c.json', *golden_arguments(name, ranks, steps, golden_weights(self, name)), 'device=cuda',
                     f'run.dir={self.folder / "run"}', *overrides)
        if ranks == 1:
            self.run_train(*arguments, environment=environment or {})
        else:
            self.run_ranks(ranks, *arguments, environment=environment or {})
        return self.golden_errors(name)

    def remove_run(self, run='run'):
        shutil.rmtree(self.folder / run)

    def check_plan(self, run='run'):
        for step in self.metrics(run):
            self.assertEqual(step['comm_bytes'], step['comm_planned_bytes'])
            self.assertEqual(step['comm_calls'], step['comm_planned_calls'])
            self.assertEqual(step['model_memory'], step['model_memory_planned'])
            self.assertLess(abs(step['device_bytes'] - step['device_planned_bytes']), PADDING)


class GoldenCurves(GpuCase):
    def test_fp32(self):
        for name in 'gpt2-tiny', 'gpt2-tiny-accum', 'llama-tiny', 'qwen2-tiny', 'qwen3-tiny', 'modern-tiny':
            with self.subTest(name):
                steps = len(golden_expected(name)['curve']) if harness.FULL or 'gpt2' in name else 5
                loss, norm = self.golden(name, 'precision.compute=fp32', steps=steps)
                print(f'{name} fp32 on the GPU: losses within {loss:.1e}, norms within {norm:.1e}')
                self.assertEqual(len(self.metrics()), steps)
                self.assertLessEqual(loss, 1e-6)
                self.assertLessEqual(norm, 5e-6)
                self.remove_run()

    def test_16_bit_types(self):
        names = ('gpt2-tiny', 'llama-tiny', 'qwen3-tiny', 'modern-tiny', *(('qwen2-tiny',) if harness.FULL else ()))
        for name, (compute, tolerance) in itertools.product(names, LOW_PRECISION_TOLERANCES.items()):
            with self.subTest(name=name, compute=compute):
                loss, _ = self.golden(name, f'precision.compute={compute}', steps=10 if harness.FULL or name == 'gpt2-tiny' else 4)
                print(f'{name} {compute} on the GPU: losses within {loss:.1e}')
                self.assertLessEqual(loss, tolerance)
                self.remove_run()

    def test_recomputed_blocks_and_reordered_streams_give_the_same_bits(self):
        short = 'precision.compute=bf16'
        self.golden('gpt2-tiny', short, steps=4)
        curve, state = self.curve(), self.final_state()
        for environment, overrides in ([{}, ('recompute=block',)], *([e, ()] for e in REORDERED if SIMULATED)):
            with self.subTest(environment=environment, overrides=overrides):
                self.remove_run()
                self.golden('gpt2-tiny', short, *overrides, steps=4, environment=environment)
                self.assertEqual(self.curve(), curve)
                self.assertEqual(self.final_state(), state)


class Activations(GpuCase):
    """Recomputation and activation offload: the same run in less GPU memory."""

    def test_same_bits_in_less_memory(self):
        config = self.tiny_config(device='cuda', precision={'compute': 'bf16'}, train={'max_steps': 3},
                                  model={'n_layer': 5, 'n_positions': 128})
        ways = ((), ('recompute=attention',), ('recompute=block',), ('recompute=block', 'offload_activations=cpu'))
        found = []
        for way in ways:
            for environment in (REORDERED if SIMULATED else [{}]):
                with self.subTest(way=way, environment=environment):
                    self.run_train(config, *way, environment=environment)
                    last = self.metrics()[-1]
                    found.append((self.curve(), self.final_state()))
                    self.assertEqual(found[-1], found[0])
                    self.assertEqual(last['model_memory'], last['model_memory_planned'])
                    self.assertLess(abs(last['device_bytes'] - last['device_planned_bytes']), PADDING)
                    here = last['device_planned_bytes'], last['model_memory']['activations']
                    self.remove_run()
            if way:
                self.assertLess(here[0], device)
            if 'offload_activations=cpu' in way:
                # Of 6 block inputs of 2 x 128 x 32, 4 moved to the host: the same number of bytes.
                self.assertEqual(device - here[0], 4 * 2 * 128 * 32 * 2)
                self.assertEqual(here[1], activations)
            device, activations = here

    def test_offload_without_recomputed_blocks_is_refused(self):
        self.refuses(self.tiny_config(device='cuda'), 'offload_activations=cpu', says=('offload_activations', 'recompute=block'))


class Resuming(GpuCase):
    def test_a_resumed_run_has_the_same_bits(self):
        for compute in 'fp32', 'bf16', 'fp16':
            with self.subTest(compute):
                config = self.tiny_config(device='cuda', precision={'compute': compute},
                                          checkpoint={'every': 1, 'keep': 0})
                self.run_train(config, 'run.dir=whole')
                for step in 2, 4:
                    run = self.copy_until(step, 'whole', f'resumed-{step}')
                    resumed = self.run_train(config, f'run.dir={run}')
                    self.assertNotIn('equal up to rounding', resumed.out + resumed.error)
                    self.assertEqual(self.curve(run.name), self.curve('whole'))
                    self.assertEqual(self.final_state(run.name), self.final_state('whole'))
                    self.remove_run(run.name)
                self.remove_run('whole')

    def test_resuming_on_the_other_device(self):
        config = self.tiny_config(scheduler={'type': 'constant'})
        self.run_train(config, 'run.dir=whole')
        for first, second in ('cuda', 'cpu'), ('cpu', 'cuda'):
            with self.subTest(first=first, second=second):
                run = f'{first}-{second}'
                self.run_train(config, f'device={first}', 'train.max_steps=3', f'run.dir={run}')
                resumed = self.run_train(config, f'device={second}', f'run.dir={run}')
                self.assertRegex(resumed.out + resumed.error,
                                 r'the checkpoint is of a run with .*; now with .*: results are equal up to rounding')
                for here, there in zip(self.metrics(run), self.metrics('whole')):
                    self.assertLessEqual(relative(here['loss'], there['loss']), 1e-5)


COUNTING = {'CUDASIM_COUNTS': '1', 'ZERO_MEASURE_SECONDS': '1e-9'}


@unittest.skipUnless(SIMULATED, 'host waits are counted by the simulator')
class HostWaits(GpuCase):
    """Host waits of a step, as the difference between runs of two lengths. Measuring is as short as it can be, because its
    waits depend on how busy the machine is."""

    def counted(self, config, steps, *overrides):
        run = self.run_train(config, f'train.max_steps={steps}', *overrides, environment=COUNTING)
        figures = map(int, re.search(r'cudasim: counted (\d+) launches, (\d+) graph launches, (\d+) host waits', run.error).groups())
        self.assertEqual([step['step'] for step in self.metrics()], list(range(1, steps + 1)))
        # Steps that the host finds done, such as the last one, still took the time that the device took.
        times = [step['step_ms'] for step in self.metrics()]
        self.assertGreater(min(times), statistics.median(times) / 10)
        self.remove_run()
        return tuple(figures)

    def per_step(self, config, *overrides):
        few, many = (self.counted(config, steps, *overrides) for steps in (4, 44))
        return [(b - a) / 40 for a, b in zip(few, many)]

    def test_a_steady_step_makes_none(self):
        config = self.tiny_config(device='cuda', train={'train_batch_size': 2, 'micro_batch_size': 1,
                                                        'gradient_accumulation_steps': 0},
                                  model={'n_layer': 1, 'n_embd': 16, 'n_head': 1})
        for compute, stage, *overrides in ('fp32', 0), ('bf16', 1), ('fp16', 2), ('bf16', 3), ('bf16', 0, 'optimizer.type=muon'):
            with self.subTest(compute=compute, stage=stage, overrides=overrides):
                launches, graphs, waits = self.per_step(config, f'precision.compute={compute}', f'{STAGE}{stage}', *overrides)
                self.assertLess(waits, 0.5)
                # Two micro-batches and the update are a graph each, from their second time on.
                self.assertLess(launches, 3)
                self.assertAlmostEqual(graphs, 3)
        launches, graphs, waits = self.per_step(config, 'cuda_graphs=false')
        self.assertLess(waits, 0.5)
        self.assertGreater(launches, 20)
        self.assertEqual(graphs, 0)
        _, graphs, waits = self.per_step(config, HOST)  # the host updates, and so waits for the gradients
        self.assertEqual(graphs, 0)
        self.assertGreater(waits, 1)

    def idle(self, config, steps, *overrides):
        run = self.run_train(config, f'train.max_steps={steps}', *overrides, environment={**COUNTING, 'CUDASIM_REORDER': '1'})
        self.remove_run()
        found = re.search(r'(\d+) in cudaEventSynchronize_of_newest', run.error)
        return int(found.group(1)) if found else 0

    def test_where_the_next_step_depends_on_the_outcome_of_one(self):
        """With loss scaling (fp16) and train.on_spike=skip, the host waits for each step, and the GPU idles meanwhile."""
        config = self.tiny_config(device='cuda', model={'n_layer': 1, 'n_embd': 16, 'n_head': 1})
        for idles, *overrides in (0, 'precision.compute=bf16'), (0, 'train.on_spike=stop'), (1, 'train.on_spike=skip'), (1, 'precision.compute=fp16'):
            with self.subTest(overrides=overrides):
                few, many = (self.idle(config, steps, *overrides) for steps in (4, 24))
                self.assertAlmostEqual((many - few) / 20, idles, delta=0.1)


class Ahead(GpuCase):
    """The host issues steps ahead of the device. With an evaluation after each step it does not, nor with loss scaling."""
    FINISHED = 'train.eval_every=1', 'cuda_graphs=false'

    def config(self, **sections):
        sections['data'] = {'val': str(self.folder / 'tokens.bin'), **sections.get('data', {})}
        sections['train'] = {'eval_steps': 1, **sections.get('train', {})}
        sections['checkpoint'] = {'keep_best': False, **sections.get('checkpoint', {})}
        return self.tiny_config(device='cuda', model={'n_layer': 1}, **sections)

    def figures(self):
        return [tuple(str(step[name]) for name in ('step', 'loss', 'grad_norm', 'lr', 'loss_scale', 'skipped_steps', 'tokens'))
                for step in self.metrics()]

    def ways(self):
        yield 0, self.FINISHED
        yield 0, ()
        yield 3, ('cuda_graphs=false',)
        if harness.FULL:
            yield 5, (f'{STAGE}3',)
            yield 0, (f'{STAGE}1', 'cuda_graphs=false')

    def test_overflows(self):
        """The scale, the rate and the step of the next update depend on whether this one is skipped."""
        config = self.config(precision={'compute': 'fp16'}, scheduler={'warmup_steps': 8},
                             fp16={'initial_scale_power': 30, 'loss_scale_window': 4, 'hysteresis': 1},
                             train={'max_steps': 20, 'overfit_one_batch': True})
        first = None
        for seed, overrides in self.ways():
            with self.subTest(seed=seed, overrides=overrides):
                self.run_train(config, *overrides, environment=reordered(seed))
                here = self.figures(), self.final_state()
                first = first or here
                self.assertEqual(here, first)
                self.remove_run()
        skipped = int(first[0][-1][5])
        self.assertGreater(skipped, 3)
        self.assertLess(skipped, 20)

    def test_endings(self):
        """Errors name the step that ends the run, though the next one was issued, and no weights are saved after it."""
        diverging = {'optimizer': {'lr': 1e6}, 'scheduler': {'type': 'constant', 'warmup_steps': 0},
                     'train': {'max_steps': 40}, 'checkpoint': {'every': 2, 'keep': 0}}
        overflowing = {'precision': {'compute': 'fp16'}, 
                       'fp16': {'initial_scale_power': 40, 'hysteresis': 1, 'min_loss_scale': 2.0 ** 36}}
        for sections, says in (diverging, 'the run has diverged'), (overflowing, 'although the loss scale is at'):
            config = self.config(**sections)
            first = None
            for seed, overrides in self.ways():
                with self.subTest(says=says, seed=seed, overrides=overrides):
                    run = self.run_train(config, *overrides, code=1, environment=reordered(seed))
                    message = re.search(r'train: error: (step \d+: .*)', run.error).group(1)
                    self.assertIn(says, message)
                    here = message, self.figures(), [path.name for path in self.checkpoints()]
                    first = first or here
                    self.assertEqual(here, first)
                    self.remove_run()

    def test_bad_data_saves_the_steps_before(self):
        tokens = pseudo_random_tokens(4000, 61)
        tokens[5 * 2 * 32 + 3] = 60000  # step 6
        write_shard(self.folder / 'tokens.bin', tokens)
        config = self.config(data={'shuffle': False, 'val': str(self.folder / 'val.bin')}, train={'max_steps': 10})
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(400, 61))
        first = None
        for seed, overrides in self.ways():
            with self.subTest(seed=seed, overrides=overrides):
                self.run_train(config, *overrides, code=2, environment=reordered(seed))
                here = self.figures(), self.final_state(), self.checkpoints()[-1].name
                first = first or here
                self.assertEqual(here, first)
                self.remove_run()
        self.assertEqual(first[2], 'step-00000005')


class Graphs(GpuCase):
    """Steps captured as graphs have the bits of steps that are not."""

    def log(self, *arguments, ranks=1):
        run = self.run_ranks(ranks, *arguments) if ranks > 1 else self.run_train(*arguments)
        return run.out + run.error

    def test_same_bits(self):
        """First, middle and last micro-batches differ; evaluations and samples come between."""
        train = {'max_steps': 5, 'train_batch_size': 3, 'micro_batch_size': 1, 'gradient_accumulation_steps': 0,
                 'eval_every': 2, 'eval_steps': 1, 'sample_every': 2, 'sample_tokens': 4}
        all_types = ('fp32',), ('bf16', 'recompute=block'), ('fp16', 'optimizer.state_dtype=int8')
        for compute, *overrides in all_types if harness.FULL else all_types[1:2]:
            config = self.tiny_config(device='cuda', precision={'compute': compute}, train=train,
                                      data={'tokenizer': 'bytes', 'val': str(self.folder / 'tokens.bin')},
                                      model={'vocab_size': 257}, zero_optimization={'stage3_param_persistence_threshold': 100})
            first = None
            for stage, seed, way in ((0, 0, 'false'), (0, 0, 'true'), (1, 3, 'true'), (2, 0, 'true'), (3, 1, 'true'), (3, 0, 'false')):
                with self.subTest(compute=compute, stage=stage, seed=seed, way=way):
                    self.run_train(config, f'{STAGE}{stage}', f'cuda_graphs={way}', *overrides, environment=reordered(seed))
                    lines = map(json.loads, (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines())
                    here = self.curve(), [entry['val_loss'] for entry in lines if 'val_loss' in entry], self.final_state()
                    # With several micro-batches, stages 2 and 3 add the same gradients in another order.
                    first = here if stage in (0, 2) and way == ('false' if stage == 0 else 'true') else first
                    self.assertEqual(here, first)
                    self.remove_run()

    def test_resuming(self):
        config = self.tiny_config(device='cuda', checkpoint={'every': 1, 'keep': 0})
        self.run_train(config, 'cuda_graphs=false', 'run.dir=whole')
        for step, way in (1, 'true'), (4, 'true'):
            run = self.copy_until(step, 'whole', f'resumed-{step}')
            self.run_train(config, f'cuda_graphs={way}', f'run.dir={run}')
            self.assertEqual(self.curve(run.name), self.curve('whole'))
            self.assertEqual(self.final_state(run.name), self.final_state('whole'))

    def test_said_where_they_cannot_be_used(self):
        config = self.ranks_config(device='cuda', train={'max_steps': 2, 'train_batch_size': 4})
        for says, ranks, *overrides in (('several ranks', 2), ('offload_optimizer', 1, HOST), ('run.debug_sync', 1, 'run.debug_sync=true'),
                                        ('offload_activations', 1, 'recompute=block', 'offload_activations=cpu')):
            with self.subTest(overrides=overrides):
                log = self.log(config, *overrides, ranks=ranks)
                self.assertEqual(log.count('cuda_graphs: not used, as'), 1, log)
                self.assertRegex(log, f'cuda_graphs: not used, as .*{says}')
                self.remove_run()
        for overrides in (), ('cuda_graphs=false', HOST):
            self.assertNotIn('cuda_graphs', self.log(config, *overrides))
            self.remove_run()


class Ranks(GpuCase):
    """Two ranks, each with its own GPU, that communicate over MPI."""

    def config(self, **sections):
        return self.ranks_config(device='cuda', train={'max_steps': 4, 'train_batch_size': 4}, **sections)

    def test_all_stages_have_the_same_bits(self):
        environment = REORDERED[0] if SIMULATED else {}
        variants = ((), ('zero_optimization.reduce_bucket_size=1001', 'zero_optimization.allgather_bucket_size=1001',
                         'zero_optimization.stage3_param_persistence_threshold=0'),
                    ('zero_optimization.overlap_comm=false',),
                    ('recompute=block', 'offload_activations=cpu'))
        for compute, comm_dtype in ('fp32', 'fp32'), ('bf16', 'bf16'):
            config = self.config(precision={'compute': compute})
            first = None
            runs = list(itertools.product(range(4), variants if compute == 'fp32' else variants[:1]))
            for stage, variant in runs[::1 if harness.FULL else 3]:  # each third one has all stages and variants
                with self.subTest(compute=compute, stage=stage, variant=variant):
                    self.run_ranks(2, config, f'zero_optimization.stage={stage}', *variant,
                                   f'communication_data_type={comm_dtype}', environment=environment)
                    here = self.curve(), self.checkpoints()[-1].name
                    first = first or here
                    self.assertEqual(here, first)
                    self.check_plan()
                    self.remove_run()

    def test_devices_of_several_kinds(self):
        """A rank without a GPU would plan and exchange other things. One with another GPU is compared by its fingerprint."""
        def ranks(variable, code):
            words = ['-n', 1, harness.TRAIN, config, 'device=auto', ':', '-n', 1, '-x', variable, harness.TRAIN, config, 'device=auto']
            return self.finish(self.start_mpirun(*words), code).error
        config = self.config()
        self.assertRegex(ranks('CUDASIM_NO_DEVICE=1' if SIMULATED else 'CUDA_VISIBLE_DEVICES=-1', code=2),
                         r'error: device "auto" is a GPU on rank 0 \(.*sm_\d+.* and the CPU on rank 1 \(.*oneDNN')
        if SIMULATED:
            self.assertNotIn('round differently', ranks('CUDASIM_CAPABILITY=8.6', code=0))

    def test_the_vocabulary_is_padded_by_whatever_follows_it(self):
        """lm_head's products read a row beyond wte: wpe, a gap in stage 3's slot, or other persistent tensors."""
        config = self.config(model={'vocab_size': 2047})
        wpe, wte, first = 32 * 32, 2047 * 32, None
        for stage, threshold in (0, 0), (3, 0), (3, wpe + 1), (3, wte + 1):
            with self.subTest(stage=stage, threshold=threshold):
                self.run_ranks(2, config, f'{STAGE}{stage}', f'zero_optimization.stage3_param_persistence_threshold={threshold}')
                first = first or self.curve()
                self.assertEqual(self.curve(), first)
                self.check_plan()
                self.remove_run()

    def test_an_lm_head_of_its_own_is_padded(self):
        """A row follows it wherever it is: the model, a slot or the persistent tensors; and its gradient in every buffer."""
        config = self.config(model={'vocab_size': 2047})
        first, head = None, 2047 * 32
        for stage, threshold in (0, 0), (2, 0), (3, 0), (3, head + 1):
            with self.subTest(stage=stage, threshold=threshold):
                self.run_ranks(2, config, *LLAMA, f'{STAGE}{stage}', f'zero_optimization.stage3_param_persistence_threshold={threshold}',
                               'zero_optimization.reduce_every_micro_batch=true', 'train.train_batch_size=8', 'train.max_steps=2')
                first = first or self.curve()
                self.assertEqual(self.curve(), first)
                self.check_plan()
                self.remove_run()

    def test_golden_curves(self):
        for stage in 0, 3:
            with self.subTest(stage):
                loss, norm = self.golden('gpt2-tiny', 'precision.compute=fp32', f'zero_optimization.stage={stage}', ranks=2,
                                         steps=6)
                self.assertLessEqual(loss, 1e-6)
                self.assertLessEqual(norm, 5e-6)
                self.remove_run()


class Profile(test_profile.ProfileCase):
    """Operations are timed on the GPU, on the track of their stream, and add up to the step."""

    def setUp(self):
        super().setUp()
        # The memory's rate is measured on an eighth of it, at most 1 GiB, which the simulator takes seconds for.
        memory = mock.patch.dict(os.environ, {'CUDASIM_MEMORY': '256M'})
        memory.start()
        self.addCleanup(memory.stop)

    def test_operations_on_streams(self):
        config = self.ranks_config(device='cuda', train={'max_steps': 3, 'train_batch_size': 4})
        offload = (HOST, f'{STAGE}3')
        for ranks, overrides in (1, ()), (2, offload):
            with self.subTest(ranks=ranks):
                run = f'run-{ranks}'
                self.micro_batches = 1
                profile, trace = self.profiled(config, *overrides, ranks=ranks, run=run)
                self.check_sums(profile, ranks, 3)
                self.check_timeline(trace, ranks, 3)
                self.check_flops(profile, test_profile.matrix_flops(json.loads(config.read_text())['model'], 4 // ranks, 32))
                planned = int(re.search(r'launches per micro-batch: (\d+)', self.error).group(1))
                for rank in profile['ranks']:
                    for step in rank['steps']:  # the update, and what communication takes, come on top
                        self.assertGreater(step['launches'], planned)
                    self.assertLessEqual({'main', 'GPU, stream 1'}, set(rank['tracks']))
                    counted = {line['track'] for line in rank['summary']['operations'] if line['counts']}
                    self.assertEqual(counted, {rank['tracks'].index('GPU, stream 1')})

    def test_newton_schulz(self):
        self.check_newton_schulz(self.tiny_config(device='cuda', optimizer={'type': 'muon', 'lr': 0.01}, model={'n_layer': 1},
                                                  precision={'compute': 'bf16'}, train={'max_steps': 3}))


HOST = 'zero_optimization.offload_optimizer.device=cpu'
RATIO = 'zero_optimization.offload_optimizer.ratio='
PARAMS = 'zero_optimization.offload_param.device=cpu'
STAGE = 'zero_optimization.stage='


def reordered(seed):
    """The environment that reorders streams by this seed. Multiples of 3 delay work that nothing waits for the longest."""
    return {'CUDASIM_REORDER': str(seed)} if SIMULATED and seed else {}


class Commands(GpuCase):
    def test_evaluating_and_generating(self):
        config = self.tiny_config(device='cuda', data={'tokenizer': 'bytes', 'val': str(self.folder / 'tokens.bin')},
                                  model={'vocab_size': 257}, train={'sample_every': 3, 'sample_tokens': 8})
        self.run_train(config)
        shard = self.folder / 'tokens.bin'
        texts, losses = {}, {}
        for device in 'cpu', 'cuda':
            run = self.run_train('generate', self.folder / 'run', '--prompt', 'In the', '--tokens', 12, '--temperature', 0,
                                 '--device', device)
            texts[device] = run.out
            losses[device] = self.run_train('eval', self.folder / 'run', '--data', shard, '--device', device).out
        self.assertEqual(texts['cuda'], texts['cpu'])
        self.assertTrue(losses['cuda'])


@unittest.skipUnless(SIMULATED, 'the size of the GPU is simulated')
class Fitting(GpuCase):
    def plan(self, *arguments, code=0):
        return json.loads(self.run_train('plan', *arguments, '--json', code=code).out)

    def test_the_plan_for_an_absent_gpu_equals_that_for_a_present_one(self):
        config = self.tiny_config(device='cuda', precision={'compute': 'bf16'}, attention='flash')
        here, planned = (self.plan(config, *flags, '--ranks', '1,2')
                         for flags in ((), ('--device-memory', '8G')))
        self.assertEqual((here.pop('gpu_is_planned'), planned.pop('gpu_is_planned')), (False, True))
        for case in planned['plans']:
            for stage in case['stages']:
                self.assertTrue(stage.pop('fits'))
        self.assertEqual(here, planned)

    def test_proposals_train_on_a_gpu_of_that_size(self):
        """Lowers the memory limit until nothing fits, and trains with the first proposal each time, on a GPU of that size."""
        config = self.ranks_config(device='cuda', train={'train_batch_size': 4, 'gradient_accumulation_steps': 2, 'max_steps': 2},
                                   model={'n_layer': 6, 'n_embd': 64}, precision={'compute': 'bf16'},
                                   zero_optimization={'stage3_param_persistence_threshold': 0})
        words = set()
        for ranks in 1, 2:
            limit, expected = 1 << 30, None
            while True:
                process = self.start('plan', config, '--fit', '--device-memory', limit, '--ranks', ranks, '--json')
                found = json.loads(process.communicate()[0])['fits'][0]['proposals']
                if not found:
                    break
                first = found[0]
                shutil.rmtree(self.folder / 'run', ignore_errors=True)
                arguments = config, *first['overrides'].split()
                environment = {'CUDASIM_MEMORY': str(limit), 'CUDASIM_DEVICES': str(ranks)}  # plans are for a GPU per rank
                if ranks == 1:
                    self.run_train(*arguments, environment=environment)
                else:
                    self.run_ranks(ranks, *arguments, environment=environment)
                step = self.metrics()[-1]
                self.assertLessEqual(step['device_planned_bytes'], first['device_bytes'])
                self.assertLess(first['device_bytes'] - step['device_planned_bytes'], 16 << 10, first)
                expected = expected or self.curve()
                for (_, loss, _), (_, wanted, _) in zip(self.curve(), expected):
                    self.assertLessEqual(relative(loss, wanted), 1e-3)
                if first['same_bits']:
                    self.assertEqual(self.curve(), expected)
                words |= {word.split('=')[0] for word in first['overrides'].split()}
                limit = first['device_bytes'] * (98 if ranks == 1 else 90) // 100
        for option in 'zero_optimization.offload_optimizer.device', 'zero_optimization.offload_param.device', 'recompute':
            self.assertIn(option, words)

    def test_a_run_that_does_not_fit_names_settings_that_do(self):
        config = self.tiny_config(device='cuda', precision={'compute': 'bf16'})
        run = self.refuses(config, code=1, says=('it would fit', ' with '), environment={'CUDASIM_MEMORY': '1200K'})
        words = run.error.split('per rank) with ')[1].split()
        self.run_train(config, *words, environment={'CUDASIM_MEMORY': '1200K'})


@unittest.skipUnless(SIMULATED, 'faults of the GPU are simulated')
class Faults(GpuCase):
    def test_without_a_driver_or_a_gpu(self):
        config = self.tiny_config()
        self.refuses(config, 'device=cuda', says=('device "cuda"', 'GPU', 'device=cpu'),
                     environment={'CUDASIM_NO_DEVICE': '1'})
        self.refuses(config, 'device=cuda', says=('device "cuda"', 'driver', 'device=cpu'),
                     environment={'CUDASIM_NO_DEVICE': 'driver'})
        run = self.run_train(config, 'device=auto', environment={'CUDASIM_NO_DEVICE': 'driver'})
        self.assertIn('CPU', run.out + run.error)

    def test_debug_sync_names_the_operation_that_failed(self):
        """However late the GPU runs its work. These kernels and copies are in steps, though their numbers in a step vary: the
        start of a run measures until a time is over."""
        config = self.tiny_config(device='cuda', train={'max_steps': 60}, model={'n_layer': 1})
        named = set()
        for at, seed in (1500, 0), (1501, 3), (1520, 1):
            run = self.run_train(config, 'run.debug_sync=true', code=1, environment={'CUDASIM_FAIL': str(at), **reordered(seed)})
            message = re.search(r'train: error: run.debug_sync: (\w+|a copy) failed on the device: (.*)', run.error)
            self.assertIsNotNone(message, run.error)
            self.assertIn('an illegal memory access', message.group(2))
            named.add(message.group(1))
        self.assertTrue(named)
        run = self.run_train(config, code=1, environment={'CUDASIM_FAIL': '1500'})
        self.assertNotIn('failed on the device', run.error)

    def test_debug_sync_changes_no_result(self):
        config = self.tiny_config(device='cuda', train={'max_steps': 3})
        self.run_train(config, 'run.dir=plain')
        self.run_train(config, 'run.debug_sync=true')
        self.assertEqual(self.curve(), self.curve('plain'))
        self.assertEqual(self.final_state(), self.final_state('plain'))

    def test_too_little_memory_on_the_gpu(self):
        config = self.tiny_config(device='cuda')
        run = self.refuses(config, code=1, says=('GPU memory', 'available', 'it would fit'),
                           environment={'CUDASIM_MEMORY': '1300K'})
        self.assertFalse((self.folder / 'run' / 'checkpoints').exists() and list((self.folder / 'run' / 'checkpoints').iterdir()))
        self.assertNotIn('cudasim:', run.error)
