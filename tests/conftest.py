"""The garbage collector passes over what collecting the tests leaves: a million objects that stay until the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing is given back while tests are collected: looking for it takes a fifth of that time for nothing."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()
