"""Models of the Llama and modern families from the command line: stages and ranks, resuming, exports."""
import json
import math
import shutil

import harness
from harness import CommandCase, ROOT, release_only

LLAMA = ['model.family=llama', 'model.n_head=4', 'model.n_kv_head=2', 'model.head_dim=8', 'model.intermediate_size=40',
         'model.qk_norm=true', 'model.tied=false', 'model.window=[5, 0]', 'precision.compute=fp32']


MODERN = ['model.family=modern', 'model.n_layer=3', 'model.n_head=4', 'model.n_kv_head=2', 'model.head_dim=8', 'model.window=[5, 0]',
          'model.value_embeddings=[0, 2]', 'precision.compute=fp32']


class Family:
    """Tests of any family: a mixin."""
    OPTIONS = ()

    def test_stages_levels_and_resuming_change_no_bit(self):
        config = self.tiny_config(checkpoint={'every': 3, 'keep': 0})
        self.run_train(config, *self.OPTIONS, 'recompute=none', 'run.dir=whole')
        whole, state = self.curve('whole'), self.final_state('whole')
        for i, options in enumerate((['zero_optimization.stage=2', 'recompute=attention'],
                                     ['zero_optimization.stage=3', 'recompute=block',
                                      'zero_optimization.stage3_param_persistence_threshold=10'])):
            with self.subTest(options):
                self.run_train(config, *self.OPTIONS, *options, f'run.dir=run-{i}')
                self.assertEqual(self.curve(f'run-{i}'), whole)
                self.assertEqual(self.final_state(f'run-{i}'), state)
        run = self.copy_until(3, 'whole', 'resumed')
        self.run_train(config, *self.OPTIONS, 'recompute=none', 'run.dir=resumed')
        self.assertEqual(self.curve(run.name), whole)
        self.assertEqual(self.final_state(run.name), state)

    def test_stages_among_ranks_change_no_bit(self):
        config = self.tiny_config()
        few = harness.SANITIZERS and not harness.FULL  # the same code on other numbers
        for ranks in (3,) if few else (2, 3):
            for stage in (0, 3) if few else range(4):
                with self.subTest(ranks=ranks, stage=stage):
                    self.run_ranks(ranks, config, *self.OPTIONS, f'zero_optimization.stage={stage}', 'run.threads=1',
                                   f'run.dir={ranks}-{stage}')
                    self.assertEqual(self.curve(f'{ranks}-{stage}'), self.curve(f'{ranks}-0'))


class Llama(Family, CommandCase):
    OPTIONS = LLAMA

    def test_a_checkpoint_of_another_family(self):
        config = self.tiny_config(checkpoint={'every': 3})
        self.run_train(config, *LLAMA, 'run.dir=run')
        refused = self.run_train(config, *LLAMA, 'model.qk_norm=false', 'run.dir=run', code=2)
        self.assertIn('qk_norm', refused.error)

    def test_an_export_has_the_bytes_of_what_was_imported(self):
        for family in 'llama', 'qwen2', 'qwen3':
            with self.subTest(family):
                given = ROOT / 'tests' / 'golden' / f'{family}-tiny'
                self.run_train('export', given, '--to', 'hf', family, '--tokenizer', 'none')
                found, wanted = ((folder / 'model.safetensors').read_bytes() for folder in (self.folder / family, given))
                self.assertEqual(tensors(found), tensors(wanted))
                config = json.loads((self.folder / family / 'config.json').read_text())
                self.assertEqual(config['model_type'], family)
                for dtype in 'bf16', 'fp16':
                    first, second = f'{family}-{dtype}', f'{family}-{dtype}-again'
                    self.run_train('export', given, '--to', 'hf', first, '--dtype', dtype, '--tokenizer', 'none')
                    self.run_train('export', first, '--to', 'hf', second, '--dtype', dtype, '--tokenizer', 'none')
                    again, once = ((self.folder / folder / 'model.safetensors').read_bytes() for folder in (second, first))
                    self.assertTrue(again == once, dtype)
                    self.assertEqual({kind for kind, _, _ in tensors(once).values()}, {dtype.upper().replace('FP', 'F')})
                # Absent, transformers' default of 4096 would be a window in versions before 4.52.
                self.assertEqual(config.get('sliding_window', 'absent'), 'absent' if family == 'llama' else None)

    def test_exported_windows(self):
        """In config.json as transformers reads it before 4.53 (max_window_layers) and since (layer_types), and read here."""
        config = self.tiny_config(model={'family': 'llama', 'n_layer': 4}, train={'max_steps': 2}, checkpoint={'every': 2})
        losses = set()
        for shape, windows, has in (('qkv_bias', [5], [1] * 4), ('qk_norm', [0, 0, 5, 5], [0, 0, 1, 1]), ('qk_norm', [5, 0], [1, 0, 1, 0]),
                                    ('qkv_bias', [], [0] * 4)):
            with self.subTest(windows=windows):
                run = f'{shape}-{len(windows)}'
                self.run_train(config, f'model.{shape}=true', f'model.window={windows}', f'run.dir={run}')
                warns = 'the 4 blocks have a window' in self.run_train('export', run, '--to', 'hf', f'{run}-hf', '--tokenizer', 'none').error
                self.assertEqual(warns, 0 < sum(has) < 4)
                found = json.loads((self.folder / f'{run}-hf' / 'config.json').read_text())
                self.assertEqual((found['use_sliding_window'], found['sliding_window']), (True, 5) if windows else (False, None))
                self.assertEqual(found.get('layer_types'), [('full_attention', 'sliding_attention')[x] for x in has] if windows else None)
                first = found['max_window_layers']
                self.assertEqual([int(i >= first) for i in range(4)] == has, windows != [5, 0])
                self.assertEqual(has[:first], [0] * first)
                ours, again = (json.loads(self.run_train('eval', model, '--data', 'tokens.bin', '--json').out)['loss']
                               for model in (run, f'{run}-hf'))
                self.assertEqual(ours, again)
                losses.add(ours)
        self.assertEqual(len(losses), 4)
        self.refuses('export', 'qkv_bias-1', '--to', 'gguf', 'out', '--tokenizer', 'none', says=['model.window', '--to hf'])
        for options, says in ((['model.window=5'], "transformers' Llama has no sliding windows"),
                              (['model.window=[5, 0, 7]', 'model.n_layer=3', 'model.qk_norm=true'], 'windows of 5 and of 7 positions'),
                              (['model.qk_norm=true', 'model.qkv_bias=true'], 'both model.qkv_bias and model.qk_norm')):
            self.run_train(config, *options, 'run.dir=refused', 'checkpoint.resume=never', 'train.max_steps=1')
            self.refuses('export', 'refused', '--to', 'hf', 'out', '--tokenizer', 'none', says=[says])
            shutil.rmtree(self.folder / 'refused')

    def test_gpt2_has_no_key_value_heads(self):
        refused = self.run_train('check', ROOT / 'configs' / 'gpt2-small.json', 'model.n_kv_head=2', code=2)
        self.assertIn('model.family is gpt2, which has no model.n_kv_head', refused.error)


class Modern(Family, CommandCase):
    OPTIONS = MODERN
    RESOLVED = {'intermediate_size': 128, 'rope_theta': 1024, 'norm_eps': 1e-05, 'partial_rotary_factor': 0.5}  # 0 in the run's config

    def test_the_printed_config_has_the_familys_values(self):
        self.run_train(self.tiny_config(), *MODERN, 'train.max_steps=1')
        model = json.loads((self.folder / 'run' / 'config.json').read_text())['model']
        self.assertEqual({key: model[key] for key in ('tied', 'qk_norm', 'activation', 'soft_cap', 'zero_init', 'embedding_skip')},
                         {'tied': False, 'qk_norm': True, 'activation': 'relu_squared', 'soft_cap': 15, 'zero_init': True,
                          'embedding_skip': True})
        checked = self.run_train('check', self.folder / 'run' / 'config.json')
        for key, value in json.loads(checked.out)['model'].items():
            self.assertEqual(value, model[key] or self.RESOLVED.get(key, model[key]), key)
        self.assertIn('model: modern, ', checked.error)
        self.assertIn('n_head 4, n_kv_head 2, head_dim 8, ', checked.error)
        self.assertIn('window [5, 0])', checked.error)
        (self.folder / 'resolved.json').write_text(checked.out)  # which resumes the run that left sizes open
        self.assertIn('resum', self.run_train('resolved.json', 'train.max_steps=2').error)
        self.refuses('resolved.json', 'train.max_steps=2', 'model.head_dim=16', says=['head_dim'])

    @release_only('unit/model/test_gradients')
    def test_each_piece_can_be_switched_off(self):
        off = {'qk_norm': 'false', 'tied': 'true', 'activation': 'gelu', 'soft_cap': '0', 'zero_init': 'false',
               'embedding_skip': 'false', 'value_embeddings': '[]', 'window': '[]', 'partial_rotary_factor': '1'}
        config = self.tiny_config(train={'max_steps': 3})
        self.run_train(config, *MODERN, 'run.dir=all')
        for piece, value in off.items():
            with self.subTest(piece):
                self.run_train(config, *MODERN, f'model.{piece}={value}', 'zero_optimization.stage=3', f'run.dir={piece}')
                self.assertNotEqual(self.curve(piece), self.curve('all'))
        all_off = [f'model.{piece}={value}' for piece, value in off.items()]
        for stage in 0, 3:
            self.run_ranks(2, config, *MODERN, *all_off, f'zero_optimization.stage={stage}', 'run.threads=1', f'run.dir=off-{stage}')
        self.assertEqual(self.curve('off-0'), self.curve('off-3'))

    def test_generation_caps_logits(self):
        cap, vocabulary = 0.01, 257
        self.run_train(self.tiny_config(), *MODERN, f'model.soft_cap={cap}', f'model.vocab_size={vocabulary}', 'optimizer.lr=0.1',
                       'checkpoint.every=6')
        out = self.run_train('generate', self.folder / 'run', '--prompt', 'ab', '--tokens', 8, '--json', '--logprobs', 2, '--tokenizer',
                             'bytes').out
        found = [token['logprob'] for token in json.loads(out)['tokens']]
        self.assertEqual(len(found), 8)
        for logprob in found:
            self.assertAlmostEqual(logprob, -math.log(vocabulary), delta=2.1 * cap)

    def test_the_weights_of_a_run(self):
        config = self.tiny_config(train={'max_steps': 4})
        self.run_train(config, *MODERN, 'checkpoint.every=4')
        for to in 'hf', 'gguf':
            refused = self.run_train('export', self.folder / 'run', '--to', to, to, '--tokenizer', 'none', code=2)
            self.assertIn('modern', refused.error)
            self.assertFalse((self.folder / to).exists())
        # A further run from its weights has its options without their being given, and contradictions are refused.
        further = self.tiny_config('further.json')
        content = json.loads(further.read_text())
        del content['model']
        further.write_text(json.dumps(content))
        self.run_train(further, f'model.init_from={self.folder / "run"}', 'run.dir=further', 'train.max_steps=1')
        model = json.loads((self.folder / 'further' / 'config.json').read_text())['model']
        self.assertEqual((model['family'], model['value_embeddings'], model['soft_cap']), ('modern', [0, 2], 15))
        refused = self.run_train(further, f'model.init_from={self.folder / "run"}', 'model.soft_cap=5', 'run.dir=other', code=2)
        self.assertIn('model.soft_cap 15 (given: 5)', refused.error)

    def test_another_context_than_that_of_the_weights(self):
        """Positions, RoPE and windows of init_from may be changed, as no tensor depends on them; a table of positions may not."""
        self.run_train(self.tiny_config(), 'model.family=llama', 'model.n_positions=16', 'train.seq_len=16', 'checkpoint.every=4')
        further = self.tiny_config('further.json', train={'max_steps': 2, 'seq_len': 32})
        content = json.loads(further.read_text())
        content['model'] = {'init_from': str(self.folder / 'run'), 'n_positions': 32, 'window': 8,
                            'rope_scaling': {'rope_type': 'yarn', 'factor': 2}}
        further.write_text(json.dumps(content))
        self.run_train('check', further)
        first = self.run_train(further, 'run.dir=further', 'checkpoint.every=1')
        self.assertIn('the weights were trained with model.n_positions 16, another model.rope_scaling', first.error)
        model = json.loads((self.folder / 'further' / 'config.json').read_text())['model']
        self.assertEqual((model['n_positions'], model['window'], model['rope_theta']), (32, [8], 10000))
        self.assertEqual(model['rope_scaling']['original_max_position_embeddings'], 16)
        self.run_train('further/config.json', 'train.max_steps=3')  # resumes
        refused = self.run_train('further/config.json', 'train.max_steps=4', 'model.rope_scaling.factor=4', code=2)
        self.assertIn('model.rope_scaling.factor 2 (given: 4)', refused.error)
        refused = self.run_train(further, 'run.dir=other', 'model.norm_eps=0.1', code=2)
        self.assertIn('model.norm_eps 1e-05 (given: 0.1)', refused.error)
        self.run_train(self.tiny_config(), 'run.dir=gpt2', 'checkpoint.every=4')
        refused = self.run_train(self.tiny_config(), 'run.dir=other', f'model.init_from={self.folder / "gpt2"}',
                                 'model.n_positions=64', code=2)
        self.assertIn('(given: 64)', refused.error)

    def test_what_a_family_has_not_is_refused_by_name(self):
        config = self.tiny_config()
        yarn = 'model.family=llama', 'model.rope_scaling.rope_type=yarn', 'model.rope_scaling.factor=2'
        for options, says in ((['model.soft_cap=15'], 'model.family is gpt2, which has no model.soft_cap'),
                              (['model.family=llama', 'model.embedding_skip=true'], 'which has no model.embedding_skip'),
                              (['model.family=llama', 'model.partial_rotary_factor=0.5'], 'no model.partial_rotary_factor'),
                              (['model.family=llama', 'model.partial_rotary_factor=1', 'model.soft_cap=1'], 'no model.soft_cap'),
                              (['model.family=llama', 'model.activation=gelu'], 'whose model.activation is swiglu, not gelu'),
                              (['model.activation=relu_squared'], 'whose model.activation is gelu, not relu_squared'),
                              ([*MODERN, 'model.activation=swiglu'], 'relu_squared or gelu, not swiglu'),
                              ([*MODERN, 'model.qkv_bias=true'], 'model.family is modern, which has no model.qkv_bias'),
                              ([*MODERN, 'model.value_embeddings=[1, 3]'], 'has block 3, but model.n_layer is 3'),
                              ([*MODERN, 'model.value_embeddings=[1, 1]'], 'has block 1 twice'),
                              ([*MODERN, 'model.window=[1, 2, 3, 4]'], 'model.window has 4 entries, but model.n_layer is 3'),
                              (['model.rope_scaling.factor=8'], 'model.rope_scaling.factor is 8, but rope_type is default'),
                              ([*yarn, 'model.rope_scaling.low_freq_factor=2'], 'rope_type is yarn, which has none'),
                              ([*yarn, 'model.rope_scaling.beta_slow=64'], 'beta_slow must be less than beta_fast'),
                              ([*MODERN, 'model.partial_rotary_factor=0.1'], 'less than one pair')):
            with self.subTest(options):
                self.assertIn(says, self.run_train('check', config, *options, code=2).error)


def tensors(data):
    length = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    return {name: (entry['dtype'], entry['shape'], data[8 + length:][slice(*entry['data_offsets'])])
            for name, entry in header.items()}
