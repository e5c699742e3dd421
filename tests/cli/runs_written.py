"""Run folders with chosen metrics, for tests of the commands that look at runs."""
import json
import math
import pathlib

KINDS = {'params': 4096, 'grads': 8192, 'master': 0, 'moments': 16384, 'communication': 0, 'activations': 1000,
         'logits': 500, 'workspace': 64, 'data': 32}
BEGAN = 1.7e9
# Of a session. Earlier versions wrote them into each line of metrics.jsonl.
CONSTANTS = {'mfu_of': 'measured GEMM rate', 'threads': 3, 'total_planned_bytes': 60000, 'program_planned_bytes': 19000,
             'model_planned_bytes': 41000, 'model_bytes': 41000, 'device_planned_bytes': 0, 'device_bytes': 0,
             'model_memory_planned': KINDS, 'model_memory': dict(KINDS, data=33)}


def step_line(step, loss, **figures):
    """A line of metrics.jsonl as the trainer writes it, at 0.5 s per step."""
    line = {'step': step, 'wall_time': BEGAN + 0.5 * step, 'loss': loss, 'grad_norm': 1 + 1 / step, 'lr': 1e-3, 'batch_size': 8, 'loss_scale': 1,
            'skipped_steps': 0, 'tokens': 512 * step, 'tokens_per_s': 1024.0, 'step_ms': 400, 'mfu': 0.25,
            'of_gemm': 0.25, 'total_bytes': 61000, 'program_bytes': 20000,
            'comm_bytes': 640, 'comm_planned_bytes': 640, 'comm_calls': 4, 'comm_planned_calls': 4, 'comm_ms': 100,
            'comm_hidden': 0.75}
    return json.dumps(line | figures)


def eval_line(step, loss, final):
    return json.dumps({'step': step, 'val_loss': round(loss, 6), 'val_bits_per_byte': 1.5 - final, 'val_sequences': 5 if final else 2,
                       'val_all_sequences': 5, 'final': final}) + '\n'


def smooth_loss(step):
    return 2 + 6 * math.exp(-step / 500)


def write_run(folder, steps, losses=smooth_loss, every=1000, config=None, end='finished', fields=None):
    """A run of `steps` steps in total. losses: a function of the step. fields: of each line; default: all."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    with open(folder / 'metrics.jsonl', 'w', encoding='utf-8') as file:
        template = step_line(1, 0) if fields is None else None
        for step in range(1, steps + 1):
            loss = losses(step)
            text = json.dumps(None if loss is None else round(loss, 6))
            if template is None:
                file.write(fields(step, text))
            else:
                file.write(step_line(step, loss) if step < 100 else template.replace('"step": 1,', f'"step": {step},').replace(
                    f'"wall_time": {BEGAN + 0.5}', f'"wall_time": {BEGAN + 0.5 * step}').replace('"loss": 0,', f'"loss": {text},')
                    .replace('"tokens": 512,', f'"tokens": {512 * step},'))
                file.write('\n')
            if every and step % every == 0:
                file.write(eval_line(step, (loss or 0) + 0.25, False))
        if every:
            file.write(eval_line(steps, 7.5, True))
    (folder / 'config.json').write_text(json.dumps({'train': {'max_steps': steps}, 'optimizer': {'lr': 1e-3}} | (config or {})))
    lines = [{'event': 'begin', 'wall_time': BEGAN, 'step': 0, 'version': '9.9.9', 'machine': 'some-host', 'device': 'CPU, tests',
              'compute': 'bf16', 'ranks': 2, 'threads': 3, 'parameters': 1e6, 'gemm_flops_per_s': 1e11, 'dense_peak_flops_per_s': 0}]
    if steps:
        lines.append({'event': 'constants', 'step': 1} | CONSTANTS)
    if end:
        lines.append({'event': 'end', 'wall_time': BEGAN + 0.5 * steps + 1, 'step': steps, 'total': steps, 'state': end,
                      'message': 'no space left' if end == 'failed' else ''})
    (folder / 'sessions.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return folder
