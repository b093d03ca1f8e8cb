"""Where a product lies on the grid: features along x, tokens along y, and in how many passes, so that SRAM holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.dataflow.machines.machine import GridMachine
from sift_onnx.backends.dataflow.workloads.pattern import shards_of
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct
from sift_onnx.errors import UnsupportedError

__all__ = ["Mapping", "map_product"]


@dataclass(frozen=True, eq=False)
class Mapping:
    """A product on a grid.

    Attributes:
        shard: the grid column of each column of the matrix, ``[columns]``; with ``parts`` above 1, grid column ``c`` of
            part ``p`` is ``p * columns_used + c``.
        columns_used: grid columns that hold features.
        rows_used: grid rows that hold tokens.
        token_passes: passes over all weights, each with a share of the tokens, because SRAM holds no more.
        parts: parts of the matrix that are streamed one after another, because an index cannot address all features of
            a core.
        tokens_per_core: of the busiest grid row in one pass; the length of an AXPY.
        full_rows: grid rows that have that many tokens; the others have one less.
        reduced: whether partial sums of several grid columns are added up.
        notes: what was split, and why.
    """

    shard: npt.NDArray[Any]
    columns_used: int
    rows_used: int
    token_passes: int
    parts: int
    tokens_per_core: int
    full_rows: int
    reduced: bool
    notes: tuple[str, ...]


def map_product(product: SparseProduct, machine: GridMachine, resident_bytes: float = 0.0) -> Mapping:
    """Put ``product`` on the grid of ``machine``.

    Args:
        product: the matrix and its tokens.
        machine: the grid.
        resident_bytes: what weights and a cache that stay take of each core's SRAM.

    Raises:
        UnsupportedError: not even one token per core fits in SRAM.
    """
    matrix = product.pattern.map
    shard = shards_of(matrix, machine.columns)
    used = int(shard[-1]) + 1
    width = int(np.bincount(shard).max())
    notes: list[str] = []
    parts = 1
    reach = 2**machine.index_bits
    if product.is_sparse and width > reach:
        parts = -(-width // reach)
        first = np.searchsorted(shard, np.arange(used))
        within = np.arange(matrix.columns) - first[shard]
        shard = (shard + used * (within // reach)).astype(np.int32)
        notes.append(
            f"streamed in {parts} parts: a core holds {width} features, an index of {machine.index_bits} bits reaches "
            f"{reach}"
        )
    rows_used = min(machine.rows, product.tokens)
    tokens = -(-product.tokens // rows_used)
    reduced = matrix.reduced and used > 1
    # Partial sums of a window of rows wait for those of the other columns.
    waiting = min(machine.window_rows, matrix.rows) if reduced and math.isfinite(machine.window_rows) else 1
    per_token = (width + -(-matrix.rows // used)) * machine.value_bytes + waiting * machine.partial_sum_bytes
    fixed = machine.queue_words * machine.link_bytes
    room = machine.sram_bytes - machine.sram_reserved_bytes - resident_bytes - fixed
    if per_token > room:
        raise UnsupportedError(
            f"{product.name!r} (node {product.node!r}, {product.step}) does not fit in SRAM: one token needs "
            f"{per_token + fixed:.0f} bytes in each core, {max(0.0, room + fixed):.0f} of {machine.sram_bytes:.0f} are "
            "free; use more grid columns" + (", or let less stay in SRAM" if resident_bytes else "")
        )
    passes = 1 if math.isinf(room) else max(1, math.ceil(tokens * per_token / room))
    while passes < tokens and -(-tokens // passes) * per_token > room:
        passes += 1
    if passes > 1:
        notes.append(
            f"weights streamed {passes} times: {tokens} tokens in each core need {tokens * per_token:.0f} bytes of "
            f"SRAM, {room:.0f} are free"
        )
    return Mapping(
        shard=shard,
        columns_used=used,
        rows_used=rows_used,
        token_passes=passes,
        parts=parts,
        tokens_per_core=-(-tokens // passes),
        full_rows=product.tokens - rows_used * (tokens - 1),
        reduced=reduced,
        notes=tuple(notes),
    )
