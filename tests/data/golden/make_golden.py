#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes activations.json and systems.json: float64 golden vectors by PyTorch autograd.

Usage: tests/data/golden/make_golden.py [--output_dir DIR]

The schema is in README.md beside this file. Parameters, inputs and cotangents are rounded to
float32 before anything is computed in float64, so a float32 reader holds the very same numbers.
"""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F


def gelu(a):
    """x Phi(x) by erfc: PyTorch's 1 + erf cancels in the negative tail, to nothing below -8.3."""
    return 0.5 * a * torch.erfc(-a / math.sqrt(2.0))


def gelu_tanh(a):
    """The tanh approximation in its equal sigmoid form, for the same reason."""
    return a * torch.sigmoid(math.sqrt(8.0 / math.pi) * (a + 0.044715 * a**3))


# name -> f(tensor)
ACTIVATIONS = {
    "identity": lambda a: a * 1.0,
    "relu": torch.relu,
    "leaky_relu": lambda a: F.leaky_relu(a, 0.01),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    # F.elu subtracts 1 from exp and is 0 for tiny arguments.
    "elu": lambda a: torch.where(a > 0, a, torch.expm1(a)),
    # PyTorch returns its argument above the threshold; 20 would cost 2e-9 of the value there.
    "softplus": lambda a: F.softplus(a, threshold=100.0),
    "mish": lambda a: a * torch.tanh(F.softplus(a, threshold=100.0)),
}

# One side of the grid, mirrored: around 0, the bends, then the tails.
MAGNITUDES = (
    2.0**-126, 1e-30, 1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 9.5, 12.0, 15.0, 20.0, 25.0, 30.0, 60.0, 90.0)

# (num_steps, state_dim, input_dim, output_dim, biases); input_dim 0: no input layer; output_dim 0:
# no output layer.
SHAPES = (
    (1, 1, 0, 0, True),
    (2, 3, 4, 2, True),
    (3, 2, 0, 3, False),
    (5, 4, 3, 0, True),
    (7, 5, 2, 2, False),
    (12, 3, 5, 4, True),
)
SHAPES_PER_PAIR = 2
SAMPLES = 2


def to_float32_grid(tensor):
    """The same tensor in float64 with every value representable in float32."""
    return tensor.to(torch.float32).to(torch.float64)


def activation_vectors():
    """Value and derivative of each activation over one grid of points."""
    side = to_float32_grid(torch.tensor(MAGNITUDES, dtype=torch.float64))
    points = torch.cat([-side.flip(0), torch.zeros(1, dtype=torch.float64), side])
    functions = {}
    for name, function in ACTIVATIONS.items():
        x = points.clone().requires_grad_()
        values = function(x)
        (derivatives,) = torch.autograd.grad(values.sum(), x)
        functions[name] = {"values": values.tolist(), "derivatives": derivatives.tolist()}
    return {"points": points.tolist(), "activations": functions}


def check_own_forms():
    """What we write in another form is PyTorch's function up to the rounding of the latter."""
    x = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    library = {"gelu": F.gelu, "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"), "elu": F.elu}
    for name, theirs in library.items():
        torch.testing.assert_close(ACTIVATIONS[name](x), theirs(x), rtol=1e-14, atol=1e-14)


def random_parameters(shape, generator):
    """Tensors by their names in the model format."""
    steps, dim, input_dim, output_dim, biases = shape

    def draw(scale, *size):
        return to_float32_grid(scale * torch.randn(*size, generator=generator, dtype=torch.float64))

    tensors = {"layers.weight": draw(dim**-0.5, steps, dim, dim)}
    if input_dim:
        tensors["input.weight"] = draw(input_dim**-0.5, dim, input_dim)
    if output_dim:
        tensors["output.weight"] = draw(dim**-0.5, output_dim, dim)
    for name in list(tensors) if biases else ():
        tensors[name.replace("weight", "bias")] = draw(0.3, *tensors[name].shape[:-1])
    return tensors


def linear(tensors, prefix, x):
    """x W^T + b, or x where there is no such layer."""
    weight, bias = tensors.get(prefix + ".weight"), tensors.get(prefix + ".bias")
    return x if weight is None else F.linear(x, weight, bias)


def forward(config, tensors, inputs):
    """Trajectory [n, L + 1, D] and outputs [n, output_dim]."""
    activation = ACTIVATIONS[config["activation"]]
    state = ACTIVATIONS[config["input_activation"]](linear(tensors, "input", inputs))
    states = [state]
    biases = tensors.get("layers.bias")
    for index in range(config["num_layers"]):
        bias = None if biases is None else biases[index]
        value = activation(F.linear(state, tensors["layers.weight"][index], bias))
        residual = config["model_type"] == "resnet"
        state = state + config["residual_scale"] * value if residual else value
        states.append(state)
    return torch.stack(states, dim=1), linear(tensors, "output", state)


def make_config(family, activation, shape, index):
    steps, dim, input_dim, output_dim, _ = shape
    config = {
        "model_type": family,
        "input_dim": input_dim or dim,
        "output_dim": output_dim or dim,
        "state_dim": dim,
        "num_layers": steps,
        "activation": activation,
        "input_activation": activation if input_dim and index % 2 else "identity",
    }
    if family == "resnet":
        config["residual_scale"] = float(torch.tensor(steps**-0.5, dtype=torch.float32))
    return config


def system_vector(family, activation, index, generator):
    """One small system with its trajectory, outputs and gradients of sum(cotangent * outputs)."""
    shape = SHAPES[index % len(SHAPES)]
    config = make_config(family, activation, shape, index)
    tensors = random_parameters(shape, generator)
    size = SAMPLES, config["input_dim"]
    inputs = to_float32_grid(torch.randn(*size, generator=generator, dtype=torch.float64))
    cotangent = to_float32_grid(
        torch.randn(SAMPLES, config["output_dim"], generator=generator, dtype=torch.float64))
    leaves = [inputs, *tensors.values()]
    for leaf in leaves:
        leaf.requires_grad_()
    trajectory, outputs = forward(config, tensors, inputs)
    gradients = torch.autograd.grad((cotangent * outputs).sum(), leaves)
    return {
        "name": f"{family}_{activation}_{shape[0]}x{shape[1]}",
        "config": config,
        "tensors": {name: tensor.tolist() for name, tensor in tensors.items()},
        "inputs": inputs.tolist(),
        "trajectory": trajectory.tolist(),
        "outputs": outputs.tolist(),
        "output_cotangent": cotangent.tolist(),
        "gradients": {
            "inputs": gradients[0].tolist(),
            "tensors": {name: g.tolist() for name, g in zip(tensors, gradients[1:])},
        },
    }


def system_vectors():
    """Every family with every activation, walking through the shapes."""
    generator = torch.Generator().manual_seed(20231)
    systems, index = [], 0
    for family in ("mlp", "resnet"):
        for activation in ACTIVATIONS:
            for _ in range(SHAPES_PER_PAIR):
                systems.append(system_vector(family, activation, index, generator))
                index += 1
    return {"systems": systems}


def write(path, content):
    """One line per value at the second level keeps differences readable and the file small."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    path.write_text(text.replace('},{"name"', '},\n{"name"').replace('"]},"', '"]},\n"') + "\n",
                    encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    directory = parser.parse_args().output_dir
    torch.set_num_threads(1)
    check_own_forms()
    write(directory / "activations.json", activation_vectors())
    write(directory / "systems.json", system_vectors())


if __name__ == "__main__":
    main()
