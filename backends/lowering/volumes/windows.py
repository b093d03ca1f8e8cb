"""Windows that slide over frames, rows and columns, as convolutions and pools of volumes declare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes.forms import Volume
from sift_onnx.operators.windows import explicit_pads

__all__ = ["Window", "window_of"]

_AXES = 3


@dataclass(frozen=True)
class Window:
    """Along frames, rows and columns, in this order.

    Attributes:
        kernel: positions that it takes.
        strides: steps from one window to the next.
        dilations: steps from one position to the next.
        before: padding.
        behind: padding.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    behind: tuple[int, ...]

    def is_idle(self, *axes: int) -> bool:
        """Whether windows are single positions along these axes, one after the other."""
        return all(self.kernel[i] == self.strides[i] == 1 and not self.before[i] + self.behind[i] for i in axes)

    def in_frames(self) -> dict[str, Any]:
        """Attributes of a node on frames, which slides over rows and columns."""
        return _attributes(self.kernel[1:], self.strides[1:], self.dilations[1:], self.before[1:] + self.behind[1:])

    def in_stack(self) -> dict[str, Any]:
        """Attributes of a node on a stack, which slides over frames alone."""
        pads = (self.before[0], 0, self.behind[0], 0)
        return _attributes((self.kernel[0], 1), (self.strides[0], 1), (self.dilations[0], 1), pads)


def _attributes(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> dict[str, Any]:
    """Without dilations of one, which AveragePool cannot be given before opset 19."""
    found = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    return found if set(dilations) == {1} else {**found, "dilations": dilations}


def window_of(node: NodeView, volume: Volume, kernel: Sequence[int] = ()) -> Window:
    """The window of a node on ``volume``, whose weights are for ``kernel``.

    Raises:
        NotLowered: it crops, is none of three axes, or its padding depends on sizes that only a run knows.
    """
    shape = tuple(node.attribute("kernel_shape") or kernel)
    strides = tuple(node.attribute("strides") or (1,) * _AXES)
    dilations = tuple(node.attribute("dilations") or (1,) * _AXES)
    mode, sizes = node.attribute("auto_pad", "NOTSET"), [size for size in volume.sizes[1:] if isinstance(size, int)]
    if mode.startswith("SAME") and len(sizes) < _AXES:
        raise NotLowered(f"auto_pad {mode}: the padding depends on the input's size")
    # Without a mode, sizes only say how many axes there are.
    known = sizes if len(sizes) == _AXES else [1] * _AXES
    pads = explicit_pads(mode, node.attribute("pads") or (), known, shape, strides, dilations)
    if {len(shape), len(strides), len(dilations)} != {_AXES} or len(pads) != 2 * _AXES:
        raise NotLowered(f"a window of {list(shape)}, strides {list(strides)}, pads {list(pads)}")
    if min(*shape, *strides, *dilations) < 1 or min(pads) < 0:
        raise NotLowered(f"a window of {list(shape)}, strides {list(strides)}, pads {list(pads)}; no node crops")
    return Window(shape, strides, dilations, pads[:_AXES], pads[_AXES:])
