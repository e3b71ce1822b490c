# SPDX-License-Identifier: Apache-2.0
"""Asks a server for what it computes of a folder."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import numpy as np

from deeppcr.exporting.answers import Predictions, Question
from deeppcr.exporting.checking import validate
from deeppcr.exporting.report import ExportError
from deeppcr.exporting.tracing import write_onnx
from deeppcr.safetensors_file import write_safetensors
from deeppcr.serving import Server, serve

# Keys of config.json that say how steps are made.
_OF_STEPS = {
    *("num_inference_steps", "eta", "mu"),
    *("use_clipped_model_output", "diffusers_compatible"),
}


def _table_of_predictions(times: list[float], sizes: list[float]) -> dict[str, Any]:
    """Steps that answer with the prediction itself, which so shows for any state and time.

    Each is followed by one that draws a new state.
    """
    zero = np.zeros(2 * len(times))
    table = {name: zero for name in ("x0_z", "x0_m", "z_z", "z_x0")}
    draws = np.tile([0.0, 1.0], len(times))
    return table | {
        "z_m": 1.0 - draws,
        "sigma": draws * np.repeat(np.array(sizes), 2),
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
    settings = {key: value for key, value in config.items() if key not in _OF_STEPS}
    settings["num_inference_steps"] = len(table["time"])
    (check / "config.json").write_text(json.dumps(settings))
    return check


class ServerAnswers:
    """Those of the sequential solver of a server that runs for as long as it is asked."""

    name = "deeppcr-server"

    def __init__(self, binary: pathlib.Path) -> None:
        self.binary = binary

    def _serve(self, folder: pathlib.Path) -> Server:
        return serve(model_dir=folder, model_name="check", binary=self.binary)

    def check(self, folder: pathlib.Path) -> None:
        problems = validate(folder, self.binary)
        if problems:
            raise ExportError("; ".join(problems))

    def outputs(self, folder: pathlib.Path, groups: list[Any]) -> list[Any]:
        with self._serve(folder) as server:
            client = server.client(timeout=300)
            return [
                np.asarray(client.forward("check", rows, solver="sequential")) for rows in groups
            ]

    def predictions(self, question: Question) -> Predictions:
        config, times = question.config, question.times
        check = _write_check(question.folder, config, _table_of_predictions(times, question.sizes))
        given = {}
        if question.condition is not None:
            name = "class_labels" if config.get("num_classes") else "conditioning"
            given[name] = question.condition
        trajectories = []
        for half in question.module.halves():
            if half is not question.module:
                write_onnx(half.module, half.example, check / "denoiser.onnx")
            with self._serve(check) as server:
                result = server.client(timeout=300).generate(
                    "check",
                    initial_noise=question.states,
                    solver="sequential",
                    seed=1,  # with which halves have the same states
                    return_trajectory=True,
                    **given,
                )
            trajectories.append(np.asarray(result.trajectory))
        both = np.concatenate([each[:, 1::2] for each in trajectories], axis=2)
        return Predictions(
            states=[trajectories[0][:, 2 * i].copy() for i in range(len(times))],
            predictions=[both[:, i] for i in range(len(times))],
            last=trajectories[0][:, -1].copy(),
            outputs=np.asarray(result),
        )
