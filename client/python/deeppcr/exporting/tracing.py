# SPDX-License-Identifier: Apache-2.0
"""Looks at a module through PyTorch: evaluates it, widens it, and writes it as ONNX."""

from __future__ import annotations

import contextlib
import copy
import gc
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

from deeppcr.exporting.calls import Call, calls_of_functions
from deeppcr.exporting.report import ExportError, first_line
from deeppcr.exporting.symbolics import more_symbolics

OPSET = 16  # with 17 PyTorch 1.13 fails on LayerNorm without weights


@contextlib.contextmanager
def kept_buffers(module: Any) -> Iterator[None]:
    """Buffers that the module changes as it runs, as counters, are what they were afterwards."""
    import torch

    buffers = [
        (of, name, buffer, buffer.detach().clone(), buffer._version)
        for of in module.modules()
        for name, buffer in of._buffers.items()
        if buffer is not None and not buffer.is_inference()  # nothing writes into those
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for of, name, buffer, value, written in buffers:
                # Those of a scripted module are no dict.
                if dict(of._buffers.items()).get(name) is not buffer:
                    of._buffers[name] = buffer
                if buffer._version != written:
                    buffer.copy_(value)


@contextlib.contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Dropout off and statistics frozen, for as long as it is looked at."""
    import torch

    with module_errors("cannot be put into evaluation"):
        modes = {each: each.training for each in module.modules()}
        module.eval()
    try:
        with kept_buffers(module), torch.no_grad():
            yield
    finally:
        for each, training in modes.items():
            each.training = training


@contextlib.contextmanager
def module_errors(what: str) -> Iterator[None]:
    """Whatever a module raises, as the sentence that the module `what`."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(
            f"the module {what}: {type(error).__name__}: {first_line(error)}"
        ) from error


def _copies_within(value: Any) -> dict[int, Any]:
    """By id, copies of those parts of an attribute that PyTorch does not copy itself: tensors that
    it computed with gradients, and scripted functions, which have no state."""
    import torch

    if isinstance(value, torch.Tensor):
        return {} if value.is_leaf else {id(value): value.detach().clone()}
    if isinstance(value, torch.jit.ScriptFunction):
        return {id(value): value}
    parts = value.values() if isinstance(value, dict) else value
    found: dict[int, Any] = {}
    if isinstance(value, (dict, list, tuple)):
        for part in parts:
            found |= _copies_within(part)
    return found


def _without_copies(module: Any) -> dict[int, Any]:
    """By id, attributes that Python does not copy, as locks, open files and generators."""
    import torch

    def has_none(value: Any) -> bool:
        try:
            copy.deepcopy(value, _copies_within(value))
        except TypeError:
            return True
        return False

    of_torch = vars(torch.nn.Module())
    return {
        id(value): value
        for each in module.modules()
        for name, value in vars(each).items()
        if name not in of_torch and has_none(value)
    }


def copied(module: Any) -> Any:
    """A copy of a module, which is not run for it. Errors: ExportError where there is none."""
    known: dict[int, Any] = {}
    for each in module.modules():
        known |= _copies_within(vars(each))
    with module_errors("cannot be copied"):
        try:
            copy_of = copy.deepcopy(module, dict(known))
        except TypeError:
            copy_of = copy.deepcopy(module, known | _without_copies(module))
    theirs = {id(each) for each in (*module.parameters(), *module.buffers())}
    for name, each in (*copy_of.named_parameters(), *copy_of.named_buffers()):
        if id(each) in theirs:
            raise ExportError(
                f"{name}: a copy of the module has the same tensor: take __deepcopy__ out of what "
                "it is a part of"
            )
    return copy_of


def uncompiled_copy(module: Any) -> Any:
    """A copy of a module without torch.compile, which computes the same; where the module that it
    gives has hooks of its own, that stays."""

    def original(each: Any) -> Any:
        is_compiled = type(each).__module__.startswith("torch._dynamo.")
        hooked = is_compiled and (each._forward_hooks or each._forward_pre_hooks)
        return each._orig_mod if is_compiled and not hooked else each

    module = copied(original(module))
    for each in list(module.modules()):
        for name, child in list(each._modules.items()):
            each._modules[name] = original(child)
    return module


def simplified(model: Any, *, of_torch_alone: bool = False) -> Any:
    """The module with weights in place of what computes them; `of_torch_alone`: where that is of
    PyTorch's own, as spectral_norm, which depends on weights alone and may be beyond ONNX."""
    import torch
    from torch.nn.utils import parametrizations, parametrize

    def is_of_torch(module: Any) -> bool:
        kinds = [type(one) for each in module.parametrizations.values() for one in each]
        return all(each.__module__ == parametrizations.__name__ for each in kinds)

    for module in model.modules():
        if parametrize.is_parametrized(module) and (not of_torch_alone or is_of_torch(module)):
            weights = {each: getattr(module, each) for each in module.parametrizations}
            # Its class is that of the original too, so that it is left and not changed.
            module.__class__ = parametrize.type_before_parametrizations(module)
            del module.parametrizations
            for each, value in weights.items():
                module.register_parameter(each, torch.nn.Parameter(value.detach()))
    return model


def _trace(
    module: Any, example: tuple[Any, ...], path: pathlib.Path, batches: bool, folding: bool
) -> list[Call]:
    """One run of PyTorch's exporter; `batches`: whether the file is of a batch of any size."""
    import torch

    names = ["x", "t", "c"][: len(example)]
    axes = {name: {0: "n"} for name in [*names, "prediction"]} if batches else {}
    chosen = {"dynamo": False} if hasattr(torch, "export") else {}
    with calls_of_functions() as calls:
        torch.onnx.export(
            module,
            example,
            str(path),
            input_names=names,
            output_names=["prediction"],
            opset_version=OPSET,
            dynamic_axes=axes,
            do_constant_folding=folding,
            **chosen,
        )
    return calls


def write_onnx(
    module: Any, example: tuple[Any, ...], path: pathlib.Path, *, keep_parameters: bool = False
) -> list[Call]:
    """Writes the module for a batch of one; `keep_parameters`: under the names that they have.

    Returns what was called as it was written.
    """
    failure = ""
    with warnings.catch_warnings(), more_symbolics(OPSET):
        # What a module decides by values is known already; these warn of sizes and constants too.
        warnings.simplefilter("ignore")
        # PyTorch 1.13 fails on GroupNorm of a batch of any size; one of a single sample is enough.
        for batches in (False,) if keep_parameters else (True, False):
            try:
                return _trace(module, example, path, batches, not keep_parameters)
            except Exception as error:  # whatever the exporter raises
                failure = failure or first_line(error)
    # What a failed run leaves behind makes later ones of PyTorch 1.13 fail.
    gc.collect()
    hint = ""
    if failure == "unordered_map::at":
        hint = " (PyTorch's exporter cannot: take out in-place resizes and checkpointing)"
    raise ExportError(f"torch.onnx.export: {failure}{hint}")
