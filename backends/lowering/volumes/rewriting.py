"""The graph in which images stand for volumes."""

from __future__ import annotations

from collections.abc import Callable

from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op, names_read
from sift_onnx.backends.lowering.matching.group_norms import GroupNormMatch, find_group_norms
from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes import convolutions, elementwise, joining, pooling
from sift_onnx.backends.lowering.volumes.forms import Form
from sift_onnx.backends.lowering.volumes.writer import VolumeWriter
from sift_onnx.operators.registry import Registry
from sift_onnx.operators.traits import DRAWING, ELEMENTWISE_BINARY, ELEMENTWISE_UNARY

__all__ = ["volumes_as_images"]

# Before, Pad and Slice have attributes for what they have inputs for from then on.
_FIRST_OPSET = 11

_RULES: Registry[Callable[[VolumeWriter, NodeView], None]] = Registry("a rule for volumes")
_RULES.add_table({
    "Conv": convolutions.convolution,
    "ConvTranspose": convolutions.transposed_convolution,
    "BatchNormalization": elementwise.of_channels,
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), elementwise.of_stacks),
    **dict.fromkeys(("Softmax", "LogSoftmax"), elementwise.softmax),
    **dict.fromkeys((*sorted(ELEMENTWISE_UNARY - DRAWING), "Clip", "Dropout"), elementwise.unary),
    **dict.fromkeys(sorted(ELEMENTWISE_BINARY), elementwise.broadcast),
    "Concat": joining.concat,
    "Split": joining.split,
    "Slice": joining.slice_,
    "Pad": joining.pad,
    **dict.fromkeys(("MaxPool", "AveragePool"), pooling.pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), pooling.global_pool),
    "ReduceMean": pooling.reduce_mean,
    "Resize": pooling.resize,
})  # fmt: skip


def volumes_as_images(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same of its volumes with operators of images.

    Convolutions and pools ask for a form of their operand. Other nodes take the form that it has, and what has no rule
    reads the volume. A form is made where it is first read. Each product is that of the model, and so is the order of
    sums within a frame.
    """
    is_volume = (len(graph.dims(node.input[1]) or ()) == 5 for node in graph.nodes if is_standard_op(node, "Conv"))
    if graph.opset < _FIRST_OPSET or not any(is_volume):
        return graph
    if any(pooling.is_counted_otherwise(NodeView(graph, index, {}, {})) for index in range(len(graph.nodes))):
        return graph
    return _rewritten(graph)


def _rewritten(graph: GraphView) -> GraphView:
    writer = VolumeWriter(graph)
    norms = {norm.nodes[-1]: norm for norm in find_group_norms(graph, ranks=(5,)) if writer.volume(norm.operand)}
    absorbed = {index for norm in norms.values() for index in norm.nodes[:-1]}
    for index, node in enumerate(graph.nodes):
        if index in absorbed:
            continue
        if index in norms:
            _normalize_groups(writer, norms[index])
            continue
        rule = _RULES.find(node.op_type, node.domain)
        try:
            if rule is None or any(graph.derived.get(name) == index for name in node.output):
                raise NotLowered("no rule for volumes")
            rule(writer, NodeView(graph, index, {}, {}))
        except (NotLowered, *CONTRADICTIONS):
            for name in dict.fromkeys(names_read(node)):
                writer.plain(name)
            writer.copy(index)
    for name in graph.outputs:
        writer.plain(name)
    return writer.written()


def _normalize_groups(writer: VolumeWriter, norm: GroupNormMatch) -> None:
    """Group normalization in the nodes that torch's exporter writes, of stacks."""
    graph = writer.graph
    apart, middle, together = (NodeView(graph, index, {}, {}) for index in norm.nodes)
    volume = writer.volume(norm.operand)
    assert volume is not None
    channels, depth, height, width = volume.sizes
    groups = writer.target((0, norm.spec.groups, -1))
    grouped = writer.write(apart, "Reshape", [writer.form(volume, Form.STACK), groups], Form.STACK)
    normalized = writer.write_like(middle, [grouped, *middle.proto.input[1:]], Form.STACK)
    sizes = writer.target_of((None, channels, depth, (height, width)))
    made = writer.write(together, "Reshape", [normalized, sizes], Form.STACK)
    writer.made(together, Form.STACK, made, volume.sizes)
