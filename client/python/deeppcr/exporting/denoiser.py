# SPDX-License-Identifier: Apache-2.0
"""Writes a denoiser, any module of a state, a time and perhaps a condition, and compares it.

The module goes through torch.onnx into denoiser.onnx.
"""

from __future__ import annotations

import copy
import json
import math
import pathlib
import shutil
from typing import Any

import numpy as np

from deeppcr.exporting.checking import check_difference, difference_of
from deeppcr.exporting.network import check_samples_are_alone
from deeppcr.exporting.report import Difference, ExportError
from deeppcr.exporting.tracing import floats_are_double, module_errors, write_onnx
from deeppcr.safetensors_file import write_safetensors
from deeppcr.serving import serve

_CHECK_SAMPLES = 8


def _as_prediction(output: Any, state: Any, learned_variance: bool) -> Any:
    import torch

    if not isinstance(output, torch.Tensor):
        raise ExportError(
            f"outputs: expected one tensor, got a {type(output).__name__}; wrap the "
            "module in one that returns the prediction alone"
        )
    shape = list(state.shape)
    if learned_variance:
        shape[1] *= 2  # prediction and variance one after the other
    flat = [shape[0], math.prod(shape[1:])]
    if list(output.shape) not in (shape, flat):
        twice = ", and as many for the variance" if learned_variance else ""
        raise ExportError(
            f"outputs: expected {flat[1]} elements of a sample, in the shape of the state "
            f"{list(state.shape)}{twice}, got the shape {list(output.shape)}"
        )
    return output.reshape(len(state), -1)


class Denoiser:
    """The module as a function of rows: states [n, D], times [n], conditions or None."""

    def __init__(self, module: Any, example: tuple[Any, ...], learned_variance: bool) -> None:
        self.module, self.example, self.learned = module, example, learned_variance
        self.state_shape = tuple(example[0].shape[1:])

    def halves(self) -> list[Denoiser]:
        """Itself, or the prediction and the variance that it gives, each as large as the state."""
        if not self.learned:
            return [self]
        return [Denoiser(_half_of(self.module, i), self.example, False) for i in range(2)]

    def __call__(self, states: Any, times: Any, condition: Any) -> Any:
        time_shape = self.example[1].shape[1:]  # [n], or [n, 1] and so on
        inputs = [
            states.reshape(-1, *self.state_shape),
            times.to(self.example[1].dtype).reshape(-1, *time_shape),
        ]
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


def check_denoiser(module: Denoiser, num_classes: int) -> None:
    """What no file would show, for some states at the example's time."""
    import torch

    states, condition = _random_inputs(module.example, 3, num_classes)
    times = torch.full((3,), module.example[1].reshape(-1)[0].item())

    def at(rows: slice) -> Any:
        return module(states[rows], times[rows], None if condition is None else condition[rows])

    everything = slice(None)
    with module_errors("does not take random states"):
        alone = torch.cat([at(slice(i, i + 1)) for i in range(3)])
        check_samples_are_alone(at(everything), at(everything), alone)


def _reference(module: Denoiser, states: Any, times: Any, condition: Any) -> tuple[Any, str]:
    """The predictions in double where the module can be made so, and what they are in."""
    try:
        wide = Denoiser(copy.deepcopy(module.module).double(), module.example, module.learned)
        if condition is not None and condition.is_floating_point():
            condition = condition.double()
        with floats_are_double():
            exact = wide(states.double(), times, condition)
        if str(exact.dtype) == "torch.float64":
            return exact.numpy(), "float64"
    except RuntimeError:
        pass  # weights or constants of float32 that do not follow
    if condition is not None and condition.is_floating_point():
        condition = condition.float()
    return module(states, times, condition).numpy(), "float32"


def _table_of_predictions(times: list[float]) -> dict[str, Any]:
    """Steps that answer with the prediction itself, which so shows for any state and time.

    Each is followed by one that draws a new state, of one of three sizes.
    """
    zero = np.zeros(2 * len(times))
    table = {name: zero for name in ("x0_z", "x0_m", "z_z", "z_x0")}
    draws = np.tile([0.0, 1.0], len(times))
    sizes = np.resize([1.0, 1.0, 3.0, 3.0, 0.3, 0.3], 2 * len(times))
    return table | {
        "z_m": 1.0 - draws,
        "sigma": draws * sizes,
        "time": np.repeat(np.array(times, np.float64), 2),
    }


def _write_check(
    folder: pathlib.Path, config: dict[str, Any], table: dict[str, Any]
) -> pathlib.Path:
    """The model of `folder` with other steps, in a folder beside it."""
    check = folder.parent / "check"
    shutil.rmtree(check, ignore_errors=True)
    shutil.copytree(folder, check)
    (check / "scheduler_config.json").unlink(missing_ok=True)
    write_safetensors(check / "step_table.safetensors", table)
    of_other_steps = (
        "num_inference_steps",
        "eta",
        "use_clipped_model_output",
        "mu",
        "diffusers_compatible",
    )
    settings = {key: value for key, value in config.items() if key not in of_other_steps}
    settings["num_inference_steps"] = len(table["time"])
    (check / "config.json").write_text(json.dumps(settings))
    return check


def _compare(
    module: Denoiser,
    check: pathlib.Path,
    times: list[float],
    num_classes: int,
    decoder: Any,
    binary: pathlib.Path,
) -> Difference:
    import torch

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
            seed=1,
            return_trajectory=True,
            **given,
        )
    trajectory = result.trajectory
    assert trajectory is not None
    difference: Difference | None = None
    for i, time in enumerate(times):
        before = torch.from_numpy(trajectory[:, 2 * i].copy())
        at = torch.full((len(before),), time)
        exact, reference = _reference(module, before, at, condition)
        own = module(before, at, condition).numpy()
        found = difference_of(trajectory[:, 2 * i + 1], own, exact, reference)
        if found is None:
            raise ExportError(f"outputs: the module gives no numbers at time {time:g}")
        check_difference(found, f"predictions at time {time:g}")
        difference = found.joined(difference) if difference else found
    if decoder is not None:
        last = torch.from_numpy(trajectory[:, -1].copy())
        exact = copy.deepcopy(decoder).double()(last.double()).numpy()
        found = difference_of(np.asarray(result), decoder(last).numpy(), exact, "float64")
        if found is None:
            raise ExportError("outputs: the decoder gives no numbers")
        check_difference(found, "outputs of the decoder")
        difference = found.joined(difference) if difference else found
    assert difference is not None
    return difference


def compare_predictions(
    module: Denoiser,
    folder: pathlib.Path,
    config: dict[str, Any],
    times: list[float],
    decoder: Any,
    binary: pathlib.Path,
) -> Difference:
    """The predictions of a server on what is in `folder`, against those of the module."""
    check = _write_check(folder, config, _table_of_predictions(times))
    difference = None
    for half in module.halves():
        if half is not module:
            write_onnx(half.module, half.example, check / "denoiser.onnx")
        found = _compare(half, check, times, config.get("num_classes", 0), decoder, binary)
        difference = found.joined(difference) if difference else found
    assert difference is not None
    return difference
