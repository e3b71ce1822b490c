# SPDX-License-Identifier: Apache-2.0
"""What a network did with its example: torch.fx's list of operations, and parts of it."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from dataclasses import dataclass
from typing import Any

from deeppcr.exporting.operations import Operation, operations_of
from deeppcr.exporting.precision import cast_attributes, floats_are_double, widened
from deeppcr.exporting.report import ExportError, first_line
from deeppcr.exporting.sized_tracer import IN_PLACE_OPERATORS, sized_tracer


@dataclass
class Recorded:
    """What a network did with its example: operations in order, and what is constant in them."""

    root: Any
    operations: list[Any]  # nodes that depend on the input
    placeholder: Any
    output: Any  # the node whose value is the result
    constants: dict[Any, Any]  # values of nodes that do not
    values: dict[Any, Any]  # of all nodes, for the example
    performed: list[Operation]  # on the example, those of which nothing comes too


def _source_line(error: BaseException) -> str:
    """Where the module's own code was when tracing failed."""
    import torch

    own = str(pathlib.Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame
        for frame in frames
        if not frame.filename.startswith((own, str(pathlib.Path(__file__).parent)))
    ]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""


def _leave_out_dropout(model: Any, graph: Any) -> None:
    """Of a module that is evaluated it is nothing, and its rates are no part of a layer."""
    import torch
    import torch.nn.functional as functional

    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
    functions = [getattr(functional, name) for name in names if hasattr(functional, name)]
    for node in list(graph.nodes):
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        is_module = node.op == "call_module" and isinstance(
            model.get_submodule(node.target), torch.nn.modules.dropout._DropoutNd
        )
        is_function = node.op == "call_function" and node.target in functions
        if is_module or (is_function and given.get("training") is False):
            node.replace_all_uses_with(given["input"])
            graph.erase_node(node)


def _is_mutable(function: Any) -> bool:
    """Whether an operation of torch.ops writes into what it is given, by its schema."""
    overloads: list[str] = getattr(function, "overloads", list)()
    schemas = [getattr(function, each)._schema for each in overloads]
    schemas += [function._schema] if hasattr(function, "_schema") else []
    aliases = [each.alias_info for schema in schemas for each in schema.arguments]
    return any(each is not None and each.is_write for each in aliases)


def _changes_in_place(model: Any, node: Any) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    by_name = node.op != "call_module" and name.endswith("_") and not name.endswith("__")
    by_operator = name.strip("_") in (*IN_PLACE_OPERATORS, "setitem")
    by_module = node.op == "call_module" and getattr(model.get_submodule(name), "inplace", False)
    by_argument = node.kwargs.get("inplace") is True or node.kwargs.get("out") is not None
    by_schema = node.op == "call_function" and _is_mutable(node.target)
    return by_name or by_operator or by_module or by_argument or by_schema


def _check_in_place(model: Any, graph: Any, depends: set[Any], used: set[Any]) -> None:
    """Errors: ExportError for what changes a constant by the state, as blocks have copies, and for
    what changes a state whose next value nobody uses but for its size."""
    for node in graph.nodes:
        if node not in depends or not node.op.startswith("call_"):
            continue
        if not _changes_in_place(model, node):
            continue
        into = node.kwargs.get("out", node.args[0] if node.args else None)
        if into not in depends:
            raise ExportError(
                f"{node.name}: an in-place operation changes a constant by the state: write it as "
                "one that gives a new tensor, as acc = acc + z"
            )
        if node not in used:
            raise ExportError(
                f"{node.name}: expected the result of an in-place operation to be used"
            )


def _leave_out_unused(model: Any, graph: Any) -> None:
    """Operations whose results nobody uses. Errors: ExportError for those that change others'."""
    for node in reversed(list(graph.nodes)):
        if node.users or not node.op.startswith("call_"):
            continue
        if _changes_in_place(model, node):
            raise ExportError(
                f"{node.name}: expected the result of an in-place operation to be used"
            )
        graph.erase_node(node)


def record(model: Any, example: Any) -> Recorded:
    import torch
    import torch.fx

    if any(isinstance(each, torch.jit.ScriptModule) for each in model.modules()):
        raise ExportError(
            "a part of the module is scripted: give it as it was before torch.jit.script or trace"
        )
    own_call = type(model).__call__ is not torch.nn.Module.__call__
    if model._forward_hooks or model._forward_pre_hooks or own_call or "forward" in vars(model):
        raise ExportError(
            "the network's own hooks, __call__ or a forward that was set are not recorded: put "
            "what they do into a module around it"
        )
    try:
        with floats_are_double():
            graph = sized_tracer(example).trace(model)
        cast_attributes(model, torch.float64)
        traced = torch.fx.GraphModule(model, graph)
    except Exception as error:  # whatever the module does with what it is given
        if "instead found type 'Sized'" in str(error):
            raise ExportError(
                f"{_source_line(error)}a function is scripted: give it as it was before "
                "torch.jit.script"
            ) from error
        kind = "" if isinstance(error, ExportError) else f"{type(error).__name__}: "
        raise ExportError(f"{_source_line(error)}{kind}{first_line(error)}") from error
    graph = traced.graph
    values: dict[Any, Any] = {}

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, n: Any) -> Any:
            values[n] = super().run_node(n)
            return values[n]

        def fetch_args_kwargs_from_env(self, n: Any) -> Any:
            return widened(super().fetch_args_kwargs_from_env(n))

    try:
        with floats_are_double(), operations_of(example) as performed:
            Recorder(traced).run(example)
    except Exception as error:  # whatever the module does with what it is given
        raise ExportError(f"the module fails in double: {first_line(error)}") from error
    _leave_out_dropout(model, graph)
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_method" and name in ("item", "tolist", "numpy"):
            raise ExportError(f"{name}(): the way through the network depends on values")
    _leave_out_unused(model, graph)
    (placeholder,) = [node for node in graph.nodes if node.op == "placeholder"]
    (end,) = [node for node in graph.nodes if node.op == "output"]
    output = end.args[0]
    if not isinstance(output, torch.fx.Node):
        raise ExportError(f"outputs: expected one tensor, got a {type(values[end]).__name__}")
    result = values[output]
    if not isinstance(result, torch.Tensor) or not result.is_floating_point() or not result.ndim:
        kind = str(result.dtype) if isinstance(result, torch.Tensor) else type(result).__name__
        raise ExportError(f"outputs: expected a tensor of floats, one for each sample, got {kind}")
    depends = {placeholder}
    for node in graph.nodes:
        # Sizes are those of one sample, whatever they are sizes of.
        value = values.get(node)
        is_data = isinstance(value, (torch.Tensor, tuple)) and not isinstance(value, torch.Size)
        if is_data and any(each in depends for each in node.all_input_nodes):
            depends.add(node)
    if output not in depends:
        raise ExportError("outputs: the network's answer does not depend on its input")
    # Of some values only the sizes are used.
    used = {output}
    for node in reversed(graph.nodes):
        if node in depends and any(user in used for user in node.users):
            used.add(node)
    used &= depends
    _check_in_place(model, graph, depends, used)
    ends = ("placeholder", "output")
    operations = [node for node in graph.nodes if node in used and node.op not in ends]
    constants = {node: values[node] for node in graph.nodes if node not in depends}
    return Recorded(model, operations, placeholder, output, constants, values, performed)


class Cuts:
    """Which values are handed on at a place in the list of operations."""

    def __init__(self, recorded: Recorded) -> None:
        self.operations = recorded.operations
        position = {node: i for i, node in enumerate(self.operations)}
        position[recorded.placeholder] = -1
        self.last_use = {}
        for node, i in position.items():
            uses = [position[user] for user in node.users if user in position]
            self.last_use[node] = max(uses, default=i)
        self.last_use[recorded.output] = len(self.operations)
        self.position = position

    def at(self, place: int) -> list[Any]:
        return [
            node for node, i in self.position.items() if i < place and self.last_use[node] >= place
        ]


class Part:
    """A function of one value: the operations [begin, end) of a network."""

    def __init__(self, recorded: Recorded, begin: int, end: int, into: Any, out: Any) -> None:
        self.recorded, self.into, self.out = recorded, into, out
        self.operations = recorded.operations[begin:end]

    def operations_named(self) -> str:
        """What it does, for messages."""
        most = 8
        names = [str(each) for each in self.operations[:most]]
        more = len(self.operations) - most
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")

    def __call__(self, rows: Any) -> Any:
        """[n, width of the result] of [n, width] in double."""
        import torch

        shape = self.recorded.values[self.into].shape
        whole = torch.zeros(0)
        with contextlib.suppress(Exception), floats_are_double():
            whole = self._run(rows.clone().reshape(len(rows), *shape[1:]))
        if len(whole) != len(rows):
            # Sizes that the network asked for are those of a batch of one.
            with floats_are_double():
                whole = torch.cat([self._run(row.clone().reshape(shape)) for row in rows])
        return whole.reshape(len(rows), -1)

    def _run(self, value: Any) -> Any:
        import torch

        if self.out is self.into:
            return value
        values = {self.into: value}

        def of(node: Any) -> Any:
            return values[node] if node in values else self.recorded.constants[node]

        for node in self.operations:
            args = widened(torch.fx.map_arg(node.args, of))
            kwargs = widened(torch.fx.map_arg(node.kwargs, of))
            if node.op == "call_module":
                result = self.recorded.root.get_submodule(node.target)(*args, **kwargs)
            elif node.op == "call_method":
                result = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                result = node.target(*args, **kwargs)
            values[node] = result
        return values[self.out]
