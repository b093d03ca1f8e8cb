"""Mutations of the bytes of a file, some of them aware of protobuf's wire format."""

from __future__ import annotations

from random import Random

from sift_onnx.files.wire import varint

__all__ = ["mutate_bytes"]

# Lengths and numbers at which code goes wrong: around the powers of two, and the largest that fit.
_EDGES = (0, 1, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """One to four random changes."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_MUTATIONS)(content, rng)
    return bytes(content)


def _flip_bit(content: bytearray, rng: Random) -> None:
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _set_byte(content: bytearray, rng: Random) -> None:
    if content:
        content[rng.randrange(len(content))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _set_early_byte(content: bytearray, rng: Random) -> None:
    """Most of a file is weights; what tells how it is laid out comes first."""
    if content:
        content[rng.randrange(min(len(content), 400))] = rng.randrange(256)


def _truncate(content: bytearray, rng: Random) -> None:
    del content[rng.randrange(len(content) + 1) :]


def _remove(content: bytearray, rng: Random) -> None:
    start = rng.randrange(len(content) + 1)
    del content[start : start + rng.choice((1, 2, 8, 100))]


def _insert(content: bytearray, rng: Random) -> None:
    at = rng.randrange(len(content) + 1)
    content[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100)))


def _repeat(content: bytearray, rng: Random) -> None:
    start = rng.randrange(len(content) + 1)
    part = content[start : start + rng.choice((2, 10, 100))]
    content[start:start] = part * rng.choice((1, 2, 50))


def _insert_varint(content: bytearray, rng: Random) -> None:
    at = rng.randrange(len(content) + 1)
    end = at + rng.choice((0, 1, 1, 2))
    content[at:end] = varint(rng.choice(_EDGES))


def _insert_field(content: bytearray, rng: Random) -> None:
    """A field of some number and kind, short or of a false length."""
    at = rng.randrange(len(content) + 1)
    kind = rng.randrange(8)
    payload = rng.randbytes(rng.choice((0, 1, 4, 8)))
    length = rng.choice((len(payload), len(payload), rng.choice(_EDGES)))
    content[at:at] = varint(rng.randrange(1, 40) << 3 | kind) + (varint(length) if kind == 2 else b"") + payload


def _swap(content: bytearray, rng: Random) -> None:
    if len(content) < 2:
        return
    length = rng.choice((1, 4, 30))
    a, b = rng.randrange(len(content)), rng.randrange(len(content))
    content[a : a + length], content[b : b + length] = content[b : b + length], content[a : a + length]


def _nest(content: bytearray, rng: Random) -> None:
    """Subgraphs within subgraphs, deeper than protobuf writes them."""
    graph = b""
    for _ in range(rng.choice((32, 34, 100, 5000))):
        # GraphProto.node { op_type: "If" attribute { name: "g" type: GRAPH g: ... } }
        attribute = b"\x0a\x01g\xa0\x01\x05\x32" + varint(len(graph)) + graph
        node = b"\x22\x02If\x2a" + varint(len(attribute)) + attribute
        graph = b"\x0a" + varint(len(node)) + node
    content += b"\x3a" + varint(len(graph)) + graph  # protobuf merges it into the graph


_MUTATIONS = (
    _nest,
    _flip_bit,
    _set_byte,
    _set_early_byte,
    _set_early_byte,
    _truncate,
    _remove,
    _insert,
    _repeat,
    _insert_varint,
    _insert_field,
    _swap,
)
