"""train.dropout, train.label_smoothing and train.z_loss: PyTorch's curves, the same run in every stage, plain evaluation."""
import json

from harness import FULL, GOLDEN, CommandCase, golden_arguments, relative, release_only
from test_schedules import ScheduleCase

OPTIONS = 'train.dropout=0.2', 'train.label_smoothing=0.1', 'train.z_loss=0.001'


class GoldenCase(CommandCase):
    """Figures of scripts/golden/regularization.py."""

    def check(self, device, loss_tolerance, norm_tolerance, *overrides):
        config = self.folder / 'config.json'
        config.write_text('{}')
        cases = json.loads((GOLDEN / 'regularization' / 'expected.json').read_text())['cases']
        for name, case in cases.items():
            with self.subTest(name=name):
                self.run_train(config, *golden_arguments(case['model']), f'run.dir={self.folder / name}', f'device={device}',
                               *(f'train.{option}={value}' for option, value in case['train'].items()), *overrides)
                steps = self.metrics(name)
                self.assertTrue(steps)
                for mine, want in zip(steps, case['curve']):
                    self.assertLess(relative(mine['loss'], want['loss']), loss_tolerance)
                    self.assertLess(relative(mine['grad_norm'], want['grad_norm']), norm_tolerance)


class Golden(GoldenCase):
    def test_fp32(self):
        self.check('cpu', 1e-6, 1e-5, 'precision.compute=fp32')

    def test_bf16(self):
        self.check('cpu', 1e-2, 5e-2, 'precision.compute=bf16')


class SameRun(ScheduleCase):
    @release_only('unit/model/test_regularization')
    def test_stages_ranks_recompute_and_resuming(self):
        config = self.config(checkpoint={'every': 1, 'keep': 0})
        self.run_train(config, *OPTIONS)
        self.resumes_to_the_bit(config, *OPTIONS)
        whole, state = self.curve(), self.final_state()
        self.run_train(config, *OPTIONS, f'run.dir={self.folder}/block', 'recompute=block')
        self.assertEqual((self.curve('block'), self.final_state('block')), (whole, state))
        ways = []
        for stage in (0, 1, 2, 3) if FULL else (0, 3):
            run = f'stage-{stage}'
            self.run_ranks(2, config, *OPTIONS, f'run.dir={self.folder}/{run}', 'train.micro_batch_size=1',
                           f'zero_optimization.stage={stage}', 'zero_optimization.reduce_every_micro_batch=true')
            ways.append((self.curve(run), self.final_state(run)))
            for m, (_, loss, _) in zip(self.metrics(run), whole):
                self.assertLess(relative(m['loss'], loss), 1e-4)
        self.assertTrue(all(way == ways[0] for way in ways))
        run = self.copy_until(4, 'run', 'elastic')
        self.run_ranks(2, config, *OPTIONS, f'run.dir={run}', 'zero_optimization.stage=3', 'train.micro_batch_size=2')
        for m, (_, loss, _) in zip(self.metrics('elastic'), whole):
            self.assertLess(relative(m['loss'], loss), 1e-4)

    def test_a_step_has_masks_of_its_own(self):
        """The same batch at the same weights, over and over, under different masks."""
        config = self.config(optimizer={'lr': 0}, train={'overfit_one_batch': True, 'max_steps': 4})
        self.run_train(config, 'train.dropout=0.2')
        self.assertEqual(len({m['loss'] for m in self.metrics()}), 4)
        self.run_train(config, 'train.dropout=0', f'run.dir={self.folder}/none')
        self.assertEqual(len({m['loss'] for m in self.metrics('none')}), 1)
        for run in 'run', 'none':
            self.assertEqual(self.metrics(run)[-1]['model_memory'], self.metrics(run)[-1]['model_memory_planned'])

    def test_evaluation_is_plain(self):
        config = self.config(optimizer={'lr': 0}, data={'val': str(self.folder / 'tokens.bin')},
                             train={'max_steps': 1, 'eval_every': 1, 'eval_steps': 2})
        losses = []
        for run, overrides in ('plain', ()), ('regularized', OPTIONS):
            process = self.run_train(config, f'run.dir={self.folder / run}', *overrides)
            self.assertEqual('the training loss includes dropout 0.2, label smoothing 0.1, z-loss 0.001; evaluations do not' in process.error,
                             bool(overrides))
            lines = map(json.loads, (self.folder / run / 'metrics.jsonl').read_text().splitlines())
            losses.append(([line['val_loss'] for line in lines if 'val_loss' in line], self.metrics(run)[0]['loss']))
        self.assertEqual(losses[0][0], losses[1][0])
        self.assertNotEqual(losses[0][1], losses[1][1])

    def test_what_is_refused(self):
        config = self.config(checkpoint={'every': 0})
        for override, says in (('train.dropout=1', 'train.dropout'), ('train.dropout=-0.1', 'train.dropout'),
                               ('train.label_smoothing=1', 'train.label_smoothing'), ('train.z_loss=-1', 'train.z_loss'),
                               ('train.dropout=nan', 'train.dropout')):
            self.refuses('check', config, override, says=[says])
        self.run_train(config, 'train.dropout=0.1', 'train.max_steps=2')
        self.refuses(config, 'train.dropout=0.2', says=['train.dropout was 0.1', 'checkpoint.resume_with'])
        self.run_train(config, 'train.dropout=0.2', 'checkpoint.resume_with=train.dropout')
