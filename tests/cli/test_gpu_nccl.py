"""Ranks with a GPU each, which exchange by NCCL, on the simulated GPUs of tests/cudasim: the bits of the host path, memory
and communication as planned, the choice of the path, and failures of one rank, which end all within seconds."""
import itertools
import os
import re
import shutil
import signal
import time
import unittest

import harness
import test_gpu
import test_ranks

STAGE, PARTITION = 'zero_optimization.stage=', 'zero_optimization.partition='
GPUS = {'CUDASIM_DEVICES': '4'}  # each rank has its own
BY_NCCL, THROUGH_HOST = 'ranks exchange by NCCL', 'ranks exchange through host memory, not by NCCL'


class NcclCase(test_ranks.RankCase):
    def config(self, **sections):
        train = {'max_steps': 4, **sections.pop('train', {})}
        return self.ranks_config(device='cuda', train=train, **sections)

    def results(self):
        found = self.curve(), self.final_state()
        for step in self.metrics():
            self.assertEqual(step['comm_bytes'], step['comm_planned_bytes'])
            self.assertEqual(step['comm_calls'], step['comm_planned_calls'])
            self.assertEqual(step['model_memory'], step['model_memory_planned'])
            self.assertLess(abs(step['device_bytes'] - step['device_planned_bytes']), test_gpu.PADDING)
        shutil.rmtree(self.folder / 'run')
        return found

    def run_by_nccl(self, ranks, config, *arguments, seed=1):
        process = self.run_ranks(ranks, config, *arguments, environment={**GPUS, 'CUDASIM_REORDER': str(seed)})
        self.assertIn(BY_NCCL, process.error + process.out)
        return self.results()

    def run_through_host(self, ranks, config, *arguments):
        process = self.run_ranks(ranks, config, *arguments, 'comm.backend=mpi')
        self.assertNotIn(BY_NCCL, process.error + process.out)
        return self.results()


@unittest.skipUnless(test_gpu.SIMULATED, 'several GPUs are simulated')
class SameBits(NcclCase):
    """Every stage, partition, size of buckets and order of streams gives the bits of the host path."""
    SMALL = ('zero_optimization.reduce_bucket_size=1001', 'zero_optimization.allgather_bucket_size=1001')
    VARIANTS = ((), SMALL, ('zero_optimization.stage3_param_persistence_threshold=0', 'zero_optimization.overlap_comm=false'))

    def same_bits(self, ranks, config, runs, expected=None):
        for i, arguments in enumerate(runs):
            with self.subTest(ranks=ranks, arguments=arguments):
                expected = expected or self.run_through_host(ranks, config, *arguments)
                here = self.run_by_nccl(ranks, config, *arguments, seed=1 + i % 3)
                self.assertEqual(here[0], expected[0])
                self.assertEqual(here[1], expected[1])

    def test_two_ranks(self):
        config = self.config(precision={'compute': 'bf16'}, communication_data_type='bf16', train={'max_steps': 3})
        self.same_bits(2, config, [(STAGE + str(stage), *self.VARIANTS[stage % 3]) for stage in range(4)])

    def test_partitions_on_three_ranks(self):
        config = self.config(train={'max_steps': 2})
        for stage, partition in ((2, 'layer'), (3, 'tensor')):
            self.same_bits(3, config, [(STAGE + str(stage), PARTITION + partition)])

    def test_offload(self):
        config = self.config(train={'max_steps': 3}, precision={'compute': 'bf16'})
        runs = [(test_gpu.HOST, test_gpu.RATIO + '0.3', STAGE + '1'), (test_gpu.HOST, test_gpu.PARAMS, STAGE + '3')]
        if harness.FULL:
            runs += [(test_gpu.HOST, STAGE + '2', *self.SMALL),
                     (test_gpu.HOST, test_gpu.PARAMS, STAGE + '3', 'recompute=block')]
        self.same_bits(2, config, runs)

    def test_muon(self):
        """Directions go to the ranks that orthogonalize whole matrices, and back."""
        config = self.config(train={'max_steps': 3}, precision={'compute': 'bf16'}, optimizer={'type': 'muon', 'lr': 0.01})
        self.same_bits(2, config, [(STAGE + '0',), (STAGE + '3', *self.SMALL)])
        if harness.FULL:
            for partition in 'layer', 'tensor':
                self.same_bits(3, config, [(STAGE + str(stage), PARTITION + partition) for stage in range(4)])

    @unittest.skipUnless(harness.FULL, 'every stage and partition on 1 to 4 ranks: --full only')
    def test_every_stage_and_partition(self):
        self.run_ranks(1, self.config(), environment=GPUS)
        self.results()
        for ranks, (accumulation, comm_dtype) in itertools.product((2, 3, 4), ((1, 'fp32'), (2, 'bf16'))):
            config = self.config(train={'max_steps': 3, 'train_batch_size': 24, 'gradient_accumulation_steps': accumulation},
                                 communication_data_type=comm_dtype, zero_optimization={'reduce_every_micro_batch': True})
            for i, partition in enumerate(('even', 'layer', 'tensor')):  # within which bits are equal
                expected = self.run_through_host(ranks, config, PARTITION + partition)[0]
                for stage in range(4):
                    arguments = STAGE + str(stage), PARTITION + partition, *self.VARIANTS[(stage + i) % 3]
                    with self.subTest(ranks=ranks, accumulation=accumulation, arguments=arguments):
                        self.assertEqual(self.run_by_nccl(ranks, config, *arguments, seed=1 + stage % 3)[0], expected)


@unittest.skipUnless(test_gpu.SIMULATED, 'the simulator counts')
class HostWaits(NcclCase):
    """Host waits of a step with several ranks, as the difference between runs of two lengths. With NCCL streams run as late as
    they may, so the host waits for the inputs of two micro-batches before, or the step before: those keep it from running ahead
    without limit. Any other wait would leave the device idle."""

    def counted(self, config, steps, *arguments):
        run = self.run_ranks(2, config, f'train.max_steps={steps}', *arguments, environment={**GPUS, **test_gpu.COUNTING})
        lines = re.findall(r'cudasim: counted .*', run.error)
        self.assertEqual(len(lines), 2)
        self.assertEqual([step['step'] for step in self.metrics()], list(range(1, steps + 1)))
        shutil.rmtree(self.folder / 'run')
        waits = [{call: int(n) for n, call in re.findall(r'(\d+) in (\w+)', line)} for line in lines]
        behind = sum(of_rank.pop('cudaEventSynchronize', 0) for of_rank in waits)
        return behind, sum(sum(of_rank.values()) for of_rank in waits)

    def test_a_steady_step_leaves_no_device_idle(self):
        config = self.config(model={'n_layer': 1, 'n_embd': 16, 'n_head': 1})
        for compute, stage in (('bf16', 3), ('fp16', 2), ('fp32', 1))[:None if harness.FULL else 2]:
            with self.subTest(compute=compute, stage=stage):
                few, many = (self.counted(config, steps, f'precision.compute={compute}', f'{STAGE}{stage}') for steps in (4, 24))
                outcome = 2 if compute == 'fp16' else 0  # of both ranks: with loss scaling, of each step
                self.assertLess(abs((many[1] - few[1]) / 20 - outcome), 0.5)
                self.assertLessEqual((many[0] - few[0]) / 20, 2 * 2)  # of both ranks: one micro-batch, and the step before


@unittest.skipUnless(test_gpu.SIMULATED, 'several GPUs are simulated')
class Path(NcclCase):
    """All ranks take the same path, and the log has the reason once."""

    def test_ranks_that_share_a_gpu_exchange_through_the_host(self):
        config = self.config(train={'max_steps': 1})
        process = self.run_ranks(2, config)
        self.assertEqual((process.error + process.out).count(THROUGH_HOST), 1)
        self.assertIn('ranks 0 and 1 share the GPU at 0000:01:00.0', process.error + process.out)
        self.results()
        process = self.start_mpirun('-n', 2, harness.TRAIN, config, 'comm.backend=nccl')
        self.fails_together(process, 2, 'comm.backend=nccl: ranks 0 and 1 share the GPU', 'comm.backend=auto')
        self.refuses(config, 'comm.backend=ncll', says=('comm.backend', 'auto', 'nccl', 'mpi'))

    def test_one_rank_with_an_old_library(self):
        config = self.config(train={'max_steps': 1})

        def command(*arguments):
            rank = '-n', 1, '--wdir', self.folder
            return (*rank, harness.TRAIN, config, *arguments, ':',
                    *rank, 'env', 'CUDASIM_NCCL_VERSION=20804', harness.TRAIN, config, *arguments)

        process = self.finish(self.start_mpirun(*command(), environment=GPUS), 0)
        self.assertIn(f'{THROUGH_HOST}: rank 1: NCCL is version 2.8.4, expected 2.14 or newer', process.error + process.out)
        self.results()
        process = self.start_mpirun(*command('comm.backend=nccl'), environment=GPUS)
        self.fails_together(process, 2, 'rank 1: NCCL is version 2.8.4')

    def test_one_rank_that_cannot_join(self):
        config = self.config(train={'max_steps': 1})
        environment = {**GPUS, 'CUDASIM_NCCL_ERROR': '1:0'}
        process = self.run_ranks(2, config, environment=environment)
        reason = 'rank 1: NCCL: ncclCommInitRank: unhandled system error (injected by CUDASIM_NCCL_ERROR)'
        self.assertEqual((process.error + process.out).count(f'{THROUGH_HOST}: {reason}'), 1)
        self.assertIn(reason, (self.folder / 'run' / 'log.txt').read_text())
        self.results()
        process = self.start_mpirun('-n', 2, harness.TRAIN, config, 'comm.backend=nccl', environment=environment)
        self.fails_together(process, 1, 'rank 1: NCCL: ncclCommInitRank')


@unittest.skipUnless(test_gpu.SIMULATED, 'several GPUs are simulated')
class Failures(NcclCase):
    """One message, and every rank ends within seconds."""

    def start_long(self, *arguments, environment=()):
        config = self.config(train={'max_steps': 1000000}, scheduler={'type': 'constant', 'warmup_steps': 2})
        return self.start_mpirun('-n', 3, harness.TRAIN, config, *arguments, environment={**GPUS, **dict(environment)})

    def test_a_rank_that_is_killed(self):
        process = self.start_long(STAGE + '3')
        self.wait_for_steps(4)
        os.kill(self.living()[1], signal.SIGKILL)
        began = time.monotonic()
        error = process.communicate(timeout=60)[1]
        self.assertLess(time.monotonic() - began, test_ranks.SECONDS)
        self.assertNotEqual(process.returncode, 0)
        self.assertFalse(self.living(), 'a rank is left')
        self.assertEqual(error.count('train: error:'), 1, error)
        self.assertRegex(error, 'train: error: rank 1: process [0-9]+ ended without reporting an error')

    def test_a_rank_that_hangs(self):
        process = self.start_long(STAGE + '2', 'run.hang_timeout_s=2')
        self.wait_for_steps(4)
        os.kill(self.living()[1], signal.SIGSTOP)
        self.fails_together(process, 1, 'rank 1: does not respond', 'hang_timeout_s')

    @unittest.skipUnless(harness.FULL, 'waits for seconds: --full only')
    def test_a_pause_is_not_a_hang(self):
        config = self.config(train={'max_steps': 150}, scheduler={'type': 'constant', 'warmup_steps': 2})
        process = self.start_mpirun('-n', 2, harness.TRAIN, config, STAGE + '3', environment=GPUS)
        self.wait_for_steps(3)
        stopped = self.living()[1]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(7)  # longer than a watchdog takes for a suspended process, shorter than run.hang_timeout_s
        os.kill(stopped, signal.SIGCONT)
        self.finish(process, 0)
        self.assertEqual(len(self.metrics()), 150)

    def test_a_collective_that_fails(self):
        process = self.start_long(STAGE + '1', environment={'CUDASIM_NCCL_ERROR': '2:40'})
        self.fails_together(process, 1, 'rank 2: NCCL: a collective failed: unhandled system error',
                            'injected by CUDASIM_NCCL_ERROR')

    def start_blocked(self, *arguments, environment):
        """Ranks that soon wait in a launch, within a collective, when another one does not end."""
        return self.start_long(STAGE + '1', 'zero_optimization.reduce_bucket_size=1001', 'cuda_graphs=false', *arguments,
                               environment={'CUDASIM_QUEUE': '8', 'CUDASIM_COUNTS': '1', **environment})

    def test_a_rank_that_hangs_while_others_launch(self):
        process = self.start_blocked('run.hang_timeout_s=2', environment={})
        self.wait_for_steps(4)
        os.kill(self.living()[1], signal.SIGSTOP)
        self.fails_together(process, 1, 'rank 1: does not respond', 'hang_timeout_s')
        self.assertIn('cudasim: counted', process.error)  # a rank came back from its launch, and was not just ended

    def test_a_collective_that_fails_while_ranks_launch(self):
        process = self.start_blocked(environment={'CUDASIM_NCCL_ERROR': '2:40'})
        self.fails_together(process, 1, 'rank 2: NCCL: a collective failed: unhandled system error')

    def test_a_kernel_that_fails(self):
        rank = '-n', 1, '--wdir', self.folder
        config = self.config(train={'max_steps': 1000000}, scheduler={'type': 'constant', 'warmup_steps': 2})
        process = self.start_mpirun(*rank, harness.TRAIN, config, ':', *rank, 'env', 'CUDASIM_FAIL=700', harness.TRAIN, config,
                                    environment=GPUS)
        self.fails_together(process, 1, 'rank 1: ', 'illegal memory access')


if __name__ == '__main__':
    unittest.main()
