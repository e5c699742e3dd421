"""Muon from the command line: resuming to the bit, and on other numbers of ranks, stages and partitions."""
from harness import CommandCase, relative, release_only

STAGE, PARTITION = 'zero_optimization.stage=', 'zero_optimization.partition='


class Muon(CommandCase):
    def config_of(self, steps, every):
        return self.ranks_config(optimizer={'type': 'muon', 'lr': 0.01}, train={'max_steps': steps},
                                 checkpoint={'every': every, 'keep': 0}, scheduler={'type': 'constant', 'warmup_steps': 2})

    @release_only('tests/mpi trains with every dtype')
    def test_every_dtype_resumes_to_the_bit(self):
        config = self.config_of(4, 2)
        for compute, dtype in ('fp32', 'fp32'), ('bf16', 'int8'), ('fp16', 'bf16'):
            with self.subTest(compute=compute, dtype=dtype):
                options = f'precision.compute={compute}', f'optimizer.state_dtype={dtype}'
                self.run_train(config, *options, f'run.dir={dtype}')
                resumed = self.copy_until(1, dtype, f'{dtype}-resumed')
                self.run_train(config, *options, f'run.dir={resumed}')
                self.assertEqual(self.curve(resumed.name), self.curve(dtype))
                self.assertEqual(self.final_state(resumed.name), self.final_state(dtype))

    @release_only('the next test resumes, and tests/mpi trains in every stage')
    def test_other_stages_resume_to_the_bit(self):
        """With "even" matrices are sent to the rank that orthogonalizes them, with "tensor" they are there."""
        config = self.config_of(4, 2)
        for partition, first, second in ('even', 0, 3), ('tensor', 2, 1):
            with self.subTest(partition=partition):
                self.run_ranks(2, config, f'run.dir={partition}', f'{PARTITION}{partition}', f'{STAGE}{first}')
                run = self.copy_until(1, partition, f'{partition}-resumed')
                error = self.run_ranks(2, config, f'run.dir={run}', f'{PARTITION}{partition}', f'{STAGE}{second}').error
                self.assertIn('results are equal to the last bit', error)
                self.assertEqual(self.curve(run.name), self.curve(partition))
                self.assertEqual(self.final_state(run.name), self.final_state(partition))

    def test_other_numbers_of_ranks_resume(self):
        steps = 4, 8, 12, 16
        config = self.config_of(steps[-1], 4)
        self.run_train(config, 'run.dir=whole')
        for until, (ranks, stage, partition) in zip(steps, ((1, 0, 'even'), (3, 3, 'even'), (2, 2, 'tensor'), (3, 1, 'layer'))):
            error = self.run_ranks(ranks, config, f'train.max_steps={until}', f'{STAGE}{stage}', f'{PARTITION}{partition}').error
            self.assertEqual('results are equal up to rounding' in error, until > steps[0])
        worst = max(relative(a['loss'], b['loss']) for a, b in zip(self.metrics(), self.metrics('whole'), strict=True))
        self.assertLess(worst, 1e-5)
        print(f'1 -> 3 -> 2 -> 3 ranks: losses within {worst:.1e} of one rank')
