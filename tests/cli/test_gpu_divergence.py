"""train.on_spike on a GPU: the device decides on spikes a step before the host knows of them, alone, in graphs and on ranks."""
import harness
from test_divergence import DivergenceCase, gradients

STAGE = 'zero_optimization.stage='
HOST_DECIDES = 'zero_optimization.offload_optimizer.device=cpu'


class Divergence(DivergenceCase):
    def ways(self):
        """Options, and the order in which the simulator runs what streams leave open."""
        yield (HOST_DECIDES,), {}
        yield (), {}
        if harness.FULL:
            yield (), {'CUDASIM_REORDER': '1'}
            yield ('cuda_graphs=false', f'{STAGE}3'), {'CUDASIM_REORDER': '2'}

    def test_the_same_decisions_wherever_they_are_made(self):
        config = self.spiking_config(spikes=[30], steps=34, device='cuda', model={'n_layer': 1}, checkpoint={'every': 8, 'keep': 0})
        for compute in ('fp32', 'fp16') if harness.FULL else ('fp16',):
            first = None
            for k, (overrides, environment) in enumerate(self.ways()):
                with self.subTest(compute=compute, overrides=overrides, environment=environment):
                    run = f'{compute}-{k}'
                    process = self.run_train(config, f'run.dir={self.folder / run}', 'train.on_spike=skip',
                                             f'precision.compute={compute}', *overrides,
                                             environment={**gradients((12, 'nan')), **environment})
                    here = ([(m['step'], m['loss'], m['grad_norm'], m['lr'], m['loss_scale'], m['spikes'])
                             for m in self.metrics(run)], self.final_state(run))
                    first = first or here
                    self.assertEqual(here, first)
                    self.assertEqual(here[0][-1][5], 1 if compute == 'fp16' else 2, process.error)

    def test_the_first_tensor_is_named(self):
        config = self.spiking_config(device='cuda', model={'n_layer': 1}, train={'max_steps': 6})
        self.refuses(config, code=1, environment=gradients((3, 'nan')),
                     says=['step 3: the loss is', 'the run has diverged', 'the gradient of the logits', 'micro-batch 1 of rank 0'])
        process = self.run_ranks(2, config, f'run.dir={self.folder}/ranks', 'train.on_spike=skip', f'{STAGE}3',
                                 environment=gradients((3, 'nan')))
        self.assertIn('the gradient of the logits', process.error)
