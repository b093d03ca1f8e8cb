"""The layerwise passes as rewrite rules of onnxscript.

    from onnxscript.rewriter import rewrite
    from sift_onnx.hosts.onnxscript import layer_rules
    from sift_onnx.passes import Parallel

    model = rewrite(model, layer_rules(Parallel(0.9)))

A rule matches one linear layer: a Conv, Gemm or MatMul, with the bias and the BatchNormalization that belong to it.
Which layers are replaced, and by what, is decided once for the model as it is when the first rule matches, so that the
result is that of the pass: first and last layers stay, and the same weights are drawn under the same names. A layer
that another rule has changed since is left as it is. ``Wide`` is not a rule, since it concerns the whole model; use
:class:`~sift_onnx.hosts.onnx_ir.SiftPass`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from sift_onnx.errors import UsageError
from sift_onnx.graphs.onnx_ir_export import lazy_tensor
from sift_onnx.hosts.layer_plan import LayerPlan, NodeNames
from sift_onnx.hosts.missing import missing
from sift_onnx.passes.base import Pass
from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.passes.layerwise.linear_layers import Occurrence

try:
    import onnx_ir as ir
    from onnxscript.rewriter import MatchContext, MatchResult, RewriteRule, RewriteRuleSet
except ImportError as error:
    raise missing("onnxscript", error) from error

__all__ = ["layer_rules"]

# What a layer may look like, by the name of the rule; the optional inputs of Conv and Gemm are their biases.
_PATTERNS: dict[str, Callable[..., Any]] = {
    "conv": lambda op, x: op.Conv(x, _allow_other_inputs=True),
    "conv-norm": lambda op, x: op.BatchNormalization(op.Conv(x, _allow_other_inputs=True), _allow_other_inputs=True),
    "gemm": lambda op, x: op.Gemm(x, _allow_other_inputs=True),
    "gemm-norm": lambda op, x: op.BatchNormalization(op.Gemm(x, _allow_other_inputs=True), _allow_other_inputs=True),
    "matmul": lambda op, x, w: op.MatMul(x, w),
    "matmul-add": lambda op, x, w, b: op.Add(op.MatMul(x, w), b),
    "add-matmul": lambda op, x, w, b: op.Add(b, op.MatMul(x, w)),
}


def layer_rules(pass_: Pass) -> RewriteRuleSet:
    """The rules that do what ``pass_`` does.

    Args:
        pass_: Parallel, Factorized or Doped.

    Raises:
        UsageError: another pass, which does more than replace layers.
    """
    if not isinstance(pass_, LayerwisePass):
        raise UsageError(f"{pass_.name} does not work layer by layer; use sift_onnx.hosts.onnx_ir.SiftPass")
    state = _Rewriting(pass_)
    rules: list[RewriteRule] = []
    for name, pattern in _PATTERNS.items():
        replacement = _LayerReplacement(state)
        rules.append(
            RewriteRule(
                pattern,
                replacement.rewrite,
                replacement.check,
                name=f"sift-onnx {pass_.name} {name}",
                graph_pre_visitor=state.enter,
                graph_post_visitor=state.leave,
            )
        )
    return RewriteRuleSet(rules)


class _Rewriting:
    """What the rules of one pass know together while they go over a model."""

    def __init__(self, pass_: LayerwisePass) -> None:
        self.pass_ = pass_
        self._model: ir.Model | None = None
        self._plan: LayerPlan | None = None
        self._made: dict[str, ir.Value] = {}
        # Parameters that stay, perhaps with other values: those of a normalization whose layer is drawn anew.
        self._kept: dict[str, tuple[ir.Value, gs.Constant]] = {}
        self._depth = 0

    def plan_for(self, model: ir.Model) -> LayerPlan:
        """What is to be done to ``model``, decided when it is first asked for."""
        if self._plan is None or self._model is not model:
            self._model, self._plan, self._made, self._kept = model, LayerPlan(self.pass_, model), {}, {}
        return self._plan

    def enter(self) -> None:
        """A rule comes to a graph; subgraphs are entered while the graph around them is gone over."""
        self._depth += 1

    def leave(self) -> None:
        """A rule is done with a graph; the last one with the last graph notes what was done in the model."""
        self._depth -= 1
        if self._depth or self._model is None or self._plan is None:
            return
        # Under a tracer, replacements are made and thrown away.
        there = [name for name in self._plan.weights() if name in self._model.graph.initializers]
        self._plan.note(self._model.metadata_props, there)
        for value, constant in self._kept.values() if there else ():
            value.const_value = lazy_tensor(constant)
        self._model, self._plan, self._made, self._kept = None, None, {}, {}

    def build(self, op: Any, occurrence: Occurrence, nodes: Sequence[ir.Node]) -> ir.Value:
        """Make what takes the place of ``nodes``, which are the layer's at ``occurrence``."""
        assert self._plan is not None
        around = [value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None]
        matched = {value.name: value for value in around if value.name}
        made: dict[str, ir.Value] = {}
        new_nodes, result = self._plan.replace(occurrence)
        for node in new_nodes:
            inputs = [self._value(op, tensor, made, matched) for tensor in node.inputs]
            names = [tensor.name for tensor in node.outputs]
            outputs = op.op(node.op, *inputs, _outputs=names, _name=node.name, **_attributes(node))
            values = [outputs] if isinstance(outputs, ir.Value) else list(outputs)
            for value, tensor in zip(values, node.outputs, strict=True):
                _describe(value, tensor)
                made[tensor.name] = value
        return made[result]

    def _value(
        self, op: Any, tensor: gs.Tensor, made: dict[str, ir.Value], matched: dict[str, ir.Value]
    ) -> ir.Value | None:
        if tensor.is_empty():
            return None
        known = made.get(tensor.name) or matched.get(tensor.name) or self._made.get(tensor.name)
        if known is None:
            assert isinstance(tensor, gs.Constant)
            # Layers that share a weight share its replacement.
            known = self._made[tensor.name] = op.initializer(lazy_tensor(tensor), name=tensor.name)
        elif isinstance(tensor, gs.Constant) and tensor.name in matched:
            self._kept[tensor.name] = (known, tensor)
        return known


class _LayerReplacement:
    """What one rule does with what it has matched: look whether that is a layer to be replaced, then replace it.

    Attributes:
        state: of all rules of the pass.
    """

    def __init__(self, state: _Rewriting) -> None:
        self.state = state
        self._occurrence: Occurrence | None = None
        self._nodes: tuple[ir.Node, ...] = ()

    def check(self, op: MatchContext, *args: Any, **values: Any) -> MatchResult:
        """Whether what matched is a layer that is to be replaced; what onnxscript calls ``op`` is the match."""
        context = op
        result = MatchResult()
        if context.graph_or_function is not context.model.graph:
            return result.fail("it is not in the main graph; inline functions first", context.root)
        found = self.state.plan_for(context.model).occurrence_of([_names_of(node) for node in context.nodes])
        if isinstance(found, str):
            return result.fail(found, context.root)
        self._occurrence, self._nodes = found, tuple(context.nodes)
        return result

    def rewrite(self, op: Any, **values: ir.Value) -> ir.Value:
        """The layer's output."""
        assert self._occurrence is not None
        return self.state.build(op, self._occurrence, self._nodes)


def _names_of(node: ir.Node) -> NodeNames:
    return NodeNames.of(
        node.op_type, (None if v is None else v.name for v in node.inputs), (v.name for v in node.outputs)
    )


def _attributes(node: gs.Node) -> dict[str, ir.Attr]:
    return {proto.name: ir.from_proto(proto) for proto in OnnxExporter.export_attributes(node.attrs)}


def _describe(value: ir.Value, tensor: gs.Variable) -> None:
    if tensor.dtype is not None:
        value.type = ir.TensorType(ir.DataType.from_numpy(tensor.dtype))
    if tensor.shape is not None:
        value.shape = ir.Shape(list(tensor.shape))
