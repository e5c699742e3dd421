#!/usr/bin/env python3
"""Draws the pictures of docs/zero-explained.md from plans and runs. Prints an SVG.

usage: scripts/draw_zero.py memory PLAN.json             the memory of stages 0 to 3
       scripts/draw_zero.py owners MANIFEST.json ...     who owns what, by the manifest of one checkpoint per partition
       scripts/draw_zero.py events TRACE.json TRACE.json >docs/zero-step.json
                                                         the events of a step of rank 0 in stages 2 and 3, as measured
       scripts/draw_zero.py step docs/zero-step.json     that step

The committed pictures come from these commands; tests/cli/test_docs.py draws them again and compares them.

  ./train plan configs/gpt3-6.7b.json --ranks 8 --device-memory 80G attention=flash recompute=block \\
      train.micro_batch_size=1 train.train_batch_size=8 --json >plan.json
  mpirun -n 4 ./train configs/bench-zero.json run.dir=PARTITION zero_optimization.partition=PARTITION train.max_steps=1 \\
      model.n_layer=6 model.n_embd=128 model.n_head=4 model.n_positions=64 model.vocab_size=512 precision.compute=fp32
  mpirun -n 2 --bind-to none ./train configs/bench-zero.json run.dir=STAGE zero_optimization.stage=STAGE \\
      train.train_batch_size=2 train.max_steps=20 precision.compute=fp32 run.threads=1 run.profile=true
"""
import json
import re
import statistics
import sys
from xml.sax.saxutils import escape

WIDTH, MARGIN, ROW = 860, 16, 26
COLORS = ['#2f6fb7', '#b35900', '#2d7d46', '#7a4fb0', '#b3364c', '#5b6770', '#99a1a9']
STYLE = '''<style>
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .page { fill: #ffffff } .title { font-weight: 600; font-size: 15px } .quiet { fill: #59636e }
  .inside { fill: #ffffff; font-size: 12px }
  .line { stroke: #59636e; stroke-dasharray: 4 3 } .track { fill: #eff2f5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .page { fill: #0d1117 } .quiet { fill: #9198a1 } .inside { fill: #ffffff }
    .line { stroke: #9198a1 } .track { fill: #212830 }
  }
</style>'''


class Drawing:
    def __init__(self, title):
        self.parts, self.y = [], MARGIN + 14
        self.text(MARGIN, self.y, title, 'title')

    def text(self, x, y, words, kind='', anchor='start'):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x, y, width, height, color, words='', hint=''):
        """A rectangle, with a label if it fits, and a tooltip. Returns whether the label fits."""
        title = f'<title>{escape(hint)}</title>' if hint else ''
        kind = color if color.startswith('class=') else f'fill="{color}"'
        size = f'width="{max(width - 0.5, 0.5):.1f}" height="{height}"'
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} {kind}>{title}</rect>')
        fits = width > 7 * len(words) + 4
        if words and fits:
            self.text(x + width / 2, y + height / 2 + 4, words, 'inside', 'middle')
        return fits

    def legend(self, entries):
        x = MARGIN
        self.y += 14
        for color, words in entries:
            self.box(x, self.y, 12, 12, color)
            self.text(x + 17, self.y + 11, words)
            x += 36 + 7.4 * len(words)
        self.y += 28

    def svg(self):
        height = self.y + MARGIN
        body = '\n'.join(self.parts)
        size = f'width="{WIDTH}" height="{height:.0f}"'
        return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height:.0f}">\n'
                f'{STYLE}\n<rect class="page" {size} rx="6"/>\n{body}\n</svg>')


# ---- memory of stages 0 to 3

KINDS = [('params', ['params']), ('grads', ['grads']), ('master', ['master']), ('moments', ['moments']),
         ('communication', ['communication']), ('activations', ['activations']),
         ('the rest', ['logits', 'workspace', 'data', 'average'])]
STATES = [name for name, _ in KINDS[:4]]
GIB = 2**30


def draw_memory(plan):
    case = plan['plans'][0]
    model = plan['config'].split('/')[-1].removesuffix('.json')
    drawing = Drawing(f'Memory per GPU as planned: {model}, {plan["parameters"] / 1e9:.2f}B parameters in {plan["compute"]}, '
                      f'AdamW, {case["ranks"]} GPUs')
    drawing.legend([(color, name) for color, (name, _) in zip(COLORS, KINDS)])
    left, right = MARGIN + 62, 96
    scale = (WIDTH - left - right) / max(stage['total'] for stage in case['stages'])
    card = 80 * GIB
    top = drawing.y
    for stage in case['stages']:
        x, narrow = left, []
        drawing.text(MARGIN, drawing.y + 17, f'stage {stage["stage"]}')
        for color, (name, kinds) in zip(COLORS, KINDS):
            n = sum(stage['bytes'][kind] for kind in kinds)
            label = f'{n / GIB:.1f}'
            fits = drawing.box(x, drawing.y, n * scale, ROW, color, label, f'{name}: {n / GIB:.2f} GiB')
            narrow += [] if fits or name not in STATES else [f'{name} {label}']
            x += n * scale
        drawing.text(x + 8, drawing.y + 17, f'{stage["total"] / GIB:.1f} GiB' + (f' ({", ".join(narrow)})' if narrow else ''))
        drawing.y += ROW + 10
    x = left + card * scale
    drawing.parts.append(f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{drawing.y}" class="line"/>')
    drawing.text(x + 6, drawing.y, 'a GPU with 80 GiB', 'quiet')
    return drawing


# ---- who owns what

def whole_items(items, world):
    """Assigns each item, the largest first, to the rank that owns least so far. items: (begin, end) in order. Returns their owners."""
    load, owners = [0] * world, {}
    for i in sorted(range(len(items)), key=lambda i: (items[i][0] - items[i][1], i)):
        rank = load.index(min(load))
        owners[i] = rank
        load[rank] += items[i][1] - items[i][0]
    return [owners[i] for i in range(len(items))]


def owners_of(manifest):
    """(unit, begin, end, rank) of each span, dividing the units like zero/partition/partition.c."""
    sizes, world, kind = manifest['unit_elements'], manifest['world'], manifest['partition']
    if kind == 'even':
        step = manifest['alignment']
        return [(unit, size // step * rank // world * step, size // step * (rank + 1) // world * step, rank)
                for unit, size in enumerate(sizes) for rank in range(world)]
    units = list(range(len(sizes)))
    if kind == 'layer':
        pieces = [(unit, 0, sizes[unit]) for unit in units]
    else:
        begins = {unit: [t['offset'] for t in manifest['tensors'] if t['unit'] == unit] for unit in units}
        pieces = [(unit, begin, end) for unit in units
                  for begin, end in zip([0, *begins[unit][1:]], [*begins[unit][1:], sizes[unit]])]
    return [(*piece, rank) for piece, rank in zip(pieces, whole_items([piece[1:] for piece in pieces], world))]


def draw_owners(manifests):
    world = manifests[0]['world']
    sizes = manifests[0]['unit_elements']
    drawing = Drawing(f'Who owns what: {sum(sizes) / 1e6:.2f}M parameters on {world} ranks')
    drawing.legend([(COLORS[rank], f'rank {rank}') for rank in range(world)])
    gap, left, narrowest = 22, MARGIN + 92, 12
    panel = (WIDTH - left - MARGIN - gap * (len(manifests) - 1)) / len(manifests)
    names = ['embeddings', *(f'block {i}' for i in range(len(sizes) - 2)), 'final norm']
    top = drawing.y + 20
    for i, name in enumerate(names):
        drawing.text(MARGIN, top + i * ROW + 15, name)
    for at, manifest in enumerate(manifests):
        x = left + at * (panel + gap)
        drawing.text(x, drawing.y + 8, manifest['partition'], 'title')
        owned = [0] * world
        for unit, begin, end, rank in owners_of(manifest):
            owned[rank] += end - begin
            scale = max(panel / max(sizes), narrowest / sizes[unit])
            drawing.box(x + begin * scale, top + unit * ROW, (end - begin) * scale, ROW - 6, COLORS[rank],
                        hint=f'{names[unit]}, elements {begin} to {end}: rank {rank}')
        states = len(manifest['state'])
        files = [n_bytes // 4 // states for n_bytes, _ in manifest['ranks']]
        if owned != files:
            sys.exit(f'{manifest["partition"]}: the files of the ranks have {files} elements, not {owned}')
        shares = ', '.join(f'{100 * n / sum(owned):.0f}' for n in owned)
        drawing.text(x, top + len(names) * ROW + 14, f'{shares} %', 'quiet')
    drawing.text(MARGIN, top + len(names) * ROW + 14, 'each owns', 'quiet')
    drawing.y = top + len(names) * ROW + 38
    drawing.text(MARGIN, drawing.y, 'A bar is as long as its unit has elements; the final norm is drawn longer, to be seen. '
                 'Cuts within a color are borders of tensors.', 'quiet')
    return drawing


# ---- a step

PHASES = [('forward', COLORS[0]), ('lm_head and loss', '#0f7b8a'), ('backward', COLORS[2]), ('wait', COLORS[6]),
          ('update', COLORS[1]), ('reduce-scatter', COLORS[4]), ('all-gather', COLORS[3])]
PHASE = dict(PHASES)
COLLECTIVES = {'reduce_scatter': 'reduce-scatter', 'all_gather': 'all-gather'}


def step_events(trace):
    """The events of rank 0 in the step of median length (without the first two steps), in milliseconds from its begin."""
    mine = [event for event in trace['traceEvents'] if event['ph'] == 'X' and event['pid'] == 0]
    steps = sorted((event for event in mine if event['name'] == 'step'), key=lambda event: event['ts'])[2:]
    middle = statistics.median_low([event['dur'] for event in steps])
    step = next(event for event in steps if event['dur'] == middle)
    begin, end = step['ts'], step['ts'] + step['dur']
    within = [event for event in mine if begin <= event['ts'] and event['ts'] + event['dur'] <= end]
    return {'ms': round(middle / 1000, 2),
            'events': [[round((event['ts'] - begin) / 1000, 2), round(event['dur'] / 1000, 2), event['name'], event['cat']]
                       for event in within if kind_of(event['name'])]}


def kind_of(name):
    """What an event of this name is drawn as, or None."""
    kinds = {'wait for communication': 'wait', 'optimizer_spans': 'update', **COLLECTIVES}
    return 'unit' if re.fullmatch(r'block \d+|embeddings|final norm', name) else kinds.get(name)


def draw_step(steps):
    drawing = Drawing('A step of rank 0 of 2, as measured: overlap of communication and computation')
    drawing.legend([(color, name) for name, color in PHASES])
    left = MARGIN + 112
    for stage, step in steps.items():
        scale = (WIDTH - left - MARGIN) / step['ms']
        drawing.text(MARGIN, drawing.y + 8, f'stage {stage}: {step["ms"]:.0f} ms', 'title')
        drawing.y += 18
        rows = {'compute': drawing.y, 'communication': drawing.y + ROW + 4}
        for name, y in rows.items():
            drawing.text(MARGIN, y + 17, name)
            drawing.box(left, y, step['ms'] * scale, ROW, 'class="track"')
        for begin, ms, name, phase in sorted(step['events'], key=lambda event: -event[1]):
            kind, hint = kind_of(name), f'{name}, {ms:.2f} ms'
            row = rows['communication' if name in COLLECTIVES else 'compute']
            is_head = name == 'embeddings' and phase == 'lm_head and loss'
            unit = name.removeprefix('block ') if name.startswith('block ') else 'lm_head' if is_head else ''
            if kind == 'unit':
                drawing.box(left + begin * scale, row, ms * scale, ROW, PHASE[phase], unit, f'{phase} of {hint}')
            else:
                drawing.box(left + begin * scale, row, ms * scale, ROW, PHASE[kind], hint=hint)
        drawing.y += 2 * ROW + 32
    drawing.text(MARGIN, drawing.y, 'Numbers are blocks. The gap before the update is the norm.', 'quiet')
    drawing.y += 20
    drawing.text(MARGIN, drawing.y, 'In backward, a bar ends when its unit is released, shortly after its reduction has started.', 'quiet')
    return drawing


def print_events(traces):
    """A line per event."""
    steps = []
    for stage, trace in zip('23', traces):
        step = step_events(trace)
        lines = ',\n'.join(json.dumps(event) for event in step['events'])
        steps.append(f'"{stage}": {{"ms": {step["ms"]}, "events": [\n{lines}]}}')
    print('{' + ',\n'.join(steps) + '}')


def main():
    draw = {'memory': lambda files: draw_memory(files[0]), 'owners': draw_owners, 'step': lambda files: draw_step(files[0]),
            'events': print_events}
    if len(sys.argv) < 3 or sys.argv[1] not in draw:
        sys.exit(__doc__)
    files = []
    for path in sys.argv[2:]:
        with open(path, encoding='utf-8') as file:
            files.append(json.load(file))
    drawing = draw[sys.argv[1]](files)
    if drawing:
        print(drawing.svg())


if __name__ == '__main__':
    main()
