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


@kernel("STFT", since=17, host=(1, 3))
def short_time_fourier(
    signal: Tensor, step: Any, window: Tensor | None = None, length: Any = None, *, onesided: int = 1
) -> Tensor:
    """Transforms of frames of a signal (batch x samples x 1, or 2 for complex ones): batch x frames x bins x 2."""
    size = int(number(length)) if length is not None else None
    if size is None:
        size = window.shape[0] if window is not None else signal.shape[1]
    samples = torch.view_as_complex(signal.contiguous()) if signal.shape[-1] == 2 else signal.reshape(signal.shape[:2])
    frames = samples.unfold(1, size, int(number(step)))
    frames = frames if window is None else frames * window
    spectrum = torch.fft.fft(frames)
    return torch.view_as_real(spectrum[..., : size // 2 + 1] if onesided else spectrum)


@kernel("MelWeightMatrix", since=17, host=(0, 1, 2, 3, 4))
def mel_weights(
    bins: Any, length: Any, rate: Any, lowest: Any, highest: Any, *, output_datatype: int = 1, anchor: Any = None
) -> Tensor:
    """Triangles of peak 1 over the bins of a spectrum, evenly spaced on the mel scale: spectrum bins x mel bins.

    As in ONNX's reference, the step is the range by the number of edges, not of the distances between them.
    """
    count, size = int(number(bins)), int(number(length))
    low, high = (2595 * math.log10(1 + float(number(hertz)) / 700) for hertz in (lowest, highest))
    mels = low + torch.arange(count + 2, dtype=torch.float64) * ((high - low) / (count + 2))
    edges = torch.floor((size + 1) * 700 * (10 ** (mels / 2595) - 1) / int(number(rate)))
    start, peak, end = (edges[i : i + count] for i in range(3))
    at = torch.arange(size // 2 + 1, dtype=torch.float64).unsqueeze(1)
    rising = torch.where(peak > start, (at - start) / (peak - start).clamp(min=1), (at == peak).to(torch.float64))
    falling = (end - at) / (end - peak).clamp(min=1)
    weights = torch.where(at <= peak, torch.where(at >= start, rising, 0.0), torch.where(at < end, falling, 0.0))
    return weights.to(torch_dtype(output_datatype)).to(anchor.device if isinstance(anchor, Tensor) else "cpu")
