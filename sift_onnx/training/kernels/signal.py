"""Windows and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import number
from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import torch_dtype

__all__: list[str] = []


def _window(*coefficients: float) -> Callable[..., Tensor]:
    """A sum of cosines with alternating signs."""

    def run(size: Any, *, output_datatype: int = 1, periodic: int = 1, anchor: Any = None) -> Tensor:
        count = int(number(size))
        angles = torch.arange(count, dtype=torch.float64) * 2 * math.pi / (count if periodic else count - 1)
        values = sum((-1) ** i * c * torch.cos(i * angles) for i, c in enumerate(coefficients))
        assert isinstance(values, Tensor)
        return values.to(torch_dtype(output_datatype)).to(anchor.device if isinstance(anchor, Tensor) else "cpu")

    return run


kernel("HannWindow", since=17, host=(0,))(_window(0.5, 0.5))
kernel("HammingWindow", since=17, host=(0,))(_window(25 / 46, 21 / 46))
kernel("BlackmanWindow", since=17, host=(0,))(_window(0.42, 0.5, 0.08))


@kernel("DFT", since=17, host=(1,))
def dft_along_attribute(x: Tensor, length: Any = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Tensor:
    """Version 17, whose axis is an attribute."""
    return dft(x, length, axis, inverse=inverse, onesided=onesided)


@kernel("DFT", since=20, host=(1, 2))
def dft(x: Tensor, length: Any = None, axis: Any = -2, *, inverse: int = 0, onesided: int = 0) -> Tensor:
    """Discrete Fourier transform; the last axis has the real and the imaginary part, or the former alone."""
    along = int(number(axis)) % x.dim()
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)
    count = int(number(length)) if length is not None else None
    if inverse and onesided:
        restored: Tensor = torch.fft.irfft(signal, count, along)
        return restored.unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(signal, count, along))
    spectrum = torch.fft.fft(signal, count, along)
    if onesided:
        spectrum = spectrum.narrow(along, 0, spectrum.shape[along] // 2 + 1)
    return torch.view_as_real(spectrum)
