"""What ``quantize`` reports."""

from __future__ import annotations

from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.records.record import SCHEMA, Amount, Count, Record, Share

__all__ = ["LayerQuantization", "QuantizationReport", "QuantizationTotals"]


class LayerQuantization(Record, frozen=True, kw_only=True):
    """What became of one weight layer.

    Attributes:
        name: of the initializer in the quantized model.
        op: operator that multiplies by it.
        shape: of the weight.
        type: in which it is stored, ``int8`` or as before.
        params: weights, active or not.
        nnz: active weights, of a mask or, without one, those that are not zero.
        sparsity: share of weights that are not active.
        zeros: active weights that were rounded to zero.
        live_quads: share of quads, groups of four weights of an output along the input features, with a weight that is
            not zero: what an int8 kernel has to compute. None of layers that are not quantized.
    """

    name: str
    op: str
    shape: tuple[Count, ...]
    type: str
    params: Count
    nnz: Count
    sparsity: Share
    zeros: Count = 0
    live_quads: Share | None = None


class QuantizationTotals(Record, frozen=True, kw_only=True):
    """Sums over the quantized layers, and sizes of the files.

    Attributes:
        params: weights, active or not.
        nnz: active weights.
        live_quads: share of quads with a weight that is not zero, over the layers by their weights.
        bytes_before: of the model that was read; None where it was not a file.
        bytes_after: of the model that was written.
    """

    params: Count
    nnz: Count
    live_quads: Share
    bytes_before: Count | None = None
    bytes_after: Count | None = None


class QuantizationReport(Record, frozen=True, kw_only=True):
    """A quantization.

    Attributes:
        model: the file that was read, or what stands for it.
        out: the file that was written; None where none was.
        format: ``qdq``, ``qoperator``, or ``dynamic``.
        per_channel: whether each output feature has its own scale.
        calibration: how ranges of activations were found; None if they are found at run time.
        samples: examples that they were found on.
        data: those examples.
        layers: the weight layers in graph order.
        masks: masked weights whose masks are the same, bit for bit.
        totals: of the quantized layers.
        accuracy: of both models on held-out data; the original is the baseline. None where it was not measured.
        warnings: one line each.
        seconds: that it took.
    """

    schema: int = SCHEMA
    model: str
    out: str | None
    format: str
    per_channel: bool
    calibration: str | None = None
    samples: Count | None = None
    data: str | None = None
    layers: tuple[LayerQuantization, ...]
    masks: Count
    totals: QuantizationTotals
    accuracy: EvaluationReport | None = None
    warnings: tuple[str, ...] = ()
    seconds: Amount
