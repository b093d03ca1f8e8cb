"""Tools that rewrite model files, as they are called in pipelines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from hosts.cases import FEEDS
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

Tool = Callable[[onnx.ModelProto], onnx.ModelProto]


def onnxslim(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim

    return onnxslim.slim(proto)


def onnxsim(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnxsim

    simplified, holds = onnxsim.simplify(proto)
    assert holds
    return simplified


def onnxoptimizer(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnxoptimizer

    return onnxoptimizer.optimize(proto, onnxoptimizer.get_fuse_and_elimination_passes())


def onnxruntime_optimizer(proto: onnx.ModelProto, level: str = "EXTENDED") -> onnx.ModelProto:
    """What ``optimized_model_filepath`` writes; what depends on the machine comes at a higher level."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = f"{folder}/out.onnx"
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(f"{folder}/out.onnx")


class Calibration(CalibrationDataReader):
    """One batch."""

    def __init__(self) -> None:
        self._batches = iter([FEEDS])

    def get_next(self) -> Any:
        return next(self._batches, None)


def static(proto: onnx.ModelProto, **settings: Any) -> onnx.ModelProto:
    """Quantized by calibration; weights are symmetric 8-bit integers unless told otherwise."""
    settings = {"quant_format": QuantFormat.QDQ, "weight_type": QuantType.QInt8, **settings}
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(proto, f"{folder}/in.onnx")
        quantize_static(f"{folder}/in.onnx", f"{folder}/out.onnx", Calibration(), **settings)
        return onnx.load(f"{folder}/out.onnx")


def dynamic(proto: onnx.ModelProto, **settings: Any) -> onnx.ModelProto:
    """Weights quantized, activations at run time."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(proto, Path(folder, "in.onnx"))
        quantize_dynamic(f"{folder}/in.onnx", f"{folder}/out.onnx", **{"weight_type": QuantType.QInt8, **settings})
        return onnx.load(f"{folder}/out.onnx")


RUN: dict[str, Tool] = {
    "onnxslim": onnxslim,
    "onnxsim": onnxsim,
    "onnxoptimizer": onnxoptimizer,
    "onnxruntime": onnxruntime_optimizer,
    "quantize_static": static,
    "quantize_dynamic": dynamic,
}
# Fused operators, which onnxruntime's extended level makes, hide convolutions from layerwise passes.
BEFORE: dict[str, Tool] = {"onnxruntime": lambda proto: onnxruntime_optimizer(proto, "BASIC")}
