"""A token shard for measurements, in llm.c's format."""
import random
import struct


def write_random_tokens(path, n, vocab_size):
    """Writes n random tokens. Neither memory nor time depends on their values."""
    tokens = random.Random(1337).choices(range(vocab_size), k=n)
    path.write_bytes(struct.pack('<256i', 20240520, 1, n, *[0] * 253) + struct.pack(f'<{n}H', *tokens))
