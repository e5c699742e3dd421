"""model.init_from and the commands that take a Hugging Face model: what people have on their disks, and how it is named."""
import base64
import json
import shutil
import struct
import unittest

from harness import CommandCase, GOLDEN, write_shard


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


class Formats(WeightsCase):
    def split(self, n):
        """Replaces model.safetensors by n files and their index, as transformers writes large models."""
        data = (self.model / 'model.safetensors').read_bytes()
        length = struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop('__metadata__', None)
        (self.model / 'model.safetensors').unlink()
        weight_map = {}
        for k in range(n):
            name, part, body = f'model-{k + 1:05d}-of-{n:05d}.safetensors', {}, b''
            for tensor in sorted(header)[k::n]:
                begin, end = header[tensor]['data_offsets']
                part[tensor] = {**header[tensor], 'data_offsets': [len(body), len(body) + end - begin]}
                body += data[8 + length + begin:8 + length + end]
                weight_map[tensor] = name
            text = json.dumps(part).encode()
            (self.model / name).write_bytes(struct.pack('<Q', len(text)) + text + body)
        index = self.model / 'model.safetensors.index.json'
        index.write_text(json.dumps({'metadata': {'total_size': len(data)}, 'weight_map': weight_map}))
        return index

    def test_files_by_path_and_in_parts(self):
        self.run_train(self.config, 'run.dir=folder')
        self.run_train(self.config, 'run.dir=file', 'model.init_from=hf/model.safetensors')
        index = self.split(3)
        self.run_train(self.config, 'run.dir=parts')
        self.run_train(self.config, 'run.dir=index', 'model.init_from=hf/model.safetensors.index.json')
        for run in 'file', 'parts', 'index':
            self.assertEqual(self.final_state(run), self.final_state('folder'))
        out = self.run_train('inspect', 'hf').out
        self.assertEqual(out.count(': safetensors, '), 3)
        self.assertIn('wte.weight', out)
        part = self.model / 'model-00002-of-00003.safetensors'
        part.rename(self.model / 'kept')
        self.refuses(self.config, says=['hf/model-00002-of-00003.safetensors', 'No such file'])
        (self.model / 'kept').rename(part)
        self.refuses(self.config, 'model.init_from=hf/model-00002-of-00003.safetensors', says=[
            'hf/model-00002-of-00003.safetensors is file 2 of 3; give the folder that has all of them: hf/'])
        good = json.loads(index.read_text())
        name = sorted(good['weight_map'])[1]
        for file in '../kept.safetensors', 'x.bin', 5:
            index.write_text(json.dumps({'weight_map': {**good['weight_map'], name: file}}))
            self.refuses(self.config, says=['model.safetensors.index.json', name, 'of the same folder'])
        index.write_text(json.dumps({'weight_map': {k: v for k, v in good['weight_map'].items() if v != part.name}}))
        self.refuses(self.config, says=['model.safetensors.index.json', 'is missing'])
        self.assertFalse((self.folder / 'run').exists())
        (self.model / 'config.json').unlink()
        self.refuses(self.config, f'model.init_from={part}', says=['there is no config.json in', 'sizes'])

    def test_what_is_not_read_is_named(self):
        weights = self.model / 'model.safetensors'
        weights.rename(self.model / 'pytorch_model.bin')
        convert = 'GPT2LMHeadModel.from_pretrained("hf").save_pretrained("NEW")'
        self.refuses(self.config, says=["hf holds PyTorch's pickled weights", convert])
        for name, magic in ('ckpt.pt', b'PK\3\4' + bytes(26) + b'ckpt/data.pkl'), ('pytorch_model.bin', b'\x80\2\x8a\nl\xfc\x9cF\xf9'):
            (self.model / name).write_bytes(magic + bytes(100))
            self.refuses(self.config, f'model.init_from=hf/{name}', says=[f"hf/{name} holds PyTorch's", convert])
        write_shard(self.folder / 'tokens.bin', [1] * 100)
        self.refuses(self.config, 'model.init_from=tokens.bin', says=['tokens.bin is a token shard'])
        self.refuses(self.config, 'model.init_from=../gone', says=['c.json: model.init_from: ../gone does not exist'])
        self.refuses(self.config, 'model.init_from=c.json', says=['c.json is not recognized as weights'])
        for name in 'gpt2', 'openai-community/gpt2':
            self.refuses(self.config, f'model.init_from={name}', says=[
                f'{name} does not exist here', "hf download openai-community/gpt2 '*config.json' tokenizer.json 'model*.safetensors*'",
                '--local-dir gpt2, then use the folder gpt2'])
            self.refuses('inspect', name, says=[f'{name} does not exist here', 'hf download'])
        self.refuses('inspect', 'hf', says=["hf holds PyTorch's pickled weights", 'python3 -c'])
        for path in 'hf/nothere', 'nothere.bin':
            self.assertNotIn('hf download', self.refuses('eval', path, '--data', 'tokens.bin', says=[f'{path} does not exist']).error)
        self.refuses('generate', './gpt2', says=['./gpt2 does not exist; expected the folder of a run'])


    def test_folders_of_other_forms(self):
        """The class of the folder's own config.json, DeepSpeed's checkpoints, adapters: with the command that makes a model."""
        (self.model / 'model.safetensors').rename(self.model / 'pytorch_model.bin')
        for config, name in ('{"architectures": ["LlamaForCausalLM"]}', 'LlamaForCausalLM'), ('{}', 'AutoModelForCausalLM'), (
                '{"architectures": ["os; x"]}', 'AutoModelForCausalLM'):
            (self.model / 'config.json').write_text(config)
            self.refuses('generate', 'hf', says=[f'import {name}; {name}.from_pretrained("hf").save_pretrained("NEW")'])
        tag = self.folder / 'ds' / 'global_step5'
        tag.mkdir(parents=True)
        states = tag / 'mp_rank_00_model_states.pt'
        states.write_bytes(b'PK\3\4' + bytes(26) + b'archive/data.pkl')

        def refuses(path, command, command_of_ours='generate'):
            self.refuses(command_of_ours, path, says=[f'{path} holds a', 'checkpoint of DeepSpeed', command, 'folder NEW'])
        whole = 'torch.load("ds/global_step5/mp_rank_00_model_states.pt", weights_only=False)["module"]'
        for path in 'ds', 'ds/global_step5', 'ds/global_step5/mp_rank_00_model_states.pt':
            refuses(path, whole)
            refuses(path, whole, 'inspect')
        (tag / 'bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt').write_bytes(b'')
        (tag.parent / 'latest').write_text('global_step5')
        (tag.parent / 'tokenizer.json').write_text('{}')
        refuses('ds', 'python3 -m deepspeed.utils.zero_to_fp32 ds NEW --safe_serialization, copy', 'inspect')
        refuses('ds/global_step5', 'python3 -m deepspeed.utils.zero_to_fp32 ds/global_step5 NEW --safe_serialization --tag ., copy')
        (tag / 'zero' / 'lm_head.weight').mkdir(parents=True)
        (tag / 'zero' / 'lm_head.weight' / 'fp32.pt').write_bytes(b'')
        refuses('ds/global_step5', 'torch.load("ds/global_step5/zero/" + name + "/fp32.pt")')
        adapter = self.folder / 'peft'
        adapter.mkdir()
        (adapter / 'adapter_config.json').write_text('{"base_model_name_or_path": "x/y"}')
        (adapter / 'adapter_model.safetensors').write_bytes(b'')
        for path in 'peft', 'peft/adapter_model.safetensors':
            self.refuses(self.config, f'model.init_from={path}', says=[
                f'{path} holds an adapter (PEFT)', 'AutoPeftModelForCausalLM.from_pretrained("peft").merge_and_unload()'])
        shutil.copy(GOLDEN / 'gpt2-tiny' / 'config.json', self.model / 'config.json')
        (self.model / 'pytorch_model.bin').rename(self.model / 'model.safetensors')
        shutil.copy(adapter / 'adapter_config.json', self.model)
        self.assertIn('hf holds an adapter (PEFT) beside the model; the model is read without it', self.run_train(self.config).error)


def byte_alphabet():
    """GPT-2's characters for the bytes 0 to 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


class Tokenizers(WeightsCase):
    """The tokenizer in a model's folder: tokenizer.json, not vocab.json and merges.txt."""

    def setUp(self):
        super().setUp()
        text = 'the quick brown fox — naïve? — jumps over the lazy dog; 12345\n' * 40
        (self.folder / 'my.txt').write_text(text)
        self.run_train('tokenizer', 'train', 'my.txt', '--vocab-size', 290, '--out', 'bpe.tiktoken')
        letters = byte_alphabet()
        tokens = [base64.b64decode(line.split()[0]) for line in (self.folder / 'bpe.tiktoken').read_text().splitlines()]
        ids = {token: k for k, token in enumerate(tokens)}

        def spell(token):
            return ''.join(letters[byte] for byte in token)

        def parts(token):
            """The two tokens that are left when all merges but the last are done."""
            pieces = [token[k:k + 1] for k in range(len(token))]
            while len(pieces) > 2:
                k = min(range(len(pieces) - 1), key=lambda k: ids.get(pieces[k] + pieces[k + 1], 10**9))
                pieces[k:k + 2] = [pieces[k] + pieces[k + 1]]
            return [spell(piece) for piece in pieces]
        self.merges = [parts(token) for token in tokens if len(token) > 1]
        self.vocab = {**{spell(token): k for k, token in enumerate(tokens)}, '<|endoftext|>': len(tokens)}
        self.text = text[:200]
        self.expected = self.encode('bpe.tiktoken')

    def encode(self, tokenizer):
        return self.run_train('tokenizer', 'encode', '--tokenizer', tokenizer, text=self.text).out

    def write_json(self, folder='hf', merges=None, vocab=None, model=(), **members):
        content = {'version': '1.0', 'added_tokens': [{'id': len(self.vocab) - 1, 'content': '<|endoftext|>', 'special': True}],
                   'normalizer': None, 'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True},
                   'model': {'type': 'BPE', 'dropout': None, 'continuing_subword_prefix': '', 'vocab': vocab or self.vocab,
                             'merges': merges or [' '.join(pair) for pair in self.merges], **dict(model)}, **members}
        (self.folder / folder / 'tokenizer.json').write_text(json.dumps(content))

    def test_the_same_ids(self):
        self.write_json()
        self.assertEqual(self.encode('hf/tokenizer.json'), self.expected)
        self.write_json(merges=self.merges)
        self.assertEqual(self.encode('hf/tokenizer.json'), self.expected)
        self.assertIn('byte-pair tokenizer, 290 ids', self.run_train('inspect', 'hf/tokenizer.json').out)
        (self.model / 'vocab.json').write_text(json.dumps(self.vocab))
        (self.model / 'merges.txt').write_text('#version: 0.2\n' + '\n'.join(map(' '.join, self.merges)) + '\n')
        self.assertEqual(self.encode('hf'), self.expected)

    def test_vocab_json(self):
        """The vocabulary and merges alone are refused, with the line that makes a tokenizer.json of them."""
        (self.model / 'merges.txt').write_text('#version: 0.2\n' + '\n'.join(map(' '.join, self.merges)) + '\n')
        shutil.copy(self.model / 'merges.txt', self.folder / 'vocab.bpe')
        self.assertEqual(self.encode('hf/merges.txt'), self.encode('vocab.bpe'))
        (self.model / 'vocab.json').write_text(json.dumps(self.vocab))
        line = 'AutoTokenizer.from_pretrained("hf").save_pretrained("hf")'
        for path in 'hf', 'hf/vocab.json', 'hf/merges.txt':
            self.refuses('tokenizer', 'encode', '--tokenizer', path, text='x', says=['are no longer supported', line])
        self.write_json()
        self.assertEqual(self.encode('hf'), self.expected)

    def test_what_works_otherwise_is_refused(self):
        def refuses(*says, **changes):
            self.write_json(**changes)
            self.refuses('tokenizer', 'encode', '--tokenizer', 'hf/tokenizer.json', text='x', says=['hf/tokenizer.json', *says])
        refuses('its model is Unigram, expected BPE', model={'type': 'Unigram'})
        refuses('byte_fallback', model={'byte_fallback': True})
        refuses('its normalizer is Lowercase', normalizer={'type': 'Lowercase'})
        refuses('its pre_tokenizer is Sequence, expected ByteLevel', pre_tokenizer={'type': 'Sequence', 'pretokenizers': []})
        refuses('its pre_tokenizer is ByteLevel, expected "add_prefix_space" false', pre_tokenizer={'type': 'ByteLevel', 'add_prefix_space': True})
        refuses('merge 2', 'does not join two tokens into a third', merges=[*self.merges[:2], ['t', 'zz']])
        refuses('post_processor', post_processor={'type': 'BertProcessing'})
        refuses('its decoder is WordPiece', decoder={'type': 'WordPiece'})
        first = {token: (id + 1) % len(self.vocab) for token, id in self.vocab.items()}
        refuses('none of its added tokens is <|endoftext|>', vocab=first, added_tokens=[])
        refuses('none of its added tokens', added_tokens=[{'id': len(self.vocab), 'content': '[PAD]'}])
        refuses('ids must have no gaps', vocab={**self.vocab, 'Ġzz': 500})
        refuses('byte alphabet', vocab={**self.vocab, ' ': len(self.vocab) - 1, '<|endoftext|>': len(self.vocab)},
                added_tokens=[])

    def test_the_folder_of_the_weights(self):
        sizes = {'n_layer': 1, 'n_head': 2, 'n_embd': 16, 'vocab_size': 290, 'n_positions': 32}
        self.make_model(sizes)
        self.write_json('made')
        self.run_train('tokenize', 'my.txt', '--tokenizer', 'made/tokenizer.json', '--split', 0.2, '--out', 'shards')
        config = self.config, 'model.init_from=made', 'data.train=shards/train-*.bin', 'train.micro_batch_size=1'
        error = self.run_train(*config).error
        self.assertIn('tokenizer: made/tokenizer.json, that of model.init_from', error)
        self.assertIn('bits per byte', error)
        self.assertIn('the lazy', self.run_train('generate', 'made', '--prompt', 'the lazy', '--tokens', 3).out)
        self.assertIn('bits per byte', self.run_train('eval', 'made', '--data', 'shards/val-*.bin').out)
        shutil.copy(self.folder / 'c.json', self.folder / 'c.txt')
        self.run_train('tokenizer', 'train', 'c.txt', '--vocab-size', 262, '--out', 'other.tiktoken')
        self.run_train('tokenize', 'my.txt', '--tokenizer', 'other.tiktoken', '--out', 'other')
        self.refuses('eval', 'made', '--data', 'other/*.bin', says=["the model's tokenizer is tokenizer.json (290 ids"])
        self.refuses(*config[:2], 'data.train=other/train-*.bin', 'run.dir=new',
                     says=['data.train was tokenized with other.tiktoken', 'made/tokenizer.json is tokenizer.json (290 ids'])
        self.write_json('made', normalizer={'type': 'Lowercase'})
        error = self.run_train(*config, 'run.dir=new').error
        self.assertIn("the model's tokenizer is not used: made/tokenizer.json: its normalizer is Lowercase", error)
        shutil.rmtree(self.folder / 'made')
        self.run_train(*config, 'train.max_steps=3')  # resumes: the checkpoint has a copy
        self.run_train('run/config.json', 'train.max_steps=4')
        self.assertIn('the lazy', self.run_train('generate', 'run', '--prompt', 'the lazy', '--tokens', 3).out)

    def make_model(self, sizes):
        """A Hugging Face folder of zeros."""
        folder = self.folder / 'made'
        folder.mkdir()
        config = json.loads((self.model / 'config.json').read_text())
        (folder / 'config.json').write_text(json.dumps({**config, **sizes}))
        width = sizes['n_embd']
        shapes = {'wte.weight': [sizes['vocab_size'], width], 'wpe.weight': [sizes['n_positions'], width],
                  'ln_f.weight': [width], 'ln_f.bias': [width]}
        for name, shape in {'ln_1': [width], 'ln_2': [width], 'attn.c_attn': [width, 3 * width], 'attn.c_proj': [width, width],
                            'mlp.c_fc': [width, 4 * width], 'mlp.c_proj': [4 * width, width]}.items():
            shapes[f'h.0.{name}.weight'], shapes[f'h.0.{name}.bias'] = shape, shape[-1:]
        header, at = {}, 0
        for name, shape in shapes.items():
            n = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        (folder / 'model.safetensors').write_bytes(struct.pack('<Q', len(text)) + text + bytes(at))


class Resuming(WeightsCase):
    def test_the_weights_may_be_gone(self):
        self.run_train(self.config, 'train.max_steps=4', 'run.dir=whole')
        self.run_train(self.config)
        self.assertEqual(json.loads(self.run_train('check', self.config).out)['model']['n_layer'], 2)
        shutil.rmtree(self.model)
        self.refuses(self.config, 'run.dir=other', says=['hf'])
        self.assertIn('hf does not exist, so the sizes are not compared', self.run_train('check', self.config).error)
        self.refuses(self.config, 'model.n_layer=3', says=[
            'the weights in run, which the run resumes from, have model.n_layer 2 (given: 3); leave the option out'])
        self.run_train(self.config, 'train.max_steps=3')
        shutil.copytree(self.folder / 'run', self.folder / 'copy')
        self.run_train(self.config, 'train.max_steps=4', f'checkpoint.resume={self.folder / "run"}', 'run.dir=from')
        self.run_train('copy/config.json', 'run.dir=copy', 'train.max_steps=4')
        for run in 'from', 'copy':
            self.assertEqual(self.final_state(run), self.final_state('whole'))


if __name__ == '__main__':
    unittest.main()
