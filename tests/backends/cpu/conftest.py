import pytest

from sift_onnx.backends.cpu.lower import plan
from sift_onnx.backends.cpu.run import opening, trials


@pytest.fixture(autouse=True)
def nothing_is_timed(monkeypatch):
    """What a test runs in kernels must not go to onnxruntime because that was faster."""
    for module in (opening, trials):
        monkeypatch.setattr(module, "is_certain", lambda *_: True)


@pytest.fixture
def every_region_pays(monkeypatch):
    """Test models are small: what the border costs would send all of them to onnxruntime."""
    monkeypatch.setattr(plan, "why_not_profitable", lambda *_: "")
