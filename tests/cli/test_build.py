"""What make prints, and for which GPUs it compiles: with stand-ins for nvcc and nvidia-smi."""
import os
import re
import struct
import subprocess
import unittest

import harness
from harness import ROOT, CommandCase

NVCC = '''#!/bin/sh
case "$*" in
  *--list-gpu-arch*) printf 'compute_%s\\n' 75 80 86 87 89 90 100 120; exit ;;
  *--version*) echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit ;;
esac
for word; do [ "$last" = -o ] && : >"$word"; last=$word; done
echo "$@" >>"$(dirname "$0")/calls"
'''


FAT_BINARY, PTX = 0xba55ed50, 1


def ptx_of(path):
    """The architectures whose PTX an object of nvcc has. A fat binary is a header (magic, version, its size, the size of what
    follows) and entries (kind, version, size of its header, size of its code; the architecture is at byte 28)."""
    data, found, at = path.read_bytes(), set(), 0
    while (at := data.find(struct.pack('<I', FAT_BINARY), at)) >= 0:
        _, _, header, size = struct.unpack_from('<IHHQ', data, at)
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, header, size = struct.unpack_from('<HHIQ', data, entry)
            if kind == PTX:
                found.add(struct.unpack_from('<I', data, entry + 28)[0])
            entry += header + size
    return found


@unittest.skipIf(harness.SANITIZERS, 'runs none of the program')
class Build(CommandCase):
    def make(self, *words, code=0, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(('MAKE', 'MFLAGS', 'CUDA'))}
        environment.update(variables, PATH=f'{self.folder / "bin"}:{os.environ["PATH"]}')
        process = subprocess.run(['make', f'BUILD={self.folder / "build"}', *map(str, words)], cwd=ROOT, env=environment, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        self.assertEqual(process.returncode, code, process.stdout)
        return process.stdout

    def program(self, name, text):
        path = self.folder / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def architectures(self, gpus, **variables):
        """What one CUDA source is compiled for on a machine with these GPUs, and what make prints."""
        nvcc = self.program('nvcc', NVCC)
        prints = f"printf '{gpus}'" if gpus else 'echo no devices were found; exit 6'
        self.program('nvidia-smi', f'#!/bin/sh\n{prints}\n')
        out = self.make(f'NVCC={nvcc}', 'CUDA=yes', '-B', self.folder / 'build' / 'kernels' / 'cuda' / 'optimizer.o', **variables)
        call = (self.folder / 'bin' / 'calls').read_text().splitlines()[-1]
        return re.findall(r'code=(\w+)', call), out

    def test_the_gpus_that_are_here(self):
        for gpus, expected in (('9.0\\n9.0\\n', ['sm_90', 'compute_80', 'compute_90']),
                               ('8.6\\n12.0\\n', ['sm_86', 'sm_120', 'compute_120', 'compute_80']),
                               ('8.7\\n', ['sm_87', 'compute_80', 'compute_87']),
                               ('14.0\\n', ['sm_120', 'compute_120', 'compute_80'])):  # newer than this nvcc: its PTX is for later GPUs
            with self.subTest(gpus):
                found, out = self.architectures(gpus)
                self.assertEqual(found, expected)
                self.assertNotIn('no GPU here', out)
                self.assertIn(f'CUDA for {" ".join(name for name in expected if name.startswith("sm_"))}: ', out)

    def test_the_ptx_that_a_build_has(self):
        """Every object of kernels can be compiled by the driver for GPUs that the build has no code for."""
        folder = harness.TRAIN.parent / 'kernels' / 'cuda'
        found = {str(path.relative_to(folder)): ptx_of(path) for path in sorted(folder.rglob('*.o'))}
        if not any(found.values()):
            self.skipTest('built without nvcc')
        for name in ('attention_forward.o', 'cublaslt/matmul.o', 'optimizer.o'):
            self.assertIn(80, found[name], name)

    def test_without_a_gpu(self):
        for gpus in '', '7.5\\n':  # too old for the kernels
            found, out = self.architectures(gpus)
            self.assertEqual(found, ['sm_80', 'compute_80'])
            self.assertIn('no GPU here: CUDA for sm_80 only, which later GPUs run too. CUDA_ARCH=all builds for sm_80 sm_86 '
                          'sm_89 sm_90 sm_100 sm_120, CUDA=no without CUDA\n', out)

    def test_what_is_given(self):
        every = [f'sm_{number}' for number in (80, 86, 89, 90, 100, 120)]
        self.assertEqual(self.architectures('9.0\\n', CUDA_ARCH='all')[0], [*every, 'compute_120', 'compute_80'])
        found, out = self.architectures('', CUDA_ARCH='86 90')
        self.assertEqual(found, ['sm_86', 'sm_90', 'compute_80', 'compute_90'])
        self.assertNotIn('no GPU here', out)

    def test_a_declaration_unlike_nvidias_is_found(self):
        """scripts/check_nvidia.sh compiles the check with the project's own header."""
        header = (ROOT / 'zero' / 'comm' / 'nccl' / 'api.h').read_text()
        other = self.folder / 'zero' / 'comm' / 'nccl' / 'api.h'
        other.parent.mkdir(parents=True)
        other.write_text(header.replace('type, int, comm, stream', 'type, comm, stream'))
        process = subprocess.run(['gcc', '-std=c17', f'-I{self.folder}', '-isystem', ROOT / 'build' / 'nvidia' / 'include', '-isystem',
                                  '/usr/local/cuda/include', '-fsyntax-only', ROOT / 'tests' / 'nvidia' / 'check_nccl.c'],
                                 capture_output=True, text=True)
        if 'No such file' in process.stderr:
            self.skipTest('nccl.h or cuda_runtime.h is not installed')
        self.assertIn('ncclSend has other parameters', process.stderr)

    def test_a_line_per_folder(self):
        files = [self.folder / 'build' / name for name in ('base/rng.o', 'base/text.o', 'data/order.o')]
        out = self.make('CUDA=no', '-j2', *files).splitlines()
        self.assertRegex(out[0], rf'^building {self.folder}/build with \S+: \d+ new files, about \d+ s with 2 jobs$')
        self.assertEqual(sorted(out[1:]), ['  compile base', '  compile data'])
        again = self.make('CUDA=no', *files[:1], '-B').splitlines()
        self.assertRegex(again[0], r'with 1 job; make -j\d+ uses all cores$')
        self.assertEqual(again[1:], ['  compile base'])
        whole = self.make('CUDA=no', 'V=1', *files[:1], '-B')
        self.assertRegex(whole, r'-c -o \S+/base/rng\.o base/rng\.c')
        self.assertNotIn('  compile', whole)

    def test_the_cpu_program_shares_the_objects_of_the_release(self):
        out = self.make('VARIANT=cpu', 'OBJECTS=objects', '-n', self.folder / 'build' / 'train')
        self.assertIn('objects/kernels/cuda/stub.o', out)
        self.assertNotIn('kernels/cuda/optimizer', out)
        self.assertNotIn(f'{self.folder}/build/main.o', out)

    def test_benchmarks_of_the_cpu_build_no_cuda(self):
        """make and python3 are replaced by scripts that print how they are called."""
        for name in 'make', 'python3':
            self.program(name, f'#!/bin/sh\necho {name} "$@"\n')
        environment = dict(os.environ, PATH=f'{self.folder / "bin"}:{os.environ["PATH"]}')
        for script, gpu, words, program in (('bench_cpu', True, [], 'cpu/train'), ('bench_optimizer', True, [], 'cpu/tests/bench/bench_optimizer'),
                                            ('bench_zero', False, [], 'cpu/train'), ('bench_zero', True, [], 'release/train'),
                                            ('bench_zero', False, ['--mpirun', 'mpirun -hostfile hosts'], 'release/train')):
            with self.subTest(script=script, gpu=gpu, words=words):
                self.program('nvidia-smi', f'#!/bin/sh\nexit {0 if gpu else 6}\n')
                out = subprocess.run([ROOT / 'scripts' / f'{script}.sh', *words], env=environment, text=True, capture_output=True,
                                     timeout=60).stdout
                self.assertRegex(out, rf'(?m)^make .* VARIANT={program.split(chr(47))[0]} build/{program}$')
                self.assertRegex(out, rf'(?m)^python3 \S+/{script}\.py --\w+ \S+/build/{program}')


if __name__ == '__main__':
    unittest.main()
