"""Every option has an effect: set to another value, it changes what a run computes, writes or says, what ./train plan prints, or
it is refused. Options without effect are refused, or dropped where the command line replaces what they are set for."""
import json
import re
import unittest

import harness
from harness import CommandCase, FULL, GOLDEN, pseudo_random_tokens, write_shard

SHORT_SHARE = 8  # the short run tries every eighth option
LLAMA = {'model': {'family': 'llama'}}
MODERN = {'model': {'family': 'modern', 'zero_init': False}}
TASKS = {'eval': {'tasks': 'multiple_choice=items.jsonl', 'every': 2}}
SAMPLES = {'train': {'sample_every': 2}}
SCALED = {'fp16': {'loss_scaling': 'on'}}
OVERFLOWS = {'fp16': {'loss_scaling': 'on', 'initial_scale_power': 900}}
MUON = {'optimizer': {'type': 'muon'}}
STAGE_3 = {'zero_optimization': {'stage': 3, 'stage3_param_persistence_threshold': 0}}
NOISE = {'train': {'noise_scale_every': 1}}
GROWING = {'train': {'train_batch_size': 'auto', 'max_batch_size': 8, 'micro_batch_size': 1}}
SPIKE = {'train': {'max_steps': 26}}
EVERY_STEP = {'checkpoint': {'every': 1}}


def scaling(rope_type, **options):
    return {'model': {'family': 'llama', 'rope_scaling': {'rope_type': rope_type, 'factor': 8, **options}}}


# Each option: another value; where the change shows; the sections in which it has an effect, where those of BASE are not. Shows:
#   metrics   metrics.jsonl, without times and memory     files    names in the run's folder, and sizes of checkpoints
#   plan      ./train plan on 1 and 2 ranks               samples  printed samples
#   gpu       the same for GPUs                           end      exit code and error
#   ranks     metrics.jsonl of two ranks, with memory     /regex   what matches it in the log
# GPU, RANKS: its help says that it matters only on a GPU, or with several ranks and only for speed: it is accepted elsewhere.
GPU, RANKS = 'only on a GPU', 'only with several ranks'
OPTIONS = {
    'device': ('cuda', 'end'),
    'recompute': ('none', 'plan'),
    'cuda_graphs': (False, GPU),
    'attention': ('flash', GPU),
    'offload_activations': ('cpu', 'gpu', {'recompute': 'block'}),
    'communication_data_type': ('bf16', 'plan'),
    'model.family': ('llama', 'plan'),
    'model.n_layer': (3, 'plan'),
    'model.n_head': (4, 'metrics'),
    'model.n_embd': (64, 'plan'),
    'model.vocab_size': (300, 'plan'),
    'model.n_positions': (64, 'plan'),
    'model.n_kv_head': (1, 'plan', LLAMA),
    'model.head_dim': (8, 'plan', LLAMA),
    'model.intermediate_size': (48, 'plan', LLAMA),
    'model.rope_theta': (500, 'metrics', LLAMA),
    'model.norm_eps': (0.01, 'metrics', LLAMA),
    'model.qkv_bias': (True, 'plan', LLAMA),
    'model.o_bias': (True, 'plan', LLAMA),
    'model.qk_norm': (True, 'plan', LLAMA),
    'model.tied': (False, 'plan', LLAMA),
    'model.activation': ('gelu', 'metrics', MODERN),
    'model.partial_rotary_factor': (1, 'metrics', MODERN),
    'model.soft_cap': (1, 'metrics', MODERN),
    'model.zero_init': (True, 'metrics', MODERN),
    'model.embedding_skip': (False, 'plan', MODERN),
    'model.value_embeddings': ([0], 'plan', MODERN),
    'model.window': (4, 'metrics', LLAMA),
    'model.init_from': (str(GOLDEN / 'gpt2-tiny'), 'plan', {'model': None}),
    'model.rope_scaling.rope_type': ('yarn', 'metrics', scaling('linear')),
    'model.rope_scaling.factor': (2, 'metrics', scaling('linear')),
    'model.rope_scaling.low_freq_factor': (0.1, 'metrics', scaling('llama3')),
    'model.rope_scaling.high_freq_factor': (8, 'metrics', scaling('llama3')),
    'model.rope_scaling.beta_fast': (1.5, 'metrics', scaling('yarn')),
    'model.rope_scaling.beta_slow': (0.01, 'metrics', scaling('yarn')),
    'model.rope_scaling.attention_factor': (2, 'metrics', scaling('yarn')),
    'model.rope_scaling.original_max_position_embeddings': (16, 'metrics', scaling('llama3')),
    'data.train': ('other.bin', 'metrics'),
    'data.val': ('other.bin', 'metrics', {'data': {'val_split': 0}}),
    'data.val_split': (0.2, 'metrics'),
    'data.tokenizer': ('bytes', 'metrics'),
    'data.shuffle': (False, 'metrics'),
    'data.mask_documents': (True, 'metrics', {'data': {'tokenizer': 'bytes'}}),
    'train.max_steps': (4, 'metrics'),
    'train.max_minutes': (0.02, '/train.max_minutes=.* about', {'train': {'max_steps': 200}}),
    'train.seq_len': (16, 'metrics'),
    'train.micro_batch_size': (1, 'plan'),
    'train.gradient_accumulation_steps': (2, 'plan', {'train': {'micro_batch_size': 0}}),
    'train.train_batch_size': (8, 'metrics'),
    'train.logical_ranks': (2, 'metrics'),
    'train.batch_size_schedule': ([[0, 4], [1, 8]], 'metrics'),
    'train.noise_scale_every': (1, 'metrics'),
    'train.min_batch_size': (4, 'metrics', GROWING),
    'train.max_batch_size': (8, '/growing by .* to 8', NOISE),
    'train.dropout': (0.5, 'metrics'),
    'train.label_smoothing': (0.5, 'metrics'),
    'train.z_loss': (0.5, 'metrics'),
    'train.gradient_clipping': (0.1, 'metrics', {'optimizer': {'type': 'sgd', 'lr': 0.1}}),
    'train.seed': (7, 'metrics'),
    'train.eval_every': (1, 'metrics'),
    'train.eval_steps': (2, 'metrics'),
    'train.eval_final_steps': (1, 'metrics'),
    'train.sample_every': (1, 'samples', {'data': {'tokenizer': 'bytes'}}),
    'train.sample_tokens': (1, 'samples', SAMPLES),
    'train.sample_prompt': ('once', 'samples', SAMPLES),
    'train.on_spike': ('off', '/warning: step .*', SPIKE),
    'train.spike_window': (20, '/over the last .* steps', SPIKE),
    'train.spike_threshold': (0, '/warning: step .*', SPIKE),
    'train.max_spikes': (1, 'end', {'train': {'max_steps': 26, 'on_spike': 'skip'}}),
    'train.overfit_one_batch': (True, 'metrics'),
    'train.ema.type': ('exponential', 'plan'),
    'train.ema.decay': (0.5, 'metrics', {'train': {'ema': {'type': 'exponential'}}}),
    'eval.tasks': ('multiple_choice=items.jsonl', 'metrics', {'data': {'tokenizer': 'bytes'}}),
    'eval.every': (1, 'metrics', TASKS),
    'eval.limit': (1, 'metrics', TASKS),
    'precision.compute': ('bf16', 'metrics'),
    'fp16.loss_scaling': ('on', 'metrics'),
    'fp16.loss_scale': (8, 'metrics', SCALED),
    'fp16.initial_scale_power': (4, 'metrics', SCALED),
    'fp16.loss_scale_window': (1, 'metrics', SCALED),
    'fp16.hysteresis': (1, 'metrics', OVERFLOWS),
    'fp16.min_loss_scale': (1e300, 'end', OVERFLOWS),
    'optimizer.type': ('adam', 'metrics'),
    'optimizer.lr': (0.01, 'metrics'),
    'optimizer.betas': ([0.5, 0.5], 'metrics'),
    'optimizer.eps': (0.1, 'metrics'),
    'optimizer.momentum': (0.1, 'metrics', {'optimizer': {'type': 'sgd'}}),
    'optimizer.muon_momentum': (0.1, 'metrics', MUON),
    'optimizer.muon_scale': ('jordan', 'metrics', MUON),
    'optimizer.adamw_lr': (0.01, 'metrics', MUON),
    'optimizer.weight_decay': (5, 'metrics'),
    'optimizer.groups': ([{'match': '*.bias', 'freeze': True}], 'metrics'),
    'optimizer.state_dtype': ('int8', 'plan'),
    'zero_optimization.stage': (1, 'ranks'),
    'zero_optimization.partition': ('layer', 'ranks'),
    'zero_optimization.reduce_bucket_size': (1000, 'plan'),
    'zero_optimization.allgather_bucket_size': (1000, 'plan'),
    'zero_optimization.overlap_comm': (False, 'plan', STAGE_3),
    'zero_optimization.reduce_every_micro_batch': (True, 'plan'),
    'zero_optimization.stage3_param_persistence_threshold': (100, 'plan', STAGE_3),
    'zero_optimization.stage3_prefetch_bucket_size': (0, 'plan', STAGE_3),
    'zero_optimization.offload_optimizer.device': ('cpu', 'gpu'),
    'zero_optimization.offload_optimizer.ratio': (0.5, 'gpu', {'zero_optimization': {'offload_optimizer': {'device': 'cpu'}}}),
    'zero_optimization.offload_param.device': ('cpu', 'gpu', {'zero_optimization': {
        'stage': 3, 'offload_optimizer': {'device': 'cpu'}}}),
    'comm.backend': ('nccl', 'end'),
    'comm.shared_memory': (False, RANKS),
    'scheduler.type': ('linear', 'metrics'),
    'scheduler.warmup_steps': (2, 'metrics'),
    'scheduler.decay_steps': (2, 'metrics'),
    'scheduler.min_lr_ratio': (0.5, 'metrics'),
    'scheduler.decay_ratio': (0.9, 'metrics', {'scheduler': {'type': 'warmup-stable-decay'}}),
    'checkpoint.every': (1, 'files'),
    'checkpoint.keep': (1, 'files', EVERY_STEP),
    'checkpoint.keep_every': (2, 'files', {'checkpoint': {'every': 1, 'keep': 1, 'keep_best': False}}),
    'checkpoint.keep_best': (False, 'files'),
    'checkpoint.resume': ('never', 'again'),
    'checkpoint.resume_with': ('optimizer.lr', 'again lr'),
    'checkpoint.accept_new_data': (True, 'again data'),
    'run.dir': ('elsewhere', 'files'),
    'run.log_every': (2, '/step .*loss'),
    'run.audit_every': (1, 'files'),
    'run.audit_key': ('run/key', 'files', {'run': {'audit_every': 1}}),
    'run.profile': (True, 'files'),
    'run.debug_sync': (False, GPU),
    'run.hang_timeout_s': (60, RANKS),
    'run.require_same_bits': (True, 'again bits'),
    'run.threads': (2, 'plan'),
}
BASE = {
    'device': 'cpu',
    'model': {'n_layer': 2, 'n_head': 2, 'n_embd': 32, 'vocab_size': 257, 'n_positions': 32},
    'data': {'train': 'tokens.bin', 'val_split': 0.1},
    'train': {'max_steps': 3, 'train_batch_size': 4, 'micro_batch_size': 2, 'eval_every': 2, 'eval_steps': 1},
    'precision': {'compute': 'fp32'},
    'scheduler': {'warmup_steps': 1},
    'checkpoint': {'every': 0},
    'run': {'dir': 'run', 'threads': 1},
}


def merged(base, more):
    result = dict(base)
    for key, value in more.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return {key: value for key, value in result.items() if value is not None}


def override(name, value):
    return f'{name}={value if isinstance(value, str) else json.dumps(value)}'


class EveryOption(CommandCase):
    def setUp(self):
        super().setUp()
        write_shard(self.folder / 'tokens.bin', pseudo_random_tokens(4000, 257))
        write_shard(self.folder / 'other.bin', pseudo_random_tokens(4000, 257, seed=2))
        (self.folder / 'items.jsonl').write_text(
            ''.join(json.dumps({'context': word, 'choices': ['a', 'bc'], 'label': 0}) + '\n' for word in ('one', 'two', 'six')))
        self.seen = {}

    def config(self, sections):
        sections = merged(BASE, sections)
        if 'sample_every' in sections['train'] or 'eval' in sections:
            sections = merged(sections, {'data': {'tokenizer': 'bytes'}})
        path = self.folder / 'c.json'
        path.write_text(json.dumps(sections))
        return path.name

    def start_with(self, *arguments, **environment):
        faults = {'ZERO_INJECT_GRADIENTS': '24:1e6'} if any('max_steps": 26' in (self.folder / str(a)).read_text()
                                                            for a in arguments[:1]) else {}
        process = self.start(*arguments, environment=faults | environment)
        process.out, process.error = process.communicate(timeout=300)
        self.assertNotIn('Sanitizer', process.error)
        return process

    def observe(self, shows, sections, overrides):
        """What shows an option's effect. A failure shows only at the end."""
        for path in self.folder.glob('run*'), self.folder.glob('elsewhere'):
            for folder in path:
                harness.shutil.rmtree(folder)
        config = self.config(sections)
        if shows in ('plan', 'gpu'):
            gpu = ['device=auto', '--device-memory', '8G'] if shows == 'gpu' else []
            plan = json.loads(self.run_train('plan', config, *overrides, *gpu, '--ranks', '1,2', '--json').out)
            stage = merged(BASE, sections).get('zero_optimization', {}).get('stage')
            for case in plan['plans']:
                case['stages'] = [[each['bytes'], each['sends'], each['host']] for each in case['stages']
                                  if stage is None or each['stage'] == stage]
            return [plan['parameters'], plan['plans']]
        if shows == 'ranks':
            self.run_ranks(2, config, *overrides)
        elif shows.startswith('again'):
            self.run_train(config)
            if shows == 'again data':
                write_shard(self.folder / 'new.bin', pseudo_random_tokens(5000, 257, seed=3))
            more = {'again lr': ['optimizer.lr=0.1'], 'again data': ['data.train=new.bin']}.get(shows, [])
            other = {'ONEDNN_MAX_CPU_ISA': 'SSE41'} if shows == 'again bits' else {}  # which rounds differently
            return self.start_with(config, 'train.max_steps=4', *more, *overrides, **other).returncode
        else:
            process = self.start_with(config, *overrides)
            if shows == 'end':
                return process.returncode
            self.assertEqual(process.returncode, 0, f'{sections} {overrides}\n{process.error}')
            if shows.startswith('/'):
                return re.findall(shows[1:], process.error)
        run = self.folder / 'run'
        if shows == 'files':
            return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob('*') if 'tfevents' not in p.name)
        if shows == 'samples':
            return {p.name: p.read_bytes() for p in run.rglob('samples/*')}
        timing = r'time|_s$|_ms$|mfu|of_gemm|hidden' + ('' if shows == 'ranks' else '|bytes$|memory|threads')
        lines = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
        return [{key: value for key, value in line.items() if not re.search(timing, key)} for line in lines]

    def observed_without(self, shows, sections):
        key = shows, json.dumps(sections)
        if key not in self.seen:
            self.seen[key] = self.observe(shows, sections, [])
        return self.seen[key]

    def listed(self):
        """The names and helps of ./train options."""
        rows = re.findall(r'^\| `([^`]*)` \|.*\| (.*?) \|$', self.run_train('options').out, re.M)
        return dict(rows)

    def check(self, name, value, shows, sections=None):
        word = override(name, value)
        with self.subTest(option=name):
            if shows in (GPU, RANKS):
                help_text = self.listed()[name]
                self.assertRegex(help_text, r'GPU' if shows == GPU else r'ranks')
                self.run_train('check', self.config({}), word)
            else:
                self.assertNotEqual(self.observe(shows, sections or {}, [word]),
                                    self.observed_without(shows, sections or {}), f'{word} changes nothing')

    def test_every_option_has_an_effect(self):
        """Another value of each: a new option needs a row that shows what it does."""
        self.assertEqual(list(OPTIONS), list(self.listed()))
        for i, (name, row) in enumerate(OPTIONS.items()):
            if FULL or i % SHORT_SHARE == 0:
                self.check(name, *row)

    def test_an_option_that_needs_others_is_refused_without_them(self):
        """In BASE the options that have sections of their own have no effect. A message names a dozen of them in full."""
        words = [override(name, row[0]) for name, row in OPTIONS.items() if len(row) == 3 and name not in ACCEPTED]
        for i in range(0, len(words), 12):
            error = self.run_train('check', self.config({}), *words[i:i + 12], code=2).error
            for word in words[i:i + 12]:
                self.assertRegex(error, re.escape(word.split('=')[0]) + ' is .*, but ')


# These have sections only to show more, or in a shorter run.
# Stages are compared with the same options, also by ./train plan.
ANY_STAGE = {f'zero_optimization.stage3_{name}' for name in ('param_persistence_threshold', 'prefetch_bucket_size')}
ACCEPTED = {'model.init_from', 'train.max_minutes', 'data.val', 'train.gradient_accumulation_steps', 'train.gradient_clipping', 'train.sample_every',
            'train.on_spike', 'train.spike_window', 'train.spike_threshold', 'eval.tasks', 'zero_optimization.overlap_comm',
            'checkpoint.keep', 'checkpoint.keep_every', 'train.max_batch_size', *ANY_STAGE, 'model.embedding_skip', 'data.mask_documents', 'model.rope_scaling.rope_type', 'model.activation'}


class Unused(CommandCase):
    def test_the_command_line_replaces_what_the_file_sets_others_for(self):
        config = self.tiny_config(optimizer={'type': 'adamw', 'betas': [0.8, 0.99], 'eps': 1e-6})
        error = self.run_train(config, 'optimizer.type=sgd').error
        self.assertIn('dropped options that have no effect in this run: optimizer.betas=[0.8, 0.99] (optimizer.type is sgd), '
                      'optimizer.eps=1e-06 (optimizer.type is sgd)', error)
        saved = json.loads((self.folder / 'run' / 'config.json').read_text())['optimizer']
        self.assertEqual((saved['betas'], saved['eps']), ([0.9, 0.95], 1e-8))
        self.assertNotIn('dropped', self.run_train('run/config.json', 'train.max_steps=7').error)  # resumes
        self.assertIn('resum', self.run_train(config, 'optimizer.type=sgd', 'train.max_steps=8').error)
        self.refuses(config, 'optimizer.type=sgd', 'optimizer.betas=[0.8, 0.9]', says=['optimizer.betas is [0.8, 0.9], but'])
        both = self.tiny_config(name='both.json', optimizer={'type': 'sgd', 'betas': [0.8, 0.99]})
        self.refuses(both, says=['both.json: optimizer.betas is [0.8, 0.99], but optimizer.type is sgd', 'leave it out'])

    def test_a_config_that_an_older_program_saved(self):
        """It set what had no effect; the run goes on, and a new one begins."""
        config = self.tiny_config(optimizer={'type': 'sgd'})
        self.run_train(config)
        path = self.folder / 'run' / 'config.json'
        saved = json.loads(path.read_text())
        saved = merged(saved, {'optimizer': {'eps': 1e-6}, 'train': {'sample_prompt': 'Once'}, 'eval': {'limit': 5}})
        path.write_text(json.dumps(saved))
        for arguments in ('run.dir=new', 'optimizer.lr=1e-3'), ('train.max_steps=7',):
            error = self.run_train('run/config.json', *arguments).error
            for name in 'optimizer.eps=1e-06', 'train.sample_prompt="Once"', 'eval.limit=5':
                self.assertIn(name, error)

    def test_validation_data(self):
        config = self.tiny_config(data={'val_split': 0.1})
        write_shard(self.folder / 'val.bin', pseudo_random_tokens(500, 61, seed=2))
        self.refuses(config, 'data.val=val.bin', 'data.val_split=0.2', says=['data.val_split is 0.2, but data.val is ["val.bin"]'])
        self.assertIn('dropped', self.run_train('check', config, 'data.val=val.bin').error)
        for name in 'train', 'val':
            write_shard(self.folder / f'my-{name}.bin', pseudo_random_tokens(2000, 61, seed=3))
        error = self.run_train(config, 'data.train=my-train.bin', 'train.max_steps=1').error
        self.assertIn('data.val_split=0.1 has no effect, as there are validation shards beside data.train', error)
        error = self.run_train(config, 'data.val_split=0', 'train.eval_every=5', 'run.dir=none', 'train.max_steps=1').error
        self.assertIn('there is no validation data, so these have no effect: train.eval_every;', error)

    def test_on_several_ranks(self):
        error = self.run_ranks(2, self.ranks_config(), 'scheduler.type=constant', 'scheduler.decay_steps=6', code=2).error
        self.assertIn('scheduler.decay_steps is 6, but scheduler.type is constant', error)

    def test_nccl_on_the_cpu(self):
        self.refuses('check', self.tiny_config(), 'comm.backend=nccl', says=['comm.backend is "nccl", but device is cpu'])
        for device in 'cpu', 'auto':
            for command in (), ('plan',):
                self.refuses(*command, self.tiny_config(device=device), 'comm.backend=nccl', environment={'CUDA_VISIBLE_DEVICES': ''},
                             says=['comm.backend is '])
        self.assertFalse((self.folder / 'run').exists())

    def test_a_group_that_sets_nothing(self):
        shield, other = {'match': 'wte*'}, {'match': '*', 'lr': 1e-3}
        self.run_train('check', self.tiny_config(optimizer={'groups': [shield, other]}))
        self.refuses('check', self.tiny_config(optimizer={'groups': [{'match': '*.bias', 'freeze': False}]}),
                     says=['optimizer.groups[0] sets nothing'])

    def test_a_translation_leaves_out_what_has_no_effect(self):
        (self.folder / 'ds.json').write_text(json.dumps({
            'train_batch_size': 8, 'fp16': {'enabled': 'auto', 'initial_scale_power': 32},
            'zero_optimization': {'stage': 2}}))
        process = self.run_train('from-deepspeed', 'ds.json', '--out', 'c.json')
        said = ' '.join(process.out.split())
        self.assertIn('fp16.initial_scale_power 32: left out, as fp16.loss_scaling is off', said)
        self.assertNotIn('refuses', said)
        self.run_train('check', 'c.json')


if __name__ == '__main__':
    unittest.main()
