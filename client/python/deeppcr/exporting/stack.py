# SPDX-License-Identifier: Apache-2.0
"""Finds the blocks of a deep network: operations that repeat, each time with weights of their own.

torch.fx records what a network does as a list of operations. Of it the longest part is taken that
repeats with one period, whatever the classes of the modules and the loops around them are; what
comes before and after it has to be affine, as the input and output layers of a `stack` are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deeppcr.exporting.block import BlockBuilder
from deeppcr.exporting.ends import affine_layer, input_layer, is_identity
from deeppcr.exporting.operations import check_same_operations
from deeppcr.exporting.recording import Cuts, Part, Recorded, record
from deeppcr.exporting.repeating import Period, keys_of, periods_of, why_nothing_repeats
from deeppcr.exporting.report import ExportError
from deeppcr.exporting.tracing import copied, simplified


@dataclass(frozen=True)
class Stack:
    """L blocks of one form between two affine layers, in double."""

    block: Any  # module [1, D] -> [1, D], with the weights of the first layer
    tensors: dict[str, Any]  # [L, ..] by the names that they have in `block`, and the ends
    shared: list[str]  # names in `block` of what all layers share
    input_dim: int
    state_dim: int
    output_dim: int
    num_layers: int
    input_activation: str

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "model_type": "stack",
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "state_dim": self.state_dim,
            "num_layers": self.num_layers,
        }
        if self.input_activation != "identity":
            config["input_activation"] = self.input_activation
        if self.shared:
            config["shared_weights"] = self.shared
        return config


def _stack_at(recorded: Recorded, period: Period) -> Stack:
    """The stack whose blocks are these. Errors: ExportError, where others may be."""
    import torch

    cuts = Cuts(recorded)
    end = period.start + period.length * period.count
    live = [cuts.at(place) for place in (period.start, period.start + period.length, end)]
    if any(len(each) != 1 for each in live):
        names = ", ".join(sorted(str(node) for node in max(live, key=len)))
        raise ExportError(f"the blocks hand on more than one state: {names}")
    (into,), (out,) = live[0], live[2]
    values = recorded.values
    state_dim = values[into].numel()
    if values[out].numel() != state_dim:
        raise ExportError("no equal blocks: the widths of their inputs and outputs differ")
    first = input_layer(recorded, period.start, into)
    if first is None:
        raise ExportError(
            "before the blocks: expected an affine layer and perhaps an activation of the server, "
            f"got {Part(recorded, 0, period.start, recorded.placeholder, into).operations_named()}"
        )
    rest = Part(recorded, end, len(recorded.operations), out, recorded.output)
    last = affine_layer(rest, state_dim)
    if last is None:
        raise ExportError(
            f"after the blocks: expected an affine layer, or nothing, got {rest.operations_named()}"
        )
    builder = BlockBuilder(recorded, period, into)
    block = builder.build()
    tensors = builder.tensors
    if not (is_identity(*first[:2]) and first[2] == "identity"):
        tensors |= {"input.weight": first[0], "input.bias": first[1]}
    if not is_identity(*last):
        tensors |= {"output.weight": last[0], "output.bias": last[1]}
    return Stack(
        block=block,
        tensors={name: value.to(torch.float32).numpy() for name, value in tensors.items()},
        shared=builder.shared,
        input_dim=values[recorded.placeholder].numel(),
        state_dim=state_dim,
        output_dim=values[recorded.output].numel(),
        num_layers=period.count,
        input_activation=first[2],
    )


def find_stack(model: Any, example: Any) -> Stack:
    """example: [1, ..]. Errors: ExportError, with what the network is no stack for."""
    recorded = record(simplified(copied(model).double()), example.double())
    check_same_operations(model, example, recorded.performed)
    keys = keys_of(recorded)
    problem: ExportError | None = None
    for period in periods_of(keys):
        try:
            return _stack_at(recorded, period)
        except ExportError as error:
            problem = problem or error
    raise problem or ExportError(why_nothing_repeats(recorded, keys))
