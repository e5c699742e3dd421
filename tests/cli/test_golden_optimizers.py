"""The golden figures of LAMB, Muon and SOAP against published implementations. In the full run: it installs PyTorch."""
import json
import os
import pathlib
import subprocess
import unittest

import harness
from harness import GOLDEN, ROOT, CommandCase
from python_env import python_with

CHECKS = pathlib.Path(__file__).with_name('optimizer_checks.py')
REQUIREMENTS = 'torch==2.15.0', 'timm==1.0.31', 'pytorch_optimizer==4.1.0', 'schedulefree==1.4.1', 'numpy==2.2.6'
SCRIPTS = ROOT / 'scripts' / 'golden'
# Of figures made again on other processors, of 5 or less: as in optimizer_checks.py. SOAP's are off by 4e-14 if gradients are
# by an epsilon.
TOLERANCE = 1e-12
CURVE_TOLERANCE = 1e-10  # rounding SOAP's preconditioners to float32 changes norms by 4e-4; float64 is 2^-29 of that, 7e-13


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
        process = subprocess.run([python_with(*REQUIREMENTS, large=True), *arguments], cwd=self.folder, check=False,
                                 env={**environment, 'OMP_NUM_THREADS': '1'}, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        return process.stdout

    def test_packages_take_the_same_steps(self):
        found = json.loads(self.python(CHECKS, SCRIPTS).splitlines()[-1])
        for name, (difference, bound) in found.items():
            print(f'{name}: {difference:.1e} of {bound:.1e}')
            self.assertLess(difference, bound, name)
        self.assertEqual({name.split(',')[0] for name in found}, {'LAMB', 'Muon', 'SOAP'})

    def test_scripts_write_the_committed_figures(self):
        for script, files in (('optimizers.py', ('muon', 'lamb', 'groups', 'schedule_free')), ('soap.py', ('soap',))):
            self.python(SCRIPTS / script, self.folder)
            for name in files:
                mine, committed = (json.loads((folder / f'{name}.json').read_text())
                                   for folder in (self.folder, GOLDEN / 'optimizers'))
                self.assertLess(largest_difference(mine['cases'], committed['cases']), TOLERANCE, name)
        self.python(SCRIPTS / 'optimizer_curves.py', self.folder / 'curves')
        mine, committed = (json.loads((folder / 'expected.json').read_text())
                           for folder in (self.folder / 'curves', GOLDEN / 'optimizer-curves'))
        for name, case in committed['cases'].items():
            self.assertLess(largest_difference(mine['cases'][name]['curve'], case['curve']), CURVE_TOLERANCE, name)
