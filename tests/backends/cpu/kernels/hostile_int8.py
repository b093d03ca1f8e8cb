"""Random arguments for the operators of sparse int8: the part of ``hostile_arguments.py`` that is about bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_sources import MOST_WORK, Sources, count_of, work

INT8_ISAS = ("", "", "", "portable", "avx2", "avx2_madd", "avx_vnni", "avx512_vnni", "none")


class HostileInt8(Sources):
    """Calls of operators on quads."""

    def scale(self) -> float:
        return self.rng.choice((1.0, 0.02, 3.0)) if self.rng.random() < 0.95 else self.rng.choice((0.0, -1.0, np.inf))

    def byte(self) -> int:
        return self.rng.choice((0, 1, 128, 255)) if self.rng.random() < 0.97 else self.rng.choice((-1, 256, 2**31 - 1))

    def quantization(self) -> tuple[float, int]:
        return self.scale(), self.byte()

    def isa(self) -> str:
        return self.rng.choice(INT8_ISAS)

    def window(self) -> dict[str, Any]:
        return {"stride": self.pair(), "dilation": self.pair(), "pads": self.pads()}

    def convolution(self) -> tuple[Any, int]:
        groups, channels = self.positive(0.005), self.rng.choice((1, 2, 3, 5, 16))
        rows = groups * self.rng.choice((1, 2, 4, 7, 29)) if groups < 100 else 4
        shape = (rows, channels, self.rng.choice((1, 1, 2, 3)), self.rng.choice((1, 1, 2, 3)))
        values = np.frombuffer(self.rng.randbytes(int(np.prod(shape))), np.int8).reshape(shape)
        weights = self.kernels.QuadWeights(np.where(values % 3 == 0, values, 0).astype(np.int8), groups=groups)
        bias = np.arange(rows, dtype=np.int32) if self.rng.random() < 0.5 else None
        multipliers = self.floats(self.rng.choice((1, rows)))
        algorithm = self.rng.choice(("auto", "auto", "lists", "generated", "none"))
        options = {**self.window(), "algorithm": algorithm, "isa": self.isa()}
        if self.rng.random() < 0.5:
            zero = self.byte() if self.rng.random() < 0.5 else None
            op = self.kernels.DequantizedConv(
                weights,
                bias,
                multipliers,
                input_zero_point=zero,
                added=self.rng.choice((None, None, "planes", "float_quads")),
                quantization=self.rng.choice((None, None, self.quantization())),
                layout=self.rng.choice((self.layout(), "float_quads")),
                **options,
            )
            return op, channels * groups
        addition = tuple(self.quantization() for _ in range(3)) if self.rng.random() < 0.4 else None
        op = self.kernels.QuantizedConv(
            weights, bias, multipliers, input_zero_point=self.byte(), zero_point=self.byte(),
            divisor=self.rng.choice((1.0, self.scale())),
            range=(self.rng.choice((0, self.byte())), self.rng.choice((255, self.byte()))), addition=addition,
            channel_addition=self.rng.choice((None, None, None, (self.scale(), self.floats(rows)))), **options,
        )  # fmt: skip
        return op, channels * groups

    def operator(self) -> tuple[Any, int | None]:
        kernels, isa = self.kernels, self.isa()
        match self.rng.randrange(10):
            case 0:
                return kernels.Quantize(*self.quantization(), source=self.layout(), isa=isa), None
            case 1:
                return kernels.Dequantize(*self.quantization(), layout=self.layout(), isa=isa), None
            case 2:
                return kernels.DynamicQuantize(source=self.layout(), isa=isa), None
            case 3:
                signed, to_quads = self.rng.random() < 0.5, self.rng.random() < 0.5
                return kernels.ReorderBytes(to_quads=to_quads, is_signed=signed, isa=isa), None
            case 4:
                first, begin = self.rng.choice((0, 3, 4)), self.rng.choice((0, 1, 4))
                end = begin + self.rng.choice((0, 1, 4, 7))
                total = first + end - begin + self.rng.choice((0, 1, -1))
                return kernels.QuadChannels(begin, end, first, total), self.rng.choice((end, end + 3, None))
            case 5:
                addition = tuple(self.quantization() for _ in range(3))
                return kernels.QuadAdd(addition, isa=isa), None
            case 6:
                pools = [self.quantization(), self.quantization()]
                kind = self.rng.choice(("most", "mean", "all"))
                if kind == "all":
                    return kernels.QuadGlobalAverage(*pools, isa=isa), None
                window = {"kernel": self.pair(), "ceil_mode": self.rng.random() < 0.5, "isa": isa, **self.window()}
                if kind == "most":
                    return kernels.QuadMaxPool(**window), None
                return kernels.QuadAveragePool(*pools, count_padding=self.rng.random() < 0.5, **window), None
        return self.convolution()

    def run(self) -> None:
        op, channels = self.operator()
        shape = self.shape(channels)
        out_shape = op.output_shape(shape)
        if work(shape) > MOST_WORK or work(out_shape) > MOST_WORK:
            return
        second = self.floats(count_of(out_shape, op.second_layout)) if self.rng.random() < 0.5 else None
        source, out = self.floats(count_of(shape, op.input_layout)), self.floats(count_of(out_shape, op.output_layout))
        op.run(self.rng.choice(self.pools), shape, source, out, second)
