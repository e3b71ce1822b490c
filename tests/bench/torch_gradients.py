#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of gradient_bench: autograd in eager mode, on one core, in turns with it.

Describes itself in a line of JSON, then answers every line of standard input with a round: the
seconds of every timed call, by group and candidate. Every gradient is compared with the engine's
(--outputs_dir, written by gradient_bench) before anything is timed.
"""

import argparse
import json
import os
import pathlib
import sys

import torch_ladder  # sets the libraries' threads, so it comes first
import numpy as np
import safetensors_file
import torch
import torch_diffusion

# Of the largest element; both sides compute in float32.
TOLERANCE = 1e-4
WARM_CALLS = 3
BATCH, CLIP = 64, 1.0


class Group:
    """Candidates that are timed in turns by torch_ladder.Group."""

    def __init__(self, model, samples):
        self.inner = torch_ladder.Group(model, samples, {})

    def add(self, name, call, found, wanted):
        """`found` beside the engine's; call() is what will be timed."""
        apart = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        if not apart <= TOLERANCE:
            sys.exit(f'torch_gradients.py: {self.inner.name}, {name}: {apart:g} from the engine\'s, '
                     f'expected at most {TOLERANCE:g}')
        for _ in range(WARM_CALLS):
            call()
        self.inner.made.append((name, lambda _: call()))
        self.inner.timed.append([])
        self.inner.differences.append(apart)


def row(arguments, name):
    return np.load(arguments.outputs_dir / f'{name}.npy')[0]


def tensor(arguments, name):
    return torch.from_numpy(row(arguments, name).astype(np.float32))[None]


def network_group(arguments):
    """Back through the graph of one call, which is kept; and with the call that makes it."""
    name = 'digits-resnet'
    folder = arguments.model_repository / name / '1'
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    network = torch_ladder.Network(config, safetensors_file.read(folder / 'model.safetensors'))
    weights = [layer.weight for layer in network.layers]
    everything = list(network.parameters())
    x = tensor(arguments, f'{name}-input').requires_grad_()
    cotangent = tensor(arguments, f'{name}-cotangent')
    wanted, group = row(arguments, f'{name}-gradient'), Group(name, 1)

    def back(outputs, by):
        return torch.autograd.grad(outputs, by, cotangent, retain_graph=True)

    # Where parameters ask for no gradients, autograd computes none of them.
    for function, title in ((network, ''), (torch_ladder.functional(network), ', functional')):
        for parameter in everything:
            parameter.requires_grad_(False)
        outputs = function(x)
        group.add(f'backward{title}', lambda outputs=outputs: back(outputs, [x]),
                  back(outputs, [x])[0].numpy()[0], wanted)
        group.add(f'forward and backward{title}',
                  lambda function=function: torch.autograd.grad(function(x), [x], cotangent),
                  torch.autograd.grad(function(x), [x], cotangent)[0].numpy()[0], wanted)
        for parameter in everything:
            parameter.requires_grad_(True)
        outputs = function(x)
        found = torch.stack(back(outputs, weights)).numpy().ravel()
        group.add(f'backward, parameters too{title}',
                  lambda outputs=outputs: back(outputs, [x, *everything]), found,
                  row(arguments, f'{name}-weights'))
    return group


def diffusion_group(arguments):
    name = 'digits-ddpm'
    folder = arguments.model_repository / name / '1'
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    scheduler = json.loads((folder / 'scheduler_config.json').read_text(encoding='utf-8'))
    sampler = torch_diffusion.Sampler(config, scheduler,
                                      safetensors_file.read(folder / 'model.safetensors'))
    for parameter in sampler.network.parameters():
        parameter.requires_grad_(False)
    noise = tensor(arguments, f'{name}-noise').reshape(len(sampler.steps) + 1, 1, -1)
    cotangent = tensor(arguments, f'{name}-cotangent')
    first = noise[0].clone().requires_grad_()

    def take_back():
        z = first
        for i, t in enumerate(sampler.scheduler.timesteps):
            z = sampler.scheduler.step(sampler.network(z, sampler.at(t)), t, z,
                                       lambda i=i: noise[i + 1])
        return torch.autograd.grad(sampler.network.decode(z), [first], cotangent)[0]

    group = Group(name, 1)
    group.add('forward and backward', take_back, take_back().numpy()[0],
              row(arguments, f'{name}-gradient'))
    return group


def parameters_of(arguments, config):
    """The tensors of model.safetensors, from one vector of all of them."""
    width, steps = config['state_dim'], config['num_layers']
    flat, tensors, at = row(arguments, 'training-parameters'), {}, 0
    for name, shape in (('input.weight', (width, config['input_dim'])), ('input.bias', (width,)),
                        ('layers.weight', (steps, width, width)), ('layers.bias', (steps, width)),
                        ('output.weight', (config['output_dim'], width)),
                        ('output.bias', (config['output_dim'],))):
        size = int(np.prod(shape))
        tensors[name] = flat[at:at + size].reshape(shape).astype(np.float32)
        at += size
    assert at == len(flat)
    return tensors


def stacked(tensors, scale):
    """Parameters with the weights of all layers in one tensor, and the loop over them."""
    made = {name: torch.from_numpy(value.copy()).requires_grad_()
            for name, value in tensors.items()}
    linear = torch.nn.functional.linear

    def outputs(x):
        z = linear(x, made['input.weight'], made['input.bias'])
        for weight, bias in zip(made['layers.weight'].unbind(), made['layers.bias'].unbind()):
            z = torch.add(z, torch.relu(linear(z, weight, bias)), alpha=scale)
        return linear(z, made['output.weight'], made['output.bias'])
    return list(made.values()), outputs


def training_group(arguments):
    """Steps of AdamW whose rate is zero, so that each is the first one."""
    folder = arguments.model_repository / 'digits-resnet' / '1'
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    tensors = parameters_of(arguments, config)
    found = np.load(arguments.data / 'digits_train.npz')
    x = torch.from_numpy(found['inputs'][:BATCH].astype(np.float32))
    y = torch.from_numpy(found['labels'][:BATCH].astype(np.int64))
    network = torch_ladder.Network(config, tensors)
    group = Group('digits-resnet, training', BATCH)
    for name, (parameters, function) in (
            ('training step, list of nn.Linear', (list(network.parameters()), network)),
            ('training step, stacked weights', stacked(tensors, network.scale))):
        optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)

        def step(parameters=parameters, function=function, optimizer=optimizer):
            loss = torch.nn.functional.cross_entropy(function(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            return np.array([loss.item(), norm.item()])
        group.add(name, step, step(), row(arguments, 'training-found'))
    return group


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = torch_ladder.ROOT
    parser.add_argument('--model_repository', type=pathlib.Path,
                        default=root / 'deploy/models/repository')
    parser.add_argument('--data', type=pathlib.Path, default=root / 'deploy/models/data')
    parser.add_argument('--outputs_dir', type=pathlib.Path, required=True)
    parser.add_argument('--core', type=int, default=-1, help='to run on; -1: the last one')
    parser.add_argument('--seconds', type=float, default=0.5, help='per candidate and round')
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1] if arguments.core < 0 else arguments.core})
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    groups = [make(arguments).inner for make in (network_group, diffusion_group, training_group)]
    blas_name, blas_file = torch_ladder.blas()
    torch_ladder.follow({'device': f'torch-{torch.__version__}, {blas_name}', 'blas': blas_file},
                        groups, arguments.seconds)


if __name__ == '__main__':
    main()
