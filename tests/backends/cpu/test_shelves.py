from __future__ import annotations

import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "backends/cpu/kernels"
# A shelf includes headers of its own and of those before it.
SHELVES = ("base", "simd", "jit", "weights", "ops", "conv", "products", "int8", "train", "bind")


def violations(shelf: str, source: str) -> list[str]:
    """Headers of the project that a file on a shelf may not include."""
    allowed = SHELVES[: SHELVES.index(shelf) + 1]
    included = re.findall(r'^\s*#\s*include "([^"]+)"', source, re.MULTILINE)
    return [header for header in included if header.split("/")[0] not in allowed or not (KERNELS / header).is_file()]


def test_every_file_of_the_kernels_is_on_a_shelf() -> None:
    assert {path.name for path in KERNELS.iterdir()} == set(SHELVES)


@pytest.mark.parametrize("shelf", SHELVES)
def test_shelves_include_only_what_is_before_them(shelf: str) -> None:
    files = sorted(path for path in (KERNELS / shelf).rglob("*") if path.is_file())
    assert files
    assert {path.name: found for path in files if (found := violations(shelf, path.read_text("utf-8")))} == {}


def test_an_include_against_the_order_is_found() -> None:
    assert violations("ops", '#include "conv/conv.h"\n#include "base/op.h"\n') == ["conv/conv.h"]
    assert violations("conv", '#include "tiling.h"\n') == ["tiling.h"]
