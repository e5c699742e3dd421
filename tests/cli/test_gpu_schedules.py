"""Steps of different shapes on a GPU: graphs are captured anew, workspaces hold for every length, ranks agree."""
import harness
from harness import relative
from test_schedules import ScheduleCase

BATCHES, LENGTHS = 'train.batch_size_schedule=[[4, 8]]', 'train.seq_len_schedule=[[0, 16], [5, 32]]'


class Schedules(ScheduleCase):
    def test_graphs_ranks_and_recompute(self):
        config = self.config(device='cuda', model={'n_layer': 1}, train={'max_steps': 10, 'micro_batch_size': 2, 'noise_scale_every': 3})
        self.run_train(config, BATCHES, LENGTHS)
        curve, state = self.curve(), self.final_state()
        self.assertEqual([m['seq_len'] for m in self.metrics()], [16] * 5 + [32] * 5)
        ways = [('cuda_graphs=false',), ('recompute=block', 'zero_optimization.offload_optimizer.device=cpu')]
        for overrides in ways if harness.FULL else ways[:1]:
            with self.subTest(overrides=overrides):
                run = overrides[0].replace('=', '-')
                self.run_train(config, BATCHES, LENGTHS, f'run.dir={self.folder / run}', *overrides,
                               environment={'CUDASIM_REORDER': '1'})
                self.assertEqual((self.curve(run), self.final_state(run)), (curve, state))
        self.run_train(config, BATCHES, LENGTHS, f'run.dir={self.folder}/cpu', 'device=cpu')
        for (_, loss, norm), (_, expected, expected_norm) in zip(curve, self.curve('cpu')):
            self.assertLess(relative(loss, expected), 1e-4)
            self.assertLess(relative(norm, expected_norm), 1e-3)
        for mine, of_cpu in zip(self.metrics(), self.metrics('cpu')):
            self.assertEqual('noise_scale' in mine, 'noise_scale' in of_cpu)
