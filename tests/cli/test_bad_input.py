"""Bad input ends with one clear message and exit code 2 (bad input) or 1 (failure of the machine). Existing files keep
their contents."""
import json
import os
import resource
import shutil
import signal
import struct
import unittest

from harness import CommandCase, GOLDEN, pseudo_random_tokens, write_shard


class Configuration(CommandCase):
    def test_unknown_key_names_the_nearest(self):
        self.refuses(self.tiny_config(model={'n_layers': 3}), says=['model.n_layers', 'model.n_layer', 'tiny.json'])

    def test_unknown_section_names_the_nearest(self):
        self.refuses(self.tiny_config(modle={'n_layer': 3}), says=['modle', 'model'])

    def test_unknown_override(self):
        self.refuses(self.tiny_config(), 'train.max_step=3', says=['train.max_step', 'train.max_steps'])

    def test_wrong_type(self):
        self.refuses(self.tiny_config(model={'n_layer': 'two'}), says=['model.n_layer', 'two', 'integer'])

    def test_out_of_bounds(self):
        self.refuses(self.tiny_config(), 'optimizer.lr=-1', says=['optimizer.lr', '-1', '0'])

    def test_not_a_choice(self):
        self.refuses(self.tiny_config(), 'scheduler.type=cosin', says=['scheduler.type', 'cosin', 'cosine'])

    def test_batch_sizes_disagree(self):
        self.refuses(self.tiny_config(), 'train.train_batch_size=7', 'train.gradient_accumulation_steps=2',
                     says=['train_batch_size', '7', 'micro_batch_size', '2'])

    def test_heads_do_not_divide_the_width(self):
        self.refuses(self.tiny_config(model={'n_head': 3}), says=['n_embd', '32', 'n_head', '3'])

    def test_sequence_longer_than_positions(self):
        self.refuses(self.tiny_config(), 'train.seq_len=64', says=['seq_len', '64', 'n_positions', '32'])

    def test_syntax_error_names_its_line(self):
        path = self.folder / 'bad.json'
        path.write_text('{\n "model": {"n_layer": 2,}\n}')
        self.refuses(path, says=['bad.json', '2'])

    def test_key_given_twice(self):
        path = self.folder / 'twice.json'
        path.write_text('{"train": {"seed": 1, "seed": 2}}')
        self.refuses(path, says=['seed'])

    def test_all_faults_at_once(self):
        path = self.folder / 'faults.json'
        path.write_text('{\n"learning_rate": 1e-3,\n"model": {"n_layer": 0},\n"block_size": 128\n}')
        self.refuses(path, '--max-iters=5', '-b', '4', 'train.seed=x', says=[
            '6 faults', 'faults.json:2: unknown option learning_rate, a name of nanoGPT or Hugging Face; here it is optimizer.lr',
            'faults.json:3: model.n_layer is 0', 'faults.json:4: unknown option block_size',
            'unknown option max_iters, a name of nanoGPT; here it is train.max_steps', 'here it is train.micro_batch_size',
            'train.seed is the string "x"'])

    def test_trailing_comma(self):
        path = self.folder / 'comma.json'
        path.write_text('{"n_layer": 2,}')
        self.refuses(path, says=['comma.json:1:14: remove this trailing comma'])

    def test_the_last_override_wins(self):
        out = self.run_train('check', self.tiny_config(), 'train.seed=7', 'train.seed=8').out
        self.assertEqual(json.loads(out)['train']['seed'], 8)

    def test_no_such_config(self):
        self.refuses('absent.json', says=['absent.json'])

    def test_no_data_given(self):
        path = self.folder / 'empty.json'
        path.write_text('{}')
        self.refuses(path, says=['data.train'])

    def test_unknown_command(self):
        self.refuses('generat', says=['generat', 'generate'])

    def test_unknown_flag(self):
        self.refuses('generate', 'run', '--token', '5', says=['--token', '--tokens'])


class Data(CommandCase):
    def test_missing_shard(self):
        self.refuses(self.tiny_config(), 'data.train=absent-*.bin', says=['absent-*.bin', 'data.train'])

    def test_truncated_shard(self):
        config = self.tiny_config()
        shard = self.folder / 'tokens.bin'
        shard.write_bytes(shard.read_bytes()[:-10])
        self.refuses(config, says=['tokens.bin', '4000'])

    def test_shard_shorter_than_its_header(self):
        config = self.tiny_config()
        (self.folder / 'tokens.bin').write_bytes(b'\x00' * 100)
        self.refuses(config, says=['tokens.bin'])

    def test_wrong_magic(self):
        config = self.tiny_config()
        write_shard(self.folder / 'tokens.bin', [1] * 4000, magic=12345)
        self.refuses(config, says=['tokens.bin', '12345', '20240520'])

    def test_wrong_version(self):
        config = self.tiny_config()
        write_shard(self.folder / 'tokens.bin', [1] * 4000, version=9)
        self.refuses(config, says=['tokens.bin', '9'])

    def test_token_beyond_the_vocabulary(self):
        config = self.tiny_config(data={'shuffle': False})
        tokens = pseudo_random_tokens(4000, 61)
        tokens[130] = 61
        write_shard(self.folder / 'tokens.bin', tokens)
        self.refuses(config, says=['tokens.bin', '61', '130'])

    def test_shard_shorter_than_one_sequence(self):
        config = self.tiny_config()
        write_shard(self.folder / 'tokens.bin', [1] * 30)
        self.refuses(config, says=['data.train', 'no sequence of 32 + 1 tokens (train.seq_len + 1)'])


class Overwriting(CommandCase):
    """No command writes over its input, nor over a file of another kind than it writes, without --force."""

    def refuses_to_replace(self, name, *arguments, says=()):
        before = (self.folder / name).read_bytes()
        self.refuses(*arguments, says=[name, 'overwrit', *says])
        self.assertEqual((self.folder / name).read_bytes(), before)

    def test_a_tokenizer_over_the_text(self):
        (self.folder / 'my.txt').write_text('the quick brown fox\n' * 50)
        (self.folder / 'notes.txt').write_text('notes\n')
        train = 'tokenizer', 'train', 'my.txt', '--vocab-size', 260, '--out'
        self.refuses_to_replace('my.txt', *train, 'my.txt', says=['its input', '--force'])
        (self.folder / 'link').symlink_to('my.txt')
        self.refuses('tokenizer', 'train', 'my.txt', '--out', './link', says=['./link', 'its input'])
        self.refuses_to_replace('notes.txt', *train, 'notes.txt', says=['is not a tokenizer', '--force'])
        (self.folder / 'empty').touch()
        for out in 'new.tiktoken', 'new.tiktoken', 'empty':
            self.run_train(*train, out)
        self.run_train(*train, 'notes.txt', '--force')
        self.assertEqual((self.folder / 'notes.txt').read_bytes(), (self.folder / 'new.tiktoken').read_bytes())

    def test_shards_over_other_files(self):
        out = self.folder / 'out'
        out.mkdir()
        (out / 'meta.json').write_text('{"mine": true}')
        (self.folder / 'my.txt').write_text('text')
        tokenize = 'tokenize', 'my.txt', '--tokenizer', 'bytes', '--out', 'out'
        self.refuses_to_replace('out/meta.json', *tokenize, says=['not the meta.json of token shards', '--force'])
        (out / 'meta.json').rename(out / 'val-00007.bin')
        self.refuses_to_replace('out/val-00007.bin', *tokenize, says=['is not a token shard'])
        self.refuses_to_replace('out/val-00007.bin', 'tokenize', 'out/val-00007.bin', *tokenize[2:], says=['its input'])
        (out / 'val-00008.bin').mkdir()
        (out / 'val-00008.bin' / 'mine').touch()
        self.refuses(*tokenize, '--force', says=['val-00008.bin is a folder, expected a file'])
        (out / 'val-00008.bin' / 'mine').unlink()
        (out / 'val-00008.bin').rmdir()
        self.run_train(*tokenize, '--force')
        self.run_train(*tokenize)
        self.assertEqual(sorted(p.name for p in out.iterdir()), ['meta.json', 'train-00000.bin'])

    def test_a_report_over_other_files(self):
        self.run_train(self.tiny_config())
        (self.folder / 'notes.html').write_text('<!DOCTYPE html>\n<title>Notes</title>\n')
        report = 'report', 'run', '--out'
        self.refuses_to_replace('notes.html', *report, 'notes.html', says=['is not a report', '--force'])
        self.refuses_to_replace('tokens.bin', *report, 'tokens.bin')
        (self.folder / 'run' / 'report.html').write_text('mine')
        self.refuses_to_replace('run/report.html', 'report', 'run')
        for out in 'page.html', 'page.html':
            self.run_train(*report, out)
        self.run_train(*report, 'notes.html', '--force')
        self.assertIn('content="zero.c"', (self.folder / 'notes.html').read_text())

    def test_links_folders_and_pipes(self):
        """A link to a report is followed, and stays; what is no file is refused before any work, also with --force."""
        self.run_train(self.tiny_config())
        (self.folder / 'my.txt').write_text('the quick brown fox\n' * 50)
        (self.folder / 'ds.json').write_text('{}')
        commands = (('report', 'run'), ('tokenizer', 'train', 'my.txt', '--vocab-size', 260), ('from-deepspeed', 'ds.json'))
        os.mkfifo(self.folder / 'pipe')
        (self.folder / 'folder').mkdir()
        for words in commands:
            for force in (), ('--force',):
                for out, kind in ('pipe', 'a FIFO'), ('folder', 'a folder'), ('/dev/full', 'a device'), ('/dev/stdout', 'a FIFO'):
                    with self.subTest(words=words, out=out, force=force):
                        self.refuses(*words, '--out', out, *force, says=[f'{out} is {kind}, expected a'])
        (self.folder / 'target.html').touch()
        (self.folder / 'link.html').symlink_to('target.html')
        for _ in 'empty', 'a report':
            self.run_train('report', 'run', '--out', 'link.html')
            self.assertTrue((self.folder / 'link.html').is_symlink())
            self.assertIn('content="zero.c"', (self.folder / 'target.html').read_text())
        (self.folder / 'target.html').write_text('mine')
        self.refuses('report', 'run', '--out', 'link.html', says=['link.html', 'is not a report'])
        self.assertEqual((self.folder / 'target.html').read_text(), 'mine')
        self.assertEqual(sorted(p.name for p in self.folder.iterdir() if '.tmp-' in p.name), [])

    def test_a_run_over_other_files(self):
        config = self.tiny_config()
        run = self.folder / 'run'
        run.mkdir()
        for name, content in ('metrics.jsonl', '{"mine": 1}\n'), ('lock', 'left, right\n'):
            (run / name).write_text(content)
            self.refuses(config, says=[f'{run}/{name}', 'not the metrics of a run' if name == 'metrics.jsonl' else 'not a lock file of this program'])
            self.assertEqual((run / name).read_text(), content)
            (run / name).unlink()
        self.run_train(config)

    def test_a_run_over_a_configuration(self):
        self.tiny_config(name='config.json')
        self.refuses_to_replace('config.json', 'config.json', 'run.dir=.', says=['run.dir'])
        self.run_train('config.json', 'train.max_steps=2')
        self.run_train('run/config.json', 'train.max_steps=3')  # that of the run


class Weights(CommandCase):
    def setUp(self):
        super().setUp()
        self.model = self.folder / 'hf'
        shutil.copytree(GOLDEN / 'gpt2-tiny', self.model)
        self.config = self.folder / 'c.json'
        self.config.write_text(json.dumps({
            'device': 'cpu', 'data': {'train': str(GOLDEN / 'gpt2-tiny' / 'tokens.bin')},
            'model': {'init_from': str(self.model)}, 'run': {'dir': str(self.folder / 'run')},
            'train': {'max_steps': 1, 'eval_every': 0, 'seq_len': 32}, 'scheduler': {'warmup_steps': 0}}))

    def header(self, change):
        """Rewrites the safetensors header through `change`, keeping the data."""
        path = self.model / 'model.safetensors'
        data = path.read_bytes()
        n = struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:8 + n])
        change(header)
        text = json.dumps(header).encode()
        text += b' ' * (-len(text) % 8)
        path.write_bytes(struct.pack('<Q', len(text)) + text + data[8 + n:])

    def name(self, header, end):
        return next(name for name in header if name.endswith(end))

    def test_overlapping_tensors(self):
        def change(header):
            a, b = self.name(header, 'h.0.ln_1.weight'), self.name(header, 'h.0.ln_1.bias')
            header[a]['data_offsets'] = header[b]['data_offsets']
        self.header(change)
        self.refuses(self.config, says=['model.safetensors', 'ln_1'])

    def test_tensor_past_the_end(self):
        def change(header):
            tensor = header[self.name(header, 'wte.weight')]
            tensor['data_offsets'] = [tensor['data_offsets'][0] + 10**9, tensor['data_offsets'][1] + 10**9]
        self.header(change)
        self.refuses(self.config, says=['model.safetensors', 'wte.weight'])

    def test_absurd_shape(self):
        self.header(lambda header: header[self.name(header, 'wte.weight')].update(shape=[2**62, 2**62]))
        self.refuses(self.config, says=['model.safetensors', 'wte.weight'])

    def test_absurd_header_length(self):
        path = self.model / 'model.safetensors'
        path.write_bytes(struct.pack('<Q', 2**63) + path.read_bytes()[8:])
        self.refuses(self.config, says=['model.safetensors', 'header'])

    def test_wrong_shape(self):
        def change(header):
            tensor = header[self.name(header, 'h.0.attn.c_attn.weight')]
            tensor['shape'] = tensor['shape'][::-1]
        self.header(change)
        self.refuses(self.config, says=['c_attn.weight', '144'])

    def test_missing_tensor(self):
        def change(header):
            name = self.name(header, 'h.1.mlp.c_fc.bias')
            header[name + 'x'] = header.pop(name)
        self.header(change)
        self.refuses(self.config, says=['c_fc.bias'])

    def test_option_that_disagrees_with_the_weights(self):
        self.refuses(self.config, 'model.n_layer=3', 'model.n_positions=99', says=[
            'hf have model.n_layer 2 (given: 3), model.n_positions 64 (given: 99); leave the options out'])


class Checkpoints(CommandCase):
    def test_checkpoint_of_another_model(self):
        self.run_train(self.tiny_config())
        other = self.tiny_config(model={'n_embd': 48}, run={'dir': str(self.folder / 'other')})
        self.refuses(other, f'checkpoint.resume={self.checkpoints()[-1]}', says=['n_embd', '32', '48'])

    def test_resume_refuses_what_changes_the_run(self):
        self.run_train(self.tiny_config())
        self.refuses(self.tiny_config(), 'optimizer.lr=0.1', 'train.max_steps=9', says=['optimizer.lr', '0.1'])
        self.refuses(self.tiny_config(), 'train.max_steps=3', says=['train.max_steps', '3', '6'])

    def test_altered_checkpoint_is_named_and_the_one_before_is_used(self):
        config = self.tiny_config(checkpoint={'every': 2})
        self.run_train(config)
        before = self.curve()
        data = self.checkpoints()[-1] / 'rank-00000.bin'
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        self.refuses('generate', self.checkpoints()[-1], says=['rank-00000.bin'])
        process = self.run_train(config)
        self.assertIn('rank-00000.bin', process.error)
        self.assertEqual(self.curve(), before)

    def test_every_damage_to_a_data_file_is_found(self):
        config = self.tiny_config(model={'vocab_size': 257}, data={'tokenizer': 'bytes'})
        self.run_train(config)
        checkpoint = self.checkpoints()[-1]
        good = (checkpoint / 'rank-00000.bin').read_bytes()

        def flipped(at):
            content = bytearray(good)
            content[at] ^= 1
            return bytes(content)
        damages = {'first bit': flipped(0), 'middle bit': flipped(len(good) // 2), 'last bit': flipped(-1),
                   'cut by a byte': good[:-1], 'cut in half': good[:len(good) // 2], 'empty': b'', 'longer': good + b'x'}
        for name, content in damages.items():
            with self.subTest(name):
                (checkpoint / 'rank-00000.bin').write_bytes(content)
                self.refuses('generate', checkpoint, says=['rank-00000.bin'])
        (checkpoint / 'rank-00000.bin').unlink()
        self.refuses('generate', checkpoint, says=['rank-00000.bin'])
        (checkpoint / 'rank-00000.bin').write_bytes(good)
        manifest = (checkpoint / 'manifest.json').read_text()
        for name, text in {'cut': manifest[:-20], 'empty': '', 'a list': '[]', 'other sizes': manifest.replace(
                '"n_embd": 32', '"n_embd": 64'), 'absurd': manifest.replace('"n_embd": 32', '"n_embd": 1e300')}.items():
            with self.subTest(name):
                (checkpoint / 'manifest.json').write_text(text)
                self.refuses('generate', checkpoint, says=['manifest.json'])

    def test_unwritable_run_folder(self):
        blocked = self.folder / 'file'
        blocked.write_text('not a folder')
        self.refuses(self.tiny_config(), f'run.dir={blocked}/run', says=[str(blocked)])

    def test_disk_full_while_checkpointing_keeps_the_last_good_one(self):
        config = self.tiny_config(checkpoint={'every': 2})
        self.run_train(config, 'train.max_steps=2')
        kept = self.final_state()
        limit = len(self.state_bytes()) - 100  # a file of this size no longer fits

        def no_space():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        process = self.run_train(config, code=1, preexec_fn=no_space)
        self.assertIn('rank-00000.bin', process.error)
        self.assertEqual(self.final_state(), kept)
        self.assertEqual([p.name for p in (self.folder / 'run' / 'checkpoints').iterdir()], ['step-00000002'])
        self.run_train(config)
        self.assertEqual([step for step, _, _ in self.curve()], list(range(1, 7)))

    def test_run_folder_in_use(self):
        config = self.tiny_config(train={'max_steps': 100000})
        first = self.start(config)
        try:
            self.wait_for_steps(1)
            self.refuses(config, says=[str(first.pid)])
        finally:
            first.kill()
            first.communicate()


if __name__ == '__main__':
    unittest.main()
