"""Networks that torch quantizes and exports, in each of the ways that it has."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import numpy as np
import onnx
import torch
from sparse_nets import ONE_THREAD, places, reasons
from torch import nn
from torch.ao.quantization import (
    QConfigMapping,
    disable_observer,
    get_default_qat_qconfig,
    get_default_qconfig_mapping,
)
from torch.ao.quantization.quantize_fx import (
    _convert_to_reference_decomposed_fx,
    convert_fx,
    prepare_fx,
    prepare_qat_fx,
)

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("every_region_pays"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning",
                               "ignore::torch.jit.TracerWarning"),
]  # fmt: skip

IMAGES = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """A stem, a residual sum, a depthwise layer, pooling and two products; most quads of weights are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.relu = nn.ReLU()
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 10)
        )
        rng = torch.Generator().manual_seed(1)
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                rows, columns, *window = layer.weight.shape
                live = torch.rand(rows, -(-columns // 4), *window, generator=rng) < 0.3
                layer.weight.data *= 2 * live.repeat_interleave(4, 1)[:, :columns]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 3, 12, 12] to [n, 10]."""
        x = self.stem(x)
        return self.head(self.depthwise(self.relu(x + self.inner(x))))  # type: ignore[no-any-return]


def calibrated(convert: Callable[[Any], Any]) -> Any:
    torch.manual_seed(0)
    prepared = prepare_fx(Residual().eval(), get_default_qconfig_mapping("x86"), (IMAGES,))
    prepared(IMAGES)
    return convert(prepared)


def trained() -> Any:
    torch.manual_seed(0)
    mapping = QConfigMapping().set_global(get_default_qat_qconfig("fbgemm", version=0))
    prepared = prepare_qat_fx(Residual().train(), mapping, (IMAGES,))
    prepared(IMAGES)
    return prepared.eval().apply(disable_observer)


def scripted(net: Any, path: Path) -> None:
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}}
    torch.onnx.export(net, (IMAGES,), path, dynamo=False, opset_version=17, **names)


def exported(net: Any, path: Path) -> None:
    shapes = ({0: torch.export.Dim("n")},)
    torch.onnx.export(
        net, (IMAGES,), path, input_names=["x"], dynamic_shapes=shapes, external_data=False, verbose=False, dynamo=True
    )


@pytest.mark.parametrize(
    ("make", "export"),
    [
        (lambda: calibrated(convert_fx), scripted),
        # Its operators are those of PT2E.
        (lambda: calibrated(_convert_to_reference_decomposed_fx), exported),
        (trained, scripted),
    ],
    ids=["quantized operators", "decomposed operators", "fake quantization"],
)
def test_what_torch_exports(make: Callable[[], Any], export: Callable[[Any, Path], None], tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    export(make(), path)
    program = CpuProgram(str(path), ONE_THREAD)
    assert set(places(program).values()) <= {"kernels", "folded"}, reasons(program)
    layers = [p for p in program.placements if p.op in ("Conv", "Gemm", "MatMul")]
    assert len(layers) == 5
    assert all(layer.reason.startswith("int8, ") for layer in layers)
    model = onnx.load(path)
    name = model.graph.input[0].name
    for batch in (1, 5):
        feeds = {name: np.random.default_rng(batch).standard_normal((batch, 3, 12, 12)).astype(np.float32)}
        found, wanted = program.run(feeds), OnnxRuntimeProgram(model, ONE_THREAD).run(feeds)
        for output, array in wanted.items():
            steps = np.unique(np.abs(np.diff(np.unique(array))))
            np.testing.assert_allclose(found[output], array, rtol=0, atol=1.001 * float(steps.min()))
