"""model.init_from and the commands that take a Hugging Face model: what people have on their disks, and how it is named."""
import json
import os
import shutil
import struct
import subprocess
import unittest

import harness
from harness import CommandCase, GOLDEN, pseudo_random_tokens, write_shard


class WeightsCase(CommandCase):
    def setUp(self):
        super().setUp()
        self.model = self.folder / 'hf'
        shutil.copytree(GOLDEN / 'gpt2-tiny', self.model)
        self.config = self.folder / 'c.json'
        self.config.write_text(json.dumps({
            'device': 'cpu', 'data': {'train': str(GOLDEN / 'gpt2-tiny' / 'tokens.bin')}, 'model': {'init_from': 'hf'},
            'run': {'dir': 'run', 'threads': 1}, 'scheduler': {'type': 'constant', 'warmup_steps': 0},
            'precision': {'compute': 'fp32'}, 'checkpoint': {'every': 1},
            'train': {'max_steps': 2, 'eval_every': 0, 'seq_len': 32}}))


class Resuming(WeightsCase):
    def test_the_weights_may_be_gone(self):
        self.run_train(self.config, 'train.max_steps=4', 'run.dir=whole')
        self.run_train(self.config)
        shutil.rmtree(self.model)
        self.refuses(self.config, 'run.dir=other', says=['hf'])
        self.refuses(self.config, 'model.n_layer=3', says=['model.n_layer is 3', 'run have 2'])
        self.run_train(self.config, 'train.max_steps=3')
        shutil.copytree(self.folder / 'run', self.folder / 'copy')
        self.run_train(self.config, 'train.max_steps=4', f'checkpoint.resume={self.folder / "run"}', 'run.dir=from')
        self.run_train('copy/config.json', 'run.dir=copy', 'train.max_steps=4')
        for run in 'from', 'copy':
            self.assertEqual(self.final_state(run), self.final_state('whole'))


if __name__ == '__main__':
    unittest.main()
