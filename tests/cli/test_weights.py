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
        good = json.loads(index.read_text())
        name = sorted(good['weight_map'])[1]
        for file in '../kept.safetensors', 'x.bin', 5:
            index.write_text(json.dumps({'weight_map': {**good['weight_map'], name: file}}))
            self.refuses(self.config, says=['model.safetensors.index.json', name, 'of the same folder'])
        index.write_text(json.dumps({'weight_map': {k: v for k, v in good['weight_map'].items() if v != part.name}}))
        self.refuses(self.config, says=['model.safetensors.index.json', 'is missing'])
        (self.model / 'config.json').unlink()
        self.refuses(self.config, f'model.init_from={part}', says=['there is no config.json in', 'sizes'])

    def test_what_is_not_read_is_named(self):
        weights = self.model / 'model.safetensors'
        weights.rename(self.model / 'pytorch_model.bin')
        convert = 'GPT2LMHeadModel.from_pretrained("hf").save_pretrained("NEW")'
        self.refuses(self.config, says=["hf holds PyTorch's pickled weights", convert])
        for name, magic in ('ckpt.pt', b'PK\3\4'), ('pytorch_model.bin', b'\x80\2}q'):
            (self.model / name).write_bytes(magic + bytes(100))
            self.refuses(self.config, f'model.init_from=hf/{name}', says=[f"hf/{name} holds PyTorch's", convert])
        (self.folder / 'gpt2_124M.bin').write_bytes(struct.pack('<256i', 20240326, 3, *[0] * 254))
        self.refuses(self.config, 'model.init_from=gpt2_124M.bin', says=['a model of llm.c', 'export_hf.py --input gpt2_124M.bin'])
        write_shard(self.folder / 'tokens.bin', [1] * 100)
        self.refuses(self.config, 'model.init_from=tokens.bin', says=['tokens.bin is a token shard'])
        self.refuses(self.config, 'model.init_from=c.json', says=['c.json is not recognized as weights'])
        for name in 'gpt2', 'openai-community/gpt2':
            self.refuses(self.config, f'model.init_from={name}', says=[
                f'{name} does not exist here', 'hf download openai-community/gpt2 config.json model.safetensors',
                '--local-dir gpt2, then use the folder gpt2'])
        self.refuses('generate', './gpt2', says=['./gpt2 does not exist; expected the folder of a run'])


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
