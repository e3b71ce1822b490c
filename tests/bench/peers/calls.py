# SPDX-License-Identifier: Apache-2.0
"""What an engine hands over to be checked and timed."""

import time


class NotOffered(Exception):
    """A peer that cannot be had here, or a setting that it does not have; the text says why."""


class Setting:
    """One way to run an engine: `build()` loads and compiles, and returns a call."""

    def __init__(self, name, build):
        self.name, self.build = name, build


class PythonCall:
    """function() computes the outputs, [n, output_dim], as an array of NumPy."""

    def __init__(self, function):
        self.answer = function

    def seconds(self):
        start = time.perf_counter()
        self.answer()
        return time.perf_counter() - start
