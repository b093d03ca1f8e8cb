"""If, Loop, Scan: what goes into a subgraph or comes out of one stays as it is."""

from __future__ import annotations

from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule


@axis_rule("If", "Loop", "Scan", "SequenceMap")
def control_flow(ctx: RuleContext) -> None:
    """Subgraphs are not widened; what they capture is kept by the analysis."""
    ctx.fix_node(f"it goes into the subgraph of a node {ctx.node.op}, and subgraphs are not widened")
