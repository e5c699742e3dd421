"""train checkpoint verify and consolidate: verify reports all damage in all checkpoints of a run; consolidate
writes what a single rank would have written."""
import hashlib
import json
import re
import resource
import shutil
import signal
import unittest

import harness
from harness import CommandCase, release_only

GOOD = r'step-0*(\d+): step \1, (\d+) ranks?, partition (\w+), .*B in (\d+) files?: ok$'


def stored(manifest, kind, unit, begin, end):
    """How many of elements [begin, end) of a unit have a kind: of moments, those of tensors that have so many."""
    if kind not in ('m', 'v') or 'moments' not in manifest['tensors'][0]:
        return end - begin
    of_unit = [tensor for tensor in manifest['tensors'] if tensor['unit'] == unit]
    ends = [tensor['offset'] for tensor in of_unit[1:]] + [manifest['unit_elements'][unit]]
    return sum(max(0, min(end, last) - max(begin, tensor['offset'])) for tensor, last in zip(of_unit, ends)
               if tensor['moments'] > 'mv'.index(kind))


def state_by_unit(checkpoint):
    """The bytes of each (unit, kind), read as another program would: by what the manifest says."""
    manifest = json.loads((checkpoint / 'manifest.json').read_text())
    assert manifest['partition'] == 'even' and 'partition_xxh3' in manifest
    kinds, world, alignment = manifest['state'], manifest['world'], manifest['alignment']
    found = {(unit, kind): bytearray() for unit in range(len(manifest['unit_elements'])) for kind in kinds}
    for rank, (size, _) in enumerate(manifest['ranks']):
        content, at = (checkpoint / f'rank-{rank:05d}.bin').read_bytes(), 0
        assert len(content) == size
        for unit, elements in enumerate(manifest['unit_elements']):
            begin, end = (elements // alignment * r // world * alignment for r in (rank, rank + 1))
            for kind in kinds:
                n = stored(manifest, kind, unit, begin, end)
                if kind == 'factors':  # owned by the rank with the unit's first element
                    shapes = [tensor['shape'] for tensor in manifest['tensors'] if tensor['unit'] == unit]
                    n = sum(map(sum, shapes)) if begin == 0 and end > 0 else 0
                found[unit, kind] += content[at:at + 4 * n]
                at += 4 * n
        for matrix in manifest.get('preconditioners', ()):
            if matrix['file'] == rank:
                assert at == matrix['offset']
                at += 4 * matrix['values']
                found[matrix['tensor'], 'preconditioners'] = content[matrix['offset']:at]
        assert at == size
    return found


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


class CheckpointCase(CommandCase):
    def three_ranks(self, *arguments, **sections):
        """A run of 6 steps on 3 ranks in stage 3, saved after steps 2, 4 and 6, with a tokenizer file."""
        if not (self.folder / 'bpe.tiktoken').exists():
            (self.folder / 'text.txt').write_text(''.join(f'{i * i} is the square of {i}\n' for i in range(300)))
            self.run_train('tokenizer', 'train', 'text.txt', '--vocab-size', 300, '--out', 'bpe.tiktoken')
        sections.setdefault('model', {}).setdefault('vocab_size', 300)
        self.config = self.ranks_config(checkpoint={'every': 2, 'keep': 0}, data={'tokenizer': 'bpe.tiktoken'},
                                        scheduler={'type': 'constant', 'warmup_steps': 2}, **sections)
        self.run_ranks(3, self.config, 'zero_optimization.stage=3', *arguments)
        return self.checkpoints()

    def verified(self, path, code=0):
        """The lines that verify prints, by checkpoint name."""
        process = self.run_train('checkpoint', 'verify', path, code=code)
        messages = [line for line in process.error.splitlines() if 'error:' in line]
        self.assertEqual(len(messages), 1 if code else 0, process.error)
        self.message = messages[0] if code else ''
        return {re.search(r'step-\d{8}', line).group(): line for line in process.out.splitlines()}


class Verify(CheckpointCase):
    def test_every_checkpoint_of_a_run_on_three_ranks(self):
        checkpoints = self.three_ranks()
        names = [path.name for path in checkpoints]
        self.assertEqual(names, ['step-00000002', 'step-00000004', 'step-00000006'])
        for path in self.folder / 'run', self.folder / 'run' / 'checkpoints':
            lines = self.verified(path)
            self.assertEqual(list(lines), names)
            for line in lines.values():
                self.assertEqual(re.search(GOOD, line).group(2, 3, 4), ('3', 'even', '4'), line)
        self.assertEqual(list(self.verified(checkpoints[1])), names[1:2])

    def test_damage_to_any_file_is_reported_and_other_checkpoints_are_verified(self):
        first, middle, last = self.three_ranks()
        files = sorted(path.name for path in middle.iterdir())
        self.assertEqual(files, ['manifest.json', 'rank-00000.bin', 'rank-00001.bin', 'rank-00002.bin',
                                 'tokenizer.tiktoken'])
        damages = {'flipped': lambda path: flip(path, path.stat().st_size // 2),
                   'cut': lambda path: path.write_bytes(path.read_bytes()[:-1]),
                   'absent': lambda path: path.unlink()}
        for name in files:
            good = (middle / name).read_bytes()
            for damage, apply in damages.items():
                with self.subTest(name, damage=damage):
                    apply(middle / name)
                    lines = self.verified(self.folder / 'run', code=2)
                    (middle / name).write_bytes(good)
                    self.assertIn(': damaged: ', lines[middle.name])
                    self.assertIn(name, lines[middle.name])
                    for other in first, last:
                        self.assertRegex(lines[other.name], GOOD)
                    self.assertIn('1 of 3', self.message)
                    self.assertIn(str(last), self.message)
        self.verified(self.folder / 'run')

    def test_several_and_all_damaged(self):
        checkpoints = self.three_ranks()
        for n, (path, rank) in enumerate(zip(reversed(checkpoints), (0, 2, 1)), 1):
            flip(path / f'rank-0000{rank}.bin', 0)
            lines = self.verified(self.folder / 'run', code=2)
            self.assertIn(f'{n} of 3', self.message)
            self.assertIn(str(checkpoints[2 - n]) if n < 3 else 'no good one', self.message)
            self.assertEqual([name for name, line in lines.items() if 'damaged' in line],
                             [path.name for path in checkpoints[3 - n:]])
            self.assertIn(f'rank-0000{rank}.bin', lines[path.name])
        self.verified(checkpoints[0], code=2)
        self.assertIn('1 of 1', self.message)


class Consolidate(CheckpointCase):
    def test_state_and_tokenizer_are_preserved(self):
        """The embeddings are larger than a chunk, the unit of I/O, and each rank wrote a span of them."""
        source = self.three_ranks('train.max_steps=2', model={'vocab_size': 40000},
                                  precision={'compute': 'bf16'})[-1]
        before = {path.name: path.read_bytes() for path in source.iterdir()}
        self.run_train('checkpoint', 'consolidate', self.folder / 'run', '--output', 'one')
        self.assertEqual({path.name: path.read_bytes() for path in source.iterdir()}, before)
        self.assertEqual([path.name for path in (self.folder / 'one').iterdir()], [source.name])
        target = self.folder / 'one' / source.name
        self.assertEqual(sorted(path.name for path in target.iterdir()),
                         ['manifest.json', 'rank-00000.bin', 'tokenizer.tiktoken'])
        self.assertGreater(max(len(values) for values in state_by_unit(source).values()), 4 << 20)
        self.assertEqual(state_by_unit(target), state_by_unit(source))
        have, want = (json.loads((path / 'manifest.json').read_text()) for path in (target, source))
        self.assertEqual((want['world'], have['world'], have['partition']), (3, 1, 'even'))
        for key in want.keys() - {'world', 'partition_xxh3', 'ranks', 'manifest_xxh3'}:
            self.assertEqual(have[key], want[key], key)
        self.assertEqual([file['name'] for file in have['files']], ['tokenizer.tiktoken'])
        self.assertEqual((target / 'tokenizer.tiktoken').read_bytes(), before['tokenizer.tiktoken'])

    def test_a_checkpoint_of_one_rank_is_copied_unchanged(self):
        for optimizer in {'type': 'adamw'}, {'type': 'sgd', 'momentum': 0.9}, {'type': 'sgd', 'momentum': 0}, {'type': 'adafactor'}, \
                {'type': 'soap'}:
            with self.subTest(optimizer):
                self.run_train(self.tiny_config(optimizer=optimizer, attention='flash', train={'max_steps': 2}))
                source = self.checkpoints()[-1]
                self.run_train('checkpoint', 'consolidate', self.folder / 'run')
                target = self.folder / 'run' / 'consolidated' / source.name
                for name in 'rank-00000.bin', 'manifest.json':
                    self.assertEqual((target / name).read_bytes(), (source / name).read_bytes())
                shutil.rmtree(self.folder / 'run')

    @release_only('unit/zero/test_checkpoint_ranks reads every partition')
    def test_every_partition_gives_the_same_file(self):
        found = set()
        for partition in 'even', 'layer', 'tensor':
            self.three_ranks('train.max_steps=2', f'zero_optimization.partition={partition}')
            out = self.run_train('checkpoint', 'consolidate', self.folder / 'run').out
            self.assertIn(f'3 ranks ({partition})', out)
            found.add((self.folder / 'run/consolidated/step-00000002/rank-00000.bin').read_bytes())
            shutil.rmtree(self.folder / 'run')
        self.assertEqual(len(found), 1)

    @release_only('the next two tests resume from consolidated checkpoints')
    def test_a_consolidated_checkpoint_replaces_the_original(self):
        source = self.three_ranks('train.max_steps=4')[-1]
        self.run_train('checkpoint', 'consolidate', source)
        folder = self.folder / 'run' / 'consolidated'
        self.assertRegex(self.verified(folder)[source.name], GOOD)
        self.assertIn('1 rank,', self.run_train('inspect', folder / source.name).out)
        self.assertIn('1 checkpoint\n', self.run_train('inspect', folder).out)
        texts = [self.run_train('generate', path, '--prompt', 'the square of 1', '--tokens', 12).out
                 for path in (source, folder, folder / source.name)]
        self.assertEqual(len(set(texts)), 1)
        self.assertEqual(self.checkpoints(), [source.parent / 'step-00000002', source])
        for ranks, stage in (1, 0), (2, 3):
            with self.subTest(ranks=ranks):
                for name, path in ('original', source), ('consolidated', folder):
                    self.run_ranks(ranks, self.config, f'run.dir={self.folder}/{name}-{ranks}',
                                   f'checkpoint.resume={path}', f'zero_optimization.stage={stage}')
                self.assertEqual([step for step, _, _ in self.curve(f'consolidated-{ranks}')], [5, 6])
                self.assertEqual(self.curve(f'consolidated-{ranks}'), self.curve(f'original-{ranks}'))
                self.assertEqual(self.final_state(f'consolidated-{ranks}'), self.final_state(f'original-{ranks}'))

    def test_second_moments_of_adafactor(self):
        """The row and column second moments are written once, although every rank has them. A resumed run finds them in any
        rank's file."""
        source = self.three_ranks('train.max_steps=4', optimizer={'type': 'adafactor', 'lr': 0.01})[-1]
        self.run_train('checkpoint', 'consolidate', source)
        target = self.folder / 'run' / 'consolidated' / source.name
        self.assertEqual(state_by_unit(target), state_by_unit(source))
        self.assertEqual({kind for _, kind in state_by_unit(source)}, {'master', 'factors'})
        for ranks, stage in (1, 0), (2, 2):
            with self.subTest(ranks=ranks):
                for name, path in ('original', source), ('consolidated', target):
                    self.run_ranks(ranks, self.config, f'run.dir={self.folder}/{name}-{ranks}',
                                   f'checkpoint.resume={path}', f'zero_optimization.stage={stage}')
                self.assertEqual(self.final_state(f'consolidated-{ranks}'), self.final_state(f'original-{ranks}'))

    def test_preconditioners_of_soap(self):
        """Each rank writes those of the matrices that it works on; a run of any number of ranks finds them, in the right
        place of the right matrix: it goes on as the run that wrote them."""
        source = self.three_ranks('train.max_steps=4', 'train.train_batch_size=12', optimizer={
            'type': 'soap', 'lr': 0.003, 'precondition_frequency': 2, 'max_precond_dim': 50})[-1]
        self.run_ranks(3, self.config, 'run.dir=whole', 'zero_optimization.stage=3', 'train.train_batch_size=12')
        self.run_train('checkpoint', 'consolidate', source)
        target = self.folder / 'run' / 'consolidated' / source.name
        self.assertEqual(state_by_unit(target), state_by_unit(source))
        matrices = json.loads((source / 'manifest.json').read_text())['preconditioners']
        self.assertEqual({matrix['file'] for matrix in matrices}, {0, 1, 2})
        for ranks, stage in (1, 0), (2, 2), (3, 1):
            with self.subTest(ranks=ranks):
                for name, path in ('original', source), ('consolidated', target):
                    self.run_ranks(ranks, self.config, f'run.dir={self.folder}/{name}-{ranks}', f'checkpoint.resume={path}',
                                   f'zero_optimization.stage={stage}', 'train.train_batch_size=12')
                self.assertEqual(self.final_state(f'consolidated-{ranks}'), self.final_state(f'original-{ranks}'))
                for (_, loss, _), (_, expected, _) in zip(self.curve(f'original-{ranks}'), self.curve('whole')[4:], strict=True):
                    self.assertAlmostEqual(loss, expected, delta=2e-5)
        self.assertEqual(self.curve('original-3'), self.curve('whole')[4:])

    def test_a_manifest_of_version_1(self):
        """Format version 1 lists spans. The digest was computed by the program that wrote the checkpoint."""
        self.run_train('checkpoint', 'consolidate', harness.GOLDEN / 'checkpoint-v1', '--output', 'one')
        data = (self.folder / 'one/step-00000002/rank-00000.bin').read_bytes()
        self.assertEqual(hashlib.sha256(data).hexdigest(),
                         '02badd2d22b98f2717775c8ecab64a0a8445d32a9021f68da42e45f74ce4a7a1')

    def test_damage(self):
        """A damaged checkpoint is refused when named itself; when the run is named, the one before it is used."""
        before, last = self.three_ranks('train.max_steps=4')
        flip(last / 'rank-00001.bin', -1)
        self.refuses('checkpoint', 'consolidate', last, says=['rank-00001.bin'])
        self.assertFalse((self.folder / 'run' / 'consolidated').exists())
        process = self.run_train('checkpoint', 'consolidate', self.folder / 'run')
        self.assertIn('rank-00001.bin', process.error)
        target = self.folder / 'run' / 'consolidated' / before.name
        self.assertEqual(state_by_unit(target), state_by_unit(before))
        self.assertEqual([path.name for path in target.parent.iterdir()], [before.name])

    def test_full_disk(self):
        source = self.three_ranks('train.max_steps=2')[-1]
        limit = (source / 'rank-00000.bin').stat().st_size  # a third of what consolidate writes

        def no_space():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        self.refuses('checkpoint', 'consolidate', source, code=1, says=['rank-00000.bin'], preexec_fn=no_space)
        self.assertEqual(list((self.folder / 'run' / 'consolidated').iterdir()), [])
        self.verified(source)


class ManyRanks(CheckpointCase):
    @release_only('unit/zero/test_checkpoint_ranks reads the files of many ranks')
    def test_more_ranks_than_descriptors(self):
        """24 ranks wrote the checkpoint. Its reader may open 24 descriptors, and needs some of them for other files."""
        config = self.ranks_config(train={'train_batch_size': 24, 'max_steps': 2}, checkpoint={'every': 2, 'keep': 0},
                                   model={'vocab_size': 257}, data={'tokenizer': 'bytes'})
        self.run_ranks(24, config)
        self.assertEqual(len(self.final_state()), 24)

        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
        limited = {'preexec_fn': few_descriptors}
        self.assertIn('24 ranks', self.run_train('checkpoint', 'verify', 'run', **limited).out)
        self.assertIn('24 ranks', self.run_train('inspect', 'run', **limited).out)
        self.assertIn('perplexity', self.run_train('eval', 'run', '--data', 'tokens.bin', **limited).out)
        self.run_train('generate', 'run', '--prompt', 'a', '--tokens', 4, **limited)
        self.run_train('checkpoint', 'consolidate', 'run', **limited)
        self.run_train(config, 'train.max_steps=4', **limited)
        self.assertEqual([path.name for path in self.checkpoints()], ['step-00000002', 'step-00000004'])


class Unreadable(CheckpointCase):
    """An unreadable file is an error, not damage: the run does not fall back to an older checkpoint."""

    def setUp(self):
        super().setUp()
        self.config = self.tiny_config(checkpoint={'every': 2, 'keep': 0})
        self.run_train(self.config)
        self.newest = self.checkpoints()[-1]

    def test_the_newest_checkpoint(self):
        names = [path.name for path in self.checkpoints()]
        for name in 'rank-00000.bin', 'manifest.json':
            with self.subTest(name):
                good, path = self.folder / 'good', self.newest / name
                path.rename(good)
                path.symlink_to(path)  # ELOOP; permissions would not stop root
                says = [path.relative_to(self.newest), 'symbolic links']
                self.refuses(self.config, 'train.max_steps=8', code=1, says=says)
                self.refuses('generate', 'run', '--tokens', 1, code=1, says=says)
                self.refuses('checkpoint', 'consolidate', 'run', code=1, says=says)
                lines = self.verified(self.folder / 'run', code=1)
                self.assertIn('cannot be verified', lines[self.newest.name])
                self.assertIn('step-00000004', self.message)
                lines = self.verified(self.newest, code=1)
                self.assertIn('is not known', self.message)
                path.unlink()
                good.rename(path)
                self.assertEqual(sorted(path.name for path in self.newest.parent.iterdir()), names)
        self.assertIn('resuming after step 6', self.run_train(self.config, 'train.max_steps=8').error)

    def test_the_checkpoints_folder(self):
        folder = self.newest.parent
        folder.rename(self.folder / 'good')
        folder.symlink_to(folder)
        self.refuses(self.config, 'train.max_steps=8', code=1, says=['checkpoints', 'symbolic links'])
        for words in ('generate', 'run', '--tokens', 1), ('inspect', 'run'), ('checkpoint', 'verify', 'run'):
            self.refuses(*words, code=1, says=['checkpoints', 'symbolic links'])
        folder.unlink()
        (self.folder / 'good').rename(folder)
        self.assertIn('resuming after step 6', self.run_train(self.config, 'train.max_steps=8').error)

    def test_names_of_other_lengths(self):
        """step-000000000006 is not the folder of step 6, and is ignored."""
        self.newest.rename(self.newest.with_name('step-000000000006'))
        self.assertEqual(list(self.verified(self.folder / 'run')), ['step-00000002', 'step-00000004'])
        error = self.run_train(self.config, 'train.max_steps=8', 'checkpoint.keep=1').error
        self.assertIn('resuming after step 4', error)
        self.assertEqual([path.name for path in self.checkpoints()], ['step-000000000006', 'step-00000008'])


class NotFinite(CheckpointCase):
    def test_weights_that_fp16_cannot_hold(self):
        """The master weights are finite, but infinite in fp16, so every later step would be skipped."""
        config = self.tiny_config(precision={'compute': 'fp16'}, train={'gradient_clipping': 0, 'max_steps': 30},
                                  scheduler={'type': 'constant', 'warmup_steps': 0}, fp16={'loss_scale': 1},
                                  optimizer={'lr': 1e6}, checkpoint={'every': 2, 'keep': 1})
        self.refuses(config, code=1, says=['step 2 was written', 'rank-00000.bin', '"master"', 'not finite as fp16',
                                           'none before it'])
        self.assertEqual(list((self.folder / 'run' / 'checkpoints').iterdir()), [])


class Arguments(CheckpointCase):
    def test_bad_arguments(self):
        self.refuses('checkpoint', says=['verify', 'consolidate'])
        self.refuses('checkpoint', 'verfy', 'run', says=['"verfy"', 'did you mean verify'])
        self.refuses('checkpoint', 'consolidates', 'run', says=['did you mean consolidate'])
        self.refuses('checkpoint', 'shrink', 'run', says=['"shrink"', 'train help checkpoint'])
        self.refuses('checkpoint', 'verify', 'a', 'b', says=['"b"'])
        self.refuses('checkpoint', 'verify', 'a', '--output', 'b', says=['--output'])
        self.refuses('checkpoint', 'consolidate', 'a', '--ouput', 'b', says=['--output'])
        self.refuses('checkpoint', 'consolidate', 'a', '--output', '', says=['--output'])

    def test_folders_without_a_checkpoint(self):
        for folder in 'empty', 'run/checkpoints', 'torn/step-00000002':
            (self.folder / folder).mkdir(parents=True)
        (self.folder / 'file').write_text('none')
        for action in 'verify', 'consolidate':
            with self.subTest(action):
                self.refuses('checkpoint', action, says=[action, 'run or a checkpoint'])
                self.refuses('checkpoint', action, 'absent', says=['absent', 'does not exist'])
                for name in 'empty', 'run', 'run/checkpoints', 'torn/step-00000002', 'file':
                    self.refuses('checkpoint', action, name, says=[name, 'contains no checkpoint', 'manifest.json'])
                process = self.refuses('checkpoint', action, 'torn', says=['torn'])
                self.assertIn('manifest.json', process.out + process.error)

    def test_outputs_that_are_refused(self):
        self.run_train(self.tiny_config(train={'max_steps': 2}))
        run, source = self.folder / 'run', self.checkpoints()[-1]
        before = {path.name: path.read_bytes() for path in source.iterdir()}
        (self.folder / 'link').symlink_to(source.parent)
        refusals = {source.parent: 'overwritten', source.parent / '..' / 'checkpoints': 'overwritten',
                    'link': 'overwritten', source: 'is a checkpoint', run: 'is a run folder',
                    self.folder / 'tokens.bin': 'tokens.bin'}
        for output, word in refusals.items():
            with self.subTest(output):
                self.refuses('checkpoint', 'consolidate', run, '--output', output, says=[output, word])
        self.run_train('checkpoint', 'consolidate', run)
        self.refuses('checkpoint', 'consolidate', run, says=['consolidated/step-00000002', 'already exists'])
        alone = self.folder / 'alone'
        shutil.copytree(source, alone)
        self.refuses('checkpoint', 'consolidate', alone, says=['alone', '--output'])
        self.run_train('checkpoint', 'consolidate', 'alone', '--output', 'again')
        self.assertEqual(state_by_unit(self.folder / 'again' / source.name), state_by_unit(alone))
        self.assertEqual({path.name: path.read_bytes() for path in source.iterdir()}, before)


if __name__ == '__main__':
    unittest.main()
