#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's perf_analyzer, as it is published, drives the server.

usage: PYTHON perf_analyzer_test.py SERVER_BINARY [FAKE_CUDA_FOLDER FAKE_NVML]
where PYTHON has perf_analyzer_requirements.txt, and beside it the packages that these name. With a
fake GPU, a server on it shows what --collect-metrics reads.
"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from running_server import RunningServer

ENVIRONMENT = pathlib.Path(sys.executable).parents[1]
ANALYZER = ENVIRONMENT / 'bin/perf_analyzer'
LIBRARIES = next(ENVIRONMENT.glob('lib/python3*/site-packages/nvidia/cuda_runtime/lib'), '')
GPU_COLUMNS = ('Avg GPU Utilization', 'Avg GPU Power Usage', 'Max GPU Memory Usage',
               'Total GPU Memory')


def write_small_model(folder, layers=4, width=8):
    """A model that a GPU of fibers answers for in no time."""
    folder.mkdir(parents=True)
    config = {'model_type': 'mlp', 'state_dim': width, 'input_dim': width, 'output_dim': width,
              'num_layers': layers, 'activation': 'tanh', 'max_batch_size': 4}
    (folder / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    weights = np.linspace(-0.2, 0.2, layers * width * width, dtype=np.float32).tobytes()
    header = json.dumps({'layers.weight': {
        'dtype': 'F32', 'shape': [layers, width, width], 'data_offsets': [0, len(weights)]}})
    (folder / 'model.safetensors').write_bytes(
        len(header).to_bytes(8, 'little') + header.encode() + weights)


class PerfAnalyzerTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def analyze(self, server, *flags, model='digits-mlp'):
        """Rows of the measurement, and what the program said."""
        table = self.folder / 'table.csv'
        command = [ANALYZER, '-m', model, '-i', 'grpc', '-u', server.address, '-p', '500',
                   '--max-trials', '10', '-s', '999', '-f', table, '--verbose-csv', *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120,
                              env={**os.environ, 'LD_LIBRARY_PATH': str(LIBRARIES)})
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        with open(table, encoding='utf-8', newline='') as file:
            rows = list(csv.DictReader(file))
        self.assertTrue(rows, said)
        for row in rows:
            self.assertGreater(float(row['Inferences/Second']), 10, said)
        return rows, said

    def test_concurrency_batches_streams_and_rates(self):
        with RunningServer(BINARY) as server:
            rows, _ = self.analyze(server, '--concurrency-range', '1:2')
            self.assertEqual({row['Concurrency'] for row in rows}, {'1', '2'})
            # Its own statistics of the server, as it reads them before and after.
            self.assertGreater(float(rows[0]['Server Compute Infer']), 0)
            self.analyze(server, '-b', '8')
            self.analyze(server, '--streaming', '--concurrency-range', '2')
            self.analyze(server, '--request-rate-range', '50', '--request-distribution',
                         'poisson')
            # Numbers of its own are no labels.
            self.analyze(server, '--input-data', 'zero', model='digits-class')
            failed = 'deeppcr_requests_total{code="INTERNAL",method="ModelInfer"'
            self.assertNotIn(failed, server.said())

    @unittest.skipUnless(len(sys.argv) > 3, 'needs the fake GPU')
    def test_metrics_of_the_gpu_are_found(self):
        environment = {'DEEPPCR_MODULE_DIR': FAKE_CUDA,
                       'LD_LIBRARY_PATH': str(pathlib.Path(FAKE_NVML).parent)}
        write_small_model(self.folder / 'models/small/1')
        with RunningServer(BINARY, ['--backend=cuda'], self.folder / 'models',
                           environment) as server:
            rows, said = self.analyze(server, '--collect-metrics', '--metrics-url',
                                      f'{server.http}/metrics', '--metrics-interval', '100',
                                      model='small')
        self.assertNotIn('Unable to parse', said)
        for column in GPU_COLUMNS:
            self.assertIn('GPU-1:', rows[0][column])


if __name__ == '__main__':
    BINARY, FAKE_CUDA, FAKE_NVML = (sys.argv[1:] + [None, None])[:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
