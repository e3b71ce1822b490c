#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The published tritonclient against the real server with the demo models.

usage: PYTHON tritonclient_test.py SERVER_BINARY   where PYTHON has tritonclient_requirements.txt
"""

import pathlib
import queue
import sys
import unittest

import numpy as np
import tritonclient.grpc as triton
from running_server import ROOT, RunningServer
from tritonclient.utils import InferenceServerException

DIGITS = np.load(ROOT / 'deploy/models/data/digits_heldout.npy').astype(np.float32)


def digits(count):
    tensor = triton.InferInput('inputs', [count, DIGITS.shape[1]], 'FP32')
    tensor.set_data_from_numpy(DIGITS[:count])
    return tensor


def parameters_of(result):
    return {name: getattr(value, value.WhichOneof('parameter_choice'))
            for name, value in result.get_response().parameters.items()}


class TritonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(RunningServer(BINARY))
        cls.address = cls.server.address

    def setUp(self):
        self.client = triton.InferenceServerClient(self.address)
        self.addCleanup(self.client.close)

    def fails(self, code, text, call, *arguments, **keywords):
        with self.assertRaises(InferenceServerException) as caught:
            call(*arguments, **keywords)
        self.assertIn(code, str(caught.exception))
        self.assertIn(text, str(caught.exception))

    def test_health(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready('digits-resnet'))
        self.assertTrue(self.client.is_model_ready('digits-resnet', '1'))
        self.assertFalse(self.client.is_model_ready('nobody'))

    def test_the_log(self):
        def level(settings):
            return settings['settings']['log_verbose_level'].get('uint32_param', 0)
        self.assertEqual(level(self.client.get_log_settings(as_json=True)), 0)
        changed = self.client.update_log_settings({'log_verbose_level': 1}, as_json=True)
        self.assertEqual(level(changed), 1)
        self.client.update_log_settings({'log_verbose_level': 0})
        self.fails('INVALID_ARGUMENT', 'settings.log_file', self.client.update_log_settings,
                   {'log_file': '/tmp/log'})

    def test_metadata_and_configuration(self):
        server = self.client.get_server_metadata(as_json=True)
        self.assertEqual(server['name'], 'deeppcr-serve')
        self.assertIn('statistics', server['extensions'])
        metadata = self.client.get_model_metadata('digits-resnet', as_json=True)
        self.assertEqual(metadata['inputs'],
                         [{'name': 'inputs', 'datatype': 'FP32', 'shape': ['-1', '64']}])
        self.assertEqual(metadata['outputs'][0]['shape'], ['-1', '10'])
        for model in ('digits-resnet', 'digits-ddpm', 'digits-class'):
            config = self.client.get_model_config(model).config
            self.assertGreater(config.max_batch_size, 0)
            metadata = self.client.get_model_metadata(model)
            self.assertEqual([i.name for i in config.input], [i.name for i in metadata.inputs])
            self.assertEqual([o.name for o in config.output], [o.name for o in metadata.outputs])
            self.assertFalse(config.model_transaction_policy.decoupled)

    def test_infer_with_every_solver(self):
        outputs = {}
        for solver in ('sequential', 'newton', 'auto'):
            result = self.client.infer('digits-resnet', [digits(8)], request_id=solver,
                                       parameters={'solver': solver, 'rtol': 1e-4})
            outputs[solver] = result.as_numpy('outputs')
            report = parameters_of(result)
            self.assertEqual(result.get_response().id, solver)
            self.assertIn(report['solver'], ('sequential', 'newton'))
            self.assertTrue(report['converged'])
            self.assertGreater(report['dependent_stages'], 0)
        self.assertEqual(outputs['newton'].shape, (8, 10))
        np.testing.assert_allclose(outputs['newton'], outputs['sequential'], rtol=1e-2, atol=1e-3)
        np.testing.assert_array_equal(outputs['newton'].argmax(1), outputs['sequential'].argmax(1))

    def test_requested_outputs_come_in_their_order(self):
        wanted = [triton.InferRequestedOutput(name) for name in ('trajectory', 'outputs')]
        result = self.client.infer('digits-resnet', [digits(2)], outputs=wanted)
        self.assertEqual(result.as_numpy('trajectory').shape, (2, 1025, 16))
        self.assertEqual(result.as_numpy('outputs').shape, (2, 10))

    def test_generation(self):
        asked = {'seed': 7, 'num_samples': 3, 'num_inference_steps': 100, 'solver': 'newton'}
        first, again = (self.client.infer('digits-ddpm', [], parameters=asked) for _ in range(2))
        self.assertEqual(first.as_numpy('samples').shape, (3, 64))
        self.assertEqual(first.as_numpy('latents').shape, (3, 16))
        np.testing.assert_array_equal(first.as_numpy('samples'), again.as_numpy('samples'))
        self.assertEqual(parameters_of(first)['num_steps'], 100)
        other = self.client.infer('digits-ddpm', [], parameters={**asked, 'seed': 8})
        self.assertFalse(np.array_equal(first.as_numpy('samples'), other.as_numpy('samples')))

    def test_classes_as_parameter_and_as_tensor(self):
        labels = triton.InferInput('class_labels', [2, 1], 'INT32')
        labels.set_data_from_numpy(np.full((2, 1), 3, np.int32))
        asked = {'seed': 1, 'solver': 'sequential'}
        by_tensor = self.client.infer('digits-class', [labels], parameters=asked)
        by_parameter = self.client.infer(
            'digits-class', [], parameters={**asked, 'class_label': 3, 'num_samples': 2})
        np.testing.assert_array_equal(by_tensor.as_numpy('samples'),
                                      by_parameter.as_numpy('samples'))

    def test_async_infer(self):
        done = queue.Queue()
        for _ in range(32):
            self.client.async_infer('digits-resnet', [digits(1)],
                                    lambda result, error: done.put((result, error)))
        for _ in range(32):
            result, error = done.get(timeout=30)
            self.assertIsNone(error)
            self.assertEqual(result.as_numpy('outputs').shape, (1, 10))

    def test_stream(self):
        done = queue.Queue()
        self.client.start_stream(lambda result, error: done.put((result, error)))
        for number in range(100):
            self.client.async_stream_infer(
                'digits-resnet' if number % 10 else 'nobody', [digits(1)], request_id=str(number),
                enable_empty_final_response=True)
        for number in range(100):
            result, error = done.get(timeout=30)
            if number % 10 == 0:
                self.assertIn('NOT_FOUND', str(error))
            else:
                self.assertIsNone(error)
                self.assertEqual(result.get_response().id, str(number))
        self.client.stop_stream()
        self.assertTrue(done.empty())

    def test_statistics(self):
        def read():
            return self.client.get_inference_statistics('digits-mlp').model_stats[0]
        before = read()
        for _ in range(4):
            self.client.infer('digits-mlp', [digits(2)])
        after = read()
        self.assertEqual(after.inference_count - before.inference_count, 8)
        self.assertEqual(after.execution_count - before.execution_count, 4)
        self.assertEqual(
            after.inference_stats.queue.count - before.inference_stats.queue.count, 4)
        everything = self.client.get_inference_statistics().model_stats
        self.assertEqual(len(everything), 7)

    def test_load_and_unload(self):
        self.client.unload_model('swissroll-ddpm')
        self.assertFalse(self.client.is_model_ready('swissroll-ddpm'))
        states = {m.name: m.state for m in self.client.get_model_repository_index().models}
        self.assertNotIn('swissroll-ddpm', states)
        self.assertEqual(states['digits-resnet'], 'READY')
        self.client.load_model('swissroll-ddpm')
        self.assertTrue(self.client.is_model_ready('swissroll-ddpm'))
        self.fails('NOT_FOUND', 'nobody', self.client.load_model, 'nobody')
        self.fails('INVALID_ARGUMENT', "models are read from the server's repository",
                   self.client.load_model, 'digits-mlp', config='{}')

    def test_errors_reach_the_user_in_words(self):
        infer = self.client.infer
        wide = triton.InferInput('inputs', [1, 65], 'FP32')
        wide.set_data_from_numpy(np.zeros((1, 65), np.float32))
        double = triton.InferInput('inputs', [1, 64], 'FP64')
        double.set_data_from_numpy(np.zeros((1, 64)))
        self.fails('INVALID_ARGUMENT', 'inputs.shape: expected [n, 64]', infer, 'digits-resnet',
                   [wide])
        self.fails('INVALID_ARGUMENT', 'expected FP32, got "FP64"', infer, 'digits-resnet',
                   [double])
        self.fails('INVALID_ARGUMENT', 'parameters.solver: expected one of', infer,
                   'digits-resnet', [digits(1)], parameters={'solver': 'deeppcr'})
        self.fails('INVALID_ARGUMENT', 'expected names among solver', infer, 'digits-resnet',
                   [digits(1)], parameters={'sovler': 'newton'})
        self.fails('INVALID_ARGUMENT', 'got "priority"', infer, 'digits-resnet', [digits(1)],
                   priority=1)
        self.fails('NOT_FOUND', "version 9 is not loaded", infer, 'digits-resnet', [digits(1)],
                   model_version='9')
        self.fails('DEADLINE_EXCEEDED', '', infer, 'digits-resnet', [digits(1)], timeout=1)
        self.fails('UNIMPLEMENTED', 'shared memory',
                   self.client.get_system_shared_memory_status)


if __name__ == '__main__':
    BINARY = sys.argv.pop()
    unittest.main(verbosity=2)
