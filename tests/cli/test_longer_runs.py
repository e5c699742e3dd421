"""Runs that are made longer: what followed from train.max_steps for the steps already done stays (docs/checkpoint-format.md)."""
import json
import unittest

from golden_weights import xxh3
from harness import CommandCase

PEAK = 6e-4
SCHEDULES = 'constant', 'cosine', 'linear', 'warmup-stable-decay'


class LongerRuns(CommandCase):
    def config(self, **sections):
        """A run of 20 steps, whose warm-up of 100 is shortened to 2."""
        sections.setdefault('train', {}).setdefault('max_steps', 20)
        return self.tiny_config(scheduler={'warmup_steps': 100, 'type': 'constant'}, **sections)

    def rates(self, run='run'):
        """Parts of the peak, from the first step on."""
        return [m['lr'] / PEAK for m in self.metrics(run)]

    def recorded(self, run='run'):
        return json.loads((self.checkpoints(run)[-1] / 'manifest.json').read_text()).get('warmup_steps')

    def forget(self, run='run'):
        """Makes the newest checkpoint one of a version that did not record the warm-up."""
        path = self.checkpoints(run)[-1] / 'manifest.json'
        text = path.read_text()
        before, after = text.split('  "warmup_steps": 2,\n', 1)
        sealed = (before + after)[:(before + after).index('  "manifest_xxh3"')]
        path.write_text(f'{sealed}  "manifest_xxh3": "{xxh3(sealed.encode())}"\n}}\n')

    def test_any_schedule_and_optimizer(self):
        """As if a warm-up of two steps had been given."""
        cases = [(f'scheduler.type={name}',) for name in SCHEDULES]
        cases += [('optimizer.type=muon',), ('optimizer.type=lion', 'optimizer.weight_decay=0.1'), ('optimizer.type=schedulefree_adamw',)]
        for number, options in enumerate(cases):
            with self.subTest(options):
                for run, *given in (f'kept-{number}',), (f'given-{number}', 'scheduler.warmup_steps=2'):
                    for steps in 20, 40, 60:
                        error = self.run_train(self.config(), *options, *given, f'run.dir={run}', f'train.max_steps={steps}').error
                    self.assertEqual(self.recorded(run), 2)
                    if not given:
                        self.assertIn('warm-up: 2 steps, kept from the start of the run; a new run of 60 steps would have 6', error)
                kept = self.rates(f'kept-{number}')
                self.assertEqual(kept[:2], [0.5, 1])
                self.assertEqual(kept, self.rates(f'given-{number}'))

    def test_a_checkpoint_without_the_record(self):
        self.run_train(self.config())
        self.forget()
        self.run_train(self.config(), 'train.max_steps=40')
        self.assertEqual(self.rates(), [0.5] + [1] * 39)
        self.assertEqual(self.recorded(), 2)

    def test_stopped_within_the_warm_up(self):
        """At 5 of 9 steps of warm-up: the rate goes on from there, longer or not; a shorter run shortens it."""
        config = self.config(train={'max_steps': 90}, checkpoint={'every': 1, 'keep': 0})
        self.run_train(config)
        for steps, expected in (90, 9), (200, 9):
            run = self.copy_until(5, 'run', f'until-5-of-{steps}')
            self.run_train(config, f'run.dir={run}', f'train.max_steps={steps}')
            for step, rate in enumerate(self.rates(run), 1):
                self.assertAlmostEqual(rate, min(1, step / expected))
        run = self.copy_until(5, 'run', 'shorter')
        self.run_train(config, f'run.dir={run}', 'train.max_steps=8', 'checkpoint.resume_with=train.max_steps')
        self.assertEqual(self.rates(run)[5:], [1] * 3)

    def test_a_warm_up_that_is_changed_on_purpose(self):
        self.run_train(self.config())
        self.run_train(self.config(), 'train.max_steps=60', 'scheduler.warmup_steps=40', 'checkpoint.resume_with=scheduler.warmup_steps')
        for step, rate in enumerate(self.rates()[20:], 21):
            self.assertAlmostEqual(rate, min(1, step / 40))

    def test_from_steps_to_minutes_and_back(self):
        self.run_train(self.config())
        self.run_train(self.config(), 'train.max_minutes=10', 'train.max_steps=60')
        self.run_train(self.config(), 'train.max_steps=90')
        self.assertEqual(self.rates(), [0.5] + [1] * 89)


if __name__ == '__main__':
    unittest.main()
