"""What ``transform``, ``prune`` and ``densify`` report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from sift_onnx.records.cost import LeftOut
from sift_onnx.records.record import SCHEMA, Amount, Count, Real, Record, Share

__all__ = ["LayerChange", "Part", "Pinned", "Totals", "TransformReport", "sum_up"]


class Part(Record, frozen=True, kw_only=True):
    """One of the weights that took a layer's place; its role is ``branch``, ``U``, ``V`` or ``sparse``."""

    name: str = ""
    role: str
    shape: tuple[Count, ...]
    nnz: Count = 0
    sparsity: Share = 0.0


class LayerChange(Record, frozen=True, kw_only=True):
    """What became of one weight layer.

    Attributes:
        name: of the initializer.
        node: the node that uses it; the first one where several do.
        op: operator of that node.
        kind: ``conv``, ``depthwise``, ``gemm``, ``matmul`` or ``embedding``.
        shape_before: of the weight.
        shape_after: of the weight.
        macs_before: multiply-accumulates of active weights.
        macs_after: multiply-accumulates of active weights.
        nnz_before: active weights; older builds report them for some passes alone.
        nnz: active weights.
        sparsity: share of weights that are not active.
        status: ``sparse``, ``dense`` or ``unchanged``.
        reason: why, where it did not become sparse.
        search_space: weights that a mask chooses from (paper, Table 1); 0 without a mask.
        parts: the weights that took its place.
        weight_error: relative Frobenius norm of the difference to the original weight, where it was approximated.
    """

    name: str
    node: str
    op: str
    kind: str
    shape_before: tuple[Count, ...]
    shape_after: tuple[Count, ...]
    macs_before: Count
    macs_after: Count
    nnz_before: Count | None = None
    nnz: Count
    sparsity: Share
    status: str
    reason: str
    search_space: Count = 0
    parts: tuple[Part, ...] | None = None
    weight_error: Amount | None = None


class Totals(Record, frozen=True, kw_only=True):
    """Sums over the model. Products of activations are counted by passes that may change them."""

    weight_macs_before: Count
    weight_macs_after: Count
    weight_macs_ratio: Amount
    attention_macs_before: Count | None = None
    attention_macs_after: Count | None = None
    nnz_before: Count
    nnz_after: Count
    search_space: Count


def sum_up(layers: Sequence[LayerChange], attention_macs: tuple[int, int] | None = None) -> Totals:
    """The totals of layers that all have ``nnz_before``.

    Args:
        layers: all of the model.
        attention_macs: of products of activations, before and after.
    """
    before, after = (sum(layer.macs_before for layer in layers), sum(layer.macs_after for layer in layers))
    return Totals(
        weight_macs_before=before,
        weight_macs_after=after,
        weight_macs_ratio=after / before if before else 1.0,
        attention_macs_before=attention_macs[0] if attention_macs else None,
        attention_macs_after=attention_macs[1] if attention_macs else None,
        nnz_before=sum(layer.nnz_before or 0 for layer in layers),
        nnz_after=sum(layer.nnz for layer in layers),
        search_space=sum(layer.search_space for layer in layers),
    )


class Pinned(Record, frozen=True, kw_only=True):
    """A size that something keeps from growing.

    Attributes:
        size: of the axis.
        layers: weights that have such an axis.
        node: what keeps it.
        op: operator of that node.
        reason: why.
        macs_share: part of the original's weight MACs in these layers.
    """

    size: Count
    layers: tuple[str, ...]
    node: str
    op: str
    reason: str
    macs_share: Amount


class TransformReport(Record, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """What passes did to the weight layers of a model. A setting that a pass does not have is None."""

    schema: int = SCHEMA
    pass_: str | None = None
    sparsity: Real | None = None
    sparsity_requested: Real | None = None
    method: str | None = None
    pattern: str | None = None
    distribution: str | None = None
    activation: str | None = None
    init: str | None = None
    width_factor: Amount | None = None
    layers: tuple[LayerChange, ...]
    totals: Totals
    biases_added: tuple[str, ...] | None = None
    centred: tuple[str, ...] | None = None
    masks_dropped: tuple[str, ...] | None = None
    pinned: tuple[Pinned, ...] | None = None
    left_out: tuple[LeftOut, ...] | None = None
    warnings: tuple[str, ...] | None = None
    nominal: dict[str, tuple[Count, ...]] | None = None
    assumed: tuple[str, ...] | None = None
    unknown: tuple[str, ...] | None = None
    inference_mode: tuple[str, ...] | None = None
    steps: tuple[dict[str, Any], ...] | None = None
    model: str | None = None
    out: str | UnsetType | None = UNSET
    seconds: Amount | None = None
