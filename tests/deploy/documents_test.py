#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the documents name exists: links, commands, flags, solvers. No measured figure is typed."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD_FOLDERS = ('build', 'out', 'demo-output')
COMMAND_SOURCES = {'deeppcr-server': 'server', 'deeppcr': 'client', 'steer_digits': 'client'}


def documents():
    for path in sorted(ROOT.rglob('*.md')):
        parts = path.relative_to(ROOT).parts
        if not any(p.startswith(('.', 'build')) or p in BUILD_FOLDERS for p in parts[:-1]):
            yield path


def shell_lines(text):
    for block in re.findall(r'^```sh\n(.*?)^```', text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            yield line.partition(' #')[0].strip()


def tables(*arguments):
    command = [sys.executable, '-B', str(ROOT / 'deploy/readme_tables.py'), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class DocumentsTest(unittest.TestCase):

    def test_links_resolve(self):
        count = 0
        for document in documents():
            for link in re.findall(r'\]\(([^)\s]+)\)', document.read_text()):
                if '://' not in link and not link.startswith('#'):
                    count += 1
                    target = document.parent / link.partition('#')[0]
                    self.assertTrue(target.exists(), f'{document.relative_to(ROOT)}: {link}')
        self.assertGreater(count, 4)

    def test_commands_exist(self):
        seen = set()
        for document in (ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'deploy/README.md'):
            for line in shell_lines(document.read_text()):
                for word in re.findall(r'(?:^|\s)((?:deploy|tests)/[\w./-]+)', line):
                    seen.add(word)
                    self.assertTrue((ROOT / word).exists(), f'{document.name}: {word}')
        self.assertLessEqual({'deploy/demo.sh', 'tests/run.sh', 'deploy/build.sh'}, seen)

    def test_binaries_are_targets_of_the_folder_they_are_run_from(self):
        found = re.findall(r'build/release/(\w+)/([\w-]+)', (ROOT / 'README.md').read_text())
        self.assertEqual({name for _, name in found}, set(COMMAND_SOURCES))
        for folder, name in found:
            self.assertEqual(folder, COMMAND_SOURCES[name])
            self.assertRegex((ROOT / folder / 'CMakeLists.txt').read_text(), rf'\b{name}\b')

    def test_server_flags_in_documents_exist(self):
        config = (ROOT / 'server/flags.cc').read_text()
        for document in (ROOT / 'README.md', ROOT / 'deploy/README.md'):
            text = document.read_text()
            lines = [line for line in shell_lines(text) if re.search('(?<!--target )deeppcr-server', line)]
            flags = re.findall(r'--(\w+)', ' '.join(lines))
            flags += re.findall(r'`(?:deeppcr-server )?--(\w+_\w+|probe)', text)
            for flag in flags:
                self.assertIn(f'"{flag}"', config, f'{document.name}: --{flag}')

    def test_client_flags_in_the_readme_exist(self):
        sources = ''.join(path.read_text() for path in (ROOT / 'client').rglob('*.cc'))
        lines = [line for line in shell_lines((ROOT / 'README.md').read_text())
                 if 'client/deeppcr ' in line]
        self.assertGreaterEqual(len(lines), 4)
        for line in lines:
            subcommand = line.split('client/deeppcr ')[1].split()[0]
            self.assertIn(f'"{subcommand}"', sources)
            for flag in re.findall(r'--\w+', line):
                self.assertIn(f'"{flag}', sources, line)

    def test_readme_lists_every_solver(self):
        readme = (ROOT / 'README.md').read_text()
        registry = (ROOT / 'kernels/solver/registry.cc').read_text()
        section = readme.partition('\n## Solvers\n')[2].partition('\n## ')[0]
        listed = re.findall(r'^\| `(\w+)` \|', section, re.MULTILINE)[1:]
        registered = re.findall(r'\.name = "(\w+)"', registry)
        self.assertGreaterEqual(len(registered), 5)
        self.assertEqual(listed, registered + ['auto'])

    def test_first_screen_has_the_two_commands_and_the_honest_words(self):
        first = '\n'.join((ROOT / 'README.md').read_text().splitlines()[:25])
        for words in ('deploy/demo.sh', 'tests/run.sh', 'On a CPU the `sequential` solver nearly '
                      'always wins', 'GPU: measured, and not yet taken by `auto`',
                      'all of their tests but one on an H200'):
            self.assertIn(words, ' '.join(first.split()))


class MeasuredFiguresTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.readme = self.folder / 'R.md'
        self.readme.write_text('a\n<!-- measured: t -->\nold\n<!-- end measured -->\nb\n')

    def result(self, date, rows):
        path = self.folder / 'results' / date / 'x.json'
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({
            'date': date, 'machine': 'm', 'commit': 'c',
            'tables': [{'name': 't', 'columns': ['what', 'us'], 'rows': rows}]}))

    def run_tables(self, *flags):
        return tables('--readme', str(self.readme), '--results', str(self.folder / 'results'),
                      *flags)

    def test_this_readme_is_what_the_result_files_say(self):
        result = tables('--check')
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_without_results_it_says_so(self):
        self.assertEqual(self.run_tables().returncode, 0)
        self.assertIn('-->\nNot yet measured.\n<!--', self.readme.read_text())

    def test_newest_result_fills_the_block(self):
        self.result('2001-01-01', [['w', 1.0]])
        self.result('2002-01-01', [['w', 2.34567]])
        self.assertEqual(self.run_tables('--check').returncode, 1)
        self.assertEqual(self.run_tables().returncode, 0)
        text = self.readme.read_text()
        self.assertIn('| w | 2.35 |', text)
        self.assertIn('2002-01-01', text)
        self.assertNotIn('old', text)
        self.assertEqual(self.run_tables('--check').returncode, 0)

    def test_a_typed_figure_is_caught(self):
        self.result('2002-01-01', [['w', 2.0]])
        self.run_tables()
        self.readme.write_text(self.readme.read_text().replace('| w | 2 |', '| w | 1 |'))
        self.assertEqual(self.run_tables('--check').returncode, 1)

    def test_a_block_selects_rows_and_columns(self):
        self.result('2002-01-01', [['w', 2.0], ['x', 3.0], ['y = z', 4.0]])
        self.readme.write_text('<!-- measured: t; what = w / y = z; columns = us -->\n'
                               '<!-- end measured -->\n'
                               '<!-- measured: t -->\n<!-- end measured -->\n')
        self.assertEqual(self.run_tables().returncode, 0)
        first, whole = self.readme.read_text().split('<!-- end measured -->\n')[:2]
        self.assertIn('| us |\n|---|\n| 2 |\n| 4 |\n\n', first)
        self.assertIn('| x | 3 |', whole)
        self.assertEqual(self.run_tables('--check').returncode, 0)

    def test_a_selection_of_what_is_not_there_is_refused(self):
        self.result('2002-01-01', [['w', 2.0]])
        for selection, said in (('what = v', "no ['v']"), ('columns = ms', "no ['ms']"),
                                ('when = w', 'no column for "when = w"')):
            self.readme.write_text(f'<!-- measured: t; {selection} -->\n<!-- end measured -->\n')
            self.assertIn(said, self.run_tables().stderr)

    def test_unclosed_block_and_ragged_row_are_refused(self):
        self.result('2002-01-01', [['w']])
        self.assertIn('1 cells', self.run_tables().stderr)
        self.readme.write_text('<!-- measured: t -->\n')
        self.assertIn('never closed', self.run_tables().stderr)


if __name__ == '__main__':
    unittest.main()
