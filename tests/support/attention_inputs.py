"""Queries, keys and values in front of an attention, and what follows it."""

from __future__ import annotations

from nets import Net

# Number and size of four heads of four features at twice the width, by which of the two grows.
GROWTHS = {"head-dim": (4, 8), "heads": (8, 4), "keep": (4, 4)}


def projections(net: Net, width: int = 16, kv: int = 16, value: int = 0) -> tuple[str, str, str]:
    """Queries, keys and values ``[1, 5, ...]`` from a residual stream of 12 features."""
    h = net.tokens(12)
    widths = {"q": width, "k": kv, "v": value or kv}
    return tuple(net.dense(h, 12, n, name=name) for name, n in widths.items())  # type: ignore[return-value]


def to_heads(net: Net, x: str, heads: int, size: int, length: int = 5) -> str:
    h = net.op("Reshape", x, net.constant([1, length, heads, size]), name=f"{x}.split")
    return str(net.op("Transpose", h, name=f"{x}.heads", perm=[0, 2, 1, 3]))


def from_heads(net: Net, x: str, width: int) -> str:
    h = net.op("Transpose", x, perm=[0, 2, 1, 3])
    return str(net.op("Reshape", h, net.constant([1, -1, width]), name="joined"))
