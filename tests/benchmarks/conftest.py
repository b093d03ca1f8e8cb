"""Modules of the folders of `benchmarks` have the names of others there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def modules_of_its_own() -> Iterator[None]:
    """What the tests of one file import is not what those of the next one find."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(BENCHMARKS):
            del sys.modules[name]
