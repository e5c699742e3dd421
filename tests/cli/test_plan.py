"""./train plan: table and JSON, agreement with runs, a model of a trillion parameters, --fit, and the ZeRO paper's table."""
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import unittest

import harness
from harness import CommandCase, GOLDEN, ROOT, release_only

KINDS = ['params', 'grads', 'master', 'moments', 'average', 'communication', 'activations', 'logits', 'workspace', 'data']
PROGRAM = 32 << 20  # host memory of a rank that is planned besides the model's
UNITS = {unit: 1024 ** i for i, unit in enumerate(['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'])}

# Table 1 of the ZeRO paper (arXiv 1910.02054), GB per rank: stages 1, 2, 3 of 7.5B, 128B and 1T.
PAPER = {
    1: '120 120 120  2048 2048 2048  16000 16000 16000',
    4: '52.5 41.3 30  896 704 512  7000 5500 4000',
    16: '35.6 21.6 7.5  608 368 128  4750 2875 1000',
    64: '31.4 16.6 1.88  536 284 32  4187 2218 250',
    256: '30.4 15.4 0.47  518 263 8  4046 2054 62.5',
    1024: '30.1 15.1 0.12  513 257 2  4011 2013 15.6',
}


def cells_of(line):
    """The cells of a row, which are separated by two or more spaces."""
    return re.split(r' {2,}', line.strip())


class Plan(CommandCase):
    def plan(self, *arguments, **options):
        return json.loads(self.run_train('plan', *arguments, '--json', **options).out)

    def tables(self, out):
        """The tables by number of ranks, each a list of rows, which map column titles to cells."""
        tables = {}
        for block in out.split('\n\n')[1:]:
            lines = block.splitlines()
            self.assertLessEqual(max(map(len, lines)), 100, block)
            if len(lines) > 1 and lines[1].startswith('stage'):
                rows = tables[int(lines[0].split()[0])] = [[], [], [], []]
                for begin, line in enumerate(lines):
                    if line.startswith('stage'):  # columns that do not fit follow below
                        for row, cells in zip(rows, lines[begin + 1:begin + 5]):
                            row += zip(cells_of(line)[bool(row):], cells_of(cells)[bool(row):])
        return tables

    def check_text(self, text, exact):
        number, unit = text.split()
        size = UNITS[unit]
        self.assertAlmostEqual(float(number) * size, exact, delta=0.051 * size)

    def test_work_of_a_micro_batch_on_a_gpu(self):
        """Launches, FLOPs and bytes of GPT-2 124M, counted without a GPU: by formula, and at most 250 launches."""
        L, C, V, T, padded = 12, 768, 50257, 1024, 50304
        for B, recompute in (4, 'none'), (16, 'none'), (16, 'elementwise'):
            words = (ROOT / 'configs/gpt2-small.json', '--ranks', '1', '--device-memory', '80G', 'device=cuda',
                     f'recompute={recompute}', 'precision.compute=bf16', f'model.vocab_size={V}', f'train.micro_batch_size={B}',
                     'train.train_batch_size=32')
            plan = self.plan(*words)['plans'][0]
            first, further = plan['micro_batch'], plan['further_micro_batch']
            launches = [sum(row['launches'] for row in rows) for rows in (first, further)]
            self.assertEqual(launches, [19 * L + 10, 20 * L + 10])
            self.assertLessEqual(max(launches), 250)
            head = [row for row in first if row['out'] in (V, padded)]
            self.assertEqual([(row['out'], row['launches']) for row in head], [(padded, 1), (padded, 1), (V, 1)])
            attention = 14 * B * T * (T + 1) // 2 * C * L
            self.assertEqual(sum(row['flops'] for row in first),
                             6 * B * T * 12 * L * C * C + attention + 2 * B * T * C * (2 * padded + V))
            # A further micro-batch reads the gradients of weights that it adds to, and adds those of biases.
            self.assertEqual(sum(row['bytes'] for row in further) - sum(row['bytes'] for row in first),
                             4 * (12 * L * C * C + V * C) + 12 * 9 * L * C)
            self.assertIn(f'Launches per micro-batch: {launches[0]} in the first of a step, {launches[1]} in the others; ',
                          self.run_train('plan', *words).out)

    def test_table_and_json_agree(self):
        config = self.tiny_config(zero_optimization={'stage': 2, 'partition': 'layer'})
        tables = self.tables(self.run_train('plan', config).out)
        report = self.plan(config)
        self.assertEqual(list(tables), [1, 2, 4, 8])
        self.assertEqual([p['ranks'] for p in report['plans']], [1, 2, 4, 8])
        self.assertEqual((report['compute'], report['compute_chosen'], report['partition']), ('fp32', False, 'layer'))
        for plan in report['plans']:
            rows = tables[plan['ranks']]
            self.assertEqual([row[0][1] for row in rows], ['0', '1', '*2', '3'])
            self.assertEqual(plan['train_batch_size'], 2 * plan['ranks'])
            for row, stage in zip(rows, plan['stages']):
                self.assertEqual(stage['configured'], stage['stage'] == 2)
                self.assertEqual(list(stage['bytes']), KINDS)
                self.assertEqual(sum(stage['bytes'].values()), stage['total'])
                self.assertLessEqual(stage['least_total'], stage['total'])
                titles = dict(row)
                for kind in KINDS:
                    if kind != 'average':  # a column of runs with train.ema
                        self.check_text(titles[kind], stage['bytes'][kind])
                self.assertEqual((stage['bytes']['average'], 'average' in titles), (0, False))
                self.check_text(titles['model memory'], stage['total'])
                self.assertEqual(int(titles.get('of rank', 0)), stage['rank'])
                self.assertEqual(list(stage['sends']), ['reduce_scatter', 'all_gather'])
                for operation, sent in stage['sends'].items():
                    at = [title for title, _ in row].index(operation)
                    self.check_text(row[at][1], sent['bytes'])
                    self.assertEqual(int(row[at + 1][1]), sent['calls'])

    def test_model_states_match_the_formulas(self):
        report = self.plan(self.tiny_config(precision={'compute': 'bf16'}), '--ranks', '1,2')
        P = report['elements']
        alone, two = (plan['stages'] for plan in report['plans'])
        states = [sum(stage['bytes'][kind] for kind in KINDS[:4]) for stage in alone[:3] + two[:3]]
        self.assertEqual(states, [18 * P] * 3 + [18 * P, 12 * P, 10 * P])
        self.assertEqual([two[0]['sends'][name]['bytes'] for name in two[0]['sends']], [4 * P // 2] * 2)
        self.assertEqual(two[1]['sends']['all_gather']['bytes'], 2 * P // 2)

    def test_an_average_of_the_weights(self):
        config = self.tiny_config(train={'ema': {'type': 'exponential'}})
        P = self.plan(config)['elements']
        plans = self.plan(config, '--ranks', '1,2')['plans']
        self.assertEqual([[stage['bytes']['average'] for stage in plan['stages']] for plan in plans],
                         [[4 * P] * 4, [4 * P] + [2 * P] * 3])
        self.assertIn(' average ', self.run_train('plan', config).out)

    def check_run(self, launcher, config, plan):
        """Trains, and compares the run's metrics with its plan."""
        for stage in plan['stages']:
            shutil.rmtree(self.folder / 'run', ignore_errors=True)
            command = [*launcher, str(harness.TRAIN), str(config), f'zero_optimization.stage={stage["stage"]}']
            environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')
            process = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True,
                                     timeout=300)
            self.assertEqual(process.returncode, 0, process.stderr)
            metrics = self.metrics()[-1]
            self.assertEqual(stage['rank'], 0)  # metrics.jsonl has the figures of rank 0
            for figures in metrics['model_memory_planned'], metrics['model_memory']:
                self.assertEqual({kind: stage['bytes'][kind] for kind in figures}, figures)
            self.assertEqual(metrics['comm_bytes'], sum(sent['bytes'] for sent in stage['sends'].values()))
            self.assertEqual(metrics['comm_calls'], sum(sent['calls'] for sent in stage['sends'].values()))

    def test_runs_match_their_plan(self):
        config = self.tiny_config(train={'max_steps': 2, 'gradient_accumulation_steps': 2})
        alone, two = self.plan(config, '--ranks', '1,2')['plans']
        self.check_run([], config, alone)
        if shutil.which('mpirun') and not harness.SANITIZERS:
            self.check_run(['mpirun', '--oversubscribe', '-n', '2'], config, two)

    def test_logical_ranks(self):
        """Runs of several logical ranks per rank match their plan: partial sums of gradients, and one reduction for each."""
        config = self.tiny_config(train={'max_steps': 2, 'train_batch_size': 16, 'logical_ranks': 4})
        alone, two, three, four = self.plan(config, '--ranks', '1,2,3,4')['plans']
        self.assertIn('which 3 ranks cannot compute', three['refused'])
        self.check_run([], config, alone)
        if shutil.which('mpirun') and not harness.SANITIZERS:
            self.check_run(['mpirun', '--oversubscribe', '-n', '2'], config, two)
        sent = [[stage['sends']['reduce_scatter']['bytes'] for stage in plan['stages']] for plan in (two, four)]
        for stage in range(4):  # of all ranks
            self.assertLessEqual(2 * sent[0][stage], 4 * sent[1][stage])
        kept = self.plan(config, '--ranks', '2', 'train.logical_ranks=2')['plans'][0]
        P = self.plan(config)['elements']
        self.assertEqual([stage['bytes']['grads'] - before['bytes']['grads'] for stage, before in zip(two['stages'], kept['stages'])],
                         [4 * P // 2] * 4)

    def test_ranks_that_the_batch_does_not_divide_by(self):
        config = self.tiny_config(train={'train_batch_size': 8})
        out = self.run_train('plan', config, '--ranks', '1,3,4').out
        self.assertEqual(list(self.tables(out)), [1, 4])
        refused = [line for line in out.splitlines() if line.startswith('3 ranks')]
        self.assertEqual(len(refused), 1)
        self.assertIn('train.train_batch_size 8 is not divisible by 3 ranks', refused[0])
        plans = self.plan(config, '--ranks', '1,3,4')['plans']
        self.assertEqual([p.get('gradient_accumulation_steps') for p in plans], [4, None, 1])
        self.assertIn('is not divisible', plans[1]['refused'])
        self.refuses('plan', config, '--ranks', '3,5', says=['train.train_batch_size', '3 ranks'])

    def test_where_sizes_come_from(self):
        """Sizes from a tokenizer or weights; token shards need not exist."""
        config = self.folder / 'config.json'
        config.write_text(json.dumps({'model': {'n_layer': 1, 'n_head': 1, 'n_embd': 128, 'n_positions': 128},
                                      'data': {'train': 'absent.bin', 'tokenizer': 'bytes'}}))
        block = 12 * 128 * 128 + 13 * 128
        report = self.plan(config, 'precision.compute=fp32', '--ranks', 1)
        self.assertEqual(report['parameters'], 257 * 128 + 128 * 128 + block + 2 * 128)
        self.refuses('plan', config, 'data.tokenizer=absent.tiktoken', says=['absent.tiktoken', 'model.vocab_size'])
        given = self.plan(config, 'data.tokenizer=absent.tiktoken', 'model.vocab_size=300', '--ranks', 1)
        self.assertEqual(given['parameters'] - report['parameters'], 43 * 128)
        config.write_text(json.dumps({'model': {'init_from': str(GOLDEN / 'gpt2-tiny')}}))
        sizes = json.loads((GOLDEN / 'gpt2-tiny' / 'config.json').read_text())
        self.assertEqual(self.plan(config, '--ranks', 2)['parameters'],
                         sizes['n_embd'] * (sizes['vocab_size'] + sizes['n_positions'] + 2) +
                         sizes['n_layer'] * (12 * sizes['n_embd'] ** 2 + 13 * sizes['n_embd']))
        self.refuses('plan', config, 'model.n_layer=77', says=['model.n_layer', '77'])

    def test_the_automatic_compute_dtype_is_reported(self):
        config = self.tiny_config(precision={'compute': 'auto'})
        report = self.plan(config, '--ranks', 2)
        self.assertTrue(report['compute_chosen'])
        flags = pathlib.Path('/proc/cpuinfo').read_text().split()
        self.assertIn(report['compute'], ('fp32', 'bf16') if 'avx512_bf16' in flags else ('fp32',))
        self.assertIn(f'{report["compute"]} (the faster type on this machine)',
                      self.run_train('plan', config, '--ranks', 2).out.splitlines()[0])

    def test_machines(self):
        """Ranks on several machines exchange messages, whose buffers differ in size from those in shared memory."""
        config = self.tiny_config()
        one, = self.plan(config, '--ranks', 8)['plans']
        four, = self.plan(config, '--ranks', 8, '--per-machine', 2)['plans']
        self.assertEqual((one['ranks_per_machine'], four['ranks_per_machine']), (8, 2))
        for a, b in zip(one['stages'], four['stages']):
            self.assertNotEqual(a['bytes']['communication'], b['bytes']['communication'])
            self.assertEqual(a['bytes']['moments'], b['bytes']['moments'])
        apart, = self.plan(config, '--ranks', 8, 'comm.shared_memory=false')['plans']
        self.assertEqual(apart['ranks_per_machine'], 8)  # only the transport differs
        for a, b in zip(one['stages'], apart['stages']):
            self.assertNotEqual(a['bytes']['communication'], b['bytes']['communication'])

    def test_a_model_that_is_far_too_large_is_refused_by_its_plan(self):
        """Not by the measurement before it, whose own matrices would take 32 GiB at this width."""
        config = self.tiny_config(model={'n_embd': 65536, 'n_head': 64}, precision={'compute': 'bf16'})
        self.refuses(config, code=1, says=['the run needs ', 'TiB of model memory per rank', 'use a smaller model'])

    def test_no_line_is_wider_than_100_columns(self):
        """Tables fold between columns, prose and commands between words; folded commands are still commands."""
        for words in (['--ranks', '8', '--per-machine', '4', 'train.ema.type=exponential', 'zero_optimization.partition=layer',
                       'zero_optimization.offload_optimizer.device=cpu'], ['--paper'], ['--fit', '--ranks', '1,3']):
            out = self.run_train('plan', ROOT / 'configs' / 'gpt2-small.json', 'device=cuda', '--device-memory', '6G',
                                 'precision.compute=bf16', *words, cwd=ROOT).out
            for line in out.splitlines():
                if len(line) > 100:  # one word, and its indent
                    self.assertEqual(len(line.rstrip('\\').split()), 1, line)
        command = out[out.index('    ./train'):out.index('    takes')].replace('\\\n', '')
        self.assertEqual(json.loads(self.run_train('plan', ROOT / 'configs' / 'gpt2-small.json', 'device=cuda', '--device-memory',
                                                   '6G', 'precision.compute=bf16', '--fit', '--ranks', '1,3', '--json',
                                                   cwd=ROOT).out)['fits'][0]['proposals'][0]['command'], ' '.join(command.split()))

    def test_presets(self):
        for preset in sorted((ROOT / 'configs').glob('gpt*.json')):
            with self.subTest(preset.name):
                report = self.plan(preset, 'precision.compute=bf16', '--ranks', '8')
                self.assertEqual(len(report['plans'][0]['stages']), 4)

    def test_an_open_micro_batch_by_the_kernel_of_attention(self):
        """As a run chooses it: with the workspace of the kernel that computes attention. cuDNN's is larger."""
        config = self.folder / 'gpu.json'
        model = {'n_layer': 2, 'n_head': 4, 'n_embd': 256, 'n_positions': 1024, 'vocab_size': 512}
        config.write_text(json.dumps({'device': 'cuda', 'model': model, 'precision': {'compute': 'bf16'},
                                      'train': {'train_batch_size': 64}}))
        plans = [self.plan(config, '--device-memory', '900M', f'attention={kernel}')['plans'][0]
                 for kernel in ('flash', 'cudnn', 'auto')]
        self.assertEqual([plan['micro_batch_size'] for plan in plans], [32, 16, 16])

    def test_a_trillion_parameters(self):
        """Takes less than a second of CPU time. Three are allowed, because other programs may share the caches."""
        config = self.folder / 'trillion.json'
        config.write_text(json.dumps({
            'model': {'n_layer': 128, 'n_embd': 25600, 'n_head': 160, 'vocab_size': 50257, 'n_positions': 2048},
            'train': {'micro_batch_size': 1}, 'precision': {'compute': 'bf16'}}))
        for ranks in '1,2,4,8', '1024':
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            report = self.plan(config, '--ranks', ranks)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            P = report['parameters']
            self.assertGreater(P, 1e12)
            for plan in report['plans']:
                self.assertGreaterEqual(plan['stages'][0]['total'], 18 * P)
                self.assertAlmostEqual(plan['stages'][3]['bytes']['moments'], 8 * P / plan['ranks'], delta=1e-3 * P)
            if not harness.SANITIZERS:
                self.assertLess(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 3)

    @release_only('test_a_trillion_parameters')
    def test_thousands_of_ranks(self):
        """The largest model that the options allow is planned within seconds."""
        trillion = {'n_layer': 128, 'n_embd': 25600, 'n_head': 160, 'vocab_size': 51200, 'n_positions': 2048}
        largest = {'n_layer': 1024, 'n_embd': 65536, 'n_head': 1024, 'vocab_size': 65536, 'n_positions': 2048}
        for model, ranks in (trillion, 1024), (trillion, 4096), (largest, 4096):
            config = self.folder / 'large.json'
            config.write_text(json.dumps({
                'model': model, 'train': {'micro_batch_size': 1, 'seq_len': 2048}, 'recompute': 'block',
                'precision': {'compute': 'bf16'}, 'zero_optimization': {'stage': 3}}))
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            plan = self.plan(config, '--ranks', str(ranks), '--per-machine', '8')['plans'][0]['stages'][3]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            print(f'{ranks} ranks, {model["n_layer"]} blocks of {model["n_embd"]}: {plan["total"] / 1e9:.1f} GB; '
                  f'planned in {seconds:.2f} s of processor time')
            # Two slots in bf16 and two fp32 buffers for a block, and one for the embeddings' gradients.
            C, V, T = (model[name] for name in ('n_embd', 'vocab_size', 'n_positions'))
            held = 2 * (2 + 4) * 12 * C * C + 4 * (V + T) * C
            self.assertAlmostEqual(plan['bytes']['communication'], held, delta=0.01 * held)
            if not harness.SANITIZERS:
                self.assertLess(seconds, 5)

    def test_bad_arguments(self):
        config = self.tiny_config()
        for arguments, says in (
            ([], ['CONFIG.json']),
            ([config, '--ranks', '1,x'], ['--ranks', '1,x']),
            ([config, '--ranks', '1,,2'], ['--ranks']),
            ([config, '--ranks', '0'], ['--ranks']),
            ([config, '--ranks', '-1'], ['--ranks']),
            ([config, '--ranks', '99999999999999999999'], ['--ranks']),
            ([config, '--ranks', ''], ['--ranks']),
            ([config, '--ranks'], ['--ranks']),
            ([config, '--ranks', ','.join(['1'] * 65)], ['--ranks', '64']),
            ([config, '--rank', '1'], ['--rank', 'did you mean --ranks']),
            ([config, '--per-machine', 'x'], ['--per-machine']),
            ([config, 'model.n_layers=3'], ['n_layers', 'n_layer']),
            (['absent.json'], ['absent.json']),
            ([config, 'model.n_head=3'], ['model.n_head']),
            ([config, 'zero_optimization.reduce_bucket_size=1', 'model.n_embd=512'], ['reduce_bucket_size']),
        ):
            with self.subTest(arguments):
                self.refuses('plan', *arguments, says=says)


class Fit(CommandCase):
    """--fit: runs with the proposed options use the printed memory."""

    def fit(self, *arguments, code=0, **options):
        run = self.run_train('plan', *arguments, '--fit', '--json', code=code, **options)
        return json.loads(run.out)['fits']

    def proposals(self, *arguments, **options):
        case, = self.fit(*arguments, **options)
        return case['proposals']

    def test_the_least_memory_that_fits(self):
        config = self.tiny_config(train={'micro_batch_size': 4})
        for ranks in 1, 2:
            first = self.proposals(config, '--ranks', ranks)[0]
            needed = ranks * (first['host_bytes'] + PROGRAM)
            again = self.proposals(config, '--ranks', ranks, '--host-memory', needed)[0]
            self.assertEqual(again['overrides'], first['overrides'])
            less = self.proposals(config, '--ranks', ranks, '--host-memory', needed - 1)[0]
            self.assertNotEqual(less['overrides'], first['overrides'])
            self.assertLess(less['host_bytes'], first['host_bytes'])

    def test_proposals_train(self):
        """Lowers the memory limit until nothing fits, and trains with the first proposal each time: it uses the printed
        memory, and losses are bitwise equal where the proposal claims it."""
        config = self.ranks_config(train={'train_batch_size': 8, 'gradient_accumulation_steps': 2, 'max_steps': 3})
        for ranks in (1, 2) if shutil.which('mpirun') and not harness.SANITIZERS else (1,):
            self.run_words(ranks, config, [])
            expected, limit, seen = self.curve(), 1 << 34, 0
            while found := self.fit_within(config, ranks, limit)['proposals']:
                first = found[0]
                self.run_words(ranks, config, first['overrides'].split())
                taken = sum(self.metrics()[-1]['model_memory'].values())
                self.assertLessEqual(taken, first['host_bytes'])
                self.assertGreater(taken, 0.98 * first['host_bytes'])  # the rest is padding
                if first['same_bits']:
                    self.assertEqual(self.curve(), expected, first)
                for (_, loss, _), (_, wanted, _) in zip(self.curve(), expected):
                    self.assertAlmostEqual(loss, wanted, delta=1e-5)
                limit, seen = ranks * (first['host_bytes'] + PROGRAM) - 1, seen + 1
            self.assertGreater(seen, 3)

    def fit_within(self, config, ranks, limit):
        """Runs --fit with this much host memory; the exit code is 1 if nothing fits."""
        process = self.start('plan', config, '--fit', '--json', '--ranks', ranks, '--host-memory', limit)
        case, = json.loads(process.communicate(timeout=300)[0])['fits']
        self.assertEqual(process.returncode, 0 if case['proposals'] else 1)
        return case

    def run_words(self, ranks, config, words):
        shutil.rmtree(self.folder / 'run', ignore_errors=True)
        if ranks == 1:
            self.run_train(config, *words)
        else:
            self.run_ranks(ranks, config, *words)

    def test_the_command_merges_overrides(self):
        config = self.tiny_config()
        first = self.proposals(config, 'recompute=block', 'data.train=a b', '--ranks', 2)[0]
        words = shlex.split(first['command'])
        self.assertEqual(words[:5], ['mpirun', '-n', '2', './train', str(config)])
        self.assertIn('data.train=a b', words)
        self.assertEqual([word for word in words if word.startswith('recompute')], ['recompute=elementwise'])
        out = self.run_train('plan', config, 'recompute=block', '--fit', '--ranks', 1).out
        self.assertIn(f'./train {config} recompute=elementwise\n', out)
        self.assertRegex(out, r'\n  \d+ x \d+ sequences per rank\n')

    def test_an_absent_gpu(self):
        """Plans for a GPU do not need CUDA in the build."""
        xl = ROOT / 'configs' / 'gpt2-xl.json'
        case, = self.fit(xl, '--device-memory', '24G', '--host-memory', '64G', '--ranks', 1)
        first = case['proposals'][0]
        self.assertIn('zero_optimization.offload_optimizer.device=cpu', first['overrides'])
        self.assertLessEqual(first['device_bytes'], 23.5 * 2**30)
        self.assertEqual(len(case['proposals']), 3)
        for one, other in zip(case['proposals'], case['proposals'][1:]):
            self.assertLessEqual(other['device_bytes'], 0.9 * one['device_bytes'])
        report = json.loads(self.run_train('plan', xl, 'device=cuda', '--device-memory', '24G', '--ranks', '1,8', '--json').out)
        self.assertEqual((report['gpu_is_planned'], report['compute']), (True, 'bf16'))
        alone, eight = report['plans']
        self.assertEqual([stage['fits'] for stage in alone['stages']], [False] * 4)
        self.assertEqual([stage['fits'] for stage in eight['stages']], [False, True, True, True])
        out = self.run_train('plan', xl, 'device=cuda', '--device-memory', '24G', '--ranks', '8').out
        self.assertIn('Stages that fit into 23.5 GiB of GPU memory per rank: 1, 2, 3\n', out)

    def test_flash_where_the_workspace_of_cudnn_is_too_large(self):
        config = self.tiny_config(device='cuda', precision={'compute': 'bf16'}, train={'micro_batch_size': 1},
                                  model={'n_layer': 1, 'n_head': 8, 'n_embd': 512, 'n_positions': 4096})
        limits = '--ranks', 1, '--host-memory', '8G', '--device-memory'
        self.assertNotIn('attention', self.proposals(config, *limits, '8G')[0]['overrides'])
        flash = self.proposals(config, 'attention=flash', *limits, '8G')[0]['device_bytes']
        first = self.proposals(config, *limits, flash + (16 << 20))[0]
        self.assertEqual((first['overrides'], first['device_bytes']), ('attention=flash', flash))

    def test_the_host_has_room_for_the_program_too(self):
        config = self.tiny_config()
        most = max(s['total'] for s in json.loads(self.run_train('plan', config, '--ranks', 1, '--json').out)['plans'][0]['stages'])
        for limit, fits in (most + PROGRAM + 65536, True), (PROGRAM, False):
            out = self.run_train('plan', config, '--ranks', 1, '--host-memory', limit, '--json').out
            plan, = json.loads(out)['plans']
            self.assertEqual([stage['fits'] for stage in plan['stages']], [fits] * 4)

    def test_the_limit_of_a_process(self):
        """ulimit -v limits what is available on this machine, and what a run may take."""
        def limited(*arguments):
            return subprocess.run(['sh', '-c', 'ulimit -v 400000; exec "$@"', 'sh', str(harness.TRAIN), *map(str, arguments)],
                                  cwd=self.folder, capture_output=True, text=True, timeout=300)
        if harness.SANITIZERS:
            self.skipTest('sanitizers reserve address space')
        large = self.tiny_config(model={'n_embd': 1024, 'vocab_size': 50257})
        plan = limited('plan', large, '--fit', '--ranks', 1)
        self.assertEqual(plan.returncode, 1)
        self.assertRegex(plan.stderr, r'of which ulimit -v leaves \S+ MiB to each process')
        run = limited(large)
        self.assertEqual(run.returncode, 1)
        self.assertIn('MiB are available', run.stderr)

    def test_cuda_without_a_gpu_is_planned(self):
        out = self.run_train('plan', self.tiny_config(device='cuda'), '--ranks', 1,
                             environment={'CUDA_VISIBLE_DEVICES': ''}).out
        self.assertIn('For a GPU that is not in this machine', out)

    @release_only('unit/trainer/test_fit')
    def test_nothing_fits(self):
        big = ROOT / 'configs' / 'gpt3-13b.json'
        limits = ('--device-memory', '8G', '--host-memory', '32G')
        case, = self.fit(big, *limits, '--ranks', 1, code=1)
        self.assertEqual((case['proposals'], case['preset']), ([], 'configs/gpt2-xl.json'))
        run = self.refuses('plan', big, '--fit', *limits, '--ranks', '1,2', code=1,
                           says=['no setting fits', 'configs/gpt2-xl.json'])
        self.assertIn('nothing fits; the largest preset that fits is configs/gpt2-xl.json\n', run.out)
        self.refuses('plan', big, '--fit', '--device-memory', '1M', '--ranks', 1, code=1, says=['no preset'])
        # Exit code 0 if the run fits on one of the numbers of ranks.
        cases = self.fit(big, '--device-memory', '80G', '--host-memory', '64G', '--ranks', '1,64')
        self.assertEqual([bool(case['proposals']) for case in cases], [False, True])

    def test_ranks_that_the_batch_does_not_divide_by(self):
        config = self.tiny_config(train={'train_batch_size': 8})
        one, three = self.fit(config, '--ranks', '1,3')
        self.assertTrue(one['proposals'])
        self.assertIn('is not divisible', three['refused'])
        self.refuses('plan', config, '--fit', '--ranks', '3', says=['is not divisible'])

    def test_bad_arguments(self):
        config = self.tiny_config()
        cuda = self.tiny_config('cuda.json', device='cuda')
        for arguments, says in (
            ([config, '--device-memory', '24G'], ['--device-memory', 'device is cpu', '--host-memory']),
            ([cuda, '--device-memory', '24X'], ['--device-memory', '24X', '24G']),
            ([cuda, '--device-memory', '0'], ['--device-memory', 'from 1 B']),
            ([cuda, '--host-memory', '-1'], ['--host-memory', '-1', 'a size']),
            ([cuda, '--host-memory'], ['--host-memory']),
            ([config, '--fit', '--paper'], ['--fit', '--paper']),
            ([config, '--fit', 'model.n_head=3'], ['model.n_head']),
        ):
            with self.subTest(arguments):
                self.refuses('plan', *arguments, says=says)
        self.refuses('plan', cuda, '--fit', says=['has no GPU', '--device-memory'],
                     environment={'CUDA_VISIBLE_DEVICES': ''})

    def test_speed(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.fit(ROOT / 'configs' / 'gpt3-13b.json', '--device-memory', '24G', '--host-memory', '512G', '--ranks', 64,
                 '--per-machine', 8)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not harness.SANITIZERS:
            self.assertLess(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 5)


class Paper(CommandCase):
    def test_every_cell(self):
        out = self.run_train('plan', '--paper').out
        rows = [line.split() for line in out.splitlines() if re.match(r' *\d+ ', line)]
        self.assertEqual({int(row[0]): row[1:] for row in rows},
                         {ranks: row.split() for ranks, row in PAPER.items()})
        for word in 'fp32', '18 bytes', '16 in fp32':
            self.assertIn(word, out)

    def test_json_follows_the_formulas(self):
        cells = json.loads(self.run_train('plan', '--paper', '--json').out)['paper']
        self.assertEqual(len(cells), 3 * 6 * 3)
        for cell in cells:
            P, N, stage = cell['parameters'], cell['ranks'], cell['stage']
            bytes_of = {1: 4 * P + 12 * P / N, 2: 2 * P + 14 * P / N, 3: 16 * P / N}
            self.assertAlmostEqual(cell['bytes'], bytes_of[stage], delta=0.5)

    def test_with_a_plan(self):
        out = self.run_train('plan', self.tiny_config(), '--ranks', '2', '--paper').out
        self.assertIn('2 ranks', out)
        self.assertIn('4187', out)


if __name__ == '__main__':
    unittest.main()
