"""train.batch_size_schedule and train.max_batch_size: steps of different sizes; the noise scale."""
import json
import shutil

from harness import FULL, CommandCase, relative, release_only, write_shard
from test_training import events_of


class ScheduleCase(CommandCase):
    def config(self, **sections):
        train = {'max_steps': 8, 'train_batch_size': 4, 'micro_batch_size': 0}
        train.update(sections.pop('train', {}))
        sections.setdefault('run', {'dir': str(self.folder / 'run'), 'threads': 1})
        return self.tiny_config(train=train, **sections)

    def resumes_to_the_bit(self, config, *overrides):
        """The run, which has a checkpoint after every step, stopped at some of them and resumed."""
        curve, state = self.curve(), self.final_state()
        for step in 2, 3, 4, 7:
            with self.subTest(step=step):
                run = self.copy_until(step, 'run', f'until-{step}')
                self.run_train(config, f'run.dir={run}', *overrides)
                self.assertEqual((self.curve(run.name), self.final_state(run.name)), (curve, state))


class Batches(ScheduleCase):
    SCHEDULE = 'train.batch_size_schedule=[[3, 8], [5, 12]]'
    SIZES = [4, 4, 4, 8, 8, 12, 12, 12]

    def test_every_sequence_is_seen_once_and_in_order(self):
        """Without updates, a step's loss is the mean of the losses of its sequences, whatever steps they are in."""
        frozen = self.config(optimizer={'lr': 0}, data={'shuffle': True})
        self.run_train(frozen, self.SCHEDULE, f'run.dir={self.folder}/schedule')
        self.run_train(frozen, 'train.max_steps=16', f'run.dir={self.folder}/four')
        fours, steps = [m['loss'] for m in self.metrics('four')], self.metrics('schedule')
        self.assertEqual([m['batch_size'] for m in steps], self.SIZES)
        self.assertEqual([m['tokens'] for m in steps], [32 * sum(self.SIZES[:k + 1]) for k in range(8)])
        for step, size in zip(steps, self.SIZES):
            mine, fours = fours[:size // 4], fours[size // 4:]
            self.assertLess(relative(step['loss'], sum(mine) / len(mine)), 1e-6)
            self.assertEqual(step['comm_bytes'], step['comm_planned_bytes'])

    def test_resuming_ranks_and_stages(self):
        config = self.config(checkpoint={'every': 1, 'keep': 0})
        self.run_train(config, self.SCHEDULE)
        self.resumes_to_the_bit(config, self.SCHEDULE)
        alone = [m['loss'] for m in self.metrics()]
        curves = []
        for stage in (0, 1, 2, 3) if FULL else (0, 3):
            run = f'stage-{stage}'
            self.run_ranks(2, config, self.SCHEDULE, f'run.dir={self.folder}/{run}', f'zero_optimization.stage={stage}',
                           'train.micro_batch_size=1', 'zero_optimization.reduce_every_micro_batch=true')
            curves.append((self.curve(run), self.final_state(run)))
            for m, loss in zip(self.metrics(run), alone):
                self.assertLess(relative(m['loss'], loss), 1e-4)
                self.assertEqual((m['comm_bytes'], m['comm_calls']), (m['comm_planned_bytes'], m['comm_planned_calls']))
        self.assertTrue(all(curve[0] == curves[0][0] for curve in curves))
        # Two ranks go on with what one rank did.
        run = self.copy_until(4, 'run', 'elastic')
        self.run_ranks(2, config, self.SCHEDULE, f'run.dir={run}', 'zero_optimization.stage=3')
        for m, loss in zip(self.metrics('elastic'), alone):
            self.assertLess(relative(m['loss'], loss), 1e-4)

    def test_changing_the_schedule_on_purpose(self):
        config = self.config(checkpoint={'every': 4, 'keep': 0})
        self.run_train(config, self.SCHEDULE, 'train.max_steps=4')
        later = 'train.batch_size_schedule=[[3, 8], [6, 16]]'
        self.refuses(config, later, says=['train.batch_size_schedule was', 'checkpoint.resume_with'])
        named = 'checkpoint.resume_with=train.batch_size_schedule'
        process = self.run_train(config, later, named)
        self.assertNotIn('sequences follow a new order', process.error)  # the steps so far are the same
        self.assertEqual([m['batch_size'] for m in self.metrics()], [4, 4, 4, 8, 8, 8, 16, 16])
        shutil.rmtree(self.folder / 'run')
        self.run_train(config, self.SCHEDULE, 'train.max_steps=4')
        process = self.run_train(config, 'train.batch_size_schedule=[[2, 8]]', named)
        self.assertIn('sequences follow a new order from step 5 on', process.error)

    def test_what_is_refused(self):
        config = self.config()
        for schedule, says in (('[[2, 6]]', ['batch size 6', 'choose a multiple of 4']), ('[[0, 6]]', ['train_batch_size is 4', 'at step 0 with 6']), ('[[3, 4], [3, 8]]', ['step 3']),
                               ('[[0, 4], [1.5, 8]]', ['step 1.5']), ('[[1, 0]]', ['is 0, expected from 1']),
                               ('[4, 8]', ['expected a list of [step, value]']), ('8', ['expected a list of [step, value]']),
                               ('[[0, "8"]]', ['the string "8"']), (json.dumps([[i, 4] for i in range(33)]), ['at most 32'])):
            with self.subTest(schedule=schedule):
                self.refuses('check', config, f'train.batch_size_schedule={schedule}', 'train.micro_batch_size=4',
                             says=['train.batch_size_schedule', *says])
        # Micro-batches that are left open divide all batches; so does the first entry where there is no batch size.
        for given, micro in ('train.train_batch_size=4', 2), ('train.train_batch_size=0', 3):
            process = self.run_train('check', config, given, 'train.batch_size_schedule=[[0, 6], [5, 9]]'
                                     if micro == 3 else 'train.batch_size_schedule=[[1, 6]]')
            self.assertEqual(json.loads(process.out)['train']['micro_batch_size'], micro)

    def test_check_and_plan_show_them(self):
        config = self.config(device='cpu')
        for command in 'check', 'plan':
            process = self.run_train(command, config, self.SCHEDULE)
            shown = ' '.join((process.out + process.error).split())
            self.assertIn('batch size: 4 sequences, 8 after step 3, 12 after step 5', shown)

    def test_minutes(self):
        config = self.config(train={'max_minutes': 1.5 / 60, 'max_steps': 20000})
        self.run_train(config, 'train.batch_size_schedule=[[20, 8], [40, 16], [80, 32]]')
        self.assertLess(self.metrics()[-1]['step'], 20000)


class NoiseScale(ScheduleCase):
    def scales(self, run='run'):
        return [m.get('noise_scale', 0) for m in self.metrics(run)]

    def test_the_estimate_is_that_of_the_formula(self):
        """The first micro-batch of a step alone, and the whole step: their norms give the first estimate."""
        write_shard(self.folder / 'pattern.bin', [i * i % 61 for i in range(1000)])
        config = self.config(data={'shuffle': False, 'train': str(self.folder / 'pattern.bin')},
                             train={'max_steps': 1, 'train_batch_size': 8, 'micro_batch_size': 2})
        self.refuses(config, 'train.noise_scale_every=1', 'train.micro_batch_size=8', says=['a step of 8 sequences is one micro-batch'])
        self.run_train(config, 'train.noise_scale_every=1')
        self.run_train(config, 'train.train_batch_size=2', f'run.dir={self.folder}/small')
        large, small = (self.metrics(run)[0]['grad_norm'] ** 2 for run in ('run', 'small'))
        expected = (small - large) / (1 / 2 - 1 / 8) / ((8 * large - 2 * small) / (8 - 2))
        self.assertLess(relative(self.scales()[0], expected), 1e-5)
        quiet = self.run_train(config, f'run.dir={self.folder}/off')
        self.assertNotIn('noise', quiet.error)
        self.assertEqual(self.curve('off'), self.curve())

    @release_only('the next test has a batch that grows')
    def test_the_batch_grows_the_same_in_every_stage_and_when_resumed(self):
        config = self.config(checkpoint={'every': 1, 'keep': 0}, optimizer={'lr': 1e-4}, train={'max_steps': 22, 'train_batch_size': 4,
                             'micro_batch_size': 1, 'noise_scale_every': 1, 'max_batch_size': 15})
        process = self.run_train(config)
        sizes = [m['batch_size'] for m in self.metrics()]
        self.assertEqual((sizes, set(sizes)), (sorted(sizes), {4, 8}))
        self.assertIn(f'from step {sizes.index(8) + 1} on, the batch has 8', process.error)
        self.assertGreater(min(m['of_gemm'] for m in self.metrics()), 0)
        curve, state, scales = self.curve(), self.final_state(), self.scales()
        for step in range(sizes.index(8) - 2, sizes.index(8) + 2):
            with self.subTest(step=step):
                run = self.copy_until(step, 'run', f'until-{step}')
                self.run_train(config, f'run.dir={run}')
                self.assertEqual((self.curve(run.name), self.final_state(run.name), self.scales(run.name)), (curve, state, scales))
        run = self.copy_until(len(sizes), 'run', 'other')
        self.run_train(config, f'run.dir={run}', 'train.train_batch_size=6', 'train.micro_batch_size=3', 'train.max_steps=24',
                       'checkpoint.resume_with=train.train_batch_size')
        self.assertEqual([m['batch_size'] for m in self.metrics('other')], sizes + [6, 6])
        runs = []
        for stage in (0, 1, 2, 3) if FULL else (0, 3):
            name = f'stage-{stage}'
            self.run_ranks(2, config, f'run.dir={self.folder}/{name}', f'zero_optimization.stage={stage}',
                           'zero_optimization.reduce_every_micro_batch=true')
            runs.append((self.curve(name), self.final_state(name), self.scales(name)))
            for m in self.metrics(name):
                self.assertEqual(m['comm_bytes'], m['comm_planned_bytes'])
        self.assertTrue(all(run == runs[0] for run in runs))

    def test_auto_is_the_same_run_on_any_ranks(self):
        """train_batch_size=auto: the options that it stands for give the same bits; ranks may change."""
        config = self.config(checkpoint={'every': 1, 'keep': 0}, optimizer={'lr': 1e-4},
                             train={'max_steps': 22, 'train_batch_size': 'auto', 'micro_batch_size': 2, 'max_batch_size': 15})
        auto = 'train.noise_scale_every=1',
        process = self.run_train(config, *auto)
        self.assertIn('batch size: 4 sequences, growing by the gradient noise scale up to 15', process.error)
        self.run_train(config, *auto, 'train.train_batch_size=4', f'run.dir={self.folder}/named')
        self.assertEqual((self.curve('named'), self.final_state('named')), (self.curve(), self.final_state()))
        self.assertEqual({m['batch_size'] for m in self.metrics()}, {4, 8})
        events = events_of(self.folder / 'run')
        self.assertEqual([value for _, value in events['train/batch_size']], [m['batch_size'] for m in self.metrics()])
        self.assertEqual([step for step, _ in events['train/noise_scale']],
                         [m['step'] for m in self.metrics() if m.get('noise_scale') is not None])
        # Alone, 2 x 2 sequences; with more ranks it would begin with more. A resumed run keeps what it began with.
        run = self.copy_until(3, 'run', 'elastic')
        self.run_ranks(2, config, *auto, f'run.dir={run}')
        for mine, alone in zip(self.metrics('elastic')[:8], self.metrics()):
            self.assertEqual(mine['batch_size'], alone['batch_size'])
            self.assertLess(relative(mine['loss'], alone['loss']), 1e-4)
        self.refuses(config, *auto, f'run.dir={run}', 'train.min_batch_size=8', says=['train.train_batch_size was 4 and is now 8'])
        shown = self.run_train('check', config)
        self.assertEqual({name: json.loads(shown.out)['train'][name] for name in ('train_batch_size', 'noise_scale_every')},
                         {'train_batch_size': 'auto', 'noise_scale_every': 10})

    def test_what_is_refused(self):
        config = self.config()
        self.refuses('check', config, 'train.max_batch_size=8', says=['train.noise_scale_every'])
        self.refuses('check', config, 'train.max_batch_size=8', 'train.noise_scale_every=1', 'train.batch_size_schedule=[[0, 4]]',
                     says=['leave out one of them'])
