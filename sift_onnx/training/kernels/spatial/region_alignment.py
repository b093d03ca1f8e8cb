"""RoiAlign: regions of a feature map, sampled between its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sift_onnx.errors import UnsupportedError
from sift_onnx.training.registry import kernel

__all__: list[str] = []


@dataclass(frozen=True)
class _Bins:
    """Attributes that both versions share, by ONNX's names."""

    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0


@kernel("RoiAlign", since=16, attributes=_Bins)
def align_regions(
    x: Tensor,
    regions: Tensor,
    images: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    **attributes: Any,
) -> Tensor:
    """Regions (n x 4: left, top, right, bottom) of ``images``, each as channels x output height x output width.

    Each bin is sampled at ``sampling_ratio`` positions along either side, or at as many as it has pixels.
    """
    bins = _Bins(**attributes)
    half = coordinate_transformation_mode == "half_pixel"
    scaled = regions * bins.spatial_scale - (0.5 if half else 0.0)
    starts, sizes = scaled[:, :2], scaled[:, 2:] - scaled[:, :2]
    sizes = sizes if half else sizes.clamp(min=1)
    across = _Samples(starts[:, 0], sizes[:, 0], bins.output_width, bins.sampling_ratio, x.shape[3])
    down = _Samples(starts[:, 1], sizes[:, 1], bins.output_height, bins.sampling_ratio, x.shape[2])
    if bins.mode not in ("avg", "max"):
        raise UnsupportedError(f"mode {bins.mode!r} is not known to the torch kernel")
    result = x.new_zeros(regions.shape[0], x.shape[1], bins.output_height, bins.output_width)
    for image in range(x.shape[0]):
        rows = torch.nonzero(images == image).reshape(-1)
        if rows.numel():
            run = _averages if bins.mode == "avg" else _maxima
            result = result.index_copy(0, rows, run(x[image], down, across, rows))
    return result


class _Samples:
    """Positions along one axis, for each region, bin and sample of a bin, and the two pixels that each lies between.

    Attributes:
        low: the pixel before, ``[regions, bins, samples]``.
        high: the pixel after.
        share: weight of the pixel after.
        weight: of the sample within its bin; 0 outside of the image.
        counts: samples per bin of each region.
        length: of the axis.
    """

    def __init__(self, start: Tensor, size: Tensor, bins: int, ratio: int, length: int) -> None:
        extent = size / bins
        counts = torch.full_like(extent, ratio) if ratio > 0 else torch.ceil(extent.detach()).clamp(min=1)
        index = torch.arange(int(counts.max()) if counts.numel() else 1, device=start.device)
        bin_starts = start[:, None] + torch.arange(bins, device=start.device) * extent[:, None]
        steps = (index + 0.5) * (extent / counts)[:, None]
        places = bin_starts[:, :, None] + steps[:, None, :]
        inside = (places >= -1) & (places <= length) & (index < counts[:, None, None])
        places = places.clamp(0, length - 1)
        self.low = places.detach().floor().long()
        self.high = (self.low + 1).clamp(max=length - 1)
        self.share = places - self.low
        self.weight = inside.to(places.dtype)
        self.counts, self.length = counts, length

    def matrix(self, rows: Tensor) -> Tensor:
        """What takes the axis to bins, as averages: regions x bins x length."""
        weight = self.weight[rows] / self.counts[rows][:, None, None]
        taken = weight.new_zeros(*weight.shape[:2], self.length)
        taken = taken.scatter_add(2, self.low[rows], weight * (1 - self.share[rows]))
        return taken.scatter_add(2, self.high[rows], weight * self.share[rows])


def _averages(image: Tensor, down: _Samples, across: _Samples, rows: Tensor) -> Tensor:
    # Weights of a sample are products of one along either axis, and so are the averages.
    return torch.einsum("nph,chw,nqw->ncpq", down.matrix(rows), image, across.matrix(rows))


def _maxima(image: Tensor, down: _Samples, across: _Samples, rows: Tensor) -> Tensor:
    """The largest weighted pixel of a bin's samples: ONNX takes the maximum before it adds up the four of a sample."""
    shape = (image.shape[0], rows.numel(), *down.low.shape[1:], *across.low.shape[1:])
    largest = image.new_full(shape, -torch.inf)
    for y, y_share in ((down.low[rows], 1 - down.share[rows]), (down.high[rows], down.share[rows])):
        for x, x_share in ((across.low[rows], 1 - across.share[rows]), (across.high[rows], across.share[rows])):
            pixels = image[:, y[:, :, :, None, None], x[:, None, None]]
            share = y_share[:, :, :, None, None] * x_share[:, None, None]
            largest = torch.maximum(largest, pixels * share)
    inside = (down.weight[rows][:, :, :, None, None] * across.weight[rows][:, None, None]) > 0
    sampled = torch.where(inside, largest, -torch.inf).amax((3, 5))
    found = torch.where(torch.isinf(sampled), torch.zeros_like(sampled), sampled)
    return found.transpose(0, 1)


@kernel("RoiAlign", since=10, attributes=_Bins)
def align_regions_unshifted(x: Tensor, regions: Tensor, images: Tensor, **attributes: Any) -> Tensor:
    """Version 10, which does not shift coordinates by half a pixel."""
    return align_regions(x, regions, images, coordinate_transformation_mode="output_half_pixel", **attributes)
