"""A model's outputs as a machine would compute them, compared with onnxruntime's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from sift_onnx.analysis.graph_analysis import fitting_inputs
from sift_onnx.analysis.training_mode import drawing_nodes, in_words, training_nodes
from sift_onnx.backends.dataflow.execution.functional_model import FunctionalModel
from sift_onnx.backends.dataflow.execution.outputs import Arithmetic, Executed, difference
from sift_onnx.backends.dataflow.machines.machine import Machine
from sift_onnx.backends.onnxruntime import OnnxRuntimeBackend
from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model, ModelLike
from sift_onnx.shapes.random_inputs import random_feeds

__all__ = ["execute"]


def execute(
    model: ModelLike,
    machine: Machine,
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    seed: int = 0,
    arithmetic: Arithmetic = "float32",
) -> Executed:
    """Run ``model`` as ``machine`` would, and in onnxruntime, on the same random inputs.

    Args:
        model: anything that :meth:`Model.load` takes.
        machine: in ``float16``, its grid gives the order in which partial sums arrive.
        batch: of a model whose batch is dynamic; one that was exported at a fixed batch runs at that.
        input_shapes: sizes of dynamic axes.
        seed: of the inputs.
        arithmetic: of the weighted nodes.

    Raises:
        UsageError: an input shape is missing or wrong.
        UnsupportedError: the machine has no grid, and ``float16`` was asked for; or two runs of the model would differ,
            since a node is in training mode or draws random numbers.
        BackendError: onnxruntime cannot run the model.
    """
    loaded = Model.load(model)
    by_chance = [entry.node for entry in training_nodes(loaded.graph)] + drawing_nodes(loaded.graph)
    if by_chance:
        raise UnsupportedError(
            f"outputs cannot be compared: in training mode, or drawing random numbers: {in_words(by_chance)}; export "
            "the network after model.eval(), or use fidelity 'fast', which counts such nodes as at inference"
        )
    program = FunctionalModel(loaded, machine, arithmetic)
    feeds = random_feeds(
        program.inputs, batch, fitting_inputs(loaded, input_shapes, batch, program.inputs).shapes, seed
    )
    returned = program.run(feeds)
    # A file is read by onnxruntime itself, since a proto ends at 2 GB.
    source = model if isinstance(model, (str, Path, onnx.ModelProto)) else loaded.to_proto()
    expected = OnnxRuntimeBackend().compile(source).run(feeds)
    return Executed(
        arithmetic=arithmetic,
        seed=seed,
        inputs={name: array.shape for name, array in feeds.items()},
        nodes=dict(sorted(Counter(placement.placement for placement in program.placements).items())),
        outputs=tuple(difference(name, array, expected[name]) for name, array in returned.items()),
        arrays=returned,
    )
