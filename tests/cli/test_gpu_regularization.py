"""Dropout, label smoothing and the z-loss on a GPU: PyTorch's curves, the CPU's masks, the same bits with and without graphs."""
import harness
import test_regularization
from test_schedules import ScheduleCase


class Golden(test_regularization.GoldenCase):
    def test_fp32(self):
        self.check('cuda', 2e-6, 2e-5, 'precision.compute=fp32', *(() if harness.FULL else ('train.max_steps=4',)))


class SameRun(ScheduleCase):
    def test_graphs_and_recompute(self):
        config = self.config(device='cuda', model={'n_layer': 1}, train={'max_steps': 8, 'micro_batch_size': 2})
        self.run_train(config, *test_regularization.OPTIONS)
        curve, state = self.curve(), self.final_state()
        self.assertEqual(self.metrics()[-1]['model_memory'], self.metrics()[-1]['model_memory_planned'])
        ways = [('cuda_graphs=false',), ('recompute=block', 'offload_activations=cpu')]
        for overrides in ways if harness.FULL else ways[:1]:
            run = overrides[0].replace('=', '-')
            self.run_train(config, *test_regularization.OPTIONS, f'run.dir={self.folder / run}', *overrides,
                           environment={'CUDASIM_REORDER': '1'})
            self.assertEqual((self.curve(run), self.final_state(run)), (curve, state))
        self.run_train(config, *test_regularization.OPTIONS, f'run.dir={self.folder}/cpu', 'device=cpu')
        for (_, loss, _), (_, expected, _) in zip(curve, self.curve('cpu')):
            self.assertLess(harness.relative(loss, expected), 1e-4)
