# SPDX-License-Identifier: Apache-2.0
"""The workloads as ONNX models: a Scan, a Loop, all steps one after the other, or one step.

Inputs: x [n, inputs] (of a diffusion model z_0), and noise [n, L, D] where there is any; output y.
The model of one step takes z and what differs from step to step, and returns next_z; the caller
encodes and decodes.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
LAYER_NORM_EPSILON = 1e-6
PRODUCTS = ('Gemm', 'MatMul')


class Graph:
    """Collects nodes and weights; every method that adds nodes returns the name of a value.

    `products`: which of PRODUCTS a layer becomes; engines differ in which one they are fast at.
    """

    def __init__(self, products, prefix=''):
        self.nodes, self.weights, self.prefix, self.count = [], {}, prefix, 0
        self.products = products

    def add(self, kind, *inputs, **attributes):
        self.count += 1
        name = f'{self.prefix}v{self.count}'
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, name, array):
        if name not in self.weights:
            self.weights[name] = numpy_helper.from_array(np.array(array, order='C'), name)
        return name

    def product(self, x, weight, bias):
        if self.products == 'Gemm':
            return self.add('Gemm', x, weight, bias)
        return self.add('Add', self.add('MatMul', x, weight), bias)

    def dense(self, x, name, layer, bias=None):
        return self.product(x, self.weight(f'{name}.w', layer.weight.T),
                            bias or self.weight(f'{name}.b', layer.bias))

    def silu(self, a):
        return self.add('Mul', a, self.add('Sigmoid', a))

    def entry(self, values, index):
        """values[index], of the first axis, which goes."""
        return self.add('Gather', values, self.weight(f'i{index}', np.int64(index)), axis=0)

    def normalised(self, h, width):
        ones = self.weight('ones', np.ones(width, np.float32))
        return self.add('LayerNormalization', h, ones, axis=-1, epsilon=LAYER_NORM_EPSILON)


def stack_step(graph, problem, z, state):
    weight, bias = state
    return graph.add('Add', z, graph.add('Relu', graph.product(z, weight, bias)))


def diffusion_step(graph, problem, z, state):
    """`state`: the parts of mu, one by one, a, b, and, where there is noise, c and the noise."""
    mu, (a, b, *drawn) = state[:problem.mu.shape[1]], state[problem.mu.shape[1]:]
    width = problem.mu.shape[2]
    h = graph.dense(z, 'input', problem.input)
    for i, first in enumerate(problem.first):
        if problem.adaln:
            u = graph.add('Mul', graph.normalised(h, width), mu[3 * i])
            u = graph.dense(graph.add('Add', u, mu[3 * i + 1]), f'first{i}', first)
            u = graph.dense(graph.silu(u), f'second{i}', problem.second[i])
            h = graph.add('Add', h, graph.add('Mul', u, mu[3 * i + 2]))
        else:
            h = graph.add('Add', h, graph.silu(graph.dense(h, f'first{i}', first, mu[i])))
    if problem.adaln:
        h = graph.add('Add', graph.add('Mul', graph.normalised(h, width), mu[-2]), mu[-1])
    m = graph.dense(h, 'output', problem.output)
    z = graph.add('Add', graph.add('Mul', z, a), graph.add('Mul', m, b))
    return graph.add('Add', z, graph.add('Mul', *drawn)) if drawn else z


def step_of(problem):
    return stack_step if problem.kind == 'stack' else diffusion_step


def step_arrays(problem):
    """What differs from step to step: arrays by name, [L, ...], without the noise."""
    if problem.kind == 'stack':
        return {'w': problem.weights.swapaxes(1, 2), 'b': problem.biases}
    arrays = {f'mu{i}': problem.mu[:, i] for i in range(problem.mu.shape[1])}
    used = 3 if problem.coefficients[:, 2].any() else 2
    return arrays | {'abc'[i]: problem.coefficients[:, i:i + 1] for i in range(used)}


def float_value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def finished(graph, inputs, output):
    """A checked model with the value `output` as y."""
    graph.nodes.append(helper.make_node('Identity', [output], ['y']))
    made = helper.make_graph(graph.nodes, 'peer', inputs, [float_value('y', [None, None])],
                             list(graph.weights.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid('', OPSET)],
                              ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def entered(graph, problem):
    return graph.dense('x', 'encode', problem.encode) if problem.kind == 'stack' else 'x'


def left(graph, problem, z):
    if problem.kind == 'stack':
        return graph.dense(z, 'decode', problem.decode)
    for i, layer in enumerate(problem.decoder):
        z = graph.dense(graph.silu(z) if i else z, f'decoder{i}', layer)
    return z


def inputs_of(x, noise):
    given = [float_value('x', x.shape)]
    return given if noise is None else [*given, float_value('noise', noise.shape)]


def noise_by_step(graph, noise):
    """[] or the name of the noise as [L, n, D]."""
    return [] if noise is None else [graph.add('Transpose', 'noise', perm=[1, 0, 2])]


def scan_model(problem, x, noise, products):
    graph, body = Graph(products), Graph(products, 'body_')
    arrays = step_arrays(problem)
    sequences = [graph.weight(f'steps_{name}', array) for name, array in arrays.items()]
    sequences += noise_by_step(graph, noise)
    state = [f'in_{i}' for i in range(len(sequences))]
    body.nodes.append(helper.make_node('Identity', [step_of(problem)(body, problem, 'z', state)],
                                       ['next_z']))
    # The body may use weights of the graph around it.
    graph.weights |= body.weights
    dim = problem.encode.weight.shape[0] if problem.kind == 'stack' else x.shape[1]
    shapes = [array.shape[1:] for array in arrays.values()]
    shapes += [] if noise is None else [(len(x), dim)]
    made = helper.make_graph(
        body.nodes, 'body', [float_value('z', (len(x), dim)), *map(float_value, state, shapes)],
        [float_value('next_z', (len(x), dim))])
    z = graph.add('Scan', entered(graph, problem), *sequences, body=made,
                  num_scan_inputs=len(sequences))
    return finished(graph, inputs_of(x, noise), left(graph, problem, z))


def loop_model(problem, x, noise, products):
    graph, body = Graph(products), Graph(products, 'body_')
    sequences = [graph.weight(f'steps_{name}', array)
                 for name, array in step_arrays(problem).items()] + noise_by_step(graph, noise)
    state = [body.add('Gather', sequence, 'step', axis=0) for sequence in sequences]
    following = step_of(problem)(body, problem, 'z', state)
    body.nodes += [helper.make_node('Identity', [following], ['next_z']),
                   helper.make_node('Identity', ['go_on'], ['still_go_on'])]
    graph.weights |= body.weights
    dim = problem.encode.weight.shape[0] if problem.kind == 'stack' else x.shape[1]
    state_value = [len(x), dim]
    made = helper.make_graph(
        body.nodes, 'body',
        [helper.make_tensor_value_info('step', TensorProto.INT64, []),
         helper.make_tensor_value_info('go_on', TensorProto.BOOL, []),
         float_value('z', state_value)],
        [helper.make_tensor_value_info('still_go_on', TensorProto.BOOL, []),
         float_value('next_z', state_value)])
    z = graph.add('Loop', graph.weight('count', np.int64(problem.steps())),
                  graph.weight('yes', np.bool_(True)), entered(graph, problem), body=made)
    return finished(graph, inputs_of(x, noise), left(graph, problem, z))


def unrolled_model(problem, x, noise, products):
    graph = Graph(products)
    arrays = step_arrays(problem)
    drawn = noise_by_step(graph, noise)
    z = entered(graph, problem)
    for step in range(problem.steps()):
        state = [graph.weight(f'{name}_{step}', array[step]) for name, array in arrays.items()]
        z = step_of(problem)(graph, problem, z,
                             state + [graph.entry(values, step) for values in drawn])
    return finished(graph, inputs_of(x, noise), left(graph, problem, z))


def step_model(problem, x, noise, products):
    """Inputs: z, and the state's arrays by name, noise last."""
    graph = Graph(products)
    arrays = step_arrays(problem)
    names = [*arrays, *([] if noise is None else ['noise'])]
    dim = problem.encode.weight.shape[0] if problem.kind == 'stack' else x.shape[1]
    given = [float_value('z', (len(x), dim)),
             *(float_value(name, array.shape[1:]) for name, array in arrays.items()),
             *([] if noise is None else [float_value('noise', (len(x), dim))])]
    return finished(graph, given, step_of(problem)(graph, problem, 'z', names))


def ends_models(problem, x, products):
    """Models of what stands before and behind the steps; None where there is nothing."""
    made = []
    for work, width in ((entered, x.shape[1]), (left, None)):
        graph = Graph(products)
        if width is None:
            dim = problem.encode.weight.shape[0] if problem.kind == 'stack' else x.shape[1]
            output = work(graph, problem, 'x')
            given = [float_value('x', (len(x), dim))]
        else:
            output, given = work(graph, problem), [float_value('x', x.shape)]
        made.append(finished(graph, given, output) if graph.nodes else None)
    return made


FORMS = {'Scan': scan_model, 'Loop': loop_model, 'unrolled': unrolled_model}
