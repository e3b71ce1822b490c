# SPDX-License-Identifier: Apache-2.0
"""The autoencoder whose latents the digits models denoise, and the classifier that judges them."""

import torch
from torch import nn
import torch.nn.functional as F

import networks

PIXELS, HIDDEN, LATENT, CLASSES = 64, 128, 16, 10
PROGRESS_EVERY = 1000

AUTOENCODER_STEPS = 6000
AUTOENCODER_SEED = 11
PIXEL_NOISE = 0.05       # standard deviation, added to the encoder's inputs
LATENT_NOISE = 0.25      # deviation of noise on standardised latents: neighbours decode alike

GAIN_ITERATIONS = 4

CLASSIFIER_STEPS = 3000
CLASSIFIER_SEED = 12
CLASSIFIER_NOISE = 0.1

BATCH = 128
WEIGHT_DECAY = 1e-3


def _stack(*widths):
    return nn.ModuleList(networks.Linear(a, b) for a, b in zip(widths, widths[1:]))


def apply(layers, values):
    """Linear layers with SiLU between them."""
    for index, layer in enumerate(layers):
        values = layer(F.silu(values) if index else values)
    return values


def _standardised(latents):
    return (latents - latents.mean(dim=0)) / latents.std(dim=0)


def _fit(name, modules, steps, learning_rate, loss_of):
    """AdamW with a learning rate that falls to 0 along a half cosine."""
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % PROGRESS_EVERY == 0:
            print(f"{name}: step {step}/{steps}, loss {loss.item():.5f}", flush=True)


def train(inputs, steps):
    """(encoder, decoder) of pixels [n, 64]; latents of the inputs have mean 0 and variance 1."""
    torch.manual_seed(AUTOENCODER_SEED)
    encoder, decoder = _stack(PIXELS, HIDDEN, LATENT), _stack(LATENT, HIDDEN, PIXELS)

    def loss_of():
        chosen = inputs[torch.randint(len(inputs), (BATCH,))]
        latents = _standardised(apply(encoder, chosen + PIXEL_NOISE * torch.randn(chosen.shape)))
        decoded = apply(decoder, latents + LATENT_NOISE * torch.randn(latents.shape))
        return F.mse_loss(decoded, chosen)

    _fit("autoencoder", (encoder, decoder), steps, 2e-3, loss_of)
    _fold_standardisation(encoder, inputs)
    fold_gain(encoder, decoder, inputs)
    return encoder, decoder


def _fold_standardisation(encoder, inputs):
    """Puts the affine map to mean 0 and variance 1 into the last layer of the encoder.

    The decoder was trained on standardised latents.
    """
    with torch.no_grad():
        latents = apply(encoder, inputs).double()
        mean, std = latents.mean(dim=0), latents.std(dim=0)
        last = encoder[-1]
        last.weight.copy_((last.weight.double() / std[:, None]).float())
        last.bias.copy_(((last.bias.double() - mean) / std).float())


def fold_gain(encoder, decoder, inputs):
    """Puts a gain per latent dimension into the first layer of the decoder.

    Trained under noise, the decoder leans towards the mean image. With the gain, what it draws from
    the latents of the inputs has latents of variance 1 again.
    """
    with torch.no_grad():
        latents, first = apply(encoder, inputs), decoder[0]
        for _ in range(GAIN_ITERATIONS):
            drawn = apply(decoder, latents).clamp(0, 1)
            first.weight.div_(apply(encoder, drawn).std(dim=0))


def train_classifier(inputs, labels, steps):
    """Pixels [n, 64] -> scores of the ten digits."""
    torch.manual_seed(CLASSIFIER_SEED)
    classifier = _stack(PIXELS, HIDDEN, CLASSES)

    def loss_of():
        chosen = torch.randint(len(inputs), (BATCH,))
        noisy = inputs[chosen] + CLASSIFIER_NOISE * torch.randn(BATCH, PIXELS)
        return F.cross_entropy(apply(classifier, noisy), labels[chosen])

    _fit("classifier", (classifier,), steps, 1e-3, loss_of)
    return classifier
