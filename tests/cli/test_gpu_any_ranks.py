"""Logical ranks on the simulated GPUs of tests/cudasim: straight on as many ranks as there are logical ranks against fewer, in
every stage, with and without offload, by NCCL and through the host."""
import itertools
import json
import shutil
import unittest

import harness
import test_gpu
from test_any_ranks import AnyRanksCase, EVERY, LOGICAL, STAGE
from test_gpu import HOST, PARAMS, RATIO
from test_gpu_nccl import BY_NCCL, GPUS

THROUGH_HOST = 'comm.backend=mpi'


@unittest.skipUnless(test_gpu.SIMULATED, 'several GPUs are simulated')
class LogicalRanks(AnyRanksCase):
    def config(self, **sections):
        # With this threshold, stage 3 gathers and releases matrices, and keeps vectors on every rank.
        return super().config(device='cuda', zero_optimization={'stage3_param_persistence_threshold': 100},
                              train={'max_steps': 2, **sections.pop('train', {})}, **sections)

    def run_ranks(self, n, *arguments, **options):
        """Each rank has a GPU of its own. The seed of the order of streams follows from the arguments."""
        seed = 1 + (n + len(arguments)) % 3
        process = super().run_ranks(n, *arguments, environment={**GPUS, 'CUDASIM_REORDER': str(seed)}, **options)
        self.assertEqual(BY_NCCL in process.error + process.out, n > 1 and THROUGH_HOST not in arguments)
        return process

    def results(self, run='run'):
        for step in self.metrics(run):
            self.assertEqual(step['model_memory'], step['model_memory_planned'])
            self.assertLess(abs(step['device_bytes'] - step['device_planned_bytes']), test_gpu.PADDING)
        return super().results(run)

    def test_gradients_reduced_once_per_step(self):
        self.equal(self.config(), ((4, f'{STAGE}0'), (2, f'{STAGE}1', THROUGH_HOST), (2, f'{STAGE}0', HOST, RATIO + '0.4'),
                                   (1, f'{STAGE}1', HOST)))

    def test_gradients_reduced_after_every_micro_batch(self):
        config = self.config(precision={'compute': 'bf16'}, communication_data_type='bf16')
        self.equal(config, ((4, f'{STAGE}3'), (2, f'{STAGE}2', THROUGH_HOST), (2, f'{STAGE}3', HOST, PARAMS),
                            (1, f'{STAGE}2', HOST, RATIO + '0.6'), (1, f'{STAGE}1', EVERY)))

    def test_frozen_tensors(self):
        """No gradients of the lowest units, and of some tensors between others."""
        frozen = [{'match': ['wte', 'wpe', 'h.0.*', 'h.1.attn.c_proj.*'], 'freeze': True}]
        self.equal(self.config(optimizer={'groups': frozen}), ((4, f'{STAGE}3'), (1, f'{STAGE}2', HOST, RATIO + '0.5')))

    def test_a_run_moves(self):
        """4 -> 2 -> 1 ranks without an option."""
        config = self.config(train={'logical_ranks': 0, 'max_steps': 4})
        whole = self.on(4, config, f'{STAGE}2')
        shutil.rmtree(self.folder / 'run')
        for until, ranks, *arguments in ((2, 4, f'{STAGE}3'), (3, 2, f'{STAGE}2', HOST), (4, 1, f'{STAGE}3')):
            error = self.run_ranks(ranks, config, f'train.max_steps={until}', *arguments).error
            if until > 2:
                self.assertIn('results are equal to the last bit', error)
        moved = self.results()
        self.assertEqual((moved[0], moved[3]), (whole[0], whole[3]))

    def test_too_little_memory_for_the_partial_sums(self):
        """A GPU whose memory is enough for one logical rank: a resumed run goes on up to rounding, a given number is refused."""
        config = self.config(train={'logical_ranks': 0, 'max_steps': 3, 'eval_every': 0}, model={'n_embd': 64})
        self.run_ranks(4, config, f'{STAGE}2', 'train.max_steps=2')
        one, two = (json.loads(self.run_train('plan', config, f'{LOGICAL}{n}', '--ranks', 1, '--json').out)['plans'][0]['stages'][2]
                    for n in (1, 2))
        little = {'CUDASIM_MEMORY': f'{(one["total"] + two["total"]) // 2 // 1024}K'}
        self.assertIn('(4 logical ranks before, 1 now, for lack of memory)', self.run_train(config, f'{STAGE}2', environment=little).error)
        self.refuses(config, f'{STAGE}2', f'{LOGICAL}4', 'run.dir=given', environment=little,
                     says=('1 rank lacks the memory for so many partial sums of gradients', 'choose train.logical_ranks=1'))

    @unittest.skipUnless(harness.FULL, 'every stage, offload and path on 1 to 4 ranks: --full only')
    def test_every_stage_offload_and_path(self):
        features = ({}, {'precision': {'compute': 'bf16'}, 'communication_data_type': 'bf16'},
                    {'precision': {'compute': 'fp16'}, 'fp16': {'initial_scale_power': 24}},
                    {'optimizer': {'type': 'muon', 'lr': 0.01}}, {'model': {'family': 'llama'}},
                    {'optimizer': {'groups': [{'match': ['wte', 'h.0.*'], 'freeze': True}]}})
        for (every, stages), (k, sections) in itertools.product((((), (0, 1)), ((EVERY,), (0, 1, 2, 3))), enumerate(features)):
            config = self.config(**{key: dict(value) if isinstance(value, dict) else value for key, value in sections.items()})
            variants = [(ranks, f'{STAGE}{stage}', *every, *offload, *((PARAMS,) if offload == (HOST,) and stage == 3 else ()), *path)
                        for stage, offload, (ranks, *path) in itertools.product(
                            stages, ((), (HOST,), (HOST, RATIO + '0.3')), ((4, THROUGH_HOST), (4,), (2, THROUGH_HOST), (2,), (1,)))]
            self.equal(config, [(4, f'{STAGE}{stages[-1]}', *every), *(variants[k::4] if k else variants)])
