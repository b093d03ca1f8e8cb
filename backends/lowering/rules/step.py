"""A step of a region, and the node that it is made from as a rule sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.specs import GatherElements, GatherRows, ScatterElements, Spec
from sift_onnx.backends.lowering.specs.decoding import CacheNames

__all__ = [
    "QUANTIZED",
    "NodeView",
    "NotLowered",
    "Step",
    "View",
    "check_float",
    "check_type",
    "dims_of",
    "operand_view",
]

# How kernels read a tensor: `image` is (n, c, h, w); `rows` is a matrix, all axes but the last are rows; `array` is a
# mask, which has neither images nor rows, and no layout.
View = Literal["image", "rows", "array"]
QUANTIZED = (DType.UINT8, DType.INT8)


class NotLowered(Exception):  # noqa: N818 - an answer, not an error
    """A node that the kernels do not have; the message is the reason that users read."""


@dataclass(frozen=True)
class Step:
    """One operator of a region.

    Attributes:
        spec: what is done.
        inputs: names of the operand, and of the others where there are any.
        output: name of the result.
        view: of the operands.
        result_view: of the result.
        nodes: indices of the model's nodes that it stands for, the one it is named after first.
        mask: name of an array that is read as it is, outside of the kernels' layouts; empty if there is none.
        dtype: element type of the operands, but for those that :meth:`dtype_of` knows better.
        result_dtype: of the result.
        cache: arrays that are read and made outside of the kernels' layouts, and whose sizes change from run to run.
        is_extra: whether the model, and so onnxruntime, does without it.
    """

    spec: Spec
    inputs: tuple[str, ...]
    output: str
    view: View
    result_view: View
    nodes: tuple[int, ...]
    mask: str = ""
    dtype: DType = DType.FLOAT32
    result_dtype: DType = DType.FLOAT32
    cache: CacheNames | None = None
    is_extra: bool = False

    @property
    def arrays(self) -> tuple[str, ...]:
        """Values that are read as they are, and so from outside the region."""
        read = self.cache.read if self.cache is not None else ()
        return (*((self.mask,) if self.mask else ()), *read, *(self.inputs if self.view == "array" else ()))

    def dtype_of(self, operand: int) -> DType:
        """Element type of an operand, by its place."""
        if operand == 1 and isinstance(self.spec, (GatherElements, ScatterElements)):
            return DType.INT64
        return DType.FLOAT32 if operand and isinstance(self.spec, GatherRows) else self.dtype

    @property
    def written(self) -> tuple[str, ...]:
        """Everything that it makes."""
        return (self.output, *(self.cache.written if self.cache is not None else ()))


def dims_of(graph: GraphView, name: str, known: Mapping[str, Dims]) -> Dims:
    """Sizes of a value, which are ``known`` where nodes before it make it in kernels.

    Raises:
        NotLowered: not even its rank is known.
    """
    dims = known.get(name) or graph.dims(name)
    if dims is None:
        raise NotLowered(f"the rank of {name!r} is unknown")
    return dims


def check_float(graph: GraphView, name: str) -> None:
    """Check the type of a value.

    Raises:
        NotLowered: it is another one than the kernels are for.
    """
    check_type(graph, name, (DType.FLOAT32,))


def check_type(graph: GraphView, name: str, types: Collection[DType]) -> None:
    """Check that the type of a value is one of ``types``; errors as of :func:`check_float`."""
    kind = graph.elem_type(name)
    if all(kind != dtype.onnx_type for dtype in types):
        stored = onnx.TensorProto.DataType.Name(kind).lower() if kind else "of unknown type"
        taken = " and ".join(str(dtype.numpy) for dtype in types)
        raise NotLowered(f"{name!r} is {stored}; the kernels are for {taken}")


def operand_view(
    graph: GraphView,
    name: str,
    views: Mapping[str, View],
    known: Mapping[str, Dims],
    view: View | None = None,
    types: Collection[DType] = (DType.FLOAT32,),
) -> View:
    """Check a value that is an activation, and say how kernels read it.

    Args:
        graph: that it is in.
        name: of the value.
        views: of the values that nodes before it make in kernels.
        known: sizes of these values.
        view: that the operator needs, into which a value of another one is copied; None takes what there is.
        types: of which it is one.

    Raises:
        NotLowered: it is of another type or rank; the message names both.
    """
    check_type(graph, name, types)
    if name in graph.constants:
        raise NotLowered(f"{name!r} is a constant")
    rank = len(dims_of(graph, name, known))
    found = view or views.get(name) or ("image" if rank == 4 else "rows")
    if found == "image" and rank != 4:
        raise NotLowered(f"{name!r} has {rank} axes; the kernels are two-dimensional: (n, c, h, w)")
    if rank == 0 or (found == "rows" and rank < 2):
        raise NotLowered(f"{name!r} has {rank} axes; the kernels take two and more")
    return found


@dataclass(frozen=True)
class NodeView:
    """A node to be lowered.

    Attributes:
        graph: that it is in.
        index: its place there.
        views: of the values that nodes before it make in kernels.
        known_dims: sizes of these values.
        types: of its activations.
    """

    graph: GraphView
    index: int
    views: Mapping[str, View]
    known_dims: Mapping[str, Dims]
    types: tuple[DType, ...] = (DType.FLOAT32,)

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        return {a.name: onnx.helper.get_attribute_value(a) for a in self.proto.attribute}

    @property
    def proto(self) -> onnx.NodeProto:
        """As the model has it."""
        return self.graph.nodes[self.index]

    @property
    def op(self) -> str:
        """Its operator."""
        return self.proto.op_type

    @property
    def output(self) -> str:
        """The only output that another node or the user reads.

        Raises:
            NotLowered: it has several.
        """
        names = [name for name in self.proto.output if name]
        if len(names) != 1:
            used = [name for name in names[1:] if self.graph.readers.get(name) or name in self.graph.outputs]
            if used:
                raise NotLowered(f"its output {used[0]!r} is read: only the first is made by the kernels")
        return names[0]

    def between(self, what: str) -> str:
        """A name for a value that one step for the node makes for another."""
        base = self.proto.output[0]
        return made_name(base, f"{what}{self.output.removeprefix(base)}")

    def attribute(self, name: str, default: Any = None) -> Any:
        """A value, strings decoded."""
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def input(self, position: int) -> str:
        """Name of an input; empty where it is left out."""
        return self.proto.input[position] if position < len(self.proto.input) else ""

    def constant(self, position: int) -> gs.Constant | None:
        """The constant that an input is; None if it is none."""
        return self.graph.constants.get(self.input(position))

    def why_not_constant(self, position: int) -> str:
        """The reason, for users, why an input that has to be a constant is none."""
        producer = self.graph.producers.get(self.input(position))
        if producer is None:
            return "an input of the model; the kernels take stored constants"
        return f"computed by {self.graph.nodes[producer].op_type}; the kernels take stored constants"

    def is_dequantized(self, position: int) -> bool:
        """Whether an input is made of quantized values."""
        producer = self.graph.producers.get(self.input(position))
        return producer is not None and self.graph.nodes[producer].op_type == "DequantizeLinear"

    def array(self, position: int) -> npt.NDArray[Any] | None:
        """The values of a constant input."""
        return self.graph.values_of(self.input(position))

    def known_values(self, position: int) -> npt.NDArray[Any] | None:
        """The values of an input that is constant, or a number that follows from sizes."""
        name = self.input(position)
        values = self.array(position)
        if values is None and (number := self.graph.number(name)) is not None:
            dims = self.graph.dims(name)
            if dims is not None and self.graph.elem_type(name) == DType.FLOAT32.onnx_type:
                return np.full([1] * len(dims), number, np.float32)
        return values

    def vector(self, position: int) -> tuple[Dim, ...] | None:
        """The elements of an input of small integers that is constant, or follows from sizes; None for another one."""
        return self.graph.vector(self.input(position)) if self.input(position) else None

    def dims(self, position: int) -> Dims:
        """Sizes of an input; see :func:`dims_of`."""
        return dims_of(self.graph, self.input(position), self.known_dims)

    def operand(self, position: int = 0, view: View | None = None) -> View:
        """Check an input that is an activation, and say how kernels read it; see :func:`operand_view`."""
        return operand_view(self.graph, self.input(position), self.views, self.known_dims, view, self.types)

    def floats_view(self, name: str, view: View | None = None) -> View:
        """As :meth:`operand`, of a value that need not be an input of the node."""
        return operand_view(self.graph, name, self.views, self.known_dims, view)

    def bytes_view(self, name: str, view: View | None = None) -> View:
        """As :meth:`operand`, of a quantized tensor."""
        return operand_view(self.graph, name, self.views, self.known_dims, view, QUANTIZED)

    def check_activation(self, name: str) -> None:
        """Check the type of an activation; see :func:`check_type`."""
        check_type(self.graph, name, self.types)

    def axes(self) -> list[int]:
        """Axes that are an attribute or the second input; empty where neither is given.

        Raises:
            NotLowered: the input is no constant.
        """
        listed = self.graph.folded_values(self.input(1)) if self.input(1) else None
        if self.input(1) and listed is None:
            raise NotLowered(f"its axes {self.input(1)!r} are {self.why_not_constant(1)}")
        return list(self.attribute("axes") or ()) if listed is None else [int(axis) for axis in listed.reshape(-1)]

    def integers(self, position: int, attribute: str) -> list[int]:
        """Integers that are an input, known before a run, or an attribute; none where neither is given.

        Raises:
            NotLowered: the input is not known.
        """
        if not self.input(position):
            return [int(value) for value in self.attribute(attribute) or ()]
        found = self.graph.vector(self.input(position))
        known = [value for value in found or () if isinstance(value, int)]
        if found is None or len(known) != len(found):
            raise NotLowered(f"its {attribute} are {self.why_not_constant(position)}")
        return known

    def step(self, spec: Spec, view: View, result_view: View | None = None, operands: tuple[int, ...] = (0,)) -> Step:
        """The step that does ``spec`` for this node.

        Args:
            spec: what is done.
            view: of the operands.
            result_view: of the result; None is that of the operands.
            operands: positions of the inputs that are activations.
        """
        inputs = tuple(self.input(position) for position in operands)
        return Step(spec, inputs, self.output, view, result_view or view, (self.index,))

    def float_vector(self, position: int, size: int, what: str) -> npt.NDArray[np.float32]:
        """A constant of ``size`` finite values.

        Raises:
            NotLowered: it is none; the message names it and says what it is.
        """
        values = self.array(position)
        if values is None:
            raise NotLowered(f"{what} {self.input(position)!r} is {self.why_not_constant(position)}")
        if values.dtype != np.float32 or values.size != size:
            raise NotLowered(
                f"{what} {self.input(position)!r} is {values.dtype} of shape {list(values.shape)}; the kernels take "
                f"float32, one for each of {size:,} channels"
            )
        if not np.isfinite(values).all():
            raise NotLowered(f"{what} {self.input(position)!r} holds NaN or infinity")
        # A copy: a view may hold the whole file.
        return np.array(values.reshape(-1), np.float32)
