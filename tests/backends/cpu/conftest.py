import pytest

from sift_onnx.backends.cpu.lower import plan


@pytest.fixture
def every_region_pays(monkeypatch):
    """Test models are small: what the border costs would send all of them to onnxruntime."""
    monkeypatch.setattr(plan, "why_not_profitable", lambda *_: "")
