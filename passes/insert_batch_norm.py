"""BatchNormalization for convolutions whose own was folded into them.

With statistics ``mean`` and ``var`` of a convolution's outputs, each channel of

    gamma * (z - mean) / sqrt(var + epsilon) + beta,    gamma = sqrt(var + epsilon), beta = mean

is ``z`` itself: the model computes what it did, and in training its activations are normalized again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import onnxruntime

from sift_onnx.errors import PreconditionError, UsageError
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult, record, register_pass
from sift_onnx.passes.building import Builder, part_of

__all__ = ["Feeds", "InsertBatchNorm", "folded_batch_norms"]

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

_WEIGHT, _BIAS = 1, 2
# Between the last convolution of a head and the model's output there may be these.
_SHAPE_ONLY = frozenset({"Concat", "Flatten", "Identity", "Reshape", "Resize", "Split", "Squeeze", "Transpose"})


@register_pass
class InsertBatchNorm(Pass):
    """Put a BatchNormalization behind every convolution that a normalization was folded into.

    1. Convolutions with a bias and without a normalization behind them are taken, save for those whose outputs are the
       model's own: there never was one.
    2. The model is run on ``data`` by onnxruntime, and the mean and variance of each channel are measured.
    3. The bias goes into the normalization, which is set to change nothing on average.

    Requires: calibration data. Ensures: the same outputs, to float rounding. A model without such convolutions is
    handed back as it is.
    """

    name: ClassVar[str] = "insert-batch-norm"

    def __init__(
        self,
        data: Iterable[Feeds],
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        only: Sequence[str] = (),
    ) -> None:
        """Settings of the pass.

        Args:
            data: batches, each an array for every input by name; read once.
            epsilon: of the normalizations.
            momentum: of the normalizations; the share of the old running statistics that a training step keeps.
            only: globs over names of convolution weights; all that are found by default.
        """
        self.data = data
        self.epsilon = epsilon
        self.momentum = momentum
        self.only = tuple(only)

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the weights of the convolutions.

        Raises:
            PreconditionError: there is no data, or it gives a channel no finite statistics.
            UsageError: a glob of ``only`` matches no such convolution, or the data does not fit the model's inputs.
        """
        found = folded_batch_norms(model)
        for glob in self.only:
            if not any(fnmatchcase(name, glob) for name in found):
                raise UsageError(f"only={glob!r} matches no convolution with a folded BatchNormalization")
        chosen = [name for name in found if not self.only or any(fnmatchcase(name, glob) for glob in self.only)]
        if not chosen:
            return PassResult(model, False, {"layers": []})
        copy = model.copy()
        nodes = [node for node in copy.graph.nodes if _is_folded(node, copy.graph) and _weight_name(node) in chosen]
        statistics = _measure(copy, [node.outputs[0].name for node in nodes], self.data)
        builder = Builder(copy.graph)
        for node in nodes:
            self._insert(copy.graph, builder, node, *statistics[node.outputs[0].name])
        record(copy, {"pass": self.name, "layers": chosen})
        return PassResult(copy, True, {"layers": chosen})

    def _insert(self, graph: gs.Graph, builder: Builder, node: gs.Node, mean: Array, variance: Array) -> None:
        bias = constant_values(node.inputs[_BIAS])
        assert bias is not None
        shift = array_of(bias)
        stem, parts = _weight_name(node), ("weight", "bias", "running_mean", "running_var")
        values = (np.sqrt(variance + self.epsilon), mean, mean - shift.astype(np.float64), variance)
        prefix = part_of(stem, "norm").removesuffix(".weight")
        constants = [
            builder.constant(f"{prefix}.{part}", value.astype(shift.dtype))
            for part, value in zip(parts, values, strict=True)
        ]
        output = node.outputs[0]
        # The node's output keeps its name, which readers and value infos know; the convolution gets a new one.
        convolved = gs.Variable(f"{output.name}.convolved", dtype=output.dtype, shape=output.shape)
        node.outputs = [convolved]
        node.inputs = list(node.inputs)[:_BIAS]
        attributes = {"epsilon": self.epsilon, "momentum": self.momentum}
        norm = gs.Node("BatchNormalization", f"{node.name}.norm", attributes, [convolved, *constants], [output])
        graph.nodes.insert(graph.nodes.index(node) + 1, norm)


def folded_batch_norms(model: Model) -> list[str]:
    """Names of the weights of convolutions that seem to have had a BatchNormalization.

    In a network that was designed with normalization, convolutions have no bias of their own. One that has a bias and
    no normalization behind it had its own folded in, unless it gives an output of the model.
    """
    return list(dict.fromkeys(_weight_name(node) for node in model.graph.nodes if _is_folded(node, model.graph)))


def _is_folded(node: gs.Node, graph: gs.Graph) -> bool:
    if node.op != "Conv" or len(node.inputs) <= _BIAS or node.inputs[_BIAS].is_empty():
        return False
    stored = all(constant_values(node.inputs[i]) is not None for i in (_WEIGHT, _BIAS))
    output = node.outputs[0]
    normalized = any(reader.op.endswith("Normalization") for reader in output.outputs)
    return stored and not normalized and not _is_shown(output, {id(t) for t in graph.outputs})


def _weight_name(node: gs.Node) -> str:
    return str(node.inputs[_WEIGHT].name)


def _is_shown(tensor: gs.Tensor, outputs: set[int]) -> bool:
    """Whether the tensor is an output of the model, save for its shape."""
    if id(tensor) in outputs:
        return True
    readers = [node for node in tensor.outputs if node.op in _SHAPE_ONLY]
    return any(_is_shown(output, outputs) for node in readers for output in node.outputs)


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
