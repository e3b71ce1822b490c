# SPDX-License-Identifier: Apache-2.0
"""Makes a served model of a PyTorch module and a scheduler, and checks that it computes the same.

The module goes through torch.onnx into denoiser.onnx. What is written has been compared with the
module; what cannot be expressed is refused, and nothing is written then.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeppcr.errors import DeepPcrError
from deeppcr.safetensors_file import write_safetensors
from deeppcr.serving import find_server, serve

OPSET = 16  # with 17 PyTorch 1.13 fails on LayerNorm without weights
_CHECK_STEPS, _CHECK_SAMPLES = 6, 8
_ROUNDING = 1e-5


class ExportError(DeepPcrError):
    """The module cannot be served as it is; the message names what stands in the way."""


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it is from the module in double precision."""

    path: pathlib.Path
    error: float  # largest relative error of a prediction of the server, by sample
    torch_error: float  # the same of the module in float32 by PyTorch; 0 against itself
    reference: str  # what both are compared with: float64, or float32 where the module has no other

    def __repr__(self) -> str:
        return (
            f"<exported to {self.path}: error {self.error:.1e} against the module in "
            f"{self.reference}, PyTorch's float32 {self.torch_error:.1e}>"
        )


@contextlib.contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Dropout off and statistics frozen, for as long as it is looked at."""
    import torch

    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for each, training in modes.items():
            each.training = training


def _as_prediction(output: Any, state: Any, learned_variance: bool) -> Any:
    import torch

    if not isinstance(output, torch.Tensor):
        raise ExportError(
            f"outputs: expected one tensor, got a {type(output).__name__}; wrap the "
            "module in one that returns the prediction alone"
        )
    wanted = state[0].numel() * (2 if learned_variance else 1)
    if output.shape[0] != state.shape[0] or output[0].numel() != wanted:
        raise ExportError(
            f"outputs: expected {wanted} elements of a sample, as the state has, got "
            f"shape {tuple(output.shape)}"
        )
    return output.reshape(len(state), -1)


class _Module:
    """The module as a function of rows: states [n, D], times [n], conditions or None."""

    def __init__(self, module: Any, example: tuple[Any, ...], learned_variance: bool) -> None:
        self.module, self.example, self.learned = module, example, learned_variance
        self.state_shape = tuple(example[0].shape[1:])

    def halves(self) -> list[_Module]:
        """Itself, or the prediction and the variance that it gives, each as large as the state."""
        if not self.learned:
            return [self]
        return [_Module(_half_of(self.module, i), self.example, False) for i in range(2)]

    def __call__(self, states: Any, times: Any, condition: Any) -> Any:
        inputs = [states.reshape(-1, *self.state_shape), times.to(self.example[1].dtype)]
        if condition is not None:
            inputs.append(condition)
        return _as_prediction(self.module(*inputs), inputs[0], self.learned)


def _half_of(module: Any, index: int) -> Any:
    """A module with one of the halves of what `module` gives."""
    import torch

    class Half(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.whole = module

        def forward(self, *inputs: Any) -> Any:
            return self.whole(*inputs).chunk(2, dim=1)[index]

    return Half().eval()


def _random_inputs(example: tuple[Any, ...], n: int, num_classes: int) -> tuple[Any, Any]:
    """(states [n, D], condition [n, ..] or None), from a generator of their own."""
    import torch

    generator = torch.Generator().manual_seed(1)
    states = torch.randn(n, example[0][0].numel(), generator=generator)
    if len(example) < 3:
        return states, None
    if num_classes:
        return states, torch.randint(0, num_classes, (n,), generator=generator)
    return states, torch.randn(n, *example[2].shape[1:], generator=generator)


def _check_module(module: _Module, num_classes: int) -> None:
    """What no file would show: randomness, samples that depend on each other, no numbers."""
    import torch

    states, condition = _random_inputs(module.example, 3, num_classes)
    times = torch.full((3,), module.example[1].reshape(-1)[0].item())
    whole = module(states, times, condition)
    if not torch.isfinite(whole).all():
        raise ExportError("outputs: expected finite values, got others for random states")
    if not torch.equal(whole, module(states, times, condition)):
        raise ExportError("the module draws random numbers: two evaluations differ")
    alone = torch.cat(
        [
            module(
                states[i : i + 1],
                times[i : i + 1],
                None if condition is None else condition[i : i + 1],
            )
            for i in range(3)
        ]
    )
    scale = whole.abs().max().item() or 1.0
    if (whole - alone).abs().max().item() > 1e-3 * scale:
        raise ExportError(
            "a sample's answer depends on the others of its batch, which the server "
            "does not have: evaluate samples by themselves"
        )


def _trace(module: Any, example: tuple[Any, ...], path: pathlib.Path, batches: bool) -> None:
    """One run of PyTorch's exporter; `batches`: whether the file is of a batch of any size."""
    import torch

    names = ["x", "t", "c"][: len(example)]
    axes = {name: {0: "n"} for name in [*names, "prediction"]} if batches else {}
    chosen = {"dynamo": False} if hasattr(torch, "export") else {}
    torch.onnx.export(
        module,
        example,
        str(path),
        input_names=names,
        output_names=["prediction"],
        opset_version=OPSET,
        dynamic_axes=axes,
        **chosen,
    )


def _onnx(module: Any, example: tuple[Any, ...], path: pathlib.Path) -> None:
    import torch

    failure = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # PyTorch 1.13 fails on GroupNorm of a batch of any size; one of a single sample is enough.
        for batches in (True, False):
            try:
                _trace(module, example, path, batches)
            except Exception as error:  # whatever the exporter raises
                failure = failure or str(error).strip().splitlines()[0]
            else:
                failure = ""
                break
    if failure:
        # What a failed run leaves behind makes later ones of PyTorch 1.13 fail.
        gc.collect()
        raise ExportError(f"torch.onnx.export: {failure}")
    own = str(pathlib.Path(torch.__file__).parent)
    for warning in caught:
        # What PyTorch's own modules branch on is no value of the state.
        if issubclass(warning.category, torch.jit.TracerWarning) and not (
            warning.filename.startswith(own)
        ):
            raise ExportError(
                f"{warning.filename}:{warning.lineno}: the way through the module "
                f"depends on values: {str(warning.message).splitlines()[0]}"
            )


def _scheduler_json(scheduler: Any) -> dict[str, Any]:
    """A scheduler of diffusers, its settings, or the file with them."""
    if isinstance(scheduler, (str, os.PathLike)):
        path = pathlib.Path(scheduler)
        path = path / "scheduler_config.json" if path.is_dir() else path
        return dict(json.loads(path.read_text()))
    if isinstance(scheduler, Mapping):
        return dict(scheduler)
    config = getattr(scheduler, "config", None)
    if config is None:
        raise ExportError(
            f"scheduler: expected one of diffusers, its settings or their file, got a "
            f"{type(scheduler).__name__}"
        )
    settings = {key: value for key, value in dict(config).items() if not key.startswith("_")}
    # A value that JSON has no word for is NumPy's.
    text = json.dumps(
        {"_class_name": type(scheduler).__name__, **settings},
        default=lambda value: np.asarray(value).tolist(),
    )
    return dict(json.loads(text))


def _check_by_server(binary: pathlib.Path, folder: pathlib.Path) -> None:
    result = subprocess.run(
        [str(binary), f"--check={folder}"], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        lines = [line.strip() for line in (result.stdout + result.stderr).splitlines()]
        # The first line counts those that follow.
        raise ExportError("; ".join([line for line in lines if line][1:] or lines))


def _relative(a: Any, b: Any) -> float:
    scale = np.abs(b).max(axis=1)
    scale[scale == 0] = 1
    return float((np.abs(a - b).max(axis=1) / scale).max())


@contextlib.contextmanager
def _floats_are_double() -> Iterator[None]:
    """Has `x.float()` in a module keep the precision that is asked for."""
    import torch

    before = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.Tensor.float = before


def _reference(module: _Module, states: Any, times: Any, condition: Any) -> tuple[Any, str]:
    """The predictions in double where the module can be made so, and what they are in."""
    try:
        wide = _Module(copy.deepcopy(module.module).double(), module.example, module.learned)
        if condition is not None and condition.is_floating_point():
            condition = condition.double()
        with _floats_are_double():
            exact = wide(states.double(), times, condition)
        if str(exact.dtype) == "torch.float64":
            return exact.numpy(), "float64"
    except RuntimeError:
        pass  # weights or constants of float32 that do not follow
    if condition is not None and condition.is_floating_point():
        condition = condition.float()
    return module(states, times, condition).numpy(), "float32"


def _compare(
    whole: Any,
    module: _Module,
    folder: pathlib.Path,
    binary: pathlib.Path,
    config: dict[str, Any],
    times: list[float],
    num_classes: int,
) -> tuple[float, float, str]:
    """(error of the server, error of PyTorch, against what), prediction by prediction.

    A step table whose steps answer with the prediction itself shows it for states and times.
    """
    import torch

    steps = len(times)
    check = folder.parent / "check"
    shutil.copytree(folder, check, dirs_exist_ok=True)
    if module.module is not whole:
        _onnx(module.module, module.example, check / "denoiser.onnx")
    (check / "scheduler_config.json").unlink(missing_ok=True)
    zero, one = np.zeros(steps), np.ones(steps)
    write_safetensors(
        check / "step_table.safetensors",
        {
            "x0_z": zero,
            "x0_m": zero,
            "z_z": zero,
            "z_m": one,
            "z_x0": zero,
            "sigma": zero,
            "time": np.array(times, np.float64),
        },
    )
    schedule_keys = (
        "num_inference_steps",
        "eta",
        "use_clipped_model_output",
        "mu",
        "diffusers_compatible",
    )
    settings = {key: value for key, value in config.items() if key not in schedule_keys}
    (check / "config.json").write_text(json.dumps(settings | {"num_inference_steps": steps}))
    states, condition = _random_inputs(module.example, _CHECK_SAMPLES, num_classes)
    given: dict[str, Any] = {}
    if condition is not None:
        key = "class_labels" if num_classes else "conditioning"
        given[key] = (
            condition.numpy() if num_classes else condition.reshape(len(states), -1).numpy()
        )
    with serve(model_dir=check, model_name="check", binary=binary) as server:
        result = server.client(timeout=300).generate(
            "check",
            initial_noise=states.numpy(),
            solver="sequential",
            return_trajectory=True,
            **given,
        )
    trajectory = result.trajectory
    assert trajectory is not None
    worst = worst_torch = 0.0
    reference = ""
    for step, time in enumerate(times):
        before = torch.from_numpy(trajectory[:, step].copy())
        at = torch.full((len(before),), time)
        exact, reference = _reference(module, before, at, condition)
        if not np.isfinite(exact).all():
            break
        worst = max(worst, _relative(trajectory[:, step + 1], exact))
        worst_torch = max(worst_torch, _relative(module(before, at, condition).numpy(), exact))
    return worst, worst_torch, reference


def export(
    model: Any,
    scheduler: Any,
    path: str | os.PathLike[str],
    *,
    example: tuple[Any, ...],
    num_inference_steps: int | list[int] = 100,
    num_classes: int = 0,
    version: int = 1,
    binary: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ExportReport:
    """Writes PATH/VERSION for a denoiser: any module that maps (state, time[, condition]).

    example: inputs of a batch of one. A condition of integers is a class, of which there are
    num_classes. settings: other keys of config.json, as null_class. Errors: ExportError.
    """
    target = pathlib.Path(path) / str(version)
    if target.exists():
        raise ExportError(f"{target} is there already: give another version")
    if not 2 <= len(example) <= 3:
        raise ExportError(
            f"example: expected the inputs state, time and perhaps condition, got "
            f"{len(example)} inputs"
        )
    scheduler_settings = _scheduler_json(scheduler)
    width = example[0][0].numel()
    config: dict[str, Any] = {
        "model_type": "diffusion",
        "denoiser": "onnx",
        "state_dim": width,
        "output_dim": width,
        "num_inference_steps": num_inference_steps,
    }
    if len(example) == 3:
        if example[2].is_floating_point():
            config["conditioning_dim"] = example[2][0].numel()
        elif num_classes:
            config["num_classes"] = num_classes
        else:
            raise ExportError(
                "num_classes: expected how many there are, as the third input of the "
                "example is an integer, got none; a second time is no input of a "
                "denoiser here"
            )
    config |= settings
    learned = str(scheduler_settings.get("variance_type")).startswith("learned")
    server = find_server(binary)
    with _evaluating(model), tempfile.TemporaryDirectory() as scratch:
        module = _Module(model, example, learned)
        _as_prediction(model(*example), example[0], learned)
        _check_module(module, num_classes)
        folder = pathlib.Path(scratch) / "1"
        folder.mkdir()
        _onnx(model, example, folder / "denoiser.onnx")
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (folder / "scheduler_config.json").write_text(
            json.dumps(scheduler_settings, indent=1) + "\n"
        )
        _check_by_server(server, folder)
        span = int(scheduler_settings.get("num_train_timesteps", 1000))
        times = [float(round(each)) for each in np.linspace(span - 1, 0, _CHECK_STEPS)]
        error = torch_error = 0.0
        for half in module.halves():
            off, torch_off, reference = _compare(
                model, half, folder, server, config, times, num_classes
            )
            error, torch_error = max(error, off), max(torch_error, torch_off)
        if not error <= max(_ROUNDING, 2 * torch_error):
            raise ExportError(
                f"the exported model differs from the module: predictions are off by {error:.1e},"
                f" those of PyTorch in float32 by {torch_error:.1e}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(folder), target)
    return ExportReport(target, error, torch_error, reference)
