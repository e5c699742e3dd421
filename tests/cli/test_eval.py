"""./train eval: tasks, texts and several models; eval.tasks while training."""
import json
import math
import random
import re
import shutil
import signal
import time
import unittest

import harness
from harness import CommandCase, GOLDEN, write_shard
from tiny_gpt2 import TinyGpt2

END_OF_TEXT = 256  # of the tokenizer "bytes"


def write_items(path, items):
    path.write_text(''.join(json.dumps(item) + '\n' for item in items))
    return path


def words(generator, n):
    return ' '.join(''.join(generator.choice('abcdefgh') for _ in range(generator.randint(1, 4))) for _ in range(n))


def multiple_choice_items(n, choices=3, seed=1):
    generator = random.Random(seed)
    return [{'context': words(generator, 4), 'choices': [words(generator, generator.randint(1, 3)) for _ in range(choices)],
             'label': generator.randrange(choices)} for _ in range(n)]


def hellaswag_items(n, seed=1):
    """With the leftovers of markup that the published file has."""
    generator = random.Random(seed)
    return [{'ind': i, 'activity_label': words(generator, 1).title(),
             'ctx_a': f'{words(generator, 2)} [title] [substeps] {words(generator, 1)}  .', 'ctx_b': 'hE SaYs',
             'ctx': 'unused', 'endings': [f'{words(generator, k)} [step] x' for k in (1, 2, 3, 4)],
             'label': generator.randrange(4)} for i in range(n)]


def clean(text):
    """lm-evaluation-harness's preprocessing of HellaSwag."""
    return re.sub('\\[.*?\\]', '', text.strip().replace(' [title]', '. ')).replace('  ', ' ')


class Judge:
    """What the golden model chooses, computed in Python by the definitions of lm-evaluation-harness."""

    def __init__(self):
        self.model = TinyGpt2(GOLDEN / 'gpt2-tiny')
        self.longest = self.model.config['n_positions']

    def log_probabilities(self, context, continuations):
        stripped = context.rstrip()
        whole = [list((context + continuation).encode()) for continuation in continuations]
        n_context = len(stripped.encode())
        if not stripped:
            whole, n_context = [[END_OF_TEXT] + tokens for tokens in whole], 1
        scores, shared = [], None
        for tokens in whole:
            dropped = max(0, len(tokens) - self.longest - 1)
            begin = tokens[dropped:n_context]
            if shared is None or shared[0] != begin:
                shared = begin, self.model.start(begin)
            scores.append(self.model.log_probability(*shared[1], tokens[n_context:])[0])
        return scores

    def choose(self, context, choices):
        """The choices by log-probability and by that per length; None where two are as good to rounding."""
        scores = self.log_probabilities(context, [' ' + choice for choice in choices])
        chosen = []
        for values in scores, [score / len(choice) for score, choice in zip(scores, choices)]:
            best, second = sorted(values)[-1:-3:-1]
            chosen.append(values.index(best) if best - second > 1e-3 else None)
        return chosen


class Figures(CommandCase):
    """The golden model's choices become the labels: every item must then be right."""

    def evaluate(self, *arguments, model=GOLDEN / 'gpt2-tiny'):
        return json.loads(self.run_train('eval', model, '--tokenizer', 'bytes', '--json', '--threads', 1, *arguments).out)

    def check_choices(self, kind, items, query, choices):
        judge, labelled = Judge(), ([], [])
        for item in items:
            for chosen, items_of in zip(judge.choose(query(item), choices(item)), labelled):
                if chosen is not None:
                    items_of.append({**item, 'label': chosen})
        differ = sum(a['label'] != b['label'] for a, b in zip(*labelled))
        self.assertGreater(min(map(len, labelled)), len(items) * 3 // 4)
        self.assertGreater(differ, 0, 'both figures choose alike')
        for measure, items_of in zip(('acc', 'acc_norm'), labelled):
            path = write_items(self.folder / f'{measure}.jsonl', items_of)
            result, = self.evaluate('--task', f'{kind}={path}')['tasks'].values()
            self.assertEqual(result[measure], 1, (kind, measure))
            self.assertEqual(result[f'{measure}_stderr'], 0)
            self.assertEqual(result['items'], len(items_of))

    @unittest.skipIf(harness.SANITIZERS, "takes Python's time, not the program's")
    def test_multiple_choice(self):
        items = multiple_choice_items(16)
        items[0]['context'] = ''
        items[1]['context'] += '  \n'
        items[2]['choices'][0] = '\u00e9\u00e9\u00e9 ' + items[2]['choices'][0]  # characters, not bytes
        items[3]['context'] = items[3]['context'] * 5  # longer than the model's context
        self.check_choices('multiple_choice', items, lambda i: i['context'], lambda i: i['choices'])

    @unittest.skipIf(harness.SANITIZERS, "takes Python's time, not the program's")
    def test_hellaswag(self):
        self.check_choices('hellaswag', hellaswag_items(8),
                           lambda i: clean(f'{i["activity_label"]}: {i["ctx_a"]} {i["ctx_b"].capitalize()}'),
                           lambda i: list(map(clean, i['endings'])))

    def test_lambada_perplexity(self):
        judge, generator, total = Judge(), random.Random(3), 0
        items = [{'text': words(generator, n)} for n in (1, 2, 4, 4, 5)]
        for item in items:
            context, word = item['text'].rpartition(' ')[::2]
            total += judge.log_probabilities(context, [' ' + word])[0]
        result = self.evaluate('--task', f'lambada={write_items(self.folder / "l.jsonl", items)}')['tasks']['lambada']
        expected = math.exp(-total / len(items))
        self.assertAlmostEqual(result['perplexity'] / expected, 1, delta=1e-4)  # fp32 losses of about 20

    def test_batches_and_threads(self):
        """Figures do not depend on them; a limit takes the first items."""
        items = write_items(self.folder / 'items.jsonl', multiple_choice_items(30))
        texts = write_items(self.folder / 'texts.jsonl', [{'text': i['context']} for i in multiple_choice_items(30)])
        tasks = ['--task', f'multiple_choice={items}', '--task', f'lambada={texts}']
        first = self.evaluate(*tasks)['tasks']
        self.assertEqual(list(first), ['items', 'lambada'])
        for more in ['--batch-size', 1], ['--batch-size', 1000], ['--threads', 2]:
            again = self.evaluate(*tasks, *more)['tasks']
            self.assertEqual(again['items'], first['items'])
            self.assertAlmostEqual(again['lambada']['perplexity'] / first['lambada']['perplexity'], 1, delta=1e-5)
        self.assertEqual(self.evaluate(*tasks, '--threads', 2)['tasks'], first)
        write_items(self.folder / 'few.jsonl', multiple_choice_items(30)[:7])
        self.assertEqual(self.evaluate('--task', 'multiple_choice=few.jsonl')['tasks']['few'],
                         self.evaluate(*tasks[:2], '--limit', 7)['tasks']['items'])

    def test_texts(self):
        """A text gives the loss of a shard of it, and bits per byte by its bytes."""
        documents = ['one two three\u00e9 ' * 20, 'four ' * 33]
        (self.folder / 'a.txt').write_text('<|endoftext|>'.join(documents))
        (self.folder / 'b.txt').write_text('five')
        shard = [token for text in documents for token in (END_OF_TEXT, *text.encode())]
        write_shard(self.folder / 'a.bin', shard)
        write_shard(self.folder / 'b.bin', [END_OF_TEXT, *b'five'])
        texts = self.evaluate('--end-of-text', '--data', '[ab].txt')
        self.assertEqual(texts, self.evaluate('--data', 'a.bin', '--data', 'b.bin'))
        n_bytes = sum(len(text.encode()) for text in documents) + 4
        self.assertEqual(texts['bytes'], n_bytes)
        self.assertEqual(texts['tokens'], n_bytes + 1)
        self.assertAlmostEqual(texts['bits_per_byte'], texts['loss'] * texts['tokens'] / math.log(2) / n_bytes, places=9)
        plain = self.run_train('eval', GOLDEN / 'gpt2-tiny', '--tokenizer', 'bytes', '--data', 'a.txt')
        self.assertIn('<|endoftext|> occurs 1 time', plain.error)

    def test_seq_len(self):
        """A window of N tokens sees no more than these: the loss is that of shards of N + 1 tokens, each its own."""
        tokens = [END_OF_TEXT, *(b'one two three four ' * 5)][:8 * 11 + 1]
        write_shard(self.folder / 'whole.bin', tokens)
        for i in range(11):
            write_shard(self.folder / f'part-{i}.bin', tokens[8 * i:8 * i + 9])
        short = self.evaluate('--data', 'whole.bin', '--seq-len', 8)
        parts = self.evaluate('--data', 'part-*.bin')
        self.assertEqual(short['tokens'], parts['tokens'])
        self.assertAlmostEqual(short['loss'], parts['loss'], places=6)
        self.assertGreater(abs(short['loss'] - self.evaluate('--data', 'whole.bin')['loss']), 1e-3)

    def test_long_contexts(self):
        """Memory is that of the text, not of all positions."""
        folder = self.folder / 'long'
        shutil.copytree(GOLDEN / 'llama-tiny', folder)
        config = json.loads((folder / 'config.json').read_text())
        write_shard(self.folder / 'a.bin', [i % config['vocab_size'] for i in range(40)])
        expected = self.evaluate('--data', 'a.bin', model=GOLDEN / 'llama-tiny')
        (folder / 'config.json').write_text(json.dumps({**config, 'max_position_embeddings': 1 << 22}))
        found = self.evaluate('--data', 'a.bin', model=folder)
        self.assertAlmostEqual(found['loss'], expected['loss'], places=6)

    def test_refusals(self):
        golden = GOLDEN / 'gpt2-tiny'
        items = write_items(self.folder / 'items.jsonl', multiple_choice_items(3))
        (self.folder / 'bad.jsonl').write_text(items.read_text() + '{"context": "x", "choices": ["a", "b"]}\n')
        (self.folder / 'image.png').write_bytes(bytes(range(256)))
        (self.folder / 'empty.txt').write_text('')
        write_items(self.folder / 'long.jsonl', [{'text': 'x ' + 'y' * 64}])
        task = 'multiple_choice=items.jsonl'
        for arguments, says in (
                ([golden], ['--data FILE', '--task']),
                ([golden, '--data', 'empty.txt', '--limit', 3], ['--limit', '--task']),
                ([golden, '--task', task, '--end-of-text'], ['--end-of-text', '--data']),
                ([golden, '--task', 'items.jsonl'], ['"items.jsonl"', 'hellaswag=FILE']),
                ([golden, '--task', task], ['--task needs a tokenizer', '--tokenizer']),
                ([golden, '--data', 'bad.jsonl'], ['bad.jsonl is text', '--tokenizer']),
                ([golden, '--data', 'bad.jsonl', '--seq-len', 65], ['--seq-len is 65', 'n_positions 64']),
                ([golden, '--tokenizer', 'bytes', '--task', 'multiple_choice=bad.jsonl'], ['bad.jsonl, line 4', 'label']),
                ([golden, '--tokenizer', 'bytes', '--task', task, '--task', task], ['both named "items"']),
                ([golden, '--tokenizer', 'bytes', '--task', 'lambada=absent.jsonl'], ['absent.jsonl']),
                ([golden, '--tokenizer', 'bytes', '--task', 'lambada=long.jsonl'], ['line 1', '65 tokens', '1 to 64']),
                ([golden, '--tokenizer', 'bytes', '--task', f'hellaswag={golden / "model.safetensors"}'], ['safetensors']),
                ([golden, '--tokenizer', 'bytes', '--data', f'{golden / "model.safetensors"}'], ['safetensors']),
                ([golden, '--tokenizer', 'bytes', '--data', 'image.png'], ['image.png']),
                ([golden, '--tokenizer', 'bytes', '--data', 'empty.txt'], ['empty.txt']),
                ([golden, 'absent', '--tokenizer', 'bytes', '--task', task], ['absent'])):
            self.refuses('eval', *arguments, says=says)


class Runs(CommandCase):
    """Models trained here, on a sentence that they can learn."""
    SENTENCE = 'the quick brown fox jumps over the lazy dog and '

    def setUp(self):
        super().setUp()
        write_shard(self.folder / 'tokens.bin', list((self.SENTENCE * 100).encode()))

    def config(self, name='tiny.json', **sections):
        sections.setdefault('model', {}).update(vocab_size=257, n_positions=64, n_layer=1)
        sections.setdefault('data', {}).setdefault('tokenizer', 'bytes')
        return self.tiny_config(name, **sections)

    def lambada(self, n=6):
        text = self.SENTENCE * 2
        ends = [i for i in range(30, len(text)) if text[i] == ' '][:n]
        items = [{'text': text[max(0, end - 40):end]} for end in ends]
        items[0]['text'] += 'zz'
        return items, write_items(self.folder / 'lambada.jsonl', items)

    def test_greedy_and_tables(self):
        """LAMBADA's accuracy is what `generate` writes; two models side by side."""
        config = self.config(train={'max_steps': 250, 'train_batch_size': 8, 'micro_batch_size': 8},
                             optimizer={'lr': 1e-2}, run={'dir': 'a', 'threads': 2, 'log_every': 50})
        self.run_train(config)
        self.run_train(config, 'run.dir=b', 'train.max_steps=1')
        items, path = self.lambada()
        right = 0
        for item in items:
            context, word = item['text'].rpartition(' ')[::2]
            made = self.run_train('generate', 'a', '--prompt', context, '--tokens', len(word) + 1, '--temperature', 0).out
            right += made.rstrip('\n') == item['text']
        if not harness.SANITIZERS:
            self.assertGreater(right, 1)
        tasks = ['--task', f'lambada={path}', '--data', 'tokens.bin']
        lines = [json.loads(line) for line in self.run_train('eval', 'a', 'b', '--json', *tasks).out.splitlines()]
        self.assertEqual([line['run'] for line in lines], ['a', 'b'])
        self.assertAlmostEqual(lines[0]['tasks']['lambada']['acc'], right / len(items), places=12)
        self.assertLess(right, len(items))

        table = self.run_train('eval', 'a', 'b', *tasks).out.splitlines()
        self.assertEqual(table[0].split(), ['a', 'b'])
        rows = {line[:18].strip(): re.split(' {3,}', line[18:].strip()) for line in table[1:]}
        self.assertEqual(list(rows), ['loss', 'perplexity', 'bits per byte', 'lambada acc', 'lambada perplexity'])
        for column, line in enumerate(lines):
            self.assertEqual(rows['loss'][column], f'{line["loss"]:.4f}')
            result = line['tasks']['lambada']
            self.assertEqual(rows['lambada acc'][column], f'{result["acc"]:.4f} \u00b1 {result["acc_stderr"]:.4f}')
        one = self.run_train('eval', 'a', *tasks).out.splitlines()
        self.assertEqual(len(one), 2)
        self.assertTrue(one[1].startswith(f'lambada: acc {lines[0]["tasks"]["lambada"]["acc"]:.4f} \u00b1 '), one)
        wide = self.run_train('eval', *['a', 'b'] * 6, '--task', f'lambada={path}').out.splitlines()
        headers = [line.split() for line in wide if line.split()[:1] in (['a'], ['b'])]
        self.assertGreater(len(headers), 1)  # as many tables as it takes
        self.assertEqual(sum(headers, []), ['a', 'b'] * 6)
        self.assertLessEqual(max(map(len, wide)), 100)
        failed = self.refuses('eval', 'a', 'absent', '--json', '--task', f'lambada={path}', says=['absent'])
        self.assertEqual(json.loads(failed.out)['run'], 'a')  # what was measured is not lost

    def test_different_tokenizers(self):
        """A text compares them by bits per byte; a shard is refused."""
        (self.folder / 'text.txt').write_text(self.SENTENCE * 40)
        self.run_train('tokenizer', 'train', 'text.txt', '--vocab-size', 270, '--out', 'bpe.tiktoken')
        for name, tokenizer in ('a', 'bytes'), ('b', 'bpe.tiktoken'):
            self.run_train('tokenize', 'text.txt', '--tokenizer', tokenizer, '--out', f'shards-{name}')
            config = self.config(data={'train': f'shards-{name}/*.bin', 'tokenizer': tokenizer})
            self.run_train(config, f'run.dir={name}', 'train.max_steps=2', f'model.vocab_size={257 if name == "a" else 270}')
        process = self.run_train('eval', 'a', 'b', '--data', 'text.txt')
        self.assertIn('bits per byte can', process.error)
        results = [json.loads(self.run_train('eval', run, '--data', 'text.txt', '--json').out) for run in 'ab']
        self.assertEqual(results[0]['bytes'], results[1]['bytes'])
        self.assertGreater(results[0]['tokens'], results[1]['tokens'])
        self.refuses('eval', 'a', 'b', '--data', 'shards-a/*.bin', says=['shards-a', 'tokenizer'])

    def task_lines(self, run):
        lines = (self.folder / run / 'metrics.jsonl').read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if 'tasks' in entry]

    def test_training(self):
        """The same figures in every stage and as ./train eval gives; planned memory is what is taken."""
        _, texts = self.lambada()
        items = write_items(self.folder / 'items.jsonl', multiple_choice_items(10))
        swag = write_items(self.folder / 'swag.jsonl', hellaswag_items(5))
        tasks = [f'lambada={texts}', f'multiple_choice={items}', f'hellaswag={swag}']
        config = self.config(eval={'tasks': tasks, 'every': 2, 'limit': 9}, train={'max_steps': 5, 'train_batch_size': 6},
                             run={'threads': 1})
        found = {}
        for stage in (0, 3):
            run = f'run-{stage}'
            process = self.run_ranks(3, config, f'run.dir={run}', f'zero_optimization.stage={stage}', 'train.micro_batch_size=2',
                                     'zero_optimization.stage3_param_persistence_threshold=0')
            found[stage] = self.task_lines(run)
            last = self.metrics(run)[-1]
            self.assertEqual(last['model_memory'], last['model_memory_planned'])
            self.assertIn('items: acc', process.error)
        self.assertEqual(found[0], found[3])
        self.assertEqual([line['step'] for line in found[0]], [2, 4, 5])
        self.assertEqual({name: result['items'] for name, result in found[0][0]['tasks'].items()},
                         {'lambada': 6, 'items': 9, 'hellaswag': 5})
        arguments = [word for task in tasks for word in ('--task', task)]
        result = json.loads(self.run_train('eval', 'run-3', '--json', '--limit', 9, *arguments).out)['tasks']
        for name, expected in found[3][-1]['tasks'].items():
            for measure, value in expected.items():
                self.assertAlmostEqual(result[name][measure], value, delta=1e-4 * max(1, value), msg=(name, measure))
        events = b''.join(p.read_bytes() for p in (self.folder / 'run-3').glob('events.out.tfevents.*'))
        self.assertEqual(events.count(b'tasks/items/acc_norm'), 3)
        self.assertEqual(events.count(b'tasks/lambada/perplexity'), 3)

    def test_resuming(self):
        """A resumed run evaluates the steps that follow, and says when the items have changed."""
        _, texts = self.lambada()
        config = self.config(eval={'tasks': [f'lambada={texts}'], 'every': 2}, train={'max_steps': 4})
        self.run_train(config)
        self.run_train(config, 'run.dir=whole', 'train.max_steps=7', 'scheduler.type=constant')
        again = self.run_train(config, 'train.max_steps=6')
        self.assertNotIn('have changed', again.error)
        self.assertEqual([line['step'] for line in self.task_lines('run')], [2, 4, 6])
        write_items(texts, self.lambada()[0][:3])
        changed = self.run_train(config, 'train.max_steps=7')
        self.assertIn('the items of the task lambada have changed (6 before, 3 now)', changed.error)
        self.assertIn('before step 6', changed.error)

    @unittest.skipIf(harness.SANITIZERS, 'covered without sanitizers')
    def test_stopping(self):
        """A signal ends an evaluation of seconds: between steps the run stops and resumes, at the end it is complete."""
        items = write_items(self.folder / 'items.jsonl', multiple_choice_items(1000) * 3)
        config = self.config(model={'n_embd': 128, 'n_head': 4, 'n_layer': 4}, train={'max_steps': 2},
                             eval={'tasks': [f'multiple_choice={items}'], 'every': 1})
        process = self.start(config)
        self.wait_for_steps(1)
        process.send_signal(signal.SIGTERM)
        stopped = self.finish(process, 128 + signal.SIGTERM)
        self.assertIn('stopped after step 1 of 2', stopped.error)
        self.assertEqual(self.task_lines('run'), [])
        process = self.start(config)
        while not (self.folder / 'run' / 'checkpoints' / 'step-00000002').exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        stopped = self.finish(process, 128 + signal.SIGTERM)
        self.assertIn('stopped during the evaluation of tasks; all steps are done and saved', stopped.error)
        self.assertIn(f'./train eval {self.folder / "run"} --task multiple_choice={items}', stopped.error)
        self.assertEqual(self.task_lines('run'), [])

    def test_refused_at_the_start(self):
        _, texts = self.lambada()
        bad = write_items(self.folder / 'bad.jsonl', [{'text': 'x ' + 'y' * 64}])
        config = self.config(eval={'tasks': [f'lambada={bad}']})
        self.refuses(config, says=['bad.jsonl, line 1', '65 tokens'])
        for command in (config,), ('check', config):
            self.refuses(*command, 'eval.tasks=swag', says=['eval.tasks', 'hellaswag=FILE'])
        self.refuses(config, f'eval.tasks=lambada={texts}', 'data.tokenizer=', says=['eval.tasks', 'data.tokenizer'])
        self.refuses(config, 'eval.task=x', says=['eval.tasks'])

    def test_a_file_that_differs_on_one_rank(self):
        config = self.config(eval={'tasks': ['lambada=items.jsonl']}, run={'dir': str(self.folder / 'run'), 'threads': 1},
                             train={'train_batch_size': 4, 'micro_batch_size': 0})
        words_of = []
        for rank in range(2):
            folder = self.folder / f'rank-{rank}'
            folder.mkdir()
            write_items(folder / 'items.jsonl', [{'text': f'the quick {rank}'}])
            words_of += [':'] * rank + ['-n', 1, '--wdir', folder, harness.TRAIN, config]
        process = self.finish(self.start_mpirun(*words_of), 2)
        self.assertIn('items.jsonl has other contents on this rank than on rank 0', process.error)
        self.assertEqual(process.error.count('error:'), 1)


if __name__ == '__main__':
    unittest.main()
