"""Names of operator sets: the standard one has two."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

__all__ = ["MICROSOFT", "ML", "canonical_domain", "full_domain", "is_standard", "opset_versions"]

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"


def is_standard(domain: str | None) -> bool:
    """Whether a domain is the standard one; graphsurgeon has None for it where a node names none."""
    return domain in (None, "", "ai.onnx")


def canonical_domain(domain: str | None) -> str:
    """The name of a domain by which operators are known: empty for the standard one."""
    return "" if domain is None or is_standard(domain) else domain


def full_domain(domain: str | None) -> str:
    """The name of a domain in reports: ``ai.onnx`` for the standard one."""
    return canonical_domain(domain) or "ai.onnx"


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto] | None) -> dict[str, int]:
    """The versions of the operator sets that a model imports, by canonical domain."""
    return {canonical_domain(entry.domain): int(entry.version) for entry in imports or ()}
