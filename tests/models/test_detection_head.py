"""A detection head as YOLOv8 has it, exported by TorchScript: which of its layers are the last."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import nn

from sift_onnx import transform
from sift_onnx.analysis.first_and_last import first_and_last
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model

BINS, CLASSES, WIDTH, SCALES = 16, 5, 8, 3


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.SiLU())


class Detector(nn.Module):
    """Three scales, each with a branch for boxes (a distribution per side) and one for classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(3, WIDTH, 4)
        self.stages = nn.ModuleList(block(WIDTH, WIDTH, 2) for _ in range(SCALES))
        self.boxes = nn.ModuleList(
            nn.Sequential(block(WIDTH, WIDTH), nn.Conv2d(WIDTH, 4 * BINS, 1)) for _ in range(SCALES)
        )
        self.classes = nn.ModuleList(
            nn.Sequential(block(WIDTH, WIDTH), nn.Conv2d(WIDTH, CLASSES, 1)) for _ in range(SCALES)
        )
        self.integral = nn.Conv2d(BINS, 1, 1, bias=False).requires_grad_(False)
        self.integral.weight.data = torch.arange(BINS, dtype=torch.float).view(1, BINS, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        found, anchors = [], []
        for stage, boxes, classes in zip(self.stages, self.boxes, self.classes, strict=True):
            x = stage(x)
            found.append(torch.cat([boxes(x), classes(x)], 1).flatten(2))
            rows, columns = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
            anchors.append(torch.stack([columns, rows]).flatten(1) + 0.5)
        box, kind = torch.cat(found, 2).split([4 * BINS, CLASSES], 1)
        sides = box.view(box.shape[0], 4, BINS, -1).transpose(2, 1).softmax(1)
        near, far = self.integral(sides).view(box.shape[0], 4, -1).chunk(2, 1)
        centres = torch.cat(anchors, 1).unsqueeze(0)
        corner, other = centres - near, centres + far
        return torch.cat([(corner + other) / 2, other - corner, kind.sigmoid()], 1)


def exported() -> onnx.ModelProto:
    torch.manual_seed(0)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Detector().eval(), (torch.zeros(1, 3, 64, 96),), stream, dynamo=False, opset_version=17,
            input_names=["images"], output_names=["found"],
            dynamic_axes={"images": {0: "batch", 2: "height", 3: "width"}, "found": {0: "batch", 2: "anchors"}},
        )  # fmt: skip
    return onnx.load_from_string(stream.getvalue())


def test_the_last_layers_of_an_exported_detector_are_its_six_convolutions() -> None:
    model = exported()
    heads = {f"{branch}.{scale}.1.weight" for branch in ("boxes", "classes") for scale in range(SCALES)}
    roles = first_and_last(analyze(Model.load(model)))
    assert roles == {"stem.0.weight": "first layer"} | dict.fromkeys(heads, "last layer")
    wide = transform(model, wide=0.75)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in wide.graph.initializer}
    np.testing.assert_array_equal(stored["integral.weight"].reshape(-1), np.arange(BINS))
    for name in heads:
        assert (stored[name] != 0).all()
    for shape in ((1, 3, 64, 96), (2, 3, 96, 64)):
        feeds = {"images": np.zeros(shape, np.float32)}
        (found,) = onnxruntime.InferenceSession(wide.SerializeToString()).run(None, feeds)
        assert found.shape[:2] == (shape[0], 4 + CLASSES)
