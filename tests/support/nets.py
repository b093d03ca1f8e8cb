"""Small graphs for the tests of axis rules: built by hand, widened, and run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sift_onnx.analysis.graph_analysis import analyze, known_shapes
from sift_onnx.model import Model
from sift_onnx.passes import Wide

Array = np.ndarray[Any, np.dtype[Any]]
MICROSOFT = "com.microsoft"


class Net:
    """A graph under construction. Nodes are named after what they produce, weights ``<node>.weight``."""

    def __init__(self, opset: int = 20, seed: int = 0) -> None:
        self.opset = opset
        self.feeds: dict[str, Array] = {}
        self.functions: list[onnx.FunctionProto] = []
        self.value_infos: list[onnx.ValueInfoProto] = []
        self._rng = np.random.default_rng(seed)
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: dict[str, tuple[int, ...] | None] = {}
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._count = 0

    def input(self, name: str, *shape: int, values: Array | None = None, declared: list[Any] | None = None) -> str:
        """A graph input, fed with ``values`` or with noise; ``declared`` is its shape in the file."""
        feed = self._rng.standard_normal(shape).astype(np.float32) if values is None else values
        self.feeds[name] = feed
        element = helper.np_dtype_to_tensor_dtype(feed.dtype)
        self._inputs.append(helper.make_tensor_value_info(name, element, declared or list(feed.shape)))
        return name

    def output(self, name: str, *shape: int) -> None:
        """A graph output; its shape is inferred where none is given."""
        self._outputs[name] = shape or None

    def constant(self, values: Any, name: str = "", dtype: Any = None) -> str:
        """An initializer."""
        array = np.asarray(values, dtype=dtype)
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)
        name = name or self._fresh("constant")
        self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, *shape: int, name: str = "", fan_in: int = 0) -> str:
        """A random initializer that keeps the variance of what it is multiplied with."""
        fan = fan_in or math.prod(shape) // max(shape[-1], 1)
        return self.constant((self._rng.standard_normal(shape) / math.sqrt(fan)).astype(np.float32), name)

    def op(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """A node; the name of its output, or the names of several: ``name``, ``name.1``, ..."""
        name = name or self._fresh(kind.lower())
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=name, domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 1, *, name: str = "", **attrs: Any) -> str:
        """A convolution that keeps the spatial size; ``inputs`` counts all groups."""
        name = name or self._fresh("conv")
        fan_in = inputs // attrs.get("group", 1) * kernel**2
        shape = (outputs, inputs // attrs.get("group", 1), kernel, kernel)
        weight = self.weight(*shape, name=f"{name}.weight", fan_in=fan_in)
        return str(self.op("Conv", x, weight, name=name, pads=[kernel // 2] * 4, **attrs))

    def dense(self, x: str, inputs: int, outputs: int, *, name: str = "") -> str:
        """A matrix product with a weight ``[inputs, outputs]``."""
        name = name or self._fresh("dense")
        return str(self.op("MatMul", x, self.weight(inputs, outputs, name=f"{name}.weight"), name=name))

    # What stands around the operator under test: two layers on either side, since the first and the last stay dense.

    def images(self, channels: int, size: int = 8) -> str:
        """``[1, channels, size, size]`` behind the convolutions ``stem`` and ``before``."""
        stem = self.conv(self.input("x", 1, 3, size, size), 3, 6, name="stem")
        return self.conv(self.op("Relu", stem), 6, channels, name="before")

    def images_end(self, x: str, channels: int) -> None:
        """The convolutions ``after`` and ``head``, which has the output."""
        self.output(self.conv(self.op("Relu", self.conv(x, channels, 6, name="after")), 6, 2, name="head"))

    def tokens(self, width: int, length: int = 5, batch: int = 1) -> str:
        """``[batch, length, width]`` behind the matrix products ``stem`` and ``before``."""
        stem = self.dense(self.input("x", batch, length, 4), 4, 6, name="stem")
        return self.dense(self.op("Relu", stem), 6, width, name="before")

    def tokens_end(self, x: str, width: int) -> None:
        """The matrix products ``after`` and ``head``, which has the output."""
        self.output(self.dense(self.op("Relu", self.dense(x, width, 6, name="after")), 6, 2, name="head"))

    def model(self) -> onnx.ModelProto:
        """The graph as a model."""
        domains = {node.domain for node in self._nodes} | {f.domain for f in self.functions}
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains - {""}))]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self._outputs]
        graph = helper.make_graph(
            self._nodes, "net", self._inputs, outputs, list(self._initializers.values()), value_info=self.value_infos
        )
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=self.functions)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        types = {info.name: info.type for info in inferred.graph.value_info}
        types.update({info.name: info.type for info in inferred.graph.output})
        for info in model.graph.output:
            shape = self._outputs[info.name]
            if shape is None and not types[info.name].tensor_type.HasField("shape"):
                shape = run(model, self.feeds)[info.name].shape  # behind an operator that onnx does not know
            if shape is None:
                info.type.CopyFrom(types[info.name])
            else:
                info.CopyFrom(helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, shape))
        return model

    def _fresh(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array], *, reference: bool = False) -> dict[str, Array]:
    """The values of all tensors that the nodes of ``proto`` produce, by onnxruntime without its own rewrites."""
    traced = onnx.ModelProto.FromString(proto.SerializeToString())
    outputs = {info.name for info in traced.graph.output}
    produced = [name for node in traced.graph.node for name in node.output if name and name not in outputs]
    traced.graph.output.extend(onnx.ValueInfoProto(name=name) for name in produced)
    names = [info.name for info in traced.graph.output]
    if reference:
        return dict(zip(names, ReferenceEvaluator(traced).run(None, dict(feeds)), strict=True))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(traced.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@dataclass
class Widened:
    """A model before and after, both of which have been run.

    Attributes:
        report: of the pass.
        proto: the wide model.
        before: value of every tensor of the original that a node produces.
        after: the same of the wide model.
        initializers: values of the initializers of the wide model, by name.
    """

    report: Mapping[str, Any]
    proto: onnx.ModelProto
    before: dict[str, Array]
    after: dict[str, Array]
    initializers: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.initializers = {t.name: numpy_helper.to_array(t) for t in self.proto.graph.initializer}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor of the wide model, as it came out when it was run."""
        found = self.initializers[name] if name in self.initializers else self.after[name]
        return tuple(found.shape)

    def node(self, name: str) -> onnx.NodeProto:
        """The node that produces ``name``."""
        return next(node for node in self.proto.graph.node if name in node.output)

    def attr(self, node: str, name: str) -> Any:
        """The value of an attribute of the node that produces ``node``."""
        return next(helper.get_attribute_value(a) for a in self.node(node).attribute if a.name == name)

    def read(self, node: str, i: int) -> list[Any]:
        """The constant that a node reads as its input ``i``."""
        return list(self.initializers[self.node(node).input[i]].reshape(-1).tolist())

    def status(self, layer: str) -> str:
        """``sparse``, ``dense`` or ``unchanged``."""
        return str(next(entry["status"] for entry in self.report["layers"] if entry["name"] == layer))

    def reason(self, layer: str) -> str:
        """Why axes of a layer are pinned."""
        return "; ".join(entry["reason"] for entry in self.report["pinned"] if layer in entry["layers"])


def _is_valid(proto: onnx.ModelProto) -> bool:
    """Whether the checker accepts a model, which it does not for deprecated operators and onnxruntime's own ones."""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def widen(
    net: Net | onnx.ModelProto,
    sparsity: float | str = 0.75,
    *,
    feeds: Mapping[str, Array] | None = None,
    reference: bool = False,
    **settings: Any,
) -> Widened:
    """Widen a graph and run it before and after.

    The outputs must keep their shapes and be finite, every shape that the analysis predicts must be the one that comes
    out, and each sparse layer must have as many non-zeros as the original had weights.
    """
    proto = net.model() if isinstance(net, Net) else net
    feeds = net.feeds if feeds is None and isinstance(net, Net) else feeds
    assert feeds is not None
    settings.setdefault("budget", "layer")
    result = Wide(sparsity, **settings)(proto)
    wide = result.model.to_proto()
    if _is_valid(proto):
        onnx.checker.check_model(wide, full_check=True)
    widened = Widened(
        result.report, wide, run(proto, feeds, reference=reference), run(wide, feeds, reference=reference)
    )
    for info in wide.graph.output:
        assert widened.after[info.name].shape == widened.before[info.name].shape, info.name
        assert np.isfinite(widened.after[info.name]).all(), info.name
    analysis = analyze(Model.load(wide), settings.get("input_shapes"), attention=settings.get("attention", "head-dim"))
    for name, shape in known_shapes(analysis).items():
        if name in widened.after:
            assert tuple(widened.after[name].shape) == tuple(shape), name
    for layer in result.report["layers"]:
        if layer["status"] == "sparse" and settings["budget"] == "layer":
            positions = layer["macs_after"] // layer["nnz"]
            assert 0 <= layer["macs_before"] - layer["macs_after"] < positions, layer["name"]
    return widened
