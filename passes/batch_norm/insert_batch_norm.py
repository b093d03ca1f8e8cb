"""BatchNormalization for layers whose own was folded into them.

With statistics ``mean`` and ``var`` of a layer's outputs, each channel of

    gamma * (z - mean) / sqrt(var + epsilon) + beta,    gamma = sqrt(var + epsilon), beta = mean

is ``z`` itself: the model computes what it did, and in training its activations are normalized again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import onnxruntime

from sift_onnx.errors import PreconditionError, UsageError
from sift_onnx.graphs.constants import array_of, dtype_of
from sift_onnx.model import Model
from sift_onnx.operators.weight_operands import BIAS, WEIGHT
from sift_onnx.passes.base import Pass, PassResult, applied, record
from sift_onnx.passes.batch_norm.folded_batch_norms import find_folded, stored_parameter
from sift_onnx.passes.node_builder import NodeBuilder, part_of
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.store_computed_parameters import StoreComputedParameters
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
from sift_onnx.passes.settings import NOT_FOR_FILES, Globs

__all__ = ["Feeds", "InsertBatchNorm"]

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

_BATCHES = "batches, each an array for every input by name"


@dataclass(frozen=True)
class InsertBatchNorm(Pass):
    """Put a BatchNormalization after every layer that a normalization was folded into.

    1. The layers are those that an exporter has marked. Without marks they are the convolutions that have no
       normalization after them, save for those that give outputs of the model or gates: there never was one.
       :mod:`sift_onnx.passes.batch_norm.folded_batch_norms` has the rules.
    2. The model is run on ``data`` by onnxruntime, and the mean and variance of each channel are measured.
    3. The bias, if there is one, goes into the normalization, which is set to change nothing on average.

    Requires: calibration data. Ensures: the same outputs, to float rounding. A model without such layers is handed back
    as it is.

    Attributes:
        data: batches, each an array for every input by name; read once.
        epsilon: of the normalizations.
        momentum: of the normalizations; the share of the old running statistics that a training step keeps.
        only: globs over names of the layers' weights; all that are found by default.
    """

    name: ClassVar[str] = "insert-batch-norm"

    data: Annotated[Iterable[Feeds], NOT_FOR_FILES, _BATCHES] = field(hash=False)
    _: KW_ONLY
    epsilon: Annotated[float, "of the normalizations"] = 1e-5
    momentum: Annotated[float, "share of the old running statistics that a training step keeps"] = 0.9
    only: Annotated[Globs, "only layers with these weights, by initializer name"] = ()

    def check_settings(self) -> None:
        """Refuse data that is no batches.

        Raises:
            UsageError: it is of another kind.
        """
        if isinstance(self.data, (str, bytes, Mapping, np.ndarray)) or not isinstance(self.data, Iterable):
            raise UsageError(f"insert-batch-norm: data is of type {type(self.data).__name__}; pass {_BATCHES}")
        for feeds in self.data if isinstance(self.data, Sequence) else ():
            _refuse_other(feeds)

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the weights of the layers.

        Raises:
            PreconditionError: there is no data, or it gives a channel no finite statistics.
            UsageError: a glob of ``only`` matches no such layer, or the data does not fit the model's inputs.
        """
        prepared = applied(model, LiftConstants(), StoreComputedParameters(), UnshareInitializers())
        found = find_folded(prepared).weights
        for glob in self.only:
            if not any(fnmatchcase(name, glob) for name in found):
                raise UsageError(f"only={glob!r} matches no convolution or Gemm with a folded BatchNormalization")
        chosen = [name for name in found if not self.only or any(fnmatchcase(name, glob) for glob in self.only)]
        if not chosen:
            return PassResult(model, False, {"layers": []})
        copy = prepared.copy() if prepared is model else prepared
        nodes = [node for node in find_folded(copy).nodes if node.inputs[WEIGHT].name in chosen]
        statistics = _measure(copy, [node.outputs[0].name for node in nodes], self.data)
        builder = NodeBuilder(copy.graph)
        for node in nodes:
            self._insert(copy.graph, builder, node, *statistics[node.outputs[0].name])
        record(copy, {"pass": self.name, "layers": chosen})
        return PassResult(copy, True, {"layers": chosen})

    def _insert(self, graph: gs.Graph, builder: NodeBuilder, node: gs.Node, mean: Array, variance: Array) -> None:
        weight = stored_parameter(node.inputs[WEIGHT])
        assert weight is not None
        shift = _taken_bias(node, len(mean))
        parts = ("weight", "bias", "running_mean", "running_var")
        values = (np.sqrt(variance + self.epsilon), mean, mean - shift, variance)
        prefix = part_of(str(node.inputs[WEIGHT].name), "norm").removesuffix(".weight")
        constants = [
            builder.constant(f"{prefix}.{part}", value.astype(dtype_of(weight)))
            for part, value in zip(parts, values, strict=True)
        ]
        output = node.outputs[0]
        # The node's output keeps its name, which readers and value infos know; the convolution gets a new one.
        convolved = gs.Variable(f"{output.name}.convolved", dtype=output.dtype, shape=output.shape)
        node.outputs = [convolved]
        attributes = {"epsilon": self.epsilon, "momentum": self.momentum}
        norm = gs.Node("BatchNormalization", f"{node.name}.norm", attributes, [convolved, *constants], [output])
        graph.nodes.insert(graph.nodes.index(node) + 1, norm)


def _refuse_other(feeds: object) -> None:
    if not isinstance(feeds, Mapping):
        kind = type(feeds).__name__
        raise UsageError(f"insert-batch-norm: a batch is of type {kind}; pass an array for every input by name")


def _taken_bias(node: gs.Node, channels: int) -> Array:
    """Take the bias off a layer: what it added to each channel."""
    stored = stored_parameter(node.inputs[BIAS]) if len(node.inputs) > BIAS else None
    # Gemm adds beta times its bias.
    beta = float(node.attrs.pop("beta", 1.0))
    node.inputs = list(node.inputs)[:BIAS]
    if stored is None:
        return np.zeros(channels)
    return np.broadcast_to(beta * array_of(stored).astype(np.float64).reshape(-1), channels)


def _measure(model: Model, names: Sequence[str], data: Iterable[Feeds]) -> dict[str, tuple[Array, Array]]:
    """Mean and variance of each channel (axis 1) of tensors over all batches, in float64."""
    probe = model.copy()
    tensors = probe.graph.tensors()
    for name in names:
        # Its shape may be of another batch size.
        tensors[name].shape = None
    probe.graph.outputs = [tensors[name] for name in names]
    sums: dict[str, Array] = {}
    squares: dict[str, Array] = {}
    counts = dict.fromkeys(names, 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.onnx"
        probe.save(path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for feeds in data:
            _refuse_other(feeds)
            try:
                found = session.run(list(names), dict(feeds))
            except Exception as error:  # onnxruntime raises types of its own
                reason = str(error).strip().splitlines()[0]
                raise UsageError(f"insert-batch-norm: the data does not fit the model: {reason}") from error
            for name, values in zip(names, found, strict=True):
                axes = (0, *range(2, values.ndim))
                wide = values.astype(np.float64)
                sums[name] = sums.get(name, 0) + wide.sum(axes)
                squares[name] = squares.get(name, 0) + np.square(wide).sum(axes)
                counts[name] += values.size // values.shape[1]
    if not sums:
        raise PreconditionError("insert-batch-norm: there is no data; give at least one batch")
    statistics = {}
    for name in names:
        mean = sums[name] / counts[name]
        variance = np.maximum(squares[name] / counts[name] - np.square(mean), 0)
        if not np.all(np.isfinite(mean)) or not np.all(np.isfinite(variance)):
            raise PreconditionError(f"insert-batch-norm: {name!r} is not finite on the data; give data without NaN")
        statistics[name] = mean, variance
    return statistics
