"""train.ema and schedule-free AdamW on a GPU: the device leaves out skipped updates before the host knows of them."""
import harness
from test_averaging import AveragingCase
from test_divergence import gradients

HOST_DECIDES = 'zero_optimization.offload_optimizer.device=cpu'
EMA, SCHEDULE_FREE = ('train.ema.type=exponential',), ('train.ema.type=none', 'optimizer.type=schedulefree_adamw')


class Averaging(AveragingCase):
    def test_the_same_average_wherever_steps_are_decided(self):
        config = self.averaging_config(device='cuda', model={'n_layer': 1}, precision={'compute': 'fp16'}, optimizer={'lr': 1e-3},
                                       train={'max_steps': 5, 'eval_every': 3}, checkpoint={'every': 0})
        for name, average in (('ema', EMA), ('schedule_free', SCHEDULE_FREE))[:2 if harness.FULL else 1]:
            first = None
            for way in (), (HOST_DECIDES,), ('cuda_graphs=false', HOST_DECIDES):
                run = f'{name}-{len(way)}'
                self.run_train(config, f'run.dir={self.folder / run}', *average, *way, environment=gradients((2, 'inf')))
                self.assertEqual(self.manifest(self.checkpoints(run)[-1])['average']['updates'], 4)
                here = self.curve(run), self.evaluations(run), self.final_state(run)
                first = first or here
                self.assertEqual(here, first, way)
