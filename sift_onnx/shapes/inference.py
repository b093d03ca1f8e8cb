"""Concrete shapes of every tensor of a model, once its dynamic axes are given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx

from sift_onnx.errors import UnsupportedError
from sift_onnx.files.external_data import is_external
from sift_onnx.model import Model
from sift_onnx.shapes.ceiled_pools import with_dropped_windows
from sift_onnx.shapes.equivalent_ops import (
    forget_recorded_shapes,
    names_made_by_equivalents,
    with_canonical_domains,
    with_equivalent_nodes,
)
from sift_onnx.shapes.evaluation import complete_shapes
from sift_onnx.shapes.inferable_copy import (
    with_own_names,
    with_unbound_axes,
    without_functions,
    without_long_lists,
    without_outside_data,
)
from sift_onnx.shapes.node_inference import MOST_SIZES
from sift_onnx.shapes.open_axes import known_sizes, without_marks
from sift_onnx.shapes.tensor_specs import model_inputs

__all__ = ["Shapes", "infer_proto", "infer_shapes", "infer_values"]

# Tensor name -> size per axis; None where inference does not know.
Shapes = dict[str, tuple[int | None, ...]]


def infer_shapes(model: Model, bound: Mapping[str, Sequence[int]]) -> Shapes:
    """Shapes of all tensors for the input shapes ``bound``, by ONNX shape inference with data propagation.

    Raises:
        UnsupportedError: inference finds a contradiction in the model.
    """
    skeleton = model.skeleton()
    for info in skeleton.graph.input:
        if info.name in bound:
            dims = info.type.tensor_type.shape.dim
            del dims[:]
            for size in bound[info.name]:
                dims.add(dim_value=size)
    forget_recorded_shapes(skeleton)
    _write_symbols([*skeleton.graph.value_info, *skeleton.graph.output], _symbols(model, bound))
    try:
        inferred = infer_proto(skeleton, check_type=True, strict_mode=True)
    except Exception as error:  # it is native code, and has as many kinds of errors as there are ways to damage a model
        # The lines after the first are about nodes that lack its output.
        lines = str(error).removeprefix("[ShapeInferenceError] Inference error(s): ").strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UnsupportedError(f"shape inference rejects the model: {reason}") from error
    infos = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    found = ((info.name, known_sizes(info.type.tensor_type)) for info in infos)
    return {name: sizes for name, sizes in found if sizes is not None}


def infer_proto(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """ONNX shape inference, with data propagation unless that would be without measure, and with computed sizes.

    See :func:`infer_values`, which gives the sizes that the model computes, too.
    """
    return infer_values(model, **options)[0]


def infer_values(model: onnx.ModelProto, **options: bool) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    """Shape inference, and the small tensors that a model computes of constants and of known sizes.

    Foreign operators with an equivalent standard one (:mod:`sift_onnx.shapes.equivalent_ops`) are inferred as that one;
    of the result, types and shapes of values count, and not the nodes. What data propagation leaves open is evaluated
    (:mod:`sift_onnx.shapes.evaluation`).

    Data propagation follows vectors element by element, which for one of a billion elements, a small file's Range or
    Tile, takes minutes and all memory. So there is none where a vector or an input is larger than vectors of sizes are.

    Args:
        model: without the data of large tensors.
        **options: of ``onnx.shape_inference.infer_shapes``.

    Returns:
        The model with what was inferred, and the computed tensors by name.

    Raises:
        UnsupportedError: computed sizes contradict each other.
        Exception: whatever onnx makes of a damaged model.
    """
    outside = {tensor.name for tensor in model.graph.initializer if is_external(tensor)}
    model = without_functions(with_canonical_domains(without_marks(model)))
    others = names_made_by_equivalents(model)
    model = with_own_names(without_outside_data(with_unbound_axes(with_equivalent_nodes(model))))
    inferred = onnx.shape_inference.infer_shapes(without_long_lists(model), **options)
    while (corrected := with_dropped_windows(model, inferred)) is not None:
        model = corrected
        inferred = onnx.shape_inference.infer_shapes(without_long_lists(model), **options)
    made = (info for info in (*inferred.graph.value_info, *inferred.graph.output) if info.name not in outside)
    vectors = (dims for dims in (info.type.tensor_type.shape.dim for info in made) if len(dims) == 1)
    shapes = [*vectors, *(info.type.tensor_type.shape.dim for info in model.graph.input)]
    if not any(dim.dim_value > MOST_SIZES for dims in shapes for dim in dims):
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True, **options)
    values = complete_shapes(model, inferred, without=others)
    found = [info for info in inferred.graph.value_info if info.name not in outside]
    del inferred.graph.value_info[:]
    inferred.graph.value_info.extend(found)
    return inferred, values


def _symbols(model: Model, bound: Mapping[str, Sequence[int]]) -> dict[str, int]:
    pairs = (pair for spec in model_inputs(model) for pair in zip(spec.extents, bound[spec.name], strict=False))
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}


def _write_symbols(infos: Sequence[onnx.ValueInfoProto], symbols: Mapping[str, int]) -> None:
    for info in infos:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
