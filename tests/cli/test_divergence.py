"""train.on_spike: steps whose loss or gradient norm spikes or is not finite are named, and skipped or fatal."""
import os
import re
import shutil
import struct
import subprocess

from harness import FULL, SANITIZERS, CommandCase, pseudo_random_tokens, write_shard
from test_report import Page

BATCH_TOKENS = 64  # of the configs below: 2 sequences of 32 tokens


def gradients(*faults):
    """The environment that multiplies the gradients of these (step, factor)."""
    return {'ZERO_INJECT_GRADIENTS': ','.join(f'{step}:{factor}' for step, factor in faults)}


class DivergenceCase(CommandCase):
    def spiking_config(self, spikes=(), steps=36, **sections):
        """A model that learns a pattern fast; the data of the steps `spikes` is noise instead."""
        tokens = [i % 8 for i in range(80 * BATCH_TOKENS + 1)]
        for step in spikes:
            tokens[(step - 1) * BATCH_TOKENS:step * BATCH_TOKENS] = pseudo_random_tokens(BATCH_TOKENS, 61, seed=step)
        path = self.folder / 'pattern.bin'
        write_shard(path, tokens)
        sections.setdefault('data', {}).update({'train': str(path), 'shuffle': False})
        train = {'max_steps': steps, 'spike_window': 20, 'spike_threshold': 8, 'train_batch_size': 2, 'micro_batch_size': 0}
        train.update(sections.pop('train', {}))
        sections.setdefault('optimizer', {}).update({'lr': 1e-2})
        sections.setdefault('scheduler', {}).update({'type': 'constant'})
        sections.setdefault('run', {'dir': str(self.folder / 'run'), 'threads': 1})
        return self.tiny_config(train=train, **sections)

    def reported(self, run='run'):
        """The figures of which the report's page makes a line."""
        self.run_train('report', run, '--out', 'page.html')
        figures = Page((self.folder / 'page.html').read_text()).data['runs'][0]['figures']
        return {key: figures[key] for key in ('spikes', 'skipped_steps')}


class Spikes(DivergenceCase):
    def test_a_spike_is_named_and_off_says_nothing(self):
        config = self.spiking_config(spikes=[30])
        process = self.run_train(config)
        warnings = re.findall(r'warning: step (\d+): the (.*?) is above', process.error)
        self.assertEqual([step for step, _ in warnings], ['30'], process.error)
        self.assertIn(f'token {29 * BATCH_TOKENS} of {self.folder / "pattern.bin"}', process.error)
        self.assertIn('the run diverged once (train.on_spike); no update was skipped', process.error)
        early = self.run_train(config, f'run.dir={self.folder}/early', 'train.spike_window=100')
        self.assertIn('over the last 28 steps', early.error)  # a window that is not full yet
        self.assertEqual([m['spikes'] for m in self.metrics()], [0] * 29 + [1] * 7)
        curve, state = self.curve(), self.final_state()
        quiet = self.run_train(config, f'run.dir={self.folder}/off', 'train.on_spike=off')
        self.assertNotIn('warning', quiet.error)
        self.assertEqual((self.curve('off'), self.final_state('off')), (curve, state))
        self.refuses(config, f'run.dir={self.folder}/stop', 'train.on_spike=stop', code=1,
                     says=['step 30', 'the run has diverged', 'train.on_spike=skip', 'saved no checkpoint'])
        self.refuses(config, f'run.dir={self.folder}/kept', 'train.on_spike=stop', 'checkpoint.every=20', code=1,
                     says=['step 30', 'checkpoint is kept', 'checkpoint.resume=PATH'])

    def test_skipped_updates_leave_the_state_and_resume_to_the_bit(self):
        """The same run without the step has the same curve afterwards, up to the step's number."""
        config = self.spiking_config(spikes=[30, 31], checkpoint={'every': 1, 'keep': 0})
        error = self.run_train(config, 'train.on_spike=skip').error
        self.assertIn('the run diverged 2 times (train.on_spike); 2 updates were skipped', error)
        self.assertEqual(self.reported(), {'spikes': 2, 'skipped_steps': 2})
        curve, state = self.curve(), self.final_state()
        self.assertEqual([m['skipped_steps'] for m in self.metrics()], [0] * 29 + [1] + [2] * 6)
        self.assertEqual(*((self.checkpoints()[i] / 'rank-00000.bin').read_bytes() for i in (28, 30)))
        for step in 29, 30, 31, 33:
            with self.subTest(step=step):
                run = self.copy_until(step, 'run', f'until-{step}')
                self.run_train(config, f'run.dir={run}', 'train.on_spike=skip')
                self.assertEqual((self.curve(run.name), self.final_state(run.name)), (curve, state))
        shutil.rmtree(self.folder / 'run')
        self.refuses(config, 'train.on_spike=skip', 'train.max_spikes=2', code=1,
                     says=['step 31', 'train.max_spikes updates in a row were skipped'])


class NotFinite(DivergenceCase):
    def test_the_first_tensor_is_named(self):
        config = self.spiking_config()
        error = self.refuses(config, code=1, environment=gradients((3, 'nan')),
                             says=['step 3: the loss is', 'the run has diverged', 'the gradient of the logits',
                                   'micro-batch 1 of rank 0', f'token {2 * BATCH_TOKENS} of']).error
        self.assertNotIn('2 others', error)
        self.assertNotIn('-nan', error)
        # An update that is far too large, of norms too: the next step's attention scores overflow.
        self.refuses(config, f'run.dir={self.folder}/lr', 'optimizer.type=sgd', 'optimizer.lr=1e6', 'scheduler.warmup_steps=0',
                     'train.gradient_clipping=0', 'optimizer.groups=[{"match": "*", "weight_decay": 1e6}]', code=1,
                     says=['the run has diverged', 'The first tensor that is not finite is the', 'in the forward pass'])

    def test_skipping_and_limits(self):
        config = self.spiking_config(train={'max_steps': 8})
        for compute in 'fp32', 'bf16':
            with self.subTest(compute=compute):
                process = self.run_train(config, f'run.dir={self.folder}/{compute}', 'train.on_spike=skip',
                                         f'precision.compute={compute}', environment=gradients((3, 'nan'), (5, 'inf')))
                self.assertIn('step 3: the loss is', process.error)
                self.assertIn('The update is skipped', process.error)
                self.assertEqual(self.metrics(compute)[-1]['spikes'], 2)
        self.refuses(config, f'run.dir={self.folder}/limit', 'train.on_spike=skip', 'train.max_spikes=2', code=1,
                     environment=gradients((3, 'nan'), (4, 'nan')), says=['step 4', 'max_spikes'])

    def test_overflows_with_loss_scaling_are_no_spikes(self):
        config = self.spiking_config(train={'max_steps': 8}, precision={'compute': 'fp16'})
        process = self.run_train(config, 'train.on_spike=skip', environment=gradients((3, 'nan')))
        self.assertIn('gradients overflowed: step skipped', process.error)
        last = self.metrics()[-1]
        self.assertEqual((last['skipped_steps'] >= 1, last['spikes']), (True, 0))


class Ranks(DivergenceCase):
    def test_all_stages_agree(self):
        """A spike and a NaN on two ranks: the same bits in every stage, and a NaN of one rank names it."""
        config = self.spiking_config(spikes=[36], steps=40, checkpoint={'every': 8, 'keep': 0})
        runs = []
        for stage in (0, 1, 2, 3) if FULL else (3,) if SANITIZERS else (0, 3):
            run = f'skip-{stage}'
            process = self.run_ranks(2, config, f'run.dir={self.folder}/{run}', f'zero_optimization.stage={stage}',
                                     'train.on_spike=skip', environment=gradients((12, 'nan')))
            self.assertIn('The first tensor that is not finite is the gradient of the logits', process.error)
            self.assertEqual(process.error.count('warning: step 12:'), 1)
            self.assertEqual(self.metrics(run)[-1]['spikes'], 2)
            runs.append((self.curve(run), self.final_state(run)))
        self.assertTrue(all(run == runs[0] for run in runs))
