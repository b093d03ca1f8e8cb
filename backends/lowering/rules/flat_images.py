"""Images of one axis, [n, c, l], as images of height one: Conv1d, and what lies between such layers.

The rules for images see such a node as if its operands were [n, c, 1, l]. Each node makes images of what it reads, and
the other way round of what it gives; of what one such node passes to another, fusion leaves both out. Where a layer's
operand is dequantized, it reads the bytes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import is_standard_op
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules.step import QUANTIZED, NodeView, NotLowered, Step, View, check_type, dims_of
from sift_onnx.backends.lowering.specs import Joined, Reshaped, Sliced, result_dims

__all__ = [
    "APART",
    "TOGETHER",
    "FlatImages",
    "cut_channels",
    "has_image",
    "is_flat",
    "joined_channels",
    "needs_images",
    "on_images",
    "steps_on_images",
]

_IMAGE = made_name("", "as an image")
# Axes of an image of height one, from those of [n, c, l], and the other way round.
APART: tuple[Any, ...] = ((0, 1), (1, 2), 1, (2, 3))
TOGETHER: tuple[Any, ...] = ((0, 1), (1, 2), (3, 4))
# The axes of [n, c, l] in its image, counted from either end.
_AXES = {0: 0, 1: 1, 2: 3, -1: -1, -2: -3, -3: -4}
# Attributes of windows, which have a value for each axis, and what they are along an axis of one position.
_WINDOWS = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0}
_RESIZES = ("Resize", "Upsample")
# What needs images, and what can be done to rows as well, and is done to images where operands are some already.
_OF_IMAGES = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GroupNormalization", "InstanceNormalization",
    "MaxPool", "QLinearAveragePool", "QLinearConv", "QLinearGlobalAveragePool", "Resize", "Upsample",
})  # fmt: skip
_OF_EITHER = frozenset({
    "Abs", "Add", "Clip", "Cos", "DequantizeLinear", "Div", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "QLinearAdd", "QLinearLeakyRelu",
    "QLinearMul", "QLinearSigmoid", "QuantizeLinear", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin", "Softplus",
    "Sqrt", "Sub", "Tanh",
})  # fmt: skip


@dataclass(frozen=True)
class FlatImages(NodeView):
    """A node on [n, c, l], as the rules for images see it.

    Attributes:
        read: what it reads in place of its only activation; empty where that is its input.
    """

    read: str = ""

    def input(self, position: int) -> str:
        """Name of an input, as an image if it is an activation."""
        name = super().input(position)
        return _image_for(self, self.read or name) if position in _activations(self) else name

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        found = {**NodeView._attributes.func(self)}  # type: ignore[attr-defined]
        for name, along_one in _WINDOWS.items():
            if name in found:
                found[name] = [along_one, *found[name]]
        if "pads" in found:
            before, after = found["pads"]
            found["pads"] = [0, before, 0, after]
        if self.op in _RESIZES:
            if "scales" in found:
                found["scales"] = _with_height(found["scales"])
            if "axes" in found:
                found["axes"] = [_AXES[axis] for axis in found["axes"]]
        return found

    def array(self, position: int) -> npt.NDArray[Any] | None:
        """The values of a constant input; what is broadcast has the axis of an image that its operand has not."""
        values = super().array(position)
        if values is not None and self.op in _RESIZES and not self.attribute("axes"):
            return np.array(_with_height(values.reshape(-1).tolist()), values.dtype)
        is_broadcast = values is not None and values.ndim > 1 and self.op in _OF_EITHER
        return np.expand_dims(values, -2) if values is not None and is_broadcast else values

    def vector(self, position: int) -> tuple[Dim, ...] | None:
        """The elements of an input of small integers, which are sizes of a Resize."""
        found = super().vector(position)
        return found if found is None or self.attribute("axes") else _with_height(found)

    def integers(self, position: int, attribute: str) -> list[int]:
        """Integers that are an input or an attribute; see :meth:`NodeView.integers`."""
        found = super().integers(position, attribute)
        if attribute == "axes":
            return [_AXES[axis] for axis in found]
        if self.op == "Pad" and attribute == "pads" and not self.input(3):
            return [*found[:2], 0, *found[2:5], 0, *found[5:]]
        return found

    @property
    def output(self) -> str:
        """As an image."""
        return f"{super().output}{_IMAGE}"

    def operand(self, position: int = 0, view: View | None = None) -> View:
        """Check an input that is an activation."""
        if view not in (None, "image"):
            raise NotLowered(f"{super().input(position)!r} is an image of one axis")
        self.check_activation(self.input(position))
        return "image"

    def bytes_view(self, name: str, view: View | None = None) -> View:
        """As :meth:`operand`, of a quantized tensor."""
        self.check_activation(name)
        return self.operand(0, view)

    def check_activation(self, name: str) -> None:
        """Check the type of a value."""
        own = next(n for n in (self.read, *self.proto.input) if name in (n, _image_for(self, n)))
        check_type(self.graph, own, _types_of(self, own))


def _activations(node: NodeView) -> tuple[int, ...]:
    """Positions of inputs that are no constants: of layers with weights, the first one alone."""
    given = range(1 if node.op in _OF_IMAGES or node.op == "Pad" else len(node.proto.input))
    return tuple(i for i in given if node.proto.input[i] and node.proto.input[i] not in node.graph.constants)


def _with_height(values: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes or factors of [n, c, l] as those of its image."""
    return (*values[:2], 1, *values[2:]) if len(values) == 3 else tuple(values)


def _types_of(node: NodeView, name: str) -> tuple[DType, ...]:
    """What a value that a node reads may be."""
    is_quantized = node.op == "DequantizeLinear" or node.op.startswith("QLinear") or name not in node.proto.input
    return QUANTIZED if is_quantized else node.types


def _image_for(node: NodeView, name: str) -> str:
    """The name of an operand's image; each node has its own, so that any of them may be left to onnxruntime."""
    return f"{name}{_IMAGE} for {node.proto.output[0]}"


def has_image(name: str, views: Mapping[str, View]) -> bool:
    """Whether a value on [n, c, l] is made of an image: values that such nodes make are."""
    return f"{name}{_IMAGE}" in views


def is_flat(node: NodeView) -> bool:
    """Whether a node is on [n, c, l] and has to be seen as one on images, or can be, since what is around it is."""
    operands = _activations(node)
    try:
        if not operands or any(len(node.dims(i)) != 3 for i in operands):
            return False
    except NotLowered:
        return False
    made = [has_image(node.proto.input[i], node.views) for i in operands]
    if node.op == "Pad" or _joins_channels(node):
        # Of tokens it is left alone: there the axis is that of tokens. Only images are padded by what they have.
        is_copy = node.op == "Pad" and node.attribute("mode", "constant") != "constant"
        return any(made) or is_copy or _is_read_by_images(node)
    if node.op in _OF_IMAGES:
        return True
    # What comes from outside, such as a mask, may be read as either.
    outside = [node.proto.input[i] not in node.views for i in operands]
    return node.op in _OF_EITHER and any(made) and all(map(or_, made, outside))


def _joins_channels(node: NodeView) -> bool:
    is_join = node.op == "Concat" and int(node.attribute("axis", 0)) in (1, -2)
    return is_join and len(_activations(node)) == len(node.proto.input)


def _is_read_by_images(node: NodeView) -> bool:
    readers = node.graph.readers.get(node.proto.output[0], ())
    return any(is_standard_op(node.graph.nodes[index], *_OF_IMAGES) for index in readers)


def needs_images(node: NodeView) -> bool:
    """Whether a node that is one on images has no rule for rows."""
    return node.op not in _OF_EITHER


def cut_channels(node: NodeView, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Steps of Slice or Split: those that cut an image's channels with what makes images, others as they are."""
    name, dims = node.proto.input[0], node.dims(0)
    flat: list[Step] = []
    for step in steps:
        spec = step.spec
        cuts = isinstance(spec, Sliced) and all(part.axis == 1 for part in spec.ranges)
        is_cut = cuts and len(dims) == 3 and step.inputs == (name,) and has_image(name, node.views)
        whole = replace(step, view="image", result_view="image")
        flat += on_images(whole, dims, node.views) if is_cut else [step]
    return tuple(flat)


def joined_channels(node: NodeView) -> Step:
    """Concat of images along their channels."""
    names = [node.input(position) for position in range(len(node.proto.input))]
    channels = [count for position in range(len(names)) if isinstance(count := node.dims(position)[1], int) and count]
    if len(channels) < len(names):
        raise NotLowered("it joins along an axis of unknown size")
    starts = list(accumulate(channels, initial=0))
    spec = Joined(1, tuple(starts[:-1]), starts[-1], ())
    return Step(spec, tuple(names), node.output, "image", "image", (node.index,))


def steps_on_images(node: NodeView, rule: Any, read: str = "") -> tuple[Step, ...]:
    """The steps of a rule for images, with those that make images of operands and the other way round.

    Args:
        node: on [n, c, l].
        rule: for images.
        read: quantized values that the rule reads in place of the only activation; empty if there are none.

    Raises:
        NotLowered: see the rule.
    """
    views: dict[str, View] = {}
    dims = {}
    before: list[Step] = []
    for position in _activations(node):
        name = read or node.proto.input[position]
        image = _image_for(node, name)
        if image in views:
            continue
        types = _types_of(node, name)
        check_type(node.graph, name, types)
        dtype = DType.UINT8 if types == QUANTIZED else DType.FLOAT32
        spec = Reshaped(APART)
        views[image], dims[image] = "image", result_dims(spec, dims_of(node.graph, name, node.known_dims))
        own = node.views.get(name, "rows")
        before.append(Step(spec, (name,), image, own, "image", (node.index,), dtype=dtype, result_dtype=dtype))
    known = ChainMap(dims, dict(node.known_dims))
    seen = FlatImages(node.graph, node.index, ChainMap(views, dict(node.views)), known, read=read)
    made = rule(seen)
    steps = made if isinstance(made, tuple) else (made,)
    if any(name in node.graph.constants for step in steps for name in step.inputs):
        raise NotLowered("a stored tensor of three axes is no image")
    return (*before, *steps, *map(_back, steps))


def on_images(step: Step, dims: Dims, views: Mapping[str, View]) -> tuple[Step, ...]:
    """A step for images on an operand of these ``dims``; of three axes, with the steps around it that make images.

    Args:
        step: with one operand.
        dims: of the operand.
        views: of values that steps before it make.
    """
    if len(dims) == 4:
        return (step,)
    (name,) = step.inputs
    image = f"{name}{_IMAGE} for {step.output}"
    own = views.get(name, "rows")
    before = Step(Reshaped(APART), (name,), image, own, "image", step.nodes, dtype=step.dtype, result_dtype=step.dtype)
    on_image = replace(step, inputs=(image,), output=f"{step.output}{_IMAGE}")
    return before, on_image, _back(on_image)


def _back(step: Step) -> Step:
    """From the image that a step makes to what it stands for."""
    name = step.output.removesuffix(_IMAGE)
    return replace(
        step, spec=Reshaped(TOGETHER), inputs=(step.output,), output=name, view="image", result_view="rows", mask="",
        dtype=step.result_dtype,
    )  # fmt: skip
