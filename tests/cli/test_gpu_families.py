"""Models of the Llama and modern families on a GPU: stages, recompute levels and resuming change no bit; losses and texts are the CPU's."""
import harness
from harness import CommandCase, relative
from test_families import LLAMA, MODERN

SIMULATED = 'cudasim' in str(harness.TRAIN)
STAGE = 'zero_optimization.stage='


class Family:
    """Tests of any family: a mixin."""
    OPTIONS = ()

    def train(self, run, *overrides, ranks=1, environment=None):
        arguments = (self.config, *self.OPTIONS, f'run.dir={self.folder / run}', *overrides)
        if ranks == 1:
            self.run_train(*arguments, environment=environment or {})
        else:
            self.run_ranks(ranks, *arguments, environment=environment or {})
        return self.curve(run), self.final_state(run)

    def test_stages_levels_and_resuming_change_no_bit(self):
        self.config = self.tiny_config(device='cuda', checkpoint={'every': 2, 'keep': 0}, train={'max_steps': 4})
        for compute in ('fp32', 'bf16', 'fp16') if harness.FULL else ('bf16',):
            whole = self.train(f'{compute}-whole', f'precision.compute={compute}', 'recompute=none')
            ways = [('recompute=attention', f'{STAGE}3'), ('recompute=block', 'cuda_graphs=false')]
            if harness.FULL:
                ways += [('recompute=elementwise',), ('recompute=block', 'offload_activations=cpu', f'{STAGE}2')]
            for i, overrides in enumerate(ways):
                with self.subTest(compute=compute, overrides=overrides):
                    found = self.train(f'{compute}-{i}', f'precision.compute={compute}', *overrides,
                                       environment={'CUDASIM_REORDER': str(i + 1)})
                    self.assertEqual(found, whole)
            resumed = self.copy_until(1, f'{compute}-whole', f'{compute}-resumed')
            self.assertEqual(self.train(resumed.name, f'precision.compute={compute}', 'recompute=none'), whole)

    def test_ranks(self):
        self.config = self.ranks_config(device='cuda', train={'max_steps': 3}, checkpoint={'every': 3})
        first = None
        for stage in range(4) if harness.FULL else (0, 3):
            found = self.train(f'run-{stage}', f'{STAGE}{stage}', ranks=2)
            first = first or found[0]
            self.assertEqual(found[0], first)

    def test_losses_and_texts_of_the_cpu(self):
        self.config = self.tiny_config(checkpoint={'every': 6}, model={'vocab_size': 257}, data={'tokenizer': 'bytes'})
        for device in 'cuda', 'cpu':
            self.train(device, f'device={device}')
        for (_, loss, norm), (_, expected, expected_norm) in zip(self.curve('cuda'), self.curve('cpu'), strict=True):
            self.assertLess(relative(loss, expected), 1e-5)
            self.assertLess(relative(norm, expected_norm), 1e-4)
        texts = [self.run_train('generate', 'cpu', '--device', device, '--prompt', 'abc', '--tokens', 20, '--temperature', 0,
                                '--json').out for device in ('cuda', 'cpu')]
        self.assertEqual(*texts)


class Llama(Family, CommandCase):
    OPTIONS = LLAMA


class Modern(Family, CommandCase):
    OPTIONS = MODERN
