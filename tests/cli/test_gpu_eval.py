"""On a GPU: evaluation of tasks."""
import json
import math

import harness
from harness import CommandCase, GOLDEN
from test_eval import multiple_choice_items, write_items

SIMULATED = 'cudasim' in str(harness.TRAIN)


class Tasks(CommandCase):
    def setUp(self):
        super().setUp()
        texts = [{'text': item['context']} for item in multiple_choice_items(6)]
        self.tasks = [f'multiple_choice={write_items(self.folder / "items.jsonl", multiple_choice_items(6))}',
                      f'lambada={write_items(self.folder / "texts.jsonl", texts)}']

    def same(self, first, second, tolerance):
        for name, expected in first.items():
            for measure, value in expected.items():
                self.assertTrue(math.isclose(value, second[name][measure], rel_tol=tolerance), (name, measure, first, second))

    def test_figures_of_the_cpu(self):
        arguments = [word for task in self.tasks for word in ('--task', task)]
        found = [json.loads(self.run_train('eval', GOLDEN / 'gpt2-tiny', '--tokenizer', 'bytes', '--batch-size', 2, '--json',
                                           '--device', device, *arguments).out)['tasks'] for device in ('cpu', 'cuda')]
        self.same(*found, 1e-4)

    def test_training_in_bf16(self):
        """Short sequences and predictions in the memory that was planned; between steps that are graphs, with cuDNN."""
        config = self.tiny_config(device='cuda', data={'tokenizer': 'bytes'}, model={'vocab_size': 257, 'n_positions': 64},
                                  precision={'compute': 'bf16'}, train={'max_steps': 4}, eval={'tasks': self.tasks, 'every': 3})
        with_cudnn = ['attention=cudnn'] if SIMULATED else []
        self.run_train(config, *with_cudnn, environment={'CUDASIM_CUDNN': '91900'})
        lines = [json.loads(line) for line in (self.folder / 'run' / 'metrics.jsonl').read_text().splitlines()]
        tasks = [line for line in lines if 'tasks' in line]
        self.assertEqual([line['step'] for line in tasks], [3, 4])
        last = self.metrics()[-1]
        self.assertEqual(last['model_memory'], last['model_memory_planned'])
        arguments = [word for task in self.tasks for word in ('--task', task)]
        again = json.loads(self.run_train('eval', 'run', '--device', 'cpu', '--json', *arguments).out)['tasks']
        # A perplexity of words of a few tokens, in bf16; accuracies may differ where choices are as good.
        self.assertAlmostEqual(tasks[-1]['tasks']['lambada']['perplexity'] / again['lambada']['perplexity'], 1, delta=0.05)
