#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch rungs of the CPU ladder: the same weights and inputs as solver_bench, on one core.

Describes itself in a line of JSON, then answers every line of standard input with a round: the
seconds of every timed call, by group and candidate. Every candidate's outputs are compared with the
engine's (--outputs_dir, written by solver_bench) before anything is timed.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'deploy/models/digits'))
# Before the framework starts its threads.
os.environ.update(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')

import numpy as np  # noqa: E402
import torch  # noqa: E402

import safetensors_file  # noqa: E402

# Of the outputs, relative to the largest one of the sample; both sides compute in float32.
TOLERANCE = 1e-4
# TorchScript compiles in its first calls of a shape.
WARM_CALLS = 4
ACTIVATIONS = {'relu': torch.nn.ReLU, 'tanh': torch.nn.Tanh}


class Network(torch.nn.Module):
    """What a user writes: a list of nn.Linear, a loop."""

    def __init__(self, config, tensors):
        super().__init__()
        width, steps = config['state_dim'], config['num_layers']
        self.encode = linear(tensors['input.weight'], tensors.get('input.bias'))
        self.layers = torch.nn.ModuleList(
            linear(tensors['layers.weight'][i], tensors['layers.bias'][i]) for i in range(steps))
        self.decode = linear(tensors['output.weight'], tensors.get('output.bias'))
        self.act = ACTIVATIONS[config['activation']]()
        self.residual = config['model_type'] == 'resnet'
        self.scale = float(config.get('residual_scale', steps ** -0.5))
        assert self.layers[0].weight.shape == (width, width)

    def forward(self, x):
        z = self.encode(x)
        for layer in self.layers:
            if self.residual:
                z = z + self.scale * self.act(layer(z))
            else:
                z = self.act(layer(z))
        return self.decode(z)


def linear(weight, bias):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = torch.from_numpy(weight.copy())
    if bias is not None:
        layer.bias.data = torch.from_numpy(bias.copy())
    return layer


def under(mode, function):
    def call(x):
        with mode():
            return function(x)
    return call


def functional(network):
    """The loop without modules: the fewest Python steps that eager mode allows."""
    pairs = [(layer.weight, layer.bias) for layer in network.layers]
    act = torch.relu if isinstance(network.act, torch.nn.ReLU) else torch.tanh
    first, last, scale = network.encode, network.decode, network.scale
    product = torch.nn.functional.linear

    def residual(x):
        z = first(x)
        for weight, bias in pairs:
            z = torch.add(z, act(product(z, weight, bias)), alpha=scale)
        return last(z)

    def plain(x):
        z = first(x)
        for weight, bias in pairs:
            z = act(product(z, weight, bias))
        return last(z)

    return residual if network.residual else plain


def torchscript(network, example):
    """Traced once for all numbers of samples; and what could not be built, with the reason."""
    builders = {
        'TorchScript': lambda: torch.jit.trace(network, example, check_trace=False),
        'TorchScript frozen': lambda: torch.jit.optimize_for_inference(
            torch.jit.trace(network, example, check_trace=False)),
    }
    made, missing = [], {}
    for name, build in builders.items():
        try:
            with torch.no_grad():
                made.append((name, under(torch.inference_mode, build())))
        except RuntimeError as error:  # whatever this version lacks
            missing[name] = str(error).strip().splitlines()[-1]
    return made, missing


def candidates(network, example):
    """Names and functions, eager first."""
    made, missing = torchscript(network, example)
    return [('eager no_grad', under(torch.no_grad, network)),
            ('eager inference_mode', under(torch.inference_mode, network)),
            ('eager functional', under(torch.inference_mode, functional(network))),
            *made], missing


def largest_difference(got, expected):
    scale = np.abs(expected).max(axis=1)
    return float((np.abs(got - expected).max(axis=1) / scale).max())


class Group:
    """One model at one number of samples."""

    def __init__(self, name, made, inputs, expected, samples):
        self.name, self.samples, self.inputs = name, samples, inputs
        self.made, self.missing = made
        self.differences = []
        for candidate, call in self.made:
            for _ in range(WARM_CALLS):
                call(self.inputs[:samples])
            got = np.concatenate([call(self.inputs[i:i + samples]).numpy()
                                  for i in range(0, len(expected) - samples + 1, samples)])
            difference = largest_difference(got, expected[:len(got)])
            if not difference <= TOLERANCE:
                sys.exit(f'torch_ladder.py: {name}, {candidate}: outputs differ by {difference:g} '
                         f'from the engine\'s, expected at most {TOLERANCE:g}')
            self.differences.append(difference)

    def describe(self):
        return {'model': self.name, 'samples': self.samples, 'missing': self.missing,
                'candidates': [{'name': name, 'max_output_difference': difference}
                               for (name, _), difference in zip(self.made, self.differences)]}

    def time_round(self, seconds):
        """In turns: one call untimed, then up to two timed, until each has had its seconds."""
        taken = [[] for _ in self.made]
        turn = 0
        while any(sum(t) < seconds or not t for t in taken):
            for index, (_, call) in enumerate(self.made):
                if taken[index] and sum(taken[index]) >= seconds:
                    continue
                first = turn * self.samples % (len(self.inputs) - self.samples + 1)
                x = self.inputs[first:first + self.samples]
                call(x)
                for _ in range(2):
                    start = time.perf_counter()
                    call(x)
                    taken[index].append(time.perf_counter() - start)
            turn += 1
        return taken


def load_groups(arguments):
    inputs = torch.from_numpy(np.load(arguments.inputs).astype(np.float32))
    groups = []
    for name in arguments.models.split(','):
        folder = arguments.model_repository / name / '1'
        config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
        network = Network(config, safetensors_file.read(folder / 'model.safetensors')).eval()
        print(f'torch {name}: tracing and checking', file=sys.stderr, flush=True)
        made = candidates(network, inputs[:1])
        expected = np.load(arguments.outputs_dir / f'{name}.npy')
        for samples in map(int, arguments.samples.split(',')):
            groups.append(Group(name, made, inputs, expected, samples))
    return groups


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model_repository', type=pathlib.Path,
                        default=ROOT / 'deploy/models/repository')
    parser.add_argument('--inputs', type=pathlib.Path,
                        default=ROOT / 'deploy/models/data/digits_heldout.npy')
    parser.add_argument('--outputs_dir', type=pathlib.Path, required=True)
    parser.add_argument('--models', default='digits-resnet,digits-mlp')
    parser.add_argument('--samples', default='1,8,64')
    parser.add_argument('--core', type=int, default=-1, help='to run on; -1: the last one')
    parser.add_argument('--seconds', type=float, default=0.2, help='per candidate and round')
    arguments = parser.parse_args()

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1] if arguments.core < 0 else arguments.core})
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    warnings.filterwarnings('ignore')
    groups = load_groups(arguments)
    print(json.dumps({'device': f'torch-{torch.__version__}', 'python': sys.version.split()[0],
                      'threads': torch.get_num_threads(),
                      'groups': [group.describe() for group in groups]}), flush=True)
    for _ in sys.stdin:
        print(json.dumps([group.time_round(arguments.seconds) for group in groups]), flush=True)


if __name__ == '__main__':
    main()
