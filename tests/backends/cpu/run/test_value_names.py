"""Names of values that look like those which a lowering makes up, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches

from sift_onnx import InferenceSession
from sift_onnx.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("every_region_pays")

# As exporters put them behind the name of another value, and what kernels need beside a value.
ENDINGS = [f"{mark}{what}" for mark in ("/", ":", " ") for what in ("rows", "image", "array", "quads", "numbers")]


@pytest.mark.parametrize("ending", ENDINGS)
def test_rows_named_after_an_input(ending: str) -> None:
    net = SparseNet()
    x = net.input("x", 4, 8, declared=["n", 8])
    inner = net.op("MatMul", x, net.weight(8, 8), name=f"x{ending}")
    net.output(net.op("Add", net.op("MatMul", inner, net.weight(8, 8)), x))
    program = assert_same_at_batches(net.model(), [1, 3, 16])
    assert len(program.parts) == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_images_named_after_an_input(ending: str) -> None:
    net = SparseNet()
    x = net.input("x", 2, 4, 6, 6, declared=["n", 4, 6, 6])
    inner = net.op("Conv", x, net.weight(9, 4, 3, 3), name=f"x{ending}", pads=[1] * 4)
    net.output(net.op("Add", net.op("Conv", inner, net.weight(4, 9, 3, 3), pads=[1] * 4), x))
    program = assert_same_at_batches(net.model(), [1, 3, 16])
    assert len(program.parts) == 1


@pytest.mark.parametrize("ending", ["/squares", "/sum", ":sum", " sum"])
def test_an_operand_named_after_what_its_reader_makes(ending: str) -> None:
    net = SparseNet()
    x = net.input("x", 2, 5, 8, declared=["n", 5, 8])
    inner = net.op("MatMul", x, net.weight(8, 8), name=f"length{ending}")
    length = net.op("ReduceL2", inner, net.constant([1], dtype=np.int64), name="length", keepdims=1)
    net.output(net.op("MatMul", net.op("Add", inner, length), net.weight(8, 3)))
    assert_same_at_batches(net.model(), [1, 3, 16])


def test_a_name_that_the_kernels_need_is_refused() -> None:
    net = SparseNet()
    x = net.input("x", 4, 8)
    net.output(net.op("MatMul", net.op("MatMul", x, net.weight(8, 8), name="x~/as rows"), net.weight(8, 8)))
    with pytest.raises(UnsupportedError, match=r"'x~/as rows'.*rename it"):
        InferenceSession(net.model(), threads=1)
