"""Rates of onnxruntime, with a number of threads; see ``fit_costs.py``."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from chains import LAYERS, attention_model, chain, quantized_chain
from kernel_rates import Kernels
from rate_grids import (
    COUNT,
    FEW,
    MANY,
    QUANTIZED,
    TINY,
    TOKENS,
    VALUES,
    attention_flops,
    grids,
    least,
    other_grids,
    rate_of,
    rounded,
)

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.lower.rates import Entry, Grid
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

__all__ = ["onnxruntime_entry"]


def onnxruntime_entry(isa: str, threads: int, peak_gflops: float, seconds: float) -> Entry:
    """All rates of onnxruntime."""

    def wall(model: onnx.ModelProto) -> float:
        program, feeds = OnnxRuntimeProgram(model, CompileOptions(threads)), random_feeds(graph_inputs(model))
        return least(lambda: program.run_unchecked(feeds), seconds)

    few, many = (wall(chain(LAYERS["product"], TINY, count)) for count in (FEW, MANY))
    step = max((many - few) / (MANY - FEW), 1e-7)
    call = few - step

    def operators(operator: Callable[..., str], shape: tuple[int, ...]) -> float:
        return (wall(chain(operator, shape, COUNT)) - call) / COUNT

    layers = grids(
        (1.0,),
        lambda _, operator, shape, __: operators(LAYERS[operator], shape),
        step,
        lambda kind: not kind.endswith(VALUES),
    )
    attention = [
        (rate_of(attention_flops(tokens), wall(attention_model(tokens, False)) - call, step),) for tokens in TOKENS
    ]
    layers["attention"] = Grid(tuple(map(float, TOKENS)), (1.0,), tuple(attention))
    rates = other_grids(lambda operator, shape, _: operators(operator, shape), step)
    turn = max(Kernels(isa, threads, seconds).turn_seconds()[1], call)
    floats, of_bytes = (
        wall(make(QUANTIZED, 1 + COUNT)) - wall(make(QUANTIZED, 1))
        for make in (lambda shape, count: chain(LAYERS["pointwise"], shape, count), quantized_chain)
    )
    return Entry(
        isa, threads, rounded(peak_gflops), layers, rates, rounded(step), rounded(call), rounded(turn),
        rounded(floats / of_bytes),
    )  # fmt: skip
