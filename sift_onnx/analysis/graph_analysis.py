"""Run the rules over a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import onnx_graphsurgeon as gs

from sift_onnx.analysis.axes.sizes import Axis, AxisError, size_of
from sift_onnx.analysis.findings import AttentionGrowth, AxisAnalysis, Cause, Element, elements_of
from sift_onnx.analysis.fixed_weights import SAME_KERNEL, fixed_weights
from sift_onnx.analysis.heads import head_splits, splits_of_compared_features
from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.analysis.rule_context import RuleContext, sizes_behind
from sift_onnx.analysis.rule_registry import rule_for
from sift_onnx.analysis.rules.attention_scale import find_scales
from sift_onnx.analysis.rules.shape_values import evaluate
from sift_onnx.analysis.subgraphs import captured
from sift_onnx.errors import SiftError, UnsupportedError, UsageError
from sift_onnx.graphs.constants import constant_values
from sift_onnx.graphs.topological_order import index_in_cycle, topological_order
from sift_onnx.model import Model
from sift_onnx.operators.domains import opset_versions
from sift_onnx.operators.labels import node_label, node_name, operator_name
from sift_onnx.shapes.inference import Shapes, infer_shapes
from sift_onnx.shapes.input_binding import BoundInputs, bind, bindings
from sift_onnx.shapes.open_axes import extents_of
from sift_onnx.shapes.tensor_specs import TensorSpec, model_inputs

__all__ = ["analyze", "fitting_inputs"]

# What a rule stumbles over where a node's operands or attributes contradict each other and no check has noticed.
_CONTRADICTIONS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class _Growth:
    """What may grow, and in which way; see :func:`analyze`."""

    attention: AttentionGrowth = "head-dim"
    resize_outputs: tuple[str, ...] = ()
    whole_groups: bool = False
    fixed: Mapping[str, str] | None = None


def analyze(
    model: Model,
    input_shapes: Mapping[str, Sequence[int]] | BoundInputs | None = None,
    *,
    attention: AttentionGrowth = "head-dim",
    resize_outputs: Sequence[str] = (),
    whole_groups: bool = False,
    fixed: Mapping[str, str] | None = None,
) -> AxisAnalysis:
    """Find out which axes of ``model`` can grow, and which of them together.

    Graph inputs and outputs keep their sizes. A node without a rule keeps its inputs and outputs as they are.

    Args:
        model: the model; not changed.
        input_shapes: sizes of dynamic input axes. Of those that it lacks, the first of
            :func:`sift_onnx.shapes.input_binding.bindings` that the graph does not contradict. Shapes that are bound
            already are those of all inputs, and an empty cache is one of them.
        attention: which part of an attention width grows.
        resize_outputs: globs over graph outputs that may change their size.
        whole_groups: whether normalizations get more groups, in place of wider ones, and attention between features
            more heads.
        fixed: weights that are fixed functions, as an analysis at other shapes has found them; their values are read
            unless it is given.

    Raises:
        UsageError: an input shape is missing or wrong.
        UnsupportedError: the graph contradicts itself, or has a cycle.
    """
    growth = _Growth(attention, tuple(resize_outputs), whole_groups, fixed)
    if isinstance(input_shapes, BoundInputs):
        return _first_that_fits(model, [input_shapes], growth)
    return _first_that_fits(model, bindings(model_inputs(model), input_shapes), growth)


def fitting_inputs(
    model: Model,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    inputs: Sequence[TensorSpec] | None = None,
) -> BoundInputs:
    """The input shapes that ``model`` is looked at and run with; the same as :func:`analyze` takes, for any batch.

    Args:
        model: the model; it is analysed only where sizes have to be assumed.
        input_shapes: see :func:`sift_onnx.shapes.input_binding.bindings`.
        batch: see there.
        inputs: of the model, or what it has in common with another one.

    Raises:
        UsageError: an input shape is missing or wrong.
        UnsupportedError: the graph contradicts itself, has a cycle, or local functions that cannot be inlined.
    """
    specs = inputs if inputs is not None else model_inputs(model)
    first = bind(specs, input_shapes, batch)
    if not first.assumed:
        return first
    return _first_that_fits(inline_bodies(model), bindings(specs, input_shapes, batch), _Growth()).inputs


def _first_that_fits(model: Model, candidates: Iterable[BoundInputs], growth: _Growth) -> AxisAnalysis:
    failures: list[tuple[BoundInputs, UnsupportedError]] = []
    for inputs in candidates:
        try:
            shapes = infer_shapes(model, inputs.shapes)
            splits: frozenset[int] = frozenset()
            if growth.attention != "head-dim":
                plain = replace(growth, attention="head-dim")
                splits = head_splits(_analyze(model, inputs, dict(shapes), plain, frozenset()))
            analysis = _analyze(model, inputs, dict(shapes), growth, splits)
            if growth.whole_groups and not splits:
                splits = splits_of_compared_features(analysis)
                analysis = _analyze(model, inputs, shapes, growth, splits) if splits else analysis
            if inputs.assumed:
                _check_outputs(model, analysis)
            return analysis
        except UnsupportedError as error:
            failures.append((inputs, error))
    first, reason = failures[0]
    if not first.assumed:
        raise reason
    raise UsageError(
        f"{reason}; so it is with all {len(failures)} sizes that were tried for open axes ({'; '.join(first.said)})"
    ) from reason


def _check_outputs(model: Model, analysis: AxisAnalysis) -> None:
    """Sizes that suit every node may still be wrong: a larger image can fill more rows of a batch when it is flattened.

    Raises:
        UnsupportedError: an output has not the size that its declared shape names.
    """
    symbols = {
        extent: size
        for spec in model_inputs(model)
        for extent, size in zip(spec.extents, analysis.inputs.shapes[spec.name], strict=False)
        if isinstance(extent, str)
    }
    found = known_shapes(analysis)
    for output in model.graph.outputs:
        declared = extents_of(output.shape or ())
        for axis, (extent, size) in enumerate(zip(declared, found.get(output.name, ()), strict=False)):
            wanted = symbols.get(extent) if isinstance(extent, str) else extent
            if wanted is not None and size is not None and size != wanted:
                raise UnsupportedError(
                    f"axis {axis} of output {output.name!r} is {size}, where the model declares {extent!r} ({wanted})"
                )


def _analyze(
    model: Model,
    inputs: BoundInputs,
    shapes: Shapes,
    growth: _Growth,
    splits: frozenset[int],
) -> AxisAnalysis:
    analysis = AxisAnalysis(
        order=_topological(model.graph),
        attention=growth.attention,
        whole_groups=growth.whole_groups,
        head_splits=splits,
        inputs=inputs,
    )
    for name, dims in inputs.shapes.items():
        # Pinned variables, so that an axis that meets them knows why it cannot grow.
        cause = Cause(name, "input", f"it is the graph input {name!r}")
        analysis.axes[name] = tuple(Axis(analysis.system.fixed(n, cause)) for n in dims)
    for name, numbers in inputs.values.items():
        known = [Element(number, size_of(number)) for number in numbers]
        analysis.elements[name] = elements_of(known, inputs.shapes[name])
    opsets = {"": int(model.graph.opset)} | opset_versions(model.graph.import_domains)
    for index, node in enumerate(analysis.order):
        ctx = RuleContext(analysis, node, index, shapes, opsets)
        try:
            _run(ctx)
        except AxisError as error:
            raise UnsupportedError(
                f"node {node_label(node)} contradicts the shapes of what it reads: {error}"
            ) from error
        except SiftError:
            raise
        except _CONTRADICTIONS as error:
            raise UnsupportedError(
                f"node {node_label(node)} makes no sense to its axis rule ({type(error).__name__}: {error}); "
                "`sift-onnx check` says whether the model is valid"
            ) from error
    for node in analysis.order:
        # Once more, since an initializer has axes only when a node of the main graph has read it.
        _pin_captures(analysis, node)
    for output in model.graph.outputs:
        if any(fnmatchcase(output.name, pattern) for pattern in growth.resize_outputs):
            continue
        for axis in analysis.axes.get(output.name) or ():
            analysis.system.pin(axis.size, Cause(output.name, "output", f"it is the graph output {output.name!r}"))
    _keep_fixed_weights(analysis, growth.fixed)
    _require_integers(analysis)
    analysis.unscaled.extend(find_scales(analysis))
    return analysis


def _keep_fixed_weights(analysis: AxisAnalysis, known: Mapping[str, str] | None) -> None:
    """Find the weights that were not learned, and keep their sizes; one of equal channels may get more of these."""
    layers = [layer for name, layer in analysis.layers.items() if name not in analysis.tables]
    uses = ((analysis.order[layer.uses[0].index], layer.constant) for layer in layers if layer.kind != "embedding")
    analysis.fixed.update(fixed_weights(uses) if known is None else known)
    for name, reason in analysis.fixed.items():
        layer = analysis.layers[name]
        use = layer.uses[0]
        if reason != SAME_KERNEL:
            for axis in layer.axes:
                cause = Cause(use.node, use.op, f"its weight {name!r} is a fixed function: {reason}")
                analysis.system.pin(axis.size, cause)


def _run(ctx: RuleContext) -> None:
    node = ctx.node
    if node.op == "Constant" and constant_values(node.outputs[0]) is not None:
        return
    _pin_captures(ctx.analysis, node)
    if node.inputs and all(ctx.is_derived(i) for i in range(len(node.inputs)) if ctx.has_input(i)):
        ctx.analysis.derived.update(tensor.name for tensor in node.outputs)
    if evaluate(ctx):
        return
    rule = rule_for(node.op, node.domain)
    if rule is not None:
        rule(ctx)
    else:
        ctx.analysis.unknown.append(node)
        ctx.fix_node(f"no rule covers {operator_name(node.op, node.domain)}")


def _pin_captures(analysis: AxisAnalysis, node: gs.Node) -> None:
    """What a subgraph reads from outside keeps its size."""
    cause = Cause(node_name(node), node.op, f"a subgraph of {node.op} reads it")
    for name in sorted(captured(node)):
        for axis in analysis.axes.get(name) or ():
            analysis.system.pin(axis.size, cause)
        for followed in (analysis.elements.get(name), analysis.numbers.get(name)):
            for element in followed.reshape(-1) if followed is not None else ():
                for size in sizes_behind(element):
                    analysis.system.pin(size, cause)


def _require_integers(analysis: AxisAnalysis) -> None:
    for axes in analysis.axes.values():
        for axis in axes or ():
            analysis.system.require_integer(axis.size)


def _topological(graph: gs.Graph) -> list[gs.Node]:
    """The nodes so that producers come first; the order of the file where that already holds."""
    produced = {t.name for t in graph.inputs} | {n for n, t in graph.tensors().items() if isinstance(t, gs.Constant)}
    makers: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for tensor in node.outputs:
            makers.setdefault(tensor.name, i)
    # A name without a maker is an input that the graph forgot to declare; it blocks nothing.
    needs = [
        {makers[t.name] for t in node.inputs if t.name and t.name in makers and t.name not in produced}
        for node in graph.nodes
    ]
    order = topological_order(needs)
    if len(order) < len(needs):
        node = graph.nodes[index_in_cycle(needs, order)]
        raise UnsupportedError(f"the graph has a cycle through node {node_label(node)}")
    return [graph.nodes[i] for i in order]


def known_shapes(analysis: AxisAnalysis) -> Shapes:
    """The original shape of every analysed tensor."""
    return {
        name: tuple(analysis.system.original(axis.size) for axis in axes)
        for name, axes in analysis.axes.items()
        if axes is not None
    }
