"""Whether an output depends on its own sample alone: each of a few samples is run by itself and among the others.

Which axis is the batch, a file does not say. It is the one that is named so; where none is, the open first axis of the
first input, as everywhere in this package, unless it has the name of another thing or a recurrent node walks along it.
What has no open batch is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.training_mode import drawing_nodes, every_node, in_words, training_nodes
from sift_onnx.errors import SiftError, listing
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of
from sift_onnx.model import Model
from sift_onnx.operators.traits import RECURRENT
from sift_onnx.shapes.inference import infer_proto
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["alone_and_in_batch", "inference_mode"]

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]

# How many samples, and what their values are multiplied by: samples of one scale have much the same statistics.
_SCALES = (1.0, 2.0, 0.5)
# Words in names of axes; a single letter is one if it is the name.
_BATCH = frozenset({"b", "batch", "batches", "batchsize", "bs", "bsz", "n", "samples"})
_NO_BATCH = frozenset(
    "channels edges frames h height l len length nodes points rows s seq seqlen sequence steps t time timesteps tokens "
    "w width".split()
)
_SEQUENTIAL = RECURRENT | {"Scan"}
# They take the scale of what they quantize from all of it.
_SCALED_BY_BATCH = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
_QUANTIZED = frozenset({"DequantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
_HALF = frozenset({"bfloat16", "float16"})
# Of the largest value of a sample; and the share of values that may be off by more, where rounding tips a step over.
_TOLERANCE, _COARSE_TOLERANCE, _OFF = 1e-3, 5e-2, 0.01


class Runs(Protocol):
    """What runs a model."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""


class _NotApplicableError(Exception):
    """Why samples cannot be compared."""


def inference_mode(graph: gs.Graph) -> tuple[str, str]:
    """What is wrong with the modes of a graph's nodes, empty if nothing is; and what to say if not."""
    training = training_nodes(graph)
    drawing = drawing_nodes(graph)
    findings = []
    if training:
        obstacle = next((f" ({entry.obstacle})" for entry in training if entry.obstacle), "")
        findings.append(
            f"in training mode, computing by the batch or by chance: {in_words([entry.node for entry in training])}"
            f"{obstacle or '; export after model.eval(), or use the pass inference-mode'}"
        )
    if drawing:
        findings.append(f"outputs depend on chance, for these nodes draw random numbers: {in_words(drawing)}")
    return "; ".join(findings), "no node is in training mode, none draws random numbers"


def alone_and_in_batch(
    program: Runs,
    model: Model,
    inputs: Sequence[TensorSpec],
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> tuple[str, str]:
    """Compare samples alone with the same samples in a batch.

    Args:
        program: of the model.
        model: the model.
        inputs: of the model.
        input_shapes: of inputs with other open axes than the batch.
        seed: of the random samples.

    Returns:
        What is wrong, empty if nothing is; and what to say if not.
    """
    try:
        axes = _batch_axes(model, inputs)
        _require_comparable(model)
        together, feeds = _run_batch(program, inputs, axes, input_shapes, seed)
        compared: set[str] = set()
        for i in range(len(_SCALES)):
            alone = _run(program, _sample(feeds, axes, i), 1)
            for name, array in alone.items():
                axis = _batch_axis_of(array, together[name])
                if axis is None:
                    continue
                compared.add(name)
                finding = _difference(array, together[name].take([i], axis), _tolerance(model))
                if finding:
                    return f"output {name!r}, sample {i + 1} of {len(_SCALES)}: {finding}; {_reason(model, axes)}", ""
        if not compared:
            raise _NotApplicableError("no output has a batch axis")
    except _NotApplicableError as reason:
        return "", f"not applicable: {reason}"
    listed = listing([repr(name) for name in together if name in compared])
    return "", f"{len(_SCALES)} samples give the same alone and in a batch: {listed}"


def _batch_axes(model: Model, inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """The batch axis of each input that has one."""
    first = next((spec for spec in inputs if spec.shape), None)
    if first is None:
        raise _NotApplicableError("no input has axes")
    named = [size for spec in inputs for size in spec.extents if isinstance(size, str) and _is_named(size, _BATCH)]
    symbol = named[0] if named else first.extents[0]
    if isinstance(symbol, int):
        raise _NotApplicableError(f"the first axis of input {first.name!r} is fixed at {symbol}")
    if not named:
        _require_batch(model, inputs, symbol)
    axes: dict[str, int] = {}
    for spec in inputs:
        found = [axis for axis, size in enumerate(spec.extents) if size == symbol and size is not None]
        if not found and spec.shape and not isinstance(spec.extents[0], int):
            found = [0]
        if len(found) > 1:
            raise _NotApplicableError(f"input {spec.name!r} has the batch in several axes")
        if found:
            axes[spec.name] = found[0]
        elif not all(isinstance(size, int) for size in spec.extents):
            raise _NotApplicableError(f"input {spec.name!r} has an open axis that is not a batch")
    return axes


def _require_batch(model: Model, inputs: Sequence[TensorSpec], symbol: str | None) -> None:
    """Refuse an open first axis that is something else than the batch."""
    inner = {size for spec in inputs for size in spec.extents[1:] if isinstance(size, str)}
    if symbol is not None and (symbol in inner or _is_named(symbol, _NO_BATCH)):
        raise _NotApplicableError(f"no axis is named as a batch, and {symbol!r} seems to be none")
    recurrent = [node for node in every_node(model.graph) if node.op in _SEQUENTIAL]
    if recurrent and (symbol is None or symbol in _walked(model)):
        raise _NotApplicableError(f"the first axis may be the sequence of {in_words(recurrent)}")


def _is_named(name: str, words: frozenset[str]) -> bool:
    found = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return any(word in words and (len(word) > 1 or len(found) == 1) for word in found)


def _walked(model: Model) -> set[str]:
    """Symbols of axes that recurrent nodes walk along."""
    proto = infer_proto(model.skeleton(), check_type=False, strict_mode=False)
    known = {info.name: info.type.tensor_type.shape.dim for info in (*proto.graph.value_info, *proto.graph.input)}
    read = [name for node in proto.graph.node if node.op_type in _SEQUENTIAL for name in node.input]
    return {known[name][0].dim_param for name in read if known.get(name)} - {""}


def _require_comparable(model: Model) -> None:
    drawing = drawing_nodes(model.graph)
    if drawing:
        raise _NotApplicableError(f"every run draws other random numbers: {in_words(drawing)}")
    scaled = [node for node in every_node(model.graph) if node.op in _SCALED_BY_BATCH]
    if scaled:
        raise _NotApplicableError(f"dynamic quantization takes its scale from the whole batch: {in_words(scaled)}")


def _run_batch(
    program: Runs,
    inputs: Sequence[TensorSpec],
    axes: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
) -> tuple[Outputs, Feeds]:
    count = len(_SCALES)
    shapes = {name: list(shape) for name, shape in bind(inputs, input_shapes).shapes.items()}
    for name, axis in axes.items():
        shapes[name][axis] = count
    feeds = random_feeds(inputs, input_shapes={name: tuple(shape) for name, shape in shapes.items()}, seed=seed)
    for name, axis in axes.items():
        if feeds[name].dtype.kind == "f":
            scales = np.asarray(_SCALES).reshape([count if i == axis else 1 for i in range(feeds[name].ndim)])
            feeds[name] = (feeds[name] * scales).astype(feeds[name].dtype)
    return _run(program, feeds, count), feeds


def _run(program: Runs, feeds: Feeds, batch: int) -> Outputs:
    try:
        return program.run(feeds)
    except SiftError as error:
        raise _NotApplicableError(f"it does not run at a batch of {batch}: {error}") from error


def _sample(feeds: Feeds, axes: Mapping[str, int], i: int) -> Feeds:
    return {name: array.take([i], axes[name]) if name in axes else array for name, array in feeds.items()}


def _batch_axis_of(alone: Array, together: Array) -> int | None:
    """The axis of an output that is 1 for a sample alone and the batch for all of them, if nothing else differs."""
    if alone.ndim != together.ndim or alone.dtype.kind not in "fiub":
        return None
    differing = [axis for axis in range(alone.ndim) if alone.shape[axis] != together.shape[axis]]
    if len(differing) != 1 or (alone.shape[differing[0]], together.shape[differing[0]]) != (1, len(_SCALES)):
        return None
    return differing[0]


def _tolerance(model: Model) -> float:
    coarse = any(str(dtype_of(constant)) in _HALF for constant in model.initializers().values())
    coarse = coarse or any(node.op in _QUANTIZED for node in every_node(model.graph))
    return _COARSE_TOLERANCE if coarse else _TOLERANCE


def _difference(alone: Array, among: Array, tolerance: float) -> str:
    one, other = alone.astype(np.float64), among.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
    largest = float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0))
    # Negated, so that NaN counts as off.
    off = ~(error <= tolerance * max(largest, 1e-2))
    if not off.size or off.mean() <= _OFF:
        return ""
    worst = float(np.max(error, where=np.isfinite(error), initial=0.0))
    return f"{int(off.sum())} of {off.size} values differ from those of the sample alone, by up to {worst:.3g}"


def _reason(model: Model, axes: Mapping[str, int]) -> str:
    training = [entry.node for entry in training_nodes(model.graph)]
    if training:
        return f"in training mode: {in_words(training)}"
    name, axis = next(iter(axes.items()))
    elsewhere = f"if axis {axis} of input {name!r} is not a batch, give it the name of what it is in the export"
    reducing = [node for node in every_node(model.graph) if _reduces_first_axis(node)]
    return f"nodes that reduce axis 0: {in_words(reducing)}; {elsewhere}" if reducing else elsewhere


def _reduces_first_axis(node: gs.Node) -> bool:
    if node.op == "MeanVarianceNormalization":
        return 0 in node.attrs.get("axes", [0, 2, 3])
    if not node.op.startswith("Reduce") or node.op == "ReduceScatter":
        return False
    axes = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1:
        stored = constant_values(node.inputs[1])
        axes = None if stored is None else array_of(stored).reshape(-1).tolist()
    return axes is not None and 0 in axes
