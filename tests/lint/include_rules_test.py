#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one violation at a time in a small tree, and runs the rules over the repository itself."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import include_rules  # pylint: disable=wrong-import-position

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def header(name, body=''):
    guard = include_rules.expected_guard(name)
    return f'#ifndef {guard}\n#define {guard}\n{body}\n#endif  // {guard}\n'


CLEAN = {
    name: header(name) for name in (
        'kernels/base/shape.h', 'kernels/engine.h', 'kernels/solver/options.h',
        'kernels/solver/newton.h', 'kernels/model/model.h', 'kernels/backend/backend.h',
        'kernels/backend/registry.h', 'kernels/cpu/cpu_backend.h', 'kernels/cuda/args.h',
        'server/codec.h')
}


class IncludeRulesTest(unittest.TestCase):

    def complaints(self, extra):
        with tempfile.TemporaryDirectory() as root:
            for name, text in {**CLEAN, **extra}.items():
                path = pathlib.Path(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding='utf-8')
            return include_rules.Checker(root).run()

    def assert_refused(self, name, line, word):
        found = self.complaints({name: line + '\n'})
        self.assertEqual(len(found), 1, found)
        self.assertIn(name, found[0])
        self.assertIn(word, found[0])

    def assert_refused_by_way_of(self, route, files):
        found = self.complaints(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(route, found[0])

    def test_clean_tree_passes(self):
        allowed = {
            'server/main.cc': '#include "kernels/engine.h"\n#include "kernels/solver/options.h"\n'
                              '#include "deeppcr/v1/deeppcr.pb.h"\n#include <grpcpp/grpcpp.h>\n',
            'kernels/backend/registry.cc': '#include "kernels/cpu/cpu_backend.h"\n',
            'kernels/solver/newton.cc': '#include "kernels/backend/backend.h"\n#include <vector>\n',
            'kernels/cuda/pcr.cu': '#include "kernels/cuda/args.h"\n#include <cuda_runtime.h>\n',
        }
        self.assertEqual(self.complaints(allowed), [])

    def test_server_sees_only_the_engine(self):
        self.assert_refused('server/a.cc', '#include "kernels/solver/newton.h"', 'newton.h')
        self.assert_refused('server/a.cc', '#include "kernels/model/model.h"', 'model.h')

    def test_solver_knows_no_model_and_no_concrete_backend(self):
        self.assert_refused('kernels/solver/a.cc', '#include "kernels/model/model.h"', 'model.h')
        self.assert_refused('kernels/solver/a.cc', '#include "kernels/cpu/cpu_backend.h"', 'cpu')
        self.assert_refused('kernels/solver/a.cc', '#include "kernels/backend/registry.h"',
                            'registry')

    def test_backends_do_not_know_each_other(self):
        self.assert_refused('kernels/cuda/a.cc', '#include "kernels/cpu/cpu_backend.h"', 'cpu')
        self.assert_refused('kernels/reference/a.cc', '#include "kernels/cpu/cpu_backend.h"',
                            'cpu')

    def test_engine_asks_the_registry_and_knows_no_concrete_backend(self):
        self.assertEqual(self.complaints({
            'kernels/loaded.cc': '#include "kernels/backend/registry.h"\n'
                                 '#include "kernels/solver/newton.h"\n'}), [])
        self.assert_refused('kernels/loaded.cc', '#include "kernels/cpu/cpu_backend.h"', 'cpu')

    def test_new_folder_needs_a_row_in_the_table(self):
        self.assert_refused('kernels/tpu/a.cc', '#include "kernels/engine.h"', 'no layer')

    def test_base_depends_on_nothing_of_ours(self):
        self.assert_refused('kernels/base/a.cc', '#include "kernels/engine.h"', 'engine.h')

    def test_library_knows_no_rpc(self):
        self.assert_refused('kernels/engine.cc', '#include <grpcpp/grpcpp.h>', 'grpcpp')
        self.assert_refused('kernels/engine.cc', '#include "deeppcr/v1/deeppcr.pb.h"', 'deeppcr')

    def test_nvcc_never_sees_abseil(self):
        found = self.complaints({'kernels/cuda/a.cu': '#include "absl/status/status.h"\n'})
        self.assertEqual(len(found), 1)
        indirect = {
            'kernels/cuda/mid.h': header('kernels/cuda/mid.h', '#include "kernels/base/s.h"'),
            'kernels/base/s.h': header('kernels/base/s.h', '#include "absl/status/status.h"'),
            'kernels/cuda/a.cu': '#include "kernels/cuda/mid.h"\n',
        }
        self.assert_refused_by_way_of('kernels/cuda/mid.h > kernels/base/s.h', indirect)

    def test_only_what_needs_a_toolkit_sees_its_headers(self):
        for line in ('#include <cuda_runtime_api.h>', '#include<cublas_v2.h>', '#include <cooperative_groups.h>',
                     '#include <cuda/std/array>', '#include <driver_types.h>', '#include <mma.h>',
                     '#include <nv/target>', '#include <./cuda_runtime_api.h>'):
            for name in ('kernels/cuda/model.cc', 'tests/kernels/cuda/runtime/patience_test.cc'):
                self.assert_refused(name, line, 'every build')
            self.assertEqual(self.complaints({'kernels/cuda/runtime/device.cc': line + '\n'}), [], line)
        indirect = {
            'kernels/cuda/width.h': header('kernels/cuda/width.h', '#include <cuda_runtime_api.h>'),
            'kernels/cuda/places.h': header('kernels/cuda/places.h', '#include "kernels/cuda/width.h"'),
            'kernels/cuda/source.cc': '#include "kernels/cuda/places.h"\n',
        }
        self.assert_refused_by_way_of('kernels/cuda/places.h > kernels/cuda/width.h', indirect)
        self.assertEqual(self.complaints({'kernels/cuda/model.cc': '#include "kernels/cuda/cuda_model.h"\n',
                                          'kernels/cuda/cuda_model.h': header('kernels/cuda/cuda_model.h', '')}), [])

    def test_includes_start_at_the_root(self):
        self.assert_refused('kernels/solver/a.cc', '#include "newton.h"', 'from its root')

    def test_header_guard_follows_the_path(self):
        self.assert_refused('kernels/base/a.h', '#ifndef A_H_\n#define A_H_\n#endif', 'guard')

    def test_this_repository_keeps_the_rules(self):
        checker = include_rules.Checker(REPOSITORY)
        self.assertEqual(checker.run(), [])
        self.assertIn('kernels/engine.h', checker.texts)


if __name__ == '__main__':
    unittest.main()
