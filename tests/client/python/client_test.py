#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python client against the real server with the demo models.

usage: client_test.py SERVER [unittest arguments]
"""

import asyncio
import gc
import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import weakref

import numpy as np

import installed

installed.on_path()

import deeppcr  # noqa: E402
import deeppcr.aio  # noqa: E402
from deeppcr import connection  # noqa: E402

SERVER = ''
MODELS = installed.ROOT / 'deploy/models/repository'
DIGITS = np.load(installed.ROOT / 'deploy/models/data/digits_heldout.npy').reshape(-1, 64)
LABELS = np.load(installed.ROOT / 'deploy/models/data/digits_heldout_labels.npy')


_small = tempfile.TemporaryDirectory()


def serve(**flags):
    """A server with two models, which is ready soon."""
    for model in ('digits-mlp', 'digits-ddpm'):
        shutil.copytree(MODELS / model, pathlib.Path(_small.name) / model, dirs_exist_ok=True)
    return deeppcr.serve(_small.name, binary=SERVER, shadow_rate=0, **flags)


class CallsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.server = deeppcr.serve(MODELS, binary=SERVER, shadow_rate=0, gradients=True)
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def test_forward_of_more_than_a_request_may_have(self):
        most = self.client.model('digits-resnet').max_batch_size
        self.assertGreater(len(DIGITS), most)
        outputs = self.client.forward('digits-resnet', DIGITS, solver='newton')
        self.assertEqual(outputs.shape, (len(DIGITS), 10))
        self.assertEqual(outputs.dtype, np.float32)
        self.assertGreater(np.mean(outputs.argmax(axis=1) == LABELS), 0.9)
        parts = [self.client.forward('digits-resnet', DIGITS[i:i + most], solver='newton')
                 for i in range(0, len(DIGITS), most)]
        np.testing.assert_array_equal(outputs, np.concatenate(parts))
        self.assertEqual(len(outputs.report.samples), len(DIGITS))
        self.assertEqual(outputs.report.solver, 'newton')
        self.assertTrue(outputs.report.converged)
        self.assertLess(outputs.report.error_estimate, 1e-4)

    def test_one_sample_lists_other_types_and_orders_are_taken(self):
        expected = self.client.forward('digits-mlp', DIGITS[:1])
        for same in (DIGITS[0], DIGITS[0].tolist(), DIGITS[:1].astype(np.float64),
                     np.asfortranarray(DIGITS[:4])[:1], DIGITS[:1].astype('>f4')):
            np.testing.assert_array_equal(self.client.forward('digits-mlp', same), expected)
        with self.assertRaisesRegex(TypeError, 'inputs: expected real numbers'):
            self.client.forward('digits-mlp', DIGITS[:1].astype(complex))
        with self.assertRaisesRegex(ValueError, 'inputs: expected 2 dimensions'):
            self.client.forward('digits-mlp', DIGITS[:4].reshape(2, 2, 64))
        with self.assertRaisesRegex(ValueError, 'expected at least one sample, got none'):
            self.client.forward('digits-mlp', DIGITS[:0])

    def test_results_are_arrays(self):
        outputs = self.client.forward('digits-mlp', DIGITS[:2], return_trajectory=True)
        self.assertEqual(outputs.trajectory.shape[0], 2)
        self.assertIs(type(outputs + 1), np.ndarray)
        self.assertIsInstance(float(outputs.sum()), float)
        self.assertIsNone(outputs[:1].report)
        self.assertIs(type(pickle.loads(pickle.dumps(outputs))), np.ndarray)
        self.assertRegex(repr(outputs.report), r'^<Report sequential on \S+: \d+ of \d+ dependent')
        self.assertIn('<table>', outputs.report._repr_html_())

    def test_samples_are_those_of_the_noise_that_the_package_knows(self):
        for model in ('digits-ddpm', 'swissroll-ddpm'):
            info = self.client.model(model)
            dim = info.summary.state_dim - info.summary.memory_dim
            seed, first = 2**64 - 3, 2**32 - 1
            drawn = self.client.generate(model, 3, seed=seed, first_sample=first)
            initial, steps = deeppcr.noise(seed, 3, info.num_inference_steps[0], dim,
                                           first_sample=first)
            given = self.client.generate(model, initial_noise=initial, step_noise=steps)
            np.testing.assert_allclose(given, drawn, rtol=0, atol=1e-6 * abs(drawn).max())

    def test_any_split_of_samples_gives_the_same(self):
        whole = self.client.generate('swissroll-ddpm', 7, seed=5)
        most = self.client.model('swissroll-ddpm').max_batch_size
        for n in (3, most + 2):
            several = self.client.generate('swissroll-ddpm', n, seed=5)
            self.assertEqual(several.shape, (n, 2))
            same = min(n, 7)
            np.testing.assert_allclose(several[:same], whole[:same], rtol=0, atol=1e-4)
        rows = self.client.generate('digits-class', class_labels=[0, 1, 2], seed=1)
        self.assertEqual(rows.shape, (3, 64))

    def test_progress_comes_before_the_result(self):
        events = list(self.client.generate_events('digits-ddpm', 2, seed=1, solver='sequential'))
        self.assertIsInstance(events[-1], deeppcr.Result)
        self.assertTrue(all(isinstance(event, deeppcr.Progress) for event in events[:-1]))
        seen = []
        result = self.client.generate('digits-ddpm', 2, seed=1, solver='sequential',
                                      on_progress=seen.append)
        np.testing.assert_array_equal(result, events[-1])
        # Whoever stops listening ends the call.
        for _ in self.client.generate_events('digits-ddpm', 4, seed=1, solver='newton'):
            break

    def test_comparisons_are_tables(self):
        comparison = self.client.compare('digits-resnet', DIGITS[:2], repetitions=1,
                                         solvers=['sequential', {'solver': 'newton', 'rtol': 1e-3}])
        self.assertEqual([row.requested_solver for row in comparison.rows],
                         ['sequential', 'newton'])
        lines = repr(comparison).splitlines()
        self.assertEqual(len(lines), 3)
        self.assertIn('speedup', lines[0])

    def test_gradients_are_what_differences_say(self):
        x = DIGITS[:1].astype(np.float64)
        gradient = self.client.gradient('digits-mlp', x, cotangents=np.ones((1, 10))).inputs
        self.assertEqual(gradient.shape, (1, 64))
        i = int(abs(gradient[0]).argmax())
        step = np.zeros_like(x)
        step[0, i] = 2.0**-8

        def total(values):
            return float(self.client.forward('digits-mlp', values, solver='sequential')
                         .astype(np.float64).sum())

        slope = (total(x + step) - total(x - step)) / 2.0**-7
        self.assertAlmostEqual(gradient[0, i], slope, delta=1e-2 * abs(slope))
        tensors, rest = self.client.parameter_gradients(
            'digits-mlp', DIGITS[:3], loss='cross_entropy', target_classes=LABELS[:3])
        self.assertEqual(len(rest.losses), 3)
        self.assertEqual(tensors['output.bias'].shape, (10,))
        # Probabilities sum to one, and so do those of the label.
        self.assertAlmostEqual(float(tensors['output.bias'].sum()), 0, delta=1e-4)

    def test_policies_begin_where_the_last_answer_was(self):
        policy = self.client.policy('digits-ddpm', seed=1, solver='newton')
        first, second = policy.act(), policy.act()
        self.assertLess(second.report.samples[0].dependent_stages,
                        first.report.samples[0].dependent_stages)
        np.testing.assert_allclose(second, first, rtol=0, atol=1e-2 * abs(first).max())
        policy.reset()
        np.testing.assert_array_equal(policy.act(), first)

    def test_a_policy_may_keep_a_rate(self):
        policy = self.client.policy('digits-ddpm', rate_hz=20, seed=1)
        started = time.monotonic()
        for _ in range(5):
            policy.act()
        self.assertGreaterEqual(time.monotonic() - started, 4 / 20)
        pace = policy.pace
        self.assertEqual((len(pace.latencies), len(pace.lateness)), (5, 4))
        self.assertIn('5 actions, p50', repr(pace))
        with self.assertRaisesRegex(ValueError, 'rate_hz: expected a positive number, got 0'):
            self.client.policy('digits-ddpm', rate_hz=0)

    def test_ticks_that_are_over_are_missed(self):
        pace = deeppcr.pace.Pace(100)
        pace.wait()
        time.sleep(0.095)
        pace.wait()
        self.assertGreaterEqual(pace.missed, 8)
        before = pace.missed
        pace.reset()
        pace.wait()
        self.assertEqual(pace.missed, before)

    def test_models_are_described_loaded_and_unloaded(self):
        self.assertTrue(self.client.is_ready())
        names = [each.name for each in self.client.models()]
        self.assertIn('digits-ddpm', names)
        self.assertEqual(self.client.load('digits-mlp').name, 'digits-mlp')
        self.client.unload('digits-pixels')
        with self.assertRaises(deeppcr.NotFoundError):
            self.client.model('digits-pixels')
        self.client.load('digits-pixels')

    def test_threads_share_a_client(self):
        expected = self.client.forward('digits-resnet', DIGITS[:8])
        wrong = []

        def work():
            for _ in range(20):
                if not (self.client.forward('digits-resnet', DIGITS[:8]) == expected).all():
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_asyncio_has_the_same_calls(self):
        async def work():
            async with deeppcr.aio.Client(self.server.address) as client:
                self.assertTrue(await client.is_ready())
                several = await asyncio.gather(*(client.forward('digits-mlp', DIGITS[i:i + 1])
                                                 for i in range(8)))
                samples = await client.generate('swissroll-ddpm', 5, seed=3)
                last = None
                async for event in client.generate_events('swissroll-ddpm', 5, seed=3):
                    last = event
                comparison = await client.compare('digits-mlp', DIGITS[:1], repetitions=1)
                gradient = await client.gradient('digits-mlp', DIGITS[:1], loss='cross_entropy',
                                                 target_classes=[1])
                whole = await client.forward('digits-resnet', DIGITS[:100])
                self.assertGreater(len(await client.models()), 5)
                with self.assertRaises(deeppcr.NotFoundError):
                    await client.forward('nothing', DIGITS[:1])
                return several, samples, last, comparison, gradient, whole

        several, samples, last, comparison, gradient, whole = asyncio.run(work())
        for i, outputs in enumerate(several):
            np.testing.assert_array_equal(outputs,
                                          self.client.forward('digits-mlp', DIGITS[i:i + 1]))
        np.testing.assert_array_equal(samples, self.client.generate('swissroll-ddpm', 5, seed=3))
        np.testing.assert_array_equal(samples, last)
        self.assertEqual(len(comparison.rows), 3)
        self.assertEqual(gradient.inputs.shape, (1, 64))
        np.testing.assert_array_equal(whole, self.client.forward('digits-resnet', DIGITS[:100]))


class ErrorsTest(unittest.TestCase):

    def test_statuses_are_exceptions_with_the_servers_sentence(self):
        with serve(max_message_bytes='16KiB', gradients=False) as server:
            client = server.client()
            cases = [
                (deeppcr.NotFoundError, LookupError, "model 'nothing' is not loaded",
                 lambda: client.forward('nothing', DIGITS[:1])),
                (deeppcr.InvalidArgumentError, ValueError, 'inputs.shape: expected',
                 lambda: client.forward('digits-mlp', DIGITS[:1, :3])),
                (deeppcr.InvalidArgumentError, ValueError, 'options.rtol: expected a number in',
                 lambda: client.forward('digits-mlp', DIGITS[:1], rtol=5.0)),
                (deeppcr.DeadlineExceededError, TimeoutError, '',
                 lambda: client.generate('digits-ddpm', 8, solver='newton', timeout=0.01)),
                (deeppcr.UnimplementedError, NotImplementedError, 'without gradients',
                 lambda: client.gradient('digits-mlp', DIGITS[:1], cotangents=np.ones((1, 10)))),
                (deeppcr.ResourceExhaustedError, Exception, 'the reply would have',
                 lambda: client.forward('digits-mlp', DIGITS[:8], return_trajectory=True)),
            ]
            for kind, base, sentence, call in cases:
                with self.subTest(kind.__name__), self.assertRaises(kind) as raised:
                    call()
                self.assertIsInstance(raised.exception, base)
                self.assertIn(sentence, str(raised.exception))
                self.assertRegex(raised.exception.trace_id, '^[0-9a-f]{32}$')
                copy = pickle.loads(pickle.dumps(raised.exception))
                self.assertEqual((type(copy), str(copy), copy.code),
                                 (kind, str(raised.exception), raised.exception.code))
            self.assertTrue(raised.exception.never_fits)
        with self.assertRaisesRegex(deeppcr.UnavailableError, f'^{re.escape(server.address)}: '):
            client.models()
        self.assertFalse(client.is_ready(timeout=1))

    def test_arguments_that_are_none_are_told_before_anything_is_sent(self):
        client = deeppcr.Client('127.0.0.1:1')
        with self.assertRaisesRegex(TypeError, 'gradient: unexpected sed; expected among by'):
            client.gradient('net', DIGITS[:1], sed=1)
        with self.assertRaisesRegex(TypeError, 'unexpected rtoll; expected among atol'):
            client.forward('net', DIGITS[:1], rtoll=1)
        with self.assertRaisesRegex(ValueError, 'initial_guess: expected one of constant, coarse'):
            client.forward('net', DIGITS[:1], initial_guess='x')
        with self.assertRaisesRegex(ValueError, 'n: expected at least 1, got 0'):
            client.generate('net', 0)
        with self.assertRaisesRegex(ValueError, 'seed: expected an integer in'):
            deeppcr.noise(-1, 1, 1, 1)
        with self.assertRaisesRegex(TypeError, 'a Client is a connection'):
            pickle.dumps(client)

    def test_a_full_server_says_how_long_its_queue_is(self):
        with serve(max_queue=1, workers=1, batch_delay_seconds=1) as server:
            client = server.client()
            refused = []

            def work():
                try:
                    client.generate('digits-ddpm', 2, solver='newton')
                except deeppcr.ResourceExhaustedError as error:
                    refused.append(error)

            threads = [threading.Thread(target=work) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertTrue(refused)
        self.assertFalse(refused[0].never_fits)
        self.assertIsInstance(refused[0].queue_depth, int)
        self.assertIsInstance(refused[0].predicted_wait_seconds, float)

    def test_a_server_that_is_killed_in_a_call_ends_it(self):
        with serve() as server:
            client = server.client()
            raised = []

            def work():
                try:
                    for _ in range(1000):
                        client.generate('digits-ddpm', 16, solver='newton')
                except deeppcr.DeepPcrError as error:
                    raised.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            os.kill(server._process.pid, signal.SIGKILL)
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertIsInstance(raised[0], deeppcr.UnavailableError)

    def test_a_fork_makes_its_own(self):
        with serve() as server:
            client = server.client()
            client.models()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client.models()
                except RuntimeError as error:
                    status = 0 if 'make one after the fork' in str(error) else 2
                os._exit(status)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            client.models()

    def test_tokens_are_shown_and_kept_from_the_network(self):
        secret = '0123456789abcdef'
        with tempfile.TemporaryDirectory() as folder:
            tokens = pathlib.Path(folder) / 'tokens'
            tokens.write_text(f'infer {secret}\n')
            with serve(token_file=tokens) as server:
                client = server.client(token=secret)
                client.models()
                with self.assertRaises(deeppcr.PermissionDeniedError):
                    client.unload('digits-mlp')
                with self.assertRaises(deeppcr.UnauthenticatedError) as raised:
                    server.client(token='f' * 16).models()
                self.assertIsInstance(raised.exception, PermissionError)
        with self.assertRaisesRegex(ValueError, 'sent in plain text'):
            deeppcr.Client('example.com:8001', token=secret)
        with self.assertRaisesRegex(ValueError, 'token: expected 16 to 512') as raised:
            deeppcr.Client('localhost:8001', token='short')
        self.assertNotIn('short', str(raised.exception))


class AddressTest(unittest.TestCase):

    def test_addresses_of_servers_and_fleets(self):
        for server, text, fleet in (
                ('localhost:8001', 'localhost:8001', False), ('[::1]:1', '[::1]:1', False),
                ('unix:/run/x', 'unix:/run/x', False), ('dns:///a:1', 'dns:///a:1', True),
                ('10.0.0.1:1,10.0.0.2:1', 'ipv4:10.0.0.1:1,10.0.0.2:1', True),
                ('[::1]:1,[::2]:1', 'ipv6:[::1]:1,[::2]:1', True)):
            target = connection.parse_server(server)
            self.assertEqual((target.text, target.is_fleet), (text, fleet))
        for server in ('', 'localhost', 'localhost:', ':1', 'a:0', 'a:65536', 'http://a:1', 'a b:1',
                       '::1:1', 'a:1,b:1', '10.0.0.1:1,[::1]:1', 'unix:', 'dns:///', 'dns:a:1'):
            with self.subTest(server), self.assertRaisesRegex(ValueError, '^server: expected'):
                connection.parse_server(server)

    def test_fleets_take_the_documented_service_config(self):
        text = (installed.ROOT / 'deploy/README.md').read_text()
        documented = re.search(r'```json\n(.*?)```', text, re.DOTALL).group(1)
        self.assertEqual(json.loads(documented), connection.FLEET_SERVICE_CONFIG)

    def test_a_fleet_goes_on_without_one_of_its_servers(self):
        with serve() as first, serve() as second:
            client = deeppcr.Client(f'{first.address},{second.address}')
            expected = client.forward('digits-mlp', DIGITS[:1])
            os.kill(first._process.pid, signal.SIGKILL)
            for _ in range(50):
                np.testing.assert_array_equal(client.forward('digits-mlp', DIGITS[:1]), expected)

    def test_sockets(self):
        with tempfile.TemporaryDirectory() as folder, serve(socket=f'{folder}/s'):
            self.assertTrue(deeppcr.Client(f'unix:{folder}/s').is_ready())

    def test_silence_ends_at_the_timeout(self):
        with socket.create_server(('127.0.0.1', 0)) as silent:
            client = deeppcr.Client(f'127.0.0.1:{silent.getsockname()[1]}', timeout=0.5)
            with self.assertRaises((deeppcr.DeadlineExceededError, deeppcr.UnavailableError)):
                client.models()
            self.assertFalse(client.is_ready(timeout=0.2))


class ServeTest(unittest.TestCase):

    def test_a_server_that_does_not_start_says_why(self):
        with self.assertRaisesRegex(deeppcr.ServerError, '(?s)ended with status.*/nonexistent'):
            deeppcr.serve('/nonexistent', binary=SERVER)
        with self.assertRaisesRegex(deeppcr.ServerError, 'unknown flag'):
            deeppcr.serve(MODELS, binary=SERVER, no_such_flag=1)
        with self.assertRaisesRegex(FileNotFoundError, 'no such server'):
            deeppcr.serve(MODELS, binary='/nonexistent/server')
        with self.assertRaisesRegex(ValueError, 'expected models, or model_dir'):
            deeppcr.serve()
        for name, value in (('port_file', '/tmp/p'), ('stop_with_stdin', False), ('listen', 'unix:/tmp/s')):
            with self.assertRaisesRegex(ValueError, f'{name}: expected'):
                deeppcr.serve(MODELS, binary=SERVER, **{name: value})

    def test_a_client_keeps_its_server(self):
        client = deeppcr.serve(MODELS, binary=SERVER).client()
        gc.collect()
        self.assertTrue(client.is_ready())
        address, ended = client.server, weakref.ref(client.kept)
        client = None
        gc.collect()
        self.assertIsNone(ended())
        self.assertFalse(deeppcr.Client(address).is_ready(timeout=2))

    def test_one_model_may_be_served(self):
        with deeppcr.serve(model_dir=MODELS / 'digits-mlp', model_name='mine',
                           binary=SERVER) as server:
            self.assertEqual([each.name for each in server.client().models()], ['mine'])
            self.assertIn('ready', server.log)


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
