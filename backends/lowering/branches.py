"""Sums of branches of a layer, plain and weighed by attention: SKNet (Li et al., 2019), ResNeSt (Zhang et al., 2020).

The branches are images of as many channels. Exporters stack them along an axis of their own, [n, r, c, h, w], and sum
over it. The weights of two branches are a softmax of two numbers for each channel, of which each is the sigmoid of its
difference from the other one: so nothing here needs five axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import ChannelCombine, Channels, Elementwise, Range, Sliced, Spec

__all__ = ["BranchMatch", "find_branches"]

_MOST_CHANNELS = 1 << 16
# Softmax is over one axis from there on.
_OPSET_OF_SOFTMAX = 13
_MOVING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Branch:
    """Channels of an image, from the first on; all of them where there is no ``total``."""

    image: str
    first: int = 0
    count: int = 0
    total: int = 0


@dataclass(frozen=True)
class BranchMatch:
    """Nodes that are a sum of branches.

    Attributes:
        nodes: their indices; the last one makes the result.
        branches: what is summed.
        logits: name of the numbers whose softmax weighs the two branches; empty where they are not weighed.
        places: channels of the logits for each branch.
        total: how many channels the logits have.
    """

    nodes: tuple[int, ...]
    branches: tuple[_Branch, ...]
    logits: str = ""
    places: tuple[tuple[int, ...], ...] = ()
    total: int = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of what is read, all of it images."""
        return tuple(dict.fromkeys(name for name in (*(b.image for b in self.branches), self.logits) if name))

    def steps(self, output: str) -> tuple[Step, ...]:
        """What kernels do for it; values between the steps are named after the result, ``output``."""
        made: list[Step] = []
        nodes = (self.nodes[-1], *self.nodes[:-1])

        def step(spec: Spec, *inputs: str) -> str:
            name = made_name(output, f"step {len(made)}")
            made.append(Step(spec, inputs, name, "image", "image", nodes))
            return name

        images = [
            step(Sliced((Range(1, b.first, b.first + b.count, of=b.total),)), b.image) if b.total else b.image
            for b in self.branches
        ]
        if self.logits:
            logits = [step(_taken(places, self.total), self.logits) for places in self.places]
            difference = Elementwise("subtract", ("sigmoid", 0.0, 0.0))
            weights = [step(difference, *pair) for pair in (logits, logits[::-1])]
            images = [step(ChannelCombine("multiply"), *pair) for pair in zip(images, weights, strict=True)]
        summed = images[0]
        for image in images[1:]:
            summed = step(Elementwise("add"), summed, image)
        made[-1] = replace(made[-1], output=output)
        return tuple(made)


def _taken(places: tuple[int, ...], total: int) -> Spec:
    if places == tuple(range(places[0], places[0] + len(places))):
        return Sliced((Range(1, places[0], places[0] + len(places), of=total),))
    return Channels(places, 1)


def find_branches(graph: GraphView) -> list[BranchMatch]:
    """Every sum over branches that are images, by its ReduceSum."""
    found = (_match(graph, index) for index, node in enumerate(graph.nodes) if is_standard_op(node, "ReduceSum"))
    return [match for match in found if match is not None]


def _match(graph: GraphView, index: int) -> BranchMatch | None:
    node = graph.nodes[index]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    axes = graph.values_of(node.input[1]) if len(node.input) > 1 else attributes.get("axes")
    if axes is None or list(axes) != [1] or attributes.get("keepdims", 1):
        return None
    branches = _branches(graph, node.input[0])
    if branches:
        return BranchMatch((index,), branches)
    product = graph.producers.get(node.input[0])
    if product is None or not is_standard_op(graph.nodes[product], "Mul"):
        return None
    if graph.only_reader(node.input[0]) != index:
        return None
    for stack, weights in (graph.nodes[product].input, graph.nodes[product].input[::-1]):
        branches = _branches(graph, stack)
        if len(branches) == 2:
            return _weighed(graph, (product, index), branches, weights)
    return None


def _branches(graph: GraphView, stack: str) -> tuple[_Branch, ...]:
    """The images that are stacked to [n, r, c, h, w]; none if it is something else."""
    dims = graph.dims(stack)
    made = graph.producers.get(stack)
    if made is None or dims is None or len(dims) != 5 or not isinstance(dims[1], int) or dims[1] < 2:
        return ()
    node, channels = graph.nodes[made], dims[2]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if is_standard_op(node, "Reshape"):
        image = graph.dims(node.input[0])
        if image is None or len(image) != 4 or not isinstance(channels, int) or channels > _MOST_CHANNELS:
            return ()
        total = dims[1] * channels
        if image != (dims[0], total, *dims[3:]):
            return ()
        return tuple(_Branch(node.input[0], i * channels, channels, total) for i in range(dims[1]))
    if not is_standard_op(node, "Concat") or attributes.get("axis") not in (1, -4):
        return ()
    branches = []
    for name in node.input:
        producer = graph.producers.get(name)
        if producer is None or not is_standard_op(graph.nodes[producer], "Unsqueeze"):
            return ()
        source = graph.nodes[producer].input[0]
        if graph.dims(source) != (dims[0], *dims[2:]) or graph.dims(name) != (dims[0], 1, *dims[2:]):
            return ()
        branches.append(_Branch(source))
    return tuple(branches) if len(branches) == dims[1] else ()


def _weighed(
    graph: GraphView, nodes: tuple[int, ...], branches: tuple[_Branch, ...], weights: str
) -> BranchMatch | None:
    """A sum of two branches, if the weights are a softmax over them for each channel."""
    dims = graph.dims(weights)
    behind, softmax = _moves(graph, weights, nodes[0])
    if dims is None or softmax is None or graph.opset < _OPSET_OF_SOFTMAX:
        return None
    node = graph.nodes[softmax]
    if not is_standard_op(node, "Softmax") or dims[1] != 2 or dims[3:] != (1, 1):
        return None
    before, _ = _moves(graph, node.input[0], softmax)
    logits = graph.nodes[before[-1]].input[0] if before else node.input[0]
    sizes = graph.dims(logits)
    if sizes is None or len(sizes) != 4 or sizes[2:] != (1, 1) or not isinstance(sizes[1], int):
        return None
    if sizes[1] > _MOST_CHANNELS or sizes[0] != dims[0] or sizes[1] != 2 * (dims[2] if isinstance(dims[2], int) else 0):
        return None
    entering = _moved(graph, np.arange(sizes[1]).reshape(1, -1, 1, 1), before[::-1])
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    if entering is None or entering.shape[axis] != 2:
        return None
    leaving = _moved(graph, entering, behind[::-1])
    if leaving is None or leaving.shape[1:] != dims[1:]:
        return None
    other = np.empty(sizes[1], np.int64)
    first, second = np.moveaxis(entering, axis, -1).reshape(-1, 2).T
    other[first], other[second] = second, first
    places = leaving.reshape(2, -1)
    if not np.array_equal(other[places[0]], places[1]):
        return None
    used = (*sorted((*before, softmax, *behind)), *nodes)
    return BranchMatch(used, branches, logits, tuple(tuple(map(int, row)) for row in places), sizes[1])


def _moves(graph: GraphView, name: str, reader: int) -> tuple[list[int], int | None]:
    """Nodes before ``reader`` that only move values, the latest first, and the one before them."""
    found: list[int] = []
    while True:
        made = graph.producers.get(name)
        if made is None or graph.only_reader(name) != reader:
            return found, None
        if not is_standard_op(graph.nodes[made], *_MOVING):
            return found, made
        found.append(made)
        name, reader = graph.nodes[made].input[0], made


def _moved(graph: GraphView, places: Places, nodes: list[int]) -> Places | None:
    """Places of one image after nodes that move them; None where images would be mixed, or sizes are unknown."""
    for index in nodes:
        node = graph.nodes[index]
        if is_standard_op(node, "Transpose"):
            order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
            if len(order) != places.ndim or order[0] != 0:
                return None
            places = places.transpose(order)
            continue
        dims = graph.dims(node.output[0])
        sizes = [size for size in (dims or ())[1:] if isinstance(size, int)]
        if dims is None or len(sizes) != len(dims) - 1 or int(np.prod(sizes)) != places.size:
            return None
        places = places.reshape(1, *sizes)
    return places
