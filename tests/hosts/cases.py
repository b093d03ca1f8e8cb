"""Every pass, a model on which each of them has something to do, and which host runs which pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from nets import Net
from onnx import helper
from onnx.numpy_helper import to_array

from sift_onnx.passes import (
    Densify,
    Doped,
    Factorized,
    FoldBatchNorm,
    InferenceMode,
    InlineFunctions,
    InsertBatchNorm,
    LiftConstants,
    LowRank,
    Parallel,
    Prune,
    RestoreViews,
    StoreComputedParameters,
    UnshareInitializers,
    Wide,
)
from sift_onnx.passes.base import Pass

Array = npt.NDArray[Any]

FEEDS: dict[str, Array] = {"x": np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)}

PASSES: dict[str, Callable[[], Pass]] = {
    "wide": lambda: Wide("0.75"),
    "parallel": lambda: Parallel("0.75"),
    "factorized": lambda: Factorized("0.75"),
    "doped": lambda: Doped("0.75"),
    "low-rank": lambda: LowRank(1),
    "prune": lambda: Prune("0.5"),
    "densify": lambda: Densify(),
    "insert-batch-norm": lambda: InsertBatchNorm([FEEDS]),
    "fold-batch-norm": lambda: FoldBatchNorm(),
    "unshare-initializers": lambda: UnshareInitializers(),
    "lift-constants": lambda: LiftConstants(),
    "inline-functions": lambda: InlineFunctions(),
    "inference-mode": lambda: InferenceMode(),
    "restore-views": lambda: RestoreViews(),
    "store-computed-parameters": lambda: StoreComputedParameters(),
}
# What the others do to the outputs is meant.
KEEPS_OUTPUTS = {
    "densify", "fold-batch-norm", "inference-mode", "inline-functions", "insert-batch-norm", "lift-constants",
    "restore-views", "store-computed-parameters", "unshare-initializers",
}  # fmt: skip
# Applied first: a dense model has nothing for these.
FIRST: dict[str, Callable[[], Pass]] = {"densify": PASSES["prune"]}

ADAPTED = list(PASSES)
# Hosts that run a pass among their own, and the passes that they run.
HOSTS: dict[str, list[str]] = {
    "onnx_ir": ADAPTED,
    # The exporter folds constants and normalizations itself, inlines functions, and writes no look-up for such a net.
    "torch": [
        "wide",
        "parallel",
        "factorized",
        "doped",
        "low-rank",
        "prune",
        "densify",
        "insert-batch-norm",
        "unshare-initializers",
    ],
    "onnxscript": ["parallel", "factorized", "doped"],
    "graphsurgeon": ADAPTED,
    "qonnx": ADAPTED,
    "olive": [name for name in ADAPTED if name != "insert-batch-norm"],
}
# Tools that run before or after a pass, and the orders.
TOOLS: dict[str, list[str]] = {
    "onnxslim": ["before", "after"],
    "onnxsim": ["before", "after"],
    "onnxoptimizer": ["before", "after"],
    "onnxruntime": ["before", "after"],
    "quantize_static": ["after"],
    "quantize_dynamic": ["after"],
}


def network() -> onnx.ModelProto:
    """A residual network with something for every pass.

    Two normalizations that an exporter merged the parameters of, a convolution that another was folded into, a
    parameter made by a node, variances computed from what is stored, a dropout of nothing in training mode, a view
    written as a look-up, and a local function.
    """
    net = Net(opset=17)
    body = [helper.make_node("Add", ["a", "a"], ["b"], name="twofold")]
    net.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    weight = net.weight(8, 3, 3, 3, name="stem.weight", fan_in=27)
    bias = net.constant(np.linspace(-1, 1, 8), "stem.bias")
    stem = net.op("Conv", net.input("x", 1, 3, 8, 8), weight, bias, pads=[1] * 4, name="stem")
    x = net.op("Twice", net.op("Relu", stem), domain="local", name="twice")
    ones, zeros = net.constant([1.0] * 8, "ones"), net.constant([0.0] * 8, "zeros")
    for name in ("a", "b"):
        mean = net.constant([0.1] * 8, f"{name}.mean")
        deviation = net.constant(np.linspace(0.9, 1.1, 8), f"{name}.deviation")
        variance = net.op("Mul", deviation, deviation, name=f"{name}.var")
        y = net.op(
            "BatchNormalization", net.conv(x, 8, 8, 3, name=name), ones, zeros, mean, variance, name=f"{name}.bn"
        )
        x = net.op("Add", x, net.op("Relu", y), name=f"{name}.sum")
    filled = onnx.numpy_helper.from_array(np.float32([0.25]), "filled")
    bias = net.op("ConstantOfShape", net.constant([8]), value=filled, name="c.bias")
    weight = net.weight(8, 8, 3, 3, name="c.weight", fan_in=72)
    x = net.op("Relu", net.op("Conv", x, weight, bias, pads=[1] * 4, name="c"))
    x = net.op("Dropout", x, net.constant(np.float32(0)), net.constant(np.array(True)), name="drop")
    flat = net.op("Reshape", x, net.constant([-1]), name="flat")
    x = net.op("Gather", flat, net.constant(np.arange(512).reshape(1, 8, 8, 8)), name="view")
    net.output(net.conv(x, 8, 4, name="head"), 1, 4, 8, 8)
    # Where an element of a view lies depends on the recorded shape of what is viewed.
    return onnx.shape_inference.infer_shapes(net.model(), data_prop=True)


def passes_of(name: str) -> list[Pass]:
    """The pass of a name, and before it what it needs to have something to do."""
    return [table[name]() for table in (FIRST, PASSES) if name in table]


def changed_by(passes: Sequence[Pass], proto: onnx.ModelProto) -> onnx.ModelProto:
    """What passes make of a model, one after the other; each of them changes something."""
    for pass_ in passes:
        result = pass_(proto)
        assert result.changed, pass_.name
        proto = result.model.to_proto()
    return proto


def content(proto: onnx.ModelProto) -> dict[str, object]:
    """What a model says, whatever way of saying it a library prefers."""
    graph = proto.graph
    used = {node.domain for node in graph.node}
    return {
        "nodes": [
            (n.op_type, n.domain, n.name, list(n.input), list(n.output), sorted(map(str, n.attribute)))
            for n in graph.node
        ],
        "inputs": [(v.name, str(v.type)) for v in graph.input],
        "outputs": [(v.name, str(v.type)) for v in graph.output],
        "weights": {
            t.name: (list(t.dims), t.data_type, sha256(to_array(t).tobytes()).hexdigest()) for t in graph.initializer
        },
        "metadata": {e.key: e.value for e in proto.metadata_props},
        "opsets": {e.domain: e.version for e in proto.opset_import if e.domain in used},
        "functions": [f.name for f in proto.functions],
    }


def outputs(proto: onnx.ModelProto, feeds: Mapping[str, Array] = FEEDS) -> list[Array]:
    """What onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model of its own, since some tools change what they are given."""
    return onnx.ModelProto.FromString(proto.SerializeToString())
