"""Torch's two ONNX exporters: their opsets, and the sizes of axes that they accept."""

from __future__ import annotations

from typing import Literal

from sift_onnx.errors import UsageError

__all__ = ["DEFAULT_OPSETS", "OPSETS", "Batch", "Exporter", "check_axis", "choose_opset"]

Batch = int | Literal["dynamic"]
Exporter = Literal["dynamo", "torchscript"]

# Opsets that each exporter writes without a version converter.
OPSETS = {"torchscript": range(13, 21), "dynamo": range(18, 24)}
DEFAULT_OPSETS = {"torchscript": 17, "dynamo": 20}


def choose_opset(exporter: str, opset: int | None) -> int:
    """``opset``, or the exporter's default.

    Raises:
        UsageError: an unknown exporter, or an opset that it does not write.
    """
    if exporter not in OPSETS:
        raise UsageError(f"exporter must be {' or '.join(OPSETS)}, not {exporter!r}")
    if opset is None:
        return DEFAULT_OPSETS[exporter]
    known = OPSETS[exporter]
    if opset not in known:
        raise UsageError(f"the {exporter} exporter writes opsets {known[0]} to {known[-1]}, not {opset}")
    return opset


def check_axis(name: str, size: Batch) -> None:
    """Check the size of the axis ``name``.

    Raises:
        UsageError: it is neither a positive number nor ``"dynamic"``.
    """
    if size != "dynamic" and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise UsageError(f"{name} must be a positive number or 'dynamic', not {size!r}")
