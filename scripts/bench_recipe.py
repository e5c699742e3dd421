"""Measures the gain of each choice of a recipe in equal time: trains the recipe, and the recipe with one change at a time,
with several seeds, and writes the held-out bits per byte of all to FOLDER/recipe.md and .json.

Equal time without an idle machine: the recipes first take turns of some steps, for several rounds, which says how long
a step of each takes in relation to the others. Then each trains for a number of steps: --steps of the recipe itself,
and of each change as many as take the same time. A run's result depends on its steps alone, so other work on the
machine only makes it later, and --jobs runs with one thread each go on side by side.

Results are kept in FOLDER: the same command goes on where it was interrupted, and trains only what is new.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TURN_WARM_UP = 2  # steps
BASE = '(the recipe)'
# Options that do not change the time of a step.
RATES = ('optimizer.lr=', 'optimizer.adamw_lr=', 'optimizer.betas=', 'optimizer.weight_decay=', 'scheduler.', 'model.rope_theta=')


def fail(message, code=2):
    print(f'bench_recipe: {message}', file=sys.stderr)
    sys.exit(code)


def without_rates(overrides):
    return [override for override in overrides if not override.startswith(RATES)]


def parse_arguments():
    parser = argparse.ArgumentParser(description='What each choice of a recipe gains in equal time.')
    parser.add_argument('--config', type=pathlib.Path, default=ROOT / 'configs/quickstart.json', help='the recipe (configs/quickstart.json)')
    parser.add_argument('--changes', type=pathlib.Path, default=ROOT / 'benchmarks/recipe.json', metavar='FILE',
                        help='an object of names, each with a list of overrides of the config (benchmarks/recipe.json); those of '
                             f'"{BASE}" hold for all')
    parser.add_argument('--data', required=True, metavar='GLOB', help='training shards, with validation shards beside them')
    parser.add_argument('--steps', type=int, required=True, metavar='N', help='steps of the recipe itself')
    parser.add_argument('--seeds', type=int, default=3, metavar='N', help='runs of each recipe (3)')
    parser.add_argument('--rounds', type=int, default=5, metavar='N', help='turns of each recipe, to measure its speed (5)')
    parser.add_argument('--turn', type=int, default=12, metavar='N', help='steps of a turn, the first two of which do not count (12)')
    parser.add_argument('--speed-only', action='store_true', help='measure the speeds, and train later')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), metavar='N', help='runs side by side (one per core)')
    parser.add_argument('--output', type=pathlib.Path, default=ROOT / 'runs/recipe', metavar='FOLDER', help='(runs/recipe)')
    parser.add_argument('--train', type=pathlib.Path, default=ROOT / 'train', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.train = arguments.train.resolve()
    if min(arguments.steps, arguments.seeds, arguments.rounds, arguments.jobs) < 1 or arguments.turn <= TURN_WARM_UP:
        parser.error('expected at least one step, seed, round and job, and turns of 3 steps or more')
    return arguments


class Recipe:
    def __init__(self, arguments, name, overrides):
        self.arguments, self.name, self.overrides = arguments, name, overrides
        self.command = [arguments.train, arguments.config, f'data.train={arguments.data}', *overrides, 'train.eval_every=0',
                        'train.sample_every=0', 'checkpoint.every=0', 'run.log_every=1000000']

    def run(self, *further):
        """The lines of the metrics of a run."""
        with tempfile.TemporaryDirectory(dir=self.arguments.output) as folder:
            command = list(map(str, [*self.command, *further, f'run.dir={folder}/run']))
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                fail(f'{" ".join(command)}: {done.stderr.strip()[-500:]}', 1)
            return list(map(json.loads, pathlib.Path(folder, 'run/metrics.jsonl').read_text().splitlines()))

    def turn(self):
        """Milliseconds of the fastest step, on all cores. The minimum is used because other work can only slow a step down."""
        lines = self.run('train.max_minutes=0', f'train.max_steps={self.arguments.turn}', 'scheduler.warmup_steps=0', 'train.eval_steps=1')
        return min([line['step_ms'] for line in lines if 'step_ms' in line][TURN_WARM_UP:])

    def train(self, steps, seed):
        """Held-out bits per byte at the end."""
        lines = self.run('train.max_minutes=0', f'train.max_steps={steps}', f'train.seed={seed}', 'run.threads=1')
        finals = [line['val_bits_per_byte'] for line in lines if line.get('final') and 'val_bits_per_byte' in line]
        if not finals:
            fail(f'{self.name}: the run ended without validation in bits per byte', 1)
        return finals[-1]

    def key(self, overrides, **more):
        parts = {'config': json.loads(self.arguments.config.read_text()), 'command': overrides, **more}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def speed_key(self):
        """A hash of everything that the time of a step depends on."""
        return self.key(without_rates(self.command[2:]), speed=1)

    def result_key(self, seed):
        """A hash of everything that a result depends on."""
        return self.key(self.command[2:], steps=self.steps, seed=seed)


class Kept:
    """Results of earlier calls, by their keys."""

    def __init__(self, path):
        self.path = path
        self.values = json.loads(path.read_text()) if path.exists() else {}

    def add(self, key, value):
        self.values[key] = value
        written = self.path.with_suffix('.tmp')
        written.write_text(json.dumps(self.values, indent=1))
        written.replace(self.path)


def measure_speed(arguments, recipes, kept):
    """Sets each recipe's `time` per step, in units of the first recipe's. Recipes that differ only in rates share it."""
    firsts = {}
    for recipe in recipes:
        firsts.setdefault(recipe.speed_key(), recipe)
    new = [recipe for key, recipe in firsts.items() if key not in kept.values]
    if new:
        turns = {recipe: [] for recipe in [recipes[0], *(recipe for recipe in new if recipe is not recipes[0])]}
        for k in range(arguments.rounds):
            # Every other round runs in reverse order, so that a steady slowdown favours no recipe.
            for recipe in list(turns)[::-1 if k % 2 else 1]:
                turns[recipe].append(recipe.turn())
        for recipe in new:
            ratio = min(turns[recipe]) / min(turns[recipes[0]])
            kept.add(recipe.speed_key(), ratio)
            print(f'{recipe.name}: {min(turns[recipe]):.0f} ms a step, {ratio:.3f} of the recipe', flush=True)
    for recipe in recipes:
        recipe.time = kept.values[recipe.speed_key()]
        recipe.steps = max(1, round(arguments.steps / recipe.time))


def train_all(arguments, recipes, kept):
    def train(recipe, seed):
        key = recipe.result_key(seed)
        return key, kept.values[key] if key in kept.values else recipe.train(recipe.steps, seed)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # All recipes with the first seed, then with the second, so that an interrupted comparison is usable.
        runs = {pool.submit(train, recipe, seed): (recipe, seed) for seed in range(1, arguments.seeds + 1) for recipe in recipes}
        for run in concurrent.futures.as_completed(runs):
            recipe, seed = runs[run]
            try:
                key, value = run.result()
            except SystemExit:
                pool.shutdown(cancel_futures=True)
                raise
            if key not in kept.values:
                kept.add(key, value)
                print(f'{recipe.name}: {recipe.steps} steps, seed {seed}: {value:.4f}', flush=True)
            recipe.results.append(value)
            report(arguments, recipes)


def report(arguments, recipes):
    base = statistics.mean(recipes[0].results) if recipes[0].results else None
    lines = ['| change | time of a step | steps | bits per byte: mean (lowest to highest) | against the recipe |', '|---|---:|---:|---:|---:|']
    rows = []
    for recipe in filter(lambda recipe: recipe.results, recipes):
        mean = statistics.mean(recipe.results)
        against = '' if recipe is recipes[0] or base is None else f'{mean - base:+.4f}'
        lines.append(f'| {recipe.name} | {recipe.time:.2f} | {recipe.steps} | {mean:.4f} ({min(recipe.results):.4f} to '
                     f'{max(recipe.results):.4f}) | {against} |')
        rows.append({'name': recipe.name, 'overrides': recipe.overrides, 'time': recipe.time, 'steps': recipe.steps,
                     'bits_per_byte': sorted(recipe.results)})
    (arguments.output / 'recipe.json').write_text(json.dumps(rows, indent=1) + '\n')
    (arguments.output / 'recipe.md').write_text('\n'.join(lines) + '\n')


def main():
    arguments = parse_arguments()
    changes = json.loads(arguments.changes.read_text())
    arguments.output.mkdir(parents=True, exist_ok=True)
    kept = Kept(arguments.output / 'kept.json')
    base = changes.pop(BASE, [])
    recipes = [Recipe(arguments, name, [*base, *overrides]) for name, overrides in {BASE: [], **changes}.items()]
    for recipe in recipes:
        recipe.results = []
    measure_speed(arguments, recipes, kept)
    if arguments.speed_only:
        return
    train_all(arguments, recipes, kept)
    print((arguments.output / 'recipe.md').read_text(), end='')


if __name__ == '__main__':
    main()
