#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results switch `auto` to CUDA only if they are of these sources and this compiler, and all passed.

usage: cuda_evidence_test.py CMAKE_COMMAND
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / 'kernels/cuda_evidence.cmake'
CMAKE = 'cmake'


class CudaEvidenceTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / 'results/h100').mkdir(parents=True)
        (self.root / 'a.cu').write_text('__global__ void a() {}\n')
        (self.root / 'b.h').write_text('int b;\n')
        self.evidence()
        self.hash = self.key().split()[0]

    def key(self):
        return (self.root / 'key').read_text()

    def evidence(self, compiler='13.0.88', **results):
        """What the script finds beside this result file, if there is one."""
        (self.root / 'sources').write_text('b.h\na.cu\n')
        if results:
            (self.root / 'results/h100/results.json').write_text(json.dumps(results))
        done = subprocess.run(
            [CMAKE, '-D', f'SOURCES={self.root}/sources', '-D', f'ROOT={self.root}', '-D', f'NVCC={compiler}',
             '-D', f'RESULTS={self.root}/results', '-D', f'OUTPUT={self.root}/evidence.cc', '-D',
             f'KEY={self.root}/key', '-P', SCRIPT], check=True, capture_output=True, text=True)
        self.assertEqual(done.stderr, '')
        return re.search(r'kCudaEvidence\[\] = "(.*)"', (self.root / 'evidence.cc').read_text()).group(1)

    def good(self, **changes):
        return {'cuda_sources': self.hash, 'nvcc': '13.0', 'failed': {}, 'tests_passed': True,
                **changes}

    def test_there_is_none_without_results(self):
        self.assertEqual(self.evidence(), '')

    def test_passed_results_of_these_sources_are_some(self):
        self.assertEqual(self.evidence(**self.good()), 'h100/results.json')
        self.assertEqual(self.key(), f'{self.hash} 13.0\n')

    def test_other_sources_or_another_compiler_are_none(self):
        self.assertEqual(self.evidence(**self.good(cuda_sources='0' * 64)), '')
        self.assertEqual(self.evidence(**self.good(nvcc='12.9')), '')
        self.assertEqual(self.evidence('13.1.2', **self.good()), '')
        self.assertEqual(self.evidence('', **self.good(nvcc='')), '', 'a build without nvcc')
        (self.root / 'b.h').write_text('int c;\n')
        self.assertEqual(self.evidence(**self.good()), '')

    def test_failures_and_tests_that_did_not_run_are_none(self):
        self.assertEqual(self.evidence(**self.good(failed={'check newton': 'crashed'})), '')
        self.assertEqual(self.evidence(**self.good(tests_passed=False)), '')
        for key in ('cuda_sources', 'nvcc', 'failed', 'tests_passed'):
            results = self.good()
            del results[key]
            self.assertEqual(self.evidence(**results), '', key)

    def test_files_that_are_no_results_are_passed_over(self):
        (self.root / 'results/h100/broken.json').write_text('{"cuda_sources": ')
        (self.root / 'results/h100/list.json').write_text('[1, 2]')
        self.assertEqual(self.evidence(**self.good()), 'h100/results.json')


if __name__ == '__main__':
    CMAKE = sys.argv.pop(1)
    unittest.main()
