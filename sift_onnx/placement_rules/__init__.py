"""One rule per operator family: where the features of the original lie behind the operator, in a wider model.

A rule gets a :class:`~sift_onnx.placement_rules.context.PlacementContext` and states relations between the axes of the
node's tensors, or refuses. :func:`~sift_onnx.placement_rules.search.place` runs the rules over a graph.
"""

from sift_onnx.placement_rules import along_axes, elementwise, layers, layout
from sift_onnx.placement_rules.context import Extent, Placement, PlacementContext
from sift_onnx.placement_rules.registry import placement_rule
from sift_onnx.placement_rules.search import place

__all__ = ["Extent", "Placement", "PlacementContext", "place", "placement_rule"]

# Importing a family registers its rules.
_FAMILIES = (along_axes, elementwise, layers, layout)
