"""scripts/cuda_resources.py: parsing the output of ptxas, and comparing it with the recorded figures."""
import subprocess
import sys
import unittest

import harness
from harness import ROOT, CommandCase

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN12_GLOBAL__N_110add_kernelI6__halfLi4EEEvPfPKT_' for 'sm_80'
ptxas info    : Function properties for _ZN12_GLOBAL__N_110add_kernelI6__halfLi4EEEvPfPKT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 512 bytes smem, 384 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN12_GLOBAL__N_110add_kernelI6__halfLi4EEEvPfPKT_' for 'sm_90'
ptxas info    : Function properties for _ZN12_GLOBAL__N_110add_kernelI6__halfLi4EEEvPfPKT_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers, 512 bytes smem
"""


@unittest.skipIf(harness.SANITIZERS, 'does not run ./train')
class Resources(CommandCase):
    def build(self, log, version='13.0, V13.0.88'):
        folder = self.folder / 'build' / 'kernels' / 'cuda'
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'add.log').write_text(log)
        (folder / 'nvcc-version').write_text(version + '\n')

    def check(self, *words):
        process = subprocess.run([sys.executable, ROOT / 'scripts' / 'cuda_resources.py', '--file',
                                  self.folder / 'RESOURCES.md', *words, self.folder / 'build'],
                                 capture_output=True, text=True)
        self.assertEqual(process.stderr, '')
        return process.returncode, process.stdout

    def test_figures_are_written_and_compared(self):
        self.build(LOG)
        self.assertEqual(self.check('--update'), (0, ''))
        self.assertIn('| `add_kernel<half, 4>` | 512 | 24 | 26 |', (self.folder / 'RESOURCES.md').read_text())
        self.assertEqual(self.check(), (0, ''))
        self.build(LOG.replace('Used 24', 'Used 25'))
        code, out = self.check()
        self.assertEqual(code, 1)
        self.assertIn("add.cu `add_kernel<half, 4>` sm_80: (registers, shared) ('25', '512'), in the file ('24', '512')", out)
        self.assertNotIn('sm_90', out)

    def test_a_build_for_one_architecture_is_compared_in_its_column(self):
        self.build(LOG)
        self.check('--update')
        record = (self.folder / 'RESOURCES.md').read_text()
        one = LOG[:LOG.index("ptxas info    : Compiling entry function", 100)]
        self.build(one)
        self.assertEqual(self.check(), (0, ''))
        for changed in one.replace('Used 24', 'Used 26'), one.replace('512 bytes', '256 bytes'), one.replace('10add_', '10sub_'):
            self.build(changed)
            code, out = self.check()
            self.assertEqual(code, 1)
            self.assertIn('sm_80', out)
        code, out = self.check('--update')
        self.assertEqual(code, 1)
        self.assertIn('lacks sm_90', out)
        self.assertIn('make CUDA_ARCH=all', out)
        self.assertEqual((self.folder / 'RESOURCES.md').read_text(), record)

    def test_a_spill_always_fails(self):
        self.build(LOG.replace('0 bytes spill stores', '8 bytes spill stores', 1))
        code, out = self.check('--update')
        self.assertEqual(code, 1)
        self.assertIn('add.cu: add_kernel<half, 4> spills 8 bytes on sm_80', out)
        self.assertEqual(self.check()[0], 1)

    def test_another_compiler_is_not_compared(self):
        self.build(LOG)
        self.check('--update')
        self.build(LOG.replace('Used 24', 'Used 25'), '12.4, V12.4.131')
        code, out = self.check()
        self.assertEqual(code, 0)
        self.assertIn('skip: ', out)

    def test_a_build_without_nvcc_is_skipped(self):
        code, out = self.check()
        self.assertEqual(code, 0)
        self.assertIn('skip: ', out)
