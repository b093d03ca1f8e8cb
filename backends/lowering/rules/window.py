"""Attributes of a sliding window."""

from __future__ import annotations

from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered
from sift_onnx.backends.lowering.specs import Geometry
from sift_onnx.operators.windows import explicit_pads

__all__ = ["window_of"]

# Taps that the kernels take; the same bound keeps positions within 64 bits.
_MOST = 4096


def window_of(node: NodeView, kernel: tuple[int, int]) -> Geometry:
    """The window of a Conv or pooling node.

    Raises:
        NotLowered: it is not two-dimensional, crops, or its padding depends on the size of the input.
    """
    said = tuple(node.attribute("kernel_shape") or kernel)
    stride = tuple(node.attribute("strides") or (1, 1))
    dilation = tuple(node.attribute("dilations") or (1, 1))
    if len(said) != 2 or len(stride) != 2 or len(dilation) != 2:
        raise NotLowered(f"a window over {len(said)} axes; the kernels are two-dimensional")
    if min(*said, *stride, *dilation) < 1:
        raise NotLowered(f"kernel {list(said)}, strides {list(stride)}, dilations {list(dilation)}; they start at 1")
    if max(*said, *stride, *dilation) > _MOST or said[0] * said[1] > _MOST:
        raise NotLowered(f"a window of {list(said)} taps, strides {list(stride)}, dilations {list(dilation)}")
    mode = node.attribute("auto_pad", "NOTSET")
    known = [size for size in node.dims(0)[2:] if isinstance(size, int)]
    if mode in ("SAME_UPPER", "SAME_LOWER") and stride != (1, 1) and len(known) != 2:
        raise NotLowered(f"auto_pad {mode} with strides {list(stride)}: the padding depends on the input's size")
    # At strides of 1, it is the same for any size.
    sizes = known if len(known) == 2 else [1, 1]
    pads = explicit_pads(mode, node.attribute("pads") or (), sizes, said, stride, dilation)
    if len(pads) != 4 or min(pads) < 0:
        raise NotLowered(f"pads {list(pads)}; the kernels do not crop")
    return Geometry(
        (said[0], said[1]), (stride[0], stride[1]), (dilation[0], dilation[1]), (pads[0], pads[1], pads[2], pads[3])
    )
