"""optimizer.groups: tensors with learning rates and decays of their own, or frozen."""
import array
import json
import shutil

from harness import CommandCase, relative, write_shard
from test_export import read_safetensors

NAMED = 'checkpoint.resume_with=optimizer.groups'


def groups(*entries):
    return f'optimizer.groups={json.dumps(entries)}'


class GroupsCase(CommandCase):
    def config(self, **sections):
        train = {'max_steps': 4, 'train_batch_size': 4, 'micro_batch_size': 0, **sections.pop('train', {})}
        sections.setdefault('run', {'dir': str(self.folder / 'run'), 'threads': 1})
        sections.setdefault('checkpoint', {'every': 1, 'keep': 0})
        return self.tiny_config(train=train, **sections)

    def tensors(self, run):
        """name -> bytes, of a run's newest checkpoint."""
        out = self.folder / 'exported'
        self.run_train('export', self.folder / run, '--to', 'hf', out, '--tokenizer', 'none')
        self.addCleanup(shutil.rmtree, out, ignore_errors=True)
        read = {name: data for name, (_, _, data) in read_safetensors(out / 'model.safetensors').items()}
        shutil.rmtree(out)
        return read

    def largest_change(self, before, after, prefix):
        pairs = [(array.array('f', before[name]), array.array('f', after[name])) for name in before if name.startswith(prefix)]
        return max(abs(a - b) for x, y in pairs for a, b in zip(x, y))


class Groups(GroupsCase):
    def test_all_but_one_tensor_frozen(self):
        """Only it changes, and only it has a norm; as printed. The run starts from another's weights."""
        self.run_train(self.config(), 'train.max_steps=1', f'run.dir={self.folder}/start')
        others = ['w*', 'ln_f.*', 'h.0.*', 'h.1.ln_?.*', 'h.1.attn.*', 'h.1.mlp.c_proj.*', '*.bias']
        freeze = groups({'match': others, 'freeze': True})
        before = self.tensors('start')
        for optimizer in 'adamw', 'muon', 'schedulefree_adamw':
            with self.subTest(optimizer=optimizer):
                run = self.folder / optimizer
                process = self.run_train(self.config(), f'model.init_from={self.folder}/start', f'run.dir={run}', freeze,
                                         f'optimizer.type={optimizer}', 'train.eval_final_steps=1')
                self.assertIn('optimizer.groups[0]: 27 tensors, 24.4K parameters, frozen', process.error)
                self.assertIn(f'optimizer, other tensors: 1 tensor, 4.10K parameters, {optimizer}, lr 0.0006', process.error)
                after = self.tensors(optimizer)
                self.assertEqual([name for name in before if before[name] != after[name]], ['h.1.mlp.c_fc.weight'])
                for step in self.metrics(optimizer):
                    self.assertEqual(step['model_memory'], step['model_memory_planned'])
        plain, frozen = (self.metrics(run)[0]['grad_norm'] for run in ('start', 'adamw'))
        self.assertLess(frozen, plain)

    def test_a_rate_of_its_own_is_a_run_at_that_rate(self):
        """All tensors in groups with rate 2e-3 and decay 0.3: the bits of a run with these options."""
        every = groups({'match': ['*.weight'], 'lr': 2e-3, 'weight_decay': 0.3}, {'match': '*', 'lr': 2e-3})
        # Weights of norms decay in an entry that says so, not by optimizer.weight_decay.
        norms = groups({'match': ['*ln_*', '*.bias'], 'lr': 2e-3, 'weight_decay': 0}, {'match': '*', 'lr': 2e-3, 'weight_decay': 0.3})
        config = self.config()
        self.run_train(config, 'optimizer.lr=2e-3', 'optimizer.weight_decay=0.3', f'run.dir={self.folder}/plain')
        self.run_train(config, norms, 'optimizer.lr=1e-3', f'run.dir={self.folder}/norms')
        self.run_train(config, every, 'optimizer.lr=1e-3', f'run.dir={self.folder}/every')
        self.assertEqual(self.final_state('norms'), self.final_state('plain'))
        self.assertNotEqual(self.final_state('every'), self.final_state('plain'))

    def test_resuming(self):
        given = groups({'match': 'transformer.wte.*', 'lr': 3e-3}, {'match': 'h.1.*', 'freeze': True})
        config = self.config(train={'max_steps': 6})
        self.run_train(config, given)
        curve, state = self.curve(), self.final_state()
        for step in 1, 4:
            run = self.copy_until(step, 'run', f'until-{step}')
            self.run_train(config, f'run.dir={run}', given)
            self.assertEqual((self.curve(run.name), self.final_state(run.name)), (curve, state))
        run = self.copy_until(3, 'run', 'changed')
        thawed = groups({'match': 'wte.*', 'lr': 2e-3})
        self.refuses(config, f'run.dir={run}', thawed,
                     says=['optimizer.groups was [{"match": "transformer.wte.*", "lr": 0.003}, {"match": "h.1.*", "freeze": true}]',
                           'and is now [{"match": "wte.*", "lr": 0.002}]', NAMED.replace('=', '="')])
        self.run_train(config, f'run.dir={run}', thawed, NAMED)
        before, after = self.tensors('run'), self.tensors('changed')
        self.assertTrue(all(before[name] != after[name] for name in before if name.startswith('h.1.')))

    def test_moments_of_another_rule_begin_anew(self):
        """Muon's sums of gradients are no means for AdamW; thawed schedule-free weights are not pulled to zero."""
        config = self.config(train={'max_steps': 5}, optimizer={'betas': [0.9, 0.95], 'lr': 1e-3})
        by_adamw, frozen = groups({'match': 'h.*', 'type': 'adamw'}), groups({'match': 'h.0.*', 'freeze': True})
        for optimizer, given, then in (('muon', 'optimizer.groups=[]', by_adamw), ('schedulefree_adamw', frozen, 'optimizer.groups=[]')):
            with self.subTest(optimizer=optimizer):
                options = f'run.dir={self.folder}/{optimizer}', f'optimizer.type={optimizer}'
                self.run_train(config, *options, given)
                before = self.tensors(optimizer)
                process = self.run_train(config, *options, then, NAMED, 'train.max_steps=7')
                self.assertRegex(process.error, r'\d+ tensors, such as h.0.ln_1.weight|\d+ tensors, such as h.0.attn')
                change = self.largest_change(before, self.tensors(optimizer), 'h.0.')
                self.assertGreater(change, 0)
                self.assertLess(change, 2 * 3 * 1e-3)  # two steps, of at most thrice the rate each
        options = f'run.dir={self.folder}/sgd', 'optimizer.type=sgd'
        self.run_train(config, *options, 'optimizer.momentum=0')
        self.run_train(config, *options, 'train.max_steps=6', 'checkpoint.resume_with=optimizer.momentum')

    def test_states_that_would_not_mean_the_same_are_refused(self):
        config = self.config(train={'max_steps': 2})
        options = f'run.dir={self.folder}/free', 'optimizer.type=schedulefree_adamw', 'checkpoint.resume_with=optimizer.betas'
        self.run_train(config, *options, 'checkpoint.every=1')
        folder = self.folder / 'free' / 'checkpoints'
        before = sorted(path.name for path in folder.iterdir())
        for resume in 'checkpoint.resume=auto', f'checkpoint.resume={folder}/step-00000001':
            self.refuses(config, *options, 'optimizer.betas=[0.5,0.95]', 'train.max_steps=3', resume,
                         says=['optimizer.betas[0] is 0.5'])
        self.assertEqual(sorted(path.name for path in folder.iterdir()), before)  # no later one was set aside

    def test_the_noise_scale_leaves_frozen_tensors_out(self):
        write_shard(self.folder / 'pattern.bin', [i * i % 61 for i in range(1000)])
        config = self.config(data={'shuffle': False, 'train': str(self.folder / 'pattern.bin')}, checkpoint={'every': 0},
                             train={'max_steps': 1, 'train_batch_size': 8, 'micro_batch_size': 2})
        freeze = groups({'match': ['wte.weight', 'h.0.*'], 'freeze': True})
        self.run_train(config, freeze, 'train.noise_scale_every=1')
        self.run_train(config, freeze, 'train.train_batch_size=2', f'run.dir={self.folder}/small')
        large, small = (self.metrics(run)[0]['grad_norm'] ** 2 for run in ('run', 'small'))
        expected = (small - large) / (1 / 2 - 1 / 8) / ((8 * large - 2 * small) / (8 - 2))
        self.assertLess(relative(self.metrics()[0]['noise_scale'], expected), 1e-5)

    def test_mistakes(self):
        config = self.config()
        for entries, says in (
                ([{'match': 'h.7.*'}], ['optimizer.groups[0].match: "h.7.*" matches no tensor']),
                ([{'match': ['wte', 'wt']}], ['optimizer.groups[0].match: "wt" matches no tensor']),
                ([{'match': 'h.0.attn.c'}], ['"h.0.attn.c" matches no tensor']),
                ([{'match': 'h.*.attn'}], ['"h.*.attn" matches no tensor']),
                ([{'match': 'lm_head'}], ['"lm_head" matches lm_head, which is tied to wte.weight']),
                ([{'match': 'wte.weight', 'learning_rate': 1}], ['unknown key "learning_rate"', '"lr"']),
                ([{'match': 'wte.weight', 'frezee': True}], ['did you mean freeze']),
                ([{'lr': 1e-3}], ['optimizer.groups[0] names no tensors']),
                ([{'match': []}], ['names no tensors']),
                ([{'match': [3]}], ['.match is the number 3, expected a pattern']),
                (['wte.weight'], ['expected an object']),
                ([{'match': '*', 'lr': -1}], ['optimizer.groups[0].lr is -1, expected from 0 to 1000000']),
                ([{'match': '*', 'lr': 'fast'}], ['expected a number']),
                ([{'match': '*', 'freeze': 1}], ['expected true or false']),
                ([{'match': '*', 'type': 'sgd'}], ['expected "adamw"']),
                ([{'match': '*', 'freeze': True}], ['freezes all tensors']),
                ([{'match': 'wte.weight', 'freeze': True, 'lr': 1}], ['freeze and lr']),
                ([{'match': '*', 'lr': i} for i in range(65)], ['65 groups, at most 64'])):
            with self.subTest(entries=entries[:2]):
                for command in ((), ('check',)):
                    self.refuses(*command, config, groups(*entries), says=says)
        self.refuses(config, 'optimizer.groups={"match": "*"}', says=['is an object, expected a list of groups'])
        self.refuses(config, 'optimizer.groups=[{"match": "w*", "match": "h*"}]', says=['has the key "match" twice'])
        self.refuses(config, 'optimizer.groups=[{"match": "w*", "lr": 1e999}]', says=['is out of range'])
        self.refuses(config, groups({'match': '*', 'lr': 1}), 'optimizer.lr=0', says=['optimizer.groups[0].lr', 'optimizer.lr above 0'])
        self.refuses(config, groups({'match': 'w*', 'type': 'adamw'}), 'optimizer.type=lion', says=['optimizer.type=lion', 'muon'])
        llama = self.config(model={'family': 'llama'})
        self.refuses(llama, groups({'match': '*v_proj.weight', 'freeze': True}), says=['v_proj.weight, which is a part of', 'qkv_proj'])
        self.refuses(llama, groups({'match': 'layers.0.self_attn.v_proj', 'freeze': True}), says=['a part of', 'qkv_proj'])
        self.refuses(self.config(optimizer={'groups': [{'match': 'x'}]}), says=['tiny.json: optimizer.groups[0].match'])
        self.assertFalse((self.folder / 'run').exists())

    def test_check_where_the_vocabulary_is_a_tokenizers(self):
        """The tensors' names do not depend on it; the tokenizer may be absent."""
        config = self.folder / 'open.json'
        for tokenizer, count in ('bytes', '1 tensor, '), (self.folder / 'nowhere.json', ''):
            config.write_text(json.dumps({'model': {'n_layer': 1, 'n_head': 2, 'n_embd': 32}, 'data': {'tokenizer': str(tokenizer)}}))
            self.refuses('check', config, groups({'match': 'x'}), says=['optimizer.groups[0].match'])
            self.assertIn(count, self.run_train('check', config, groups({'match': 'wte.weight', 'lr': 1})).error)
