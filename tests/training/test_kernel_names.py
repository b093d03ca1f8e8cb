"""Kernels keep the names by which checkpoints and pickles of earlier versions call them."""

from __future__ import annotations

from pathlib import Path

from sift_onnx.operators.domains import full_domain
from sift_onnx.training.registry import kernels

# A line for each kernel: domain, operator, first version, module, function. Lines may be added, none may go.
RELEASED = Path(__file__).with_name("kernel_names.txt").read_text(encoding="utf-8").splitlines()


def test_no_released_kernel_is_renamed_or_moved() -> None:
    names = {f"{full_domain(k.domain)} {k.op} {k.since} {k.run.__module__} {k.run.__name__}" for k in kernels()}

    assert sorted(set(RELEASED) - names) == []
