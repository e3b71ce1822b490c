#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Envoy with deploy/envoy.yaml in front of two servers.

usage: PYTHON envoy_test.py SERVER_BINARY   where PYTHON has envoy_requirements.txt
"""

import collections
import pathlib
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import numpy as np
import tritonclient.grpc as triton
import yaml
from running_server import ROOT, RunningServer

ENVOY = pathlib.Path(sys.executable).with_name('envoy')
CONFIG = ROOT / 'deploy/envoy.yaml'
DIGITS = np.load(ROOT / 'deploy/models/data/digits_heldout.npy').astype(np.float32)


def digits(count):
    tensor = triton.InferInput('inputs', [count, DIGITS.shape[1]], 'FP32')
    tensor.set_data_from_numpy(DIGITS[:count])
    return tensor


def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def at(port):
    return {'socket_address': {'address': '127.0.0.1', 'port_value': port}}


class EnvoyTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.servers = [self.enterContext(RunningServer(BINARY, ['--drain_pause_seconds=4']))
                        for _ in range(2)]
        self.client = triton.InferenceServerClient(self.start_envoy())
        self.addCleanup(self.client.close)
        self.expected = self.call().as_numpy('outputs')

    def start_envoy(self):
        """The shipped configuration but for its addresses."""
        config = yaml.safe_load(CONFIG.read_text(encoding='utf-8'))
        port, self.admin = free_port(), free_port()
        config['admin']['address'] = at(self.admin)
        config['static_resources']['listeners'][0]['address'] = at(port)
        cluster = config['static_resources']['clusters'][0]
        cluster['load_assignment']['endpoints'][0]['lb_endpoints'] = [
            {'endpoint': {'address': at(int(server.address.split(':')[1]))}}
            for server in self.servers]
        path = self.folder / 'envoy.yaml'
        path.write_text(yaml.safe_dump(config), encoding='utf-8')
        log = self.enterContext(open(self.folder / 'log', 'w', encoding='utf-8'))
        envoy = subprocess.Popen([ENVOY, '-c', path, '--use-dynamic-base-id', '-l', 'warning'],
                                 stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(envoy.wait)
        self.addCleanup(envoy.terminate)
        self.await_healthy(2)
        return f'127.0.0.1:{port}'

    def healthy(self):
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{self.admin}/clusters') as page:
                return page.read().decode().count('health_flags::healthy')
        except OSError:
            return 0

    def await_healthy(self, count):
        deadline = time.monotonic() + 60
        while self.healthy() != count:
            self.assertLess(time.monotonic(), deadline,
                            (self.folder / 'log').read_text(encoding='utf-8'))
            time.sleep(0.1)

    def call(self):
        return self.client.infer('digits-mlp', [digits(2)], client_timeout=20)

    def calls_during(self, action):
        """Calls by four threads while action() runs, and for a moment after it."""
        done, ends = threading.Event(), collections.Counter()

        def work():
            while not done.is_set():
                try:
                    same = np.array_equal(self.call().as_numpy('outputs'), self.expected)
                    ends['answered' if same else 'other bits'] += 1
                except triton.InferenceServerException as error:
                    ends[str(error)] += 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        action()
        time.sleep(2)
        done.set()
        for thread in threads:
            thread.join()
        return ends

    def answered(self, server):
        return server.metric('deeppcr_requests_total{code="OK",method="ModelInfer",'
                             'model="digits-mlp"}')

    def test_every_server_gets_its_part(self):
        self.assertEqual(set(self.calls_during(lambda: None)), {'answered'})
        parts = [self.answered(server) for server in self.servers]
        self.assertGreater(min(parts), 0.2 * sum(parts))

    def test_a_server_that_stops_costs_no_call(self):
        self.assertEqual(set(self.calls_during(self.servers[0].stop)), {'answered'})
        self.assertEqual(self.healthy(), 1)

    def test_a_server_that_is_killed_costs_no_call(self):
        self.assertEqual(set(self.calls_during(self.servers[1].kill)), {'answered'})

    def test_the_errors_of_the_server_arrive(self):
        with self.assertRaisesRegex(triton.InferenceServerException, 'DEADLINE_EXCEEDED'):
            self.client.infer('digits-mlp', [digits(2)], timeout=1)
        with self.assertRaisesRegex(triton.InferenceServerException, 'NOT_FOUND'):
            self.client.infer('nobody', [digits(2)])

    def test_streams_come_through(self):
        answers = queue.Queue()
        self.client.start_stream(lambda result, error: answers.put((result, error)))
        # As many as the queue of one server holds, however slow it is.
        for _ in range(15):
            self.client.async_stream_infer('digits-mlp', [digits(64)])
        for _ in range(15):
            result, error = answers.get(timeout=30)
            self.assertIsNone(error, str(error))
            self.assertEqual(len(result.as_numpy('outputs')), 64)
        self.client.stop_stream()


class ConfigurationTest(unittest.TestCase):
    def test_envoy_takes_the_shipped_file(self):
        checked = subprocess.run([ENVOY, '--mode', 'validate', '-c', CONFIG], capture_output=True,
                                 check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr.decode())


if __name__ == '__main__':
    BINARY = sys.argv.pop()
    unittest.main(verbosity=2)
