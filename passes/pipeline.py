"""``transform``: from settings to passes, and back to the kind of model that came in."""

from __future__ import annotations

from typing import Any

from sift_onnx.errors import UsageError
from sift_onnx.model import Model, ModelLike, as_kind_of
from sift_onnx.passes.base import Pass
from sift_onnx.passes.wide import Wide

__all__ = ["transform"]

FAMILIES: dict[str, type[Pass]] = {"wide": Wide}


def transform(model: ModelLike, *, wide: float | str | None = None, **options: Any) -> Any:
    """Make a model bigger and sparser at the same FLOPs.

    Args:
        model: a path, a Model, an ``onnx.ModelProto``, an ``onnx_graphsurgeon.Graph`` or an ``onnx_ir.Model``; it is
            not changed.
        wide: sparsity of a Sparse Wide transform.
        **options: of the pass, see :class:`sift_onnx.passes.Wide`.

    Returns:
        The same kind as ``model``; a :class:`~sift_onnx.model.Model` for a path.

    Raises:
        UsageError: no transform was named, or an option is unknown or out of its range.
        SiftError: see the pass.
    """
    if wide is None:
        raise UsageError("name the transform and its sparsity, e.g. transform(model, wide=0.9)")
    try:
        chosen = Wide(wide, **options)
    except TypeError as error:
        raise UsageError(f"transform: {str(error).replace('Wide.__init__() ', '')}") from error
    result = chosen(Model.load(model))
    return as_kind_of(model, result.model)
