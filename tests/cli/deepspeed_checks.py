"""What DeepSpeed itself does, for tests/cli/test_deepspeed.py.

usage: python deepspeed_checks.py signatures
       python deepspeed_checks.py CHECK ARGUMENT...      Prints one JSON object; an exception fails the check.

`signatures` reads the sources of the installed package, so that it needs neither PyTorch nor a compiler.
"""
import ast
import importlib.util
import json
import os
import pathlib
import re
import sys

os.environ.update(CUDA_VISIBLE_DEVICES='', TORCH_COMPILE_DISABLE='1')  # before any import of PyTorch
OPTIMIZERS = {'Adam': 'ops/adam/fused_adam.py', 'Lion': 'ops/lion/fused_lion.py', 'Lamb': 'ops/lamb/fused_lamb.py'}
SCHEDULES = 'WarmupLR', 'WarmupDecayLR', 'WarmupCosineLR'
# section -> the file and the class of its members
MODELS = {
    'zero_optimization': ('runtime/zero/config.py', 'DeepSpeedZeroConfig'),
    'zero_optimization.offload_param': ('runtime/zero/offload_config.py', 'DeepSpeedZeroOffloadParamConfig'),
    'zero_optimization.offload_optimizer': ('runtime/zero/offload_config.py', 'DeepSpeedZeroOffloadOptimizerConfig'),
    'fp16': ('runtime/precision_config.py', 'DeepSpeedFP16Config'),
    'bf16': ('runtime/precision_config.py', 'DeepSpeedBF16Config'),
}


def package():
    return pathlib.Path(importlib.util.find_spec('deepspeed').submodule_search_locations[0])


def class_of(path, name):
    tree = ast.parse((package() / path).read_text())
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)


def constants():
    """Names of strings and numbers in the package's modules."""
    out = {}
    for path in package().rglob('*.py'):
        for name, text in re.findall(r'^([A-Z][A-Z0-9_]*) = (["\'][^"\'\n]*["\']|[0-9.e-]+|True|False|None)\s*(?:#.*)?$',
                                     path.read_text(), re.M):
            out.setdefault(name, ast.literal_eval(text))
    return out


def value(node, names):
    return names.get(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def signature(path, name, names):
    """The arguments of a class with their defaults."""
    init = next(node for node in class_of(path, name).body if isinstance(node, ast.FunctionDef) and node.name == '__init__')
    arguments = init.args.args[-len(init.args.defaults):]
    return {argument.arg: value(node, names) for argument, node in zip(arguments, init.args.defaults, strict=True)}


def muon_defaults():
    """Muon's, of its matrices and of what Adam updates: group.get("lr", 0.02) in both halves of the constructor."""
    node = class_of('runtime/zero/muon/original_muon.py', 'MuonWithAuxAdam')
    halves = next(part for part in ast.walk(node) if isinstance(part, ast.If) and 'use_muon' in ast.unparse(part.test))
    return [{call.args[0].value: ast.literal_eval(call.args[1]) for part in half for call in ast.walk(part)
             if isinstance(call, ast.Call) and getattr(call.func, 'attr', '') == 'get' and len(call.args) == 2}
            for half in (halves.body, halves.orelse)]


def fields(path, name):
    """The options of a section: its fields, by their names and aliases."""
    for node in class_of(path, name).body:
        if isinstance(node, ast.AnnAssign):
            yield node.target.id
            yield from (keyword.value.value for call in ast.walk(node.value) if isinstance(call, ast.Call)
                        for keyword in call.keywords if keyword.arg == 'alias')


def field_defaults(path, name):
    for node in class_of(path, name).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            yield node.target.id, node.value.value


def top_names(names):
    """The options outside all sections that runtime/config.py reads."""
    text = (package() / 'runtime/config.py').read_text()
    for word in re.findall(r'param_dict(?:, |\.get\()([A-Z_]+|["\'][a-z_0-9]+["\'])(?=[,)])(?!, {})', text):
        found = names.get(word) if word[0].isupper() else word.strip('\'"')
        if isinstance(found, str) and found and not found[0].isupper():
            yield found


def signatures():
    names = constants()
    out = {'optimizers': {name: signature(path, f'Fused{name}', names) for name, path in OPTIMIZERS.items()},
           'fp16': {} if not (package() / MODELS['fp16'][0]).exists() else dict(field_defaults(*MODELS['fp16'])),
           'schedules': {name: signature('runtime/lr_schedules.py', name, names) for name in SCHEDULES},
           'names': sorted({*top_names(names), *(f'{section}.{name}' for section, where in MODELS.items()
                                                 if (package() / where[0]).exists() for name in fields(*where))})}
    if (package() / 'runtime/zero/muon').exists():
        out['muon'], out['muon_adam'] = muon_defaults()
    return out


# ---- what needs PyTorch: one rank on the CPU


def start():
    """DeepSpeed in this process. What it compiles when it is asked for, PyTorch's optimizers do not need."""
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1', LOCAL_RANK='0')
    import deepspeed
    import torch
    torch.set_num_threads(1)
    sys.modules['deepspeed.comm.torch'].build_shm_op = lambda: None  # compiled too, for ranks of one machine
    torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed('gloo')
    return deepspeed, torch


def engine_of(model, config):
    deepspeed, _ = start()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config={'steps_per_print': 10**9, **config})[0]


def step(engine, batch):
    from torch.nn.functional import cross_entropy
    inputs, targets = batch
    loss = cross_entropy(engine(input_ids=inputs).logits.flatten(0, 1), targets.flatten())
    engine.backward(loss)
    engine.step()
    return loss.item()


def batches_of(path, batch, length, steps):
    """As golden runs read them: (inputs, targets) of each step."""
    import numpy
    import torch
    tokens = torch.from_numpy(numpy.fromfile(path, numpy.uint16)[512:].astype(numpy.int64))
    for first in range(0, steps * batch * length, batch * length):
        yield tuple(tokens[first + shift:first + shift + batch * length].view(batch, length) for shift in (0, 1))


def train(model, tokens, batch, length, steps, config):
    """Trains with a DeepSpeed file. Prints losses, rates, and the length of each parameter's way from where it began."""
    import torch
    import transformers
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    engine = engine_of(network, json.loads(pathlib.Path(config).read_text()))
    losses, rates = [], []
    for pair in batches_of(tokens, int(batch), int(length), int(steps)):
        rates.append(engine.get_lr()[0])
        losses.append(step(engine, pair))
    return {'losses': losses, 'rates': rates,
            'ways': {name: (value.detach() - before[name]).norm().item() for name, value in network.named_parameters()}}


def save(model, out, stage):
    """Saves a checkpoint of a stage after a step. Prints the elements of all parameters, by name."""
    import deepspeed
    import torch
    import transformers
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    engine = engine_of(network, {'train_batch_size': 1, 'optimizer': {'type': 'Adam', 'params': {'lr': 1e-3, 'torch_adam': True}},
                                 'zero_optimization': {'stage': int(stage)}})
    tokens = torch.arange(9)[None]
    step(engine, (tokens[:, :-1], tokens[:, 1:]))
    engine.save_checkpoint(out)
    with deepspeed.zero.GatheredParameters([value for value in network.parameters() if hasattr(value, 'ds_id')]):
        return {name: value.flatten().tolist() for name, value in network.named_parameters()}


if __name__ == '__main__':
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
