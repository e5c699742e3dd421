"""The golden figures of Muon against published implementations. In the full run: it installs PyTorch."""
import json
import os
import pathlib
import subprocess
import unittest

import harness
from harness import GOLDEN, ROOT, CommandCase
from python_env import NEWEST, python_with

CHECKS = pathlib.Path(__file__).with_name('optimizer_checks.py')
SCRIPTS = ROOT / 'scripts' / 'golden'
TOLERANCE = 1e-12  # of figures made again on other processors, of 5 or less: as in optimizer_checks.py
CURVE_TOLERANCE = 1e-10


def largest_difference(mine, theirs):
    if isinstance(mine, dict):
        mine, theirs = ([tree[key] for key in sorted(tree)] for tree in (mine, theirs))
    if isinstance(mine, list):
        return max((largest_difference(*pair) for pair in zip(mine, theirs, strict=True)), default=0)
    if isinstance(mine, (int, float)):
        return abs(mine - theirs)
    return 0 if mine == theirs else float('inf')


@unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
class Published(CommandCase):
    def python(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
        process = subprocess.run([python_with(*NEWEST, large=True), *arguments], cwd=self.folder, check=False,
                                 env={**environment, 'OMP_NUM_THREADS': '1'}, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        return process.stdout

    def test_packages_take_the_same_steps(self):
        found = json.loads(self.python(CHECKS, SCRIPTS).splitlines()[-1])
        for name, (difference, bound) in found.items():
            print(f'{name}: {difference:.1e} of {bound:.1e}')
            self.assertLess(difference, bound, name)
        self.assertEqual({name.split(',')[0] for name in found}, {'Muon'})

    def test_scripts_write_the_committed_figures(self):
        self.python(SCRIPTS / 'optimizers.py', self.folder)
        for name in 'muon', 'groups', 'schedule_free':
            mine, committed = (json.loads((folder / f'{name}.json').read_text())
                               for folder in (self.folder, GOLDEN / 'optimizers'))
            self.assertLess(largest_difference(mine['cases'], committed['cases']), TOLERANCE, name)
        self.python(SCRIPTS / 'optimizer_curves.py', self.folder / 'curves')
        mine, committed = (json.loads((folder / 'expected.json').read_text())
                           for folder in (self.folder / 'curves', GOLDEN / 'optimizer-curves'))
        for name, case in committed['cases'].items():
            self.assertLess(largest_difference(mine['cases'][name]['curve'], case['curve']), CURVE_TOLERANCE, name)
