"""run.profile: figures add up, FLOPs match the model's formula, spans nest, and profiling changes no bit of the run."""
import collections
import json
import signal
import unittest

import harness
from harness import CommandCase

ROUNDING_US = 0.002  # the timeline's figures have three decimals


def matrix_flops(model, B, T, recompute=False):
    """FLOPs of matrix products of B sequences forward and backward, counted product by product."""
    L, C, V = model['n_layer'], model['n_embd'], model['vocab_size']
    pairs = T * (T + 1) // 2
    linear = 2 * B * T * 12 * C * C
    attention = 2 * 2 * B * pairs * C
    again = (L - 1) * (linear - 2 * B * T * 4 * C * C + attention) if recompute else 0  # a block without its last product
    return L * (3 * linear + attention * 7 // 2) + 6 * B * T * C * V + again


def parameters(model):
    L, C = model['n_layer'], model['n_embd']
    return 12 * L * C * C + 13 * L * C + 2 * C + C * (model['vocab_size'] + model['n_positions'])


class ProfileCase(CommandCase):
    def profiled(self, config, *arguments, ranks=1, run='run'):
        """Runs with and without a profile, checks that both are equal to the bit, and returns profile and trace."""
        for folder, profile in ((run, 'true'), (f'{run}-off', 'false')):
            words = (config, *arguments, f'run.profile={profile}', f'run.dir={self.folder / folder}')
            process = self.run_ranks(ranks, *words) if ranks > 1 else self.run_train(*words)
            if profile == 'true':
                self.error = process.error
        self.assertEqual(self.curve(run), self.curve(f'{run}-off'))
        self.assertEqual(self.final_state(run), self.final_state(f'{run}-off'))
        self.assertFalse((self.folder / f'{run}-off' / 'profile.json').exists())
        self.assertEqual(list((self.folder / run).glob('*.part')), [])
        for step in self.metrics(run):
            self.assertEqual(step['model_memory'], step['model_memory_planned'])
        return [json.loads((self.folder / run / name).read_text()) for name in ('profile.json', 'trace.json')]

    def check_sums(self, profile, ranks, steps):
        self.assertEqual([rank['rank'] for rank in profile['ranks']], list(range(ranks)))
        for rank in profile['ranks']:
            self.assertEqual([step['step'] for step in rank['steps']], list(range(1, steps + 1)))
            for whole in (*rank['steps'], rank['summary']):
                lines = [line for line in whole['operations'] if line.get('counts', True)]
                self.assertAlmostEqual(sum(line['seconds'] for line in lines) + whole['other_seconds'],
                                       whole['seconds'], delta=1e-9)
                self.assertAlmostEqual(sum(line['share'] for line in lines) + whole['other_share'], 1, delta=1e-9)
                self.assertGreaterEqual(whole['other_share'], -1e-9)
                for line in lines:
                    self.check_limit(rank, line)
            self.assertEqual(rank['events_left_out'], 0)
            self.check_summary(rank)

    def check_limit(self, rank, line):
        least = {'GEMM': line['flops'] / rank['gemm_flops_per_s'],
                 'bandwidth': line['bytes'] / rank['bandwidth_bytes_per_s']}
        if 'limit' in line:
            self.assertEqual(least[line['limit']], max(least.values()))
            self.assertAlmostEqual(line['of_limit'] * line['seconds'] / least[line['limit']], 1, delta=1e-9)

    def check_newton_schulz(self, config):
        """Of a run with Muon: its iterations are one line of the table, with the FLOPs that were planned, in the update."""
        self.micro_batches = 1
        profile, trace = self.profiled(config)
        self.assertRegex(self.error, r'\nnewton_schulz +\d+ .* of ')
        plan = json.loads(self.run_train('plan', config, '--ranks', 1, '--json').out)['plans'][0]
        self.assertGreater(plan['newton_schulz_flops'], 0)
        self.assertEqual(plan['newton_schulz_flops_most'], plan['newton_schulz_flops'])
        for step in profile['ranks'][0]['steps']:
            lines = [line for line in step['operations'] if line['layer'] == 'newton_schulz']
            self.assertEqual(sum(line['flops'] for line in lines), plan['newton_schulz_flops'])
            self.assertEqual({line['phase'] for line in lines}, {'update'})
            linear = [line for line in step['operations'] if line['name'].startswith('linear') and line not in lines]
            self.assertNotIn('update', {line['phase'] for line in linear})

    def check_summary(self, rank):
        """The summary is the sum over all steps but the first."""
        steps = rank['steps'][1:]
        self.assertEqual((rank['summary']['first_step'], rank['summary']['steps']), (2, len(steps)))
        self.assertEqual(rank['summary']['launches'], sum(step['launches'] for step in steps))
        for figure in ('calls', 'flops', 'bytes', 'seconds'):
            counted = sum(line[figure] for step in steps for line in step['operations'] + step['meanwhile'])
            summed = sum(line[figure] for line in rank['summary']['operations'])
            self.assertAlmostEqual(summed, counted, delta=1e-9 * max(1, counted))

    def check_flops(self, profile, expected):
        for rank in profile['ranks']:
            for step in rank['steps']:
                self.assertEqual(sum(line['flops'] for line in step['operations'] + step['meanwhile']), expected)

    def check_timeline(self, trace, ranks, steps):
        events = [event for event in trace['traceEvents'] if event['ph'] == 'X']
        names = [event for event in trace['traceEvents'] if event['ph'] == 'M']
        self.assertEqual(sorted(e['args']['name'] for e in names if e['name'] == 'process_name'),
                         [f'rank {rank}' for rank in range(ranks)])
        tracks = collections.defaultdict(list)
        for event in events:
            tracks[event['pid'], event['tid']].append(event)
        for pid in range(ranks):
            main = tracks[pid, 0]  # the main thread, which records steps and units
            self.assertEqual(sum(event['name'] == 'step' for event in main), steps)
            self.assertEqual(sum(event['name'] == 'block 1' for event in main), 2 * steps * self.micro_batches)
        for track in tracks.values():
            self.check_nesting(track)

    def check_nesting(self, events):
        """Spans of a track nest: each is inside the open one or after it. Operations of a pass are inside a step."""
        open_spans = []
        for event in sorted(events, key=lambda e: (e['ts'], -e['dur'])):
            while open_spans and event['ts'] >= open_spans[-1]['ts'] + open_spans[-1]['dur'] - ROUNDING_US:
                open_spans.pop()
            if open_spans:
                self.assertLessEqual(event['ts'] + event['dur'],
                                     open_spans[-1]['ts'] + open_spans[-1]['dur'] + ROUNDING_US)
            if event['cat'] in ('forward', 'lm_head and loss', 'backward') and event['tid'] == 0:
                self.assertEqual(open_spans[0]['name'], 'step')
                if event['name'].startswith('linear') and 'block' in event['args']['unit']:
                    self.assertIn(event['args']['unit'], [span['name'] for span in open_spans])
            open_spans.append(event)


class Profile(ProfileCase):
    def test_one_rank(self):
        self.micro_batches = 3
        config = self.tiny_config(train={'train_batch_size': 6})
        model = json.loads(config.read_text())['model']
        profile, trace = self.profiled(config)
        B, T, tokens = 6, 32, 6 * 32
        self.check_sums(profile, 1, 6)
        self.check_timeline(trace, 1, 6)
        self.check_flops(profile, matrix_flops(model, B, T))
        # The usual 6 P + 6 L C T per token, corrected for parameters outside matrix products, for the diagonal of
        # attention, which that formula halves, and for attention scores, which backward recomputes.
        L, C, V = model['n_layer'], model['n_embd'], model['vocab_size']
        no_products = parameters(model) - 12 * L * C * C - V * C
        difference = -6 * no_products + 6 * L * C + L * C * (T + 1)
        self.check_flops(profile, tokens * (6 * parameters(model) + 6 * L * C * T + difference))

    def test_the_table(self):
        self.micro_batches = 1
        self.profiled(self.tiny_config(recompute='none'))
        for line in ('linear_forward, qkv', 'linear_backward, attention output', 'linear_forward, mlp up',
                     'linear_backward, mlp down', 'linear_forward, lm_head', 'attention_backward', 'other',
                     'optimizer_spans', 'load data', 'the step  ', '100.00 %', 'of GEMM', 'of bandwidth', 'trace.json'):
            self.assertIn(line, self.error)
        self.assertNotIn(', recomputed', self.error)

    def test_newton_schulz(self):
        self.check_newton_schulz(self.tiny_config(optimizer={'type': 'muon', 'lr': 0.01}))

    def test_what_backward_recomputes(self):
        self.micro_batches = 1
        config = self.tiny_config(recompute='block')
        profile, trace = self.profiled(config)
        self.check_sums(profile, 1, 6)
        self.check_flops(profile, matrix_flops(json.loads(config.read_text())['model'], 2, 32, recompute=True))
        self.assertIn('linear_forward, qkv, recomputed', self.error)

    def test_between_steps(self):
        self.micro_batches = 1
        config = self.tiny_config(data={'tokenizer': 'bytes', 'val': str(self.folder / 'tokens.bin')},
                                  model={'vocab_size': 257}, checkpoint={'every': 4},
                                  train={'eval_every': 2, 'eval_steps': 1, 'sample_every': 3, 'sample_tokens': 3})
        profile, trace = self.profiled(config)
        self.check_sums(profile, 1, 6)
        spans = collections.Counter(event['name'] for event in trace['traceEvents'] if event['ph'] == 'X')
        self.assertEqual([spans[name] for name in ('evaluation', 'printed sample', 'checkpoint')], [3, 2, 2])
        self.check_flops(profile, matrix_flops(json.loads(config.read_text())['model'], 2, 32))

    @unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
    def test_two_ranks(self):
        self.micro_batches = 2
        for stage in (0, 3):
            with self.subTest(stage=stage):
                config = self.ranks_config(train={'gradient_accumulation_steps': 2})
                model = json.loads(config.read_text())['model']
                run = f'run-{stage}'
                profile, trace = self.profiled(config, f'zero_optimization.stage={stage}', ranks=2, run=run)
                self.check_sums(profile, 2, 6)
                self.check_timeline(trace, 2, 6)
                self.check_flops(profile, matrix_flops(model, 6, 32))
                names = {line['name'] for line in profile['ranks'][0]['summary']['operations']}
                self.assertLessEqual({'reduce_scatter', 'all_gather', 'agree', 'gather', 'sum'}, names)
                # All ranks use one clock here, so their steps coincide.
                steps = [[e for e in trace['traceEvents'] if e['name'] == 'step' and e['pid'] == pid]
                         for pid in (0, 1)]
                for mine, others in zip(*steps):
                    self.assertLess(max(mine['ts'], others['ts']),
                                    min(mine['ts'] + mine['dur'], others['ts'] + others['dur']))

    def test_a_stopped_run_writes_its_profile(self):
        config = self.tiny_config(train={'max_steps': 1000000}, scheduler={'type': 'constant'})
        process = self.start(config, 'run.profile=true')
        self.wait_for_steps(3)
        process.send_signal(signal.SIGINT)
        self.finish(process, 128 + signal.SIGINT)
        profile = json.loads((self.folder / 'run' / 'profile.json').read_text())
        self.assertEqual(len(profile['ranks'][0]['steps']), min(50, len(self.metrics())))

    def test_the_first_steps_only(self):
        config = self.tiny_config(train={'max_steps': 60})
        self.run_train(config, 'run.profile=true')
        profile = json.loads((self.folder / 'run' / 'profile.json').read_text())
        self.assertEqual([step['step'] for step in profile['ranks'][0]['steps']], list(range(1, 51)))
        # A resumed run profiles its new steps.
        self.run_train(config, 'run.profile=true', 'train.max_steps=62')
        profile = json.loads((self.folder / 'run' / 'profile.json').read_text())
        self.assertEqual([step['step'] for step in profile['ranks'][0]['steps']], [61, 62])


if __name__ == '__main__':
    unittest.main()
