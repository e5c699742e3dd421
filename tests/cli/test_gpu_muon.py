"""Muon on a GPU: graphs, stages, partitions and resuming change no bit, memory and bytes are as planned, losses are the CPU's."""
import json
import re
import subprocess
import unittest

import harness
import test_gpu
import test_muon
from harness import relative

MUON = {'type': 'muon', 'lr': 0.01}
COUNTS = {'CUDASIM_COUNTS': '1'}


class Muon(test_gpu.GpuCase):
    def train(self, config, run, *overrides, environment=None):
        process = self.run_train(config, f'run.dir={self.folder / run}', *overrides, environment=environment or {})
        self.check_plan(run)
        return process.error, (self.curve(run), self.final_state(run))

    def test_graphs_and_resuming_change_no_bit(self):
        """The device decides the step: iterations and updates are in the graph of the update. In fp16 it skips some."""
        config = self.tiny_config(device='cuda', optimizer=MUON, train={'max_steps': 4}, checkpoint={'every': 2, 'keep': 0},
                                  fp16={'initial_scale_power': 22, 'hysteresis': 1})
        for compute in ('fp32', 'bf16', 'fp16') if harness.FULL else ('fp32', 'bf16'):
            with self.subTest(compute):
                option = f'precision.compute={compute}'
                error, whole = self.train(config, compute, option, environment={**test_gpu.reordered(1), **COUNTS})
                if test_gpu.SIMULATED:
                    # Of four steps the first runs kernel by kernel; in each other one the micro-batch and the update are a graph.
                    self.assertEqual(int(re.search(r'(\d+) graph launches', error).group(1)), 2 * 3)
                self.assertEqual(self.train(config, f'{compute}-kernels', option, 'cuda_graphs=false')[1], whole)
                skipped = self.metrics(compute)[-1]['skipped_steps']
                self.assertTrue(0 < skipped < 4 if compute == 'fp16' else skipped == 0, skipped)
                resumed = self.copy_until(1, compute, f'{compute}-resumed')
                self.assertEqual(self.train(config, resumed.name, option, environment=test_gpu.reordered(2))[1], whole)

    @unittest.skipIf(test_gpu.SIMULATED and not harness.FULL, 'times GEMM again and again: in the full run only')
    def test_benchmark(self):
        """Batches of matrices in graphs, in turn with GEMM: q, k, v and proj are one shape, fc and its proj two."""
        process = subprocess.run([harness.TRAIN.parent / 'tests' / 'bench' / 'bench_muon', self.tiny_config(), '--device', 'cuda',
                                  '--quick', '--json'], text=True, capture_output=True)
        found = list(map(json.loads, process.stdout.splitlines()))
        self.assertEqual((process.returncode, len(found)), (0, 3), process.stderr)
        self.assertGreater(min(line['seconds'] for line in found), 0)

    def test_losses_of_the_cpu(self):
        """In fp32, where neither a narrower type nor another order of sums hides a wrong product."""
        config = self.tiny_config(optimizer=MUON, model={'n_layer': 1})
        for device in 'cuda', 'cpu':
            self.train(config, device, f'device={device}')
        worst = max(relative(a['loss'], b['loss']) for a, b in zip(self.metrics('cuda'), self.metrics('cpu'), strict=True))
        print(f'losses within {worst:.1e} of the CPU\'s')
        self.assertLess(worst, 1e-5)


class Ranks(test_gpu.GpuCase):
    def test_all_stages_have_the_same_bits(self):
        """Directions go to the ranks that orthogonalize them and back: in stage 0 of whole matrices, in 3 of the owners' slices."""
        config = self.ranks_config(device='cuda', optimizer=MUON, train={'max_steps': 3, 'train_batch_size': 4},
                                   checkpoint={'every': 0})
        for i, compute in enumerate(('fp32', 'bf16')):
            first = {}
            runs = [('even', 0), ('even', 3)]
            if harness.FULL:
                runs += [('even', 1), ('even', 2)] + [(partition, stage) for partition in ('layer', 'tensor') for stage in range(4)]
            for partition, stage in runs:
                with self.subTest(compute=compute, partition=partition, stage=stage):
                    self.run_ranks(2, config, f'precision.compute={compute}', f'{test_muon.PARTITION}{partition}',
                                   f'{test_muon.STAGE}{stage}', environment=test_gpu.reordered(1 + (stage + i) % 3))
                    here = self.curve(), self.final_state()
                    self.assertEqual(here, first.setdefault(partition, here))
                    self.check_plan()
                    self.remove_run()
