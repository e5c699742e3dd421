"""optimizer.type=lamb: resuming, other numbers of ranks, and what it needs of a run."""
import harness
from harness import CommandCase, relative, release_only

LAMB = {'type': 'lamb', 'lr': 0.02}


class Lamb(CommandCase):
    def test_resuming(self):
        """To the bit, wherever the run stopped and whatever the moments' type; with other limits only if asked."""
        for state in 'fp32', 'int8':
            config = self.ranks_config(optimizer={**LAMB, 'state_dtype': state}, checkpoint={'every': 1, 'keep': 0},
                                       train={'max_steps': 5})
            self.run_train(config, f'run.dir={self.folder}/{state}')
            for step in 1, 4:
                run = self.copy_until(step, state, f'{state}-{step}')
                self.run_train(config, f'run.dir={run}')
                self.assertEqual((self.curve(run.name), self.final_state(run.name)), (self.curve(state), self.final_state(state)))
        run = self.copy_until(2, 'fp32', 'limits')
        self.refuses(config, 'optimizer.state_dtype=fp32', f'run.dir={run}', 'optimizer.trust_ratio=[0,0.5]',
                     says=['optimizer.trust_ratio was [0, 10]', 'and is now [0, 0.5]'])

    def test_other_numbers_of_ranks(self):
        """A run of three ranks goes on with other numbers: the losses differ by rounding."""
        config = self.ranks_config(optimizer=LAMB, checkpoint={'every': 2, 'keep': 0})
        self.run_ranks(3, config, 'zero_optimization.stage=2')
        for ranks, stage in ((1, 0), (2, 3), (4, 1))[:3 if harness.FULL else 2]:
            run = self.copy_until(2, 'run', f'ranks-{ranks}')
            self.run_ranks(ranks, config, f'run.dir={run}', f'zero_optimization.stage={stage}')
            for (step, loss, norm), (_, expected, expected_norm) in zip(self.curve(run.name), self.curve(), strict=True):
                self.assertLess(relative(loss, expected), 1e-5, (ranks, step))
                self.assertLess(relative(norm, expected_norm), 1e-4, (ranks, step))

    @release_only('tests/mpi trains with bounds of ratios')
    def test_what_a_ratio_does(self):
        """Without decay, and with a ratio of one, it is AdamW to rounding; by default it is not, and it learns."""
        config = self.ranks_config(optimizer={'lr': 0.01}, train={'overfit_one_batch': True, 'max_steps': 12})
        curves = {}
        for name, *overrides in (('adamw',), ('one', 'optimizer.type=lamb', 'optimizer.trust_ratio=[1,1]'),
                                 ('lamb', 'optimizer.type=lamb'), ('no-decay', 'optimizer.type=lamb', 'optimizer.weight_decay=0'),
                                 ('adamw-no-decay', 'optimizer.weight_decay=0')):
            self.run_train(config, f'run.dir={self.folder}/{name}', *overrides)
            curves[name] = [loss for _, loss, _ in self.curve(name)]
        for name, like in ('one', 'adamw'), ('no-decay', 'adamw-no-decay'):
            for loss, expected in zip(curves[name], curves[like], strict=True):
                self.assertLess(relative(loss, expected), 1e-4, name)
        self.assertGreater(relative(curves['lamb'][-1], curves['adamw'][-1]), 1e-3)
        self.assertLess(curves['lamb'][-1], curves['lamb'][0] - 0.02)
