"""A model as an ``onnx_ir.Model`` with lazy large tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sift_onnx.graphs.constant_tensors import full_tensor, header_of
from sift_onnx.weights.mask_storage import MASKS_KEY, text_of_masks

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    import onnx_graphsurgeon as gs
    import onnx_ir

    from sift_onnx.graphs.constants import MaskedConstant

__all__ = ["ir_model_of", "lazy_tensor"]


def ir_model_of(
    skeleton: onnx.ModelProto, initializers: Mapping[str, gs.Constant], masked: Mapping[str, MaskedConstant]
) -> onnx_ir.Model:
    """A model in the classes of onnx_ir, of any size.

    Large tensors are lazy: they are read on access, and a masked weight becomes dense then.

    Args:
        skeleton: the model, its large tensors without data and marked as external.
        initializers: the constants of the main graph, by name.
        masked: those that have a mask.
    """
    import onnx_ir

    result = onnx_ir.from_proto(skeleton)
    if masked:
        result.metadata_props[MASKS_KEY] = text_of_masks(masked)
    for name, constant in initializers.items():
        value = result.graph.initializers.get(name)
        if value is not None and isinstance(value.const_value, onnx_ir.ExternalTensor):
            value.const_value = lazy_tensor(constant)
    return result


def lazy_tensor(constant: gs.Constant) -> Any:
    """A constant as a lazy tensor of onnx_ir."""
    import onnx_ir

    header = header_of(constant)
    return onnx_ir.LazyTensor(
        lambda: onnx_ir.from_proto(full_tensor(constant)),
        dtype=onnx_ir.DataType(header.data_type),
        shape=onnx_ir.Shape(list(header.dims)),
        name=constant.name,
        doc_string=header.doc_string or None,
    )
