#!/usr/bin/env python3
"""Draws the losses of a run as SVG, from its metrics.jsonl: every step (light), their running mean, and evaluations.

usage: scripts/plot_run.py RUN [--title TEXT] > loss.svg
"""
import argparse
import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 56, 16, 40, 44
MAX_POINTS = 1200  # per line; longer runs are averaged over groups of steps


def read(run):
    """(steps done, loss) of training and of evaluations, in order. Versions before 0.3, whose lines have no wall_time,
    counted training steps from 0. Steps that are repeated count once, the last."""
    train, val = {}, {}
    with open(pathlib.Path(run) / 'metrics.jsonl', encoding='utf-8') as file:
        for line in file:
            entry = json.loads(line)
            for key, losses in ('loss', train), ('val_loss', val):
                if isinstance(entry.get(key), (int, float)):
                    losses[entry['step'] + (key == 'loss' and 'wall_time' not in entry)] = entry[key]
    return sorted(train.items()), sorted(val.items())


def thinned(points):
    size = max(1, math.ceil(len(points) / MAX_POINTS))
    groups = [points[i:i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(loss for _, loss in group) / len(group)) for group in groups]


def smoothed(points):
    """A running mean over a hundredth of the steps."""
    size = max(1, len(points) // 100)
    sums = [0.0]
    for _, loss in points:
        sums.append(sums[-1] + loss)
    return [(step, (sums[i + 1] - sums[max(0, i + 1 - size)]) / min(size, i + 1)) for i, (step, _) in enumerate(points)]


def ticks(low, high, wanted):
    """About `wanted` round numbers from low to high."""
    raw = max(high - low, 1e-9) / wanted
    power = 10 ** math.floor(math.log10(raw))
    size = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(s - raw))
    return [i * size for i in range(math.ceil(low / size), math.floor(high / size + 1e-9) + 1)]


def draw(train, val, title):
    losses = [loss for _, loss in train + val]
    last, low, high = max(step for step, _ in train), min(losses), max(losses)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low) or high + 1

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / max(last, 1)

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    def line(points, color, width):
        path = ' '.join(f'{x(step):.1f},{y(loss):.1f}' for step, loss in points)
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}" stroke-linejoin="round"/>'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="12" fill="#444">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="24" font-size="14" fill="#111">{html.escape(title)}</text>']
    for loss in ticks(low, high, 5):
        out += [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#e4e4e4"/>',
                f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>']
    for step in ticks(0, last, 6):
        out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step:,.0f}</text>')
    out += [line(thinned(train), '#c9d9f0', 1), line(thinned(smoothed(train)), '#1f5fae', 2)]
    out += [f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3.5" fill="#d9541e"/>' for step, loss in val]
    legend, key = WIDTH - RIGHT - 250, TOP + 20
    out += [f'<line x1="{legend}" x2="{legend + 20}" y1="{key - 4}" y2="{key - 4}" stroke="#1f5fae" stroke-width="2"/>',
            f'<text x="{legend + 26}" y="{key}">training loss</text>',
            f'<circle cx="{legend + 130}" cy="{key - 4}" r="3.5" fill="#d9541e"/>',
            f'<text x="{legend + 140}" y="{key}">validation loss</text>',
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>'
            f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">'
            'loss, nats per token</text>', '</svg>']
    return '\n'.join(out) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('run')
    parser.add_argument('--title', default='')
    arguments = parser.parse_args()
    try:
        train, val = read(arguments.run)
    except (OSError, ValueError) as error:
        sys.exit(f'plot_run.py: {arguments.run}: {error}')
    if not train:
        sys.exit(f'plot_run.py: {arguments.run}/metrics.jsonl has no steps')
    sys.stdout.write(draw(train, val, arguments.title or arguments.run))


if __name__ == '__main__':
    main()
