"""Carrying a plan of new sizes out on a graph: constants, attributes, recorded shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.sizes import Size
from sift_onnx.analysis.axes.solution import Solution
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.graphs.constants import array_of, constant_values, replace_values, share_values
from sift_onnx.graphs.unread_nodes import drop_unread
from sift_onnx.model import Model
from sift_onnx.weights.masked_values import WeightSource
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["apply_sizes", "resized"]

# Gives the new values of a constant: called with its name, the constant, and its new shape.
Redraw = Callable[[str, gs.Constant, tuple[int, ...]], "npt.NDArray[Any] | SparseWeight | WeightSource"]


def resized(analysis: AxisAnalysis, solution: Solution) -> dict[str, tuple[int, ...]]:
    """New shapes of the tensors whose shape changes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, axes in analysis.axes.items():
        if axes is None:
            continue
        new = tuple(solution.value(axis.size) for axis in axes)
        if new != tuple(analysis.system.original(axis.size) for axis in axes):
            shapes[name] = new
    return shapes


def apply_sizes(model: Model, analysis: AxisAnalysis, solution: Solution, redraw: Redraw) -> None:
    """Rewrite ``model``, which ``analysis`` was made of, to the sizes of ``solution``.

    Args:
        model: changed in place.
        analysis: of this model.
        solution: the new sizes.
        redraw: gives the new values of a constant that changes its shape.
    """
    shapes = resized(analysis, solution)
    tensors = model.graph.tensors()
    for name, shape in shapes.items():
        if constant_values(tensors[name]) is not None:
            constant = _as_initializer(tensors[name])
            replace_values(constant, redraw(name, constant, shape))
    _edit_constants(analysis, solution, {id(t) for t in model.graph.outputs})
    for (index, attribute), size in analysis.attribute_edits.items():
        stated = solution.value(size) if isinstance(size, Size) else [solution.value(part) for part in size]
        analysis.order[index].attrs[attribute] = stated
    _edit_scales(analysis, solution)
    for name, shape in shapes.items():
        tensor = tensors[name]
        if isinstance(tensor, gs.Variable) and tensor.shape is not None:
            old = [analysis.system.original(axis.size) for axis in analysis.axes[name] or ()]
            tensor.shape = [_recorded(*sizes) for sizes in zip(tensor.shape, old, shape, strict=True)]
    # Constant nodes whose readers got a constant of their own.
    drop_unread(model.graph, {"Constant"})


def _recorded(declared: int | str | None, before: int, now: int) -> int | str | None:
    """What the file says of an axis: a symbol stays where nothing changes, and says nothing any more where it does.

    ``8 * batch`` does not become the number that it is at the analysed batch: onnxruntime would take it at its word.
    """
    if before == now:
        return declared
    return now if isinstance(declared, int) else None


def _as_initializer(tensor: gs.Tensor) -> gs.Constant:
    """The tensor as an initializer; a Constant node that made it is left without outputs."""
    if isinstance(tensor, gs.Constant):
        return tensor
    constant = constant_values(tensor)
    assert constant is not None
    tensor.inputs.clear()
    return share_values(tensor, constant)


def _edit_constants(analysis: AxisAnalysis, solution: Solution, kept: set[int]) -> None:
    """Rewrite shape constants; one that its readers want different things of, or that is ``kept``, is copied."""
    wanted: dict[str, dict[tuple[int, int], npt.NDArray[Any]]] = defaultdict(dict)
    for (index, position), edits in analysis.constant_edits.items():
        tensor = analysis.order[index].inputs[position]
        constant = constant_values(tensor)
        assert constant is not None
        values = np.array(array_of(constant))
        before = values.copy()
        for element, size in edits.items():
            # -1 and 0 were left to the operator; everything else states the size itself.
            values.reshape(-1)[element] = solution.value(size)
        if not np.array_equal(values, before):
            wanted[tensor.name][(index, position)] = values
    for edits_of_one in wanted.values():
        versions: dict[bytes, gs.Constant] = {}
        for (index, position), values in edits_of_one.items():
            node = analysis.order[index]
            shared = node.inputs[position]
            key = values.tobytes()
            if key not in versions:
                only_reader = id(shared) not in kept and all(
                    edits_of_one.get((analysis_index, i), np.empty(0)).tobytes() == key
                    for analysis_index, i in _readers(analysis, shared)
                )
                if only_reader:
                    target = _as_initializer(shared)
                    replace_values(target, values)
                    versions[key] = target
                    continue
                versions[key] = gs.Constant(f"{shared.name}_{len(versions)}_{node.outputs[0].name}", values)
            node.inputs[position] = versions[key]


def _edit_scales(analysis: AxisAnalysis, solution: Solution) -> None:
    """Recompute factors of attention: they are powers of the head size."""
    for edit in analysis.scale_edits:
        ratio = solution.value(edit.size) / analysis.system.original(edit.size)
        if ratio == 1:
            continue
        factor, node = ratio ** float(edit.exponent), analysis.order[edit.node]
        if isinstance(edit.place, str):
            node.attrs[edit.place] = float(node.attrs[edit.place]) * factor
            continue
        scalar = node.inputs[edit.place]
        constant = constant_values(scalar)
        assert constant is not None
        values = array_of(constant)
        name = f"{scalar.name}_{node.outputs[0].name}"
        node.inputs[edit.place] = gs.Constant(name, np.asarray(values * factor, dtype=values.dtype))


def _readers(analysis: AxisAnalysis, tensor: gs.Tensor) -> list[tuple[int, int]]:
    index_of = {id(node): i for i, node in enumerate(analysis.order)}
    return [
        (index_of.get(id(node), -1), i)
        for node in {id(n): n for n in tensor.outputs}.values()
        for i, read in enumerate(node.inputs)
        if read is tensor
    ]
