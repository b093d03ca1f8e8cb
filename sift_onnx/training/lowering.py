"""From an ONNX graph to a torch.fx graph, node by node.

Every ONNX tensor becomes one of three things: a stored constant, a host value (numbers that are computed from shapes,
see :mod:`sift_onnx.training.host`), or a torch value. A node whose operator has a host kernel and whose inputs are all
host values or small constants runs on the host, at import if it can; every other node runs by a kernel of torch, and
what of its inputs is a host value becomes a tensor first, unless the kernel wants numbers there.
"""

from __future__ import annotations

import inspect
import keyword
import operator
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import torch
from torch import fx, nn

from sift_onnx.analysis.subgraphs import outer_tensors
from sift_onnx.errors import SiftError, UnsupportedError
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, shape_of
from sift_onnx.model import Model
from sift_onnx.operators.domains import canonical_domain, is_standard, opset_versions
from sift_onnx.operators.labels import node_label
from sift_onnx.operators.traits import SHAPE_READING
from sift_onnx.training.graph_module import LoweredModule
from sift_onnx.training.host import as_tensor
from sift_onnx.training.host_kernels import HOST_KERNELS
from sift_onnx.training.lowered_values import Host, Shaped, Stored, attribute_of, literal
from sift_onnx.training.registry import Kernel, find_kernel
from sift_onnx.training.tensors import HALF_TYPES, tensor_from_array, torch_dtype

__all__ = ["Lowering", "rounded"]

_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "to")
_ILLEGAL = re.compile(r"\W")


def rounded(master: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A parameter in the type that the model computes in; its gradient reaches the parameter."""
    return master.to(dtype)


_Value = Any  # Stored, Host, or an fx.Node


class Lowering:
    """The lowering of one graph; subgraphs of control flow have one each.

    Attributes:
        graph: the fx graph, complete after :meth:`run`.
    """

    # Attributes of the root module beside the parameters: constants, and modules of nodes that have one.
    RESERVED = ("constants", "layers")

    def __init__(self, source: gs.Graph, opsets: Mapping[str, int], paths: Mapping[str, str]) -> None:
        """A lowering of ``source``; ``paths`` are attribute paths of parameters and statistics by name."""
        self.graph = fx.Graph()
        self._source = source
        self._opsets = opsets
        self._paths = paths
        self._lowered: dict[int, _Value] = {}
        self._tensors: dict[Any, fx.Node] = {}
        self._constants = nn.Module()
        self._layers = nn.Module()
        self._arguments = {"self"}
        self._anchor: fx.Node | None = None
        # Lowered subgraphs of the node at hand, by attribute, and what they read of this graph.
        self._captured: dict[str, tuple[Any, ...]] = {}

    @classmethod
    def of_model(cls, model: Model, paths: Mapping[str, str]) -> Lowering:
        """The lowering of a model's main graph."""
        opsets = {"": int(model.graph.opset)} | opset_versions(model.graph.import_domains)
        return cls(model.graph, opsets, paths)

    def run(self) -> None:
        """Lower the graph.

        Raises:
            UnsupportedError: an operator or data type has no kernel; the message names the node.
        """
        for tensor in self._source.inputs:
            self._add_input(tensor)
        for node in self._source.nodes:
            try:
                self._lower(node)
            except SiftError as error:
                raise type(error)(f"node {node_label(node)}: {error}") from error
        outputs = [self._tensor(self._value(tensor)) for tensor in self._source.outputs]
        self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        self.graph.eliminate_dead_code(is_impure_node=_is_impure)

    def holders(self) -> dict[str, nn.Module]:
        """What the root module has besides its parameters."""
        return dict(zip(self.RESERVED, (self._constants, self._layers), strict=True))

    def _add_input(self, tensor: gs.Tensor) -> None:
        placeholder = self._placeholder(tensor.name)
        self._lowered[id(tensor)] = placeholder
        if self._anchor is None and vars(tensor).get("type", "tensor_type") == "tensor_type":
            self._anchor = placeholder

    def _placeholder(self, wanted: str) -> fx.Node:
        name = _ILLEGAL.sub("_", wanted) or "input"
        name = f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
        while name in self._arguments:
            name += "_"
        self._arguments.add(name)
        return self.graph.placeholder(name)

    def _lower_subgraph(self, name: str, source: gs.Graph) -> nn.Module:
        """A module of a subgraph, whose first inputs are the values that it reads of this graph."""
        inner = Lowering(source, self._opsets, {})
        captured: list[Any] = []
        for tensor in outer_tensors(source):
            value = self._value(tensor)
            if isinstance(value, Stored) and value.path is None:
                inner._lowered[id(tensor)] = value
                continue
            placeholder = inner._placeholder(f"outer_{len(captured)}")
            inner._lowered[id(tensor)] = Host(placeholder) if isinstance(value, Host) else placeholder
            captured.append(value.node if isinstance(value, Host) else self._tensor(value))
        if self._anchor is not None:
            inner._anchor = inner._placeholder("anchor")
            captured.append(self._anchor)
        inner.run()
        module = LoweredModule(nn.Module(), fx.Graph(), "Subgraph")
        for holder, contents in inner.holders().items():
            module.add_module(holder, contents)
        module.graph = inner.graph
        self._captured[name] = tuple(captured)
        return module

    def _lower(self, node: gs.Node) -> None:
        if node.op == "Constant" and is_standard(node.domain):
            return  # found by _value() when a node reads it
        inputs = [None if tensor.is_empty() else self._value(tensor) for tensor in node.inputs]
        attributes = {name: attribute_of(name, value) for name, value in node.attrs.items()}
        self._captured = {}
        if self._lower_on_host(node, inputs, attributes):
            return
        entry = find_kernel(node.op, node.domain, self._opsets.get(canonical_domain(node.domain), 1))
        self._check(entry, node, attributes)
        arguments = [self._argument(value, i in entry.host) for i, value in enumerate(inputs)]
        for attribute, value in attributes.items():
            if isinstance(value, gs.Graph):
                attributes[attribute] = self._lower_subgraph(attribute, value)
        while arguments and arguments[-1] is None:
            arguments.pop()
        extra: dict[str, Any] = {}
        if entry.takes("outputs"):
            extra["outputs"] = len(node.outputs)
        if entry.takes("anchor"):
            extra["anchor"] = self._anchor
        name = _ILLEGAL.sub("_", node.outputs[0].name or node.name or node.op) if node.outputs else node.op
        if entry.is_module:
            target = self._add_layer(name, entry.run(**attributes, **extra))
            keywords: dict[str, Any] = {"captured": dict(self._captured)} if self._captured else {}
            result = self.graph.create_node("call_module", target, tuple(arguments), keywords, name=name)
        else:
            keywords = attributes | extra
            result = self.graph.create_node("call_function", entry.run, tuple(arguments), keywords, name=name)
        result.meta["onnx_node"] = node.name
        self._give(node, result, several=entry.takes("outputs"))

    def _check(self, entry: Kernel, node: gs.Node, attributes: Mapping[str, Any]) -> None:
        for name, value in attributes.items():
            if isinstance(value, gs.Node.AttributeRef) or not entry.takes(name):
                raise UnsupportedError(f"its attribute {name!r} is not known to the torch kernel")
            if name in _TYPE_ATTRIBUTES and value:
                torch_dtype(value)

    def _lower_on_host(self, node: gs.Node, inputs: list[_Value], attributes: dict[str, Any]) -> bool:
        run = HOST_KERNELS.find(node.op, node.domain)
        if run is None or not inputs:
            return False
        given = [value for value in inputs if value is not None]
        if node.op in SHAPE_READING:
            given = []
        if not all(isinstance(v, Host) or (isinstance(v, Stored) and v.is_host()) for v in given):
            return False
        if node.op == "ConstantOfShape" and not isinstance(attributes.get("value", (0.0,))[0], int):
            return False
        if node.op in ("Range", "Expand", "Tile") and any(isinstance(v, Host) for v in given[1:]):
            return False  # data, as a rule: position numbers, masks
        several = "outputs" in inspect.signature(run).parameters
        extra = {"outputs": len(node.outputs)} if several else {}
        stored = [v for v in inputs if isinstance(v, Stored)]
        if len(stored) == len([v for v in inputs if v is not None]):
            if node.op in SHAPE_READING:
                folded = run(Shaped(shape_of(stored[0].constant)), **attributes)
            else:
                values = [None if v is None else array_of(v.constant) for v in inputs]
                folded = run(*values, **attributes, **extra)
            for tensor, value in zip(node.outputs, folded if several else (folded,), strict=False):
                self._lowered[id(tensor)] = Stored(gs.Constant(tensor.name, np.asarray(value)))
            return True
        arguments = [self._argument(v, not isinstance(v, fx.Node)) for v in inputs]
        result = self.graph.create_node(
            "call_function", run, tuple(arguments), {**attributes, **extra}, name=f"{node.op.lower()}_host"
        )
        self._give(node, result, several=several, host=True)
        return True

    def _give(self, node: gs.Node, result: fx.Node, *, several: bool, host: bool = False) -> None:
        for i, tensor in enumerate(node.outputs):
            if tensor.is_empty():
                continue
            value = self.graph.call_function(operator.getitem, (result, i)) if several else result
            self._lowered[id(tensor)] = Host(value) if host else value
            if not several:
                break

    def _value(self, tensor: gs.Tensor) -> _Value:
        if id(tensor) not in self._lowered:
            constant = constant_values(tensor)
            if constant is None:
                raise UnsupportedError(f"tensor {tensor.name!r} is read before anything makes it, or is of a rare kind")
            self._lowered[id(tensor)] = Stored(constant, self._paths.get(tensor.name))
        return self._lowered[id(tensor)]

    def _argument(self, value: _Value, host: bool) -> Any:
        """What a kernel gets: a tensor, or numbers if it wants ``host`` values."""
        if value is None:
            return None
        if not host:
            return self._tensor(value)
        if isinstance(value, Host):
            return value.node
        if isinstance(value, Stored) and value.path is None:
            return self._numbers(value.constant)
        return self._tensor(value)

    def _numbers(self, constant: gs.Constant) -> Any:
        array = array_of(constant)
        if array.dtype == np.int64 and array.size <= 64 and (array.size or array.ndim == 1):
            return literal(array.tolist())
        if array.ndim == 0 and array.dtype in (np.float32, np.bool_):
            return array.item()
        key = ("numbers", id(constant))
        if key not in self._tensors:
            name = self._free_name(self._constants, f"{constant.name}_numbers")
            setattr(self._constants, name, np.array(array))
            self._tensors[key] = self.graph.get_attr(f"constants.{name}")
        return self._tensors[key]

    def _tensor(self, value: _Value) -> fx.Node:
        if isinstance(value, fx.Node):
            return value
        if isinstance(value, Host):
            if value.node not in self._tensors:
                node = self.graph.call_function(as_tensor, (value.node, self._anchor))
                self._tensors[value.node] = node
            return self._tensors[value.node]
        key = value.path if value.path is not None else id(value.constant)
        if key not in self._tensors:
            self._tensors[key] = self._load(value)
        return self._tensors[key]

    def _load(self, stored: Stored) -> fx.Node:
        if stored.path is None:
            name = self._free_name(self._constants, stored.constant.name)
            self._constants.register_buffer(name, tensor_from_array(array_of(stored.constant)), persistent=False)
            return self.graph.get_attr(f"constants.{name}")
        dtype, loaded = torch_dtype(dtype_of(stored.constant)), self.graph.get_attr(stored.path)
        return self.graph.call_function(rounded, (loaded, dtype)) if dtype in HALF_TYPES else loaded

    def _add_layer(self, name: str, layer: nn.Module) -> str:
        free = self._free_name(self._layers, name)
        self._layers.add_module(free, layer)
        return f"layers.{free}"

    @staticmethod
    def _free_name(holder: nn.Module, wanted: str) -> str:
        wanted = _ILLEGAL.sub("_", wanted).strip("_") or "constant"
        wanted = wanted if not wanted[0].isdigit() else f"c{wanted}"
        name, i = wanted, 1
        while hasattr(holder, name):
            name, i = f"{wanted}_{i}", i + 1
        return name


def _is_impure(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output", "call_module")
