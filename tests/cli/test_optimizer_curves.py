"""optimizer.type=muon: twenty steps of a GPT-2 against PyTorch's in float64."""
import json

from harness import GOLDEN, CommandCase, golden_arguments, relative, release_only

BOUNDS = {'loss': 1e-6, 'grad_norm': 1e-5}  # as of the other curves in fp32


def option(name, value):
    return f'optimizer.{name}={value if isinstance(value, str) else json.dumps(value)}'


class Golden(CommandCase):
    """Figures of scripts/golden/optimizer_curves.py."""

    @release_only('unit/zero/test_groups, test_newton_schulz and test_muon')
    def test_fp32(self):
        expected = json.loads((GOLDEN / 'optimizer-curves' / 'expected.json').read_text())
        config = self.folder / 'config.json'
        config.write_text('{}')
        for name, case in expected['cases'].items():
            with self.subTest(name):
                self.run_train(config, *golden_arguments(expected['model']), f'run.dir={self.folder / name}', 'device=cpu',
                               'precision.compute=fp32', *(option(*item) for item in case['optimizer'].items()))
                pairs = list(zip(self.metrics(name), case['curve'], strict=True))
                worst = {figure: max(relative(mine[figure], want[figure]) for mine, want in pairs) for figure in BOUNDS}
                print(f'{name}: losses within {worst["loss"]:.1e}, norms within {worst["grad_norm"]:.1e}')
                for figure, bound in BOUNDS.items():
                    self.assertLess(worst[figure], bound, figure)
