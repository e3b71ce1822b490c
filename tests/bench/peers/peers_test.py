#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison with peers, without their packages: what is refused, and what a file holds.

usage: peers_test.py [LIBDEEPPCR]
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import measure_peers  # noqa: E402  pylint: disable=wrong-import-position

import calls  # noqa: E402  pylint: disable=wrong-import-position
import native  # noqa: E402  pylint: disable=wrong-import-position
import numpy as np  # noqa: E402  pylint: disable=wrong-import-position
import peer_tables  # noqa: E402  pylint: disable=wrong-import-position
import problems  # noqa: E402  pylint: disable=wrong-import-position
import protocol  # noqa: E402  pylint: disable=wrong-import-position

LIBRARY = pathlib.Path(sys.argv.pop(1)) if sys.argv[1:2] and '/' in sys.argv[1] else None
EXPECTED = np.array([[1.0, 2.0], [-4.0, 0.5]])
OPTIONS = {'limit': 10, 'seconds': 0.001}


def said(_):
    pass


def answering(values):
    return lambda: calls.PythonCall(lambda: values)


def row_of(*builds):
    settings = [calls.Setting(f's{i}', build) for i, build in enumerate(builds)]
    return protocol.row_of(settings, EXPECTED, {'c_loop': calls.PythonCall(lambda: EXPECTED)},
                           OPTIONS, said)


def failing():
    raise ValueError('no such thing\nindeed')


def sleeping():
    return calls.PythonCall(lambda: (protocol.time.sleep(0.01), EXPECTED)[1])


class CandidateTest(unittest.TestCase):

    def test_a_right_answer_is_timed(self):
        row = row_of(answering(EXPECTED * (1 + 1e-6)))
        self.assertEqual(row['status'], 'measured')
        self.assertAlmostEqual(row['error'], 1e-6, delta=1e-9)
        self.assertGreaterEqual(row['turns'], protocol.LEAST_TURNS)
        self.assertGreater(row['min_us'], 0)
        self.assertEqual(set(row['to_c_loop']), {'min', 'paired'})

    def test_a_wrong_answer_is_refused_and_gets_no_time(self):
        row = row_of(answering(EXPECTED * (1 + 1e-3)))
        self.assertEqual(row['status'], 'wrong')
        self.assertAlmostEqual(row['error'], 1e-3, delta=1e-6)
        self.assertNotIn('min_us', row)
        self.assertNotIn('trial_us', row['settings'][0])

    def test_no_number_and_another_shape_are_wrong(self):
        for values in (np.full((2, 2), np.nan), EXPECTED[:1], EXPECTED.T[:, :1]):
            self.assertEqual(row_of(answering(values))['status'], 'wrong')

    def test_the_fastest_right_setting_is_measured(self):
        row = row_of(answering(EXPECTED + 1), sleeping, answering(EXPECTED), failing)
        self.assertEqual((row['status'], row['setting']), ('measured', 's2'))
        self.assertEqual([s['status'] for s in row['settings']],
                         ['wrong', 'right', 'right', 'failed'])

    def test_what_fails_says_why(self):
        row = row_of(failing)
        self.assertEqual((row['status'], row['reason']), ('failed', 'ValueError: indeed'))

    def test_no_setting_begins_when_half_of_the_limit_is_over(self):
        with mock.patch.dict(OPTIONS, limit=0):
            row = row_of(answering(EXPECTED), answering(EXPECTED))
        self.assertEqual([s['status'] for s in row['settings']], ['right', 'not tried'])


class ProcessTest(unittest.TestCase):

    def run_python(self, program, limit=20):
        return measure_peers.run_child([sys.executable, '-c', program], limit,
                                       subprocess.DEVNULL)

    def test_one_that_takes_too_long_is_ended_and_says_so(self):
        row = self.run_python('import time; time.sleep(60)', 0.3)
        self.assertEqual(row['status'], 'no answer')
        self.assertEqual(row['reason'], 'no answer within 0.3 s')

    def test_what_was_right_before_is_worth_another_process(self):
        row = self.run_python('import json, time\n'
                              'print(json.dumps({"stage": "trying", "setting": "b", "before": 2,'
                              ' "right": 1}), flush=True)\n'
                              'time.sleep(60)', 2)
        self.assertEqual((row['status'], row['most_settings']), ('no answer', 2))

    def test_one_that_dies_is_a_row(self):
        row = self.run_python('import os; os._exit(3)')
        self.assertEqual((row['status'], row['reason']), ('failed', 'ended with status 3'))

    def test_the_row_of_the_last_line_is_taken(self):
        row = self.run_python('import json\n'
                              'print(json.dumps({"stage": "trying", "setting": "a"}))\n'
                              'print(json.dumps({"stage": "done", "row": {"status": "wrong"}}))')
        self.assertEqual(row, {'status': 'wrong'})


class TablesTest(unittest.TestCase):

    def test_who_is_ahead_is_said(self):
        def row(least, paired, **fields):
            return {'engine': 'E', 'form': 'f', 'to_ours': {'min': least, 'paired': paired}} | fields
        self.assertEqual(peer_tables.ahead(row(0.9, 0.8)), 'YES')
        self.assertEqual(peer_tables.ahead(row(0.9, 1.1)), 'by minima')
        self.assertEqual(peer_tables.ahead(row(1.2, 0.9)), 'by turns')
        self.assertEqual(peer_tables.ahead(row(1.0, 2.0)), 'no')
        self.assertEqual(peer_tables.ahead(row(0.5, 0.5, form=peer_tables.BYTES)), '')


class WholeTest(unittest.TestCase):
    """What needs no package: the C loop, ours where it is built, and one that is missing."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.out = cls.folder / 'results/cpu/peers.json'
        arguments = measure_peers.parsed(
            ['--out', str(cls.out), '--scratch', str(cls.folder / 'scratch'),
             '--workloads', 'W1,W4', '--samples', '1', '--seconds', '0.01',
             '--engines', 'c_engine,ours,jax_engine',
             *(['--library', str(LIBRARY)] if LIBRARY else [])])
        missing = ('JAX', ('no_such_package_of_peers',), ('jit lax.scan',))
        with mock.patch.dict(measure_peers.ENGINES, jax_engine=missing):
            measure_peers.measure(arguments)
        cls.result = json.loads(cls.out.read_text(encoding='utf-8'))

    def row(self, workload, form):
        found = [r for r in self.result['rows'] if (r['workload'], r['form']) == (workload, form)]
        self.assertEqual(len(found), 1, (workload, form))
        return found[0]

    def test_the_c_loops_are_right_and_timed(self):
        for workload in ('W1', 'W4'):
            for form in ('plain', '-ffast-math'):
                row = self.row(workload, form)
                self.assertEqual(row['status'], 'measured', row)
                self.assertLess(row['error'], 1e-5)

    def test_the_bytes_are_those_of_diffusion_models(self):
        self.assertEqual(self.row('W4', peer_tables.BYTES)['status'], 'measured')
        self.assertNotIn(('W1', peer_tables.BYTES),
                         [(r['workload'], r['form']) for r in self.result['rows']])

    def test_a_missing_package_is_a_row(self):
        row = self.row('W1', 'jit lax.scan')
        self.assertEqual(row['status'], 'not installed')
        self.assertIn('no_such_package_of_peers', row['reason'])

    def test_ours_is_measured_or_a_row(self):
        built = LIBRARY is not None and LIBRARY.exists()
        for workload in ('W1', 'W4'):
            row = self.row(workload, 'auto')
            self.assertEqual(row['status'], 'measured' if built else 'not installed', row)
            if built:
                self.assertEqual(row['setting'], 'sequential')
                self.assertIn('to_ours', self.row(workload, 'plain'))
        if built:
            self.assertGreater(self.row('W4', 'auto')['to_bytes']['paired'], 0)

    def test_the_file_holds_what_readme_tables_reads(self):
        for key in ('date', 'machine', 'commit', 'command', 'tables', 'rows'):
            self.assertIn(key, self.result)
        names = [table['name'] for table in self.result['tables']]
        self.assertEqual(names, ['peers-w1', 'peers-w4', 'peers-ahead', 'peers-bytes'])
        for table in self.result['tables']:
            for row in table['rows']:
                self.assertEqual(len(row), len(table['columns']), table['name'])
        for row in self.result['rows']:
            self.assertIn(row['status'], protocol.STATUSES)
            self.assertEqual('min_us' in row, row['status'] == 'measured', row)

    def test_a_row_is_a_line(self):
        lines = self.out.read_text(encoding='utf-8').splitlines()
        self.assertEqual(sum(line.strip().startswith('{"workload"') for line in lines),
                         len(self.result['rows']))


class ProblemTest(unittest.TestCase):

    def test_handed_arrays_are_aligned_and_transposed(self):
        problem = problems.load('W1', pathlib.Path('/nonexistent'))
        handed = native.Handed(problem, 1)
        self.assertTrue(all(a.ctypes.data % native.ALIGNMENT == 0 for a in handed.arrays))
        np.testing.assert_array_equal(handed.arrays[4][5], problem.weights[5].T)


if __name__ == '__main__':
    unittest.main()
