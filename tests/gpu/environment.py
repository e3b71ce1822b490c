#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what a machine is: GPU, driver, clocks, compiler, libraries. Called by run_gpu.py.

Each answer as text, and all that is one line as a row of JSON for the results.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess

QUERIES = ('name', 'driver_version', 'vbios_version', 'compute_cap', 'memory.total', 'clocks.max.sm',
           'clocks.max.mem', 'clocks.sm', 'clocks.mem', 'clocks.applications.graphics', 'power.limit',
           'temperature.gpu', 'persistence_mode', 'ecc.mode.current', 'mig.mode.current', 'compute_mode',
           'pcie.link.gen.current', 'pcie.link.width.current')
PACKAGES = ('torch', 'jax', 'jaxlib', 'numpy', 'nvidia-cublas', 'nvidia-cublas-cu12', 'nvidia-cublas-cu13',
            'triton')
PROGRAMS = ('kernel_trial', 'micro_trial', 'cuda_on_gpu_test', 'solver_bench', 'deeppcr-server')


def text_of(*command):
    """What a command prints, or why it prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=8)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f'({type(error).__name__})'
    return (done.stdout or done.stderr).strip()


def show(title, text):
    print(f'---- {title}\n{text}', flush=True)


def processor():
    for line in pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines():
        if line.startswith('model name'):
            return line.split(':', 1)[1].strip()
    return platform.machine()


def versions():
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def gpu_row():
    """One query each: a driver refuses all of them for one that it does not know."""
    values = text_of('nvidia-smi', f'--query-gpu={",".join(QUERIES)}', '--format=csv,noheader')
    cells = values.splitlines()[0].split(', ') if values else []
    if len(cells) == len(QUERIES):
        return dict(zip(QUERIES, cells))
    return {name: text_of('nvidia-smi', f'--query-gpu={name}', '--format=csv,noheader')
            for name in ('name', 'driver_version', 'clocks.max.sm')}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--nvcc', default='')
    parser.add_argument('--bundle', type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    row = {'gpu': gpu_row(), 'processor': processor(), 'cores': len(os.sched_getaffinity(0)),
           'system': platform.platform(), 'python': platform.python_version(),
           'packages': dict(versions())}
    if arguments.nvcc:
        row['nvcc'] = ''.join(text_of(arguments.nvcc, '--version').splitlines()[-1:])
    print(json.dumps({'environment': row}), flush=True)
    show('packages', row['packages'])
    show('LD_LIBRARY_PATH', os.environ.get('LD_LIBRARY_PATH', ''))
    show('nvcc', row.get('nvcc', 'none'))
    show('nvidia-smi', text_of('nvidia-smi'))
    for part in ('CLOCK', 'PERFORMANCE', 'POWER', 'ECC'):
        show(f'nvidia-smi -q -d {part}', text_of('nvidia-smi', '-q', '-d', part))
    show('nvidia-smi topo', text_of('nvidia-smi', 'topo', '-m'))
    for name in PROGRAMS:
        if (arguments.bundle / 'bin' / name).exists():
            show(f'ldd {name}', text_of('ldd', str(arguments.bundle / 'bin' / name)))


if __name__ == '__main__':
    main()
