#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quality.py passes what is good and misses planted faults. NumPy alone; seconds."""

import unittest

import numpy as np

import quality
from shared import MODELS, safetensors_file
import swissroll


def missed(model, samples, labels=None):
    """The targets that are missed."""
    return [figure.what for figure in quality.judge(model, samples, labels)
            if figure.met is False]


class DigitsTest(unittest.TestCase):

    def setUp(self):
        self.images = np.load(MODELS / "data" / "digits_heldout.npy")
        self.labels = np.load(MODELS / "data" / "digits_heldout_labels.npy")
        self.generator = np.random.default_rng(5)

    def assert_missed(self, words, samples, labels=None):
        found = missed("digits-ddpm" if labels is None else "digits-class", samples, labels)
        self.assertTrue(any(words in what for what in found), found)

    def test_passes_real_digits(self):
        self.assertEqual(missed("digits-ddpm", self.images), [])
        self.assertEqual(missed("digits-class", self.images, self.labels), [])
        self.assertEqual(missed("digits-pixels", self.images, self.labels), [])

    def test_misses_a_forgotten_digit(self):
        self.assert_missed("rarest digit", self.images[self.labels != 8])

    def test_misses_wrong_digits(self):
        self.assert_missed("asked for", self.images, (self.labels + 1) % 10)

    def test_misses_noise(self):
        noise = 0.35 * self.generator.standard_normal(self.images.shape)
        self.assert_missed("classifier is sure", self.images + noise)
        self.assert_missed("Frechet", self.images + noise)

    def test_misses_few_images_over_and_over(self):
        self.assert_missed("Frechet", np.repeat(self.images[:30], 10, axis=0))

    def test_misses_training_images(self):
        directory = MODELS / "repository" / "digits-resnet" / "1"
        images = safetensors_file.read(directory / "calibration.safetensors")["inputs"]
        self.assert_missed("least distance", images)
        self.assert_missed("median of that distance", images)

    def test_misses_one_copy_of_a_training_image(self):
        directory = MODELS / "repository" / "digits-resnet" / "1"
        images = safetensors_file.read(directory / "calibration.safetensors")["inputs"]
        self.assert_missed("least distance", np.concatenate([self.images, images[:1]]))

    def test_refuses_what_it_cannot_judge(self):
        for samples in (np.zeros((10, 64)), np.zeros((256, 63)), np.full((256, 64), np.nan)):
            with self.assertRaisesRegex(ValueError, "^samples: "):
                quality.judge("digits-ddpm", samples)
        for model, labels in (("digits-class", None), ("digits-ddpm", self.labels),
                              ("digits-pixels", None),
                              ("digits-class", self.labels[:-1])):
            with self.assertRaisesRegex(ValueError, "^labels: "):
                quality.judge(model, self.images, labels)


class SwissrollTest(unittest.TestCase):

    def setUp(self):
        self.generator = np.random.default_rng(5)

    def assert_missed(self, words, samples):
        found = missed("swissroll-ddpm", samples)
        self.assertTrue(any(words in what for what in found), found)

    def test_passes_the_roll(self):
        self.assertEqual(missed("swissroll-ddpm", swissroll.draw(256, self.generator)), [])

    def test_misses_a_disc(self):
        points = self.generator.standard_normal((256, 2))
        self.assert_missed("noiseless roll", points)
        self.assert_missed("Frechet", points)

    def test_misses_half_a_roll(self):
        angles = self.generator.uniform(swissroll.FIRST_ANGLE, 3 * np.pi, 256)
        self.assert_missed("emptiest tenth", swissroll.curve(angles))

    def test_misses_repeated_points(self):
        points = np.repeat(swissroll.draw(128, self.generator), 2, axis=0)
        self.assert_missed("of another", points)


class FrechetDistanceTest(unittest.TestCase):

    def test_of_normals_with_commuting_covariances(self):
        generator = np.random.default_rng(7)
        points = generator.standard_normal((100000, 3))
        shifted = points * np.array([1.0, 2.0, 3.0]) + np.array([0.0, 0.0, 2.0])
        # |difference of means|^2 + sum of (difference of standard deviations)^2
        self.assertAlmostEqual(quality.frechet_distance(points, shifted), 4 + 1 + 4, delta=0.1)
        self.assertAlmostEqual(quality.frechet_distance(points, points), 0, places=6)


if __name__ == "__main__":
    unittest.main()
