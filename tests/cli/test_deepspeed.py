"""Translated DeepSpeed files and DeepSpeed's checkpoints, against DeepSpeed itself in the full run, and against what it recorded."""
import json
import os
import pathlib
import re
import shutil
import subprocess

from harness import GOLDEN, CommandCase, golden_expected, relative
from python_env import NEWEST, newest, python_with
from test_averaging import tensors

CHECKS = pathlib.Path(__file__).with_name('deepspeed_checks.py')
# Without what they need: the sources are read.
SOURCES, OLD_SOURCES = ('--no-deps', *newest('deepspeed')), ('--no-deps', 'deepspeed==0.14.4')

# The defaults of DeepSpeed 0.19.8, of SGD PyTorch's, by the options here.
ADAM = {'lr': 1e-3, 'betas': [0.9, 0.999], 'eps': 1e-8, 'weight_decay': 0}
DEFAULTS = {
    'Adam': ADAM, 'AdamW': ADAM, 'Lamb': ADAM,
    'Lion': {'lr': 1e-3, 'betas': [0.9, 0.999], 'weight_decay': 0},
    'SGD': {'lr': 1e-3, 'momentum': 0, 'weight_decay': 0},
    'Muon': {'lr': 0.02, 'muon_momentum': 0.95, 'adamw_lr': 3e-4, 'betas': [0.9, 0.95], 'eps': 1e-10, 'weight_decay': 0},
}
SCHEDULES = {
    'WarmupLR': {'warmup_min_lr': 0, 'warmup_max_lr': None, 'warmup_num_steps': 1000, 'warmup_type': 'log'},
    'WarmupDecayLR': {'warmup_min_lr': 0, 'warmup_max_lr': 1e-3, 'warmup_num_steps': 1000, 'warmup_type': 'log'},
    'WarmupCosineLR': {'warmup_min_ratio': 0, 'warmup_num_steps': 1000, 'cos_min_ratio': 1e-4, 'warmup_type': 'log'},
}


class DeepSpeedCase(CommandCase):
    def translate(self, config, name='ours.json'):
        """The translation, and the answers."""
        (self.folder / 'ds.json').write_text(json.dumps(config))
        answers = self.run_train('from-deepspeed', 'ds.json', '--out', name, '--force').out
        return json.loads((self.folder / name).read_text()), answers

    def check(self, requirements, *arguments):
        python = python_with(*requirements, large=True)
        environment = {name: value for name, value in os.environ.items() if name not in ('LD_PRELOAD', 'PYTHONPATH')}
        process = subprocess.run([python, CHECKS, *map(str, arguments)], cwd=self.folder, env=environment, check=False,
                                 capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        return json.loads(process.stdout.splitlines()[-1])


class Defaults(DeepSpeedCase):
    def test_what_the_file_leaves_out(self):
        for name, defaults in DEFAULTS.items():
            with self.subTest(name):
                config, answers = self.translate({'train_batch_size': 8, 'optimizer': {'type': name}})
                optimizer = config['optimizer']
                self.assertEqual({key: optimizer[key] for key in defaults}, defaults)
                self.assertEqual(optimizer.get('muon_scale'), 'jordan' if name == 'Muon' else None)
                self.assertEqual(' '.join(answers.split()).count("(DeepSpeed's default)"), len(defaults))
        for name in 'RMSprop', 'Adafactor':  # whose own are others
            answers = self.translate({'train_batch_size': 8, 'optimizer': {'type': name}})[1]
            self.assertEqual(answers.count("DeepSpeed's default)"), 1, answers)  # the weight decay
        late = {'WarmupLR': 2, 'WarmupDecayLR': 2, 'WarmupCosineLR': 1}
        for name, defaults in SCHEDULES.items():
            with self.subTest(name):
                config, answers = self.translate({'train_batch_size': 8, 'optimizer': {'type': 'Adam', 'params': {'lr': 0.5}},
                                                  'scheduler': {'type': name, 'params': {'total_num_steps': 5000}}})
                self.assertEqual(config['scheduler']['warmup_steps'], defaults['warmup_num_steps'] + late[name])
                self.assertEqual(config['optimizer']['lr'], defaults.get('warmup_max_lr') or 0.5)
                lowest = {'WarmupDecayLR': 0, 'WarmupCosineLR': defaults.get('cos_min_ratio')}
                self.assertEqual(config['scheduler'].get('min_lr_ratio'), lowest.get(name))
                self.assertIn("DeepSpeed's default is logarithmic", ' '.join(answers.split()))

    def same_defaults(self, found):
        for name in 'Adam', 'Lion', 'Lamb':
            theirs = found['optimizers'][name]
            self.assertEqual({key: theirs[key] for key in DEFAULTS[name]}, DEFAULTS[name], name)
            self.assertTrue(theirs.get('bias_correction', True) and theirs.get('adam_w_mode', True))
        for name, recorded in SCHEDULES.items():
            self.assertEqual({key: found['schedules'][name][key] for key in recorded}, {**recorded}, name)

    def test_signatures(self):
        """The newest release's and an older one's, and every name that the newest one's sections have."""
        found = self.check(SOURCES, 'signatures')
        self.same_defaults(found)
        muon, adam = found['muon'], found['muon_adam']
        self.assertEqual({'lr': muon['lr'], 'muon_momentum': muon['momentum'], 'adamw_lr': adam['lr'], 'betas': adam['betas'],
                          'eps': adam['eps'], 'weight_decay': muon['weight_decay']}, DEFAULTS['Muon'])
        self.assertEqual(adam['weight_decay'], muon['weight_decay'])
        self.assertGreater(len(found['names']), 90)
        everything = {'train_batch_size': 8}
        for name in sorted(found['names']):  # a section before its members
            *sections, last = name.split('.')
            config = everything
            for section in sections:
                config = config.setdefault(section, {})
            config[last] = {} if any(other.startswith(name + '.') for other in found['names']) else config.get(last, 1)
        everything['bf16']['enabled'] = False  # beside fp16
        self.assertNotIn('Left out: unknown', self.translate(everything)[1])
        scaling = json.loads(self.run_train('check', self.tiny_config(precision={'compute': 'fp16'})).out)['fp16']
        for name, default in found['fp16'].items():
            self.assertEqual(scaling.get(name, default), default, name)
        old = self.check(OLD_SOURCES, 'signatures')
        old['schedules']['WarmupLR']['warmup_max_lr'] = None  # it was 0.001
        self.same_defaults(old)


class Steps(DeepSpeedCase):
    """Translated runs of tests/golden/llama-tiny beside DeepSpeed's own."""
    STEPS, PEAK = 12, 0.1
    MODEL = GOLDEN / 'llama-tiny'
    # torch_adam: what is left to AdamW needs no compiler.
    MUON = {'type': 'Muon', 'params': {'torch_adam': True, 'muon_lr': 0.02, 'adam_lr': 3e-3, 'momentum': 0.9, 'betas': [0.8, 0.99],
                                       'eps': 1e-6, 'weight_decay': 0.1}}
    WARMUP = {'warmup_num_steps': 4, 'warmup_type': 'linear'}
    CURVES = {
        'WarmupLR': WARMUP, 'WarmupDecayLR': {**WARMUP, 'total_num_steps': STEPS, 'warmup_max_lr': PEAK},
        'WarmupCosineLR': {**WARMUP, 'total_num_steps': STEPS},
    }
    RATES = {  # DeepSpeed 0.19.8's, as fractions of the peak
        'WarmupLR': [0, 0, 0.25, 0.5, 0.75, *[1] * 7],
        'WarmupDecayLR': [0, 0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25],
        'WarmupCosineLR': [0, 0, 0.25, 0.5, 0.75, 0.9619435722790178, 0.8535680352542144, 0.6913725820109267, 0.50005,
                           0.3087274179890734, 0.1465319647457856, 0.0381564277209822],
    }

    def run_translated(self, file, steps, run):
        self.translate({'train_batch_size': golden_expected('llama-tiny')['batch'], 'gradient_clipping': 0.0, **file})
        expected = golden_expected('llama-tiny')
        self.run_train('ours.json', f'model.init_from={self.MODEL}', f'data.train={self.MODEL / "tokens.bin"}', 'data.shuffle=false',
                       f'train.seq_len={expected["seq"]}', f'train.max_steps={steps}', 'train.eval_every=0', 'device=cpu',
                       'run.threads=1', f'run.dir={run}')
        return self.metrics(run)

    def ways(self, run):
        self.run_train('export', run, '--to', 'hf', f'{run}-hf', '--tokenizer', 'none')
        before, after = tensors(self.MODEL), tensors(self.folder / f'{run}-hf')
        return {name: sum((a - b) ** 2 for a, b in zip(after[name], before[name], strict=True)) ** 0.5 for name in after}

    def deepspeed(self, steps):
        """DeepSpeed's run of the file that was translated last."""
        expected = golden_expected('llama-tiny')
        return self.check(NEWEST, 'train', self.MODEL, self.MODEL / 'tokens.bin', expected['batch'], expected['seq'], steps, 'ds.json')

    def test_muon_takes_steps_of_deepspeeds_length(self):
        """lr sqrt(max(1, rows / columns)) of a nearly orthogonal matrix, and adam_lr of every other element in the first step."""
        undecayed = {**self.MUON, 'params': {**self.MUON['params'], 'weight_decay': 0, 'eps': 1e-12}}
        self.run_translated({'optimizer': undecayed}, 1, 'muon')
        data = (self.MODEL / 'model.safetensors').read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
        for name, way in self.ways('muon').items():
            rows, columns = [*header[name]['shape'], 1][:2]
            if 'proj' in name:
                orthogonal = 0.02 * max(1, rows / columns) ** 0.5 * min(rows, columns) ** 0.5
                self.assertTrue(0.75 < way / orthogonal < 1.1, f'{name}: {way / orthogonal}')
            elif 'embed' not in name:  # of those that tokens do not name there is no gradient
                self.assertLess(relative(way, 3e-3 * (rows * columns) ** 0.5), 0.02, name)

    def check_rates(self, ours, theirs):
        """The decay is the same; the warm-up is linear to the same step, and higher by at most two steps of it."""
        for step, (mine, want) in enumerate(zip(ours, theirs, strict=True)):
            self.assertAlmostEqual(mine, want, delta=1e-7 if step > 4 else 0.4, msg=str(step))
        self.assertEqual(theirs[:2], [0, 0])

    def test_schedules_have_the_recorded_rates(self):
        for name, params in self.CURVES.items():
            file = {'optimizer': {'type': 'SGD', 'params': {'lr': self.PEAK}}, 'scheduler': {'type': name, 'params': params}}
            self.check_rates([m['lr'] / self.PEAK for m in self.run_translated(file, self.STEPS, name)], self.RATES[name])

    def test_deepspeed_takes_the_same(self):
        losses = [m['loss'] for m in self.run_translated({'optimizer': self.MUON}, 3, 'muon')]
        found, ours = self.deepspeed(3), self.ways('muon')
        for mine, want in zip(losses, found['losses'], strict=True):
            self.assertLess(relative(mine, want), 1e-3)
        for name, way in ours.items():
            if 'norm' not in name:  # which are decayed there. Newton-Schulz iterations in bf16 or fp16 differ by a percent.
                self.assertLess(relative(way, found['ways'][name]), 0.02, name)
        for name, params in self.CURVES.items():
            self.translate({'train_batch_size': golden_expected('llama-tiny')['batch'],
                            'optimizer': {'type': 'SGD', 'params': {'lr': self.PEAK}}, 'scheduler': {'type': name, 'params': params}})
            for mine, want in zip(self.deepspeed(self.STEPS)['rates'], self.RATES[name], strict=True):
                self.assertAlmostEqual(mine / self.PEAK, want, delta=1e-9)


class Checkpoints(DeepSpeedCase):
    MODEL = GOLDEN / 'llama-tiny'

    def obey(self, path, environment):
        """Runs the command that the refusal of a checkpoint names, and gives the weights that it wrote."""
        shutil.rmtree(self.folder / 'NEW', ignore_errors=True)
        message = ' '.join(self.run_train('inspect', path, code=2).error.split())
        command = re.search(r'Convert it once: (.*), copy the model', message).group(1)
        subprocess.run(command, shell=True, cwd=self.folder, env=environment, check=True, capture_output=True)
        shutil.copy(self.MODEL / 'config.json', self.folder / 'NEW')
        self.run_train('inspect', 'NEW')
        return tensors(self.folder / 'NEW')

    def test_the_commands_of_messages_convert_them(self):
        """Of stages 0, 2 and 3, and universal ones of 2 and 3. Stage 3's partitions lose the last bits on the way."""
        python = python_with(*NEWEST, large=True)
        environment = {**os.environ, 'PATH': f'{python.parent}:{os.environ["PATH"]}'}
        for stage in 0, 2, 3:
            saved = self.check(NEWEST, 'save', self.MODEL, f's{stage}', stage)
            if stage:
                subprocess.run([python, '-m', 'deepspeed.checkpoint.ds_to_universal', '--inject_missing_state', '--input_folder',
                                f's{stage}/global_step1', '--output_folder', f'universal{stage}/global_step1'],
                               cwd=self.folder, env=environment, check=True, capture_output=True)
            for path in (f's{stage}', f'universal{stage}')[:2 if stage else 1]:
                read = self.obey(path, environment)
                self.assertEqual(read.keys(), saved.keys(), path)
                for name, values in read.items():
                    for value, want in zip(values, saved[name], strict=True):
                        self.assertAlmostEqual(value, want, delta=1e-6, msg=f'{path}: {name}')
