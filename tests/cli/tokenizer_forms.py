"""Makes a tokenizer.json of each form that published models have, and what the tokenizers package makes of texts with it.

usage: python tokenizer_forms.py FOLDER CHARACTERS

Writes FOLDER/NAME/tokenizer.json for each NAME, FOLDER/words.txt and FOLDER/characters.txt, and FOLDER/expected.json: for
each NAME and text the ids, and the text that they decode to. Vocabularies are small, and trained on a text made here.
"""
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace('{1,3}', '')
WORDS = ['the', "king's", "KING'S", "we'll", "I'VE", "they'Re", "don't", '1611,', '12345', '3.14159', 'x\n\ny', '\r\n', '\t\ttab',
         'é', 'e\u0301', '日本語', '\U0001f600', 'naïve', 'Å', '\u212b', 'नमस्ते', 'ｆｕｌｌ', '\u2581', '  ', '   ', '\n', '...\n',
         '!!!\n\n', '(hello)', "'\u017f", '½', '²', 'Ⅷ', '٣', '\u1100\u1161\u11a8', '\u0958', 'a\u0323\u0307', '\u2126', ' \n ',
         '_x_', '<unk>x', '<0x41>', '#include <stdio.h>\n', ''.join(map(chr, range(33, 127)))]


def words(n, seed):
    return ' '.join(random.Random(seed).choices(WORDS, k=n))


def characters(n, seed):
    """Characters of all kinds that Unicode 3.2 has: libraries know different versions of it."""
    draw, known = random.Random(seed), unicodedata.ucd_3_2_0
    found = []
    while len(found) < n:
        kind = draw.random()
        first, end = (1, 128) if kind < 0.5 else (128, 0x3000) if kind < 0.8 else (0x3000, 0x20000) if kind < 0.97 else (32, 33)
        character = chr(draw.randrange(first, end))
        if known.category(character) not in ('Cn', 'Cs'):
            found.append(character)
    return ''.join(found)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), 'isolated'),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(pre_tokenizer, normalizer=None, alphabet=True, special=('<|endoftext|>',), seed=1):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=800, show_progress=False, special_tokens=list(special),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tokenizer.train_from_iterator([words(3000, seed)], trainer)
    return tokenizer


def added(first, names):
    return [{'id': first + k, 'content': name, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False,
             'special': True} for k, name in enumerate(names)]


def pairs_of(vocab):
    """All pairs of tokens that make a third, as converters of tiktoken's files list them."""
    merges = []
    for token in sorted(vocab, key=vocab.get):
        cuts = [(token[:k], token[k:]) for k in range(1, len(token))]
        merges += sorted(([*cut] for cut in cuts if cut[0] in vocab and cut[1] in vocab), key=lambda cut: [vocab[p] for p in cut])
    return merges


def llama3():
    """Two tokens that no merge makes are found as whole words."""
    content = json.loads(byte_level(split(LLAMA3), special=[]).to_str())
    vocab = content['model']['vocab']
    for token in 'xyzzy', 'Ġplugh':
        vocab[token] = len(vocab)
    content['model'].update(merges=pairs_of(vocab), ignore_merges=True)
    n = len(vocab)
    content['added_tokens'] = added(n, ['<|begin_of_text|>', '<|end_of_text|>', '<|eot_id|>'])
    tokenizer = Tokenizer.from_str(json.dumps(content))
    template = processors.TemplateProcessing(single='<|begin_of_text|> $A', pair='<|begin_of_text|> $A <|begin_of_text|>:1 $B:1',
                                             special_tokens=[('<|begin_of_text|>', n)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen2():
    tokenizer = byte_level(split(QWEN2), normalizers.NFC(), special=[])
    tokenizer.add_special_tokens(['<|endoftext|>', '<|im_start|>', '<|im_end|>'])
    tokenizer.add_tokens(['<think>'])
    return tokenizer


def smollm():
    """Without tokens for bytes that the text does not have."""
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                      pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return byte_level(digits, alphabet=False, special=['<|endoftext|>', '<|im_start|>', '<|im_end|>'])


def llama2():
    """As SentencePiece's models are converted: bytes, tokens of several spaces, few characters."""
    trained = Tokenizer(models.BPE())
    normalizer = normalizers.Sequence([normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581')])
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.Split('\u2581', 'merged_with_next')
    trained.train_from_iterator(words(3000, 3).split('\n'),
                                trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=120))
    model = json.loads(trained.to_str())['model']
    vocab = {'<unk>': 0, '<s>': 1, '</s>': 2, **{f'<0x{byte:02X}>': 3 + byte for byte in range(256)}}
    for token in (*sorted(model['vocab'], key=model['vocab'].get), '\u2581\u2581', '\u2581\u2581\u2581'):
        vocab.setdefault(token, len(vocab))
    merges = [merge if isinstance(merge, list) else merge.split(' ') for merge in model['merges']]
    merges += [['\u2581', '\u2581'], ['\u2581\u2581', '\u2581'], ['\u2581', '\u2581\u2581']]
    tokenizer = Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    content = json.loads(tokenizer.to_str())
    content['model'].update(vocab=vocab, merges=merges)
    content['added_tokens'] = added(0, ['<unk>', '<s>', '</s>'])
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace('\u2581', ' '), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(' ', 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single='<s> $A', pair='<s> $A <s>:1 $B:1', special_tokens=[('<s>', 1)])
    return tokenizer


def shuffled():
    """Merges in another order than their ids: some tokens are never made."""
    content = json.loads(byte_level(split(QWEN2), seed=9).to_str())
    random.Random(4).shuffle(content['model']['merges'])
    return Tokenizer.from_str(json.dumps(content))


def main():
    folder, n = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    texts = {'words': words(n // 8, 5) + ' xyzzy plugh', 'characters': characters(n, 6)}
    made = {'gpt2': byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), 'llama3': llama3(), 'qwen2': qwen2(),
            'smollm': smollm(), 'llama2': llama2(), 'shuffled': shuffled()}
    expected = {}
    for name, tokenizer in made.items():
        (folder / name).mkdir()
        tokenizer.save(str(folder / name / 'tokenizer.json'))
        for text in texts:  # without what the package would read as control tokens
            for token in tokenizer.get_added_tokens_decoder().values():
                texts[text] = texts[text].replace(token.content, '')
    for text, content in texts.items():
        (folder / f'{text}.txt').write_bytes(content.encode())
        for name, tokenizer in made.items():
            ids = tokenizer.encode(content, add_special_tokens=False).ids
            expected.setdefault(name, {})[text] = {'ids': ids, 'text': tokenizer.decode(ids)}
    (folder / 'expected.json').write_text(json.dumps(expected))


main()
