"""Quantizes a model by onnxruntime's quantizers: weights to signed bytes, symmetric, with their masks."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic, quantize_static

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.datasets.parts import DataLike, read_part
from sift_onnx.errors import MaskWarning, SiftError, UnsupportedError, UsageError
from sift_onnx.evaluation.evaluate import evaluate
from sift_onnx.evaluation.task import NoTaskError
from sift_onnx.graphs.walks import origin_of
from sift_onnx.graphs.zero_biases import drop_zero_biases, has_zero_biases
from sift_onnx.model import Model, ModelLike
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.passes import FoldBatchNorm, InferenceMode, InlineFunctions, LiftConstants, StoreComputedParameters
from sift_onnx.plugins import first_line
from sift_onnx.quantization.calibration import CalibrationBatches
from sift_onnx.quantization.layers import check_masks, quantized_layer_records
from sift_onnx.quantization.refusals import refuse_quantized, refuse_unfit, why_nothing
from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.records.quantization import QuantizationReport, QuantizationTotals
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs, shape_text

__all__ = ["Activations", "Calibration", "Format", "Quantized", "quantize_model"]

Activations = Literal["uint8", "int8"]
Format = Literal["qdq", "qoperator"]
Calibration = Literal["minmax", "entropy", "percentile"]

_ACTIVATIONS = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
_FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
_SAMPLES = 256
# Calibration keeps all activations of a batch, and of histograms those of all batches.
_BATCH = 8
_PROTOBUF_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Quantized:
    """A quantized model and what is said of it.

    Attributes:
        model: with its masks.
        report: what ``sift-onnx quantize --json`` writes.
    """

    model: Model
    report: QuantizationReport


def quantize_model(
    model: ModelLike,
    data: DataLike | None = None,
    *,
    format: Format = "qdq",
    dynamic: bool = False,
    per_channel: bool = True,
    activations: Activations = "uint8",
    calibration: Calibration = "minmax",
    samples: int = _SAMPLES,
    reduce_range: bool = False,
    keep_float: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    normalize: str | None = None,
    measure: bool = True,
    backend: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    label: str = "quantized",
) -> Quantized:
    """Quantize a model.

    1. The model is put into inference mode, its functions are inlined and its normalizations folded.
    2. Ranges of activations are found on examples to train on; with ``dynamic`` they are found at run time.
    3. onnxruntime's quantizer makes weights signed bytes that are symmetric around zero, and activations bytes
       (``dynamic``: at run time). A pruned weight is the zero point, 0, exactly.
    4. Masks are checked, bit for bit: unstructured ones, N:M and blocks stay what they are.
    5. With targets in the data, both models are evaluated on its held-out part.

    Args:
        model: anything that :meth:`Model.load` takes.
        data: as of :func:`~sift_onnx.evaluation.evaluate.evaluate`. Only ``dynamic`` does without.
        format: ``qdq`` for QuantizeLinear and DequantizeLinear around layers, ``qoperator`` for QLinearConv and others.
        dynamic: ConvInteger and MatMulInteger, with ranges of activations found at run time.
        per_channel: whether each output feature of a weight has its own scale.
        activations: unsigned bytes, whose zero point may be any, or signed ones, whose zero point is 0.
        calibration: ranges from the least to the largest value, of the least entropy, or without the outermost values.
        samples: examples to calibrate with, drawn by ``seed``.
        reduce_range: 7 bits for weights, for processors with AVX2 or AVX-512 and without VNNI, whose sums overflow.
        keep_float: globs over the names of weights that stay in floating point.
        input_shapes: shapes of some inputs by name, where layers have no size without them.
        normalize: of images.
        measure: whether to evaluate.
        backend: to evaluate on.
        threads: of that back end.
        seed: of the draw of examples.
        label: what the evaluation calls the quantized model.

    Raises:
        UsageError: data and model do not fit each other, or a glob matches nothing.
        UnsupportedError: the weights are quantized already, there are none to quantize, or onnxruntime's quantizer
            fails.
        CheckError: a mask would be lost.
    """
    start = time.perf_counter()
    settings: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
        ("format", format, _FORMATS),
        ("activations", activations, _ACTIVATIONS),
        ("calibration", calibration, _METHODS),
    )
    for setting, value, known in settings:
        if value not in known:
            *rest, last = known
            raise UsageError(f"{setting} is {value!r}; choose {', '.join(rest)} or {last}")
    if data is None and not dynamic:
        raise UsageError("static quantization needs `data` to find ranges of activations; or use `dynamic=True`")
    for is_static, why in (
        (activations != "uint8", f"makes uint8 of activations; `activations={activations!r}`"),
        (calibration != "minmax", f"finds ranges of activations at run time; `calibration={calibration!r}`"),
        (format != "qdq", f"makes ConvInteger and MatMulInteger; `format={format!r}`"),
    ):
        if dynamic and is_static:
            raise UsageError(f"`dynamic=True` {why} needs a static model")
    original = Model.load(model)
    ready = original.copy()
    for step in (InferenceMode(), InlineFunctions(), LiftConstants(), StoreComputedParameters(), FoldBatchNorm()):
        ready = step(ready).model
    if has_zero_biases(ready.graph):
        ready = ready.copy()
        drop_zero_biases(ready.graph)
    excluded = _excluded_nodes(ready, keep_float)
    analysis, form = analyze(ready, input_shapes), "dynamic" if dynamic else format
    refuse_quantized(analysis)
    refuse_unfit(analysis, form, ready.graph.opset, excluded)
    used, count = None, None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _named_nodes(ready).save(folder / "in.onnx")
        large = (folder / "in.onnx").stat().st_size + sum(f.stat().st_size for f in folder.glob("in.onnx.data*"))
        common: dict[str, Any] = {
            "per_channel": per_channel,
            "reduce_range": reduce_range,
            "weight_type": QuantType.QInt8,
            # The dynamic quantizer makes a MatMul of this name of a Gemm.
            "nodes_to_exclude": [*excluded, *(f"{name}_MatMul" for name in excluded)] if dynamic else excluded,
            "use_external_data_format": large > _PROTOBUF_LIMIT,
        }
        with _from_onnxruntime():
            if dynamic:
                quantize_dynamic(folder / "in.onnx", folder / "out.onnx", **common)
            else:
                assert data is not None
                specs = graph_inputs(original.origin)
                extents = specs[0].extents if specs else ()
                size = extents[0] if extents and isinstance(extents[0], int) else _BATCH
                _refuse_zeros(specs)
                part = read_part(data, specs, "train", batch=size, samples=samples, normalize=normalize, seed=seed)
                reader = CalibrationBatches(part.batches, specs, size, part.label)
                quantize_static(
                    folder / "in.onnx",
                    folder / "out.onnx",
                    reader,
                    quant_format=_FORMATS[format],
                    calibrate_method=_METHODS[calibration],
                    activation_type=_ACTIVATIONS[activations],
                    extra_options={"WeightSymmetric": True, "ActivationSymmetric": activations == "int8"},
                    **common,
                )
                used, count = part.label, reader.examples
        with warnings.catch_warnings():
            # What was rounded to zero is in the report.
            warnings.simplefilter("ignore", MaskWarning)
            quantized = Model.load(folder / "out.onnx")
            _as_before(quantized, original)
            masks = check_masks(ready, quantized)
            layers = quantized_layer_records(quantized, input_shapes)
        integers = [layer for layer in layers if layer.live_quads is not None or layer.type == "int8"]
        if not integers:
            raise UnsupportedError(f"nothing to quantize: {why_nothing(analysis, form, excluded)}")
        quantized.path = None  # a file that is gone behind this block; its data is read on
        accuracy: EvaluationReport | None = None
        said: tuple[str, ...] = ()
        if measure and data is not None:
            baseline = model if isinstance(model, (str, Path)) else original
            accuracy, said = _accuracy({label: quantized}, baseline, data, backend, threads, normalize, seed)
    report = QuantizationReport(
        model=str(original.path or "the model"),
        out=None,
        format=form,
        per_channel=per_channel,
        calibration=None if dynamic else calibration,
        samples=count,
        data=used,
        layers=tuple(layers),
        masks=masks,
        totals=QuantizationTotals(
            params=sum(layer.params for layer in integers),
            nnz=sum(layer.nnz for layer in integers),
            live_quads=sum((layer.live_quads or 0) * layer.params for layer in integers)
            / max(sum(layer.params for layer in integers), 1),
        ),
        accuracy=accuracy,
        warnings=said,
        seconds=time.perf_counter() - start,
    )
    return Quantized(quantized, report)


def _refuse_zeros(specs: Sequence[TensorSpec]) -> None:
    """Refuse inputs whose open axes are declared as 0: onnxruntime takes nothing else there.

    Raises:
        UnsupportedError: there is one.
    """
    for spec in specs:
        if 0 in (spec.shape or ()) and 0 not in spec.extents:
            raise UnsupportedError(
                f"input {spec.name!r} is declared as {shape_text(spec.shape)}: give open axes names (dim_param)"
            )


def _excluded_nodes(model: Model, globs: Sequence[str]) -> list[str]:
    """Names of the nodes whose weights match a glob.

    Raises:
        UsageError: a glob matches nothing.
    """
    _named_nodes(model)
    found: dict[str, list[str]] = {glob: [] for glob in globs}
    for node in model.graph.nodes:
        weights = [origin_of(tensor, PARAMETER_VIEWS)[0].name for tensor in node.inputs]
        for glob in globs:
            if any(fnmatch.fnmatchcase(str(weight), glob) for weight in weights):
                found[glob].append(str(node.name))
    for glob, nodes in found.items():
        if not nodes:
            raise UsageError(f"`keep_float={glob!r}` matches no weight; sift-onnx inspect lists their names")
    return sorted({name for nodes in found.values() for name in nodes})


def _named_nodes(model: Model) -> Model:
    """``model``, with a name for each node: the quantizer tells nodes apart by their names."""
    taken = {node.name for node in model.graph.nodes}
    for i, node in enumerate(model.graph.nodes):
        if not node.name:
            name = f"{node.op}_{i}"
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
    return model


def _as_before(quantized: Model, original: Model) -> None:
    """Take metadata over that the quantizer drops, and its own marks out."""
    quantized.metadata.pop("onnx.infer", None)
    quantized.metadata.update({k: v for k, v in original.metadata.items() if k not in quantized.metadata})


def _accuracy(
    quantized: Mapping[str, Model],
    original: Model | str | Path,
    data: DataLike,
    backend: str,
    threads: int | None,
    normalize: str | None,
    seed: int,
) -> tuple[EvaluationReport | None, tuple[str, ...]]:
    """Both models on held-out data; None where it has no targets."""
    try:
        report = evaluate(
            quantized, data, baseline=original, backend=backend, threads=threads, normalize=normalize, seed=seed
        )
    except NoTaskError as error:
        return None, (f"accuracy is not measured: {error}",)
    return report, ()


@contextlib.contextmanager
def _from_onnxruntime() -> Iterator[None]:
    """Errors of onnxruntime's quantizer as ours, without its remarks on stderr, and on stdout where results go."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except SiftError:
        raise
    except Exception as error:
        raise UnsupportedError(f"onnxruntime's quantizer fails: {first_line(error)}") from error
    finally:
        root.setLevel(level)
