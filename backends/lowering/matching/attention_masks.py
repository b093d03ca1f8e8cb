"""What is added to the scores of attention: one mask, or several that follow from constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.dims import Dims, product
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["joined_mask"]

_Part = tuple[npt.NDArray[np.float32], bool]


def joined_mask(
    graph: GraphView, added: Sequence[tuple[str, Dims]], scores: Dims, name: str
) -> tuple[str, bool] | None:
    """The name of what is added to scores, empty if nothing is, and whether sequences take it in turn.

    Windows of one image have a mask each: scores of [images windows, ...] are [images, windows, ...] for the addition.

    Args:
        graph: the model; what follows from constants becomes one of its constants.
        added: the masks, and the sizes of the scores where each is added.
        scores: their sizes before and after it.
        name: of the constant.

    Returns:
        None for masks that are not one mask of the scores.
    """
    if not added:
        return "", False
    parts = [part for mask, dims in added for part in _parts_of_mask(graph, mask, dims, scores)]
    if all(part is not None for part in parts):
        total = sum(part for part, _ in filter(None, parts))
        graph.constants[name] = gs.Constant(name, np.ascontiguousarray(total, np.float32))
        return name, any(repeats for _, repeats in filter(None, parts))
    (mask, dims), *others = added
    return None if others or len(dims) != len(scores) or not _fits(graph, mask, scores) else (mask, False)


def _parts_of_mask(graph: GraphView, mask: str, dims: Dims, scores: Dims) -> list[_Part | None]:
    """What a mask is the sum of, as masks of all scores, and whether sequences take it in turn; None: only a run knows.

    Args:
        graph: the model.
        mask: name of the mask.
        dims: sizes of what it is added to.
        scores: those of the scores.
    """
    if graph.fold(mask):
        return [_part_of_mask(graph.values_of(mask), dims, scores)]
    index = graph.producers.get(mask)
    node = graph.nodes[index] if index is not None else None
    if node is not None and is_standard_op(node, "Add") and len(dims) == len(scores):
        return [part for name in node.input for part in _parts_of_mask(graph, name, dims, scores)]
    if node is not None and is_standard_op(node, "Reshape"):
        # The masks of windows, repeated for each image.
        repeated, windows = graph.dims(mask), graph.dims(node.input[0])
        index = graph.producers.get(node.input[0])
        expanded = graph.nodes[index] if index is not None else None
        if expanded is None or not repeated or not windows or not is_standard_op(expanded, "Expand"):
            return [None]
        if repeated[1:] == windows[2:] and repeated[0] == scores[0] and graph.fold(expanded.input[0]):
            return [_part_of_mask(graph.values_of(expanded.input[0]), (*windows[:2], *scores[1:]), scores)]
    return [None]


def _part_of_mask(values: npt.NDArray[np.generic] | None, dims: Dims, scores: Dims) -> _Part | None:
    """A constant that is added to a tensor of ``dims``, as a mask of all scores."""
    if values is None or values.dtype != np.float32 or values.ndim > len(dims):
        return None
    values = values.reshape((*(1,) * (len(dims) - values.ndim), *values.shape))
    repeats = len(dims) == len(scores) + 1
    if repeats:
        windows = dims[1]
        is_of_windows = product(dims[:2]) == scores[0] and dims[2:] == scores[1:]
        if not is_of_windows or values.shape[0] != 1 or values.shape[1] not in (1, windows):
            return None
        values = values[0]
    elif len(dims) != len(scores) or values.shape[0] not in (1, scores[0]):
        return None
    if any(size not in (1, full) for size, full in zip(values.shape[1:], scores[1:], strict=True)):
        return None
    return values.astype(np.float32, copy=False), repeats


def _fits(graph: GraphView, mask: str, scores: Dims) -> bool:
    """Whether the mask's axes are the scores', or 1; those that only a run knows are looked at then."""
    dims = graph.dims(mask)
    if dims is None or not 1 <= len(dims) <= len(scores) or graph.elem_type(mask) != DType.FLOAT32.onnx_type:
        return False
    sizes = zip((*(1,) * (len(scores) - len(dims)), *dims), scores, strict=True)
    return all(size in (1, full) or not (isinstance(size, int) and isinstance(full, int)) for size, full in sizes)
