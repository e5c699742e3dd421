"""data.mask_documents on a GPU: the losses of the CPU, the same bits with and without graphs, whatever order streams run in,
on any rank, and by flash where cuDNN is installed."""
import unittest

import harness
import test_gpu
from harness import LOW_PRECISION_TOLERANCES, relative
from test_documents import LLAMA, DocumentCase


class Documents(DocumentCase):
    def gpu_config(self, **sections):
        return self.config(ranks=True, device='cuda', data={'val': []}, checkpoint={'every': 0}, **sections)

    def test_losses_of_the_cpu(self):
        for compute, tolerance in ('fp32', 1e-5), *LOW_PRECISION_TOLERANCES.items():
            config = self.gpu_config(train={'max_steps': 2}, precision={'compute': compute})
            for run, options in (compute, ()), (f'llama-{compute}', LLAMA):
                self.run_train(config, *options, f'run.dir={run}')
                self.run_train(config, *options, f'run.dir={run}-cpu', 'device=cpu')
                for gpu, cpu in zip(self.curve(run), self.curve(f'{run}-cpu')):
                    self.assertLessEqual(relative(gpu[1], cpu[1]), tolerance)
        for m in self.metrics('bf16'):
            self.assertLess(abs(m['device_bytes'] - m['device_planned_bytes']), test_gpu.PADDING)

    def test_graphs_streams_and_ranks_change_no_bit(self):
        config = self.gpu_config(train={'max_steps': 4}, precision={'compute': 'bf16'})
        for family, options in ('gpt2', ()), ('llama', LLAMA):
            ways = ('graphs', (), {}), ('kernels', ('cuda_graphs=false',), {}), ('late', (), {'CUDASIM_REORDER': '1'})
            for way, overrides, environment in ways:
                self.run_train(config, *options, *overrides, f'run.dir={family}-{way}', environment=environment)
                self.assertEqual(self.curve(f'{family}-{way}'), self.curve(f'{family}-graphs'))
            for stage in (0, 3) if family == 'gpt2' or harness.FULL else ():
                self.run_ranks(2, config, *options, f'zero_optimization.stage={stage}', f'run.dir={family}-{stage}', 'train.max_steps=2')
                self.assertEqual(self.curve(f'{family}-{stage}'), self.curve(f'{family}-0'))

    def test_cudnn_is_not_used(self):
        config = self.gpu_config(train={'max_steps': 1}, precision={'compute': 'bf16'})
        process = self.run_train(config, environment={'CUDASIM_CUDNN': '91900'})
        self.assertEqual(process.error.count('attention: flash; cuDNN is not used: it cannot mask documents (data.mask_documents)'), 1)


if __name__ == '__main__':
    unittest.main()
