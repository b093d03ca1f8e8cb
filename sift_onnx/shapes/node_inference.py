"""Shape inference of one node, whose inputs have known types, and some of them known values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx

from sift_onnx.operators.domains import canonical_domain
from sift_onnx.shapes.ceiled_pools import FIRST_RIGHT_OPSET, is_ceiled_pool
from sift_onnx.shapes.equivalent_ops import equivalent_nodes
from sift_onnx.shapes.open_axes import known_sizes

__all__ = ["MOST_SIZES", "infer_node", "infer_outputs", "is_long_list"]

# A list of more sizes makes a tensor of as many axes, which inference would write down.
MOST_SIZES = 1 << 22

_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def infer_outputs(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, npt.NDArray[Any]],
) -> dict[str, onnx.TypeProto]:
    """Types of the outputs of a node, with what ONNX infers of their shapes; {} for an operator that it does not know.

    Args:
        node: without subgraphs.
        opsets: version of each operator set domain.
        types: of the inputs, by name.
        values: of small inputs, by name.

    Raises:
        onnx.shape_inference.InferenceError: the inputs do not fit together.
        onnx.checker.ValidationError: an attribute does not fit the operator.
        RuntimeError: the same, as some operators say it.
    """
    version = opsets.get(node.domain, 1)
    if is_ceiled_pool(node):
        version = max(version, FIRST_RIGHT_OPSET)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return {}
    known = {name: _without_long_list(types[name]) for name in filter(None, node.input)}
    data = {name: onnx.numpy_helper.from_array(values[name], name) for name in known if name in values}
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    inferred: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
        schema, node, known, data, opset_imports=versions
    )
    return inferred


def is_long_list(kind: onnx.TypeProto.Tensor) -> bool:
    """Whether a tensor is a longer list of integers than any list of sizes is."""
    return kind.elem_type in _INTEGERS and len(kind.shape.dim) == 1 and kind.shape.dim[0].dim_value > MOST_SIZES


def _without_long_list(kind: onnx.TypeProto) -> onnx.TypeProto:
    if is_long_list(kind.tensor_type):
        return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, None)
    return kind


def infer_node(
    node: gs.Node,
    opsets: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, npt.NDArray[Any]],
) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the outputs of one node whose input shapes are known; {} where ONNX has no answer.

    Args:
        node: the node.
        opsets: version of each operator set domain.
        shapes: of the inputs, by tensor name; the shape of an input without an entry is unknown.
        values: of small inputs, by tensor name.
    """
    if any(isinstance(value, gs.Graph) for value in node.attrs.values()):
        return {}
    domain = canonical_domain(node.domain)
    names = [t.name for t in node.inputs], [t.name for t in node.outputs]
    proto = onnx.helper.make_node(node.op, *names, domain=domain)
    try:
        proto.attribute.extend(OnnxExporter.export_attributes(node.attrs))
    except (TypeError, ValueError):  # an empty list, which says nothing of its type
        return {}
    types: dict[str, onnx.TypeProto] = {}
    for tensor in node.inputs:
        element = dtype_to_onnx(tensor.dtype) if tensor.dtype is not None else onnx.TensorProto.FLOAT
        if tensor.name in values:
            element = onnx.helper.np_dtype_to_tensor_dtype(values[tensor.name].dtype)
        types[tensor.name] = onnx.helper.make_tensor_type_proto(element, shapes.get(tensor.name))
    known = dict(values)  # with the lists of constants among the equivalents
    found: dict[str, tuple[int | None, ...]] = {}
    for equivalent in equivalent_nodes(proto, opsets.get("", 1)) or [proto]:
        if any(name not in types for name in equivalent.input if name):
            continue  # one of them that makes what this one reads has no answer
        try:
            inferred = infer_outputs(equivalent, opsets, types, known)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
            continue
        types.update(inferred)
        if equivalent.op_type == "Constant":
            known[equivalent.output[0]] = np.array([*equivalent.attribute[0].ints], np.int64)
        for name, kind in inferred.items():
            sizes = known_sizes(kind.tensor_type) if name in proto.output else None
            if sizes is not None:
                found[name] = sizes
    return found
