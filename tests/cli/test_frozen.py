"""Frozen tensors cost nothing: what a plan and a run have of them, and resuming with more or fewer of them."""
import array
import json
import shutil
import unittest

import harness
from test_groups import NAMED, GroupsCase, groups

FIRST = {'match': ['wte', 'wpe', 'h.0.*'], 'freeze': True}
STAGE = 'zero_optimization.stage='
BF16 = 'precision.compute=bf16'


def rounded(data):
    """fp32 values rounded to bf16, as fp32 (to nearest, ties to even)."""
    out = array.array('I', data)
    for i, bits in enumerate(out):
        out[i] = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
    return out.tobytes()


class Frozen(GroupsCase):
    def is_first(self, name):
        return name.startswith(('wte.', 'wpe.', 'h.0.'))

    def check_planned(self, run='run'):
        for step in self.metrics(run):
            for figure in 'comm_bytes', 'comm_calls':
                self.assertEqual(step[figure], step[figure.replace('comm_', 'comm_planned_')])
            self.assertEqual(step['model_memory'], step['model_memory_planned'])

    def test_names_of_modules(self):
        """A name without wildcards stands for a tensor or for all tensors of a module."""
        for match, says in ((FIRST['match'], '14 tensors'), (['transformer.wte', 'transformer.h.1.mlp'], '5 tensors'),
                            (['h'], '24 tensors'), (['h.0.ln_1.weight', 'ln_f'], '3 tensors')):
            process = self.run_train('check', self.config(), groups({'match': match, 'freeze': True}))
            self.assertIn(f'optimizer.groups[0]: {says}, ', process.error)
        llama = self.config(model={'family': 'llama', 'tied': False})
        for match, says in (['layers.0.self_attn'], '2 tensors'), (['model.layers.1', 'lm_head'], '7 tensors'):
            process = self.run_train('check', llama, groups({'match': match, 'freeze': True}))
            self.assertIn(f'optimizer.groups[0]: {says}, ', process.error)

    def test_values_are_kept(self):
        """In every stage, those of the run's start: with 16 bits, rounded. That is also what is saved, and goes on from."""
        self.run_train(self.config(), 'train.max_steps=1', f'run.dir={self.folder}/start')
        before = self.tensors('start')
        self.assertEqual(sum(map(self.is_first, before)), 14)
        for compute in 'fp32', 'bf16':
            first = None
            for stage in range(4):
                run = f'{compute}-{stage}'
                self.run_train(self.config(), groups(FIRST), f'model.init_from={self.folder}/start', f'run.dir={self.folder}/{run}',
                               f'precision.compute={compute}', STAGE + str(stage))
                after = self.tensors(run)
                for name in before:
                    kept = rounded(before[name]) if compute == 'bf16' else before[name]
                    self.assertEqual(after[name] == kept, self.is_first(name), name)
                first = first or (self.curve(run), after)
                self.assertTrue((self.curve(run), after) == first, run)
                self.check_planned(run)
        resumed = self.copy_until(2, 'bf16-1', 'resumed')
        self.run_train(self.config(), groups(FIRST), f'model.init_from={self.folder}/start', f'run.dir={resumed}', BF16, STAGE + '3')
        self.assertTrue((self.curve('resumed'), self.tensors('resumed')) == first)

    def test_what_is_kept(self):
        """Gradients, master weights, moments and averages of what is trained alone: plan and run, by formula."""
        C, V, T = 128, 61, 32  # a multiple of PARAM_ALIGNMENT: no padding
        block, norm = 12 * C * C + 13 * C, 2 * C
        config = self.config(train={'max_steps': 2, 'ema': {'type': 'exponential'}}, model={'n_layer': 3, 'n_embd': C})
        for frozen, trained in ((FIRST['match'], 2 * block + norm), (['w*', 'h.[01].*'], block + norm), (['w*', 'h'], norm),
                                (['*.bias', '*ln*'], V * C + T * C + 3 * 12 * C * C)):
            with self.subTest(frozen=frozen):
                words = groups({'match': frozen, 'freeze': True}), BF16
                plan = json.loads(self.run_train('plan', config, *words, '--ranks', '1,2', '--json').out)
                alone, two = ([stage['bytes'] for stage in plan['plans'][i]['stages']] for i in range(2))
                figures = {'params': 2 * plan['elements'], 'grads': 4 * trained, 'master': 4 * trained, 'moments': 8 * trained,
                           'average': 4 * trained}
                self.assertEqual({kind: alone[0][kind] for kind in figures}, figures)
                self.assertEqual(two[1]['grads'], 4 * trained)
                if frozen[0] == '*.bias':  # in each unit, one rank may own more of it than the other
                    continue
                owned = two[1]['master'] // 4  # at most an alignment block of each unit more than half
                self.assertTrue(trained / 2 <= owned <= trained / 2 + 5 * C, owned)
                self.assertEqual([two[1][kind] for kind in ('moments', 'average')], [8 * owned, 4 * owned])
                sent = plan['plans'][1]['stages'][1]['sends']
                self.assertLess(abs(sent['reduce_scatter']['bytes'] - 4 * trained // 2), 4 * 5 * C)
                self.assertLess(abs(sent['all_gather']['bytes'] - 2 * trained // 2), 2 * 5 * C)
                self.run_train(config, *words, f'run.dir={self.folder}/{trained}')
                self.check_planned(str(trained))
                memory = self.metrics(str(trained))[-1]['model_memory']
                self.assertEqual({kind: memory[kind] for kind in figures}, figures)

    def test_utilization_counts_what_is_computed(self):
        """FLOPs per token: forward, and backward of what it goes through."""
        gpu = '--ranks', '1', '--json', '--device-memory', '80G', 'device=cuda'
        figures = [json.loads(self.run_train('plan', self.config(), *words, *gpu).out)['plans'][0] for words in (
            (), (groups(FIRST),), (groups({'match': ['w*', 'h'], 'freeze': True}),))]
        flops = [sum(row['flops'] for row in plan['micro_batch']) for plan in figures]
        self.assertTrue(flops[0] > flops[1] > flops[2], flops)

    def test_resuming(self):
        """The same run whatever the stage; then with more tensors frozen, and with fewer."""
        more, fewer = groups({'match': ['w*', 'h.0', 'h.1.attn'], 'freeze': True}), groups({'match': ['wpe'], 'freeze': True})
        for i, options in enumerate((('optimizer.state_dtype=int8', BF16), ('optimizer.state_dtype=bf16',),
                                     ('train.ema.type=exponential', 'train.ema.decay=0.9', BF16),
                                     ('optimizer.type=schedulefree_adamw', BF16), ('optimizer.type=muon',),
                                     ('optimizer.type=sgd', 'optimizer.momentum=0', 'optimizer.lr=0.1', BF16))):
            with self.subTest(options=options):
                config, whole = self.config(train={'max_steps': 6}), f'whole-{i}'
                self.run_train(config, *options, groups(FIRST), f'run.dir={self.folder}/{whole}')
                curve, state = self.curve(whole), self.tensors(whole)
                for step, stage in (1, 3), (4, 1):
                    run = self.copy_until(step, whole, f'same-{i}-{step}')
                    process = self.run_train(config, *options, groups(FIRST), f'run.dir={run}', STAGE + str(stage))
                    self.assertTrue((self.curve(run.name), self.tensors(run.name)) == (curve, state))
                    self.assertNotRegex(process.error, 'moments (of zero|are dropped)')
                at_3 = self.copy_until(3, whole, f'at-3-{i}')
                before = self.tensors(at_3.name)
                for name, frozen, keeps, says in (
                        ('more', more, lambda n: n.startswith(('w', 'h.0.', 'h.1.attn.')),
                         '4 tensors, such as h.1.attn.c_attn.weight, are frozen after step 3: the moments are dropped'),
                        ('fewer', fewer, lambda n: n.startswith('wpe.'), '13 tensors, such as wte.weight, begin with moments of zero')):
                    curves = []
                    for stage in 0, 3:
                        run = self.copy_until(3, whole, f'{name}-{i}-{stage}')
                        process = self.run_train(config, *options, frozen, NAMED, f'run.dir={run}', STAGE + str(stage))
                        after = self.tensors(run.name)
                        curves.append((self.curve(run.name), after))
                        next_step = self.tensors(self.copy_until(4, run.name, f'{run.name}-4').name)
                        averages = 'train.ema.type=exponential' in options or 'optimizer.type=schedulefree_adamw' in options
                        for tensor in before:  # an average of frozen tensors is their weights, not what it was before
                            kept = rounded(before[tensor]) if keeps(tensor) and BF16 in options else before[tensor]
                            self.assertEqual(after[tensor] == next_step[tensor], keeps(tensor), (name, tensor))
                            self.assertTrue(averages or (after[tensor] == kept) == keeps(tensor), (name, tensor))
                        if 'optimizer.momentum=0' not in options or name == 'more':
                            self.assertIn(says, process.error)
                        self.check_planned(run.name)
                    self.assertTrue(curves[0] == curves[1], name)

    def test_the_head_alone(self):
        """Probes: an untied lm_head, and the final norm. Of nothing else is a gradient looked at or kept."""
        llama = self.config(model={'family': 'llama', 'tied': False}, train={'max_steps': 3})
        lists = ((llama, ['embed_tokens', 'layers', 'norm'], {'lm_head.weight'}, 61 * 32 + 96),
                 (self.config(name='gpt2.json', train={'max_steps': 3}), ['wte', 'wpe', 'h'], {'ln_f.weight', 'ln_f.bias'}, 2 * 128))
        for config, frozen, trained, n in lists:  # with padding
            with self.subTest(trained=trained):
                words = groups({'match': frozen, 'freeze': True})
                shutil.rmtree(self.folder / 'one', ignore_errors=True)
                self.run_train(config, words, f'run.dir={self.folder}/one', 'train.max_steps=1')
                before = self.tensors('one')
                for stage in 0, 3:
                    run = f'head-{stage}'
                    shutil.rmtree(self.folder / run, ignore_errors=True)
                    self.run_train(config, words, f'run.dir={self.folder}/{run}', STAGE + str(stage), 'train.noise_scale_every=1',
                                   'train.train_batch_size=8')
                    after = self.tensors(run)
                    self.assertEqual({name for name in before if before[name] != after[name]}, trained)
                    self.assertEqual(self.metrics(run)[-1]['model_memory']['moments'], 8 * n)
                    self.check_planned(run)

    @unittest.skipUnless(shutil.which('mpirun') and not harness.SANITIZERS, 'needs mpirun')
    def test_resuming_on_other_ranks(self):
        """A rank may own frozen tensors alone (partition layer); what it saves is what one rank saves."""
        config = self.ranks_config(train={'max_steps': 4}, checkpoint={'every': 1, 'keep': 0})
        options = groups(FIRST), BF16, 'train.ema.type=exponential', 'optimizer.state_dtype=int8'
        self.run_ranks(2, config, *options, STAGE + '2')
        before = self.tensors('run')
        for ranks, partition in (1, 'even'), (3, 'layer'), (3, 'tensor'):
            outcomes = []
            for stage in 0, 1, 3:
                run = self.copy_until(2, 'run', f'on-{ranks}-{partition}-{stage}')
                self.run_ranks(ranks, config, *options, f'run.dir={run}', STAGE + str(stage),
                               f'zero_optimization.partition={partition}')
                self.check_planned(run.name)
                outcomes.append((self.curve(run.name), self.tensors(run.name)))
                self.assertTrue(outcomes[0] == outcomes[-1], (ranks, partition, stage))
            after = outcomes[0][1]
            self.assertTrue(all(after[name] == before[name] for name in after if self.is_first(name)))
