"""Machines, products and small models for the tests of the dataflow simulator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.backends.dataflow.machines.machine import GridMachine, with_grid
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.workloads.matrix_maps import matrix_maps
from sift_onnx.backends.dataflow.workloads.pattern import StoredPattern
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct

Array = np.ndarray[Any, np.dtype[Any]]


def grid(columns: int = 1, rows: int = 1, **changes: Any) -> GridMachine:
    """The preset wse2 with another grid and other values; everything that costs nothing there costs nothing here."""
    machine = load_machine("wse2")
    assert isinstance(machine, GridMachine)
    return replace(with_grid(machine, columns, rows), **changes)


def product(mask: Array, tokens: int, **changes: Any) -> SparseProduct:
    """A matrix product whose weight is active where ``mask`` is not zero."""
    forward, backward = matrix_maps(mask.shape, 0, 1)
    indices = np.flatnonzero(mask).astype(np.int32)
    return SparseProduct("w", "mm", "MatMul", "matmul", StoredPattern(forward, indices), backward, tokens, **changes)


@st.composite
def masks(draw: st.DrawFn, rows: int = 12, columns: int = 16) -> Array:
    """A mask of at most ``rows`` x ``columns``."""
    shape = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    density = draw(st.sampled_from([0.0, 0.1, 0.4, 0.8, 1.0]))
    seed = draw(st.integers(0, 2**16))
    return np.random.default_rng(seed).random(shape) < density


@st.composite
def machines(draw: st.DrawFn, columns: int = 6, rows: int = 6) -> GridMachine:
    """A grid with everything that can bind drawn as well."""
    return grid(
        draw(st.integers(1, columns)),
        draw(st.integers(1, rows)),
        window_rows=draw(st.sampled_from([1.0, 2.0, 4.0, 8.0, math.inf])),
        axpy_startup=float(draw(st.integers(0, 9))),
        row_overhead=float(draw(st.integers(0, 3))),
        simd_lanes=draw(st.sampled_from([1, 4, 8])),
        edge_bytes_per_cycle=draw(st.sampled_from([1.0, 8.0, 136.0, math.inf])),
        queue_words=draw(st.integers(2, 6)),
    )


def random_cases(count: int) -> Iterator[tuple[SparseProduct, GridMachine]]:
    """Cases as docs/simulator.md describes them for its distribution of errors."""
    rng = np.random.default_rng(0)
    for number in range(count):
        size = (1, 1) if number % 8 == 0 else (int(rng.integers(2, 9)), int(rng.integers(1, 9)))
        machine = grid(
            *size,
            window_rows=float(rng.choice([2, 4, 8, 16])),
            axpy_startup=float(rng.integers(0, 8)),
            queue_words=int(rng.integers(2, 7)),
        )
        shape = int(rng.integers(8, 48)), int(rng.integers(8, 64))
        mask = rng.random(shape) < rng.choice([0.1, 0.3, 0.6])
        yield product(mask, int(rng.integers(1, 64))), machine


def linear(weight: Array, batch: int | str = "N") -> onnx.ModelProto:
    """``y = x @ w.T``; ``weight`` is ``[out, in]``, stored transposed as MatMul has it."""
    out, features = weight.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, out])],
        [numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")],
    )
    return _model(graph)


def convolution(weight: Array, size: int = 9, batch: int | str = 2, **attributes: Any) -> onnx.ModelProto:
    """A convolution of ``[batch, channels, size, size]``, behind another one and with an activation after it."""
    channels = weight.shape[1] * attributes.get("group", 1)
    stem = np.random.default_rng(5).choice([-2, -1, 1, 2], (channels, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "stem"], ["a"], "stem_node"),
            helper.make_node("Conv", ["a", "w", "b"], ["c"], "conv", **attributes),
            helper.make_node("Relu", ["c"], ["y"], "relu"),
        ],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(stem, "stem"),
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.arange(weight.shape[0], dtype=np.float32), "b"),
        ],
    )
    return _model(graph)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sparse_integers(*shape: int, density: float = 0.2, seed: int = 0) -> Array:
    """Small integers as float32, most of them zero."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 4, shape) * rng.choice([-1, 1], shape) * (rng.random(shape) < density)
    return values.astype(np.float32)
