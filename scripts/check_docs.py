#!/usr/bin/env python3
"""Finds stale sentences in README.md and docs/, and prints each finding; exit code 1 when there is one.

  - Limits: a sentence that says what the program refuses, lacks, does only or never does has an entry in
    tests/docs/limits.txt, with the tests that show it. Found are sentences without an entry, entries whose sentence is
    gone, and entries whose test is gone. Reword a sentence with such a word that states no limit.
  - Pointers: a function that a page names with its file (`FILE`: `FUNCTION()`, or `FUNCTION()` in `FILE`) is in that file.
  - docs/README.md links to every page of docs/.

usage: scripts/check_docs.py [--missing]      --missing: prints sentences without an entry in the form of limits.txt
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = 'tests/docs/limits.txt'
WORDS = re.compile(r"(?<!-)\b(refus\w*|not supported|unsupported|cannot|only|never|there (is|are) no|not yet|still to come)\b", re.IGNORECASE)
FUNCTION = r'`(\w+)\(\)`'
FILE = r'`([\w.]+/[\w./]+)`'


def without_blocks(text):
    return re.sub(r'^```.*?^```$', '', text, flags=re.MULTILINE | re.DOTALL)


# ---- limits

def cells_of(row):
    return [cell.strip() for cell in re.split(r'(?<!\\)\|', row)]


def table_cells(rows):
    """Each cell below the header; it begins with the name of its column if that is one of WORDS."""
    header = cells_of(rows[0])
    for row in rows[2:]:
        for name, cell in zip(header, cells_of(row)):
            yield f'{name}: {cell}' if cell and WORDS.search(name) else cell


def paragraphs(text):
    """Each paragraph, item of a list and cell of a table, on one line."""
    for block in re.split(r'\n\s*\n', without_blocks(text)):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith('|'):
            yield from table_cells(lines)
        else:
            for item in re.split(r'\n\s*(?:[-*]|\d+\.) ', '\n' + '\n'.join(lines)):
                yield ' '.join(item.split())


def limits_of(page):
    """The sentences with one of WORDS outside `code` and the targets of links."""
    for paragraph in paragraphs(page.read_text()):
        for sentence in re.split(r'(?<=[.?!])\s+(?=[^a-z])', paragraph):
            if WORDS.search(re.sub(r'`[^`]*`|\]\([^)]*\)', ' ', sentence)):
                yield sentence


def read_entries(root):
    """(page, sentence, tests) of each entry of LIMITS; the head of that file describes its format."""
    entries, page = [], None
    for line in (root / LIMITS).read_text().splitlines():
        if line.startswith('    '):
            entries[-1][2].append(line.strip())
        elif line.startswith('  '):
            entries.append((page, line.strip(), []))
        elif line and not line.startswith('#'):
            page = line
    return entries


def test_exists(root, test):
    path, _, names = test.partition(' ')
    if not (root / path).is_file() or not names:
        return False
    text = (root / path).read_text()
    form = r'\b(class|def) %s\b' if path.endswith('.py') else r'\b%s\('
    return all(re.search(form % re.escape(name), text) for name in names.split('.'))


def check_limits(root, pages):
    entries = read_entries(root)
    known = {(page, sentence) for page, sentence, _ in entries}
    here = {(page, sentence) for page in pages for sentence in limits_of(root / page)}
    missing = [(page, sentence) for page in pages for sentence in limits_of(root / page) if (page, sentence) not in known]
    found = [f'{page}: no entry in {LIMITS} for "{sentence}"' for page, sentence in missing]
    for page, sentence, tests in entries:
        if (page, sentence) not in here:
            found.append(f'{LIMITS}: {page} no longer has "{sentence}"')
        found += [f'{LIMITS}: there is no test "{test}"' for test in tests or [''] if not test_exists(root, test)]
    return missing, found


# ---- pointers and the list of pages

def pointers_of(page):
    """(file, function) of each function that the page names with its file."""
    text = ' '.join(without_blocks(page.read_text()).split())
    for match in re.finditer(rf'{FILE}: ({FUNCTION}(?:(?:,| and) {FUNCTION})*)', text):
        for name in re.findall(FUNCTION, match.group(2)):
            yield match.group(1), name
    for match in re.finditer(rf'{FUNCTION} in {FILE}', text):
        yield match.group(2), match.group(1)


def check_pointers(root, pages):
    for page in pages:
        for path, name in pointers_of(root / page):
            text = (root / path).read_text() if (root / path).is_file() else ''
            if not re.search(rf'^\w.*\b{name}\(', text, re.MULTILINE):
                yield f'{page}: there is no {name}() in {path}'


def check_index(root):
    index = (root / 'docs' / 'README.md').read_text()
    for path in sorted((root / 'docs').glob('*.md')):
        if path.name != 'README.md' and f']({path.name})' not in index:
            yield f'docs/README.md: no link to {path.name}'


def findings(root):
    pages = ['README.md', *sorted(f'docs/{path.name}' for path in (root / 'docs').glob('*.md'))]
    missing, found = check_limits(root, pages)
    return missing, [*found, *check_pointers(root, pages), *check_index(root)]


def main():
    missing, found = findings(ROOT)
    if sys.argv[1:] == ['--missing']:
        found = [f'{page}\n  {sentence}\n    FILE TEST' for page, sentence in missing]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
