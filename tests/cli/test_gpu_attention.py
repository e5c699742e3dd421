"""Attention by cuDNN in whole runs, on the simulated GPU: CUDASIM_CUDNN gives the simulated machine a version of cuDNN, and
without it the machine has none that is recent enough."""
import json
import unittest

import harness
from harness import CommandCase, LOW_PRECISION_TOLERANCES, golden_arguments, golden_expected, relative

CUDNN = {'CUDASIM_CUDNN': '91900'}


@unittest.skipUnless('cudasim' in str(harness.TRAIN), 'needs the simulated cuDNN')
class AttentionCase(CommandCase):
    def train(self, *overrides, run='run', environment=None, ranks=1, **options):
        """A tiny run in bf16 with the cache of this test; returns the process, with its log."""
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')
        arguments = (config, f'run.dir={self.folder / run}', *overrides)
        environment = dict(environment or {}, XDG_CACHE_HOME=str(self.folder / 'cache'))
        if ranks > 1:
            return self.run_ranks(ranks, *arguments, environment=environment, **options)
        return self.run_train(*arguments, environment=environment, **options)

    def refuses_to_train(self, *overrides, says, environment=None):
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')
        return self.refuses(config, f'run.dir={self.folder / "run"}', *overrides, says=says,
                            environment=dict(environment or {}, XDG_CACHE_HOME=str(self.folder / 'cache')))

    def recorded(self, run='run'):
        manifest = json.loads((self.checkpoints(run)[-1] / 'manifest.json').read_text())
        return manifest['attention'], manifest.get('cudnn')

    @property
    def cache(self):
        return self.folder / 'cache' / 'zero.c' / 'attention'

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
        """On a GPU exactly; without one at least as large, and for the larger of both where the run will choose."""
        batch, heads, length = 1, 8, 2050
        config = self.tiny_config(precision={'compute': 'bf16'}, device='cuda', train={'micro_batch_size': batch},
                                  model={'n_head': heads, 'n_embd': 64, 'n_positions': length})

        def plan(attention, *flags, environment=CUDNN):
            process = self.run_train('plan', config, '--ranks', 1, '--json', *flags, f'attention={attention}',
                                     environment=environment)
            report = json.loads(process.out)
            self.assertEqual(report['attention'], attention if environment else 'flash')
            return report['plans'][0]['stages'][0]['bytes']['workspace']

        here = {attention: plan(attention) for attention in ('flash', 'cudnn', 'auto')}
        anywhere = {attention: plan(attention, '--device-memory', '8G') for attention in ('flash', 'cudnn', 'auto')}
        self.assertGreaterEqual(here['cudnn'], 2 * batch * heads * length ** 2)
        self.assertGreater(here['cudnn'], here['flash'])
        self.assertGreater(anywhere['cudnn'], here['cudnn'])
        for plans in here, anywhere:
            self.assertEqual(plans['auto'], plans['cudnn'])
        self.assertEqual(plan('auto', environment={}), here['flash'])
        self.assertIn("attention: auto; the workspace has room for cuDNN's", self.run_train(
            'plan', config, '--ranks', 1, '--device-memory', '8G').out)


class Choice(AttentionCase):
    def times(self, flash, cudnn):
        """Replaces the times in the cache's only entry."""
        line = self.cache.read_text().splitlines()[-1].split('\t')
        self.cache.write_text('\t'.join([*line[:-3], str(flash), str(cudnn), '1']) + '\n')

    def test_auto_takes_the_faster_and_keeps_it(self):
        lines = self.attention_lines(self.train('train.max_steps=1', 'checkpoint.every=1', run='measured', ranks=2, environment=CUDNN))
        self.assertEqual(len(lines), 1, lines)
        *_, flash, cudnn, reproducible = self.cache.read_text().splitlines()[-1].split('\t')
        self.assertEqual(reproducible, '1')
        faster = 'cudnn' if float(cudnn) < float(flash) else 'flash'
        self.assertEqual(self.recorded('measured'), (faster, '9.19.0' if faster == 'cudnn' else None))
        self.times(flash=2e-3, cudnn=1e-3)
        kept = self.cache.read_text()
        lines = self.attention_lines(self.train('train.max_steps=2', 'checkpoint.every=1', ranks=2, environment=CUDNN))
        self.assertEqual(len(lines), 1, lines)
        self.assertIn('attention: cuDNN 9.19.0, the faster; forward and backward of a layer take 1 ms', lines[0])
        self.assertEqual(self.recorded(), ('cudnn', '9.19.0'))
        self.assertEqual(self.cache.read_text(), kept)
        self.times(flash=1e-3, cudnn=2e-3)
        self.train('train.max_steps=2', 'attention=flash', run='flash', ranks=2, environment=CUDNN)
        self.train('train.max_steps=2', run='cached', ranks=2, environment=CUDNN)
        self.assertEqual(self.curve('cached'), self.curve('flash'))
        # The run that began with cuDNN keeps it, whatever is measured now.
        lines = self.attention_lines(self.train('train.max_steps=3', ranks=2, environment=CUDNN))
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

    def test_rope_is_measured_along(self):
        """But not after qk-norm, which rotates in its own pass with both kernels."""
        short = 'train.max_steps=1', 'train.train_batch_size=2', 'model.n_layer=1'
        for name, model, rope in ('gpt2', (), '0'), ('llama', ('model.family=llama',), '1'), (
                'qwen3', ('model.family=llama', 'model.qk_norm=true'), '0'):
            lines = self.attention_lines(self.train(*short, *model, run=name, environment=CUDNN))
            self.assertEqual(', with RoPE' in lines[0], rope == '1', lines)
            self.assertEqual([line.split('\t')[-4] for line in self.cache.read_text().splitlines()], [rope])
            self.cache.unlink()

    def test_a_damaged_cache_is_measured_again(self):
        self.train('train.max_steps=1', run='first', environment=CUDNN)
        entry = self.cache.read_bytes()
        for i, damage in enumerate((b'\0\xff' * 300, entry[:-9], entry.replace(b'\t1\n', b'\tnan\n'), b'')):
            with self.subTest(damage=damage[:20]):
                self.cache.write_bytes(damage)
                self.train('train.max_steps=1', run=f'run-{i}', environment=CUDNN)
                lines = self.cache.read_bytes().splitlines()
                self.assertEqual(len(lines), 1)
                self.assertEqual(lines[0].split(b'\t')[:-3], entry.split(b'\t')[:-3])
        self.cache.unlink()
        self.cache.mkdir()  # cannot be read or replaced
        self.train('train.max_steps=1', run='folder', environment=CUDNN)

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
        self.refuses_to_train('attention=cudnn', 'device=cpu', environment=CUDNN, says=('it computes on the CPU',))
        lines = self.attention_lines(self.train(*wide, environment=CUDNN))
        self.assertEqual(len(lines), 1, lines)
        self.assertIn('attention: flash; cuDNN is not used: forward: ', lines[0])
        self.assertEqual(self.recorded(), ('flash', None))

    def test_memory_of_every_rank(self):
        """Flash where cuDNN is faster, and its workspace does not fit into the memory of one rank."""
        T, H, D = 640, 8, 8
        sizes = (f'model.n_positions={T}', f'train.seq_len={T}', f'model.n_head={H}', f'model.n_embd={H * D}', 'model.n_layer=1',
                 'train.train_batch_size=2', 'train.max_steps=1', 'zero_optimization.stage=0', 'comm.backend=mpi')
        gpus = {'XDG_CACHE_HOME': str(self.folder / 'cache'), 'CUDASIM_DEVICES': '2', 'CUDASIM_CAPABILITY': '8.0', **CUDNN}
        self.train('train.max_steps=1', run='measured', environment=gpus)
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')
        line = self.cache.read_text().split('\t')
        self.cache.write_text('\t'.join([*line[:4], '1', *map(str, (T, H, H, D, 0, 0)), '2e-3', '1e-3', '1']) + '\n')
        self.run_ranks(2, config, *sizes, 'attention=flash', f'run.dir={self.folder / "flash"}', environment=gpus)
        flash = self.metrics('flash')[-1]['device_planned_bytes']
        words = [word for memory in ('8G', flash + (1 << 20)) for word in
                 (':', '-n', 1, '-x', f'CUDASIM_MEMORY={memory}', harness.TRAIN, config, *sizes)]
        lines = self.attention_lines(self.finish(self.start_mpirun(*words[1:], environment=gpus), 0))
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], 'flash; cuDNN is not used: with its workspace the run would need .* of rank 1 are free')

    def test_ranks_with_different_libraries(self):
        config = self.ranks_config(precision={'compute': 'bf16'}, device='cuda')
        def ranks(*overrides, code):
            words = [word for version in ('91900', '92000') for word in
                     (':', '-n', 1, '-x', f'CUDASIM_CUDNN={version}', harness.TRAIN, config, 'train.max_steps=1', *overrides)]
            return self.finish(self.start_mpirun(*words[1:]), code)
        process = ranks('attention=cudnn', code=2)
        self.assertIn('rank 0 has version 9.19.0, and rank 1 has 9.20.0', process.error)
        process = ranks(code=0)
        self.assertIn('attention: flash; cuDNN is not used: rank 0 has version', process.out + process.error)


if __name__ == '__main__':
    unittest.main()
