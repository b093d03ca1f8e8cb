"""GridSample: pixels at positions that the graph computes, as in deformable attention and warped images."""

from __future__ import annotations

from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import GridSample

__all__ = ["grid_sample"]

# Opset 20 has another name.
_NEAREST, _BETWEEN = ("nearest",), ("bilinear", "linear")


def grid_sample(node: NodeView) -> Step:
    """GridSample of images, to the nearest pixel or between four."""
    node.operand(0, "image")
    node.operand(1, "image")
    mode, padding = node.attribute("mode", "bilinear"), node.attribute("padding_mode", "zeros")
    if mode not in (*_NEAREST, *_BETWEEN) or padding not in ("zeros", "border"):
        raise NotLowered(f"no kernel samples with {mode} and {padding}")
    dims, grid = node.dims(0), node.dims(1)
    if grid[0] != dims[0] or grid[3] != 2:
        raise NotLowered("its images and their positions are not known to be as many")
    if 0 in dims[2:]:
        raise NotLowered("its images have no pixels")
    spec = GridSample(mode in _NEAREST, padding == "border", bool(node.attribute("align_corners", 0)))
    return node.step(spec, "image", operands=(0, 1))
