"""Images of one axis, [n, c, l], as images of height one: Conv1d, and what lies between such layers.

The rules for images see such a node as if its operands were [n, c, 1, l]. Each node makes images of what it reads, and
the other way round of what it gives; of what one such node passes to another, fusion leaves both out.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.specs import Reshaped, result_dims

__all__ = ["APART", "TOGETHER", "FlatImages", "is_flat", "steps_on_images"]

_IMAGE = " as an image"
# Axes of an image of height one, from those of [n, c, l], and the other way round.
APART: tuple[Any, ...] = ((0, 1), (1, 2), 1, (2, 3))
TOGETHER: tuple[Any, ...] = ((0, 1), (1, 2), (3, 4))
# Attributes of windows, which have a value for each axis, and what they are along an axis of one position.
_WINDOWS = {"kernel_shape": 1, "strides": 1, "dilations": 1}
# What needs images, and what can be done to rows as well, and is done to images where operands are some already.
_OF_IMAGES = frozenset({"AveragePool", "BatchNormalization", "Conv", "MaxPool"})
_OF_EITHER = frozenset({
    "Abs", "Add", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "Relu", "Selu",
    "Sigmoid", "Sub", "Tanh",
})  # fmt: skip


@dataclass(frozen=True)
class FlatImages(NodeView):
    """A node on [n, c, l], as the rules for images see it."""

    def input(self, position: int) -> str:
        """Name of an input, as an image if it is an activation."""
        name = super().input(position)
        return _image_for(self, name) if position in _activations(self) else name

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        found = {**NodeView._attributes.func(self)}  # type: ignore[attr-defined]
        for name, along_one in _WINDOWS.items():
            if name in found:
                found[name] = [along_one, *found[name]]
        if "pads" in found:
            before, after = found["pads"]
            found["pads"] = [0, before, 0, after]
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

    def check_activation(self, name: str) -> None:
        """Check the type of a value."""
        super().check_activation(next(n for n in self.proto.input if name in (n, _image_for(self, n))))


def _activations(node: NodeView) -> tuple[int, ...]:
    """Positions of inputs that are no constants: of layers with weights, the first one alone."""
    given = range(1 if node.op in _OF_IMAGES else len(node.proto.input))
    return tuple(i for i in given if node.proto.input[i] and node.proto.input[i] not in node.graph.constants)


def _image_for(node: NodeView, name: str) -> str:
    """The name of an operand's image; each node has its own, so that any of them may be left to onnxruntime."""
    return f"{name}{_IMAGE} for {node.proto.output[0]}"


def is_flat(node: NodeView) -> bool:
    """Whether a node is on [n, c, l] and has to be seen as one on images, or can be, since its operands are."""
    if node.op not in _OF_IMAGES | _OF_EITHER:
        return False
    operands = _activations(node)
    try:
        flat = bool(operands) and all(len(node.dims(i)) == 3 for i in operands)
    except NotLowered:
        return False
    # Values that such nodes make have an image.
    made = all(f"{node.proto.input[i]}{_IMAGE}" in node.views for i in operands)
    return flat and (node.op in _OF_IMAGES or made)


def steps_on_images(node: NodeView, rule: Any) -> tuple[Step, ...]:
    """The steps of a rule for images, with those that make images of operands and the other way round.

    Raises:
        NotLowered: see the rule.
    """
    views: dict[str, View] = {}
    dims = {}
    before: list[Step] = []
    for position in _activations(node):
        name = node.proto.input[position]
        image = _image_for(node, name)
        if image in views:
            continue
        node.check_activation(name)
        spec = Reshaped(APART)
        views[image], dims[image] = "image", result_dims(spec, node.dims(position))
        before.append(Step(spec, (name,), image, node.views.get(name, "rows"), "image", (node.index,)))
    seen = FlatImages(node.graph, node.index, ChainMap(views, dict(node.views)), ChainMap(dims, dict(node.known_dims)))
    made = rule(seen)
    steps = made if isinstance(made, tuple) else (made,)
    after = [
        replace(step, spec=Reshaped(TOGETHER), inputs=(step.output,), output=step.output.removesuffix(_IMAGE),
                view="image", result_view="rows", mask="")
        for step in steps
    ]  # fmt: skip
    return (*before, *steps, *after)
