"""Steps of different sizes on a GPU: graphs hold for all of them, ranks agree, batches grow."""
import harness
from harness import relative
from test_schedules import ScheduleCase

BATCHES = 'train.batch_size_schedule=[[4, 8]]'
REORDERED = {'CUDASIM_REORDER': '1'}


class GpuScheduleCase(ScheduleCase):
    def train(self, config, run, *overrides, ranks=1, environment=None):
        """Checks the run against its plan; returns its curve, its last checkpoint and its noise scales."""
        arguments = config, f'run.dir={self.folder / run}', *overrides
        if ranks == 1:
            self.run_train(*arguments, environment=environment or {})
        else:
            self.run_ranks(ranks, *arguments, 'zero_optimization.reduce_every_micro_batch=true', environment=environment or {})
        for step in self.metrics(run):
            self.assertEqual((step['comm_bytes'], step['comm_calls']), (step['comm_planned_bytes'], step['comm_planned_calls']))
            self.assertEqual(step['model_memory'], step['model_memory_planned'])
        return self.curve(run), self.final_state(run), [m.get('noise_scale') for m in self.metrics(run)]

    def same_in_every_stage(self, config, *overrides):
        """On two ranks; returns the name of the last run."""
        first = None
        for stage in (0, 1, 2, 3) if harness.FULL else (0, 3):
            with self.subTest(stage=stage):
                here = self.train(config, f'stage-{stage}', f'zero_optimization.stage={stage}', *overrides, ranks=2, environment=REORDERED)
                first = first or here
                self.assertEqual(here, first)
        return 'stage-3'


class Schedules(GpuScheduleCase):
    def schedule_config(self, compute):
        return self.config(device='cuda', model={'n_layer': 1}, precision={'compute': compute},
                           train={'max_steps': 10, 'micro_batch_size': 2, 'noise_scale_every': 3})

    def test_graphs_and_recompute(self):
        for compute in 'fp32', 'bf16':
            config = self.schedule_config(compute)
            whole = self.train(config, compute, BATCHES)
            ways = [('cuda_graphs=false',), ('recompute=block', 'zero_optimization.offload_optimizer.device=cpu')]
            for overrides in ways if harness.FULL else ways[:1]:
                with self.subTest(compute=compute, overrides=overrides):
                    run = f'{compute}-{overrides[0]}'
                    self.assertEqual(self.train(config, run, BATCHES, *overrides, environment=REORDERED), whole)
        self.train(config, 'cpu', BATCHES, 'device=cpu', 'precision.compute=fp32')
        for (_, loss, norm), (_, expected, expected_norm) in zip(self.curve('fp32'), self.curve('cpu'), strict=True):
            self.assertLess(relative(loss, expected), 1e-4)
            self.assertLess(relative(norm, expected_norm), 1e-3)
        for mine, of_cpu in zip(self.metrics('fp32'), self.metrics('cpu'), strict=True):
            self.assertEqual('noise_scale' in mine, 'noise_scale' in of_cpu)

    def test_ranks(self):
        """Equal bits in every stage, and the losses of one rank."""
        config = self.schedule_config('bf16')
        self.train(config, 'alone', BATCHES)
        run = self.same_in_every_stage(config, BATCHES, 'train.micro_batch_size=1')
        for mine, alone in zip(self.metrics(run), self.metrics('alone'), strict=True):
            self.assertEqual(mine['batch_size'], alone['batch_size'])
            self.assertLess(relative(mine['loss'], alone['loss']), harness.LOW_PRECISION_TOLERANCES['bf16'])


class NoiseScale(GpuScheduleCase):
    def test_the_batch_grows(self):
        """By the noise scale: at the same step with graphs and without, in every stage, and when resumed."""
        config = self.config(device='cuda', model={'n_layer': 1}, optimizer={'lr': 1e-4}, checkpoint={'every': 4, 'keep': 0},
                             train={'max_steps': 17, 'train_batch_size': 'auto', 'micro_batch_size': 1, 'min_batch_size': 4,
                                    'noise_scale_every': 1, 'max_batch_size': 15})
        whole = self.train(config, 'whole')
        sizes = [m['batch_size'] for m in self.metrics('whole')]
        self.assertEqual((sizes, set(sizes)), (sorted(sizes), {4, 8}))
        self.assertEqual(self.train(config, 'kernels', 'cuda_graphs=false', environment=REORDERED), whole)
        resumed = self.copy_until(sizes.index(8) // 4, 'whole', 'resumed')
        self.assertEqual(self.train(config, resumed.name, environment=REORDERED), whole)
        run = self.same_in_every_stage(config)
        self.assertEqual({m['batch_size'] for m in self.metrics(run)}, {4, 8})
