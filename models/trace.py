"""From a torch module to a clean ONNX graph, by either of torch's exporters."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import onnx
import torch
from torch import Tensor, nn

from sift_onnx.models.clean import clean
from sift_onnx.models.registry import Architecture, example_inputs

if TYPE_CHECKING:
    from sift_onnx.models.export import Batch, Exporter

__all__ = ["to_onnx"]


def to_onnx(
    module: nn.Module, architecture: Architecture, batch: Batch, exporter: Exporter, opset: int
) -> onnx.ModelProto:
    """Trace ``module``, which is in evaluation mode, exactly as it is: nothing is fused, shared or renamed.

    Nothing is printed, and no warning shown: what the exporters say is addressed to their developers.
    """
    dynamic = batch == "dynamic"
    # torch.export specializes axes of size 0 and 1, so an axis that is to stay open is traced at 2.
    inputs = example_inputs(architecture, 2 if batch == "dynamic" else batch)
    trace = _torchscript if exporter == "torchscript" else _dynamo
    with torch.no_grad(), _silence():
        proto = trace(module, inputs, architecture, dynamic, opset)
    return clean(proto, architecture.name, module.state_dict().keys(), dynamic)


def _torchscript(
    module: nn.Module, inputs: tuple[Tensor, ...], architecture: Architecture, dynamic: bool, opset: int
) -> onnx.ModelProto:
    buffer = io.BytesIO()
    names = (*architecture.input_names, *architecture.output_names)
    torch.onnx.export(
        module,
        inputs,
        buffer,  # type: ignore[arg-type]  # the annotation forgets file objects
        dynamo=False,
        opset_version=opset,
        input_names=architecture.input_names,
        output_names=architecture.output_names,
        dynamic_axes={name: {0: "batch"} for name in names} if dynamic else None,
        # Folding would fuse batch normalization, and rename every weight that it touches.
        do_constant_folding=False,
        # Otherwise initializers of equal value are merged, and would later be trained as one.
        keep_initializers_as_inputs=True,
    )
    return onnx.load_model_from_string(buffer.getvalue())


def _dynamo(
    module: nn.Module, inputs: tuple[Tensor, ...], architecture: Architecture, dynamic: bool, opset: int
) -> onnx.ModelProto:
    import onnx_ir as ir
    import onnx_ir.passes.common as common_passes
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common as rules

    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        verbose=False,
        opset_version=opset,
        input_names=architecture.input_names,
        output_names=architecture.output_names,
        dynamic_shapes=tuple({0: torch.export.Dim("batch")} for _ in inputs) if dynamic else None,
        # The default optimization fuses batch normalization, drops zero biases and merges equal initializers; what it
        # does to shapes is done below.
        optimize=False,
    )
    assert program is not None
    model = program.model
    common_passes.InlinePass()(model)
    parameters = module.state_dict().keys()

    def should_fold(node: ir.Node) -> bool | None:
        """No: a transposed weight would be a constant under another name, and untied from its original."""
        reads_parameter = any(value is not None and value.name in parameters for value in node.inputs)
        return False if reads_parameter and node.op_type != "Shape" else None

    optimizer.fold_constants(model, should_fold=should_fold)
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
