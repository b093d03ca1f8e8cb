"""From a torch module to a clean ONNX graph, by either of torch's exporters."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import onnx
import torch
from torch import Tensor, nn

from sift_onnx.model import Model
from sift_onnx.models.clean import clean
from sift_onnx.models.exporters import Batch, Exporter
from sift_onnx.models.graph_editing import keep
from sift_onnx.models.registry import Architecture, example_inputs

__all__ = ["to_onnx"]

# Names of open axes, by the name of an input or output and the number of the axis.
Axes = Mapping[str, Mapping[int, str]]
# Sizes that open axes are traced with. torch.export specializes those of size 0 and 1.
OPEN_BATCH = 2
OPEN_SEQUENCE = 7


def to_onnx(
    module: nn.Module,
    architecture: Architecture,
    batch: Batch,
    exporter: Exporter,
    opset: int,
    sequence: Batch | None = None,
) -> Model:
    """Trace ``module``, which is in evaluation mode, exactly as it is: nothing is fused, shared or renamed.

    Initializers are named by the module's ``state_dict``; a parameter with several names there has the first one. The
    model refers to the module's values, which are not copied. Output and warnings of the exporters are suppressed: they
    are meant for their developers.

    Args:
        module: what the architecture's builder made.
        architecture: names inputs, outputs and their axes.
        batch: size of the batch axes, or ``"dynamic"``.
        exporter: ``"torchscript"`` or ``"dynamo"``.
        opset: version of the default operator set.
        sequence: size of the sequence axes where there are any, or ``"dynamic"``; the usual one by default.
    """
    opened = {axis for axis, size in (("batch", batch), ("sequence", sequence)) if size == "dynamic"}
    axes = {
        name: {index: axis for index, axis in enumerate(names) if axis in opened}
        for name, names in (*architecture.inputs.items(), *architecture.outputs.items())
    }
    inputs = example_inputs(
        architecture,
        OPEN_BATCH if batch == "dynamic" else batch,
        OPEN_SEQUENCE if sequence == "dynamic" else sequence,
    )
    trace = _torchscript if exporter == "torchscript" else _dynamo
    with torch.no_grad(), _silence():
        proto = trace(module, inputs, architecture, axes, opset)
    weights = module.state_dict(keep_vars=True)
    cleaned = clean(proto, architecture.name, weights, axes)
    graph = Model.load(cleaned).graph
    for variable in graph.inputs:
        if variable.name in weights:
            variable.to_constant(weights[variable.name].detach().numpy())
    graph.inputs = [variable for variable in graph.inputs if variable.name not in weights]
    keep(cleaned.graph.input, lambda value: value.name not in weights)
    return Model(graph, origin=cleaned)


def _torchscript(
    module: nn.Module, inputs: tuple[Tensor, ...], architecture: Architecture, axes: Axes, opset: int
) -> onnx.ModelProto:
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        inputs,
        buffer,  # type: ignore[arg-type]  # the annotation forgets file objects
        dynamo=False,
        opset_version=opset,
        input_names=list(architecture.inputs),
        output_names=list(architecture.outputs),
        dynamic_axes=axes,
        # Folding would fuse batch normalization, and rename every weight that it touches.
        do_constant_folding=False,
        # Values would be copied, and may exceed the 2 GB of a protobuf message.
        export_params=False,
        # Otherwise initializers of equal value are merged, and would later be trained as one.
        keep_initializers_as_inputs=True,
    )
    proto = onnx.load_model_from_string(buffer.getvalue())
    # Sizes of open axes may be among them as numbers.
    del proto.graph.value_info[:]
    return proto


def _dynamo(
    module: nn.Module, inputs: tuple[Tensor, ...], architecture: Architecture, axes: Axes, opset: int
) -> onnx.ModelProto:
    import onnx_ir.passes.common as common_passes
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common as rules

    dims = {axis: torch.export.Dim(axis) for names in axes.values() for axis in names.values()}
    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        verbose=False,
        opset_version=opset,
        input_names=list(architecture.inputs),
        output_names=list(architecture.outputs),
        dynamic_shapes=tuple({i: dims[axis] for i, axis in axes[name].items()} for name in architecture.inputs)
        if dims
        else None,
        # The default optimization fuses batch normalization, drops zero biases and merges equal initializers; what it
        # does to shapes is done below.
        optimize=False,
    )
    assert program is not None
    model = program.model
    common_passes.InlinePass()(model)
    weights = module.state_dict(keep_vars=True)
    first_names = {id(weights[name]): name for name in reversed(weights)}
    initializers = model.graph.initializers
    for name in [name for name in initializers if name in weights]:
        value = initializers.pop(name)
        # A weight is an input until its graph is done: it is neither folded (a transposed one would be a constant
        # under another name, and untied from its original) nor copied.
        value.const_value = None
        value.name = first_names[id(weights[name])]
        model.graph.inputs.append(value)
    optimizer.fold_constants(model)
    rewriter.rewrite(model, [rules.materialize_reshape_shape_rule, rules.no_op_expand_rule])
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    proto: onnx.ModelProto = program.model_proto
    return proto


@contextmanager
def _silence() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
