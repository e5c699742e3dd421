"""train.ema and schedule-free AdamW: the weights that are evaluated and exported are others than those that are trained."""
import json
import math
import struct

from harness import FULL, GOLDEN, GPU, CommandCase, golden_arguments, pseudo_random_tokens, relative, release_only, write_shard
from test_checkpoints import state_by_unit


def tensors(folder):
    """The values of an exported model.safetensors."""
    data = (folder / 'model.safetensors').read_bytes()
    length = struct.unpack_from('<Q', data)[0]
    out = {}
    for name, tensor in json.loads(data[8:8 + length]).items():
        if name != '__metadata__':
            begin, end = tensor['data_offsets']
            out[name] = struct.unpack_from(f'<{(end - begin) // 4}f', data, 8 + length + begin)
    return out


def distance(a, b):
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name]))


class AveragingCase(CommandCase):
    def averaging_config(self, **sections):
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(481, 61, seed=2))  # whole sequences
        sections.setdefault('data', {})['val'] = str(self.folder / 'val.bin')
        train = {'max_steps': 8, 'eval_every': 4, 'eval_steps': 1, 'ema': {'type': 'exponential', 'decay': 0.5}}
        train.update(sections.pop('train', {}))
        sections.setdefault('optimizer', {}).setdefault('lr', 1e-2)
        sections.setdefault('checkpoint', {'every': 1, 'keep': 0})
        return self.ranks_config(train=train, **sections)

    def evaluations(self, run='run'):
        lines = (self.folder / run / 'metrics.jsonl').read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if 'val_loss' in entry]

    def exported(self, checkpoint, *options):
        folder = self.folder / f'{checkpoint.parent.parent.name}-{checkpoint.name}{"".join(options)}'
        self.run_train('export', checkpoint, '--to', 'hf', folder, '--tokenizer', 'none', *options)
        return tensors(folder)

    def manifest(self, checkpoint):
        return json.loads((checkpoint / 'manifest.json').read_text())

    def check_loss_of_exported(self, checkpoint, loss):
        """Another folder with the same weights has the loss that the run evaluated."""
        self.exported(checkpoint)
        folder = self.folder / f'{checkpoint.parent.parent.name}-{checkpoint.name}'
        process = self.run_train('eval', folder, '--data', self.folder / 'val.bin', '--json')
        self.assertLess(relative(json.loads(process.out)['loss'], loss), 1e-6)

    def check_other_ranks(self, config, *options):
        """A run that goes on from 3 ranks to 1 and 2, in other stages and partitions: all losses differ from one rank's by rounding."""
        options += 'scheduler.type=constant', 'train.eval_every=3', 'checkpoint.every=3'
        self.run_train(config, *options, 'run.dir=whole', 'train.max_steps=9')
        for until, ranks, stage, partition in (3, 3, 3, 'even'), (6, 1, 0, 'layer'), (9, 2, 2, 'tensor'):
            error = self.run_ranks(ranks, config, *options, 'run.dir=elastic', f'train.max_steps={until}',
                                   f'zero_optimization.stage={stage}', f'zero_optimization.partition={partition}').error
            self.assertEqual('results are equal up to rounding' in error, until > 3)
        for a, b in zip(self.metrics('elastic'), self.metrics('whole'), strict=True):
            self.assertLess(relative(a['loss'], b['loss']), 1e-5, a['step'])
            self.assertLess(relative(a['grad_norm'], b['grad_norm']), 1e-4, a['step'])
        last, expected = self.evaluations('elastic')[-1], self.evaluations('whole')[-1]
        self.assertEqual((last['step'], last['averaged_updates']), (9, 9))
        for figure in 'val_loss', 'latest_val_loss':
            self.assertLess(relative(last[figure], expected[figure]), 1e-5, figure)
        self.assertGreater(relative(last['val_loss'], last['latest_val_loss']), 1e-4)
        # Of single elements there is no such bound: Adam divides gradients near zero by their own size.
        ours, theirs = (sum(self.exported(self.checkpoints(run)[-1]).values(), ()) for run in ('elastic', 'whole'))
        apart = math.dist(ours, theirs) / math.hypot(*theirs)
        self.assertLess(apart, 1e-5)
        print(f'3 -> 1 -> 2 ranks: {options[0]}: the average is within {apart:.1e} of that of one rank')


class Average(AveragingCase):
    def check_average(self, run, weights):
        """The average of a run with a checkpoint of every step, where update i entered with weights[i - 1]."""
        average = None
        for step, (checkpoint, weight) in enumerate(zip(self.checkpoints(run), weights), 1):
            latest = self.exported(checkpoint, '--weights', 'latest') if weight else None
            if weight == 1:
                average = latest
            elif weight:
                average = {name: [x + weight * (y - x) for x, y in zip(average[name], latest[name])] for name in latest}
            self.assertEqual('average' in self.manifest(checkpoint)['state'], average is not None, step)
        self.assertLess(distance(self.exported(checkpoint), average), 1e-6)
        self.assertGreater(distance(self.exported(checkpoint, '--weights', 'latest'), average), 1e-4)

    @release_only('the other tests have one')
    def test_exponential(self):
        config = self.averaging_config()
        error = self.run_train(config).error
        self.check_average('run', [1] + [0.5] * 7)
        self.assertRegex(error, "final val loss .* average over 8 updates.*; the latest weights: ")
        self.check_loss_of_exported(self.checkpoints()[-1], self.evaluations()[-1]['val_loss'])
        # Training is the same to the bit, and so are the losses of the latest weights.
        self.run_train(config, f'run.dir={self.folder}/none', 'train.ema.type=none')
        self.assertEqual(self.curve(), self.curve('none'))
        self.assertEqual(self.exported(self.checkpoints()[-1], '--weights', 'latest'), self.exported(self.checkpoints('none')[-1]))
        self.assertEqual(self.evaluations()[-1]['latest_val_loss'], self.evaluations('none')[-1]['val_loss'])
        self.assertNotEqual(self.evaluations()[-1]['val_loss'], self.evaluations('none')[-1]['val_loss'])
        self.assertEqual([e.get('averaged_updates') for e in self.evaluations()], [4, 8, 8])

    def test_evaluation_takes_the_average(self):
        config = self.averaging_config()
        self.run_train(config)
        final = self.evaluations()[-1]
        for weights, loss in ('average', final['val_loss']), ('latest', final['latest_val_loss']):
            with self.subTest(weights=weights):
                process = self.run_train('eval', self.folder / 'run', '--data', self.folder / 'val.bin', '--weights', weights, '--json')
                self.assertLess(relative(json.loads(process.out)['loss'], loss), 1e-6)
                self.assertIn('average over 8 updates', process.error + process.out)
        self.refuses('eval', self.folder / 'run', '--data', self.folder / 'val.bin', '--weights', 'best', says=['average or latest'])
        self.run_train(config, f'run.dir={self.folder}/none', 'train.ema.type=none', 'train.max_steps=2')
        self.refuses('export', self.folder / 'none', '--to', 'hf', self.folder / 'out', '--weights', 'average',
                     says=['no average of the weights', 'train.ema'])

    def test_stages_ranks_and_resume(self):
        """Each stage gives the same bits, with any compute type; a resumed run goes on to the bit, another number of ranks to rounding."""
        for compute in ('fp32', 'bf16') if FULL else ('bf16',):
            first = None
            for stage in (0, 1, 2, 3) if FULL else (0, 3):
                run = f'{compute}-{stage}'
                config = self.averaging_config(precision={'compute': compute}, zero_optimization={'stage': stage},
                                               run={'dir': str(self.folder / run), 'threads': 1})
                self.run_ranks(2, config)
                outcome = self.curve(run), self.evaluations(run), self.final_state(run)
                first = first or outcome
                self.assertEqual(outcome, first, stage)
        until = self.copy_until(5, run, 'until')
        self.run_ranks(2, config, f'run.dir={until}')
        self.assertEqual(self.final_state('until'), self.final_state(run))
        alone = self.copy_until(5, run, 'alone')
        self.run_train(config, f'run.dir={alone}')
        self.assertLess(distance(self.exported(self.checkpoints('alone')[-1]), self.exported(self.checkpoints(run)[-1])), 2e-3)

    @release_only('test_stages_ranks_and_resume resumes')
    def test_other_numbers_of_ranks(self):
        self.check_other_ranks(self.averaging_config(), 'train.ema.type=exponential')

    def test_a_run_turns_it_on_and_off(self):
        config = self.averaging_config(train={'ema': {'type': 'none', 'decay': 0.5}, 'max_steps': 4})
        self.run_train(config)
        self.refuses(config, 'train.ema.type=exponential', 'train.max_steps=8', says=['train.ema.type was', 'checkpoint.resume_with'])
        changes = 'checkpoint.resume_with=train.ema.type'
        self.run_train(config, 'train.ema.type=exponential', 'train.max_steps=8', changes)
        self.check_average('run', [0] * 4 + [1] + [0.5] * 3)
        self.run_train(config, 'train.max_steps=9', changes)
        self.assertNotIn('average', self.manifest(self.checkpoints()[-1])['state'])

    def test_skipped_steps_are_not_averaged(self):
        config = self.averaging_config(train={'on_spike': 'skip'})
        self.run_train(config, environment={'ZERO_INJECT_GRADIENTS': '3:nan'})
        self.assertEqual(self.manifest(self.checkpoints()[-1])['average']['updates'], 7)
        self.check_average('run', [1, 0.5, 0] + [0.5] * 5)


class Golden(AveragingCase):
    """Figures of scripts/golden/averaging.py, PyTorch's AveragedModel in float64. Bounds are those of unit/model/test_golden."""

    @release_only('the other tests average')
    def test_fp32(self):
        golden = json.loads((GOLDEN / 'averaging' / 'expected.json').read_text())
        stride = golden['stride']
        (self.folder / 'empty.json').write_text('{}')
        self.run_train('empty.json', *golden_arguments(golden['model']), f'run.dir={self.folder}/run', 'device=cpu',
                       'precision.compute=fp32', f'data.val={GOLDEN / golden["model"] / "tokens.bin"}', 'train.eval_steps=0',
                       f'train.eval_every={golden["eval_every"]}',
                       *(f'train.ema.{option}={value}' for option, value in golden['ema'].items()))
        for mine, want in zip(self.evaluations(), golden['evaluations'], strict=True):
            self.assertEqual((mine['step'], mine['averaged_updates']), (want['step'], want['averaged_updates']))
        losses = max(relative(a['val_loss'], b['val_loss']) for a, b in zip(self.evaluations(), golden['evaluations']))
        self.assertLess(losses, 1e-6)
        self.assertLess(relative(mine['latest_val_loss'], want['latest_val_loss']), 1e-6)
        exported = self.exported(self.checkpoints()[-1])
        self.assertEqual(set(exported), set(golden['average']))
        worst = 0
        for name, average in golden['average'].items():
            for at, (x, expected) in enumerate(zip(exported[name][::stride], average, strict=True)):
                # The gradients of key biases are 0 but for rounding (tests/golden/README.md).
                if not name.endswith('c_attn.bias') or at * stride * 3 // len(exported[name]) != 1:
                    worst = max(worst, abs(x - expected))
        self.assertLess(worst, 1e-5)
        print(f'weights within {worst:.1e} of PyTorch, losses within {losses:.1e}')


class ScheduleFree(AveragingCase):
    def schedule_free_config(self, **sections):
        sections.setdefault('optimizer', {}).update({'type': 'schedulefree_adamw', 'betas': [0.9, 0.99]})
        return self.averaging_config(train={'ema': {'type': 'none'}}, **sections)

    def test_stages_and_resume(self):
        first = None
        for stage in (0, 1, 2, 3) if FULL else (0, 2):
            run = f'stage-{stage}'
            config = self.schedule_free_config(zero_optimization={'stage': stage}, run={'dir': str(self.folder / run), 'threads': 1})
            self.run_ranks(2, config)
            outcome = self.curve(run), self.evaluations(run), self.final_state(run)
            first = first or outcome
            self.assertEqual(outcome, first, stage)
        self.assertEqual([e['averaged_updates'] for e in self.evaluations(run)], [4, 8, 8])
        until = self.copy_until(5, run, 'until')
        self.run_ranks(2, config, f'run.dir={until}')
        self.assertEqual(self.final_state('until'), self.final_state(run))
        # Evaluated from the checkpoint as during training.
        for weights, figure in ('average', 'val_loss'), ('latest', 'latest_val_loss'):
            process = self.run_train('eval', self.folder / run, '--data', self.folder / 'val.bin', '--weights', weights, '--json')
            self.assertLess(relative(json.loads(process.out)['loss'], self.evaluations(run)[-1][figure]), 1e-6)

        self.check_exported(self.checkpoints(run)[-1])
        self.check_loss_of_exported(self.checkpoints(run)[-1], self.evaluations(run)[-1]['val_loss'])

    def check_exported(self, checkpoint):
        """The average x = y + (1 - 1 / beta1) (z - y) of the checkpoint's tensors, and y as the latest weights."""
        manifest, states = self.manifest(checkpoint), state_by_unit(checkpoint)
        average, latest = self.exported(checkpoint), self.exported(checkpoint, '--weights', 'latest')
        weight, checked = 1 - 1 / manifest['config']['optimizer']['betas'][0], 0
        for name, at, shape, unit in ((t['name'], t['offset'], t['shape'], t['unit']) for t in manifest['tensors']):
            y, z = (struct.unpack_from(f'<{math.prod(shape)}f', states[unit, kind], 4 * at) for kind in ('master', 'm'))
            if name.split('.')[-2] in ('c_attn', 'c_proj', 'c_fc') and len(shape) == 2:  # exported as (in, out)
                y, z = ([values[row * shape[1] + column] for column in range(shape[1]) for row in range(shape[0])] for values in (y, z))
            self.assertEqual(list(y), list(latest[name]), name)
            for exported, a, b in zip(average[name], y, z, strict=True):
                x = a + weight * (b - a)
                # fp32 rounds the weight, the difference and the result, each by at most 2^-24 of itself.
                self.assertLessEqual(abs(exported - x), 2**-24 * (2 * abs(weight * (b - a)) + abs(x)) * (1 + 2**-20), name)
                checked += 1
        self.assertEqual(checked, sum(math.prod(t['shape']) for t in manifest['tensors']))
        self.assertGreater(distance(average, latest), 1e-4)

    @release_only('test_stages_and_resume resumes')
    def test_other_numbers_of_ranks(self):
        self.check_other_ranks(self.schedule_free_config(), 'optimizer.type=schedulefree_adamw')

    def test_settings(self):
        config = self.schedule_free_config()
        for option, words in (('optimizer.state_dtype=int8', 'place of the first moment'), ('scheduler.type=cosine', 'constant rate'),
                              ('optimizer.betas=[0, 0.9]', 'divides by'), ('train.ema.type=exponential', 'averages the weights by itself')):
            with self.subTest(option=option):
                self.refuses('check', config, option, says=[words])
        self.run_train(config, 'train.max_steps=3', 'scheduler.type=constant')
        self.assertEqual([m['lr'] for m in self.metrics()], [0.005, 0.01, 0.01])
