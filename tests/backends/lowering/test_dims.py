"""Sizes as expressions."""

from sift_onnx.backends.lowering.dims import product, quotient, window


def test_sizes_that_are_provably_equal():
    assert product(["n", 4, 2]) == product([8, "n"])
    assert quotient(product(["n", 128, 512]), 512) == product(["n", 128])
    assert window("h", 3, 1, 1, (1, 1)) == "h"
    assert window("h", 3, 2, 1, (1, 1)) != "h"
    assert window(9, 2, 2, 1, (0, 0), ceil_mode=True) == 5
