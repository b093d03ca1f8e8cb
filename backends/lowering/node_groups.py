"""Nodes as the partition sees them: what kernels could run, what they cannot, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sift_onnx.backends.lowering.branches import BranchMatch, find_branches
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, names_read
from sift_onnx.backends.lowering.matching.attention import AttentionMatch, find_attentions
from sift_onnx.backends.lowering.matching.byte_chains import find_byte_functions
from sift_onnx.backends.lowering.matching.cached_attention import CachedMatch, find_cached_attentions
from sift_onnx.backends.lowering.matching.gelu import GeluMatch, find_gelus
from sift_onnx.backends.lowering.matching.group_norms import GroupNormMatch, find_group_norms
from sift_onnx.backends.lowering.matching.integer_layers import find_integer_layers
from sift_onnx.backends.lowering.matching.mish import find_mishes
from sift_onnx.backends.lowering.matching.norms import NormMatch, find_norms
from sift_onnx.backends.lowering.matching.rotations import RotationMatch, find_rotations
from sift_onnx.backends.lowering.matching.shuffles import ShuffleMatch, find_shuffles
from sift_onnx.backends.lowering.rules import (
    NodeView,
    NotLowered,
    Step,
    View,
    byte_function,
    integer_layer,
    lower_node,
    operand_view,
)
from sift_onnx.backends.lowering.rules.flat_images import has_image, on_images
from sift_onnx.backends.lowering.rules.step import dims_of
from sift_onnx.backends.lowering.specs import (
    Elementwise,
    LayerNormalization,
    LinearLayer,
    QuantizedMatmul,
    Recurrent,
    result_dims,
)
from sift_onnx.backends.lowering.weights import WeightMatrix

__all__ = ["NodeGroup", "find_node_groups", "given_up", "needed"]


@dataclass(frozen=True)
class NodeGroup:
    """One node, or several that are one operator.

    Attributes:
        nodes: their indices.
        reads: values that are read, constants left out: by the kernels where these do it, or else by the nodes.
        writes: values that others may read; kernels have a group for each output of a node.
        step: what kernels would do; None where they cannot.
        reason: why not.
    """

    nodes: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    step: Step | None
    reason: str = ""


def find_node_groups(
    graph: GraphView, read_weights: Callable[[Sequence[WeightMatrix]], None]
) -> tuple[list[NodeGroup], dict[str, Dims]]:
    """The groups of ``graph`` in topological order, and the sizes of what kernels make.

    Some are not :func:`needed`, such as what computes the target of a Reshape that kernels know the sizes of.

    Args:
        graph: the model.
        read_weights: the back end's: it calls ``record`` of every matrix. All are read at once, after the rules, which
            do not ask for values.
    """
    graph.fold_floats_of_sizes()
    while True:
        groups, dims = _node_groups(graph)
        specs = [group.step.spec for group in groups if group.step is not None]
        weights = [spec.weights for spec in specs if isinstance(spec, (LinearLayer, Recurrent))]
        read_weights(weights)
        not_finite = {matrix.name for matrix in weights if not matrix.is_finite}
        if not not_finite:
            for spec in specs:
                if isinstance(spec, QuantizedMatmul):
                    spec.weights.read()
            return groups, dims
        # The nodes after such a layer may be lowered differently: kernels no longer produce their operand.
        graph.not_finite |= not_finite


def _node_groups(graph: GraphView) -> tuple[list[NodeGroup], dict[str, Dims]]:
    # First, since they know sizes that others ask for.
    of_decoders: dict[int, CachedMatch | RotationMatch] = {}
    of_decoders.update((match.nodes[-1], match) for match in find_cached_attentions(graph))
    of_decoders.update((match.nodes[-1], match) for match in find_rotations(graph))
    gelus = {gelu.nodes[-1]: gelu for gelu in (*find_gelus(graph), *find_mishes(graph))}
    attentions = {attention.nodes[-1]: attention for attention in find_attentions(graph)}
    attentions = {i: match for i, match in attentions.items() if not match.is_crossed or i not in of_decoders}
    of_decoders = {index: match for index, match in of_decoders.items() if index not in attentions}
    norms = {norm.nodes[-1]: norm for norm in find_norms(graph)}
    shuffles = {shuffle.nodes[-1]: shuffle for shuffle in find_shuffles(graph)}
    group_norms = {norm.nodes[-1]: norm for norm in find_group_norms(graph)}
    integers = {layer.nodes[-1]: layer for layer in find_integer_layers(graph)}
    functions = {found.nodes[-1]: found for found in find_byte_functions(graph)}
    of_images = shuffles | group_norms
    branches = {match.nodes[-1]: match for match in find_branches(graph)}
    several = gelus | attentions | norms | of_images | of_decoders | branches | integers | functions
    matched = {index: found.nodes for index, found in several.items()}
    absorbed = {index for nodes in matched.values() for index in nodes[:-1]}
    views: dict[str, View] = {}
    dims: dict[str, Dims] = {}
    groups: list[NodeGroup] = []
    made_of_constants: dict[int, dict[str, None]] = {}
    for index, node in enumerate(graph.nodes):
        if index in absorbed or any(graph.derived.get(name) == index for name in node.output):
            continue
        writes = tuple(filter(None, node.output))
        nodes = matched.get(index, (index,))
        steps: tuple[Step, ...]
        try:
            if index in gelus:
                steps = _gelu_steps(graph, gelus[index], views, dims)
            elif index in attentions:
                steps = (_attention_step(graph, attentions[index], views, dims),)
            elif index in norms:
                steps = (_norm_step(graph, norms[index], views, dims),)
            elif index in of_decoders:
                steps = (_decoder_step(graph, of_decoders[index], views, dims),)
            elif index in of_images:
                steps = _image_steps(graph, of_images[index], views, dims)
            elif index in branches:
                steps = _branch_steps(graph, branches[index], views, dims)
            elif index in functions:
                steps = (byte_function(NodeView(graph, index, views, dims), functions[index]),)
            elif index in integers:
                steps = (integer_layer(NodeView(graph, integers[index].layer, views, dims), integers[index]),)
            else:
                steps = lower_node(graph, index, views, dims)
        except NotLowered as reason:
            groups.append(NodeGroup(nodes, values_read(graph, nodes), writes, None, str(reason)))
            continue
        if index in graph.moves:
            steps = tuple(replace(step, is_extra=True) for step in steps)
        for step in steps:
            views[step.output] = step.result_view
            if step.output not in graph.producers:
                graph.intermediates.add(step.output)
            first, *others = (dims.get(name) or graph.dims(name) or () for name in step.inputs)
            dims[step.output] = graph.usual(result_dims(step.spec, first, *others[:1]))
            reads = tuple(dict.fromkeys(n for n in (*step.inputs, *step.arrays) if n and n not in graph.constants))
            for name in reads:
                if name in graph.derived:
                    made_of_constants.setdefault(graph.derived[name], {})[name] = None
            groups.append(NodeGroup(step.nodes, reads, step.written, step))
    groups = _with_folded_operands(graph, groups)
    constant = [
        NodeGroup((index,), (), left, None, "it makes an operand of the kernels out of constants")
        for index, names in made_of_constants.items()
        if (left := tuple(name for name in names if name not in graph.constants))
    ]
    return [*constant, *groups], dims


def _with_folded_operands(graph: GraphView, groups: list[NodeGroup]) -> list[NodeGroup]:
    """The groups once operands that follow from constants have become constants, such as a part of a table.

    The first operand of a step stays a value that enters the region: the sizes of the others follow from it.
    """
    operands = {name for group in groups if group.step is not None for name in group.step.inputs[1:]}
    others = {name for group in groups if group.step is not None for name in (group.step.inputs[0], *group.step.arrays)}
    folded = {name for name in operands - others if name in graph.derived and graph.fold(name)}
    if not folded:
        return groups
    return [replace(group, reads=tuple(name for name in group.reads if name not in folded)) for group in groups]


def given_up(graph: GraphView, group: NodeGroup, reason: str) -> NodeGroup:
    """``group`` for other means than kernels; nodes that compute on constants go there with their readers."""
    return replace(group, step=None, reason=reason, reads=values_read(graph, group.nodes))


def values_read(graph: GraphView, nodes: tuple[int, ...]) -> tuple[str, ...]:
    """What nodes read that others make and that does not follow from constants alone."""
    made = {name for i in nodes for name in graph.nodes[i].output}
    run = [node for i in nodes for node in graph.size_nodes.get(i, [graph.nodes[i]])]
    made |= {name for node in run for name in node.output}
    read = dict.fromkeys(name for node in run for name in names_read(node))
    return tuple(n for n in read if n not in graph.constants and n not in graph.derived and n not in made)


def _gelu_steps(
    graph: GraphView, found: GeluMatch, views: Mapping[str, View], dims: Mapping[str, Dims]
) -> tuple[Step, ...]:
    view = operand_view(graph, found.operand, views, dims)
    output = graph.nodes[found.nodes[-1]].output[0]
    step = Step(Elementwise("first", (found.activation, 0.0, 0.0)), (found.operand,), output, view, view, found.nodes)
    if not has_image(found.operand, views):
        return (step,)
    return on_images(replace(step, view="image", result_view="image"), dims_of(graph, found.operand, dims), views)


def _attention_step(
    graph: GraphView, found: AttentionMatch, views: Mapping[str, View], dims: Mapping[str, Dims]
) -> Step:
    for name in found.operands:
        operand_view(graph, name, views, dims, "rows")
    output = graph.nodes[found.nodes[-1]].output[0]
    others = tuple(index for index in found.nodes if index != found.softmax)
    return Step(found.spec, found.operands, output, "rows", "rows", (found.softmax, *others), found.mask)


def _decoder_step(
    graph: GraphView, found: CachedMatch | RotationMatch, views: Mapping[str, View], dims: Mapping[str, Dims]
) -> Step:
    for name in found.operands:
        operand_view(graph, name, views, dims, "rows")
    output = graph.nodes[found.nodes[-1]].output[0]
    if isinstance(found, RotationMatch):
        return Step(found.spec, found.operands, output, "rows", "rows", (found.nodes[-1], *found.nodes[:-1]))
    others = tuple(index for index in found.nodes if index != found.softmax)
    return Step(found.spec, found.operands, output, "rows", "rows", (found.softmax, *others), cache=found.cache)


def _norm_step(graph: GraphView, found: NormMatch, views: Mapping[str, View], dims: Mapping[str, Dims]) -> Step:
    view: View = "image" if found.of_pixels else "rows"
    operand_view(graph, found.operand, views, dims, view)
    output = graph.nodes[found.nodes[-1]].output[0]
    spec = LayerNormalization(found.scale, found.shift, found.epsilon, found.is_centered, found.least)
    return Step(spec, (found.operand,), output, view, view, found.nodes)


def _image_steps(
    graph: GraphView, found: ShuffleMatch | GroupNormMatch, views: Mapping[str, View], dims: Mapping[str, Dims]
) -> tuple[Step, ...]:
    own = dims_of(graph, found.operand, dims)
    operand_view(graph, found.operand, views, dims, "image" if len(own) == 4 else None)
    output = graph.nodes[found.nodes[-1]].output[0]
    step = Step(found.spec, (found.operand,), output, "image", "image", found.nodes)
    return on_images(step, own, views)


def _branch_steps(
    graph: GraphView, found: BranchMatch, views: Mapping[str, View], dims: Mapping[str, Dims]
) -> tuple[Step, ...]:
    for name in found.operands:
        operand_view(graph, name, views, dims, "image")
    return found.steps(graph.nodes[found.nodes[-1]].output[0])


def needed(groups: list[NodeGroup], graph: GraphView) -> list[NodeGroup]:
    """The groups whose values something needs, in the same order."""
    wanted = set(graph.outputs)
    kept = []
    for group in reversed(groups):
        if wanted.intersection(group.writes):
            wanted.update(group.reads)
            kept.append(group)
    return kept[::-1]
