# SPDX-License-Identifier: Apache-2.0
"""Evaluates a folder's files by NumPy, where no server is at hand.

The operations are those of the package onnx, in its reference implementation. What a server
supports it does not know: whether one takes the files, only a server tells.
"""

from __future__ import annotations

import importlib.util
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from deeppcr.exporting.answers import Predictions, Question
from deeppcr.exporting.report import ExportError, first_line
from deeppcr.safetensors_file import read_safetensors

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0, -x))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, x * np.float32(0.01)),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (0.5 + 0.5 * _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}


def is_available() -> bool:
    """Whether there is a package onnx with a reference, as from version 1.13."""
    return (
        importlib.util.find_spec("onnx") is not None
        and importlib.util.find_spec("onnx.reference") is not None
    )


def _affine(tensors: dict[str, Any], name: str, rows: Any) -> Any:
    return rows @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def _activated(name: str, rows: Any) -> Any:
    return _ACTIVATIONS[name](rows).astype(np.float32)


class _Program:
    """An ONNX file as a function of rows; `weights`: what it is given beside them, by name."""

    def __init__(self, path: pathlib.Path, weights: dict[str, Any]) -> None:
        import onnx
        import onnx.reference

        model = onnx.load(str(path))
        graph = model.graph
        own = [each for each in graph.initializer if each.name in weights]
        for each in own:
            graph.initializer.remove(each)
            if each.name not in [given.name for given in graph.input]:
                given = onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
                graph.input.append(given)
        try:
            self._evaluator = onnx.reference.ReferenceEvaluator(model)
        except Exception as error:  # whatever it raises for what it does not have
            raise ExportError(f"{path.name}: onnx.reference: {first_line(error)}") from error
        self._path = path

    def __call__(self, **inputs: Any) -> Any:
        names = self._evaluator.input_names
        given = {name: value for name, value in inputs.items() if name in names}
        try:
            with np.errstate(all="ignore"):
                return self._evaluator.run(None, given)[0]
        except Exception as error:  # whatever it raises for what it does not have
            raise ExportError(f"{self._path.name}: onnx.reference: {first_line(error)}") from error


class NumPyAnswers:
    """Those of onnx.reference, in float32 and one sample after the other."""

    name = "onnx.reference"

    def check(self, folder: pathlib.Path) -> None:
        import onnx

        for path in folder.glob("*.onnx"):
            try:
                onnx.checker.check_model(str(path), full_check=True)
            except Exception as error:  # of a kind for each stage of its checks
                raise ExportError(f"{path.name}: {first_line(error)}") from error

    def outputs(self, folder: pathlib.Path, groups: list[Any]) -> list[Any]:
        config = json.loads((folder / "config.json").read_text())
        tensors = read_safetensors(folder / "model.safetensors")
        ends = ("input.weight", "input.bias", "output.weight", "output.bias")
        of_layers = {name: each for name, each in tensors.items() if name not in ends}
        block = _Program(folder / "block.onnx", of_layers)

        def answer(rows: Any) -> Any:
            states = _affine(tensors, "input", rows) if "input.weight" in tensors else rows
            states = _activated(config.get("input_activation", "identity"), states)
            for layer in range(config["num_layers"]):
                weights = {name: each[layer] for name, each in of_layers.items()}
                states = np.concatenate([block(x=row[None], **weights) for row in states])
            return _affine(tensors, "output", states) if "output.weight" in tensors else states

        return [answer(rows) for rows in groups]

    def predictions(self, question: Question) -> Predictions:
        denoiser = _Program(question.folder / "denoiser.onnx", {})
        module, states = question.module, question.states
        time_shape = tuple(module.example[1].shape)
        time_type = module.example[1].numpy().dtype
        rng = np.random.default_rng(1)
        before, predictions = [], []
        for time, size in zip(question.times, question.sizes, strict=True):
            rows = []
            for i, state in enumerate(states):
                inputs = {"x": state.reshape(1, *module.state_shape)}
                inputs["t"] = np.full(time_shape, time, time_type)
                if question.condition is not None:
                    inputs["c"] = question.condition[i : i + 1].reshape(module.example[2].shape)
                rows.append(denoiser(**inputs).reshape(1, -1))
            before.append(states)
            predictions.append(np.concatenate(rows))
            states = (size * rng.standard_normal(states.shape)).astype(np.float32)
        outputs = states
        if (question.folder / "model.safetensors").exists():
            tensors = read_safetensors(question.folder / "model.safetensors")
            layers = len(tensors) // 2
            for j in range(layers):
                outputs = _affine(tensors, f"decoder.{j}", outputs)
                if j + 1 < layers:
                    outputs = _activated(
                        question.config.get("decoder_activation", "identity"), outputs
                    )
        return Predictions(before, predictions, states, outputs)
