#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python client where requests are split, things change meanwhile, or arguments are odd.

usage: client_edges_test.py SERVER
"""

import asyncio
import json
import os
import pathlib
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import installed

installed.on_path()

import deeppcr  # noqa: E402
import deeppcr.aio  # noqa: E402

SERVER = ''
MODELS = installed.ROOT / 'deploy/models/repository'
MOST = 256  # samples of a request to digits-class


def repository(folder, *models):
    for model in models:
        shutil.copytree(MODELS / model, pathlib.Path(folder) / model)
    return folder


class SplitTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        repository(cls.folder.name, 'digits-class', 'digits-mlp')
        cls.server = deeppcr.serve(cls.folder.name, binary=SERVER, shadow_rate=0, gradients=True)
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()
        cls.folder.cleanup()

    def test_rows_that_are_too_few_are_refused_before_anything_is_sent(self):
        wrong = {'class_labels': [0] * MOST, 'initial_noise': np.zeros((MOST, 16), np.float32)}
        for name, value in wrong.items():
            arguments = {'class_labels': [1], name: value}
            with self.assertRaisesRegex(ValueError, f'{name}: expected 1 or {2 * MOST} rows, got {MOST}'):
                self.client.generate('digits-class', 2 * MOST, **arguments)
            with self.assertRaisesRegex(ValueError, 'rows, got'):
                asyncio.run(self.awaited('generate', 'digits-class', 2 * MOST, **arguments))
        with self.assertRaisesRegex(ValueError, 'initial_states: expected 300 rows, got 7'):
            self.client.generate('digits-class', 300, class_labels=[1], initial_states=np.zeros((7, 9, 16)))

    async def awaited(self, call, *arguments, **named):
        async with deeppcr.aio.Client(self.server.address) as client:
            return await getattr(client, call)(*arguments, **named)

    def test_a_trajectory_is_kept_of_one_request(self):
        with self.assertRaisesRegex(ValueError, f'keep_trajectory: expected at most {MOST} samples'):
            self.client.generate('digits-class', MOST + 1, class_labels=[1], keep_trajectory=True)
        with self.assertRaisesRegex(ValueError, 'keep_trajectory: expected at most'):
            asyncio.run(self.awaited('forward', 'digits-mlp', np.zeros((5000, 64)), keep_trajectory=True))
        kept = self.client.generate('digits-class', MOST, class_labels=[1], keep_trajectory=True)
        self.assertTrue(kept.handle)

    def test_one_version_answers_all_requests_of_a_call(self):
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, 'digits-class')
            versions = pathlib.Path(folder) / 'digits-class'
            shutil.copytree(versions / '1', versions / '2')
            with deeppcr.serve(folder, binary=SERVER, shadow_rate=0, versions='all') as server:
                with server.client() as client, server.client() as other:
                    events = client.generate_events('digits-class', MOST + 1, class_labels=[1])
                    for event in events:
                        if isinstance(event, deeppcr.Progress):
                            other.unload('digits-class', 2)
                            break
                    with self.assertRaisesRegex(deeppcr.UnavailableError, 'version 2 .* call again'):
                        list(events)
                    self.assertEqual(client.generate('digits-class', MOST + 1,
                                                     class_labels=[1]).report.model_version, 1)

    def test_a_condition_of_one_row_is_for_all(self):
        whole = self.client.generate('digits-class', MOST + 4, class_labels=[3], seed=5)
        tail = self.client.generate('digits-class', 4, class_labels=[3], seed=5, first_sample=MOST)
        np.testing.assert_array_equal(whole[MOST:], tail)

    def test_a_timeout_is_for_all_requests_together(self):
        started = time.monotonic()
        with self.assertRaises(deeppcr.DeadlineExceededError):
            self.client.generate('digits-class', 400 * MOST, class_labels=[1], num_inference_steps=20,
                                 timeout=0.5)
        self.assertLess(time.monotonic() - started, 5)
        for timeout in (0, -1, float('inf'), float('nan')):
            with self.assertRaisesRegex(ValueError, 'timeout: expected a number of seconds above 0'):
                self.client.models(timeout=timeout)
            with self.assertRaisesRegex(ValueError, 'timeout: expected'):
                deeppcr.Client('localhost:1', timeout=timeout)

    def test_progress_names_samples_of_the_whole(self):
        seen = set()
        for event in self.client.generate_events('digits-class', 2 * MOST + 3, class_labels=[1]):
            if isinstance(event, deeppcr.Progress):
                seen.add(event.sample)
        self.assertGreaterEqual(max(seen), 2 * MOST)
        self.assertLess(max(seen), 2 * MOST + 3)

    def test_what_a_model_takes_is_asked_anew_after_a_refusal(self):
        self.client.generate('digits-class', 300, class_labels=[1])
        path = pathlib.Path(self.folder.name) / 'digits-class/1/config.json'
        before = path.read_text()
        self.addCleanup(lambda: (path.write_text(before), self.client.load('digits-class')))
        path.write_text(json.dumps(json.loads(before) | {'max_batch_size': 32}))
        with self.server.client() as another:
            another.load('digits-class')
        with self.assertRaisesRegex(deeppcr.InvalidArgumentError, r'\[1, 32\]'):
            self.client.generate('digits-class', 100, class_labels=[1])
        self.assertEqual(len(self.client.generate('digits-class', 100, class_labels=[1])), 100)

    def test_a_model_that_does_not_serve_says_why_and_serves_later(self):
        folder = pathlib.Path(self.folder.name) / 'late'
        shutil.copytree(MODELS / 'digits-mlp', folder)
        weights = folder / '1/model.safetensors'
        content = weights.read_bytes()
        weights.write_bytes(content[:100])
        with self.server.client() as other:
            with self.assertRaises(deeppcr.DeepPcrError):
                other.load('late')
            rows = np.zeros((3, 64), np.float32)
            with self.assertRaisesRegex(deeppcr.DeepPcrError, 'late'):
                self.client.forward('late', rows)

            async def ask(expected):
                async with deeppcr.aio.Client(self.server.address) as client:
                    with self.assertRaisesRegex(deeppcr.DeepPcrError, 'late'):
                        await client.forward('late', rows)
                    weights.write_bytes(content)
                    other.load('late')
                    self.assertEqual(len(await client.forward('late', rows)), expected)

            asyncio.run(ask(3))
        self.assertEqual(len(self.client.forward('late', rows)), 3)

    def test_answers_are_read_only_whether_split_or_not(self):
        for n in (2, MOST + 1):
            self.assertFalse(self.client.generate('digits-class', n, class_labels=[1]).flags.writeable)

    def test_policies_go_on_after_a_change_of_rows_or_a_refusal(self):
        policy = self.client.policy('digits-mlp', solver='newton')
        x = np.random.default_rng(1).random((2, 64), np.float32)
        one = policy.act(x[0])
        two = policy.act(x)
        np.testing.assert_allclose(two[0], one[0], rtol=1e-3, atol=1e-3)
        with self.assertRaises(deeppcr.InvalidArgumentError):
            policy.act(x, rtol=7.0)
        policy.act(x)
        generating = self.client.policy('digits-class', class_labels=[1])
        generating.act()
        generating.act(num_inference_steps=7)
        generating.act()

    def test_gradients_count_the_rows_and_come_to_asyncio(self):
        given = {'class_labels': [0, 1, 2], 'seed': 1, 'cotangents': np.ones((3, 64)), 'by': 'initial_state'}
        gradients = self.client.gradient('digits-class', **given)
        self.assertEqual(gradients.initial_state.shape, (3, 16))
        inputs, targets = np.zeros((2, 64), np.float32), np.zeros((2, 10))
        by_name, _ = self.client.parameter_gradients('digits-mlp', inputs, loss='mse', targets=targets)
        again, _ = asyncio.run(self.awaited('parameter_gradients', 'digits-mlp', inputs, loss='mse',
                                            targets=targets))
        self.assertEqual(set(by_name), set(again))
        for name, tensor in by_name.items():
            np.testing.assert_array_equal(tensor, again[name])

    def test_names_are_in_the_errors_of_arguments(self):
        for arguments, problem in (({'seed': -1}, 'seed: '), ({'temperature': 'hot'}, 'temperature: '),
                                   ({'rtol': 'small'}, 'rtol: ')):
            with self.assertRaisesRegex((TypeError, ValueError), problem):
                self.client.generate('digits-class', 1, class_labels=[1], **arguments)
        with self.assertRaisesRegex(TypeError, 'compare of inputs: unexpected sed'):
            self.client.compare('digits-mlp', np.zeros((1, 64)), sed=3)
        with self.assertRaisesRegex(TypeError, 'inputs: expected an array or a tensor'):
            self.client.forward('digits-mlp', [[1.0], [1.0, 2.0]])
        self.assertEqual(len(self.client.compare('digits-mlp', np.zeros((1, 64)), solvers='newton').rows), 1)

    def test_reports_are_pickled(self):
        report = self.client.generate('digits-class', 2, class_labels=[1]).report
        self.assertEqual(pickle.loads(pickle.dumps(report)).message, report.message)
        table = self.client.compare('digits-mlp', np.zeros((1, 64)), solvers='newton')
        self.assertEqual(pickle.loads(pickle.dumps(table)).message, table.message)

    def test_a_closed_client_says_so(self):
        client = self.server.client()
        client.models()
        client.close()
        with self.assertRaisesRegex(deeppcr.DeepPcrError, 'this Client is closed'):
            client.models()
        with self.assertRaisesRegex(deeppcr.DeepPcrError, 'this Client is closed'):
            list(client.generate_events('digits-class', 1, class_labels=[1]))
        self.assertFalse(client.is_ready())

    def test_an_initial_guess_may_be_of_one_sample(self):
        result = self.client.generate('digits-class', 1, class_labels=[1], return_trajectory=True)
        again = self.client.generate('digits-class', 1, class_labels=[1], solver='newton',
                                     initial_guess='previous', initial_states=result.trajectory[0])
        np.testing.assert_allclose(again, result, rtol=1e-3, atol=1e-3)


class MachineTest(unittest.TestCase):

    def test_no_proxy_sees_what_is_in_plain_text(self):
        listener = socket.create_server(('127.0.0.1', 0))
        self.addCleanup(listener.close)
        listener.settimeout(1.5)
        proxy = f'http://127.0.0.1:{listener.getsockname()[1]}'
        code = ("import deeppcr; deeppcr.Client('127.0.0.1:9', token='0123456789abcdef', timeout=1)"
                ".is_ready(timeout=1); deeppcr.Client('example.invalid:9', timeout=1).is_ready(timeout=1)")
        subprocess.run([sys.executable, '-c', code], check=True,
                       env={**os.environ, 'http_proxy': proxy, 'https_proxy': proxy, 'no_proxy': '',
                            'PYTHONPATH': os.pathsep.join(sys.path)})
        with self.assertRaises(TimeoutError):
            listener.accept()

    def test_a_server_ends_with_the_script_that_started_it(self):
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, 'digits-mlp')
            for end in ('', 'del server; import time; time.sleep(2)', 'raise RuntimeError', 'import sys; sys.exit(3)'):
                code = (f'import deeppcr; server = deeppcr.serve({folder!r}, shadow_rate=0); '
                        f'print(server._process.pid, server._folder.name, flush=True); {end}')
                result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                                        check=False, env={**os.environ, 'DEEPPCR_SERVER_BINARY': SERVER,
                                                          'PYTHONPATH': os.pathsep.join(sys.path)})
                pid, path = result.stdout.split()
                with self.assertRaises(ProcessLookupError, msg=end + result.stderr):
                    os.kill(int(pid), 0)
                self.assertFalse(pathlib.Path(path).exists())

    def test_a_server_ends_with_a_script_that_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, 'digits-mlp')
            code = (f'import deeppcr, os, signal; server = deeppcr.serve({folder!r}, shadow_rate=0); '
                    'print(server._process.pid, server._folder.name, flush=True); '
                    'os.kill(os.getpid(), signal.SIGKILL)')
            result = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True,
                                    check=False, env={**os.environ, 'DEEPPCR_SERVER_BINARY': SERVER,
                                                      'PYTHONPATH': os.pathsep.join(sys.path)})
            pid, path = result.stdout.split()
            self.addCleanup(shutil.rmtree, path)
            end = time.monotonic() + 30
            while '"event":"stopped"' not in (pathlib.Path(path) / 'log').read_text():
                self.assertLess(time.monotonic(), end, f'server {pid} lives on')
                time.sleep(0.05)

    def test_a_server_without_any_input_stops_if_it_is_to_stop_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, 'digits-mlp')
            result = subprocess.run(
                ['sh', '-c', 'exec "$0" --stop_with_stdin --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 '
                 f'--model_repository={folder} <&-', SERVER], capture_output=True, timeout=60,
                check=False)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_fork_leaves_the_server_of_its_parent(self):
        with tempfile.TemporaryDirectory() as folder:
            repository(folder, 'digits-mlp')
            code = (f'import deeppcr, os, sys\nserver = deeppcr.serve({folder!r}, shadow_rate=0)\n'
                    'child = os.fork()\nif child == 0:\n    sys.exit(0)\nos.waitpid(child, 0)\n'
                    'print(server.client().is_ready())')
            result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                                    check=False, env={**os.environ, 'DEEPPCR_SERVER_BINARY': SERVER,
                                                      'PYTHONPATH': os.pathsep.join(sys.path)})
            self.assertEqual(result.stdout, 'True\n', result.stderr)


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
