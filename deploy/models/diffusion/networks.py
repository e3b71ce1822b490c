# SPDX-License-Identifier: Apache-2.0
"""The networks in PyTorch. Names of parameters are the names of tensors in model.safetensors."""

import dataclasses
import math

import torch
from torch import nn
import torch.nn.functional as F

DECODER = "decoder."       # begins the names of its tensors
LAYER_NORM_EPSILON = 1e-6
MAX_PERIOD = 10000.0


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a denoiser is and how it is trained."""

    name: str
    denoiser: str              # "residual_mlp" or "adaln_mlp"; with onnx also "gated_mlp"
    scheduler: str             # "DDPMScheduler" or "DDIMScheduler"
    state_dim: int
    hidden_dim: int
    inference_steps: tuple     # the first is the default
    seed: int
    training_steps: int
    groups: int                # groups per batch, each of one timestep and one class
    group_size: int
    learning_rate: float
    smoothing: float           # standard deviation of noise added to the training latents
    num_blocks: int = 3
    num_classes: int = 0
    digits: bool = True        # false: points of the swiss roll
    latent: bool = True        # of digits: their latents, with a decoder; false: their pixels
    onnx: bool = False         # the denoiser is in denoiser.onnx
    same_as: str = ""          # the trained model whose weights these are
    activation: str = "silu"
    time_embedding_dim: int = 128
    train_timesteps: int = 1000
    beta_schedule: str = "linear"
    beta_start: float = 0.0001
    prediction: str = "epsilon"
    weight_decay: float = 1e-4
    ema_decay: float = 0.999


def time_embedding(spec: Spec) -> torch.Tensor:
    """[train_timesteps, time_embedding_dim]: cosines, then sines, as in DiT and MAR."""
    half = spec.time_embedding_dim // 2
    frequencies = torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(spec.train_timesteps, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=1).float()


class Linear(nn.Linear):
    """nn.Linear on [..., in], computed as a 1x1 convolution.

    PyTorch hands convolutions to oneDNN, and linear layers to BLAS, which is Debian's reference
    implementation unless another is installed: several times slower.
    """

    def forward(self, values):
        flat = values.reshape(-1, self.in_features, 1, 1)
        result = F.conv2d(flat, self.weight[:, :, None, None], self.bias)
        return result.reshape(values.shape[:-1] + (self.out_features,))


class TimeEmbed(nn.Module):
    """y_t of an embedded timestep."""

    def __init__(self, spec):
        super().__init__()
        self.mlp = nn.Sequential(Linear(spec.time_embedding_dim, spec.hidden_dim), nn.SiLU(),
                                 Linear(spec.hidden_dim, spec.hidden_dim))

    def forward(self, embedded):
        return self.mlp(embedded)


class ResidualBlock(nn.Module):
    """h + silu(linear(h) + modulation(silu(y)))."""

    def __init__(self, dim):
        super().__init__()
        self.linear = Linear(dim, dim)
        self.modulation = Linear(dim, dim)

    def forward(self, h, silu_y):
        return h + F.silu(self.linear(h) + self.modulation(silu_y))


class PlainFinalLayer(nn.Module):
    """linear(h)."""

    def __init__(self, dim, output_dim):
        super().__init__()
        self.linear = Linear(dim, output_dim)

    def forward(self, h, _):
        return self.linear(h)


def _modulation(dim, parts):
    """SiLU and a linear layer that starts at zero: every block starts as the identity."""
    linear = Linear(dim, parts * dim)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.SiLU(), linear)


class AdaLnBlock(nn.Module):
    """As ResBlock of MAR's SimpleMLPAdaLN."""

    def __init__(self, dim):
        super().__init__()
        self.in_ln = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.mlp = nn.Sequential(Linear(dim, dim), nn.SiLU(), Linear(dim, dim))
        self.adaLN_modulation = _modulation(dim, 3)

    def forward(self, h, y):
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return h + gate * self.mlp(self.in_ln(h) * (1 + scale) + shift)


class GatedBlock(nn.Module):
    """A gated layer (SwiGLU) of LayerNorm, shifted and scaled by y; it starts as the identity."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON, elementwise_affine=False)
        self.gate, self.up, self.down = (Linear(dim, dim) for _ in range(3))
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)
        self.modulation = _modulation(dim, 2)

    def forward(self, h, y):
        shift, scale = self.modulation(y).chunk(2, dim=-1)
        u = self.norm(h) * (1 + scale) + shift
        return h + self.down(F.silu(self.gate(u)) * self.up(u))


class AdaLnFinalLayer(nn.Module):
    """As FinalLayer of MAR's SimpleMLPAdaLN; the linear layer starts at zero."""

    def __init__(self, dim, output_dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON, elementwise_affine=False)
        self.linear = Linear(dim, output_dim)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.adaLN_modulation = _modulation(dim, 2)

    def forward(self, h, y):
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(self.norm(h) * (1 + scale) + shift)


_LAYERS = {"residual_mlp": (ResidualBlock, PlainFinalLayer),
           "adaln_mlp": (AdaLnBlock, AdaLnFinalLayer),
           "gated_mlp": (GatedBlock, AdaLnFinalLayer)}


class Denoiser(nn.Module):
    """The prediction at z [groups, n, D]; a group has one embedded timestep [E] and one label."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.layers_take_silu = spec.denoiser == "residual_mlp"
        dim = spec.hidden_dim
        block, final = _LAYERS[spec.denoiser]
        self.time_embed = TimeEmbed(spec)
        if spec.num_classes:
            self.class_embed = nn.Embedding(spec.num_classes, dim)
            nn.init.normal_(self.class_embed.weight, std=0.02)
        self.input_proj = Linear(spec.state_dim, dim)
        self.res_blocks = nn.ModuleList(block(dim) for _ in range(spec.num_blocks))
        self.final_layer = final(dim, spec.state_dim)

    def forward(self, z, embedded, labels=None):
        y = self.time_embed(embedded)
        if labels is not None:
            y = y + self.class_embed(labels)
        y = (F.silu(y) if self.layers_take_silu else y)[:, None]
        h = self.input_proj(z)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer(h, y)


DIGITS_DDPM = Spec(name="digits-ddpm", denoiser="residual_mlp", scheduler="DDPMScheduler",
                   state_dim=16, hidden_dim=128, inference_steps=(1000, 100), seed=1,
                   training_steps=10000, groups=32, group_size=4, learning_rate=2e-3,
                   smoothing=0.05)
DIGITS_CLASS = Spec(name="digits-class", denoiser="adaln_mlp", scheduler="DDIMScheduler",
                    state_dim=16, hidden_dim=128, inference_steps=(100, 20), seed=1,
                    training_steps=9000, groups=32, group_size=4, learning_rate=1e-3,
                    smoothing=0.05, num_classes=10)
SWISSROLL_DDPM = Spec(name="swissroll-ddpm", denoiser="residual_mlp", scheduler="DDPMScheduler",
                      state_dim=2, hidden_dim=64, inference_steps=(1000, 100), seed=1,
                      training_steps=24000, groups=64, group_size=4, learning_rate=2e-3,
                      smoothing=0.0, digits=False, latent=False, weight_decay=0.0)
DIGITS_PIXELS = Spec(name="digits-pixels", denoiser="gated_mlp", scheduler="DDIMScheduler",
                     state_dim=64, hidden_dim=160, inference_steps=(100, 50), seed=1,
                     training_steps=14000, groups=64, group_size=2, learning_rate=2e-3,
                     smoothing=0.013, num_classes=10, latent=False, onnx=True,
                     beta_schedule="scaled_linear", beta_start=1e-5, prediction="v_prediction",
                     weight_decay=1e-2)
DIGITS_DDPM_ONNX = dataclasses.replace(DIGITS_DDPM, name="digits-ddpm-onnx", onnx=True,
                                       same_as=DIGITS_DDPM.name)
SPECS = {spec.name: spec for spec in (DIGITS_DDPM, DIGITS_CLASS, SWISSROLL_DDPM, DIGITS_DDPM_ONNX,
                                      DIGITS_PIXELS)}
