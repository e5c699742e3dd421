"""Texts and token files as people bring them: markers between documents, ids without a header, and files of another kind."""
import json
import struct
import unittest

from harness import CommandCase, GOLDEN, pseudo_random_tokens, write_shard


def shard_tokens(path):
    data = path.read_bytes()
    return list(struct.unpack(f'<{(len(data) - 1024) // 2}H', data[1024:]))


class Documents(CommandCase):
    """<|endoftext|> ends a document where that is asked for; else it is text, which a warning says."""
    end = 256  # of the tokenizer "bytes"

    def tokenize(self, text, *arguments):
        (self.folder / 'my.txt').write_text(text)
        process = self.run_train('tokenize', 'my.txt', '--tokenizer', 'bytes', '--out', 'out', *arguments)
        return process, [shard_tokens(path) for path in sorted((self.folder / 'out').glob('*.bin'))]

    def test_tokenize(self):
        text = 'one<|endoftext|>two\n<|endoftext|><|endoftext|>three'
        process, (train,) = self.tokenize(text)
        self.assertEqual(train, [self.end, *text.encode()])
        self.assertIn('<|endoftext|> occurs 3 times and is encoded as text; with --end-of-text', process.error)
        process, (train,) = self.tokenize(text, '--end-of-text')
        self.assertEqual(train, [self.end, *b'one', self.end, *b'two\n', self.end, *b'three'])
        self.assertNotIn('occurs', process.error)
        # the split is between documents, wherever in a document or a marker it would be
        documents = [[self.end, *b'one'], [self.end, *b'two\n'], [self.end, *b'three']]
        for fraction, n in (0.45, 2), (0.6, 2), (0.7, 1):
            _, (train, val) = self.tokenize(text, '--end-of-text', '--split', fraction)
            self.assertEqual((train, val), (sum(documents[:n], []), sum(documents[n:], [])))

    def test_tokenizer(self):
        (self.folder / 'my.txt').write_text('abab<|endoftext|>' * 50)
        train = 'tokenizer', 'train', 'my.txt', '--vocab-size', 259, '--out'
        self.assertIn('<|endoftext|> occurs 50 times and is learned as text', self.run_train(*train, 'text.tiktoken').error)
        self.run_train(*train, 'documents.tiktoken', '--end-of-text')
        encode = 'tokenizer', 'encode', '--tokenizer'
        self.assertEqual(self.run_train(*encode, 'documents.tiktoken', '--end-of-text', text='abab<|endoftext|>abab').out,
                         '257 258 257\n')
        self.assertNotEqual(self.run_train(*encode, 'text.tiktoken', text='abab').out, '257\n')


class Raw(CommandCase):
    """nanoGPT's train.bin and val.bin."""

    def test_ids_without_a_header(self):
        tokens = pseudo_random_tokens(9000, 61)
        (self.folder / 'train.bin').write_bytes(struct.pack('<8000H', *tokens[:8000]))
        (self.folder / 'val.bin').write_bytes(struct.pack('<1000H', *tokens[8000:]))
        refused = self.refuses(self.tiny_config(data={'train': 'train.bin'}), says=['train.bin', 'nanoGPT'])
        command = './train tokenize --raw train.bin --out DIR'
        self.assertIn(command, refused.error)
        arguments = command.replace('DIR', 'out').replace('train.bin', 'train.bin val.bin').split()[1:]
        self.run_train(*arguments, '--shard-tokens', 5000)
        out = self.folder / 'out'
        self.assertEqual([shard_tokens(path) for path in sorted(out.glob('*.bin'))], [tokens[:5000], tokens[5000:8000], tokens[8000:]])
        self.assertIsNone(json.loads((out / 'meta.json').read_text())['tokenizer'])
        self.run_train(self.tiny_config(data={'train': 'out/train-*.bin'}))
        self.run_train(*arguments, '--tokenizer', 'bytes')
        self.assertIn('tokenizer: bytes (257 ids', self.run_train('inspect', 'out/val-00000.bin').out)
        # a model without a tokenizer is evaluated with that of the shards
        model = GOLDEN / 'gpt2-tiny'
        evaluated = self.run_train('eval', model, '--data', 'out/val-00000.bin', '--device', 'cpu')
        self.assertIn('tokenizer: bytes, which made out/val-00000.bin', evaluated.error)
        self.assertIn('bits per byte', evaluated.out)
        evaluated = self.run_train('eval', model, '--data', model / 'tokens.bin', '--device', 'cpu')
        self.assertIn('bits per byte need a tokenizer', evaluated.error)
        (self.folder / 'high.bin').write_bytes(struct.pack('<2H', 1, 257))
        raw = 'tokenize', '--raw', '--out', 'more'
        self.refuses(*raw, 'high.bin', '--tokenizer', 'bytes', says=['high.bin: token 1 is 257', 'ids 0 to 256'])
        self.refuses(*raw, 'out/val-00000.bin', says=['has a header already'])
        (self.folder / 'high.bin').write_bytes(b'\1\2\3')
        self.refuses(*raw, 'high.bin', says=['high.bin has 3 bytes', 'tokens of 2 bytes'])
        self.refuses(*raw, 'high.bin', '--split', 0.1, says=['--raw', '--split'])
        for name, says in (GOLDEN / 'gpt2-tiny' / 'model.safetensors', 'is a safetensors file'), ('out/meta.json', 'is text'):
            self.refuses(*raw, name, says=[says, 'expected token ids of 2 bytes without a header'])
        self.assertIn('  validation: 1000 tokens in 1 shard\n  tokenizer: bytes (257 ids', self.run_train('inspect', 'out').out)
        self.refuses('inspect', 'val.bin', says=['if it holds token ids', './train tokenize --raw val.bin'])
        self.assertIn('removed 1 older shard of out', self.run_train(*arguments[:3], '--out', 'out').error)


class OtherKinds(CommandCase):
    def test_text_and_empty_files_are_named(self):
        (self.folder / 'my.txt').write_text('Ärger, the first line\nand the second\n' * 100)
        self.refuses('inspect', 'my.txt', says=['my.txt is text', './train tokenize my.txt'])
        (self.folder / 'latin.txt').write_bytes('first line\nÄrger\n'.encode('latin-1'))
        (self.folder / 'wide.txt').write_text('first line', encoding='utf-16')
        self.refuses('inspect', 'wide.txt', says=['wide.txt is UTF-16 text'])
        self.refuses('eval', GOLDEN / 'gpt2-tiny', '--tokenizer', 'bytes', '--data', 'wide.txt', says=['wide.txt is UTF-16 text', 'iconv'])
        error = self.run_train('tokenize', 'my.txt', 'latin.txt', 'wide.txt', '--tokenizer', 'bytes', '--out', 'out').error
        for part in 'latin.txt is not UTF-8: byte 0xc4 at offset 11', 'wide.txt is not UTF-8 but UTF-16 text', 'iconv':
            self.assertIn(part, error)
        self.assertNotIn('my.txt', error)
        (self.folder / 'empty.bin').touch()
        self.refuses('tokenizer', 'train', 'empty.bin', '--out', 'x', says=['empty.bin contains no text'])
        self.refuses('inspect', 'empty.bin', says=['empty.bin is not recognized'])
        config = self.tiny_config()
        self.refuses(config, 'data.train=empty.bin', says=['empty.bin is empty (0 bytes)'])
        self.refuses(config, 'data.train=my.txt', says=['my.txt is text (', './train tokenize my.txt --tokenizer FILE'])

    def test_files_of_llmc(self):
        """Its models, tokenizers and evaluations are refused with what to use instead."""
        for name, magic in ('model', 20240326), ('llama', 20240803), ('tokenizer', 20240328), ('eval', 20240522), ('state', 20240527):
            (self.folder / f'{name}.bin').write_bytes(struct.pack('<256i', magic, 3, *[0] * 254))
        config = self.tiny_config()
        advice = 'model of llm.c', 'python3 dev/eval/export_hf.py --input model.bin --output DIR --dtype float32'
        for arguments in ([config, 'data.train=model.bin'], [config, 'model.init_from=model.bin'], ['generate', 'model.bin'],
                          ['export', 'model.bin', '--to', 'hf', 'out']):
            self.refuses(*arguments, says=advice)
        self.refuses('generate', 'llama.bin', says=['Llama 3 model of llm.c', 'use the Hugging Face folder'])
        self.refuses('generate', 'state.bin', says=['state of llm.c'])
        self.refuses('generate', '.', says=['. holds a model of llm.c', '--input ./model.bin'])
        self.refuses('tokenizer', 'encode', '--tokenizer', 'tokenizer.bin', text='x', says=['tokenizer of llm.c', 'use the tokenizer.json'])
        self.refuses(config, 'data.tokenizer=tokenizer.bin', says=['tokenizer of llm.c', 'use the tokenizer.json'])
        self.refuses('eval', GOLDEN / 'gpt2-tiny', '--tokenizer', 'bytes', '--task', 'hellaswag=eval.bin',
                     says=['evaluation file of llm.c', 'use ./hellaswag_val.jsonl'])
        self.refuses('inspect', 'model.bin', says=advice)

    def test_a_prompt_longer_than_the_context(self):
        golden = GOLDEN / 'gpt2-tiny'
        positions = json.loads((golden / 'config.json').read_text())['n_positions']
        generate = 'generate', golden, '--tokenizer', 'bytes', '--tokens', 2, '--device', 'cpu', '--prompt'
        error = self.run_train(*generate, 'x' * (positions + 1)).error
        self.assertIn(f'the prompt has {positions + 1} tokens, more than the model\'s context of {positions}', error)
        self.assertIn(f'cut to its last {positions // 2}', error)
        self.assertNotIn('cut', self.run_train(*generate, 'x' * positions).error)


if __name__ == '__main__':
    unittest.main()
