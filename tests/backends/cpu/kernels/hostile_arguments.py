"""Random arguments for everything that Python sees of the kernels: each call returns, or raises what Python expects.

Run as a program: a memory error ends the process. For one that finds them all, build with `-DSIFT_SANITIZE=address` and
preload the sanitizer's library.

    python tests/backends/cpu/kernels/hostile_arguments.py --rounds 20000 [--module _kernels.so]
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import resource
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
from hostile_int8 import HostileInt8
from hostile_sources import ISAS, MOST_WORK, Sources, count_of, work
from hostile_training import HostileTraining

# What a mistake of the caller may raise. Nothing here is a mistake of Python's.
EXPECTED = (ValueError, TypeError, MemoryError, RuntimeError, OverflowError)


class Hostile(Sources):
    """Calls of what runs a model."""

    def __init__(self, kernels: Any, rng: Random) -> None:
        super().__init__(kernels, rng)
        # Of the attention that was made last.
        self.rows = 0
        self.other_sizes: list[int] = []
        # Of the copy, or the operator on views, that was made last.
        self.source: tuple[int, ...] = (1, 1, 1, 1)
        self.depth = 1

    def operator(self) -> tuple[Any, int | None]:
        """An operator, and the channels of the input that it takes, if that is known."""
        first_layers = (self.winograd, self.pooled_winograd)
        others = (
            self.matmul,
            self.dense_product,
            *first_layers,
            self.depthwise,
            self.banded,
            self.pool,
            self.plain,
            self.attention,
            self.rearrange,
            self.copy,
            self.recurrent,
            self.of_views,
            self.selection,
        )
        make = self.rng.choice((self.conv, self.conv, self.conv, *others))
        return make()

    def conv(self) -> tuple[Any, int]:
        kernel, groups = self.pair(), self.positive()
        inputs = self.size()
        columns = inputs * min(kernel[0] * kernel[1], 2**32)
        weights = self.weights(groups * self.size(), min(columns, 2**63 - 1))
        bias = self.floats(weights.rows) if self.rng.random() < 0.5 else None
        algorithm = self.rng.choice(("auto", "auto", "single", "pair", "dense", "generated"))
        conv = self.kernels.Conv(
            weights, bias, kernel=kernel, stride=self.pair(), dilation=self.pair(), pads=self.pads(), groups=groups,
            activation=self.activation(), layout=self.layout(), algorithm=algorithm, isa=self.rng.choice(ISAS),
        )  # fmt: skip
        return conv, inputs * groups

    def winograd(self) -> tuple[Any, int]:
        weights, channels, convolution = self.first_layer()
        return self.kernels.Winograd(weights, **convolution), channels

    def pooled_winograd(self) -> tuple[Any, int]:
        weights, channels, convolution = self.first_layer()
        window = self.rng.choice(((2, 2), (3, 3), self.pair()))
        op = self.kernels.PooledWinograd(
            weights, window=window, window_stride=self.pair(), window_pads=self.pads(),
            ceil_mode=self.rng.random() < 0.5, **convolution,
        )  # fmt: skip
        return op, channels

    def first_layer(self) -> tuple[Any, int, dict[str, Any]]:
        suiting = (((3, 3), (1, 1)), ((7, 7), (2, 2)), ((4, 8), (1, 2)))
        kernel, stride = self.rng.choice((*suiting, (self.pair(), self.pair())))
        channels = self.rng.choice((1, 2, 3, 4, self.size()))
        columns = channels * min(kernel[0] * kernel[1], 2**32)
        weights = self.weights(self.size(), min(columns, 2**63 - 1))
        bias = self.floats(weights.rows) if self.rng.random() < 0.5 else None
        return weights, channels, {
            "bias": bias, "kernel": kernel, "stride": stride, "pads": self.pads(), "activation": self.activation(),
            "layout": self.layout(), "isa": self.rng.choice(ISAS),
        }  # fmt: skip

    def matmul(self) -> tuple[Any, int]:
        columns = self.size()
        weights = self.weights(self.size(), columns)
        bias = self.floats(weights.rows) if self.rng.random() < 0.5 else None
        return self.kernels.Matmul(weights, bias, activation=self.activation(), isa=self.rng.choice(ISAS)), columns

    def recurrent(self) -> tuple[Any, int]:
        hidden, directions = self.size(), self.rng.choice((0, 1, 1, 2, 2, 3))
        cell = self.rng.choice(("lstm", "gru", "gru_linear", "tanh", "relu"))
        gates = {"lstm": 4, "gru": 3, "gru_linear": 3}.get(cell, 1)
        rows = self.rng.choice((directions * gates * hidden, directions * gates * hidden, self.size()))
        weights = self.weights(min(rows, 2**63 - 1), hidden)
        bias = self.floats(weights.rows) if self.rng.random() < 0.5 else None
        op = self.kernels.Recurrent(
            weights, bias, cell=cell, reversed=[self.rng.random() < 0.5 for _ in range(directions)],
            has_cell_states=self.rng.random() < 0.3, has_lengths=self.rng.random() < 0.3, batch=self.size(),
            isa=self.rng.choice(ISAS),
        )  # fmt: skip
        if self.rng.random() < 0.5:
            op = op.for_batch(self.rng.choice((1, 2, 16, self.size())))
        return op, rows

    def dense_product(self) -> tuple[Any, int]:
        columns = self.rng.choice((self.size(), 256, 1100))
        weights = self.weights(self.rng.choice((self.size(), 90)), columns)
        bias = self.floats(weights.rows) if self.rng.random() < 0.5 else None
        isa = self.rng.choice(ISAS)
        return self.kernels.DenseProduct(weights, bias, activation=self.activation(), isa=isa), columns

    def depthwise(self) -> tuple[Any, int]:
        kernel, channels = self.pair(), self.size()
        bias = self.floats(channels) if self.rng.random() < 0.5 else None
        weights = self.weights(channels, min(kernel[0] * kernel[1], 2**63 - 1))
        op = self.kernels.Depthwise(
            weights, bias, kernel=kernel, stride=self.pair(), dilation=self.pair(), pads=self.pads(),
            activation=self.activation(), layout=self.layout(), isa=self.rng.choice(ISAS),
        )  # fmt: skip
        return op, channels

    def banded(self) -> tuple[Any, int]:
        channels, isa = self.size(), self.rng.choice(ISAS)
        kernel = self.rng.choice(((1, 1), (3, 3), self.pair()))
        weights = self.weights(channels, min(kernel[0] * kernel[1], 2**63 - 1))
        depthwise = self.kernels.Depthwise(
            weights, kernel=kernel, stride=self.pair(), dilation=self.pair(), pads=self.pads(), layout="planes", isa=isa
        )

        def pointwise(rows: int, columns: int) -> Any:
            layout = self.rng.choice(("planes", "planes", "planes", self.layout()))
            return self.kernels.Conv(self.weights(rows, columns), activation=self.activation(), layout=layout, isa=isa)

        inputs = self.size()
        ends = self.rng.choice(((True, True), (True, False), (False, True), (False, False)))
        before = pointwise(channels, inputs) if ends[0] else None
        after = pointwise(self.size(), self.rng.choice((channels, self.size()))) if ends[1] else None
        op = self.kernels.BandedDepthwise(before, depthwise, after, rows=self.rng.choice((0, 1, 2, self.size())))
        return op, inputs if ends[0] else channels

    def pool(self) -> tuple[Any, None]:
        window = {"kernel": self.pair(), "stride": self.pair(), "dilation": self.pair(), "pads": self.pads()}
        if self.rng.random() < 0.5:
            return self.kernels.MaxPool(**window, ceil_mode=self.rng.random() < 0.5, layout=self.layout()), None
        inside, ceil = self.rng.random() < 0.5, self.rng.random() < 0.5
        op = self.kernels.AveragePool(**window, ceil_mode=ceil, count_include_pad=inside, layout=self.layout())
        return op, None

    def plain(self) -> tuple[Any, int | None]:
        kind = self.rng.choice(("elementwise", "gate", "scale", "norm", "reorder", "global", "softmax", "sums"))
        if kind == "elementwise":
            names = ("first", "add", "subtract", "multiply", "divide")
            return self.kernels.Elementwise(self.rng.choice(names), layout=self.layout()), None
        if kind == "gate":
            names = ("first", "add", "subtract", "multiply")
            return self.kernels.ChannelCombine(self.rng.choice(names), layout=self.layout()), None
        if kind == "reorder":
            return self.kernels.Reorder(self.layout()), None
        if kind == "softmax":
            return self.kernels.Softmax(is_log=self.rng.random() < 0.5, layout=self.layout()), None
        if kind == "sums":
            return self.kernels.CumulativeSum(is_reversed=self.rng.random() < 0.5, layout=self.layout()), None
        if kind == "global":
            return self.kernels.GlobalAveragePool(layout=self.layout()), None
        channels = self.size()
        scale, shift = self.floats(channels), self.floats(channels)
        if kind == "scale":
            return self.kernels.ChannelScale(scale, shift, layout=self.layout()), channels
        return self.kernels.LayerNormalization(scale, shift, 1e-5, layout=self.layout()), channels

    def selection(self) -> tuple[Any, int | None]:
        """What finds places, or takes values by them."""
        is_least = self.rng.random() < 0.5
        match self.rng.choice(("extreme", "value", "top", "top", "gather", "scatter", "cast")):
            case "extreme":
                takes_last, isa = self.rng.random() < 0.5, self.rng.choice(ISAS)
                op = self.kernels.ArgExtreme(is_least=is_least, takes_last=takes_last, layout=self.layout(), isa=isa)
            case "value":
                op = self.kernels.ReduceExtreme(is_least=is_least, layout=self.layout(), isa=self.rng.choice(ISAS))
            case "top":
                op = self.kernels.TopK(self.rng.choice((1, 2, 3, self.size())), is_least=is_least)
            case "gather":
                op = self.kernels.GatherElements(self.rng.choice((1, 3, self.size())), self.rng.random() < 0.3)
            case "scatter":
                fill = self.rng.choice((0.0, 0.0, None))
                reduction, shares = self.rng.choice(("none", "add", "max")), self.rng.random() < 0.3
                op = self.kernels.ScatterElements(
                    self.rng.choice((1, 3, self.size())), reduction=reduction, has_index_for_all=shares, fill=fill
                )
            case _:
                op = self.kernels.CastIntegers()
        return op, None

    def copy(self) -> tuple[Any, int | None]:
        """What moves values, from and to any place."""
        places = [[self.rng.choice((0, 0, 1, 2, 3, self.size())) for _ in range(self.rng.randrange(5))] for _ in "xy"]
        match self.rng.choice(("channels", "pixels", "linear", "blocks", "sampled")):
            case "channels":
                total = self.rng.choice((len(places[0]), 7, self.size()))
                op = self.kernels.ChannelCopy(places[0], self.rng.choice((0, 2)), total, layout=self.layout())
                return op, self.rng.choice((4, None))
            case "pixels":
                nowhere = [[place - self.rng.choice((0, 0, 1)) for place in axis] for axis in places]
                return self.kernels.PixelCopy(*nowhere, 1.0, layout=self.layout()), None
            case "linear":
                between = [[(place, self.rng.choice((place, 0)), 0.5) for place in axis] for axis in places]
                return self.kernels.LinearResize(*between, layout=self.layout()), None
            case "sampled":
                options = {name: self.rng.random() < 0.5 for name in ("is_nearest", "clamps", "aligns_corners")}
                return self.kernels.GridSample(self.size(), self.size(), **options), None
        depth_first = self.rng.random() < 0.5
        op = self.kernels.DepthToSpace(self.pair(), depth_first=depth_first, layout=self.layout())
        return op, self.rng.choice((4, 36, None))

    def attention(self) -> tuple[Any, int]:
        heads, depth, value_depth = self.positive(), self.positive(), self.positive()
        sequences, tokens = self.positive(), self.positive()
        channels = []
        for size in (depth, depth, value_depth):
            before = self.rng.choice((0, 0, 3))
            wrong = self.rng.choice((-1, 1, 2**62, -(2**62))) if self.rng.random() < 0.02 else 0
            channels.append((before + heads * size + self.rng.choice((0, 2)), before + wrong))
        self.rows = sequences * tokens
        mask = None
        if self.rng.random() < 0.5:
            mask = tuple(self.rng.choice((1, size)) for size in (sequences, heads, tokens))
            mask = (*mask, self.rng.choice((tokens, tokens, 1, 2**62)))
        op = self.kernels.Attention(
            sequences=sequences, tokens=tokens, heads=heads, depth=depth, value_depth=value_depth,
            scale=self.rng.choice((1.0, 0.0, float("nan"))), queries=channels[0], keys=channels[1], values=channels[2],
            mask=mask, nan_to_zero=self.rng.random() < 0.5, layout=self.layout(), isa=self.rng.choice(ISAS),
            score_roundings=[(2.0, self.rng.choice((0.5, 0.5, 0.0)), -3.0, 5.0)] * self.rng.choice((0, 0, 2)),
            weight_roundings=[(2.0, 0.5, -3.0, self.rng.choice((5.0, 5.0, float("inf"))))] * self.rng.choice((0, 0, 1)),
        )  # fmt: skip
        self.other_sizes = [
            count_of((self.rows, channels[1][0], 1, 1), op.input_layout),
            count_of((self.rows, channels[2][0], 1, 1), op.input_layout),
            math.prod(mask) if mask else 0,
        ]
        return op, channels[0][0]

    def rearrange(self) -> tuple[Any, None]:
        source, target = self.shape(None), self.shape(None)
        count = min(target[0] * target[2] * target[3], 10_000)
        written = self.rng.choice((1, 2, target[1] if target[1] < 10_000 else 1))
        self.source = source
        most = max(math.prod(source), 1) if max(source) < 1000 else 1000
        positions = np.array([self.rng.randrange(-1, most) for _ in range(max(count, 0))], np.int64)
        channels = np.array([self.rng.choice((0, 0, 1, 16, -1, 2**62)) for _ in range(max(written, 0))], np.int64)
        op = self.kernels.Rearrange(
            positions, channels, source=source, target=target, first_channel=self.rng.choice((0, 0, 1, -1, 2**62)),
            source_layout=self.layout(), target_layout=self.layout(), isa=self.rng.choice(ISAS),
        )  # fmt: skip
        return op, None

    def view(self, axes: int) -> tuple[tuple[int, ...], int, list[int]]:
        """A view of a tensor of ``self.source``, which mostly does not leave it."""
        strides = [self.rng.choice((0, 0, 1, 1, 2, self.size(0.02))) for _ in range(axes)]
        if self.rng.random() < 0.02:
            strides = strides[:-1]
        return self.source, self.rng.choice((0, 0, 1, self.size(0.1))), strides

    def of_views(self) -> tuple[Any, None]:
        self.source = self.shape(None)
        common: dict[str, Any] = {"layout": self.layout(), "isa": self.rng.choice(ISAS)}
        if self.rng.random() < 0.5:
            batch = [self.positive() for _ in range(self.rng.choice((0, 1, 2, 7)))]
            rows, columns, self.depth = (self.size() for _ in range(3))
            axes = len(batch) + 2
            op = self.kernels.BatchedMatmul(
                batch=batch, rows=rows, columns=columns, depth=self.depth, left=self.view(axes), right=self.view(axes),
                **common,
            )  # fmt: skip
            return op, None
        self.depth = 1
        sizes = [self.positive() for _ in range(self.rng.choice((0, 1, 2, 3, 9)))]
        kind = self.rng.choice(("first", "add", "divide", "power", "where_true", "softplus"))
        right = self.view(len(sizes)) if (kind in ("first", "softplus")) == (self.rng.random() < 0.02) else None
        out = self.view(len(sizes)) if self.rng.random() < 0.3 else None
        op = self.kernels.ViewArithmetic(
            kind, sizes=sizes, left=self.view(len(sizes)), right=right, out=out, activation=self.activation(), **common
        )
        return op, None

    # Calls.

    def run(self) -> None:
        op, channels = self.operator()
        if isinstance(op, self.kernels.Attention):
            self.attend(op, channels)
            return
        on_views = isinstance(op, (self.kernels.BatchedMatmul, self.kernels.ViewArithmetic))
        shape = self.source if on_views or isinstance(op, self.kernels.Rearrange) else self.shape(channels)
        out_shape = op.output_shape(shape)
        if work(shape) > MOST_WORK or work(out_shape) * (self.depth if on_views else 1) > MOST_WORK:
            return
        if on_views and self.rng.random() < 0.9:
            arrays = [self.floats(count_of(own, op.input_layout)) for own in (shape, out_shape, shape)]
            takes_second = self.rng.random() < 0.8
            op.run(self.rng.choice(self.pools), shape, *arrays[:2], arrays[2] if takes_second else None)
            return
        of_channels = isinstance(op, self.kernels.ChannelCombine) and self.rng.random() < 0.9
        second_shape = (*shape[:2], 1, 1) if of_channels else out_shape
        second = (
            self.floats(count_of(second_shape, op.output_layout)) if of_channels or self.rng.random() < 0.4 else None
        )
        if isinstance(op, (self.kernels.GatherElements, self.kernels.ScatterElements)) and self.rng.random() < 0.9:
            is_gather = isinstance(op, self.kernels.GatherElements)
            indices = [
                self.rng.choice((0, 0, 0, -1, (shape if is_gather else out_shape)[1]))
                for _ in range(math.prod(out_shape if is_gather else shape))
            ]
            second = np.array(indices, np.int64).view(np.float32)
        source, out = self.floats(count_of(shape, op.input_layout)), self.floats(count_of(out_shape, op.output_layout))
        op.run(self.rng.choice(self.pools), shape, source, out, second)
        if hasattr(op, "source"):
            op.release_source()
            op.source()
            op.run(self.rng.choice(self.pools), shape, source, out, second)

    def attend(self, op: Any, channels: int | None) -> None:
        shape = (self.rows, channels or 1, 1, 1)
        out_shape = op.output_shape(shape)
        if max(map(work, (shape, out_shape, (max(self.other_sizes), 1, 1, 1)))) > MOST_WORK:
            return
        others = [self.floats(size) if size and self.rng.random() < 0.98 else None for size in self.other_sizes]
        if self.rng.random() < 0.02:
            others[self.rng.randrange(3)] = self.floats(self.size())
        source, out = self.floats(count_of(shape, op.input_layout)), self.floats(count_of(out_shape, op.output_layout))
        op.run(self.rng.choice(self.pools), shape, source, out, *others)

    def look(self) -> None:
        op, channels = self.operator()
        shape = self.shape(channels)
        op.output_shape(self.shape())
        if work(shape) <= MOST_WORK and hasattr(op, "describe"):
            threads = self.rng.choice((-1, 0, 1, 3, 64, 2**31 - 1))
            op.describe(shape, threads)
            op.prepare(shape, threads)
        _ = op.weight_bytes

    def sequence(self) -> None:
        steps, places = [], [self.rng.choice((100, 1000, self.size())) for _ in range(3)]
        for _ in range(self.rng.choice((1, 2, 3))):
            op, channels = self.operator()
            shape = self.shape(channels)
            if isinstance(op, self.kernels.Attention) and self.rng.random() < 0.9:
                shape = (self.rows, channels or 1, 1, 1)
            if work(shape) > MOST_WORK or work(op.output_shape(shape)) > MOST_WORK:
                return
            others = tuple(self.place() if self.rng.random() < 0.3 else None for _ in range(3))
            steps.append((op, shape, self.place(), others, self.place()))
        scratch = self.rng.choice((0, 1000, 10_000, self.size()))
        sequence = self.kernels.Sequence(steps, scratch, places)
        if scratch > MOST_WORK:
            return
        arrays = [self.floats(n) for n in places]
        seconds = np.zeros(self.rng.choice((len(steps), 1))) if self.rng.random() < 0.3 else None
        sequence.run(self.pools[0], self.kernels.Workspace(), arrays, seconds)

    def resizable(self) -> None:
        calls, shape = [], self.shape()
        others = (None, None, 0, 1, 2, self.size())
        for number in range(self.rng.choice((1, 2, 3))):
            op, channels = self.operator()
            shape = shape if self.rng.random() < 0.8 else self.shape(channels)
            if work(shape) > MOST_WORK:
                return
            second, third = self.rng.choice(others), self.rng.choice(others)
            calls.append((op, shape, number, second, third, number + 1, self.rng.random() < 0.2))
            shape = op.output_shape(shape)
        tensors = [
            (
                self.rng.choice((-1, -1, number, self.size())),
                *self.rng.choice(((number, 0), (0, 1), (3, self.size()))),
                number,
            )
            for number in range(len(calls) + 1)
        ]
        sequence = self.kernels.ResizableSequence(tensors, calls, [(0, calls[0][1])])
        for _ in range(3):
            sizes = [self.rng.choice((1, 10, 100, self.size())) for _ in tensors]
            replaced = [] if self.rng.random() < 0.9 else [(self.size(), calls[0][0])]
            found = sequence.resized([self.rng.choice((calls[0][1], self.shape()))], replaced, sizes)
            if found is None or found[0].scratch_size > MOST_WORK or max(sizes) > MOST_WORK:
                continue
            found[0].run(self.pools[0], self.kernels.Workspace(), [self.floats(size) for size in sizes])

    def place(self) -> tuple[int, int]:
        return self.rng.choice((-1, 0, 1, 2, 2, 3, -2, 2**40)), self.rng.choice((0, 0, 0, 16, 5, -16, self.size()))

    def matrix(self) -> None:
        weights = self.weights(self.size(), self.size())
        assert 0 <= weights.nnz <= max(1, weights.rows * weights.columns)
        weights.scaled(self.floats(weights.rows))
        self.kernels.count_weights(self.floats(self.size()))


def calls(kernels: Any, rng: Random) -> Iterator[Callable[[], None]]:
    hostile = Hostile(kernels, rng)
    training = HostileTraining(kernels, rng)
    int8 = HostileInt8(kernels, rng)
    while True:
        sequences = (hostile.sequence, hostile.resizable)
        rarely = (training.convolution, training.between_products, hostile.look, *sequences, hostile.matrix)
        yield rng.choice((hostile.run, hostile.run, hostile.run, int8.run, *rarely))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", help="file of the kernels, if not those that are installed")
    parser.add_argument("--memory", type=int, default=4 << 30, help="bytes of address space; 0 for no limit")
    options = parser.parse_args()
    if options.module:
        spec = importlib.util.spec_from_file_location("_kernels", options.module)
        assert spec is not None
        assert spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
    else:
        from sift_onnx.backends.cpu import _kernels as kernels
    if options.memory:
        resource.setrlimit(resource.RLIMIT_AS, (options.memory, options.memory))
    rng = Random(options.seed)
    done = refused = 0
    for _, call in zip(range(options.rounds), calls(kernels, rng), strict=False):
        try:
            call()
            done += 1
        except EXPECTED:
            refused += 1
    sys.stdout.write(f"{done} calls done, {refused} refused\n")
    return 0 if done and refused else 1


if __name__ == "__main__":
    sys.exit(main())
