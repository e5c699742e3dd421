"""The other commands: help, check, options, tokenizer, tokenize, generate, eval, inspect, bench."""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import unittest

import harness
from harness import CommandCase, GOLDEN, ROOT, release_only, shared


class Help(CommandCase):
    def test_help_names_every_command(self):
        out = self.run_train('help').out
        for command in ('check', 'plan', 'options', 'generate', 'eval', 'tokenizer', 'tokenize', 'inspect', 'checkpoint',
                        'bench', 'from-deepspeed'):
            self.assertIn(command, out)
            self.assertIn(command, self.run_train('help', command).out)

    def test_version(self):
        first, *lines = self.run_train('--version').out.splitlines()
        number = r'zero\.c \d+\.\d+\.\d+'
        self.assertRegex(first, number + r' \((commit [0-9a-f]{12}(-dirty)?|unknown commit)\)$')
        described = dict(re.split(r'  +', line, maxsplit=1) for line in lines)
        for name in 'oneDNN', 'MPI', 'cJSON', 'utf8proc', 'zlib', 'zstd', 'xxHash', 'libsodium', 'hwloc', 'libmicrohttpd':
            self.assertRegex(described[name], r'\d+\.\d+', name)
        self.assertRegex(described['compiler'], r'gcc|[Cc]lang')
        self.assertRegex(described['GPU architectures'], r'^(none: built .*|\d+\.\d( \d+\.\d)*)$')
        self.assertIn('cuBLAS', described)
        self.assertRegex(described['cuDNN'], r'^(\d+\.\d+\.\d+|no: .*|not used: .*)$')

    def test_checkpoints_keep_the_version(self):
        version = self.run_train('--version').out.splitlines()[0]
        self.run_train(self.tiny_config(), 'train.max_steps=2')
        manifest = json.loads(next(self.folder.glob('run/checkpoints/step-*/manifest.json')).read_text())
        self.assertEqual('zero.c ' + manifest['version'], version)
        self.assertIn('written by ' + version, self.run_train('inspect', 'run').out)

    def test_a_build_without_a_repository(self):
        """A source tarball, unpacked inside another repository, must not report that repository's commit."""
        source = self.folder / 'outer' / 'zero.c'
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns('.git', 'build', 'runs', 'train'))
        if shutil.which('git'):
            subprocess.run(['git', 'init', '-q', source.parent], check=True)
        built = subprocess.run(['make', 'CUDA=no', 'build/release/cli/version.o'], cwd=source, capture_output=True,
                               text=True, timeout=300)
        self.assertEqual(built.returncode, 0, built.stderr)
        self.assertIn(b'(unknown commit)', (source / 'build' / 'release' / 'cli' / 'version.o').read_bytes())

    def test_no_arguments(self):
        process = self.run_train(code=2)
        self.assertIn('usage: ', process.error)
        self.assertEqual(process.out, '')


class Options(CommandCase):
    def test_options_md_is_up_to_date(self):
        self.assertEqual(self.run_train('options').out, (ROOT / 'configs' / 'OPTIONS.md').read_text())

    def test_check_prints_a_valid_config(self):
        out = self.run_train('check', self.tiny_config(), 'train.seed=7').out
        config = json.loads(out)
        self.assertEqual(config['train']['seed'], 7)
        (self.folder / 'resolved.json').write_text(out)
        self.assertEqual(self.run_train('check', 'resolved.json').out, out)

    def assert_resolved(self, resolved, given, path):
        """What a preset gives stands in the resolved config."""
        if isinstance(given, dict):
            for name, value in given.items():
                self.assert_resolved(resolved[name], value, f'{path}.{name}')
        else:
            self.assertIn(resolved, (given, [given]), path)

    def test_presets(self):
        for preset in sorted((ROOT / 'configs').glob('*.json')):
            if preset.name != 'quickstart.json':
                with self.subTest(preset.name):
                    resolved = json.loads(self.run_train('check', preset).out)
                    self.assert_resolved(resolved, json.loads(preset.read_text()), preset.name)

    def test_empty_config_is_gpt2_small(self):
        (self.folder / 'empty.json').write_text('{}')
        model = json.loads(self.run_train('check', 'empty.json').out)['model']
        self.assertEqual([model[k] for k in ('n_layer', 'n_head', 'n_embd', 'vocab_size', 'n_positions')],
                         [12, 12, 768, 50257, 1024])


class FromDeepSpeed(CommandCase):
    """The values are checked in tests/unit/options/test_deepspeed.c."""

    def setUp(self):
        super().setUp()
        (self.folder / 'ds.json').write_text(json.dumps({
            'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 2, 'gradient_accumulation_steps': 'auto',
            'optimizer': {'type': 'AdamW', 'params': {'lr': 3e-4, 'weight_decay': 'auto'}},
            'bf16': {'enabled': False},
            'zero_optimization': {'stage': 2, 'overlap_comm': True, 'zero_quantized_gradients': True},
            'aio': {'queue_depth': 8}}))

    def test_answers_and_a_config_that_trains(self):
        process = self.run_train('from-deepspeed', 'ds.json')
        config = json.loads(process.out)
        self.assertEqual(config['optimizer']['lr'], 3e-4)
        self.assertEqual(config['zero_optimization'], {'stage': 2, 'overlap_comm': True})
        for line in ('train_micro_batch_size_per_gpu 2 -> train.micro_batch_size=2',
                     'optimizer.params.weight_decay "auto" -> optimizer.weight_decay=0 (the Trainer\'s weight_decay',
                     'zero_optimization.zero_quantized_gradients true: gradients are sent without quantization',
                     'aio: it is for offloading to NVMe'):
            self.assertIn('  ' + line, process.error)
        self.assertIn('Warning: these change what the run computes (1):', process.error)
        self.assertIn('train.max_steps, the length of the run (20000 now)', process.error)
        self.assertLessEqual(max(map(len, process.error.splitlines())), 100)
        out = self.run_train('from-deepspeed', 'ds.json', '--out', 'mine.json').out
        self.assertIn('ds.json is translated to mine.json', out)
        self.assertEqual(json.loads((self.folder / 'mine.json').read_text()), config)
        tiny = json.loads(self.tiny_config().read_text())
        self.run_train('mine.json', f'data.train={tiny["data"]["train"]}', 'train.max_steps=1', 'run.dir=run', 'run.threads=1',
                       *(f'model.{key}={value}' for key, value in tiny['model'].items()))

    def test_comments(self):
        (self.folder / 'ds.hjson').write_text('{"train_batch_size": 8, // all ranks\n "zero_optimization": {"stage": 1,},\n}')
        config = json.loads(self.run_train('from-deepspeed', 'ds.hjson').out)
        self.assertEqual((config['train']['train_batch_size'], config['zero_optimization']['stage']), (8, 1))
        (self.folder / 'ds.hjson').write_text('{ // one\n "train_batch_size" 8}')
        self.refuses('from-deepspeed', 'ds.hjson', says=['ds.hjson:2:21: a comma, colon or quote is missing'])

    def test_refusals(self):
        self.refuses('from-deepspeed', says=['usage: train from-deepspeed'])
        self.refuses('from-deepspeed', 'absent.json', says=['absent.json'])
        self.refuses('from-deepspeed', 'ds.json', '--out', 'ds.json', '--force', says=['would overwrite its input ds.json'])
        self.refuses('from-deepspeed', ROOT / 'configs/quickstart.json', says=['is a zero.c configuration already'])
        self.refuses('from-deepspeed', 'ds.json', '--out', 'absent/x.json', code=1, says=['cannot write absent/x.json: '])
        before = self.tiny_config().read_text()
        self.refuses('from-deepspeed', 'ds.json', '--out', 'tiny.json', says=['would overwrite tiny.json, which exists; ', '--out', '--force'])
        self.assertEqual((self.folder / 'tiny.json').read_text(), before)
        self.run_train('from-deepspeed', 'ds.json', '--out', 'tiny.json', '--force')
        self.refuses('check', 'ds.json', says=['./train from-deepspeed ds.json translates it',
                                               'train_micro_batch_size_per_gpu, a name of DeepSpeed'])


class Text(CommandCase):
    sentence = 'It was a dark and stormy night; the rain fell in torrents — naïve, isn’t it? 12345\n'

    def test_bytes_round_trip(self):
        ids = self.run_train('tokenizer', 'encode', '--tokenizer', 'bytes', text=self.sentence).out.split()
        self.assertEqual(list(map(int, ids)), list(self.sentence.encode()))
        back = self.run_train('tokenizer', 'decode', '--tokenizer', 'bytes', text=' '.join(ids)).out
        self.assertEqual(back, self.sentence)

    def test_train_a_tokenizer_encode_and_tokenize(self):
        text = self.folder / 'a text.txt'
        text.write_text(self.sentence * 200)
        self.run_train('tokenizer', 'train', text, '--vocab-size', 300, '--out', 'bpe.tiktoken')
        ids = self.run_train('tokenizer', 'encode', '--tokenizer', 'bpe.tiktoken', text=self.sentence).out
        self.assertLess(len(ids.split()), len(self.sentence.encode()))
        self.assertEqual(self.run_train('tokenizer', 'decode', '--tokenizer', 'bpe.tiktoken', text=ids).out,
                         self.sentence)
        self.run_train('tokenize', text, '--tokenizer', 'bpe.tiktoken', '--out', 'shards', '--split', '0.1')
        meta = json.loads((self.folder / 'shards' / 'meta.json').read_text())
        self.assertEqual(meta['train']['bytes'] + meta['val']['bytes'], text.stat().st_size)
        self.assertAlmostEqual(meta['val']['bytes'] / text.stat().st_size, 0.1, delta=0.01)
        for split in 'train', 'val':
            shard = next((self.folder / 'shards').glob(f'{split}*.bin')).read_bytes()
            magic, version, count = struct.unpack('<3i', shard[:12])
            self.assertEqual((magic, version, count), (20240520, 1, meta[split]['tokens']))
            self.assertEqual(len(shard), 1024 + 2 * count)
        out = self.run_train('inspect', next((self.folder / 'shards').glob('train*.bin'))).out
        self.assertIn(str(meta['train']['tokens']), out.replace(',', ''))

    def test_invalid_tokenizer_file(self):
        (self.folder / 'bad.tiktoken').write_text('IQ== 0\nnot base64\n')
        self.refuses('tokenizer', 'encode', '--tokenizer', 'bad.tiktoken', text='x', says=['bad.tiktoken', '2'])

    @release_only('unit/data/test_tokenizer')
    def test_gpt2_golden(self):
        tokenizer = shared('data/gpt2.tiktoken')
        if not tokenizer:
            self.skipTest('gpt2.tiktoken is not on this machine')
        for case in json.loads((GOLDEN / 'gpt2-bpe.json').read_text())['cases']:
            ids = self.run_train('tokenizer', 'encode', '--tokenizer', tokenizer, text=case['text']).out
            self.assertEqual(list(map(int, ids.split())), case['ids'], case['text'])


class TrainedModel(CommandCase):
    """A byte-level model trained on one sentence until it reproduces it."""
    sentence = 'the quick brown fox jumps over the lazy dog. '

    def setUp(self):
        super().setUp()
        text = self.folder / 'text.txt'
        text.write_text(self.sentence * 300)
        self.run_train('tokenize', text, '--tokenizer', 'bytes', '--out', 'shards', '--split', '0.1')
        steps = 30 if harness.SANITIZERS else 250
        self.config = self.tiny_config(
            model={'vocab_size': 257, 'n_positions': 64, 'n_embd': 64}, optimizer={'lr': 5e-3},
            data={'train': str(self.folder / 'shards/train-*.bin'), 'tokenizer': 'bytes'},
            train={'max_steps': steps, 'micro_batch_size': 4, 'seq_len': 64})
        self.run_train(self.config)

    def check_batches(self, run):
        """Several prompts and samples are printed in order, and batching does not change their text."""
        prompts = ['the quick', 'dog', '', 'jumps over the lazy dog. the quick brown fox jumps']
        (self.folder / 'prompts').write_text('\n'.join(prompts) + '\n')
        several = ['generate', run, '--prompts', self.folder / 'prompts', '--samples', 2, '--tokens', 90, '--seed', 5]
        outs = [self.run_train(*several, '--batch', batch).out for batch in (1, 3, 8)]
        texts = outs[0].split('\n---\n')
        self.assertEqual(len(texts), 8)
        for i, text in enumerate(texts):
            self.assertTrue(text.startswith(prompts[i // 2]))
        self.assertEqual(outs[0], outs[1])
        self.assertEqual(outs[0], outs[2])
        one = self.run_train('generate', run, '--prompt', prompts[0], '--samples', 2, '--tokens', 90, '--seed', 5).out
        self.assertEqual(one, '\n---\n'.join(texts[:2]) + '\n')
        self.refuses('generate', run, '--prompt', 'a', '--prompts', self.folder / 'prompts', says=['--prompts'])
        (self.folder / 'prompts').write_text('')
        self.refuses('generate', run, '--prompts', self.folder / 'prompts', says=['no prompt'])

    def test_everything(self):
        run = self.folder / 'run'
        arguments = ['generate', run, '--prompt', 'the quick', '--tokens', 120, '--temperature', 0]
        first = self.run_train(*arguments).out
        self.assertTrue(first.startswith('the quick'))
        self.assertEqual(first, self.run_train(*arguments).out)
        checkpoint = self.checkpoints()[-1]
        self.assertEqual(first, self.run_train('generate', checkpoint, *arguments[2:]).out)
        if not harness.SANITIZERS:
            self.assertIn(self.sentence * 2, first)
        sampled = [self.run_train('generate', run, '--tokens', 20, '--temperature', 1.5, '--top-k', 50, '--top-p', 0.9,
                                  '--seed', seed).out for seed in (1, 1, 2)]
        self.assertEqual(sampled[0], sampled[1])
        self.assertNotEqual(sampled[0], sampled[2])
        self.check_batches(run)

        report = json.loads(self.run_train('eval', run, '--data', 'shards/val-*.bin', '--json').out)
        self.assertAlmostEqual(report['perplexity'], math.exp(report['loss']), delta=1e-3 * report['perplexity'])
        self.assertAlmostEqual(report['bits_per_byte'], report['loss'] / math.log(2), places=4)
        if not harness.SANITIZERS:
            self.assertLess(report['loss'], 0.5)
        for path, word in ((run, 'checkpoint'), (checkpoint, 'step')):
            self.assertIn(word, self.run_train('inspect', path).out.lower())
        self.refuses('eval', run, '--data', 'absent.bin', says=['absent.bin'])
        self.refuses('generate', self.folder / 'nowhere', says=['nowhere'])


class Inspect(CommandCase):
    def test_safetensors(self):
        out = self.run_train('inspect', GOLDEN / 'gpt2-tiny' / 'model.safetensors').out
        self.assertIn('wte.weight', out)
        self.assertIn('257', out)

    def test_unknown_file(self):
        (self.folder / 'noise').write_bytes(os.urandom(64))
        self.refuses('inspect', 'noise', says=['noise'])


@unittest.skipIf(harness.SANITIZERS, 'sanitizers distort speed')
class Bench(CommandCase):
    def test_bench_of_generation(self):
        for model in {'n_positions': 6}, {'family': 'llama', 'n_kv_head': 1, 'qk_norm': True, 'tied': False}:
            config = self.tiny_config(model={'n_layer': 3, **model})
            lines = self.run_train('bench', '--generate', config, '--quick', '--json', '--threads', 1).out.splitlines()
            found = [json.loads(line) for line in lines]
            self.assertEqual([(one['type'], one['batch']) for one in found],
                             [(dtype, batch) for dtype in ('fp32', 'bf16', 'fp16') for batch in (1, 2, 4, 8, 16, 32)])
            for one in found:
                self.assertGreater(min(value for name, value in one.items() if name != 'type'), 0)
                self.assertAlmostEqual(one['tokens_per_s'] * one['step_s'] / one['batch'], 1, 4)
        self.refuses('bench', '--generate', self.tiny_config(model={'n_positions': 5}), says=['model.n_positions is 5'])

    def test_bench_measures_positive_rates(self):
        report = json.loads(self.run_train('bench', '--quick', '--json').out)
        for name in 'gemm_fp32_flops_per_s', 'gemm_bf16_flops_per_s', 'bandwidth_bytes_per_s':
            self.assertGreater(report[name], 0)
        for case in report['operations']:
            with self.subTest(case['operation']):
                rate = report['bandwidth_bytes_per_s' if case['limit'] == 'bandwidth'
                              else f'gemm_{case["type"]}_flops_per_s']
                done = case['bytes' if case['limit'] == 'bandwidth' else 'flops'] / case['seconds']
                self.assertAlmostEqual(case['of_limit'] * rate / done, 1, delta=1e-3)


if __name__ == '__main__':
    unittest.main()
