# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the plainest eager forms, and torch.compile by chunks of steps."""

import os

# What is compiled is compiled anew: a load is a first one.
os.environ['TORCHINDUCTOR_FORCE_DISABLE_CACHES'] = '1'

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

from calls import PythonCall, Setting  # noqa: E402

# Steps that are compiled as one; around them is a loop in Python that calls the same code. More
# take minutes to compile.
STACK_CHUNKS, RESIDUAL_CHUNKS, ADALN_CHUNKS = (64,), (10, 25), (10,)
LAYER_NORM_EPSILON = 1e-6


def tensor(array):
    return torch.from_numpy(array.copy())


def product_linear(z, weight, bias):
    return functional.linear(z, weight, bias)


def product_addmm(z, weight, bias):
    return torch.addmm(bias, z, weight)


def product_sum(z, weight, bias):
    """What the compiler fuses with its neighbours; addmm calls a library."""
    return (z[:, None, :] * weight).sum(-1) + bias


# Name -> function, and whether it takes transposed weights.
PRODUCTS = {'linear': (product_linear, False), 'addmm': (product_addmm, True),
            'multiply and sum': (product_sum, False)}


class Model:
    """step(z, state) is a step; `states` are tensors with one entry a step, all that differs."""

    def __init__(self, problem, product):
        self.product, self.transposed = PRODUCTS[product]
        self.count = problem.steps()

    def matrices(self, array):
        return tensor(array.swapaxes(-1, -2) if self.transposed else array)

    def layer(self, dense):
        return [self.matrices(dense.weight), tensor(dense.bias)]


class Stack(Model):
    def __init__(self, problem, product):
        super().__init__(problem, product)
        self.states = [self.matrices(problem.weights), tensor(problem.biases)]
        self.ends = [self.layer(problem.encode), self.layer(problem.decode)]

    def enter(self, x):
        return self.product(x, *self.ends[0])

    def step(self, z, state):
        return z + torch.relu(self.product(z, *state))

    def leave(self, z):
        return self.product(z, *self.ends[1])


class Diffusion(Model):
    def __init__(self, problem, product):
        super().__init__(problem, product)
        self.adaln = problem.adaln
        self.input, self.output = self.layer(problem.input), self.layer(problem.output)
        self.first = [self.layer(layer) for layer in problem.first]
        self.second = [self.layer(layer) for layer in problem.second]
        self.decoder = [self.layer(layer) for layer in problem.decoder]
        self.states = [tensor(problem.mu), tensor(problem.coefficients)]

    def denoised(self, z, mu):
        h = self.product(z, *self.input)
        for i, (weight, bias) in enumerate(self.first):
            if self.adaln:
                u = torch.addcmul(mu[3 * i + 1], self.normalised(h), mu[3 * i])
                u = functional.silu(self.product(u, weight, bias))
                h = torch.addcmul(h, mu[3 * i + 2], self.product(u, *self.second[i]))
            else:
                h = h + functional.silu(self.product(h, weight, mu[i]))
        if self.adaln:
            h = torch.addcmul(mu[-1], self.normalised(h), mu[-2])
        return self.product(h, *self.output)

    @staticmethod
    def normalised(h):
        return functional.layer_norm(h, h.shape[-1:], eps=LAYER_NORM_EPSILON)

    def enter(self, x):
        return x

    def step(self, z, state):
        mu, (a, b, c), *noise = state
        z = a * z + b * self.denoised(z, mu)
        return z + c * noise[0] if noise else z

    def leave(self, z):
        for i, layer in enumerate(self.decoder):
            z = self.product(functional.silu(z) if i else z, *layer)
        return z


def model_of(problem, product):
    return (Stack if problem.kind == 'stack' else Diffusion)(problem, product)


def step_noise(noise):
    """A list, empty if there is none: [L, n, D]."""
    return [] if noise is None else [torch.from_numpy(noise).transpose(0, 1)]


def eager(problem, x, noise, product):
    """Everything that can be taken apart beforehand is: a loop over lists, numbers of Python."""
    model = model_of(problem, product)
    states = [list(part.unbind(0)) for part in model.states]
    if problem.kind == 'diffusion':
        states = [[list(mu.unbind(0)) for mu in states[0]], problem.coefficients.tolist()]

    def call():
        with torch.inference_mode():
            drawn = [part.unbind(0) for part in step_noise(noise)]
            z = model.enter(torch.from_numpy(x))
            for state in zip(*states, *drawn):
                z = model.step(z, state)
            return model.leave(z).numpy()
    return PythonCall(call)


def compiled(problem, x, noise, product, chunk):
    model = model_of(problem, product)

    def advance(z, *states):
        for i in range(chunk):
            z = model.step(z, [part[i] for part in states])
        return z
    fast = torch.compile(advance, dynamic=False)
    chunks = [part.split(chunk) for part in model.states]

    def call():
        with torch.inference_mode():
            drawn = [part.split(chunk) for part in step_noise(noise)]
            z = model.enter(torch.from_numpy(x))
            for states in zip(*chunks, *drawn):
                z = fast(z, *states)
            return model.leave(z).numpy()
    return PythonCall(call)


def settings(candidate, _, problem, x, noise):
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if candidate == 'eager':
        return [Setting(name, lambda name=name: eager(problem, x, noise, name))
                for name in ('linear', 'addmm')]
    products, chunks = ('addmm',), RESIDUAL_CHUNKS
    if problem.kind == 'stack':
        products, chunks = ('multiply and sum', 'addmm'), STACK_CHUNKS
    elif problem.adaln:
        chunks = ADALN_CHUNKS
    return [Setting(f'{chunk} steps as one, {product}',
                    lambda chunk=chunk, product=product:
                    compiled(problem, x, noise, product, chunk))
            for chunk in chunks for product in products]


def version(_):
    return torch.__version__
