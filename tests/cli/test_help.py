"""Help texts, manual pages and completion, which all come from the commands' tables."""
import re
import shlex
import shutil
import subprocess
import unittest

import harness
from harness import CommandCase, release_only

# Sets COMPREPLY for the words that follow, as bash would at a press of Tab behind the last.
COMPLETE = '''source "$1"; shift; compopt() { :; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zero_train
[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' "${COMPREPLY[@]}"'''


class Help(CommandCase):
    def commands(self):
        listed = self.run_train('help').out.split('commands:\n')[1].split('\n\n')[0]
        return re.findall(r'^  (\S+)', listed, re.M)

    def flags(self, command):
        return set(re.findall(r'^  (--[a-z0-9-]+)', self.run_train('help', command).out, re.M))

    def examples(self, command):
        """(title, command line) of each example."""
        text = self.run_train('help', command).out.split('\nexamples:\n')
        lines = text[1].splitlines() if len(text) > 1 else []
        return list(zip(lines[::2], lines[1::2]))

    @release_only('test_manual_pages prints the same texts')
    def test_examples(self):
        """Each command has examples, of commands and flags that exist; a title is a sentence."""
        commands = self.commands()
        for command in commands:
            examples = self.examples(command)
            self.assertTrue(examples, command)
            own = False
            for title, line in examples:
                self.assertRegex(title, r'^  [A-Z].*\.$')
                self.assertRegex(line, r'^      \S')
                words = re.search(r'(?:^|[\s(])(?:\./)?train (.*)', line).group(1).split()
                called = words[0] if words[0] in commands else 'train'
                self.assertTrue(called != 'train' or '.json' in words[0], line)
                own |= called == command
                given = {word.split('=')[0] for word in words if word.startswith('--')}
                self.assertLessEqual(given, self.flags(called), line)
            self.assertTrue(own, command)

    def test_manual_pages(self):
        for command in [None, *self.commands()]:
            page = self.run_train('help', *([command] if command else []), '--man').out
            self.assertTrue(page.startswith('.TH "TRAIN'), page[:40])
            for section in ('NAME', 'SYNOPSIS', 'EXIT STATUS'):
                self.assertIn(f'.SH {section}\n', page)
            macros = set(re.findall(r"^[.'](\S*)", page, re.M))
            self.assertLessEqual(macros, {'TH', 'SH', 'TP', 'B', 'BR', 'br', 'PP', 'RS', 'RE', 'nf', 'fi'}, command)
            self.assertEqual(re.findall(r'(?<!\\)-', page.split('\n', 1)[1]), [], command)  # hyphens that could be copied as something else
            if command:
                for flag in self.flags(command):
                    self.assertIn(flag.replace('-', r'\-'), page)
            if shutil.which('mandoc'):
                found = subprocess.run(['mandoc', '-T', 'lint', '-W', 'warning'], input=page, text=True, capture_output=True,
                                       check=False).stdout
                self.assertEqual([line for line in found.splitlines() if 'missing date' not in line], [])

    def completed(self, *words, shell='bash'):
        script = self.folder / 'completion'
        if not script.exists():
            script.write_text(self.run_train('completion', shell).out)
        process = subprocess.run(['bash', '-c', COMPLETE, 'bash', script, 'train', *words], text=True, capture_output=True,
                                 cwd=self.folder, check=True)
        self.assertEqual(process.stderr, '')
        return process.stdout.split('\n')[:-1]

    def test_completion_in_bash(self):
        (self.folder / 'tiny.json').write_text('{}')
        (self.folder / 'text.txt').write_text('')
        for words, expected in (
                (['gen'], ['generate ']), (['tin'], ['tiny.json ']), (['te'], []),
                (['tiny.json', 'optimizer.l'], ['optimizer.lr=']),
                (['tiny.json', 'zero_optimization.partition', '='], None),
                (['tiny.json', 'device', '=', 'cu'], ['cuda']), (['tiny.json', 'device=cu'], ['device=cuda']),
                (['tiny.json', 'data.train', '=', 'te'], ['text.txt']),
                (['plan', 'tiny.json', '--rank'], ['--ranks']), (['eval', 'te'], ['text.txt']),
                (['help', 'ev'], ['eval']), (['completion', 'z'], ['zsh'])):
            found = self.completed(*words)
            if expected is None:
                self.assertLess(2, len(found))
                self.assertTrue(all(re.fullmatch('[a-z]+', word) for word in found), found)
            else:
                self.assertEqual(found, expected, words)
        for command in self.commands():
            self.assertLessEqual(self.flags(command), set(self.completed(command, '--')))

    def test_completion_in_other_shells(self):
        for shell, command in (('zsh', 'autoload -U compinit; compinit -D -u; source {}; print ok'),
                               ('fish', 'source {}; complete -C "train gen"; complete -C "train tiny.json device=cu"')):
            script = self.folder / shell
            script.write_text(self.run_train('completion', shell).out)
            if shutil.which(shell):
                process = subprocess.run([shell, '-c', command.format(shlex.quote(str(script)))], text=True, capture_output=True,
                                         cwd=self.folder, check=False)
                self.assertEqual((process.returncode, process.stderr), (0, ''))
                self.assertIn({'zsh': 'ok', 'fish': 'device=cuda'}[shell], process.stdout)

    def test_refused(self):
        self.refuses('help', 'generat', says=('did you mean generate',))
        self.refuses('completion', says=('bash, zsh or fish',))
        self.refuses('completion', 'tcsh', says=('bash, zsh or fish',))


if __name__ == '__main__':
    unittest.main()
