"""What ``inspect`` reports."""

from __future__ import annotations

from sift_onnx.records.record import SCHEMA, Count, Record, Share

__all__ = ["CostReport", "CostTotals", "LayerCost", "LeftOut", "StoppedAt"]


class StoppedAt(Record, frozen=True, kw_only=True):
    """The node where shape inference stops."""

    node: str
    op: str
    domain: str
    outputs: tuple[str, ...]


class LeftOut(Record, frozen=True, kw_only=True):
    """A weight layer that a result lacks, since its shapes are not known.

    Attributes:
        name: of the initializer.
        node: the node that uses it.
        op: operator of that node.
        shape: of the weight.
        params: weights, active or not.
        reason: why it is left out.
        stopped_at: where shape inference stops.
    """

    name: str
    node: str
    op: str
    shape: tuple[Count, ...]
    params: Count
    reason: str
    stopped_at: StoppedAt


class LayerCost(Record, frozen=True, kw_only=True):
    """What one weight layer costs.

    Attributes:
        name: of the initializer.
        node: the node that uses it; the first one where several do.
        op: operator of that node.
        kind: ``conv``, ``depthwise``, ``gemm``, ``matmul`` or ``embedding``.
        shape: of the weight.
        params: weights, active or not.
        nnz: active weights; of quantized weights without a mask, those that do not stand for zero.
        sparsity: share of weights that are not active.
        macs: multiply-accumulates if executed densely.
        effective_macs: multiply-accumulates of the active weights.
        search_space: weights that a mask chooses from (paper, Table 1); 0 without a mask.
        active_zeros: active weights that are zero.
        live_quads: of quantized layers, the share of quads that hold a weight which does not stand for zero. A quad is
            four weights of one output along the input features: what int8 kernels skip.
    """

    name: str
    node: str
    op: str
    kind: str
    shape: tuple[Count, ...]
    params: Count
    nnz: Count
    sparsity: Share
    macs: Count
    effective_macs: Count
    search_space: Count
    active_zeros: Count = 0
    live_quads: Share | None = None


class CostTotals(Record, frozen=True, kw_only=True):
    """Sums over the layers.

    Attributes:
        params: weights, active or not.
        nnz: active weights.
        macs: multiply-accumulates if executed densely.
        effective_macs: multiply-accumulates of the active weights.
        search_space: weights that masks choose from.
        active_zeros: active weights that are zero.
        attention_macs: multiply-accumulates of products of two activations.
    """

    params: Count
    nnz: Count
    macs: Count
    effective_macs: Count
    search_space: Count = 0
    active_zeros: Count = 0
    attention_macs: Count


class CostReport(Record, frozen=True, kw_only=True):
    """What a model costs, layer by layer.

    Attributes:
        layers: the weight layers in graph order, quantized ones too.
        totals: their sums.
        left_out: weight layers whose shapes are not known; neither counted nor among ``layers``.
        warnings: one line each.
        nominal: shapes of inputs of which a size was assumed, by name.
        assumed: what was assumed, one line each.
        model: the file, where it was one.
    """

    schema: int = SCHEMA
    layers: tuple[LayerCost, ...]
    totals: CostTotals
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    nominal: dict[str, tuple[Count, ...]] | None = None
    assumed: tuple[str, ...] | None = None
    model: str | None = None
