#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
import unittest

import one_definition

HEADER = 'namespace a {\nstruct B {\n  int c;\n};\ntemplate <class T>\nclass D : public E {\n}  // namespace a\n'


class OneDefinitionTest(unittest.TestCase):
    def test_names_both_files(self):
        self.assertEqual(one_definition.complaints_about([('x.h', HEADER), ('y.h', HEADER)]),
                         ['x.h, y.h: each defines a::B', 'x.h, y.h: each defines a::D'])

    def test_other_namespaces_are_others(self):
        other = HEADER.replace('namespace a', 'namespace b')
        hidden = HEADER.replace('struct', 'namespace {\nstruct').replace('template', '}  // namespace\ntemplate')
        self.assertEqual(one_definition.complaints_about([('x.h', HEADER), ('y.h', other)]), [])
        self.assertEqual(one_definition.types_of(hidden), ['a::D'])

    def test_declarations_are_none(self):
        self.assertEqual(one_definition.types_of('namespace a {\nstruct B;\nclass C final;\n'), [])


if __name__ == '__main__':
    unittest.main()
