#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The coefficients that are read off steps written as functions; needs no PyTorch."""

import json
import pathlib
import sys
import tempfile
import unittest

import numpy as np

import installed

installed.on_path()

from deeppcr.exporting import ExportError, Steps  # noqa: E402
from deeppcr.exporting.scheduler import process_of, step_table  # noqa: E402
from deeppcr.safetensors_file import read_safetensors  # noqa: E402

TIMES = np.linspace(1, 0, 11)
WIDTH = 64  # of a state


def euler(z, m, i):
    return z + (TIMES[i + 1] - TIMES[i]) * m


class StepTableTest(unittest.TestCase):

    def test_a_flow_by_eulers_method(self):
        table = step_table(Steps(euler, TIMES[:-1], initial_scale=2), WIDTH)
        np.testing.assert_array_equal(table['z_z'], np.ones(10))
        np.testing.assert_allclose(table['z_m'], np.diff(TIMES), rtol=1e-15)
        for name in ('x0_z', 'x0_m', 'z_x0', 'sigma'):
            np.testing.assert_array_equal(table[name], np.zeros(10), name)
        np.testing.assert_array_equal(table['time'], TIMES[:-1])
        self.assertEqual(table['initial_scale'], 2)
        self.assertNotIn('clip_range', table)

    def test_ddpm_by_its_clipped_x0(self):
        betas = np.linspace(1e-4, 0.02, 50)
        products = np.cumprod(1 - betas)

        def x0(z, m, i):
            product = products[49 - i]
            return (z - np.sqrt(1 - product) * m) / np.sqrt(product)

        def step(z, m, i, x0, noise):
            t = 49 - i
            before = products[t - 1] if t else 1.0
            mean = (np.sqrt(before) * betas[t] * x0
                    + np.sqrt(1 - betas[t]) * (1 - before) * z) / (1 - products[t])
            return mean - np.sqrt((1 - before) / (1 - products[t]) * betas[t]) * noise

        table = step_table(Steps(step, range(49, -1, -1), predict_x0=x0, clip_range=1.5), WIDTH)
        product, before = products[49], products[48]
        np.testing.assert_allclose(table['x0_m'][0], -np.sqrt(1 - product) / np.sqrt(product), rtol=1e-14)
        np.testing.assert_allclose(table['z_x0'][0], np.sqrt(before) * betas[49] / (1 - product), rtol=1e-14)
        # The sign that the noise has, so that noise that is given goes the same way.
        np.testing.assert_allclose(table['sigma'][0], -np.sqrt((1 - before) / (1 - product) * betas[49]),
                                   rtol=1e-14)
        self.assertEqual(table['sigma'][49], 0)
        self.assertEqual(table['clip_range'], 1.5)

    def refused(self, step, problem, **how):
        with self.assertRaisesRegex(ExportError, problem):
            step_table(Steps(step, TIMES[:-1], **how), WIDTH)

    def test_what_is_not_affine_is_refused_with_its_step(self):
        self.refused(lambda z, m, i: np.clip(euler(z, m, i), -1, 1), 'step 0 is not affine in z, m')
        self.refused(lambda z, m, i: euler(z, m, i) if i < 4 else z * m, 'step 4 is not affine')
        self.refused(lambda z, m, i: z + 1e-3 * m + 1, 'step 0 has a constant')
        self.refused(lambda z, m, i: z * np.arange(5) + m, 'another coefficient of z in each element')
        self.refused(lambda z, m, i: z + m.mean(), 'step 0 is not affine')
        self.refused(lambda z, m, i: z + m * m**1e-6, 'step 0')
        self.refused(lambda z, m, i: z / (4 - i), 'step 4 gives values that are not finite')
        self.refused(lambda z, m, i: z[:2], r'expected 5 values of step 0 for 5, got shape \(2,\)')
        self.refused(lambda z, m, i: z + noise_of_its_own(), 'step 0')

    def test_coefficients_are_those_of_states_of_every_size(self):
        def of_size(z, m, i):
            return z + (TIMES[i + 1] - TIMES[i]) * m / np.sqrt(z.size)

        self.refused(of_size, 'another coefficient of m for 7 values than for 5|of m for 64 values')
        with self.assertRaisesRegex(ExportError, 'another coefficient of z for 64 values than for 5'):
            step_table(Steps(lambda z, m, i: z * (1 + (len(z) == 64)) + m, TIMES[:-1]), 64)
        step_table(Steps(euler, TIMES[:-1]), 5)

    def test_elements_behind_the_first_are_not_others(self):
        def gripper(z, m, i):
            out = euler(z, m, i)
            out[7:] = np.clip(out[7:], -2, 2)
            return out

        with self.assertRaisesRegex(ExportError, 'step 0 is not affine'):
            step_table(Steps(gripper, TIMES[:-1]), 9)

    def test_steps_may_change_what_they_are_given(self):
        def in_place(z, m, i, noise):
            z += (TIMES[i + 1] - TIMES[i]) * m
            noise *= 0.1
            z += noise
            return z

        table = step_table(Steps(in_place, TIMES[:-1]), WIDTH)
        np.testing.assert_allclose(table['z_m'], np.diff(TIMES), rtol=1e-15)
        np.testing.assert_array_equal(table['sigma'], np.full(10, 0.1))

    def test_what_a_step_raises_is_said(self):
        self.refused(lambda z, m, i: z + TIMES[20 + i] * m, 'step: step 0 failed: index 20')

    def test_arguments_have_to_fit(self):
        self.refused(lambda z, m, i, eps: z + m, 'perhaps noise and x0, got eps')
        self.refused(lambda z, m, i, x0: z + x0, 'belong together')
        self.refused(euler, 'belong together', predict_x0=lambda z, m, i: z)
        self.refused(euler, 'clip_range: expected predict_x0', clip_range=1.0)


def noise_of_its_own():
    return np.random.default_rng().standard_normal(5)


class ProcessTest(unittest.TestCase):

    def test_a_pipeline_of_diffusers_has_its_scheduler_in_a_folder(self):
        settings = {'_class_name': 'DDIMScheduler', 'num_train_timesteps': 200}
        with tempfile.TemporaryDirectory() as folder:
            scheduler = pathlib.Path(folder) / 'scheduler'
            scheduler.mkdir()
            (scheduler / 'scheduler_config.json').write_text(json.dumps(settings))
            for path in (folder, scheduler, scheduler / 'scheduler_config.json'):
                self.assertEqual(process_of(path, WIDTH).settings, settings)
            with self.assertRaisesRegex(ExportError, 'scheduler: .*nothing/scheduler_config.json|nothing'):
                process_of(pathlib.Path(folder) / 'nothing', WIDTH)

    def test_times_are_those_that_a_scheduler_has(self):
        times = process_of({'_class_name': 'DDIMScheduler', 'num_train_timesteps': 10}, WIDTH).some_times
        self.assertEqual(times(4, whole=True), [9, 6, 3, 0])
        self.assertEqual(times(3, whole=False), [9, 4.5, 0])
        self.assertEqual(times(32, whole=True), list(range(9, -1, -1)))
        flow = process_of({'_class_name': 'FlowMatchEulerDiscreteScheduler'}, WIDTH)
        self.assertEqual(flow.some_times(2, whole=False), [1000, 0])
        edm = process_of({'_class_name': 'EDMEulerScheduler', 'sigma_max': 10.0}, WIDTH)
        np.testing.assert_allclose(edm.some_times(2, whole=False),
                                   [np.log(10) / 4, np.log(0.002) / 4])

    def test_a_table_is_written_as_the_server_reads_it(self):
        with tempfile.TemporaryDirectory() as folder:
            process = process_of(Steps(euler, TIMES[:-1]), WIDTH)
            process.write(pathlib.Path(folder))
            table = read_safetensors(pathlib.Path(folder) / 'step_table.safetensors')
        np.testing.assert_array_equal(table['time'], TIMES[:-1])
        self.assertEqual(table['z_m'].dtype, np.float64)
        of_float32 = [float(np.float32(each)) for each in (1.0, TIMES[4], TIMES[9])]
        self.assertEqual(process.some_times(3, whole=False), of_float32)
        self.assertFalse(process.learned_variance)


class SafetensorsTest(unittest.TestCase):

    def test_rubbish_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / 'weights.safetensors'
            for content in (b'', b'short', b'\xff' * 64, b'\x08' + b'\0' * 7 + b'not json'):
                path.write_bytes(content)
                with self.assertRaises(ValueError):
                    read_safetensors(path)

    def test_bfloat16_keeps_its_values(self):
        header = b'{"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / 'weights.safetensors'
            path.write_bytes(len(header).to_bytes(8, 'little') + header + b'\x80\x3f\x00\xc0')
            np.testing.assert_array_equal(read_safetensors(path)['w'], np.array([1, -2], np.float32))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
