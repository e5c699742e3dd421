"""Training from the command line: golden curves, bit equality, resuming, signals, metrics."""
import collections
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

import harness
from golden_weights import golden_weights
from harness import (CommandCase, LOW_PRECISION_TOLERANCES, golden_arguments, golden_expected, pseudo_random_tokens, relative,
                     release_only, write_shard)


def masked_crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    crc ^= 0xffffffff
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


assert masked_crc32c(b'123456789') == ((0xe3069283 >> 15 | 0xe3069283 << 17) + 0xa282ead8) & 0xffffffff


def fields_of(message):
    """(number, value) of each field of a protobuf message: an integer, or the bytes."""
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7f) << shift
            at, shift = at + 1, shift + 7
            if not message[at - 1] & 0x80:
                return value
    at = 0
    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at:at + size]
        at += size


def events_of(run):
    """{tag: [(step, value)]} of a run's event files in the order of their names, by the published format: of each record
    the length, its masked crc32c, the data, its masked crc32c."""
    events = collections.defaultdict(list)
    for path in sorted(run.glob('events.out.tfevents.*')):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length, length_crc = struct.unpack_from('<QI', data, at)
            record = data[at + 12:at + 12 + length]
            assert length_crc == masked_crc32c(data[at:at + 8])
            assert struct.unpack_from('<I', data, at + 12 + length)[0] == masked_crc32c(record)
            event = dict(fields_of(record))
            if at == 0:
                assert event[3] == b'brain.Event:2'
            if 5 in event:
                value = dict(fields_of(dict(fields_of(event[5]))[1]))
                events[value[1].decode()].append((event.get(2, 0), struct.unpack('<f', value[2])[0]))
            at += 16 + length
    return events


@unittest.skipIf(harness.SANITIZERS, 'covered by the unit tests with sanitizers')
class GoldenCurves(CommandCase):
    """PyTorch's losses and norms in float64, reproduced by options alone."""

    def golden(self, name, *overrides):
        (self.folder / 'c.json').write_text('{}')
        self.run_train('c.json', *golden_arguments(name, weights=golden_weights(self, name)), 'run.dir=run', *overrides)
        self.assertEqual(len(self.metrics()), len(golden_expected(name)['curve']))
        return self.golden_errors(name)

    def test_fp32(self):
        for name in 'gpt2-tiny', 'gpt2-tiny-accum', 'llama-tiny', 'qwen2-tiny', 'qwen3-tiny', 'modern-tiny':
            with self.subTest(name):
                shutil.rmtree(self.folder / 'run', ignore_errors=True)
                loss, norm = self.golden(name, 'precision.compute=fp32')
                print(f'{name} fp32: losses within {loss:.1e}, norms within {norm:.1e}')
                self.assertLessEqual(loss, 1e-6)
                self.assertLessEqual(norm, 5e-6)

    def test_bf16_and_fp16(self):
        for name, compute in itertools.product(('gpt2-tiny', 'gpt2-tiny-accum', 'llama-tiny', 'modern-tiny'), LOW_PRECISION_TOLERANCES):
            with self.subTest(name=name, compute=compute):
                shutil.rmtree(self.folder / 'run', ignore_errors=True)
                loss, _ = self.golden(name, f'precision.compute={compute}')
                print(f'{name} {compute}: losses within {loss:.1e}')
                self.assertLessEqual(loss, LOW_PRECISION_TOLERANCES[compute])
                self.assertEqual(self.metrics()[-1]['loss_scale'], {'bf16': 1, 'fp16': 65536}[compute])
                self.assertEqual(self.metrics()[-1]['skipped_steps'], 0)

    def test_recomputed_blocks_give_the_same_bits(self):
        self.golden('gpt2-tiny', 'precision.compute=fp32')
        kept = self.curve()
        for recompute in 'attention', 'block':
            with self.subTest(recompute):
                shutil.rmtree(self.folder / 'run')
                self.golden('gpt2-tiny', 'precision.compute=fp32', f'recompute={recompute}')
                self.assertEqual(self.curve(), kept)


class SameBits(CommandCase):
    def test_two_runs(self):
        for compute in 'fp32', 'bf16', 'fp16':
            with self.subTest(compute):
                config = self.tiny_config(precision={'compute': compute})
                self.run_train(config, 'run.dir=a')
                self.run_train(config, 'run.dir=b')
                self.assertEqual(self.curve('a'), self.curve('b'))
                self.assertEqual(self.final_state('a'), self.final_state('b'))
                shutil.rmtree(self.folder / 'a')
                shutil.rmtree(self.folder / 'b')

    def test_any_number_of_threads(self):
        """Of a model in which the products are divided among threads. Ranks may have different numbers."""
        config = self.tiny_config(model={'n_head': 4, 'n_embd': 128, 'n_positions': 128},
                                  train={'micro_batch_size': 4, 'max_steps': 2})
        for compute in 'fp32', 'bf16':
            words = [config, f'precision.compute={compute}', 'train.train_batch_size=8']
            for threads in 1, 2, 3:
                self.run_train(*words, f'run.threads={threads}', f'run.dir={compute}-{threads}')
                self.assertEqual(self.curve(f'{compute}-{threads}'), self.curve(f'{compute}-1'))
                self.assertEqual(self.final_state(f'{compute}-{threads}'), self.final_state(f'{compute}-1'))
            for run, threads in (f'{compute}-ranks-2', (2, 2)), (f'{compute}-ranks-1-3', (1, 3)):
                ranks = [['-n', 1, harness.TRAIN, *words, f'run.dir={run}', f'run.threads={n}'] for n in threads]
                self.finish(self.start_mpirun(*ranks[0], ':', *ranks[1]), 0)
                self.assertEqual(self.final_state(run), self.final_state(f'{compute}-ranks-2'))

    def test_stopping_at_any_step_and_resuming(self):
        overrides = ['train.gradient_accumulation_steps=2', 'precision.compute=bf16']
        config = self.tiny_config(checkpoint={'every': 1, 'keep': 0})
        self.run_train(config, *overrides, 'run.dir=whole')
        whole, state = self.curve('whole'), self.final_state('whole')
        steps = (3,) if harness.SANITIZERS else range(1, 6)
        for step in steps:
            with self.subTest(step):
                run = self.copy_until(step, 'whole', f'resumed-{step}')
                self.run_train(config, *overrides, f'run.dir={run}')
                self.assertEqual(self.curve(run.name), whole)
                self.assertEqual(self.final_state(run.name), state)

    def check_scales(self, entries, power, window, hysteresis):
        """The loss scale of each step by DeepSpeed's rules, given the skipped steps."""
        scale, left, last, skipped = 2.0 ** power, hysteresis, -1, 0
        for step, entry in enumerate(entries):
            self.assertEqual(entry['loss_scale'], scale, f'step {step}')
            overflow, skipped = entry['skipped_steps'] > skipped, entry['skipped_steps']
            if overflow:
                scale, left, last = (scale, left - 1, step) if left > 1 else (scale / 2, left, step)
            elif (step - last) % window == 0:
                scale, left = scale * 2, hysteresis

    @release_only('tests/mpi trains with a scale that overflows')
    def test_a_loss_scale_resumes_to_the_bit(self):
        """The scale overflows at first and then grows. The run is resumed from checkpoints of both phases."""
        for compute, power in ('fp32', 134), ('fp16', 32):
            with self.subTest(compute):
                overrides = [f'precision.compute={compute}', f'fp16.initial_scale_power={power}',
                             'fp16.loss_scale_window=3', 'fp16.hysteresis=2', 'train.max_steps=24',
                             'scheduler.type=constant']
                if compute != 'fp16':
                    overrides.append('fp16.loss_scaling=on')
                whole = f'whole-{compute}'
                config = self.tiny_config(checkpoint={'every': 1, 'keep': 0})
                self.run_train(config, *overrides, f'run.dir={whole}')
                entries = self.metrics(whole)
                self.check_scales(entries, power, window=3, hysteresis=2)
                skipped = [e['skipped_steps'] for e in entries]
                self.assertGreater(skipped[-1], skipped[16])  # the scale grew until it overflowed again
                self.assertGreater(skipped[-1], 2)
                self.assertLess(skipped[-1], 20)
                for step in 2, 12, 20:
                    run = self.copy_until(step, whole, f'resumed-{compute}-{step}')
                    self.run_train(config, *overrides, f'run.dir={run}')
                    self.assertEqual(self.curve(run.name), self.curve(whole))
                    self.assertEqual([(e['loss_scale'], e['skipped_steps']) for e in self.metrics(run.name)],
                                     [(e['loss_scale'], e['skipped_steps']) for e in entries])
                    self.assertEqual(self.final_state(run.name), self.final_state(whole))

    def test_sgd_resumes_to_the_bit(self):
        config = self.tiny_config(optimizer={'type': 'sgd', 'lr': 0.1}, checkpoint={'every': 3, 'keep': 0})
        self.run_train(config)
        whole, state = self.curve(), self.final_state()
        shutil.rmtree(self.checkpoints()[-1])
        self.run_train(config)
        self.assertEqual(self.curve(), whole)
        self.assertEqual(self.final_state(), state)

    def test_micro_batches_change_only_rounding(self):
        config = self.tiny_config(train={'train_batch_size': 4, 'micro_batch_size': 4})
        self.run_train(config, 'run.dir=a')
        self.run_train(config, 'train.micro_batch_size=1', 'run.dir=b')
        for a, b in zip(self.metrics('a'), self.metrics('b')):
            self.assertLess(relative(b['loss'], a['loss']), 1e-5)


@unittest.skipIf(harness.SANITIZERS, 'too few steps; covered by the unit tests')
class Minutes(CommandCase):
    """train.max_minutes: the schedule follows from the measured speed, and resuming repeats it."""

    def config(self, **sections):
        sections.setdefault('train', {}).update(train_batch_size=4, eval_every=25, eval_steps=2)
        config = self.tiny_config(data={'val': str(self.folder / 'tokens.bin')}, **sections)
        settings = json.loads(config.read_text())
        del settings['train']['max_steps'], settings['train']['micro_batch_size']
        config.write_text(json.dumps(settings))
        return config

    def pacing(self, checkpoint):
        return json.loads((checkpoint / 'manifest.json').read_text())['pacing']

    def rate(self, pacing, step):
        """The learning rate by the last decision alone, as a checkpoint records it: 2 steps of warm-up, then a cosine whose
        position moves to 1 in equal parts."""
        if step <= 2:
            return 6e-4 * step / 2
        begin, end, position = max(pacing['step'], 2), pacing['total'], pacing['position']
        position += (1 - position) * ((step - begin) / (end - begin) if end > begin else 1)
        return 6e-4 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * position)))

    def check(self, run):
        """Each step follows from the checkpoint of the one before. Returns the decisions."""
        checkpoints, curve = self.checkpoints(run), self.metrics(run)
        self.assertEqual(len(checkpoints), len(curve))
        decisions = [self.pacing(checkpoint) for checkpoint in checkpoints]
        for pacing, m, following in zip(decisions, curve, curve[1:]):
            if pacing['decided_s']:
                self.assertEqual(pacing['total'], m['total_steps'])
            self.assertAlmostEqual(following['lr'], self.rate(pacing, following['step']), delta=1e-15)
        self.assertEqual(decisions[-1]['total'], len(curve))
        return decisions

    def timed_run(self, ranks, config):
        """The folder of a run of two seconds and its options; of a longer one on a machine that is too busy to decide twice in
        that time."""
        for minutes in 0.03, 0.1, 0.3, 1, 3:
            run = f'run-{ranks}-{minutes}'
            options = f'run.dir={run}', f'train.max_minutes={minutes}'
            self.run_ranks(ranks, config, *options)
            decisions = self.check(run)
            if len({pacing['total'] for pacing in decisions}) > 2:
                self.assertEqual(decisions[-1]['max_minutes'], minutes)
                self.assertGreater(decisions[-1]['spent_s'], 0.5 * 60 * minutes)  # the length is decided from a few noisy steps
                return run, options, decisions
        return self.fail('a run of three minutes decided only once')

    def test_a_run_of_two_seconds_on_one_and_two_ranks(self):
        for ranks in 1, 2:
            with self.subTest(ranks):
                config = self.config(checkpoint={'every': 1, 'keep': 0})
                run, options, decisions = self.timed_run(ranks, config)
                self.assertIn('train.max_minutes', self.run_ranks(ranks, config, *options).error)  # is complete
                # Resumed half-way: it goes on by the decision recorded there, and then by those of its own.
                middle = len(decisions) // 2
                self.copy_until(middle, run, 'resumed')
                error = self.run_ranks(ranks, config, *options, 'run.dir=resumed').error
                self.assertIn(f'resuming after step {middle}', error)
                again = self.check('resumed')
                self.assertEqual(again[:middle], decisions[:middle])
                alike = next((k for k, (a, b) in enumerate(zip(decisions, again)) if a['total'] != b['total']), min(len(again), len(decisions)) - 1)
                self.assertGreaterEqual(alike, middle)
                lines = [[(m['step'], m['loss'], m['grad_norm'], m['lr']) for m in self.metrics(name)[:alike + 1]] for name in (run, 'resumed')]
                self.assertEqual(*lines)
                shutil.rmtree(self.folder / 'resumed')

    @unittest.skipUnless(harness.FULL, 'takes half a minute in which the machine is busy')
    def test_a_process_per_core_that_begins_half_way(self):
        config = self.config(train={'max_minutes': 0.5})
        process = self.start(config)
        time.sleep(15)
        busy = [subprocess.Popen(['sh', '-c', 'while :; do :; done']) for _ in range(os.cpu_count())]
        try:
            process.communicate(timeout=60)
        finally:
            for other in busy:
                other.kill()
                other.wait()
        self.assertEqual(process.returncode, 0)
        spent_s = self.pacing(self.checkpoints()[-1])['spent_s']
        print(f'spent {spent_s:.2f} s of 30')
        self.assertLess(abs(spent_s - 30), 3)

    def test_other_times_and_limits(self):
        config = self.config()
        self.run_train(config, 'train.max_minutes=2', 'train.max_steps=30')  # also a limit, here before the first decision
        self.assertEqual(len(self.curve()), 30)
        self.assertAlmostEqual(self.metrics()[-1]['lr'], 6e-5)
        self.run_train(config, 'train.max_minutes=0.02', 'run.dir=longer')
        steps = len(self.curve('longer'))
        minutes = f'{2 * self.pacing(self.checkpoints("longer")[-1])["spent_s"] / 60:.3g}'  # a busy machine spends more than was given
        error = self.run_train(config, f'train.max_minutes={minutes}', 'run.dir=longer').error
        self.assertIn(f'train.max_minutes was 0.02 and is now {minutes}', error)
        self.assertRegex(error, rf'step {steps + 1} trains at the learning rate [0-9.e-]+ instead of [0-9.e-]+\n')
        self.assertGreater(len(self.curve('longer')), steps)
        self.assertNotIn('1000000000', error)  # train.max_steps, which nobody gave


class Running(CommandCase):
    def test_metrics_have_every_field_and_all_digits(self):
        self.run_train(self.tiny_config())
        text = (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines()
        for line in text:
            entry = json.loads(line)
            if 'loss' not in entry:
                continue
            for field in 'step', 'loss', 'grad_norm', 'lr', 'tokens', 'tokens_per_s', 'step_ms', 'mfu':
                self.assertIn(field, entry)
            self.assertLess(len(line), 600)  # what is the same in each is not repeated
            self.assertLessEqual(entry['mfu'], 1)
            for field in 'loss', 'grad_norm':
                written = re.search(rf'"{field}": ?([^,}}]+)', line).group(1)
                self.assertEqual(float(written), entry[field])
            self.assertFalse(set(entry) & set(self.constants()[-1]) - {'step'})
        self.assertEqual([m['tokens'] for m in self.metrics()], [64 * (k + 1) for k in range(6)])

    def test_memory_has_one_set_of_words(self):
        """Model memory, program and total: before the first step as planned, at the end as measured, and in the metrics."""
        error, units = self.run_train(self.tiny_config()).error, {'B': 1, 'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}

        def sizes(line):
            return [float(number) * units[unit] for number, unit in re.findall(r'([\d.]+) ([KMG]?i?B)', line)]
        words = 'model memory', 'program', 'total'
        lines = [line for line in error.splitlines() if all(word in line for word in words)]
        self.assertEqual([line.split(':')[0] for line in lines],
                         ['host memory as planned', 'host memory as measured (planned)'])
        last = self.metrics()[-1]
        planned = [last[f'{word}_planned_bytes'] for word in ('model', 'program', 'total')]
        measured = [last['model_bytes'], last['program_bytes'], last['total_bytes']]
        for printed, exact in zip(sizes(lines[0]) + sizes(lines[1]), planned + [x for pair in zip(measured, planned) for x in pair]):
            self.assertLess(relative(printed, exact), 0.01)
        self.assertEqual(planned[0] + planned[1], planned[2])
        print(f'planned {planned[2] / 2**20:.1f} MiB, measured {measured[2] / 2**20:.1f}')
        if not harness.SANITIZERS:
            self.assertLess(abs(measured[2] - planned[2]), 8 * 2**20)
        self.assertEqual(measured[0] + measured[1], measured[2])
        self.assertEqual((planned[0], measured[0]), (sum(last['model_memory_planned'].values()), sum(last['model_memory'].values())))
        step = [line for line in error.splitlines() if line.startswith('step 6/6')][0]
        self.assertLess(relative(sizes(re.search(r'  total ([^ ]+ \w+)', step)[0])[0], measured[2]), 0.01)
        plan = json.loads(self.run_train('plan', self.tiny_config(), '--ranks', 1, '--json').out)['plans'][0]
        self.assertEqual(plan['stages'][0]['total'], planned[0])

    def test_tensorboard_reads_the_events(self):
        self.run_train(self.tiny_config())
        losses = events_of(self.folder / 'run')['train/loss']
        self.assertEqual(losses, [(m['step'], struct.unpack('<f', struct.pack('<f', m['loss']))[0]) for m in self.metrics()])

    def test_a_resumed_run_has_one_event_per_step(self):
        """In the files, by our reader; with the long tests also by TensorBoard's own."""
        config = self.tiny_config(train={'eval_every': 3, 'eval_steps': 1}, checkpoint={'every': 2, 'keep': 0})
        overrides = config, f'data.val={self.folder / "tokens.bin"}'
        self.run_train(*overrides)
        for checkpoint in self.checkpoints()[1:]:
            shutil.rmtree(checkpoint)
        self.run_train(*overrides)
        expected = {'train/loss': [1, 2, 3, 4, 5, 6], 'val/loss': [3, 6], 'val/final_loss': [6]}
        events = events_of(self.folder / 'run')
        for tag, steps in expected.items():
            self.assertEqual([step for step, _ in events[tag]], steps, tag)
        if harness.FULL:
            self.assertEqual(self.read_by_tensorboard(expected), expected)

    def read_by_tensorboard(self, tags):
        """The steps of these tags, by TensorBoard from PyPI in an environment of its own."""
        python = harness.ROOT / 'build' / 'tensorboard' / 'bin' / 'python'
        try:
            if not python.exists():
                subprocess.run([sys.executable, '-m', 'venv', python.parents[1]], check=True, capture_output=True, timeout=120)
                subprocess.run([python, '-m', 'pip', 'install', '-q', 'tensorboard'], check=True, capture_output=True,
                               timeout=600)
            program = ('import json, sys\n'
                       'from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n'
                       'run = EventAccumulator(sys.argv[1]).Reload()\n'
                       'print(json.dumps({tag: [event.step for event in run.Scalars(tag)] for tag in sys.argv[2:]}))\n')
            read = subprocess.run([python, '-c', program, self.folder / 'run', *tags], check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(python.parents[1], ignore_errors=True)
            self.skipTest(f'TensorBoard cannot be had: {error}')
        return json.loads(read.stdout)

    def test_learning(self):
        """Training on one batch halves its loss."""
        self.run_train(self.tiny_config(), 'train.overfit_one_batch=true', 'train.max_steps=60', 'optimizer.lr=1e-2')
        curve = self.metrics()
        self.assertGreater(curve[0]['loss'], 0.9 * math.log(61))
        self.assertLess(curve[-1]['loss'], 0.5 * curve[0]['loss'])

    def test_fp16_finds_its_scale_and_learns(self):
        """The first loss scale is far too large: weights do not change until gradients are finite, then the loss falls."""
        self.run_train(self.tiny_config(), 'precision.compute=fp16', 'fp16.initial_scale_power=32',
                       'train.overfit_one_batch=true', 'train.max_steps=70', 'optimizer.lr=1e-2')
        curve = self.metrics()
        skipped = curve[-1]['skipped_steps']
        self.assertGreater(skipped, 5)
        self.assertEqual([m['skipped_steps'] for m in curve], [min(k + 1, skipped) for k in range(70)])
        # The first overflow does not lower the scale (fp16.hysteresis), each further one halves it.
        self.assertEqual([m['loss_scale'] for m in curve], [2.0 ** (32 - min(max(k - 1, 0), skipped - 1)) for k in range(70)])
        self.assertEqual({m['loss'] for m in curve[:skipped + 1]}, {curve[0]['loss']})
        self.assertLess(curve[-1]['loss'], 0.5 * curve[0]['loss'])

    def test_learning_rate_schedule(self):
        self.run_train(self.tiny_config(), 'scheduler.type=linear', 'scheduler.warmup_steps=2', 'train.max_steps=6',
                       'optimizer.lr=0.01', 'scheduler.min_lr_ratio=0')
        rates = [m['lr'] for m in self.metrics()]
        self.assertAlmostEqual(rates[0], 0.005)
        self.assertAlmostEqual(rates[1], 0.01)
        self.assertTrue(all(b < a for a, b in zip(rates[2:], rates[3:])), rates)

    def test_a_finished_run_names_max_steps_which_may_be_raised(self):
        config = self.tiny_config()
        self.run_train(config)
        process = self.run_train(config)
        self.assertIn('train.max_steps', process.error + process.out)
        self.assertEqual(len(self.curve()), 6)
        self.run_train(config, 'train.max_steps=8')
        self.assertEqual([m['step'] for m in self.metrics()], list(range(1, 9)))

    def test_a_longer_run_says_what_becomes_of_its_rate(self):
        config = self.tiny_config(optimizer={'lr': 1e-3}, scheduler={'type': 'linear', 'min_lr_ratio': 0.1})
        self.run_train(config)
        shutil.copytree(self.folder / 'run', self.folder / 'kept')
        error = self.run_train(config, 'train.max_steps=8').error
        self.assertIn('the learning rate schedule was 6 steps long and is now 8: step 7 trains at 0.00025 instead of 0.0001',
                      error)
        self.assertIn('scheduler.decay_steps=6 keeps', error)
        error = self.run_train(config, 'train.max_steps=8', 'run.dir=kept', 'scheduler.decay_steps=6').error
        self.assertNotIn('schedule was', error)
        self.assertEqual([round(m['lr'], 12) for m in self.metrics('kept')[5:]], [1e-4] * 3)
        self.refuses(config, 'train.max_steps=9', 'run.dir=kept', 'scheduler.decay_steps=5',
                     says=['scheduler.decay_steps was 6 and is now 5 (it may only grow)'])

    def test_options_changed_on_purpose(self):
        config = self.tiny_config(scheduler={'type': 'constant'}, checkpoint={'every': 2, 'keep': 0})
        self.run_train(config)
        changes = 'optimizer.lr=1e-4', 'train.micro_batch_size=4', 'train.max_steps=10'
        self.refuses(config, *changes, says=['optimizer.lr was 0.0006 and is now 0.0001',
                                             'checkpoint.resume_with="train.train_batch_size,optimizer.lr"',
                                             f'model.init_from={self.folder / "run"} '])
        changes += 'checkpoint.resume_with=optimizer.lr,train.train_batch_size',
        error = self.run_train(config, *changes).error
        self.assertIn('optimizer.lr changes from 0.0006 to 0.0001 after step 6', error)
        self.assertIn('train.train_batch_size changes from 2 to 4 after step 6', error)
        self.assertEqual([(m['lr'], m['tokens']) for m in self.metrics()],
                         [(6e-4 / 2, 64)] + [(6e-4, 64 * k) for k in range(2, 7)] + [(1e-4, 384 + 128 * k) for k in range(1, 5)])
        history = json.loads((self.checkpoints()[-1] / 'manifest.json').read_text())['history']
        self.assertEqual(history, [{'step': 6, 'option': 'train.train_batch_size', 'was': '2', 'is': '4'},
                                   {'step': 6, 'option': 'optimizer.lr', 'was': '0.0006', 'is': '0.0001'}])
        self.assertIn('changed after step 6: optimizer.lr from 0.0006 to 0.0001', self.run_train('inspect', 'run').out)
        whole, state = self.curve(), self.final_state()
        shutil.rmtree(self.checkpoints()[-1])
        error = self.run_train(config, *changes).error  # resumed after the change: nothing changes any more
        self.assertNotIn('changes from', error)
        self.assertEqual((self.curve(), self.final_state()), (whole, state))

    def test_a_run_shorter_than_its_warm_up(self):
        process = self.run_train(self.tiny_config(), 'scheduler.warmup_steps=700')
        self.assertIn('warm-up: 1 step, as scheduler.warmup_steps=700 is longer than the schedule of 6 steps', process.error)
        self.assertEqual(self.metrics()[0]['lr'], 6e-4)

    def test_an_automatic_compute_type_may_be_named_on_resuming(self):
        config = self.tiny_config(precision={'compute': 'auto'})
        self.run_train(config)
        compute = json.loads((self.checkpoints()[-1] / 'manifest.json').read_text())['compute']
        other = {'fp32': 'bf16', 'bf16': 'fp32'}[compute]
        self.run_train(config, f'precision.compute={compute}', 'train.max_steps=7')
        self.run_train(config, 'train.max_steps=8')
        process = self.run_train(config, f'precision.compute={other}', 'train.max_steps=9', code=2)
        for part in 'precision.compute', compute, other:
            self.assertIn(part, process.error)

    def test_keep_removes_old_checkpoints(self):
        self.run_train(self.tiny_config(checkpoint={'every': 1, 'keep': 2}))
        self.assertEqual([p.name for p in self.checkpoints()], ['step-00000005', 'step-00000006'])

    def test_the_best_checkpoint_is_kept(self):
        """A model that learns one batch by heart becomes worse on other data. The same is kept on any number of ranks."""
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(500, 61, seed=2))
        config = self.ranks_config(train={'overfit_one_batch': True, 'eval_every': 2, 'eval_steps': 1, 'max_steps': 10},
                                   data={'val': str(self.folder / 'val.bin')}, optimizer={'lr': 1e-2},
                                   checkpoint={'every': 2, 'keep': 1})
        for ranks in 1, 2:
            run = self.folder / f'run-{ranks}'
            self.run_ranks(ranks, config, f'run.dir={run}')
            lines = map(json.loads, (run / 'metrics.jsonl').read_text().splitlines())
            losses = {e['step']: e['val_loss'] for e in lines if 'val_loss' in e and not e['final']}
            best = min(losses, key=losses.get)
            self.assertIn(best, (2, 4, 6, 8))
            names = [f'step-{best:08d}', 'step-00000010']
            self.assertEqual([path.name for path in self.checkpoints(run)], names)
            self.assertEqual((run / 'checkpoints' / 'best').resolve().name, names[0])
        self.assertIn(f'best by validation loss: step {best},', self.run_train('inspect', run).out)
        self.assertIn(f': checkpoint, verified', self.run_train('inspect', run / 'checkpoints' / 'best').out)
        self.run_train('eval', run / 'checkpoints' / 'best', '--data', 'val.bin')
        verified = self.run_train('checkpoint', 'verify', run).out.splitlines()
        self.assertEqual([line.endswith('ok, the best by validation loss') for line in verified], [True, False])
        error = self.run_train(config, f'run.dir={run}', 'train.max_steps=14', 'train.micro_batch_size=12').error
        self.assertIn('resuming after step 10', error)  # the newest; what was the best is remembered
        self.assertEqual([path.name for path in self.checkpoints(run)], [names[0], 'step-00000014'])
        self.run_train(config, f'run.dir={run}', 'train.max_steps=16', 'train.micro_batch_size=12', 'checkpoint.keep_best=false')
        self.assertEqual([path.name for path in (run / 'checkpoints').iterdir()], ['step-00000016'])

    def test_signals_finish_the_step_save_and_print_how_to_resume(self):
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1:
            with self.subTest(number):
                config = self.tiny_config(train={'max_steps': 1000000})
                process = self.start(config, preexec_fn=harness.restore_signals)
                self.wait_for_steps(2)
                process.send_signal(number)
                out, error = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 128 + number, error)
                self.assertIn('tiny.json', error + out)
                done = len(self.curve())
                self.assertEqual(self.checkpoints()[-1].name, f'step-{done:08d}')
                self.run_train(config, f'train.max_steps={max(done + 2, 1000000)}', 'checkpoint.resume=never', code=2)
                shutil.rmtree(self.folder / 'run')

    def test_the_printed_command_resumes(self):
        process = self.start(self.tiny_config(train={'max_steps': 1000000}), 'checkpoint.resume=never')
        self.wait_for_steps(2)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        command = shlex.split(error[error.index('resume with: ') + len('resume with: '):].splitlines()[0])
        self.assertEqual(command[0], './train')
        again = self.start(*command[1:])
        self.wait_for_steps(len(self.curve()) + 2)
        again.send_signal(signal.SIGINT)
        _, error = again.communicate(timeout=60)
        self.assertEqual(again.returncode, 128 + signal.SIGINT, error)
        self.assertIn('resuming after step', error)

    def test_resuming_after_a_kill(self):
        config = self.tiny_config(train={'max_steps': 40}, checkpoint={'every': 5})
        self.run_train(config, 'run.dir=whole')
        process = self.start(config)
        self.wait_for_steps(7)
        process.kill()
        process.communicate()
        self.run_train(config)
        self.assertEqual(self.curve(), self.curve('whole'))

    def test_evaluation_and_samples(self):
        config = self.tiny_config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'},
                                  train={'eval_every': 3, 'eval_steps': 2, 'sample_every': 3, 'sample_tokens': 8})
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(500, 61, seed=2))
        self.run_train(config, f'data.val={self.folder / "val.bin"}')
        entries = [json.loads(line) for line in (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines()]
        evaluated = [e for e in entries if 'val_loss' in e]
        self.assertEqual([e['step'] for e in evaluated], [3, 6, 6])
        self.assertEqual([e['val_sequences'] for e in evaluated], [4, 4, 15])
        self.assertEqual([e['final'] for e in evaluated], [False, False, True])
        for entry in evaluated:  # one byte per token
            self.assertAlmostEqual(entry['val_bits_per_byte'], entry['val_loss'] / math.log(2), places=5)
        self.assertTrue(list((self.folder / 'run' / 'samples').iterdir()))

    def test_evaluations_are_spread_over_the_data(self):
        """Two windows of four: the first and the third, so a set with an easy first half gives no better loss."""
        shards = {}
        for name, windows in ('spread', 'abcd'), ('chosen', 'ac'), ('first', 'ab'):
            # Each window begins with token 1, which is also the last target of the window before it.
            tokens = [token for window in windows for token in [1] + pseudo_random_tokens(31, 61, seed=ord(window))] + [1]
            shards[name] = self.folder / f'{name}.bin'
            write_shard(shards[name], tokens)
        config = self.tiny_config(train={'eval_every': 2, 'eval_steps': 1, 'max_steps': 2})
        losses = {}
        for name in shards:
            self.run_train(config, f'data.val={shards[name]}', f'run.dir={name}')
            lines = (self.folder / name / 'metrics.jsonl').read_text().splitlines()
            losses[name] = [e['val_loss'] for e in map(json.loads, lines) if 'val_loss' in e]
        self.assertAlmostEqual(losses['spread'][0], losses['chosen'][0], places=6)
        self.assertNotAlmostEqual(losses['spread'][0], losses['spread'][1], places=3)
        self.assertNotAlmostEqual(losses['spread'][0], losses['first'][0], places=3)

    def test_run_folder_holds_the_resolved_config(self):
        self.run_train(self.tiny_config())
        config = json.loads((self.folder / 'run' / 'config.json').read_text())
        self.assertEqual(config['train']['train_batch_size'], 2)
        self.assertEqual(config['train']['seq_len'], 32)
        self.assertGreater((self.folder / 'run' / 'log.txt').stat().st_size, 0)

    def test_folder_with_spaces(self):
        config = self.tiny_config(run={'dir': str(self.folder / 'a run with spaces')})
        self.run_train(config)
        self.assertEqual(self.checkpoints('a run with spaces')[-1].name, 'step-00000006')
        self.assertIn('step 6', self.run_train('inspect', self.folder / 'a run with spaces').out)

    def test_init_from_a_checkpoint(self):
        self.run_train(self.tiny_config())
        first = self.state_bytes()
        self.run_train(self.tiny_config(), f'model.init_from={self.checkpoints()[-1]}', 'run.dir=second',
                       'train.max_steps=0')
        second = self.state_bytes('second')
        self.assertEqual(len(first), len(second))
        self.assertEqual(first[:4096], second[:4096])  # weights; the moments start at zero


if __name__ == '__main__':
    unittest.main()
