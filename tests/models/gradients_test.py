#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradients through whole reverse processes of public models, beside PyTorch's autograd.

usage: gradients_test.py --library PATH [--sizes small|published] [--models NAME...] [--rows N]

Each module of zoo.py is trained, exported, loaded by libdeeppcr and run. Cotangents of its samples
go back by both ways: to the initial noise, the noise of every step, and the condition. They are
compared with autograd through the module and a plain sampler in float64 on the same noise, and are
as near as max(1e-5, 2 x what autograd in float32 is), by max|a - b| / max|b|.
"""

import argparse
import pathlib
import sys
import tempfile

import models_test  # sets the libraries' threads, so it comes first
import exporting
import library
import numpy as np
import sampler
import torch
import zoo

LEAST_TOLERANCE, FACTOR = 1e-5, 2
COLUMNS = 2
WAYS = ('sequential', 'parallel')


def autograd(module, schedule, x, noise, others, of_outputs):
    """By the condition (None without), by x, by the noise; for each column [n, ...], flat."""
    inputs = [x.clone().requires_grad_(), noise.clone().requires_grad_()]
    others = [o.clone().requires_grad_() if o.is_floating_point() else o for o in others]
    inputs += [o for o in others if o.requires_grad]
    last = sampler.trace(module, schedule, inputs[0], inputs[1], others)[-1].flatten(1)
    by = []
    for j in range(of_outputs.shape[1]):
        found = torch.autograd.grad(last, inputs, of_outputs[:, j], retain_graph=True,
                                    allow_unused=True)
        by.append([torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs)])
    stacked = [torch.stack(list(g), 1).double().numpy() for g in zip(*by)]
    n, m = len(x), of_outputs.shape[1]
    by_x, by_noise = stacked[0].reshape(n, m, -1), stacked[1].reshape(n, m, noise.shape[1], -1)
    return (stacked[2].reshape(n, m, -1) if len(stacked) > 2 else None), by_x, by_noise


def of_model(calls, name, sizes, rows, folder):
    """(what is wrong, the line to print)."""
    model = zoo.MODELS[name]
    module, _ = exporting.make(model, sizes, folder / name, 'torchscript')
    torch.manual_seed(2)
    x, noise, others = exporting.inputs_of(model, sizes, rows)
    schedule = sampler.steps_of(model.scheduler, model.steps)
    dim = x[0].numel()
    of_outputs = torch.randn(rows, COLUMNS, dim)
    own = autograd(module, schedule, x, noise, others, of_outputs)
    doubles = [o.double() if o.is_floating_point() else o for o in others]
    exact = autograd(module.double(), schedule, x.double(), noise.double(), doubles,
                     of_outputs.double())
    request = {'dim': dim, 'steps': model.steps, 'x': x.numpy(),
               'noise': noise.flatten(2).numpy(), 'condition': None, 'labels': None}
    for other in others:
        request['condition' if other.is_floating_point() else 'labels'] = other.reshape(
            rows, -1).numpy() if other.is_floating_point() else other.numpy()
    loaded = calls.load(folder / name / '1')
    _, _, found = calls.gradients(loaded, request, of_outputs.numpy(), WAYS)
    wrong, line = [], [f'{name:16}']
    for way in WAYS:
        for what, got, wanted, mine in zip(('condition', 'noise', 'steps'), found[way], exact, own):
            if wanted is None:
                continue
            if not wanted.any():  # steps without noise
                wrong += [f'{name}: {way}, by {what}: not zero'] if got.any() else []
                continue
            allowed = max(LEAST_TOLERANCE, FACTOR * models_test.error(mine, wanted))
            error = models_test.error(got, wanted)
            line.append(f'{way[:3]} {what} {error:.1e} ({models_test.error(mine, wanted):.1e})')
            if not error <= allowed:
                wrong.append(f'{name}: {way}, by {what}: {error:.1e} from float64, '
                             f'{allowed:.1e} allowed')
    return wrong, ' '.join(line)


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument('--library', required=True)
    parser.add_argument('--sizes', choices=['small', 'published'], default='small')
    parser.add_argument('--models', nargs='+', default=list(zoo.MODELS))
    parser.add_argument('--rows', type=int, default=3)
    flags = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f'PyTorch {torch.__version__}, {flags.sizes} sizes; max|a - b| / max|b| against float64 '
          "(autograd's own in float32)", flush=True)
    calls, wrong = library.Library(flags.library), []
    with tempfile.TemporaryDirectory() as folder:
        for name in flags.models:
            sizes = getattr(zoo.MODELS[name], flags.sizes)
            found, line = of_model(calls, name, sizes, flags.rows, pathlib.Path(folder))
            print(line, flush=True)
            wrong += found
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    np.seterr(all='raise', under='ignore')
    sys.exit(main(sys.argv[1:]))
