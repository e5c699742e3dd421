"""On a GPU: train.micro_batch_size where it is left to the memory plan, and utilization relative to the dense peak."""
import json
import unittest

import harness
from harness import CommandCase

SIMULATED = 'cudasim' in str(harness.TRAIN)
AUTO = 'train.micro_batch_size=auto'


@unittest.skipUnless(SIMULATED, 'sets the memory and the name of the GPU')
class MicroBatch(CommandCase):
    def config(self, **sections):
        train = {'max_steps': 2, 'train_batch_size': 24, 'micro_batch_size': 0, **sections.pop('train', {})}
        return self.tiny_config(device='cuda', precision={'compute': 'bf16'}, train=train, **sections)

    def size(self, run='run'):
        train = json.loads((self.folder / run / 'config.json').read_text())['train']
        self.assertEqual(train['micro_batch_size'] * train['gradient_accumulation_steps'] * self.ranks, 24)
        return train['micro_batch_size']

    ranks = 1

    def test_the_largest_that_fits(self):
        """Less and less memory gives smaller micro-batches: what the plan states, with no run that does not fit."""
        config, sizes = self.config(), []
        for memory in '64M', '1500K', '1280K':
            environment = {'CUDASIM_MEMORY': memory}
            process = self.run_train(config, AUTO, f'run.dir={memory}', environment=environment)
            sizes.append(self.size(memory))
            step = self.metrics(memory)[-1]
            self.assertEqual(step['model_memory'], step['model_memory_planned'])
            plan = json.loads(self.run_train('plan', config, AUTO, '--ranks', 1, '--json', environment=environment).out)['plans'][0]
            self.assertEqual((plan['micro_batch_size'], plan['micro_batch_size_is_chosen']), (sizes[-1], True))
            reason = 'all sequences of a rank' if sizes[-1] == 24 else 'the largest that fits into'
            self.assertRegex(process.error, rf'micro-batch: {sizes[-1]} sequences?, {reason}')
            self.assertIn(f'each step takes {24 // sizes[-1]} x {sizes[-1]} sequences', process.error)
        self.assertEqual(sizes[0], 24)
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertEqual(len(set(sizes)), 3, sizes)

    def test_it_is_the_default_on_a_gpu_only(self):
        config = self.config()
        self.run_train(config)
        self.assertEqual(self.size(), 24)
        process = self.run_train(config, 'device=cpu', 'run.dir=cpu', 'precision.compute=fp32')
        self.assertEqual(self.size('cpu'), 4)
        self.assertNotIn('\nmicro-batch:', process.error)
        process = self.run_train(config, 'train.micro_batch_size=3', 'run.dir=given')
        self.assertEqual(self.size('given'), 3)
        self.assertNotIn('\nmicro-batch:', process.error)

    def test_a_resumed_run_keeps_it(self):
        config = self.config()
        small = {'CUDASIM_MEMORY': '1500K'}
        self.run_train(config, 'run.dir=whole', environment=small)
        size = self.size('whole')
        self.assertLess(size, 24)
        self.run_train(config, 'train.max_steps=1', 'scheduler.decay_steps=2', environment=small)
        process = self.run_train(config, 'scheduler.decay_steps=2')  # on a GPU with more memory
        self.assertEqual(self.size(), size)
        self.assertIn(f'micro-batch: {size} sequences, as before the run was resumed', process.error)
        self.assertEqual(self.curve(), self.curve('whole'))
        self.run_train(config, 'scheduler.decay_steps=2', 'train.max_steps=3', 'train.micro_batch_size=2')
        self.assertEqual(self.size(), 2)
        # one that does not fit any more is chosen again, and that is said
        self.run_train(config, 'run.dir=shrunk', 'train.max_steps=1')
        process = self.run_train(config, 'run.dir=shrunk', environment=small)
        self.assertEqual(self.size('shrunk'), size)
        self.assertIn('up to rounding, as sums are added in another order (micro-batches of 24 sequences before', process.error)

    def test_ranks_take_the_smallest_answer(self):
        self.ranks = 2
        config = self.config(run={'dir': str(self.folder / 'run'), 'threads': 1})
        rank = '-n', 1, '-x'
        process = self.finish(self.start_mpirun(*rank, 'CUDASIM_MEMORY=64M', harness.TRAIN, config, ':',
                                                *rank, 'CUDASIM_MEMORY=12176K', harness.TRAIN, config), 0)
        size = self.size()
        self.assertLess(size, 12)
        self.assertIn(f'micro-batch: {size} sequences, the largest that fits', process.error)
        self.assertIn('on the rank with the least memory', process.error)

    def test_what_cannot_be_open(self):
        self.refuses(self.config(), AUTO, 'train.train_batch_size=0', says=['train.micro_batch_size is "auto"', 'set train.train_batch_size'])

    def test_fit_names_the_size(self):
        config = self.config()
        for memory in '64M', '2M':
            process = self.run_train('plan', config, AUTO, '--fit', '--device-memory', memory, '--ranks', 1, '--json')
            first = json.loads(process.out)['fits'][0]['proposals'][0]
            words = dict(word.split('=') for word in first['overrides'].split())
            self.assertEqual(int(words['train.micro_batch_size']) * int(words['train.gradient_accumulation_steps']), 24)
            if memory == '64M':
                self.assertEqual(words['train.micro_batch_size'], '24')
        text = self.run_train('plan', config, '--device-memory', '64M', '--ranks', 1).out
        self.assertIn('micro_batch_size 24: all sequences of a rank\'s step', text)
        text = self.run_train('plan', config, '--ranks', 1, environment={'CUDASIM_NO_DEVICE': '1'}).out
        self.assertIn('micro_batch_size is left open, and depends on the GPU\'s memory: 4 is the choice for a CPU', ' '.join(text.split()))


@unittest.skipUnless(SIMULATED, 'sets the name of the GPU')
class Utilization(CommandCase):
    def test_of_the_dense_peak_where_it_is_known(self):
        config = self.tiny_config(device='cuda', precision={'compute': 'bf16'}, train={'max_steps': 2})
        process = self.run_train(config, 'run.profile=true', environment={'CUDASIM_NAME': 'NVIDIA H100 PCIe', 'CUDASIM_MEMORY': '64M'})
        self.assertIn('utilization (MFU) is relative to the dense peak, 756500 GFLOP/s', process.error)
        self.assertRegex(process.error, r'step 2/2 .*  0% MFU, \d+% of GEMM')
        self.assertIn('% of the dense peak', process.error)
        for step in self.metrics():
            self.assertEqual(step['mfu_of'], 'dense peak')
            self.assertLess(step['mfu'], step['of_gemm'])
        profile = json.loads((self.folder / 'run' / 'profile.json').read_text())
        self.assertEqual(profile['ranks'][0]['dense_peak_flops_per_s'], 756.5e12)

    def test_of_the_measured_rate_elsewhere(self):
        config = self.tiny_config(device='cuda', precision={'compute': 'bf16'}, train={'max_steps': 2})
        for device in 'cuda', 'cpu':
            process = self.run_train(config, f'device={device}', f'run.dir={device}')
            self.assertEqual('the dense peak of this GPU is not known: utilization is relative to the measured GEMM rate' in process.error,
                             device == 'cuda')
            self.assertRegex(process.error, r'step 2/2 .* [^,]  \d+% of GEMM|step 2/2 .*ms  \d+% of GEMM')
            for step in self.metrics(device):
                self.assertEqual((step['mfu_of'], step['mfu']), ('measured GEMM rate', step['of_gemm']))


if __name__ == '__main__':
    unittest.main()
