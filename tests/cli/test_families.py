"""Models of the Llama family from the command line: stages and ranks, resuming, exports."""
import json

from harness import CommandCase, ROOT

LLAMA = ['model.family=llama', 'model.n_head=4', 'model.n_kv_head=2', 'model.head_dim=8', 'model.intermediate_size=40',
         'model.qk_norm=true', 'model.tied=false', 'model.window=[5, 0]', 'precision.compute=fp32']


class Llama(CommandCase):
    def test_stages_levels_and_resuming_change_no_bit(self):
        config = self.tiny_config(checkpoint={'every': 3, 'keep': 0})
        self.run_train(config, *LLAMA, 'recompute=none', 'run.dir=whole')
        whole, state = self.curve('whole'), self.final_state('whole')
        for i, options in enumerate((['zero_optimization.stage=2', 'recompute=attention'],
                                     ['zero_optimization.stage=3', 'recompute=block',
                                      'zero_optimization.stage3_max_live_parameters=1',
                                      'zero_optimization.stage3_param_persistence_threshold=10'])):
            with self.subTest(options):
                self.run_train(config, *LLAMA, *options, f'run.dir=run-{i}')
                self.assertEqual(self.curve(f'run-{i}'), whole)
                self.assertEqual(self.final_state(f'run-{i}'), state)
        run = self.copy_until(3, 'whole', 'resumed')
        self.run_train(config, *LLAMA, 'recompute=none', 'run.dir=resumed')
        self.assertEqual(self.curve(run.name), whole)
        self.assertEqual(self.final_state(run.name), state)

    def test_stages_among_ranks_change_no_bit(self):
        config = self.tiny_config()
        for ranks in 2, 3:
            for stage in range(4):
                with self.subTest(ranks=ranks, stage=stage):
                    self.run_ranks(ranks, config, *LLAMA, f'zero_optimization.stage={stage}', 'run.threads=1',
                                   f'run.dir={ranks}-{stage}')
                    self.assertEqual(self.curve(f'{ranks}-{stage}'), self.curve(f'{ranks}-0'))

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

    def test_gpt2_has_no_key_value_heads(self):
        refused = self.run_train('check', ROOT / 'configs' / 'gpt2-small.json', 'model.n_kv_head=2', code=2)
        self.assertIn('model.family is gpt2, which has no model.n_kv_head', refused.error)


def tensors(data):
    length = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8:8 + length])
    header.pop('__metadata__', None)
    return {name: (entry['dtype'], entry['shape'], data[8 + length:][slice(*entry['data_offsets'])])
            for name, entry in header.items()}
