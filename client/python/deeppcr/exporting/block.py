# SPDX-License-Identifier: Apache-2.0
"""Makes a module of the operations of a stack's first block, and stacks what the others have."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

from deeppcr.exporting.recording import Recorded
from deeppcr.exporting.repeating import Period, is_number
from deeppcr.exporting.report import ExportError


def _common_name(names: Sequence[str]) -> str:
    """What is the same in the names of one tensor in all layers: layers.3.linear: layers.linear."""
    parts = [name.split(".") for name in names]
    if len({len(each) for each in parts}) > 1:
        return ""
    places = zip(*parts, strict=True)
    return ".".join(same[0] for same in places if len(set(same)) == 1 and not same[0].isdigit())


def _is_same(a: Any, b: Any) -> bool:
    """Whether two tensors are one in memory."""
    return bool(a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.shape == b.shape)


def _check_same(name: str, values: Sequence[Any]) -> None:
    """Of what a layer has no own one of: scalars of modules, and tensors of other kinds."""
    import torch

    if not all(torch.equal(each, values[0]) for each in values):
        what = "scalar" if values[0].ndim == 0 else f"tensor of {values[0].dtype}"
        raise ExportError(f"{name}: the layers differ in a {what}")


def _source_name(argument: Any) -> str:
    """The name of the module's tensor that a constant is made of."""
    import torch.fx

    while isinstance(argument, torch.fx.Node) and argument.op != "get_attr":
        argument = next(iter(argument.all_input_nodes), None)
    return str(argument.target) if isinstance(argument, torch.fx.Node) else "tensor"


class BlockBuilder:
    """Makes a module of the operations of the first block, and stacks what the others have."""

    def __init__(self, recorded: Recorded, period: Period, into: Any) -> None:
        import torch.fx

        self.recorded, self.period, self.into = recorded, period, into
        self.graph = torch.fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.shared: list[str] = []
        self.blocks = [
            recorded.operations[period.start + k * period.length :][: period.length]
            for k in range(period.count)
        ]

    def build(self) -> Any:
        """Module [1, D] -> [1, D]."""
        import torch

        shape = tuple(self.recorded.values[self.into].shape)
        state = self.graph.placeholder("state")
        flat = len(shape) == 2
        inner = state if flat else self.graph.call_method("reshape", (state, shape))
        made = {self.into: inner}
        for q, node in enumerate(self.blocks[0]):
            peers = [block[q] for block in self.blocks]
            args = self._arguments([peer.args for peer in peers], node, made)
            kwargs = self._arguments([peer.kwargs for peer in peers], node, made)
            target = node.target
            if node.op == "call_module":
                target = self._module([peer.target for peer in peers])
            made[node] = self.graph.create_node(node.op, target, args, kwargs)
        result = made[self.blocks[0][-1]]
        self.graph.output(result if flat else self.graph.call_method("reshape", (result, (1, -1))))
        return torch.fx.GraphModule(self.attributes, self.graph).eval()

    def _free_name(self, wanted: str) -> str:
        """The name, or one like it that neither a tensor of the block nor of the ends has."""
        import torch.fx

        # Names of the ends, of what ONNX calls inputs and outputs, and of the module's own.
        taken = ("input", "output", "state", "x", "prediction")
        first = wanted.split(".")[0]
        if first in taken or hasattr(torch.fx.GraphModule, first):
            wanted = f"block_{wanted}"

        def is_free(name: str) -> bool:
            return not any(
                f"{each}.".startswith(f"{name}.") or f"{name}.".startswith(f"{each}.")
                for each in self.attributes
            )

        # Of a part of a module that is there: another first name is what makes it free.
        head, dot, rest = wanted.partition(".")
        others = (f"{head}_{i}{dot}{rest}" for i in itertools.count(1))
        return next(name for name in itertools.chain([wanted], others) if is_free(name))

    def _module(self, targets: list[str]) -> str:
        root = self.recorded.root
        modules = [root.get_submodule(target) for target in targets]
        name = self._free_name(_common_name(targets) or "layer")
        # A copy, as two places of a block may share what other layers do not.
        self.attributes[name] = copy.deepcopy(modules[0])
        states = [module.state_dict() for module in modules]
        for key, value in states[0].items():
            values = [state[key] for state in states]
            if value.is_floating_point() and value.ndim:
                self._stack(f"{name}.{key}", values)
            elif value.is_floating_point() or value.ndim:  # others count batches
                _check_same(f"{targets[0]}.{key}", values)
        return name

    def _stack(self, name: str, values: list[Any]) -> None:
        import torch

        first = values[0]
        if all(_is_same(each, first) for each in values):
            self.shared.append(name)
        else:
            self.tensors[name] = torch.stack([each.detach() for each in values])

    def _tensor(self, names: list[str], values: list[Any]) -> Any:
        """A node with the tensor of the first layer."""
        is_weight = values[0].is_floating_point()
        if not is_weight:
            _check_same(names[0], values)
        name = self._free_name(_common_name(names) or "tensor")
        # Layers have no scalars of their own, but vectors of one element.
        values = [each.reshape(1) if each.ndim == 0 else each for each in values]
        self.attributes[name] = values[0].detach().clone()
        if is_weight:
            self._stack(name, values)
        return self.graph.get_attr(name)

    def _arguments(self, peers: list[Any], node: Any, made: dict[Any, Any]) -> Any:
        """The arguments of the first block's operation, with weights for what differs in others."""
        import torch

        first = peers[0]
        if isinstance(first, torch.fx.Node) and first in made:
            return made[first]
        names = [_source_name(each) for each in peers]
        constants = self.recorded.constants
        peers = [constants[each] if isinstance(each, torch.fx.Node) else each for each in peers]
        first = peers[0]
        if isinstance(first, torch.Tensor):
            return self._tensor(names, peers)
        if isinstance(first, (tuple, list)) and not isinstance(first, torch.Size):
            return type(first)(
                self._arguments([each[i] for each in peers], node, made) for i in range(len(first))
            )
        if isinstance(first, slice):
            parts = [(each.start, each.stop, each.step) for each in peers]
            return slice(*self._arguments(parts, node, made))
        if isinstance(first, dict):
            return {
                key: self._arguments([each[key] for each in peers], node, made) for key in first
            }
        if all(each == first for each in peers) or not is_number(first):
            return first
        return self._tensor(["factor"], [torch.tensor([float(each)]).double() for each in peers])
