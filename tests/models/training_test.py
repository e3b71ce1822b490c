#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`deeppcr train` beside PyTorch: the same losses, step by step, and the same parameters after them.

usage: training_test.py --client_binary PATH

Every optimiser, with warm-up, cosine, clipping and weight decay, on shallow networks: deep ones grow
the rounding of one step beyond what a comparison could tell. The first parameters are those that a
run with a learning rate of zero publishes; a batch is all samples, so that their order is no matter.
PyTorch runs in float64; what it says is as near as 1e-5 in losses and parameters.
"""

import argparse
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch

SAMPLES, INPUTS, WIDTH, OUTPUTS, LAYERS, STEPS, WARMUP = 60, 7, 12, 4, 5, 40, 8
RATE, FLOOR, CLIP, DECAY = 1e-2, 0.1, 0.3, 0.05
LOSS_TOLERANCE, PARAMETER_TOLERANCE = 1e-5, 1e-5
ACTIVATIONS = {'tanh': torch.tanh, 'silu': torch.nn.functional.silu}


def tensors_of(path):
    """The tensors of a safetensors file, all of F32, in float64."""
    data = path.read_bytes()
    size = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + size])
    found = {}
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        values = np.frombuffer(data[8 + size + begin:8 + size + end], '<f4')
        found[name] = torch.from_numpy(values.reshape(entry['shape']).astype(np.float64))
    return found


def outputs_of(tensors, config, x):
    state = x @ tensors['input.weight'].T + tensors['input.bias']
    for weight, bias in zip(tensors['layers.weight'], tensors['layers.bias']):
        value = ACTIVATIONS[config['activation']](state @ weight.T + bias)
        resnet = config['model_type'] == 'resnet'
        state = state + config['residual_scale'] * value if resnet else value
    return state @ tensors['output.weight'].T + tensors['output.bias']


def optimizer_of(name, tensors):
    """Weight decay is of weights alone."""
    groups = [{'params': [t for n, t in tensors.items() if n.endswith('.weight')],
               'weight_decay': DECAY},
              {'params': [t for n, t in tensors.items() if n.endswith('.bias')],
               'weight_decay': 0.0}]
    if name == 'sgd':
        return torch.optim.SGD(groups, lr=RATE, momentum=0.9)
    return {'adam': torch.optim.Adam, 'adamw': torch.optim.AdamW}[name](groups, lr=RATE)


def rate_of(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    fall = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
    return RATE * (FLOOR + (1 - FLOOR) * fall)


def train_by_torch(optimizer_name, loss_name, config, tensors, x, y):
    tensors = {name: value.clone().requires_grad_() for name, value in tensors.items()}
    optimizer = optimizer_of(optimizer_name, tensors)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group['lr'] = rate_of(step)
        outputs = outputs_of(tensors, config, x)
        loss = (torch.nn.functional.cross_entropy(outputs, y) if loss_name == 'cross_entropy'
                else torch.nn.functional.mse_loss(outputs, y))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tensors.values(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach() for name, value in tensors.items()}


def train_by_deeppcr(binary, folder, model, flags):
    subprocess.run([binary, 'train', '--config', folder / 'config.json', '--data',
                    folder / 'data.npz', '--repository', folder, '--model', model, '--checkpoint',
                    folder / 'checkpoint', '--batch_size', str(SAMPLES), '--quiet', '--log',
                    folder / 'log', '--gain', '0.9', *flags], check=True,
                   stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (folder / 'log').read_text().splitlines()]
    return [line['loss'] for line in lines], tensors_of(folder / model / '1' / 'model.safetensors')


def compare(binary, folder, optimizer, loss, model_type, activation):
    """What is wrong, or None."""
    config = {'model_type': model_type, 'input_dim': INPUTS, 'output_dim': OUTPUTS,
              'state_dim': WIDTH, 'num_layers': LAYERS, 'activation': activation}
    if model_type == 'resnet':
        config['residual_scale'] = 0.5
    (folder / 'config.json').write_text(json.dumps(config))
    random = np.random.default_rng(1)
    x = random.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
    labels = random.integers(OUTPUTS, size=SAMPLES)
    targets = random.standard_normal((SAMPLES, OUTPUTS)).astype(np.float32)
    np.savez_compressed(folder / 'data.npz', inputs=x, labels=labels, targets=targets)
    y = torch.from_numpy(labels) if loss == 'cross_entropy' else torch.from_numpy(targets).double()

    _, first = train_by_deeppcr(binary, folder, 'first',
                                ['--steps', '1', '--learning_rate', '0', '--loss', loss])
    got, last = train_by_deeppcr(
        binary, folder, 'last',
        ['--steps', str(STEPS), '--optimizer', optimizer, '--loss', loss, '--learning_rate',
         str(RATE), '--warmup_steps', str(WARMUP), '--cosine_floor', str(FLOOR), '--clip_norm',
         str(CLIP), '--weight_decay', str(DECAY)])
    wanted, wanted_last = train_by_torch(optimizer, loss, config, first,
                                         torch.from_numpy(x).double(), y)
    error = max(abs(a - b) for a, b in zip(got, wanted))
    apart = max((last[name] - wanted_last[name]).abs().max().item() for name in wanted_last)
    moved = max((first[name] - wanted_last[name]).abs().max().item() for name in wanted_last)
    title = f'{optimizer} {loss} {model_type} {activation}'
    print(f'{title:36} loss {got[0]:.3f} -> {got[-1]:.3f}, apart {error:.1e}; parameters moved '
          f'{moved:.2f}, apart {apart:.1e}')
    if len(got) != len(wanted) or not (error <= LOSS_TOLERANCE and apart <= PARAMETER_TOLERANCE):
        return f'{title}: losses {error:.1e} and parameters {apart:.1e} from PyTorch'
    # Clipped by its norm, every step of sgd is short.
    if not moved > 1000 * PARAMETER_TOLERANCE:
        return f'{title}: the parameters moved by {moved:.1e} only, which says nothing'
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--client_binary', required=True)
    binary = parser.parse_args().client_binary
    torch.set_num_threads(1)
    wrong = []
    for optimizer in ('sgd', 'adam', 'adamw'):
        for loss, model_type, activation in (('cross_entropy', 'resnet', 'silu'),
                                             ('mse', 'mlp', 'tanh')):
            with tempfile.TemporaryDirectory() as folder:
                found = compare(binary, pathlib.Path(folder), optimizer, loss, model_type,
                                activation)
                wrong += [found] if found else []
    for line in wrong:
        print(f'WRONG: {line}')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
