#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves a deep pre-norm network, trained for seconds and exported block by block, as a `stack`.

usage: stack_test.py --server_binary PATH --client_binary PATH [--blocks N]
                     [--exporters torchscript dynamo] [--rows N]

The blocks are of equal form: the first one is written by torch.onnx.export as it is, the parameters
of all are stacked by their names. What is asked of the answers is what models_test.py asks.
"""

import argparse
import json
import sys

import models_test  # sets the libraries' threads, so it comes first
import serving
import stacking
import torch
from torch import nn

WIDTH, INPUTS, CLASSES = 16, 8, 4
TRAINED_BLOCKS = 4096  # blocks that are gone through, forth and back, by 64 samples


class Block(nn.Module):
    """Pre-norm, expansion 4, Mish, a residual scale: IDQL's block in a deep network."""

    def __init__(self, depth):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act, self.scale = nn.Mish(), (2 / depth) ** 0.5

    def forward(self, z):
        return z + self.scale * self.down(self.act(self.up(self.norm(z))))


class Network(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.input, self.output = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(Block(depth) for _ in range(depth))

    def states(self, x):
        states = [self.input(x)]
        for block in self.blocks:
            states.append(block(states[-1]))
        return states

    def forward(self, x):
        return self.output(self.states(x)[-1])


def clusters(rows):
    """Points around a centre for each class, and the classes."""
    label = torch.randint(0, CLASSES, (rows,))
    centres = torch.sin(1.7 * torch.arange(CLASSES * INPUTS).float()).reshape(CLASSES, INPUTS)
    return 2 * centres[label] + torch.randn(rows, INPUTS), label


def train(network):
    """Losses of the first and of the last step."""
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    losses = []
    for _ in range(max(8, TRAINED_BLOCKS // len(network.blocks))):
        x, label = clusters(64)
        loss = nn.functional.cross_entropy(network(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def write(network, folder, exporter):
    folder.mkdir(parents=True)
    example = (torch.randn(1, WIDTH),)
    options = {}
    if exporter == 'dynamo':
        options = {'dynamo': True, 'verbose': False}
    elif hasattr(torch, 'export'):
        options = {'dynamo': False, 'do_constant_folding': False}
    torch.onnx.export(network.blocks[0], example, str(folder / 'block.onnx'), **options)
    tensors = stacking.stacked(network.blocks)
    for name in ('input', 'output'):
        for key, value in getattr(network, name).named_parameters():
            tensors[f'{name}.{key}'] = value
    stacking.write_safetensors(folder / 'model.safetensors', tensors)
    config = {'model_type': 'stack', 'input_dim': INPUTS, 'output_dim': CLASSES,
              'state_dim': WIDTH, 'num_layers': len(network.blocks)}
    (folder / 'config.json').write_text(json.dumps(config), encoding='utf-8')


class Truth:
    """What the network says of some inputs: in float64, and in its own float32."""

    def __init__(self, network, rows):
        torch.manual_seed(2)
        self.x = clusters(rows)[0]
        own = network(self.x).detach().numpy()
        states = network.double().states(self.x.double())
        self.samples = network.output(states[-1]).detach().numpy()
        self.states = torch.stack(states, 1).detach().numpy()
        network.float()
        self.own_error = models_test.error(own, self.samples)

    def asked(self, server, name, solver):
        return server.forward(name, solver, self.x.numpy(), models_test.RTOL)


def judged(flags, exporter, folder):
    torch.manual_seed(1)
    network = Network(flags.blocks)
    first, last = train(network)
    network.eval()
    write(network, folder / 'models/deep/1', exporter)
    refusal = models_test.check(flags.server_binary, folder / 'models/deep/1')
    if refusal:
        return [refusal]
    truth = Truth(network, flags.rows)
    judge = models_test.Judge('deep')
    judge.expect(last < first, f'training did nothing, {first} to {last}')
    with torch.no_grad(), serving.Server(flags.server_binary, flags.client_binary,
                                         folder / 'models', folder) as server:
        found = judge.answers(server, truth)
    print(f'{exporter:11} {flags.blocks} blocks  loss {first:.2f} to {last:.2f} ',
          *(f'{who} {value:.1e}' for who, value in found.items()),
          f'error/claim {judge.worst_claim:.2g}', flush=True)
    return [f'{exporter}: {what}' for what in judge.wrong]


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument('--server_binary', required=True)
    parser.add_argument('--client_binary', required=True)
    parser.add_argument('--blocks', type=int, default=512)
    parser.add_argument('--exporters', nargs='+', default=['torchscript'])
    parser.add_argument('--rows', type=int, default=3)
    flags = parser.parse_args(arguments)
    return models_test.verdict(flags, judged)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
