"""Random arguments for the kernels of training."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_sources import EDGES, ISAS, MOST_WORK, Sources, count_of, work


class HostileTraining(Sources):
    """Calls of what trains a layer."""

    def convolution(self) -> None:
        kernel, groups, inputs, rows = self.pair(), self.positive(), self.size(), self.size()
        columns = min(inputs * kernel[0] * kernel[1], 2**63 - 1)
        indices = self.indices(groups * rows, columns)
        places = self.rng.sample(range(len(indices)), len(indices))
        if places and self.rng.random() < 0.1:
            places[0] = self.rng.choice((*EDGES, *places))
        arguments = (groups * rows, columns, indices, np.array(places, np.int64) if self.rng.random() < 0.5 else None)
        window = {
            "kernel": kernel, "stride": self.pair(), "dilation": self.pair(), "pads": self.pads(), "groups": groups,
            "isa": self.rng.choice(ISAS),
        }  # fmt: skip
        shape = self.shape(inputs * groups)
        if self.rng.random() < 0.5:
            self.products(self.kernels.TrainableConv(*arguments, **window), shape)
        else:
            self.weight_gradients(self.kernels.WeightGradient(*arguments, **window), shape)

    def products(self, conv: Any, shape: tuple[int, ...]) -> None:
        out_shape = conv.output_shape(shape)
        if work(shape) > MOST_WORK or work(out_shape) > MOST_WORK:
            return
        x, y, dx = (self.floats(count_of(of, "images16")) for of in (shape, out_shape, shape))
        bias = self.floats(out_shape[1]) if self.rng.random() < 0.5 else None
        for _ in range(self.rng.choice((0, 1, 2))):
            conv.update(self.floats(conv.nnz))
        conv.forward(self.rng.choice(self.pools), shape, x, y, bias)
        conv.input_gradient(self.rng.choice(self.pools), shape, y, dx)
        conv.describe(shape, self.rng.choice((-1, 0, 1, 3, 64, 2**31 - 1)))
        assert conv.nbytes > 0

    def weight_gradients(self, gradient: Any, shape: tuple[int, ...]) -> None:
        out_shape = gradient.output_shape(shape)
        if work(shape) > MOST_WORK or work(out_shape) > MOST_WORK:
            return
        x, dy = (self.floats(count_of(of, "images16")) for of in (shape, out_shape))
        for _ in range(2):
            dvalues = self.floats(gradient.nnz)
            gradient.run(self.rng.choice(self.pools), shape, x, dy, dvalues, self.rng.random() < 0.5)

    def between_products(self) -> None:
        kernels, pool, isa = self.kernels, self.rng.choice(self.pools), self.rng.choice(ISAS)
        kind = self.rng.choice(("batch norm", "layer norm", "pool", "lanes", "depthwise", "activation"))
        shape = self.shape()
        if kind == "layer norm" and self.rng.random() < 0.9:
            shape = (*shape[:2], 1, 1)
        if work(shape) > MOST_WORK:
            return
        x, y, dx = (self.floats(count_of(shape, "images16")) for _ in range(3))
        sizes = (min(shape[0], 2**40) + 15) // 16 * 16 if kind == "layer norm" else shape[1]
        mean, inverse_std = self.floats(sizes), self.floats(sizes)
        weight, bias, dweight, dbias = (self.maybe_floats(shape[1]) for _ in range(4))
        if kind == "layer norm":
            kernels.layer_norm_forward(pool, shape, x, weight, bias, 1e-5, y, mean, inverse_std, isa)
            kernels.layer_norm_backward(pool, shape, y, x, weight, mean, inverse_std, dx, dweight, dbias, isa)
        elif kind == "batch norm":
            residual = self.maybe_floats(x.size)
            out = self.rng.choice((x, y))
            if self.rng.random() < 0.5:
                kernels.batch_norm_apply(pool, shape, x, weight, bias, mean, inverse_std, True, residual, out, isa)
            else:
                kernels.batch_norm_forward(
                    pool, shape, x, weight, bias, 1e-5, True, residual, out, mean, inverse_std, isa=isa
                )
            kernels.batch_norm_backward(
                pool, shape, y, x, self.maybe_floats(x.size), weight, mean, inverse_std, self.rng.choice((y, dx)),
                self.floats(shape[1]), self.floats(shape[1]), self.maybe_floats(x.size), bias=bias,
                relu=self.rng.random() < 0.5, of_batch=self.rng.random() < 0.5, isa=isa,
            )  # fmt: skip
        elif kind == "lanes":
            plain = self.floats(count_of(shape, "planes"))
            kernels.to_lanes(pool, shape, plain, x, isa)
            kernels.from_lanes(pool, shape, x, plain, isa)
            kernels.channel_sums(pool, shape, x, mean, isa)
        elif kind == "depthwise":
            self.depthwise(shape, x, dx)
        elif kind == "activation":
            function = (self.rng.choice(("relu", "clip", "swish", "gelu", "gelu_tanh", "none")), 1.0, self.rng.random())
            kernels.activation_backward(pool, shape, function, y, x, self.rng.choice((x, y, dx)), isa)
            kernels.activation_forward(pool, shape, function, x, self.rng.choice((x, y)), isa)
        else:
            window = {"kernel": self.pair(), "stride": self.pair(), "dilation": self.pair(), "pads": self.pads()}
            out_shape = kernels.MaxPool(**window).output_shape(shape)
            count = count_of(out_shape, "images16")
            if work(out_shape) > MOST_WORK:
                return
            taps = np.frombuffer(self.rng.randbytes(64 + count), np.uint8).copy()
            taps = taps[-taps.ctypes.data % 64 :][:count]
            out = self.floats(count)
            if self.rng.random() < 0.5:
                kernels.max_pool_forward(pool, shape, x, out, taps, isa=isa, **window)
            kernels.max_pool_backward(pool, shape, out, taps, dx, isa=isa, **window)
            settings = {"isa": isa, **window}
            epsilon = self.rng.choice((1e-5, None))
            relu, of_batch = self.rng.random() < 0.5, self.rng.random() < 0.5
            chosen = self.floats(count)
            sums = self.floats(shape[1]), self.floats(shape[1])
            kernels.batch_norm_pool_backward(
                pool, shape, out, x, chosen, taps, weight, bias, mean, inverse_std, relu, of_batch, dx, *sums,
                **settings,
            )  # fmt: skip
            kernels.batch_norm_pool_forward(
                pool, shape, x, weight, bias, epsilon, relu, out, chosen, taps, mean, inverse_std, **settings
            )

    def depthwise(self, shape: tuple[int, ...], x: Any, dx: Any) -> None:
        kernel, pool = self.pair(), self.rng.choice(self.pools)
        rows, groups = self.rng.choice((1, 2, 3, *EDGES)) * shape[1], self.rng.choice((shape[1], *EDGES))
        window = {"kernel": kernel, "stride": self.pair(), "dilation": self.pair(), "pads": self.pads()}
        conv = self.kernels.DepthwiseConv(rows, **window, groups=groups, isa=self.rng.choice(ISAS))
        out_shape, count = conv.output_shape(shape), rows * kernel[0] * kernel[1]
        if work(out_shape) > MOST_WORK or count > MOST_WORK:
            return
        out, weight, dweight = self.floats(count_of(out_shape, "images16")), self.floats(count), self.floats(count)
        conv.forward(pool, shape, x, weight, out, self.maybe_floats(rows))
        conv.input_gradient(pool, shape, out, weight, dx)
        conv.weight_gradient(pool, shape, x, out, dweight)

    def maybe_floats(self, count: int) -> Any:
        return self.floats(count) if self.rng.random() < 0.6 else None
