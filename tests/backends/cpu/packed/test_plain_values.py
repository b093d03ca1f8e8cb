"""Plans as plain values: what comes back, and what is refused."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet

from sift_onnx.backends.cpu.packed.plain_values import NotStored, from_plain, to_plain
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.specs import Channels, Reshaped

pytestmark = pytest.mark.usefixtures("every_region_pays")


def there_and_back(value):
    arrays = []
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(to_plain(value, arrays)))
    return from_plain(plain, arrays.__getitem__)


def test_a_region_comes_back():
    net = SparseNet()
    x = net.op("LeakyRelu", net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, "h", "w"]), 4, 6, 3), alpha=0.25)
    x = net.op("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    net.output(net.op("Concat", x, x, axis=1))
    region = CpuProgram(net.model(), ONE_THREAD).parts[0].region
    back = there_and_back(region)
    assert back.symbols == region.symbols
    assert [step.output for step in back.steps] == [step.output for step in region.steps]
    for one, other in zip(back.steps, region.steps, strict=True):
        if hasattr(one.spec, "weights"):
            assert (one.spec.weights.nnz, one.spec.weights.rows) == (other.spec.weights.nnz, other.spec.weights.rows)
            one, other = (replace(step, spec=replace(step.spec, weights=None, bias=None)) for step in (one, other))
        assert one == other


@pytest.mark.parametrize("value", [
    None, 3, -2.5, float("inf"), "x", b"y", (1, ("a", None)), {"k": (1,)}, frozenset({"a", "b"}), np.dtype(np.int64),
    Reshaped(((0, 1), "n", ("product", 2, "m"))), Channels((2, 0), 1),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_values_come_back(value):
    assert there_and_back(value) == value


def test_what_has_no_stored_form_is_named():
    for value, name in [(object(), "object"), (open, "builtin")]:
        with pytest.raises(NotStored, match=name):
            to_plain((1, value), [])


@pytest.mark.parametrize("plain", [
    {"class": "os:system", "fields": {}}, {"class": "sift_onnx.backends.lowering.graph:GraphView", "fields": {}},
    {"class": "sift_onnx.backends.lowering.graph:np", "fields": {}}, {"class": "Popen", "fields": {}},
    {"class": "sift_onnx.backends.lowering.specs.moving:Transposed", "fields": {"of": 1}},
    {"class": "sift_onnx.backends.lowering.nothing:X", "fields": {}}, {"element": "FLOAT9"}, {"odd": 1},
    {"weights": ["w", 1, True]},
], ids=str)  # fmt: skip
def test_what_is_none_of_them_is_refused(plain):
    with pytest.raises((ImportError, LookupError, TypeError, ValueError)):
        from_plain([plain], [].__getitem__)
