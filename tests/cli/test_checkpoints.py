"""train checkpoint verify: all damage in all checkpoints of a run. What commands do with it."""
import json
import re
import resource
import shutil
import unittest

from harness import CommandCase, release_only

GOOD = r'step-0*(\d+): step \1, (\d+) ranks?, partition (\w+), .*B in (\d+) files?: ok$'


def stored(manifest, kind, unit, begin, end):
    """How many of elements [begin, end) of a unit have a kind: of moments, those of tensors that have so many."""
    if kind not in ('m', 'v'):
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
                found[unit, kind] += content[at:at + 4 * n]
                at += 4 * n
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
            self.assertIn(str(checkpoints[2 - n]) if n < 3 else 'no good checkpoint', self.message)
            self.assertEqual([name for name, line in lines.items() if 'damaged' in line],
                             [path.name for path in checkpoints[3 - n:]])
            self.assertIn(f'rank-0000{rank}.bin', lines[path.name])
        self.verified(checkpoints[0], code=2)
        self.assertIn('1 of 1', self.message)


class Damage(CheckpointCase):
    def test_the_checkpoint_before_is_used(self):
        """A damaged checkpoint is refused when named itself; when the run is named, the one before it is used."""
        before, last = self.three_ranks('train.max_steps=4')
        flip(last / 'rank-00001.bin', -1)
        self.refuses('generate', last, '--tokens', 1, says=['rank-00001.bin'])
        texts = [self.run_train('generate', path, '--prompt', 'the square of 1', '--tokens', 12) for path in ('run', before)]
        self.assertIn('rank-00001.bin', texts[0].error)
        self.assertEqual(texts[0].out, texts[1].out)


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
                lines = self.verified(self.folder / 'run', code=1)
                self.assertIn('cannot be verified', lines[self.newest.name])
                self.assertIn('step-00000004', self.message)
                lines = self.verified(self.newest, code=1)
                self.assertIn('it is unknown', self.message)
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
                                           'there is no earlier checkpoint'])
        self.assertEqual(list((self.folder / 'run' / 'checkpoints').iterdir()), [])


class Arguments(CheckpointCase):
    def test_bad_arguments(self):
        self.refuses('checkpoint', says=['expected verify', 'train help checkpoint'])
        self.refuses('checkpoint', 'verfy', 'run', says=['expected verify, not "verfy"'])
        self.refuses('checkpoint', 'verify', 'a', 'b', says=['"b"'])
        self.refuses('checkpoint', 'verify', 'a', '--output', 'b', says=['--output'])

    def test_folders_without_a_checkpoint(self):
        for folder in 'empty', 'run/checkpoints', 'torn/step-00000002':
            (self.folder / folder).mkdir(parents=True)
        (self.folder / 'file').write_text('none')
        self.refuses('checkpoint', 'verify', says=['verify', 'run or a checkpoint'])
        self.refuses('checkpoint', 'verify', 'absent', says=['absent', 'does not exist'])
        for name in 'empty', 'run', 'run/checkpoints', 'torn/step-00000002', 'file':
            self.refuses('checkpoint', 'verify', name, says=[name, 'contains no checkpoint', 'manifest.json'])
        process = self.refuses('checkpoint', 'verify', 'torn', says=['torn'])
        self.assertIn('manifest.json', process.out + process.error)


if __name__ == '__main__':
    unittest.main()
