"""Writes a graph in which volumes are images: nodes, constants, and the forms of volumes that they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes.forms import Form, Place, Size, Sizes, Volume
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["VolumeWriter"]

_FRAMES_FIRST = {4: (0, 2, 1, 3), 5: (0, 2, 1, 3, 4)}


class VolumeWriter:
    """What rules for volumes write with.

    Attributes:
        graph: that is rewritten.
    """

    def __init__(self, graph: GraphView) -> None:
        self.graph = graph
        self._writer = GraphWriter(graph)
        # Indices of nodes that only move values, and that the model does not have.
        self._moves: set[int] = set()
        self._volumes: dict[str, Volume] = {}
        self._sizes: dict[Place, str] = {}
        self._targets: dict[tuple[int, ...], str] = {}

    def written(self) -> GraphView:
        """The graph of what was written, which knows what moves values alone."""
        view = self._writer.written()
        view.moves = frozenset(self._moves)
        return view

    @property
    def last(self) -> onnx.NodeProto:
        """The node that was written last."""
        return self._writer.last

    def volume(self, name: str) -> Volume | None:
        """A float32 value of five axes that nodes make, or that enters the graph; None for any other value."""
        found = self._volumes.get(name)
        if found is not None or name in self.graph.constants or name in self.graph.derived:
            return found
        dims = self.graph.dims(name)
        if dims is None or len(dims) != 5 or self.graph.elem_type(name) != onnx.TensorProto.FLOAT or 0 in dims:
            return None
        channels, *others = dims[1:]
        if not isinstance(channels, int):
            return None
        depth, height, width = (size if isinstance(size, int) else Place(name, 2 + i) for i, size in enumerate(others))
        found = Volume(name, (channels, depth, height, width), {Form.VOLUME: name}, Form.VOLUME)
        self._volumes[name] = found
        return found

    def image(self, name: str) -> Volume:
        """A volume that the kernels can run as images.

        Raises:
            NotLowered: the value is none.
        """
        if not self.is_image(name):
            raise NotLowered(f"{name!r} is not a volume that the kernels can run as images")
        return self._volumes[name]

    def is_image(self, name: str) -> bool:
        """Whether a value is a volume that the kernels can run as images."""
        return name in self._volumes and self._volumes[name].native is not Form.VOLUME

    def made(self, node: NodeView, form: Form, tensor: str, sizes: Sizes, output: str = "") -> None:
        """A node's result, or another ``output``, is held by ``tensor``."""
        name = output or node.output
        self._volumes[name] = Volume(name, sizes, {form: tensor}, form)

    def sizes_of(self, node: NodeView, form: Form, tensor: str, before: Volume) -> Sizes:
        """Sizes of a node's result, which ``tensor`` holds; what the model does not say is read there, or kept.

        Args:
            node: that makes it.
            form: of the tensor; in a stack, height and width are those of the operand.
            tensor: name of it.
            before: the operand.
        """
        dims = self.graph.dims(node.output) or (None,) * 5
        axes = {Form.VOLUME: (2, 3, 4), Form.FRAMES: (None, 2, 3), Form.STACK: (2, None, None)}[form]
        depth, height, width = (
            size if isinstance(size, int) else old if axis is None else Place(tensor, axis)
            for size, old, axis in zip(dims[2:], before.sizes[1:], axes, strict=True)
        )
        channels = dims[1]
        return (channels if isinstance(channels, int) else before.sizes[0], depth, height, width)

    def within_frames(self, node: NodeView, volume: Volume, tensor: str) -> Volume:
        """What a node has made within the frames of ``volume``, held by ``tensor``, before it goes along frames."""
        channels, _, height, width = self.sizes_of(node, Form.FRAMES, tensor, volume)
        sizes = (channels, volume.sizes[1], height, width)
        return Volume(f"{node.output} (within frames)", sizes, {Form.FRAMES: tensor}, Form.FRAMES)

    def size_in(self, tensor: str, axis: int, known: object) -> Size:
        """A size that may be ``known``, and is that of an axis of ``tensor``."""
        return known if isinstance(known, int) else Place(tensor, axis)

    def form(self, volume: Volume, form: Form) -> str:
        """The tensor that holds ``volume`` in a form; written when it is first asked for."""
        if form not in volume.forms:
            volume.forms[form] = self._converted(volume, form)
        return volume.forms[form]

    def plain(self, name: str) -> None:
        """Have a value as the model has it, for nodes that read it so."""
        if name in self._volumes:
            self.form(self._volumes[name], Form.VOLUME)

    def _converted(self, volume: Volume, form: Form) -> str:
        channels, depth, height, width = volume.sizes
        forms, name = volume.forms, volume.name
        if form is Form.FRAMES:
            source = forms.get(Form.VOLUME) or forms[Form.STACK]
            rank = 5 if Form.VOLUME in forms else 4
            turned = self.move("Transpose", [source], f"{name} (frames first)", perm=_FRAMES_FIRST[rank])
            return self.reshape(turned, (None, channels, height, width), f"{name} (frames)")
        if form is Form.STACK and Form.VOLUME in forms:
            pixels = height * width if isinstance(height, int) and isinstance(width, int) else -1
            return self.move("Reshape", [forms[Form.VOLUME], self.target((0, 0, 0, pixels))], f"{name} (stack)")
        if form is Form.STACK:
            apart = self.reshape(forms[Form.FRAMES], (None, depth, channels, (height, width)), f"{name} (frames apart)")
            return self.move("Transpose", [apart], f"{name} (stack)", perm=_FRAMES_FIRST[4])
        if Form.STACK in forms:
            sizes = (None, channels, depth, height, width)
            return self.move("Reshape", [forms[Form.STACK], self.target_of(sizes)], output=name)
        apart = self.reshape(forms[Form.FRAMES], (None, depth, channels, height, width), f"{name} (frames apart)")
        return self.move("Transpose", [apart], output=name, perm=_FRAMES_FIRST[5])

    def reshape(self, tensor: str, sizes: Sequence[Size | tuple[Size, ...] | None], name: str) -> str:
        """``tensor`` under other sizes: products are of several axes, and None is what others leave."""
        return self.move("Reshape", [tensor, self.target_of(sizes)], name)

    def target_of(self, sizes: Sequence[Size | tuple[Size, ...] | None]) -> str:
        """The name of a tensor of ``sizes``, as :meth:`reshape` takes them."""
        listed = [(size,) if isinstance(size, (int, Place)) else size for size in sizes]
        numbers = [
            -1 if factors is None else int(np.prod([size for size in factors if isinstance(size, int)], dtype=np.int64))
            for factors in listed
        ]
        open_sizes = [[size for size in factors or () if isinstance(size, Place)] for factors in listed]
        if not any(open_sizes):
            return self.target(numbers)
        parts = []
        for number, places in zip(numbers, open_sizes, strict=True):
            factors = [self.target((number,))] if number != 1 or not places else []
            part, *others = [*factors, *map(self._size, places)]
            for other in others:
                part = self.move("Mul", [part, other], "size")
            parts.append(part)
        return self.move("Concat", parts, "sizes", axis=0)

    def target(self, values: Sequence[int]) -> str:
        """The name of a constant of sizes."""
        key = tuple(values)
        if key not in self._targets:
            self._targets[key] = self.constant(np.array(key, np.int64), f"sizes {list(key)}")
        return self._targets[key]

    def _size(self, place: Place) -> str:
        """A tensor of one element."""
        if place not in self._sizes:
            shape = self.move("Shape", [place.tensor], f"{place.tensor} (sizes)")
            axis = self.target((place.axis,))
            self._sizes[place] = self.move("Gather", [shape, axis], f"{place.tensor} (size {place.axis})", axis=0)
        return self._sizes[place]

    def constant(self, values: npt.NDArray[Any] | SparseWeight, name: str) -> str:
        """A new constant, and its name."""
        return self._writer.constant(values, name)

    def move(self, op: str, inputs: Sequence[str], name: str = "", output: str = "", **attributes: Any) -> str:
        """Write a node that the model does not have and that moves values; what it makes."""
        self._moves.add(self._writer.count)
        return self.add(op, inputs, name, output, **attributes)

    def add(self, op: str, inputs: Sequence[str], name: str = "", output: str = "", **attributes: Any) -> str:
        """Write a node that does a part of what one of the model does; what it makes.

        Args:
            op: operator of the standard domain.
            inputs: names.
            name: of the output, or the like of it.
            output: its very name, where other nodes know it.
            attributes: of the node.
        """
        made = output or self._writer.unique(name)
        self._writer.add(op, inputs, made, **attributes)
        return made

    def write(
        self, node: NodeView, op: str, inputs: Sequence[str], form: Form, output: str = "", **attributes: Any
    ) -> str:
        """Write the node in the place of one of the model; what it makes, which may have to be ``output``."""
        made = output or self._writer.unique(f"{node.output} ({form.name.lower()})")
        self._writer.write(node.index, onnx.helper.make_node(op, inputs, [made], name=node.proto.name, **attributes))
        return made

    def write_like(
        self, node: NodeView, inputs: Sequence[str], form: Form, is_part: bool = False, **attributes: Any
    ) -> str:
        """Write a copy of a node with other inputs and some other attributes; what it makes first.

        Args:
            node: of the model.
            inputs: of the copy.
            form: of its first output.
            is_part: whether another copy takes the place of the node.
            attributes: that differ.
        """
        copy = onnx.NodeProto()
        copy.CopyFrom(node.proto)
        del copy.input[:]
        copy.input.extend(inputs)
        for name, value in attributes.items():
            for found in [attribute for attribute in copy.attribute if attribute.name == name]:
                copy.attribute.remove(found)
            copy.attribute.append(onnx.helper.make_attribute(name, value))
        for position, name in enumerate(copy.output):
            copy.output[position] = self._writer.unique(f"{name} ({form.name.lower()})") if name else ""
        if is_part:
            copy.name = f"{copy.output[0]}: {node.op}"
            self._writer.append(copy)
        else:
            self._writer.write(node.index, copy)
        return str(copy.output[0])

    def copy(self, index: int) -> None:
        """Write a node of the model as it is."""
        self._writer.write(index, self.graph.nodes[index])
