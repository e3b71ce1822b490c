# SPDX-License-Identifier: Apache-2.0
"""The two demo networks in PyTorch: z_0 = W_in x + b_in, L equal steps, y = W_out z_L + b_out."""

import dataclasses
import math

import torch
import torch.nn.functional as F

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "silu": F.silu}


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a network is and how it is trained."""

    name: str
    model_type: str           # "resnet" or "mlp"
    activation: str
    num_layers: int
    gain: float               # starting layer weights are normal with deviation gain / sqrt(D),
    orthogonal: bool          # or, if orthogonal, gain times an orthogonal matrix
    written_dims: int         # the input layer writes z_0[:written_dims], the output layer reads
                              # the rest; state_dim: no such division
    training_steps: int
    layer_learning_rate: float
    ends_learning_rate: float   # for the input and the output layer
    weight_decay: float         # for the layers
    seed: int
    input_dim: int = 64
    state_dim: int = 16
    output_dim: int = 10
    batch_size: int = 128
    pixel_noise: float = 0.1      # standard deviation, added to training inputs
    label_smoothing: float = 0.05

    @property
    def divided(self) -> bool:
        return self.written_dims < self.state_dim

    @property
    def residual_scale(self) -> float:
        return self.num_layers**-0.5


class Network(torch.nn.Module):
    """Parameters by their names in the model format."""

    def __init__(self, spec: Spec, generator: torch.Generator):
        super().__init__()
        self.spec = spec
        dim = spec.state_dim

        def normal(std, *size):
            return torch.nn.Parameter(std * torch.randn(*size, generator=generator))

        self.input_weight = normal(2 * spec.input_dim**-0.5, dim, spec.input_dim)
        self.input_bias = normal(0.5, dim)
        self.layers_weight = torch.nn.Parameter(initial_layers(spec, generator))
        self.layers_bias = torch.nn.Parameter(torch.zeros(spec.num_layers, dim))
        self.output_weight = normal(dim**-0.5, spec.output_dim, dim)
        self.output_bias = torch.nn.Parameter(torch.zeros(spec.output_dim))
        written = (torch.arange(dim) < spec.written_dims).float()
        self.register_buffer("input_mask", written[:, None])
        self.register_buffer("output_mask", 1 - written if spec.divided else torch.ones(dim))

    def tensors(self):
        """Name in the file -> value as it acts, masks applied."""
        return {
            "input.weight": self.input_weight * self.input_mask,
            "input.bias": self.input_bias,
            "layers.weight": self.layers_weight,
            "layers.bias": self.layers_bias,
            "output.weight": self.output_weight * self.output_mask,
            "output.bias": self.output_bias,
        }

    def forward(self, inputs):
        return forward(self.spec, self.tensors(), inputs)


def initial_layers(spec, generator):
    """Starting weights of all layers, [L, D, D]."""
    random = torch.randn(spec.num_layers, spec.state_dim, spec.state_dim, generator=generator)
    if not spec.orthogonal:
        return spec.gain * random / math.sqrt(spec.state_dim)
    q, r = torch.linalg.qr(random)
    # The signs make the distribution uniform over the orthogonal matrices.
    return spec.gain * q * torch.sign(torch.diagonal(r, dim1=1, dim2=2))[:, None, :]


def forward(spec, tensors, inputs):
    """Outputs [n, output_dim] of inputs [n, input_dim]."""
    activation = ACTIVATIONS[spec.activation]
    state = F.linear(inputs, tensors["input.weight"], tensors["input.bias"])
    weights = tensors["layers.weight"].transpose(1, 2).unbind(0)
    for weight, bias in zip(weights, tensors["layers.bias"].unbind(0)):
        value = activation(torch.addmm(bias, state, weight))
        residual = spec.model_type == "resnet"
        state = torch.add(state, value, alpha=spec.residual_scale) if residual else value
    return F.linear(state, tensors["output.weight"], tensors["output.bias"])


RESNET = Spec(name="digits-resnet", model_type="resnet", activation="relu", num_layers=1024,
              gain=0.1, orthogonal=False, written_dims=10, training_steps=800,
              layer_learning_rate=2e-3, ends_learning_rate=5e-3, weight_decay=1.0, seed=1)
MLP = Spec(name="digits-mlp", model_type="mlp", activation="tanh", num_layers=128, gain=1.0,
           orthogonal=True, written_dims=16, training_steps=2500, layer_learning_rate=1e-3,
           ends_learning_rate=1e-3, weight_decay=0.0, seed=1)
SPECS = {spec.name: spec for spec in (RESNET, MLP)}
