"""If, Loop, Scan: what goes into a subgraph or comes out of one stays as it is."""

from __future__ import annotations

from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.attention import fix_all


@axis_rule("If", "Loop", "Scan", "SequenceMap")
def control_flow(ctx: RuleContext) -> None:
    """Subgraphs are not widened; what they capture is kept by the analysis."""
    reason = f"it goes into the subgraph of a node {ctx.node.op}, and subgraphs are not widened"
    fix_all(ctx, reason)
    for i in range(len(ctx.node.inputs)):
        ctx.fix_input(i, reason)
