"""Names of operator sets: the standard one has two."""

from __future__ import annotations

__all__ = ["STANDARD_DOMAINS", "canonical_domain"]

STANDARD_DOMAINS = ("", "ai.onnx")


def canonical_domain(domain: str | None) -> str:
    """The name of a domain by which operators are known: empty for the standard one."""
    return "" if (domain or "") in STANDARD_DOMAINS else str(domain)
