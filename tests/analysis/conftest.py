"""An empty graph to build on."""

from __future__ import annotations

import pytest
from nets import Net


@pytest.fixture
def net() -> Net:
    """A graph of opset 20."""
    return Net()
