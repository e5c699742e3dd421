"""The report of scripts/bench_zero.py: the table (Markdown) and the figure (SVG)."""
import math
import textwrap
from xml.sax.saxutils import escape

STATES = 'params', 'grads', 'master', 'moments'  # the model states, which ZeRO shards
# Bars from the bottom up: label, kinds of metrics.jsonl, colour (Okabe and Ito's palette, safe for colour-blind readers).
KINDS = [
    ('params', ['params'], '#0072b2'),
    ('grads', ['grads'], '#56b4e9'),
    ('master weights', ['master'], '#009e73'),
    ('moments', ['moments'], '#e69f00'),
    ('communication', ['communication'], '#d55e00'),
    ('activations', ['activations'], '#cc79a7'),
    ('other (logits, scratch, data)', ['logits', 'workspace', 'data'], '#b3b3b3'),
]
MIB = 2**20
WIDTH = 100  # columns of a table


def of_kinds(memory, kinds):
    return sum(memory[kind] for kind in kinds)


def plural(n, noun, nouns=None):
    return f'{n} {noun if n == 1 else nouns or noun + "s"}'


def lowest_stage(results):
    return min(cell['stage'] for cell in results['cells'])


def model_line(results):
    train, optimizer = results['config']['train'], results['config']['optimizer']['type']
    parameters = results['parameters']
    size = f'{parameters / 1e6:,.1f}M' if parameters >= 1e5 else f'{parameters:,}'
    return (f'{size} parameters, {results["compute"]}, {optimizer}; each step '
            f'{plural(train["train_batch_size"], "sequence")} of {train["seq_len"]} tokens')


def method_line(results):
    line = (f'Median of {plural(results["steps"], "step")} in each of {plural(results["rounds"], "round")}, after '
            f'{plural(results["warmup"], "step")} of warm-up')
    if results['processor']:
        line += f'; {results["processor"]}, {plural(results["cores"], "core")}'
    return line


# ---- the table

def rows_to_markdown(titles, rows, keys=2):
    """Columns beyond WIDTH follow in further tables, each after the first `keys` columns; `planned` stays beside the
    column that it is of."""
    cells = [titles, ['---:'] * len(titles), *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    cells[1] = ['-' * (width - 1) + ':' for width in widths]
    tables = [list(range(keys))]
    for i in range(keys, len(titles)):
        glued = [i, i + 1] if titles[i + 1:i + 2] == ['planned'] else [i]
        if titles[i] != 'planned' and sum(widths[k] + 3 for k in tables[-1] + glued) >= WIDTH:
            tables.append(list(range(keys)))
        tables[-1].append(i)
    return '\n'.join(''.join('| ' + ' | '.join(f'{row[i]:>{widths[i]}}' for i in table) + ' |\n' for row in cells)
                     for table in tables)


def folded(text):
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def mib(n):
    return f'{n / MIB:,.1f}'


def yes(value):
    return 'yes' if value else 'NO'


def speed_table(results):
    titles = ['ranks', 'stage', 'threads', 'others', 'tokens/s', f'of stage {lowest_stage(results)}', 'sent per step, MiB', 'planned',
              'calls', 'planned', 'comm, ms', 'hidden', 'same bits', 'as planned']
    rows = [[str(c['ranks']), str(c['stage']), str(c['threads']),
             '-' if c['others'] is None else f'{c["others"]:.0%}', f'{c["tokens_per_s"]:,.0f}',
             f'{c["of_lowest_stage"]:.2f}', f'{c["comm_bytes"] / MIB:,.2f}', f'{c["comm_planned_bytes"] / MIB:,.2f}',
             str(c['comm_calls']), str(c['comm_planned_calls']), f'{c["comm_ms"]:.1f}',
             f'{100 * c["comm_hidden"]:.0f} %' if c['comm_calls'] else '-', yes(c['same_bits']), yes(c['as_planned'])]
            for c in results['cells']]
    return rows_to_markdown(titles, rows)


def memory_table(results):
    titles = ['ranks', 'stage', *STATES, 'model states', 'planned', "ZeRO's formula", 'communication', 'activations',
              'other', 'model memory', 'planned', 'total']
    rows = [[str(c['ranks']), str(c['stage']), *(mib(c['memory'][kind]) for kind in STATES), mib(c['states_bytes']),
             mib(c['states_planned_bytes']), mib(c['states_formula_bytes']),
             *(mib(of_kinds(c['memory'], kinds)) for _, kinds, _ in KINDS[len(STATES):]), mib(c['model_bytes']),
             mib(c['model_planned_bytes']), mib(c['peak_bytes'])] for c in results['cells']]
    return rows_to_markdown(titles, rows)


def table(results):
    notes = ''.join(f'\n{folded(note)}\n' for note in results['notes'])
    return (f'# The ZeRO stages side by side\n\n`{results["command"]}`, zero.c {results["program"]}\n\n'
            f'{folded(f"{model_line(results)}. {method_line(results)}.")}\n{notes}\n'
            f'## Speed and traffic\n\n{speed_table(results)}\n'
            '- Threads: of each rank, as they were.\n'
            '- Others: the most of the processor time that other processes, or the host, took during a run.\n'
            '- Sent, calls, comm: of rank 0, per step.\n'
            '- Hidden: the fraction of comm that overlapped with computation.\n'
            '- Same bits: losses, gradient norms and final states equal those of the lowest stage, in every\n'
            '  round.\n'
            '- As planned: memory by kind, bytes and calls equal the plan, in every step.\n\n'
            f'## Memory of rank 0, MiB\n\n{memory_table(results)}\n'
            "- Planned: computed before the run starts, padding included.\n"
            "- ZeRO's formula (arXiv 1910.02054, section 5): per parameter, the compute dtype, 4 bytes of\n"
            '  gradient and the optimizer states. Stage 1 divides the last among the ranks, stage 2 also\n'
            '  gradients, stage 3 everything.\n'
            '- Total: resident memory of the whole process at its peak, the largest of all ranks: model memory\n'
            '  and the program.\n')


# ---- the figure

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, FAINT, GRID, SPEED = '#222222', '#666666', '#dddddd', '#7f8fa6'
BAR, BAR_GAP, GROUP_GAP = 30, 6, 26
TOP, HEIGHT, BOTTOM = 124, 300, 74  # space above a panel, its height, space below


class Drawing:
    """Collects SVG elements in drawing order."""

    def __init__(self):
        self.parts = []

    def rect(self, x, y, width, height, fill, **more):
        self.element('rect', x=x, y=y, width=width, height=height, fill=fill, **more)

    def line(self, x1, y1, x2, y2, stroke=INK, width=1.0, **more):
        self.element('line', x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width, **more)

    def text(self, x, y, text, size=12, anchor='start', fill=INK, **more):
        self.element('text', escape(text), x=x, y=y, font_size=size, text_anchor=anchor, fill=fill, **more)

    def label(self, x, y, text):
        """Small text with a white outline, legible over grid lines."""
        self.text(x, y, text, size=10, anchor='middle', fill='#ffffff', stroke='#ffffff', stroke_width=3)
        self.text(x, y, text, size=10, anchor='middle')

    def element(self, name, content='', **attributes):
        written = ''.join(f' {key.replace("_", "-")}="{self.value(value)}"' for key, value in attributes.items())
        self.parts.append(f'  <{name}{written}>{content}</{name}>' if content else f'  <{name}{written}/>')

    @staticmethod
    def value(value):
        return f'{value:.2f}'.rstrip('0').rstrip('.') if isinstance(value, float) else escape(str(value), {'"': '&quot;'})


def round_ticks(top):
    """Round values from 0 up to `top`, four to seven of them."""
    rough = top / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [k * step for k in range(math.floor(top / step) + 1)]


def number(value):
    """At most three significant digits, but all digits of integers."""
    return f'{value:,.0f}' if value >= 100 or value == int(value) else f'{value:.3g}'


def group_cells(results):
    groups = {}
    for cell in results['cells']:
        groups.setdefault(cell['ranks'], []).append(cell)
    return groups


def bars_width(groups):
    bars = sum(len(cells) for cells in groups.values())
    return bars * BAR + (bars - len(groups)) * BAR_GAP + len(groups) * GROUP_GAP


def panel(drawing, left, width, groups, title, unit, largest):
    """Axes, grid and labels; returns (x of each cell's bar, y of a value)."""
    base, top = TOP + HEIGHT, 1.08 * largest  # room for the label above a bar

    def y(value):
        return base - HEIGHT * value / top

    drawing.text(left, TOP - 10, title, size=14, font_weight='bold')
    for tick in round_ticks(top):
        drawing.line(left, y(tick), left + width, y(tick), stroke=INK if tick == 0 else GRID)
        drawing.text(left - 8, y(tick) + 4, number(tick), anchor='end')
    middle = TOP + HEIGHT / 2
    drawing.text(left - 56, middle, unit, size=13, anchor='middle', transform=f'rotate(-90 {left - 56} {middle})')
    places, x = {}, left + (width - bars_width(groups)) / 2 + GROUP_GAP / 2
    for ranks, cells in groups.items():
        begin = x
        for cell in cells:
            places[ranks, cell['stage']] = x
            drawing.text(x + BAR / 2, base + 17, str(cell['stage']), anchor='middle')
            x += BAR + BAR_GAP
        end = x - BAR_GAP
        drawing.line(begin, base + 25, end, base + 25, stroke=FAINT)
        drawing.text((begin + end) / 2, base + 41, plural(ranks, 'rank'), size=13, anchor='middle')
        x = end + GROUP_GAP
    drawing.text(left + width / 2, base + 64, 'ZeRO stage, by number of ranks', size=13, anchor='middle')
    return places, y


def memory_panel(drawing, left, width, groups):
    largest = max(max(c['model_bytes'], c['model_planned_bytes'], c['states_formula_bytes'])
                  for cells in groups.values() for c in cells)
    unit, name = (2**30, 'GiB') if largest >= 4 * 2**30 else (MIB, 'MiB')
    places, y = panel(drawing, left, width, groups, 'Memory per rank', f'{name} per rank', largest / unit)
    for ranks, cells in groups.items():
        for cell in cells:
            x, below = places[ranks, cell['stage']], 0
            for _, kinds, colour in KINDS:
                value = of_kinds(cell['memory'], kinds) / unit
                if value > 0:
                    drawing.rect(x, y(below + value), BAR, y(below) - y(below + value), colour, stroke='#ffffff',
                                 stroke_width=0.5)
                below += value
            drawing.label(x + BAR / 2, y(below) - 6, number(below))
            planned, formula = cell['model_planned_bytes'] / unit, cell['states_formula_bytes'] / unit
            drawing.line(x - 3, y(planned), x + BAR + 3, y(planned), width=1.5)
            drawing.line(x - 3, y(formula), x + BAR + 3, y(formula), width=1.5, stroke_dasharray='4 2')


def speed_panel(drawing, left, width, groups, results):
    largest = max(c['tokens_per_s_quartiles'][1] for cells in groups.values() for c in cells)
    places, y = panel(drawing, left, width, groups, 'Throughput', 'tokens/s', largest)
    for ranks, cells in groups.items():
        crowded = ranks in results['crowded_ranks']
        for cell in cells:
            x, speed = places[ranks, cell['stage']], cell['tokens_per_s']
            low, high = (y(value) for value in cell['tokens_per_s_quartiles'])
            drawing.rect(x, y(speed), BAR, y(0) - y(speed), '#ffffff' if crowded else SPEED, stroke=SPEED)
            middle = x + BAR / 2
            for x1, y1, x2, y2 in ((middle, low, middle, high), (middle - 4, low, middle + 4, low),
                                   (middle - 4, high, middle + 4, high)):
                drawing.line(x1, y1, x2, y2, width=1.2)
            drawing.label(middle, high - 6, f'{cell["of_lowest_stage"]:.2f}')


def box(colour, stroke):
    return lambda drawing, x, y: drawing.rect(x, y - 7, 16, 14, colour, stroke=stroke)


def dash(**pattern):
    return lambda drawing, x, y: drawing.line(x - 1, y, x + 17, y, width=1.5, **pattern)


def whisker(drawing, x, y):
    for x1, y1, x2, y2 in ((x + 8, y - 7, x + 8, y + 7), (x + 4, y - 7, x + 12, y - 7), (x + 4, y + 7, x + 12, y + 7)):
        drawing.line(x1, y1, x2, y2, width=1.2)


def legend(drawing, left, y, entries, columns=1):
    """Entries of (label, function that draws its symbol), row by row."""
    for k, (label, sign) in enumerate(entries):
        at_x, at_y = left + k % columns * 128, y + k // columns * 22
        sign(drawing, at_x, at_y)
        drawing.text(at_x + 24, at_y + 4, label)


def figure(results):
    groups = group_cells(results)
    width = max(380, bars_width(groups))
    left, right = 84, 84 + width + 110
    drawing = Drawing()
    drawing.text(24, 32, 'Memory and throughput of the ZeRO stages', size=18, font_weight='bold')
    drawing.text(24, 54, model_line(results), size=13, fill=FAINT)
    drawing.text(24, 73, method_line(results), size=13, fill=FAINT)
    memory_panel(drawing, left, width, groups)
    speed_panel(drawing, right, width, groups, results)

    below = TOP + HEIGHT + BOTTOM + 18
    legend(drawing, left, below, [(label, box(colour, '#ffffff')) for label, _, colour in KINDS], columns=3)
    legend(drawing, left, below + 66, [('planned total (the whole bar)', dash()),
                                       ("model states by ZeRO's formula (up to moments)",
                                        dash(stroke_dasharray='4 2'))])
    signs = [(f'sum over all ranks (median), and its ratio to stage {lowest_stage(results)}', box(SPEED, SPEED)),
             ('the middle half of the steps', whisker)]
    if results['crowded_ranks']:
        signs.append((f'more ranks than the {plural(results["cores"], "core")}: does not show scaling',
                      box('#ffffff', SPEED)))
    legend(drawing, right, below, signs)
    whole, height = right + width + 30, below + 106
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{height}" viewBox="0 0 {whole} {height}" '
            f'font-family="{FONT}">\n'
            f'  <title>Memory and throughput of the ZeRO stages</title>\n'
            f'  <rect width="{whole}" height="{height}" fill="#ffffff"/>\n' + '\n'.join(drawing.parts) + '\n</svg>\n')
