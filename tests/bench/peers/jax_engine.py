# SPDX-License-Identifier: Apache-2.0
"""JAX: jit of a lax.scan over the steps, the best of its unroll."""

import os

# The compiler's own threads would leave the core that all are measured on.
os.environ['XLA_FLAGS'] = '--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1'

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax, numpy as jnp  # noqa: E402

from calls import PythonCall, Setting  # noqa: E402

UNROLLS = (1, 2, 4, 8, 16, 32)
LAYER_NORM_EPSILON = 1e-6


def dense(layer):
    return jnp.asarray(layer.weight.T), jnp.asarray(layer.bias)


def product(z, layer):
    return z @ layer[0] + layer[1]


def stack_function(unroll):
    def run(weights, x):
        def step(z, layer):
            return z + jax.nn.relu(product(z, layer)), None
        z, _ = lax.scan(step, product(x, weights['encode']), weights['layers'], unroll=unroll)
        return product(z, weights['decode'])
    return run


def stack_weights(problem):
    return {'encode': dense(problem.encode), 'decode': dense(problem.decode),
            'layers': (jnp.asarray(problem.weights.transpose(0, 2, 1)),
                       jnp.asarray(problem.biases))}


def normalised(h):
    centred = h - h.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + LAYER_NORM_EPSILON)


def denoised(weights, z, mu):
    h = product(z, weights['input'])
    for i, first in enumerate(weights['first']):
        if weights['second']:
            u = normalised(h) * mu[3 * i] + mu[3 * i + 1]
            h = h + mu[3 * i + 2] * product(jax.nn.silu(product(u, first)), weights['second'][i])
        else:
            h = h + jax.nn.silu(h @ first[0] + mu[i])
    if weights['second']:
        h = normalised(h) * mu[-2] + mu[-1]
    return product(h, weights['output'])


def diffusion_function(unroll):
    def run(weights, x, noise):
        def step(z, given):
            mu, (a, b, c), drawn = given
            z = a * z + b * denoised(weights, z, mu)
            return (z if drawn is None else z + c * drawn), None
        steps = (weights['mu'], tuple(weights['coefficients']),
                 None if noise is None else noise.transpose(1, 0, 2))
        z, _ = lax.scan(step, x, steps, unroll=unroll)
        for i, layer in enumerate(weights['decoder']):
            z = product(jax.nn.silu(z) if i else z, layer)
        return z
    return run


def diffusion_weights(problem):
    return {'input': dense(problem.input), 'output': dense(problem.output),
            'first': [dense(layer) for layer in problem.first],
            'second': [dense(layer) for layer in problem.second],
            'decoder': [dense(layer) for layer in problem.decoder],
            'mu': jnp.asarray(problem.mu), 'coefficients': jnp.asarray(problem.coefficients.T)}


def build(problem, x, noise, unroll):
    if problem.kind == 'stack':
        function, weights, given = stack_function(unroll), stack_weights(problem), (x,)
    else:
        function, weights, given = (diffusion_function(unroll), diffusion_weights(problem),
                                    (x, noise))
    compiled = jax.jit(function).lower(weights, *given).compile()
    return PythonCall(lambda: np.asarray(compiled(weights, *given)))


def settings(_, __, problem, x, noise):
    jax.config.update('jax_platforms', 'cpu')
    return [Setting(f'unroll {unroll}', lambda unroll=unroll: build(problem, x, noise, unroll))
            for unroll in UNROLLS]


def version(_):
    return jax.__version__
