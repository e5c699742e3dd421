"""Initial weights of golden runs as ./train reads them. Hugging Face has no models of the family `modern`: theirs become a
checkpoint."""
import ctypes
import json

from harness import GOLDEN
from test_families import tensors

PARTS = {'qkv_proj': ('q_proj', 'k_proj', 'v_proj')}  # rows of one matrix here


def golden_weights(case, name):
    """A path for model.init_from; `case` is a CommandCase, in whose folder a checkpoint is written."""
    model = json.loads((GOLDEN / name / 'config.json').read_text())
    if model.get('family') != 'modern':
        return GOLDEN / name
    run = case.folder / f'{name}-weights'
    if not run.exists():
        model['rope_theta'] = model.pop('rope')['theta']
        options = [f'model.{key}={str(value).lower()}' for key, value in model.items()]
        (case.folder / 'weights.json').write_text('{}')
        case.run_train('weights.json', *options, f'data.train={GOLDEN / name / "tokens.bin"}', 'train.seq_len=8', 'device=cpu',
                       'train.train_batch_size=1', 'train.max_steps=1', f'run.dir={run}')
        weights = tensors((GOLDEN / name / 'model.safetensors').read_bytes())
        replace_weights(case.checkpoints(run.name)[-1], {key: data for key, (_, _, data) in weights.items()})
    return run


def replace_weights(checkpoint, weights):
    """Writes weights, the bytes of fp32 values by name, and the new checksums into a checkpoint of one rank
    (docs/checkpoint-format.md)."""
    path = checkpoint / 'manifest.json'
    text = path.read_text()
    manifest, content = json.loads(text), bytearray((checkpoint / 'rank-00000.bin').read_bytes())
    for tensor in manifest['tensors']:
        name, before = tensor['name'], sum(manifest['unit_elements'][:tensor['unit']])
        part = next((part for part in PARTS if part in name), None)
        names = [name.replace(part, one) for one in PARTS[part]] if part else [name]
        values = b''.join(weights.get(f'model.{one}') or weights[one] for one in names)
        at = 4 * (len(manifest['state']) * before + tensor['offset'])
        content[at:at + len(values)] = values
    (checkpoint / 'rank-00000.bin').write_bytes(content)
    text = text.replace(manifest['ranks'][0][1], xxh3(bytes(content)))
    sealed = text[:text.index('  "manifest_xxh3"')]
    path.write_text(f'{sealed}  "manifest_xxh3": "{xxh3(sealed.encode())}"\n}}\n')


def xxh3(data):
    library = ctypes.CDLL('libxxhash.so.0')
    library.XXH3_64bits.restype, library.XXH3_64bits.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    return f'{library.XXH3_64bits(data, len(data)):016x}'
