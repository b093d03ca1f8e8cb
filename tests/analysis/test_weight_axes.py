"""Which axes of a stored weight run along the features of its output and of its input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model


def axes_of(net: Net, name: str = "w") -> tuple[int, int]:
    layer = analyze(Model.load(net.model())).layers[name]
    return layer.out_axis, layer.in_axis


@pytest.mark.parametrize(("group", "channels"), [(1, 4), (2, 2), (4, 1)])
def test_a_convolution_reads_along_its_second_axis(net: Net, group: int, channels: int) -> None:
    w = net.weight(8, channels, 3, 3, name="w")
    net.output(net.op("Conv", net.input("x", 1, 4, 6, 6), w, group=group))
    assert axes_of(net) == (0, 1)


def test_a_transposed_convolution_reads_along_its_first_axis(net: Net) -> None:
    net.output(net.op("ConvTranspose", net.input("x", 1, 4, 6, 6), net.weight(4, 8, 3, 3, name="w")))
    assert axes_of(net) == (1, 0)


def test_a_kernel_that_is_stored_with_its_channels_last(net: Net) -> None:
    w = net.op("Transpose", net.weight(3, 3, 4, 8, name="w"), perm=[3, 2, 0, 1])
    net.output(net.op("Conv", net.input("x", 1, 4, 6, 6), w))
    assert axes_of(net) == (3, 2)


@pytest.mark.parametrize(("transposed", "axes"), [(0, (1, 0)), (1, (0, 1))])
def test_a_gemm(net: Net, transposed: int, axes: tuple[int, int]) -> None:
    w = net.weight(*((8, 4) if transposed else (4, 8)), name="w")
    net.output(net.op("Gemm", net.input("x", 2, 4), w, transB=transposed))
    assert axes_of(net) == axes


def test_a_stack_of_matrices(net: Net) -> None:
    net.output(net.op("MatMul", net.input("x", 3, 2, 4), net.weight(3, 4, 8, name="w")))
    assert axes_of(net) == (2, 1)


@pytest.mark.parametrize(
    ("equation", "x", "w", "axes"),
    [
        ("bti,io->bto", (1, 5, 4), (4, 6), (1, 0)),
        ("btm,mhd->bthd", (1, 5, 4), (4, 2, 3), (2, 0)),
        ("bthd,hdm->btm", (1, 5, 2, 3), (2, 3, 4), (2, 1)),
        ("bthd,hdm->bthm", (1, 5, 2, 3), (2, 3, 4), (2, 1)),
    ],
    ids=["matrix", "into heads", "out of heads", "head by head"],
)
def test_an_einsum_reads_along_the_last_label_that_is_summed_over(
    net: Net, equation: str, x: tuple[int, ...], w: tuple[int, ...], axes: tuple[int, int]
) -> None:
    net.output(net.op("Einsum", net.input("x", *x), net.weight(*w, name="w"), equation=equation))
    assert axes_of(net) == axes


def test_a_recurrent_layer_reads_along_its_last_axis(net: Net) -> None:
    x = net.input("x", 5, 1, 4)
    weights: list[Any] = [net.weight(1, 12, 4, name="w"), net.weight(1, 12, 3, name="r")]
    net.output(net.op("LSTM", x, *weights, hidden_size=3))
    assert axes_of(net, "w") == (1, 2)
    assert axes_of(net, "r") == (1, 2)


def test_a_table_is_read_along_its_rows(net: Net) -> None:
    ids = net.input("ids", values=np.asarray([[1, 2]]))
    net.output(net.op("Gather", net.weight(7, 4, name="w"), ids))
    assert axes_of(net) == (1, 0)
