"""GPT-2 in plain Python, in float64: log-probabilities that do not come from this program. For models of a few thousand
weights, from a Hugging Face folder."""
import json
import math
import operator
import struct


def load(folder):
    """The tensors of model.safetensors (F32) as lists of rows, and the config."""
    data = (folder / 'model.safetensors').read_bytes()
    length = struct.unpack('<Q', data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != '__metadata__':
            begin, end = (8 + length + offset for offset in entry['data_offsets'])
            values = struct.unpack(f'<{(end - begin) // 4}f', data[begin:end])
            width = entry['shape'][-1]
            rows = [list(values[i:i + width]) for i in range(0, len(values), width)]
            tensors[name] = rows[0] if len(entry['shape']) == 1 else rows
    return tensors, json.loads((folder / 'config.json').read_text())


def dot(a, b):
    return sum(map(operator.mul, a, b))


class TinyGpt2:
    def __init__(self, folder):
        tensors, self.config = load(folder)
        self.tensors = {name.removeprefix('transformer.'): value for name, value in tensors.items()}
        for name, value in self.tensors.items():  # Conv1D weights are (in, out): one list per output
            if name.endswith(('c_attn.weight', 'c_proj.weight', 'c_fc.weight')):
                self.tensors[name] = [list(column) for column in zip(*value)]

    def norm(self, x, name):
        mean = sum(x) / len(x)
        scale = 1 / math.sqrt(sum((v - mean)**2 for v in x) / len(x) + self.config['layer_norm_epsilon'])
        return [(v - mean) * scale * w + b
                for v, w, b in zip(x, self.tensors[name + '.weight'], self.tensors[name + '.bias'])]

    def linear(self, x, name):
        return [dot(row, x) + b for row, b in zip(self.tensors[name + '.weight'], self.tensors[name + '.bias'])]

    def attend(self, qkv, cache):
        """cache: the (key, value) of the positions so far, to which this one is added."""
        width = self.config['n_embd']
        size, out = width // self.config['n_head'], []
        cache.append((qkv[width:2 * width], qkv[2 * width:]))
        for begin in range(0, width, size):
            part = slice(begin, begin + size)
            scores = [dot(qkv[part], key[part]) / math.sqrt(size) for key, _ in cache]
            weights = [math.exp(score - max(scores)) for score in scores]
            out += [dot(weights, column) / sum(weights) for column in zip(*(value[part] for _, value in cache))]
        return out

    def step(self, token, caches):
        """Log-probabilities of the token after this one. caches: a list per block, all empty at the first token."""
        x = [a + b for a, b in zip(self.tensors['wte.weight'][token], self.tensors['wpe.weight'][len(caches[0])])]
        for block, cache in enumerate(caches):
            name = f'h.{block}.'
            qkv = self.linear(self.norm(x, name + 'ln_1'), name + 'attn.c_attn')
            x = [a + b for a, b in zip(x, self.linear(self.attend(qkv, cache), name + 'attn.c_proj'))]
            hidden = self.linear(self.norm(x, name + 'ln_2'), name + 'mlp.c_fc')
            hidden = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in hidden]
            x = [a + b for a, b in zip(x, self.linear(hidden, name + 'mlp.c_proj'))]
        x = self.norm(x, 'ln_f')
        logits = [dot(row, x) for row in self.tensors['wte.weight']]
        largest = max(logits)
        total = largest + math.log(sum(math.exp(v - largest) for v in logits))
        return [v - total for v in logits]

    def start(self, tokens):
        """Caches and log-probabilities after these tokens."""
        caches = [[] for _ in range(self.config['n_layer'])]
        for token in tokens:
            row = self.step(token, caches)
        return caches, row

    def log_probability(self, caches, row, tokens):
        """Of the tokens, after `start`; and whether each is the most likely one."""
        caches, total, greedy = [list(cache) for cache in caches], 0.0, True
        for i, token in enumerate(tokens):
            total += row[token]
            greedy = greedy and row[token] == max(row)
            if i < len(tokens) - 1:
                row = self.step(token, caches)
        return total, greedy
