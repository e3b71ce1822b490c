# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint, put into a copy of a module."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from deeppcr.exporting.report import ExportError, first_line
from deeppcr.exporting.tracing import copied, module_errors
from deeppcr.safetensors_file import read_safetensors


def _read(path: pathlib.Path) -> Mapping[str, Any]:
    import torch

    try:
        if path.suffix == ".safetensors":
            return {name: torch.from_numpy(each) for name, each in read_safetensors(path).items()}
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever PyTorch's readers raise
        raise ExportError(f"weights: {path}: {first_line(error)}") from error
    if not isinstance(loaded, Mapping):
        raise ExportError(f"weights: {path}: expected a state_dict, got a {type(loaded).__name__}")
    return loaded


def _plain(name: str) -> str:
    """As it is without torch.compile."""
    return name.replace("_orig_mod.", "")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _tensor_of(name: str, value: Any) -> Any:
    import torch

    if not isinstance(value, np.ndarray):
        return value
    try:
        return torch.from_numpy(np.ascontiguousarray(value, value.dtype.newbyteorder("=")))
    except TypeError as error:
        raise ExportError(f"weights: {name}: {first_line(error)}") from error


def with_weights(
    module: Any, weights: Mapping[str, Any] | str | os.PathLike[str], prefix: str
) -> Any:
    """A copy of the module with weights of a state_dict, or of a file with one.

    prefix: what the names of the module's weights begin with there, as "ema_model."; names that do
    not are those of other networks. A state_dict inside a checkpoint is named by its key before a
    slash, as "ema/net.".
    """
    import torch

    if not isinstance(prefix, str):
        raise ExportError(f"prefix: expected a str, got a {type(prefix).__name__}")
    if not isinstance(weights, (Mapping, str, os.PathLike)):
        kind = type(weights).__name__
        raise ExportError(f"weights: expected a state_dict or the path of a file, got a {kind}")
    found: Any = weights if isinstance(weights, Mapping) else _read(pathlib.Path(weights))
    *keys, prefix = prefix.split("/")
    for key in keys:
        if key not in found:
            raise ExportError(
                f"weights: {key!r} is not there, but {_some(sorted(map(str, found)))}"
            )
        found = found[key]
        if not isinstance(found, Mapping):
            kind = type(found).__name__
            raise ExportError(f"weights: expected a state_dict as {key!r}, got a {kind}")
    state = {
        _plain(str(name)[len(prefix) :]): _tensor_of(str(name), value)
        for name, value in found.items()
        if str(name).startswith(prefix) and str(name) != prefix
    }
    plain = [_plain(str(name)[len(prefix) :]) for name in found if str(name).startswith(prefix)]
    twice = sorted({name for name in plain if plain.count(name) > 1})
    own = module.state_dict()
    wanted = {_plain(name): value for name, value in own.items()}
    missing = [name for name in wanted if name not in state]
    strange = [name for name in state if name not in wanted]
    shapes = [
        f"{name} ({list(state[name].shape)} instead of {list(wanted[name].shape)})"
        for name in wanted
        if isinstance(state.get(name), torch.Tensor) and state[name].shape != wanted[name].shape
    ]
    complex_ones = [
        name
        for name in wanted
        if getattr(state.get(name), "is_complex", bool)() and not wanted[name].is_complex()
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (
            ("missing", missing),
            ("not of the module", strange),
            ("of other shapes", shapes),
            ("there with _orig_mod. and without", twice),
            ("complex", complex_ones),
        )
        if names
    ]
    if problems:
        names = _some([str(name) for name in found])
        nested = [str(name) for name, value in found.items() if isinstance(value, Mapping)]
        hint = (
            f"; for those in {nested[0]!r} begin the prefix with '{nested[0]}/'" if nested else ""
        )
        raise ExportError(
            f"weights: {'; '.join(problems)} (with the prefix {prefix!r} of {names}){hint}"
        )
    loaded = copied(module)
    with module_errors("does not take the weights"):
        loaded.load_state_dict({name: state[_plain(name)] for name in own})
    return loaded
