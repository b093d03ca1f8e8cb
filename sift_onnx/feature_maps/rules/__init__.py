"""One rule per operator family: where the features of the original lie in its output, in a wider model.

A rule gets a :class:`~sift_onnx.feature_maps.context.FeatureMapContext` and states relations between the axes of the
node's tensors, or refuses. Importing this package registers the rules of all families.
"""

from sift_onnx.feature_maps.rules import (
    along_axes,
    attention,
    elementwise,
    indexing,
    layers,
    layout,
    onnxruntime_fusions,
    recurrent,
    resampling,
)

__all__ = [
    "along_axes",
    "attention",
    "elementwise",
    "indexing",
    "layers",
    "layout",
    "onnxruntime_fusions",
    "recurrent",
    "resampling",
]
