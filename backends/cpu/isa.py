"""Which instruction set the kernels run with: the best one of the machine, or the one that ``SIFT_ISA`` names.

Where it is AVX-512 and ``SIFT_JIT`` is not 0, sparse layers become generated code.
"""

from __future__ import annotations

import os

from sift_onnx.backends.cpu import _kernels
from sift_onnx.errors import UsageError

__all__ = ["ISAS", "SIFT_ISA", "SIFT_JIT", "generates_code", "selected_isa"]

ISAS = ("avx512", "avx2", "neon", "portable")
SIFT_ISA = "SIFT_ISA"
SIFT_JIT = "SIFT_JIT"


def selected_isa() -> str:
    """The instruction set to run with: the one that ``SIFT_ISA`` names, the best of the machine if that is unset.

    Raises:
        UsageError: ``SIFT_ISA`` names no instruction set, or one that this machine lacks, or ``SIFT_JIT`` is neither 0
            nor 1.
    """
    jit = os.environ.get(SIFT_JIT, "")
    if jit not in ("", "0", "1"):
        raise UsageError(f"{SIFT_JIT} is {jit!r}: set it to 0, so that no code is generated, or to 1, or unset it")
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


def generates_code(isa: str) -> bool:
    """Whether kernels of ``isa`` run layers as generated code: it has instructions for it, and the process may."""
    return isa == "avx512" and _kernels.may_execute_code()
