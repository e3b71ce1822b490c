# SPDX-License-Identifier: Apache-2.0
"""Makes a served model of a PyTorch module, and checks that it computes the same.

What is written has been compared with the module; what cannot be expressed is refused, and nothing
is written then.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping
from typing import Any

from deeppcr.exporting import answers_of_numpy
from deeppcr.exporting.answers import Answers
from deeppcr.exporting.answers_of_numpy import NumPyAnswers
from deeppcr.exporting.answers_of_server import ServerAnswers
from deeppcr.exporting.calls import (
    calls_in,
    calls_of_functions,
    check_same_calls,
    check_same_choices,
)
from deeppcr.exporting.card import write_card
from deeppcr.exporting.decoder import decoder_tensors
from deeppcr.exporting.denoiser import Denoiser, check_denoiser, compare_predictions
from deeppcr.exporting.network import check_network, compare_outputs
from deeppcr.exporting.precision import cast_attributes, floats_by_default
from deeppcr.exporting.report import Difference, ExportError, ExportReport
from deeppcr.exporting.scheduler import process_of
from deeppcr.exporting.scripted import scripted_functions_dispatch
from deeppcr.exporting.stack import find_stack
from deeppcr.exporting.tracing import (
    copied,
    evaluating,
    module_errors,
    simplified,
    uncompiled_copy,
    write_onnx,
)
from deeppcr.exporting.values import watched_tensors
from deeppcr.exporting.weights import with_weights
from deeppcr.safetensors_file import write_safetensors
from deeppcr.serving import HOW_TO_GET_IT, server_at_hand

_CHECK_TIMES = 32
_MOST_CLASSES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
# Recording a network replaces what PyTorch's modules are called by, for the whole process.
_recording = threading.Lock()


def _forget_other_exports() -> None:
    global _recording
    _recording = threading.Lock()


os.register_at_fork(after_in_child=_forget_other_exports)


def _check_epsilons(module: Any) -> None:
    """Errors: ExportError where a module of double has the epsilon of double in it."""
    import torch

    kind = getattr(torch.nn, "RMSNorm", ())
    for name, each in module.named_modules():
        if isinstance(each, kind) and each.eps is None:
            raise ExportError(
                f"{name or 'the module'}: RMSNorm without eps takes that of double, and the "
                "server computes in float32: give it one"
            )


def _in_float32(module: Any, example: tuple[Any, ...]) -> tuple[Any, ...]:
    """Has a module of half or double precision compute as the server does; the example for it."""
    import torch

    weights = [*module.parameters(), *module.buffers()]
    kinds = {each.dtype for each in weights if each.is_floating_point()}
    if any(each.device.type != "cpu" for each in weights):
        module.cpu()
    if torch.float64 in kinds:
        _check_epsilons(module)
    if kinds - {torch.float32}:
        module.float()
        cast_attributes(module, torch.float32)
    example = tuple(each.cpu() for each in example)
    return tuple(each.float() if each.is_floating_point() else each for each in example)


def _check_kinds(module: Any, example: tuple[Any, ...]) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ExportError(f"model: expected a torch.nn.Module, got a {type(module).__name__}")
    for each in example:
        if not isinstance(each, torch.Tensor):
            raise ExportError(f"example: expected tensors, got a {type(each).__name__}")


def _publish(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Puts a folder where it is served from, whole or not at all."""
    beside = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the model, as a rename is of one file system; hidden: no server looks at it.
        beside = pathlib.Path(tempfile.mkdtemp(prefix=".export-", dir=target.parent.parent))
        shutil.copytree(folder, beside / "version")
        os.rename(beside / "version", target)
    except OSError as error:
        raise ExportError(f"{target}: {error.strerror or error}") from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _other_than(example: tuple[Any, ...], num_classes: int) -> tuple[Any, ...]:
    """Another state, another time and another condition than those of the example."""
    import torch

    state, *others = example
    found = [torch.randn_like(state)]
    for time in others[:1]:
        half = time / 2 if time.is_floating_point() else time // 2
        found.append(torch.where(half == time, time + 1, half))
    for condition in others[1:]:
        if condition.is_floating_point():
            found.append(torch.randn_like(condition))
        else:
            found.append((condition + 1) % num_classes if num_classes else condition)
    return tuple(found)


def _check_keeps_nothing(module: Any, example: tuple[Any, ...], num_classes: int) -> None:
    """Runs copies alone: what a module keeps of its first input is not to be that of the example.

    Errors: ExportError where a module keeps what its first input was for its later ones.
    """
    import torch

    def run(one: Any, inputs: tuple[Any, ...]) -> Any:
        return one(*(each.clone() for each in inputs))  # which the module may change

    with module_errors("does not take its example, a batch of one"):
        first = run(copied(module), example)
    used = copied(module)
    with module_errors("does not take other inputs than its example"):
        run(used, _other_than(example, num_classes))
        later = run(used, example)
    is_tensor = isinstance(first, torch.Tensor) and isinstance(later, torch.Tensor)
    if is_tensor and not torch.allclose(first, later, rtol=0, atol=0, equal_nan=True):
        raise ExportError(
            "the module answers its example otherwise after another input: it keeps something of "
            "an earlier call, in an attribute or a buffer, or draws random numbers"
        )


def _watch(module: Any, example: tuple[Any, ...], is_stack: bool) -> None:
    """Runs copies, in which tensors of the watch may stay.

    Errors: those of watched_tensors and check_same_calls.
    """
    calls = []
    for context in (
        contextlib.nullcontext(),
        watched_tensors(data_is_recorded=is_stack),
    ):
        one = copied(module)
        with (
            module_errors("does not take its example, a batch of one"),
            scripted_functions_dispatch(),
            context as watched,
            calls_of_functions() as found,
        ):
            for _ in range(2):  # the first may make what later ones find
                inputs = [each.clone() for each in example]
                one(*(each.as_subclass(watched) if watched else each for each in inputs))
        calls.append(found)
    check_same_calls(*calls)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them, which may be scalars of NumPy or PyTorch."""

    def scalar(value: Any) -> Any:
        number = value.item() if getattr(value, "ndim", 1) == 0 else value
        if isinstance(number, (bool, int, float, str)):
            return number
        raise ExportError(f"settings: expected values of JSON, got {value!r}")

    try:
        plain: dict[str, Any] = json.loads(json.dumps(settings, default=scalar))
    except (TypeError, ValueError) as error:
        raise ExportError(f"settings: expected values of JSON: {error}") from error
    return plain


def _answers(binary: str | os.PathLike[str] | None) -> Answers:
    """Those of a server; of NumPy, with a warning, where none was named or is found."""
    server = server_at_hand(binary)
    if server is not None:
        return ServerAnswers(server)
    if not answers_of_numpy.is_available():
        raise FileNotFoundError(
            f"{HOW_TO_GET_IT} Without one, `pip install 'onnx>=1.13'` lets export compare by NumPy."
        )
    warnings.warn(
        "no deeppcr-server was found: onnx.reference stands in for it, and whether a server "
        "takes the model is not known before one does",
        stacklevel=3,
    )
    return NumPyAnswers()


def _with_settings(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """What the module says, which settings may repeat, and the others."""
    for key in config.keys() & settings.keys():
        if settings[key] != config[key]:
            raise ExportError(
                f"{key}: expected {config[key]!r}, as the module has it, got {settings[key]!r}"
            )
    return config | settings


def _write_config(folder: pathlib.Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def _write_stack(
    module: Any, example: Any, folder: pathlib.Path, settings: dict[str, Any], answers: Answers
) -> tuple[str, dict[str, Any], Difference]:
    import torch

    with module_errors("could not be taken apart"):
        stack = find_stack(module, example)
    check_network(module, example)
    write_onnx(
        stack.block.float(),
        (torch.randn(1, stack.state_dim),),
        folder / "block.onnx",
        keep_parameters=True,
    )
    write_safetensors(folder / "model.safetensors", stack.tensors)
    config = _with_settings(stack.config(), settings)
    _write_config(folder, config)
    answers.check(folder)
    first = None
    if "input.weight" in stack.tensors:
        first = stack.tensors["input.weight"], stack.tensors["input.bias"]
    difference = compare_outputs(module, example, first, folder, answers)
    return f"stack of {stack.num_layers} layers of {stack.state_dim} values", config, difference


def _num_classes(settings: dict[str, Any]) -> int:
    num_classes = settings.get("num_classes", 0)
    if type(num_classes) is not int or not 0 <= num_classes <= _MOST_CLASSES:
        raise ExportError(
            f"num_classes: expected an integer from 0 to {_MOST_CLASSES}, got {num_classes!r}"
        )
    return num_classes


def _write_denoiser(
    module: Any,
    scheduler: Any,
    example: tuple[Any, ...],
    folder: pathlib.Path,
    decoder: Any,
    settings: dict[str, Any],
    num_classes: int,
    answers: Answers,
) -> tuple[str, dict[str, Any], Difference]:
    import torch

    width = example[0][0].numel()
    process = process_of(scheduler, width)
    config: dict[str, Any] = {
        "model_type": "diffusion",
        "denoiser": "onnx",
        "state_dim": width,
        "output_dim": width,
    }
    if len(example) == 3:
        if example[2].is_floating_point():
            config["conditioning_dim"] = example[2][0].numel()
        elif example[2].numel() != 1:
            raise ExportError(
                "example: expected one class as the condition of integers, got the shape "
                f"{list(example[2].shape)}"
            )
        elif not num_classes:
            raise ExportError(
                "num_classes: expected how many there are, as the third input of the "
                "example is an integer, got none; a second time is no input of a "
                "denoiser here"
            )
    denoiser = Denoiser(module, example, process.learned_variance)
    check_denoiser(denoiser, num_classes)
    if decoder is not None:
        if not isinstance(decoder, torch.nn.Module):
            raise ExportError(
                f"decoder: expected a torch.nn.Module, got a {type(decoder).__name__}"
            )
        decoder = uncompiled_copy(decoder).float()
        tensors, of_decoder = decoder_tensors(decoder, width)
        write_safetensors(folder / "model.safetensors", tensors)
        config |= of_decoder
    steps = 100 if process.table is None else len(process.table["time"])
    config = _with_settings(config, {"num_inference_steps": steps} | settings)
    with module_errors("could not be written with the weights that it computes"):
        written = simplified(copied(module), of_torch_alone=True)
    recorded = write_onnx(written, example, folder / "denoiser.onnx")
    check_same_choices(calls_in(copied(written), example), recorded)
    process.write(folder)
    _write_config(folder, config)
    answers.check(folder)
    whole = not example[1].is_floating_point()
    times = process.some_times(_CHECK_TIMES, whole)
    difference = compare_predictions(denoiser, folder, config, times, decoder, answers)
    return f"denoiser of {width} values", config, difference


def export(
    model: Any,
    scheduler: Any,
    path: str | os.PathLike[str],
    *,
    example: Any,
    weights: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    prefix: str = "",
    decoder: Any = None,
    version: int = 1,
    binary: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ExportReport:
    """Writes PATH/VERSION for a PyTorch module, once a server computes the same from it.

    Where no server is found, as it is by serve, it warns and lets NumPy compute the files (package
    onnx, from 1.13); the report says which.

    scheduler: for a denoiser, any module that maps (state, time[, condition]) to a prediction: one
        of diffusers, its settings, their file or a folder with it, or deeppcr.Steps. None: the
        module is a deep network whose equal blocks are found, for Forward.
    example: inputs of a batch of one. A condition of integers is a class, of which there are
        num_classes.
    weights, prefix: a checkpoint in place of the module's own weights, as "policy.pt" and
        "ema/model."; see exporting/weights.py.
    decoder: layers and activations in turn (torch.nn.Sequential) that make outputs of the samples.
    settings: other keys of config.json, as num_inference_steps=50, num_classes=10 or null_class=9.
    Exports wait for one another. While one records a deep network, no other thread may run modules
    of PyTorch: torch.fx replaces what they are called by.
    Errors: ExportError, which names what stands in the way; nothing is written then.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ExportError(f"version: expected an integer of at least 1, got {version!r}")
    target = pathlib.Path(os.fsdecode(path)) / str(version)
    name = pathlib.Path(os.path.abspath(target)).parent.name
    if not _NAME.fullmatch(name):
        raise ExportError(
            "path: expected a model's name of 1 to 128 letters, digits, '.', '_' and '-' at its "
            f"end, got {name!r}"
        )
    if os.path.lexists(target):
        raise ExportError(f"{target} is there already: give another version")
    example = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    _check_kinds(model, example)
    inputs = (1, 1) if scheduler is None else (2, 3)
    if not inputs[0] <= len(example) <= inputs[1]:
        raise ExportError(
            "example: expected one input of a network, or with a scheduler the inputs state, time "
            f"and perhaps condition, got {len(example)} inputs"
        )
    if not example[0].is_floating_point():
        raise ExportError(f"example: expected a state of floats, got {example[0].dtype}")
    if example[0].ndim == 0 or (len(example) == 3 and example[2].ndim == 0):
        raise ExportError(
            "example: expected a batch of one, as the shapes [1, n] of a state and of a condition, "
            "got a tensor without axes"
        )
    if any(each.ndim and each.shape[0] != 1 for each in example):
        shapes = [list(each.shape) for each in example]
        raise ExportError(f"example: expected inputs of a batch of one, got the shapes {shapes}")
    settings = _plain(settings)
    answers = _answers(binary)
    if weights is not None:
        model = with_weights(model, weights, prefix)
    num_classes = 0 if scheduler is None else _num_classes(settings)
    with (
        _recording,
        evaluating(model),
        floats_by_default(),
        tempfile.TemporaryDirectory() as scratch,
    ):
        folder = pathlib.Path(scratch) / "1"
        folder.mkdir()
        module = uncompiled_copy(model)
        example = _in_float32(module, example)
        _check_keeps_nothing(module, example, num_classes)
        _watch(module, example, scheduler is None)
        if scheduler is None:
            if decoder is not None:
                raise ExportError(
                    "decoder: expected none with a stack, whose last layer is its own"
                )
            what, config, difference = _write_stack(module, example[0], folder, settings, answers)
        else:
            what, config, difference = _write_denoiser(
                module, scheduler, example, folder, decoder, settings, num_classes, answers
            )
        _publish(folder, target)
    errors = (difference.error, difference.torch_error, difference.reference)
    report = ExportReport(target, what, *errors, answers.name)
    write_card(target.parent, report, config, type(model).__name__)
    return report
