"""A torch.fx module of kernels that copies and pickles keep whole.

torch.fx pickles the code of a module and traces it again when it is read. Kernels look at sizes and numbers, so they
cannot be traced; and a trace keeps only what the graph refers to. Here a pickle holds the nodes of the graph, one
record each. A kernel of this package stands there by its operator, so that it may move from file to file. Any other
function stands there by the name that Python imports it by, or by its operator if it has no such name.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import fx
from torch.fx.node import map_aggregate

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.operators.labels import operator_name
from sift_onnx.training.host_kernels import HOST_KERNELS
from sift_onnx.training.registry import kernels, registered_kernel

__all__ = ["LoweredModule"]


@dataclass(frozen=True)
class _Reference:
    """A node, among the arguments of another."""

    name: str


@dataclass(frozen=True)
class _Kernel:
    """A kernel by its operator; without a version it is one of the host's."""

    domain: str
    op: str
    since: int | None


@dataclass(frozen=True)
class _Record:
    """A node of a graph."""

    op: str
    name: str
    target: str | Callable[..., Any] | _Kernel
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    type: Any
    onnx_node: str | None


class LoweredModule(fx.GraphModule):
    """A torch.fx module that keeps whatever was attached to it in copies and pickles."""

    def __deepcopy__(self, memo: dict[int, Any]) -> LoweredModule:
        twin = _blank(_kind_of(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        twin.graph = twin._graph
        return twin

    def __copy__(self) -> LoweredModule:
        """A separate module over the same tensors and submodules."""
        twin = _blank(_kind_of(self))
        # What of torch's own is a dictionary belongs to one module: its parameters, its hooks.
        twin.__dict__.update({name: copy.copy(v) if isinstance(v, dict) else v for name, v in self.__dict__.items()})
        twin.graph = copy.deepcopy(self.graph)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """The attributes, and the nodes in place of the graph.

        Raises:
                UsageError: a kernel has no name; the message names the node.
        """
        # The blank module comes first: hooks among the attributes may refer to it.
        operators = _operators()
        records = [_record_of(node, operators) for node in self.graph.nodes]
        return _blank, (_kind_of(self),), {**self.__dict__, "_graph": records}

    def __setstate__(self, state: dict[str, Any]) -> None:
        records = state["_graph"]
        rest = {name: value for name, value in state.items() if name != "_graph"}
        super().__setstate__(rest)  # type: ignore[no-untyped-call]
        self.graph = _graph_of(records)

    def __reduce_package__(self, exporter: Any) -> NoReturn:
        raise UsageError("torch.package does not take a module of to_torch; write it with torch.save")


def _kind_of(module: LoweredModule) -> type[LoweredModule]:
    # torch.fx makes a class for each module, whose qualified name ends so.
    return next(kind for kind in type(module).__mro__ if not kind.__qualname__.endswith("GraphModuleImpl"))


def _blank(kind: type[LoweredModule]) -> LoweredModule:
    blank: LoweredModule = kind.__new__(kind)
    return blank


def _record_of(node: fx.Node, operators: Mapping[int, _Kernel]) -> _Record:
    args, kwargs = _plain(node.args), _plain(node.kwargs)
    name = _named(node, operators)
    return _Record(node.op, node.name, name, args, kwargs, node.type, node.meta.get("onnx_node"))


def _plain(argument: Any) -> Any:
    """An argument without fx's own types: its nodes, lists and dictionaries."""
    if isinstance(argument, fx.Node):
        return _Reference(argument.name)
    if isinstance(argument, dict):
        return {name: _plain(value) for name, value in argument.items()}
    if isinstance(argument, list):
        return [_plain(value) for value in argument]
    if isinstance(argument, slice):
        return slice(_plain(argument.start), _plain(argument.stop), _plain(argument.step))
    return tuple(map(_plain, argument)) if type(argument) is tuple else argument


def _named(node: fx.Node, operators: Mapping[int, _Kernel]) -> str | Callable[..., Any] | _Kernel:
    run = node.target
    if isinstance(run, str):
        return run
    operator = operators.get(id(run))
    if operator is not None and str(getattr(run, "__module__", "")).startswith("sift_onnx."):
        return operator
    try:
        pickle.dumps(run)
        return run
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    if operator is None:
        raise UsageError(
            f"node {node.meta.get('onnx_node', node.name)!r}: its kernel has been replaced, and cannot be imported by "
            "name, so the module cannot be pickled; define the kernel at the top of a module"
        )
    return operator


def _operators() -> dict[int, _Kernel]:
    """The first operator that each kernel is registered for, by the kernel's ``id``."""
    operators = {id(known): _Kernel("", op, None) for _, op, _, known in HOST_KERNELS.items()}
    for known in kernels():
        operators.setdefault(id(known.run), _Kernel(known.domain, known.op, known.since))
    return operators


def _kernel(key: _Kernel) -> Callable[..., Any]:
    if key.since is None:
        run = HOST_KERNELS.find(key.op)
    else:
        known = registered_kernel(key.op, key.domain, key.since)
        run = None if known is None else known.run
    if run is None:
        raise UnsupportedError(
            f"the module was saved with a torch kernel for {operator_name(key.op, key.domain)} that is not registered "
            "here; call sift_onnx.training.register_kernel before the module is read"
        )
    return run


def _graph_of(records: list[_Record]) -> fx.Graph:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def resolved(part: Any) -> Any:
        return map_aggregate(part, lambda a: nodes[a.name] if isinstance(a, _Reference) else a)

    for record in records:
        target = _kernel(record.target) if isinstance(record.target, _Kernel) else record.target
        args, kwargs = resolved(record.args), resolved(record.kwargs)
        node = graph.create_node(record.op, target, args, kwargs, record.name, record.type)
        if record.onnx_node is not None:
            node.meta["onnx_node"] = record.onnx_node
        nodes[record.name] = node
    return graph
