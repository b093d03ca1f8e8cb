"""What a declared shape says of an axis: a size, a symbol that names one, or nothing.

Exporters mark an axis that is open in many ways. Some give each size a name of its own (``batch``, ``unk__12``,
``DynamicDimension.0``): axes of one name have one size. Others write the same mark at every open axis (``?``, ``-1``,
``None``), which says nothing of their sizes. Whatever reads declared shapes asks here which is which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import onnx

from sift_onnx.graphs.node_checks import with_subgraphs

__all__ = ["Extent", "declared_shape", "extents_of", "known_sizes", "without_marks"]

# A size, the symbol of one, or None where the file says nothing.
Extent = int | str | None

# Words that say that a size is open, and not which one it is.
_MARKS = frozenset({"any", "dyn", "dynamic", "nan", "nil", "none", "null", "undefined", "unk", "unknown"})


def _extent(dim: Any) -> Extent:
    if isinstance(dim, str):
        return None if _is_mark(dim) else dim
    return int(dim) if dim is not None and dim >= 0 else None


def _is_mark(text: str) -> bool:
    word = "".join(letter for letter in text if letter.isalnum()).lower()
    return word in _MARKS or not any(letter.isalpha() for letter in word)


def extents_of(shape: Sequence[Any]) -> tuple[Extent, ...]:
    """What a declared shape says of each of its axes.

    Text without a letter, words such as ``None`` and ``unknown``, and numbers below 0 say nothing. Nor do zeros, where
    the first axis or several axes are 0: an exporter put them for open axes. A single 0 further to the right is a
    size, that of an empty cache.

    Args:
        shape: numbers, text or None, as graphsurgeon and onnxruntime give them.
    """
    extents = tuple(map(_extent, shape))
    zeros = extents.count(0)
    if zeros > 1 or (zeros and extents[0] == 0):
        return tuple(extent or None for extent in extents)
    return extents


def declared_shape(tensor: onnx.TypeProto.Tensor) -> tuple[Extent, ...] | None:
    """The shape of a tensor as it stands in the file, marks of open axes included; None where there is none."""
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)


def known_sizes(tensor: onnx.TypeProto.Tensor) -> tuple[int | None, ...] | None:
    """The sizes of a tensor, None for those that are not known; None as a whole where it has no shape."""
    declared = declared_shape(tensor)
    return None if declared is None else tuple(extent if isinstance(extent, int) else None for extent in declared)


def without_marks(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy in which axes that were marked as open have neither symbol nor size.

    Shape inference would take equal marks for one symbol, and -1 for a size.
    """
    if not any(_marked(model.graph)):
        return model
    copy = deepcopy(model)
    for dim in list(_marked(copy.graph)):
        dim.ClearField("value")
    return copy


def _marked(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    infos = (info for level in with_subgraphs(graph) for info in (*level.input, *level.value_info, *level.output))
    for info in infos:
        declared = declared_shape(info.type.tensor_type) or ()
        for dim, before, extent in zip(info.type.tensor_type.shape.dim, declared, extents_of(declared), strict=False):
            if before is not None and extent is None:
                yield dim
