"""Faults of the files around a run: what cannot be used is refused at the start, and what fails later costs no
progress."""
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

import harness
from harness import CommandCase, pseudo_random_tokens, write_shard


class Evaluation(CommandCase):
    def test_a_batch_is_no_larger_than_the_data(self):
        """Memory for a million sequences at a time is never taken: 125 are all there are."""
        self.run_train(self.tiny_config())
        results = [self.run_train('eval', 'run', '--data', 'tokens.bin', '--json', '--batch-size', n).out
                   for n in (125, 1000000)]
        self.assertEqual(*results)

    def test_memory_that_is_not_there(self):
        config = self.tiny_config(model={'n_positions': 4096, 'vocab_size': 65536}, train={'seq_len': 32})
        self.run_train(config, 'train.max_steps=0')
        shard = self.folder / 'large.bin'
        write_shard(shard, [1] * 60_000_000)
        self.refuses('eval', 'run', '--data', shard, '--batch-size', 1000000, code=1,
                     says=['--batch-size', '14649 sequences', 'are available'])


if __name__ == '__main__':
    unittest.main()
