# SPDX-License-Identifier: Apache-2.0
"""Compiles the native peers, hands workloads to them, and times their calls without Python."""

import ctypes
import os
import pathlib
import shutil
import subprocess

import numpy as np

from calls import NotOffered
from problems import ROOT

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = ['-std=c++20', '-O3', '-march=native', '-fopenmp-simd']
EIGEN = pathlib.Path(os.environ.get('EIGEN_INCLUDE', '/usr/include/eigen3'))
# File in the folder of libraries -> source and flags beside FLAGS.
LIBRARIES = {
    'c_loop': ('c_loop.cc', []),
    'c_loop_fast': ('c_loop.cc', ['-ffast-math']),
    'weight_bytes': ('weight_bytes.cc', []),
    'multiply_adds': ('multiply_adds.cc', []),
    # Without the limit a matrix of a static object may not exceed 128 KiB.
    'eigen_loop': ('eigen_loop.cc', ['-DNDEBUG', '-DEIGEN_STACK_ALLOCATION_LIMIT=0',
                                     '-isystem', str(EIGEN)]),
}
ALIGNMENT = 64


class Dense(ctypes.Structure):
    _fields_ = [('rows', ctypes.c_int64), ('cols', ctypes.c_int64),
                ('weight', ctypes.c_void_p), ('bias', ctypes.c_void_p)]


class Problem(ctypes.Structure):
    """PeerProblem of peers.h."""
    _fields_ = [*((name, ctypes.c_int64) for name in
                  ('kind', 'samples', 'steps', 'dim', 'hidden', 'blocks', 'parts')),
                ('input', Dense), ('output', Dense),
                *((name, ctypes.c_void_p) for name in
                  ('first', 'first_bias', 'second', 'second_bias', 'mu', 'coefficients')),
                ('decoders', ctypes.c_int64), ('decoder', Dense * 2)]


STACK, RESIDUAL, ADALN = range(3)
RUN = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)


def libraries_of(engines):
    """Those that are needed; Eigen's takes half a minute to compile."""
    return [name for name in LIBRARIES if name != 'eigen_loop' or 'eigen_engine' in engines]


def compile_library(name, folder):
    """Returns what the compiler said if it failed, else None."""
    source, flags = LIBRARIES[name]
    if name == 'eigen_loop' and not (EIGEN / 'Eigen/Dense').exists():
        return f'no Eigen in {EIGEN}; deploy/install.sh peers installs it'
    compiler = os.environ.get('CXX', 'g++')
    if not shutil.which(compiler):
        return f'no {compiler}'
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([compiler, *FLAGS, *flags, '-fPIC', '-shared', f'-I{ROOT}',
                           str(HERE / source), '-o', str(folder / f'{name}.so')],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip()[-500:] if done.returncode else None


def compiler_version():
    done = subprocess.run([os.environ.get('CXX', 'g++'), '-dumpfullversion'], capture_output=True,
                          text=True, check=False)
    return f'{os.environ.get("CXX", "g++")} {done.stdout.strip()}'


def load_library(name, folder):
    path = folder / f'{name}.so'
    if not path.exists():
        raise NotOffered(f'not built: {name}')
    return ctypes.CDLL(str(path))


def aligned(array):
    """A float32 copy in C order that begins at 64 bytes."""
    array = np.asarray(array, dtype=np.float32)
    memory = np.empty(array.nbytes + ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = memory[begin:begin + array.nbytes].view(np.float32).reshape(array.shape)
    copy[...] = array
    return copy


class Handed:
    """A problem as peers.h has it; keeps its arrays."""

    def __init__(self, problem, samples):
        self.arrays = []
        self.struct = Problem(samples=samples, steps=problem.steps())
        fill = self.fill_stack if problem.kind == 'stack' else self.fill_diffusion
        fill(self.struct, problem)

    def pointer(self, array):
        self.arrays.append(aligned(array))
        return self.arrays[-1].ctypes.data

    def dense(self, layer):
        return Dense(*layer.weight.shape, self.pointer(layer.weight.T), self.pointer(layer.bias))

    def fill_stack(self, struct, problem):
        struct.kind, struct.dim = STACK, problem.weights.shape[1]
        struct.input, struct.output = self.dense(problem.encode), self.dense(problem.decode)
        struct.first = self.pointer(problem.weights.transpose(0, 2, 1))
        struct.first_bias = self.pointer(problem.biases)

    def squares(self, layers):
        return (self.pointer(np.stack([layer.weight.T for layer in layers])),
                self.pointer(np.stack([layer.bias for layer in layers])))

    def fill_diffusion(self, struct, problem):
        struct.kind = ADALN if problem.adaln else RESIDUAL
        struct.hidden, struct.dim = problem.input.weight.shape
        struct.blocks, struct.parts = len(problem.first), problem.mu.shape[1]
        struct.input, struct.output = self.dense(problem.input), self.dense(problem.output)
        struct.first, struct.first_bias = self.squares(problem.first)
        if problem.adaln:
            struct.second, struct.second_bias = self.squares(problem.second)
        struct.mu = self.pointer(problem.mu)
        struct.coefficients = self.pointer(problem.coefficients)
        struct.decoders = len(problem.decoder)
        for i, layer in enumerate(problem.decoder):
            struct.decoder[i] = self.dense(layer)


class NativeCall:
    """run(a, b, c, d), a function of four pointers; `d` leads to `outputs`."""

    def __init__(self, clock, run, pointers, outputs, keep, status=RuntimeError):
        self.clock = clock.peer_seconds
        self.clock.restype = ctypes.c_double
        self.clock.argtypes = [ctypes.c_void_p] * 5
        self.pointers = [ctypes.cast(run, ctypes.c_void_p),
                         *(ctypes.c_void_p(pointer) for pointer in pointers)]
        self.outputs, self.keep, self.status = outputs, keep, status

    def seconds(self):
        taken = self.clock(*self.pointers)
        if taken < 0:
            raise self.status('the call failed')
        return taken

    def answer(self):
        self.outputs.fill(np.nan)
        self.seconds()
        return self.outputs.copy()


def output_dim(problem):
    last = problem.decode if problem.kind == 'stack' else [problem.output, *problem.decoder][-1]
    return len(last.weight)


def peer_call(library, symbol, folder, problem, x, noise, outputs=None):
    """The call of a function that peers.h describes."""
    handed = Handed(problem, len(x))
    given = [None if array is None else aligned(array) for array in (x, noise)]
    if outputs is None:
        outputs = aligned(np.zeros((len(x), output_dim(problem))))
    pointers = [ctypes.addressof(handed.struct),
                *(None if array is None else array.ctypes.data for array in given),
                outputs.ctypes.data]
    loaded = load_library(library, folder)
    return NativeCall(load_library('c_loop', folder), getattr(loaded, symbol), pointers, outputs,
                      (handed, given, loaded))


def c_loop(folder, problem, x, noise, library='c_loop'):
    return peer_call(library, 'c_loop_run', folder, problem, x, noise)


def weight_bytes(folder, problem, x):
    """Its outputs are the sum of what it read: see words_of()."""
    return peer_call('weight_bytes', 'weight_bytes_run', folder, problem, x, None,
                     aligned(np.zeros((1, 2))))


def words_of(problem):
    """What weight_bytes has to write: the words of all steps, modulo 2^32, in two parts."""
    total = sum(int(np.ascontiguousarray(matrix).view(np.uint32).sum(dtype=np.uint64))
                for matrix in problem.matrices())
    total = total * problem.steps() % 2 ** 32
    return np.array([[total % 2 ** 16, total // 2 ** 16]], dtype=np.float64)
