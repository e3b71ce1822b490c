#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a program for a GPU with the toolkit alone; a step of run_gpu.py.

usage: build_program.py --nvcc NVCC --architecture 90 --output PROGRAM SOURCE...

A process for each source, as many as there are cores: for one architecture nvcc itself would compile
one source after another, whatever its --threads says.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ('-std=c++17', '-O3', '-fmad=false', '--expt-relaxed-constexpr')


def run(what, command):
    """True if it ended well."""
    began = time.monotonic()
    sys.stdout.write(f'case {what}\n{" ".join(command)}\n')  # at once: others write too
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    taken = time.monotonic() - began
    sys.stdout.write(f'{done.stdout}{what}: status {done.returncode} after {taken:.0f} s\n')
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--nvcc', required=True)
    parser.add_argument('--architecture', required=True)
    parser.add_argument('--output', type=pathlib.Path, required=True)
    parser.add_argument('source', nargs='+')
    arguments = parser.parse_args()
    nvcc = [arguments.nvcc, *FLAGS, f'-arch=sm_{arguments.architecture}', f'-I{ROOT}']
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [f'{folder}/{number}.o' for number in range(len(arguments.source))]
        compiled = list(pool.map(lambda pair: run(pair[0], [*nvcc, '-c', pair[0], '-o', pair[1]]),
                                 zip(arguments.source, objects)))
        # A name of its own until it is whole: a time-out leaves no half program.
        scratch = arguments.output.with_name(f'.{arguments.output.name}.new')
        if not (all(compiled) and run(arguments.output.name, [*nvcc, *objects, '-o', str(scratch)])):
            sys.exit(1)
        os.replace(scratch, arguments.output)


if __name__ == '__main__':
    main()
