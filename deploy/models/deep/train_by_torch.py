#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The run of train_deep.sh by PyTorch: the same first parameters, batches, optimiser and schedule.

usage: train_by_torch.py --first MODEL.safetensors --config FILE --data FOLDER --steps N --log FILE

Writes the lines that `deeppcr train --log` writes. The weights of all layers are one tensor, which is
the faster way to train so deep a network in eager mode; tests/bench/run.sh --gradients has the other.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'digits'))

import experiment  # noqa: E402
import safetensors_file  # noqa: E402


def outputs_of(tensors, scale, x, bypassed=False):
    z = torch.nn.functional.linear(x, tensors['input.weight'], tensors['input.bias'])
    if not bypassed:
        for weight, bias in zip(tensors['layers.weight'].unbind(), tensors['layers.bias'].unbind()):
            z = z + scale * torch.relu(torch.nn.functional.linear(z, weight, bias))
    return torch.nn.functional.linear(z, tensors['output.weight'], tensors['output.bias'])


def split(tensors, of):
    """Zeroes what the outer layers must not write or read, in `of(tensor)`."""
    of(tensors['input.weight'])[experiment.SPLIT:] = 0
    of(tensors['input.bias'])[experiment.SPLIT:] = 0
    of(tensors['output.weight'])[:, :experiment.SPLIT] = 0


def optimizer_of(tensors):
    """Weight decay is of weights alone."""
    groups = [{'params': [t for n, t in tensors.items() if n.endswith('.weight')],
               'weight_decay': experiment.DECAY},
              {'params': [t for n, t in tensors.items() if n.endswith('.bias')],
               'weight_decay': 0.0}]
    return torch.optim.AdamW(groups, lr=experiment.RATE)


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    for name in ('first', 'config', 'data', 'log'):
        parser.add_argument(f'--{name}', type=pathlib.Path, required=True)
    parser.add_argument('--steps', type=int, required=True)
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text(encoding='utf-8'))
    assert config['model_type'] == 'resnet' and config['activation'] == 'relu'
    scale = config['residual_scale']
    found = np.load(arguments.data / 'digits_train.npz')
    x, y = torch.from_numpy(found['inputs'].astype(np.float32)), torch.from_numpy(found['labels'])
    held_x = torch.from_numpy(np.load(arguments.data / 'digits_heldout.npy'))
    held_y = torch.from_numpy(np.load(arguments.data / 'digits_heldout_labels.npy'))
    tensors = {name: torch.from_numpy(value.copy()).requires_grad_()
               for name, value in safetensors_file.read(arguments.first).items()}
    optimizer = optimizer_of(tensors)

    def accuracy(bypassed):
        with torch.no_grad():
            right = outputs_of(tensors, scale, held_x, bypassed).argmax(1) == held_y
        return right.double().mean().item()

    def take(step, batch):
        for group in optimizer.param_groups:
            group['lr'] = experiment.rate_of(step, arguments.steps)
        loss = torch.nn.functional.cross_entropy(outputs_of(tensors, scale, x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        split(tensors, lambda tensor: tensor.grad)
        torch.nn.utils.clip_grad_norm_(tensors.values(), experiment.CLIP)
        optimizer.step()
        return loss.item()

    with open(arguments.log, 'w', encoding='utf-8') as log:
        def write(step, **entry):
            log.write(json.dumps({'step': step, **entry}) + '\n')

        for step, batch in enumerate(experiment.batches(len(x), arguments.steps)):
            begin = time.perf_counter()
            loss = take(step, torch.from_numpy(batch))
            write(step + 1, loss=loss, seconds={'step': time.perf_counter() - begin})
        write(arguments.steps, validation_accuracy=accuracy(False))
        write(arguments.steps, bypassed_accuracy=accuracy(True))
    print(f'{arguments.steps} steps by PyTorch {torch.__version__}, held out '
          f'{100 * accuracy(False):.2f} %, layers bypassed {100 * accuracy(True):.2f} %')


if __name__ == '__main__':
    main()
