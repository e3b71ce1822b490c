# SPDX-License-Identifier: Apache-2.0
"""Forward pass in NumPy float32, written from the model format alone.

It shares nothing with the training code: what it computes from the exported files is what the
model card claims.
"""

import dataclasses
import json
import pathlib

import numpy as np

import safetensors_file


def _relu(a):
    return np.maximum(a, np.float32(0))


def _relu_derivative(a):
    return (a > 0).astype(a.dtype)


def _tanh_derivative(a):
    t = np.tanh(a)
    return 1 - t * t


def _sigmoid(a):
    # Computed through tanh, since exp(-a) would overflow in the tail.
    return np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * a))


def _silu(a):
    return a * _sigmoid(a)


def _silu_derivative(a):
    g = _sigmoid(a)
    return g * (1 + a * (1 - g))


# name -> (value, derivative)
ACTIVATIONS = {
    "relu": (_relu, _relu_derivative),
    "tanh": (np.tanh, _tanh_derivative),
    "silu": (_silu, _silu_derivative),
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as its files describe it; every array is float32."""

    config: dict
    tensors: dict

    @property
    def num_layers(self) -> int:
        return self.config["num_layers"]

    @property
    def residual(self) -> bool:
        return self.config["model_type"] == "resnet"

    @property
    def scale(self) -> np.float32:
        return np.float32(self.config.get("residual_scale", self.num_layers**-0.5))

    def encode(self, inputs):
        """[n, input_dim] -> z_0 [n, D]."""
        return inputs @ self.tensors["input.weight"].T + self.tensors["input.bias"]

    def step(self, index, states):
        """z_(l-1) [n, D] -> z_l [n, D], l = index + 1."""
        weight, bias = self.tensors["layers.weight"][index], self.tensors["layers.bias"][index]
        value = ACTIVATIONS[self.config["activation"]][0](states @ weight.T + bias)
        return states + self.scale * value if self.residual else value

    def trajectory(self, inputs):
        """[n, input_dim] -> [L + 1, n, D], z_0 first."""
        states = [self.encode(inputs)]
        for index in range(self.num_layers):
            states.append(self.step(index, states[-1]))
        return np.stack(states)

    def decode(self, states):
        """z_L [n, D] -> outputs [n, output_dim]."""
        return states @ self.tensors["output.weight"].T + self.tensors["output.bias"]


def load(directory: pathlib.Path) -> Model:
    """Reads <directory>/config.json and model.safetensors."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return Model(config, safetensors_file.read(directory / "model.safetensors"))
