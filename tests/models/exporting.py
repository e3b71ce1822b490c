# SPDX-License-Identifier: Apache-2.0
"""Trains a model of zoo.py for seconds and writes its folder, as a user of PyTorch would."""

import json

import torch

import sampler

INPUTS = ('x', 't', 'c')
# Training goes on for so many steps, or so many updates of a number: a large network still learns
# something in half a minute.
TRAINING_STEPS, TRAINING_UPDATES = 300, 1e9


def train(module, model, sizes, batch=128, rate=1e-3):
    """Denoising by Adam; returns the mean losses of the first and of the last tenth."""
    products = torch.tensor(sampler.alphas_cumprod(model.scheduler), dtype=torch.float32)
    states, others = model.data(sizes, 4096)
    optimizer = torch.optim.Adam(module.parameters(), rate)
    numbers = sum(parameter.numel() for parameter in module.parameters())
    losses = []
    for _ in range(min(TRAINING_STEPS, int(TRAINING_UPDATES / numbers))):
        rows = torch.randint(0, len(states), (batch,))
        x0, given = states[rows], [other[rows] for other in others]
        t, noise = torch.randint(0, len(products), (batch,)), torch.randn_like(x0)
        a = products[t].reshape(-1, *[1] * (x0.dim() - 1))
        x = a.sqrt() * x0 + (1 - a).sqrt() * noise
        wanted = noise
        if model.scheduler['prediction_type'] == 'v_prediction':
            wanted = a.sqrt() * noise - (1 - a).sqrt() * x0
        loss = torch.nn.functional.mse_loss(module(x, t, *given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tenth = max(1, len(losses) // 10)
    return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth


def export(module, example, path, exporter):
    """torch.onnx.export of a batch of any size; `exporter`: torchscript or dynamo."""
    names = INPUTS[:len(example)]
    if exporter == 'dynamo':
        batch = torch.export.Dim('n')
        torch.onnx.export(module, example, str(path), dynamo=True, verbose=False, input_names=list(names),
                          dynamic_shapes=tuple({0: batch} for _ in names))
        return
    # PyTorch 1.13 has no other exporter, and no argument to choose.
    chosen = {'dynamo': False} if hasattr(torch, 'export') else {}
    torch.onnx.export(module, example, str(path), input_names=list(names), output_names=['eps'],
                      dynamic_axes={name: {0: 'n'} for name in (*names, 'eps')}, **chosen)


def inputs_of(model, sizes, rows):
    """(x, noise, others) of a request of n samples, in float32."""
    shape = model.sample_shape(sizes)
    _, others = model.data(sizes, rows)
    return torch.randn(rows, *shape), torch.randn(rows, model.steps, *shape), others


def make(model, sizes, folder, exporter):
    """(module, losses at the beginning and at the end of its training); writes FOLDER/1."""
    torch.manual_seed(1)
    module = model.module(**sizes)
    losses = train(module, model, sizes)
    module.eval()
    version = folder / '1'
    version.mkdir(parents=True)
    x, _, others = inputs_of(model, sizes, 2)
    export(module, (x, torch.tensor([3, 1]), *others), version / 'denoiser.onnx', exporter)
    width = x[0].numel()
    config = {'model_type': 'diffusion', 'denoiser': 'onnx', 'state_dim': width,
              'output_dim': width, 'num_inference_steps': model.steps}
    if 'classes' in sizes:
        config['num_classes'] = sizes['classes']
    elif others:
        config['conditioning_dim'] = others[0][0].numel()
    (version / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    (version / 'scheduler_config.json').write_text(json.dumps(model.scheduler), encoding='utf-8')
    return module, losses
