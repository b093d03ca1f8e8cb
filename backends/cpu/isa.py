"""Which instruction set the kernels run with: the best one of the machine, or the one that ``SIFT_ISA`` names."""

from __future__ import annotations

import os

from sift_onnx.backends.cpu import _kernels
from sift_onnx.errors import UsageError

__all__ = ["ISAS", "SIFT_ISA", "selected_isa"]

ISAS = ("avx512", "avx2", "neon", "portable")
SIFT_ISA = "SIFT_ISA"


def selected_isa() -> str:
    """The instruction set to run with: the one that ``SIFT_ISA`` names, the best of the machine if that is unset.

    Raises:
        UsageError: ``SIFT_ISA`` names no instruction set, or one that this machine lacks.
    """
    wanted = os.environ.get(SIFT_ISA, "")
    if not wanted:
        return _kernels.detected_isa()
    if wanted not in ISAS:
        raise UsageError(f"unknown instruction set {wanted!r} ({SIFT_ISA}): set it to {', '.join(ISAS)}, or unset it")
    supported = _kernels.supported_isas()
    if wanted not in supported:
        raise UsageError(
            f"this machine does not run {wanted!r} ({SIFT_ISA}): set it to {' or '.join(supported)}, or unset it"
        )
    return wanted
