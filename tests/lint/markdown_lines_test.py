#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prose that is too long is found, and nothing else is."""

import unittest

import markdown_lines

LONG = 'word ' * 30


class LongLinesTest(unittest.TestCase):

    def test_prose_is_found(self):
        self.assertEqual(markdown_lines.long_lines(f'short\n{LONG}\n- {LONG}\n'), [2, 3])

    def test_what_cannot_be_wrapped_is_left_alone(self):
        for text in (f'```sh\n{LONG}\n```\n', f'| {LONG} |\n', f'![{LONG}](picture.png)\n',
                     f'<!-- measured: t -->\n{LONG}\n<!-- end measured -->\n'):
            self.assertEqual(markdown_lines.long_lines(text), [], text)

    def test_lines_are_counted_through_what_is_left_alone(self):
        self.assertEqual(markdown_lines.long_lines(f'```\n{LONG}\n{LONG}\n```\n\n{LONG}'), [6])


if __name__ == '__main__':
    unittest.main()
