#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deeppcr.Engine, the engine in the process of its caller.

usage: engine_test.py SERVER LIBRARY
"""

import copy
import os
import pathlib
import pickle
import sys
import threading
import unittest

import numpy as np

import installed

installed.on_path()

import deeppcr  # noqa: E402

SERVER, LIBRARY = '', ''
MODELS = installed.ROOT / 'deploy/models/repository'
DIGITS = np.load(installed.ROOT / 'deploy/models/data/digits_heldout.npy').reshape(-1, 64)


class EngineTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.engine = deeppcr.Engine(LIBRARY, backend='cpu')
        cls.network = cls.engine.load(MODELS / 'digits-resnet/1')
        cls.classes = cls.engine.load(MODELS / 'digits-class/1')

    def test_answers_are_those_of_a_server(self):
        with deeppcr.serve(MODELS, binary=SERVER, shadow_rate=0) as server:
            client = server.client()
            for solver in ('sequential', 'newton'):
                ours = self.network.forward(DIGITS[:9], solver=solver)
                theirs = client.forward('digits-resnet', DIGITS[:9], solver=solver)
                np.testing.assert_array_equal(ours, theirs)
                self.assertEqual(ours.report.samples, theirs.report.samples)
            given = {'seed': 4, 'class_labels': [1, 2, 3], 'num_inference_steps': 25}
            np.testing.assert_array_equal(self.classes.generate(3, solver='sequential', **given),
                                          client.generate('digits-class', 3, solver='sequential', **given))

    def test_trajectories_are_guesses_of_the_next_run(self):
        first = self.network.forward(DIGITS[:2], solver='newton', return_trajectory=True)
        again = self.network.forward(DIGITS[:2], solver='newton', initial_guess='previous',
                                     initial_states=first.trajectory)
        self.assertLessEqual(again.report.samples[0].iterations, first.report.samples[0].iterations)
        np.testing.assert_allclose(again, first, rtol=1e-3, atol=1e-3)

    def test_one_row_is_for_all_samples(self):
        samples = self.classes.generate(4, seed=2, class_labels=[7])
        np.testing.assert_array_equal(samples, self.classes.generate(4, seed=2, class_labels=[7] * 4))
        noise = deeppcr.noise(2, 4, self.classes.info['num_steps'], self.classes.info['state_dim'])
        given = self.classes.generate(4, class_labels=[7], initial_noise=noise[0], step_noise=noise[1])
        np.testing.assert_allclose(given, samples, rtol=1e-4, atol=1e-4)

    def test_wrong_arguments_are_told_by_name(self):
        for call, problem in (
                (lambda: self.network.forward(np.zeros((2, 63))), r'inputs: expected the shape \[2, 64\]'),
                (lambda: self.classes.generate(3, class_labels=[1, 2]), r'class_labels: expected the shape'),
                (lambda: self.classes.generate(0), 'n: expected 1 to 256 samples, got 0'),
                (lambda: self.classes.generate(1, class_labels=[1], rtol=7.0), 'rtol'),
                (lambda: self.classes.generate(1, class_labels=[70]), 'class'),
                (lambda: self.network.forward(DIGITS[:1], solver='fast'), 'solver'),
                (lambda: self.network.forward(DIGITS[:1], initial_guess='best'), 'initial_guess: expected'),
                (lambda: deeppcr.Engine(LIBRARY, backend='abacus'), 'backend'),
                (lambda: deeppcr.Engine(LIBRARY, plan_mode='guess'), 'plan_mode: expected one of')):
            with self.assertRaisesRegex(ValueError, problem):
                call()
        with self.assertRaisesRegex(TypeError, 'options: unexpected speed'):
            self.network.forward(DIGITS[:1], speed=3)
        with self.assertRaises(deeppcr.NotFoundError):
            self.engine.load('/nowhere')
        with self.assertRaisesRegex(TypeError, 'of one process'):
            pickle.dumps(self.engine)

    def test_what_does_not_converge_is_an_error_where_that_is_asked(self):
        with self.assertRaises(deeppcr.NotConvergedError):
            self.network.forward(DIGITS[:1], solver='jacobi', max_iterations=1, on_no_convergence='error')
        fell_back = self.network.forward(DIGITS[:1], solver='jacobi', max_iterations=1)
        self.assertEqual(fell_back.report.fallbacks, 1)
        self.assertTrue(fell_back.report.samples[0].reason)

    def test_threads_share_an_engine(self):
        answers = {}
        threads = [threading.Thread(target=lambda i=i: answers.update(
            {i: self.network.forward(DIGITS[:8])})) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(1, 8):
            np.testing.assert_array_equal(answers[i], answers[0])

    def test_a_fork_makes_its_own(self):
        child = os.fork()
        if child == 0:
            try:
                self.engine.load(MODELS / 'digits-resnet/1')
            except RuntimeError as error:
                os._exit(0 if 'another process' in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_models_outlive_the_name_of_their_engine(self):
        model = deeppcr.Engine(LIBRARY, backend='cpu', num_threads=1).load(MODELS / 'digits-mlp/1')
        self.assertEqual(model.forward(np.zeros(64)).shape, (1, 10))
        self.assertEqual(model.info['model_type'], 'mlp')

    def test_integers_are_taken_whole_or_not_at_all(self):
        classes = self.engine.load(MODELS / 'digits-class/1')
        expected = classes.generate(2, class_labels=np.array([1, 1], np.int64), seed=np.uint64(3))
        np.testing.assert_array_equal(classes.generate(2, class_labels=[1], seed=3), expected)
        for wrong, error, problem in (
                ({'class_labels': [1.9]}, TypeError, 'class_labels: expected integers'),
                ({'class_labels': [2**32 + 1]}, ValueError, 'class_labels: expected integers of 32'),
                ({'class_labels': [1], 'seed': 2**64}, ValueError, 'seed: expected an integer in'),
                ({'class_labels': [1], 'seed': -1}, ValueError, 'seed: expected an integer in'),
                ({'class_labels': [1], 'max_iterations': 2**32 + 1}, ValueError, 'max_iterations'),
                ({'class_labels': [1], 'warm_sweeps': 1.5}, TypeError, 'warm_sweeps: expected an int'),
                ({'class_labels': [1], 'timeout': 0}, ValueError, 'timeout: expected a number of sec'),
                ({'class_labels': [1], 'return_trajectory': True, 'num_inference_steps': 10**15},
                 ValueError, 'num_inference_steps'),
                ({}, ValueError, 'class_labels: expected those of 1 samples')):
            with self.subTest(wrong), self.assertRaisesRegex(error, problem):
                classes.generate(**wrong)
        with self.assertRaisesRegex(ValueError, 'num_threads: expected an integer in'):
            deeppcr.Engine(LIBRARY, num_threads=2**32 + 1)

    def test_each_kind_of_model_has_its_call(self):
        layers, process = (self.engine.load(MODELS / name) for name in ('digits-mlp/1', 'digits-ddpm/1'))
        with self.assertRaisesRegex(deeppcr.FailedPreconditionError, 'use generate'):
            process.forward(np.zeros((2, 0)))
        with self.assertRaisesRegex(deeppcr.FailedPreconditionError, 'use forward'):
            layers.generate(2)

    def test_answers_are_read_only_and_models_are_not_copied(self):
        model = self.engine.load(MODELS / 'digits-mlp/1')
        result = model.forward(np.zeros(64), return_trajectory=True)
        self.assertFalse(result.flags.writeable or result.trajectory.flags.writeable)
        with self.assertRaisesRegex(TypeError, 'of one Engine'):
            copy.copy(model)

    def test_a_library_that_is_none_of_ours(self):
        with self.assertRaisesRegex(OSError, 'expected a libdeeppcr'):
            deeppcr.Engine('libm.so.6')

    def test_a_library_that_is_not_there(self):
        with self.assertRaises(OSError):
            deeppcr.Engine(pathlib.Path('/nowhere/libdeeppcr.so'))


if __name__ == '__main__':
    SERVER, LIBRARY = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
