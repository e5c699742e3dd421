"""Attention by cuDNN in whole runs, on the simulated GPU: CUDASIM_CUDNN gives the simulated machine a version of cuDNN, and
without it the machine has none that is recent enough."""
import json
import unittest

import harness
from harness import CommandCase, LOW_PRECISION_TOLERANCES, golden_arguments, golden_expected, relative

CUDNN = {'CUDASIM_CUDNN': '91900'}


@unittest.skipUnless('cudasim' in str(harness.TRAIN), 'needs the simulated cuDNN')
class AttentionCase(CommandCase):
    OLDER = {**CUDNN, 'CUDASIM_CAPABILITY': '8.0'}

    def train(self, *overrides, run='run', environment=None, ranks=1, **options):
        """A tiny run in bf16; returns the process, with its log."""
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')
        arguments = (config, f'run.dir={self.folder / run}', *overrides)
        if ranks > 1:
            return self.run_ranks(ranks, *arguments, environment=environment or {}, **options)
        return self.run_train(*arguments, environment=environment or {}, **options)

    def refuses_to_train(self, *overrides, says, environment=None):
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')
        return self.refuses(config, f'run.dir={self.folder / "run"}', *overrides, says=says, environment=environment or {})

    def recorded(self, run='run'):
        manifest = json.loads((self.checkpoints(run)[-1] / 'manifest.json').read_text())
        return manifest['attention'], manifest.get('cudnn')

    def attention_lines(self, process):
        return [line for line in (process.out + process.error).splitlines() if 'attention: ' in line]


class Training(AttentionCase):
    def test_golden_curves(self):
        """Flash and cuDNN follow the same curve, within the type's tolerance, and are not the same kernel."""
        (self.folder / 'c.json').write_text('{}')
        for compute, tolerance in LOW_PRECISION_TOLERANCES.items():
            curves = {}
            for attention in 'flash', 'cudnn':
                run = f'{compute}-{attention}'
                self.run_train('c.json', *golden_arguments('gpt2-tiny', steps=4), 'device=cuda', f'attention={attention}',
                               f'precision.compute={compute}', f'run.dir={self.folder / run}', environment=CUDNN)
                curves[attention] = self.curve(run)
                loss, _ = self.golden_errors('gpt2-tiny', run)
                self.assertLessEqual(loss, tolerance)
            self.assertNotEqual(curves['flash'], curves['cudnn'])
            for one, other in zip(*curves.values()):
                self.assertLessEqual(relative(one[1], other[1]), tolerance)

    def test_stages_recompute_and_reordered_streams_give_the_same_bits(self):
        """And take the memory that was planned."""
        short = 'train.max_steps=3', 'attention=cudnn'
        runs = [('one', 2, {}, ()), ('stage-3', 2, {}, ('zero_optimization.stage=3',)),
                ('late', 2, {'CUDASIM_REORDER': '1'}, ('zero_optimization.stage=2', 'recompute=block'))]
        for run, ranks, environment, overrides in runs:
            self.train(*short, *overrides, run=run, ranks=ranks, environment={**CUDNN, **environment})
        self.assertEqual(len(self.curve('one')), 3)
        for run, *_ in runs[1:]:
            self.assertEqual(self.curve(run), self.curve('one'), run)

    def test_the_workspace_is_planned(self):
        """On a GPU exactly; without one at least as large, and with cuDNN's where a run may choose it."""
        batch, heads, length = 1, 8, 2050
        config = self.tiny_config(precision={'compute': 'bf16'}, device='cuda', train={'micro_batch_size': batch},
                                  model={'n_head': heads, 'n_embd': 64, 'n_positions': length})
        wide, short = 'model.n_embd=512', ('model.n_head=1', 'model.n_positions=32')  # heads of 64

        def plan(attention, *arguments, name=None, environment=CUDNN):
            process = self.run_train('plan', config, '--ranks', 1, '--json', *arguments, f'attention={attention}',
                                     environment=environment)
            report = json.loads(process.out)
            self.assertEqual(report['attention'], name or attention)
            return report['plans'][0]['stages'][0]['bytes']['workspace']

        here = {attention: plan(attention) for attention in ('flash', 'cudnn')}
        there = {attention: plan(attention, '--device-memory', '8G', wide) for attention in ('flash', 'cudnn', 'auto')}
        self.assertGreaterEqual(here['cudnn'], 2 * batch * heads * length ** 2)
        self.assertGreater(here['cudnn'], here['flash'])
        self.assertGreater(plan('cudnn', '--device-memory', '8G'), here['cudnn'])
        self.assertGreater(there['cudnn'], there['flash'])
        self.assertEqual(there['auto'], there['cudnn'])
        self.assertEqual(plan('auto', name='flash'), here['flash'])
        plan('auto', *short, name='cudnn')
        for environment in {}, self.OLDER:
            plan('auto', *short, name='flash', environment=environment)
        plan('auto', *short, 'data.mask_documents=true', 'data.tokenizer=bytes', name='flash')
        self.assertIn('attention: auto; the workspace has room for cuDNN', self.run_train(
            'plan', config, '--ranks', 1, '--device-memory', '8G', wide).out)


class Choice(AttentionCase):
    WIDE = 'model.n_embd=64', 'model.n_head=1', 'model.n_layer=1', 'train.train_batch_size=2'  # heads of 64
    def test_auto_follows_its_rule_and_keeps_the_choice(self):
        """cuDNN for heads of 64 on compute capability 9.0; flash for narrower ones, on other GPUs and without cuDNN."""
        for name, overrides, environment, kernel, says in (
                ('cudnn', self.WIDE, CUDNN, 'cudnn', 'attention: cuDNN 9.19.0'),
                ('older', self.WIDE, self.OLDER, 'flash', 'flash; cuDNN is not used: with heads of 64 it was not measured'),
                ('narrow', (*self.WIDE, 'model.n_head=2'), CUDNN, 'flash', 'cuDNN is not used: with heads of 32 it was not'),
                ('none', self.WIDE, {}, 'flash', '9.12.0 or newer is needed')):
            with self.subTest(name):
                steps = 'train.max_steps=2', 'checkpoint.every=1', *overrides
                lines = self.attention_lines(self.train(*steps, run=name, ranks=2, environment=environment))
                self.assertEqual(len(lines), 1, lines)
                self.assertIn(says, lines[0])
                self.assertEqual(self.recorded(name), (kernel, '9.19.0' if kernel == 'cudnn' else None))
                self.train(*steps, f'attention={kernel}', run=f'{name}-named', ranks=2, environment=environment)
                self.assertEqual(self.curve(name), self.curve(f'{name}-named'))
        # The run that began with cuDNN keeps it on a GPU where the rule would not take it.
        lines = self.attention_lines(self.train('train.max_steps=3', *self.WIDE, run='cudnn', ranks=2, environment=self.OLDER))
        self.assertIn('attention: cuDNN 9.19.0', lines[0])

    def test_all_windows_of_a_model_together(self):
        """The first block has a window, which this cuDNN does not compute, and the second none."""
        model = 'model.family=llama', 'model.window=[8, 0]', 'train.max_steps=2', 'train.train_batch_size=2'
        without = {**CUDNN, 'CUDASIM_CUDNN_NO_WINDOWS': '1'}
        self.refuses_to_train('attention=cudnn', *model, environment=without, says=('attention is cudnn', 'a window of 8: forward: '))
        lines = self.attention_lines(self.train(*model, run='auto', environment=without))
        self.assertIn('flash; cuDNN is not used: a window of 8: forward: ', lines[0])
        for attention in 'flash', 'cudnn':
            self.train(*model, f'attention={attention}', run=attention, environment=CUDNN)
        self.assertEqual(self.curve('auto'), self.curve('flash'))
        self.assertNotEqual(self.curve('cudnn'), self.curve('flash'))

    def test_resuming_without_cudnn(self):
        self.train('train.max_steps=2', 'attention=cudnn', 'checkpoint.every=1', environment=CUDNN)
        self.refuses_to_train('train.max_steps=3', says=('computes attention by cuDNN 9.19.0', 'install cuDNN 9',
                                                         'attention=flash checkpoint.resume_with=attention'))
        self.refuses_to_train('train.max_steps=3', 'attention=flash', environment=CUDNN,
                              says=('attention was "cudnn" and is now "flash"',))
        out = self.train('train.max_steps=3', environment={'CUDASIM_CUDNN': '92000'})
        self.assertIn('the checkpoint is of a run with cuDNN 9.19.0', out.out + out.error)
        self.train('train.max_steps=4', 'attention=flash', 'checkpoint.resume_with=attention')
        self.assertEqual(self.recorded(), ('flash', None))
        self.assertEqual(len(self.curve()), 4)

    def test_refusals(self):
        wide = 'model.n_embd=256', 'model.n_head=1', 'train.max_steps=1'
        self.refuses_to_train('attention=cudnn', says=('attention is cudnn', '9.12.0 or newer is needed', 'install cuDNN 9'))
        self.refuses_to_train('attention=cudnn', *wide, environment=CUDNN, says=('attention is cudnn', 'head dimensions above 128'))
        self.refuses_to_train('attention=cudnn', 'precision.compute=fp32', environment=CUDNN, says=('precision.compute is fp32',))
        self.refuses_to_train('attention=cudnn', 'device=cpu', environment=CUDNN, says=('the run computes on the CPU',))
        lines = self.attention_lines(self.train(*wide, environment=CUDNN))
        self.assertEqual(len(lines), 1, lines)
        self.assertIn('attention: flash; cuDNN is not used: forward: ', lines[0])
        self.assertEqual(self.recorded(), ('flash', None))

    def test_rank_0_chooses_and_the_others_follow_or_stop(self):
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')

        def ranks(*overrides, of=('CUDASIM_CUDNN=91900', 'CUDASIM_CUDNN=92000'), code):
            words = [word for one in of for word in
                     (':', '-n', 1, '-x', one, harness.TRAIN, config, 'train.max_steps=1', *overrides)]
            return self.finish(self.start_mpirun(*words[1:], environment=CUDNN), code)

        for overrides in ('attention=cudnn',), self.WIDE:
            self.assertIn('rank 0 has version 9.19.0, and rank 1 has 9.20.0', ranks(*overrides, code=2).error)
        process = ranks(code=0)  # of narrow heads
        self.assertEqual(len(self.attention_lines(process)), 1)
        lines = self.attention_lines(ranks(*self.WIDE, f'run.dir={self.folder / "kinds"}', of=('CUDASIM_CAPABILITY=9.0', 'CUDASIM_CAPABILITY=8.0'), code=0))
        self.assertEqual(len(lines), 1, lines)
        self.assertIn('attention: cuDNN 9.19.0', lines[0])


if __name__ == '__main__':
    unittest.main()
