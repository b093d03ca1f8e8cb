"""Concrete shapes of every tensor of a model, once its dynamic axes are given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.open_axes import without_marks
from sift_onnx.stand_ins import forget_recorded_shapes, stand_ins, with_stand_ins
from sift_onnx.tensor_specs import model_inputs

__all__ = ["Shapes", "infer_node", "infer_proto", "infer_shapes"]

# Tensor name -> size per axis; None where inference does not know.
Shapes = dict[str, tuple[int | None, ...]]

_PROPAGATED_ELEMENTS = 1 << 22
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


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
        # The lines after the first are about nodes behind it, which lack its output.
        lines = str(error).removeprefix("[ShapeInferenceError] Inference error(s): ").strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UnsupportedError(f"shape inference rejects the model: {reason}") from error
    shapes: Shapes = {}
    for info in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
        if info.type.tensor_type.HasField("shape"):
            shapes[info.name] = tuple(
                d.dim_value if d.HasField("dim_value") else None for d in info.type.tensor_type.shape.dim
            )
    return shapes


def infer_proto(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """ONNX shape inference, with data propagation unless that would be without measure.

    Foreign operators that a standard one stands in for (:mod:`sift_onnx.stand_ins`) are inferred as that one; of the
    result, types and shapes of values count, and not the nodes.

    Data propagation follows vectors element by element, which for one of a billion elements, a small file's Range or
    Tile, takes minutes and all memory. So there is none where a vector or an input is larger than vectors of sizes are.

    Args:
        model: without the data of large tensors.
        **options: of ``onnx.shape_inference.infer_shapes``.

    Raises:
        Exception: whatever onnx makes of a damaged model.
    """
    model = with_stand_ins(without_marks(model))
    inferred = onnx.shape_inference.infer_shapes(_without_long_lists(model), **options)
    vectors = (info.type.tensor_type.shape.dim for info in (*inferred.graph.value_info, *inferred.graph.output))
    shapes = [*(dims for dims in vectors if len(dims) == 1), *(i.type.tensor_type.shape.dim for i in model.graph.input)]
    if any(dim.dim_value > _PROPAGATED_ELEMENTS for dims in shapes for dim in dims):
        return inferred
    return onnx.shape_inference.infer_shapes(model, data_prop=True, **options)


def _without_long_lists(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy where inputs that are longer lists of integers than any list of sizes have no length.

    An Expand or a ConstantOfShape by a list of two billion sizes has as many axes, which inference would write down.
    """
    long = [
        position
        for position, info in enumerate(model.graph.input)
        if info.type.tensor_type.elem_type in _INTEGERS
        and len(info.type.tensor_type.shape.dim) == 1
        and info.type.tensor_type.shape.dim[0].dim_value > _PROPAGATED_ELEMENTS
    ]
    if not long:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for position in long:
        copy.graph.input[position].type.tensor_type.shape.dim[0].ClearField("value")
    return copy


def _symbols(model: Model, bound: Mapping[str, Sequence[int]]) -> dict[str, int]:
    pairs = (pair for spec in model_inputs(model) for pair in zip(spec.extents, bound[spec.name], strict=False))
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}


def _write_symbols(infos: Sequence[onnx.ValueInfoProto], symbols: Mapping[str, int]) -> None:
    for info in infos:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]


def infer_node(
    node: gs.Node,
    opsets: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, npt.NDArray[Any]],
) -> Shapes:
    """Shapes of the outputs of one node whose input shapes are known; {} where ONNX has no answer.

    Args:
        node: the node.
        opsets: version of each operator set domain.
        shapes: of the inputs, by tensor name; the shape of an input without an entry is unknown.
        values: of small integer inputs, by tensor name.
    """
    if any(isinstance(value, gs.Graph) for value in node.attrs.values()):
        return {}
    domain = "" if (node.domain or "") == "ai.onnx" else node.domain or ""
    names = [t.name for t in node.inputs], [t.name for t in node.outputs]
    proto = onnx.helper.make_node(node.op, *names, domain=domain)
    try:
        proto.attribute.extend(OnnxExporter.export_attributes(node.attrs))
    except (TypeError, ValueError):  # an empty list, which says nothing of its type
        return {}
    inputs = {tensor.name: tensor for tensor in node.inputs if not tensor.is_empty()}
    found: Shapes = {}
    for standing in stand_ins(proto, opsets.get("", 1)) or [proto]:
        found.update(_infer(standing, inputs, opsets, shapes, values))
    return found


def _infer(
    proto: onnx.NodeProto,
    tensors: Mapping[str, gs.Tensor],
    opsets: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, npt.NDArray[Any]],
) -> Shapes:
    try:
        schema = onnx.defs.get_schema(proto.op_type, opsets.get(proto.domain, 1), proto.domain)
    except onnx.defs.SchemaError:
        return {}
    types, data = {}, {}
    for name in filter(None, proto.input):
        tensor = tensors[name]
        element = dtype_to_onnx(tensor.dtype) if tensor.dtype is not None else onnx.TensorProto.FLOAT
        if name in values:
            element = onnx.TensorProto.INT64
            data[name] = onnx.numpy_helper.from_array(values[name], name)
        shape = shapes.get(name)
        if element in _INTEGERS and shape is not None and len(shape) == 1 and shape[0] > _PROPAGATED_ELEMENTS:
            shape = None  # see _without_long_lists
        types[name] = onnx.helper.make_tensor_type_proto(element, shape)
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
        return {}
    return {
        name: tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim)
        for name, kind in inferred.items()
        if kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
    }
