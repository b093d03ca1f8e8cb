"""Whatever mode a network was exported in: after a transform, training and write-back, a sample is what it is alone.

Both of torch's exporters, called as people call them, on every architecture and on small networks of our own.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.onnx import TrainingMode

import sift_onnx
from sift_onnx.models import ARCHITECTURES, build
from sift_onnx.models.registry import example_inputs

Mode = Literal["eval", "training", "preserve"]
Exporter = Literal["torchscript", "dynamo"]
MODES: tuple[Mode, ...] = ("eval", "training", "preserve")
EXPORTERS: tuple[Exporter, ...] = ("torchscript", "dynamo")
FAMILIES = ({"wide": 0.75, "budget": "layer"}, {"parallel": 0.75}, {"factorized": 0.5}, {"doped": 0.5})
BATCH, SEQUENCE = 8, 6
# Of networks that take images of any size; the others are traced with their own.
PIXELS = {"deeplabv3plus-resnet18": 64, "mobilenetv2": 64, "resnet18": 64, "resnet34": 64, "resnet50": 64,
          "retinanet-resnet18": 64}  # fmt: skip


class Images(nn.Module):
    """A residual network with every kind of normalization and of dropout that a file has a mode for."""

    def __init__(self, affine: bool = True) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.Sequential(
            nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Dropout(0.3), nn.Conv2d(16, 16, 3, padding=1),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.5)
        self.middle = nn.Linear(16, 24)
        self.norm = nn.BatchNorm1d(24, affine=affine)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(self.first(x)))
        x = self.pool(x + self.body(x)).flatten(1)
        return self.head(torch.relu(self.norm(self.middle(self.drop(x)))))  # type: ignore[no-any-return]


class Signals(nn.Module):
    """Normalizations of sequences, behind an embedding and in front of dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 16)
        self.norm = nn.BatchNorm1d(16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.after = nn.BatchNorm1d(16, momentum=0.3)
        self.drop = nn.Dropout(0.2)
        self.inner = nn.Linear(16, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens).transpose(1, 2))
        x = self.drop(torch.relu(self.after(self.conv(x)))).mean(2)
        return self.head(torch.relu(self.inner(x)))  # type: ignore[no-any-return]


OURS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "images": (Images, torch.zeros(2, 3, 8, 8)),
    "images-without-scale": (lambda: Images(affine=False), torch.zeros(2, 3, 8, 8)),
    "signals": (Signals, torch.zeros(2, SEQUENCE, dtype=torch.int64)),
}


def network(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network, and inputs of two samples to trace it with."""
    if name in OURS:
        made, example = OURS[name]
        torch.manual_seed(0)
        return made(), (example,)
    row = ARCHITECTURES[name]
    options = {"layers": 1, "sequence": SEQUENCE} if "layers" in row.options else {}
    inputs = example_inputs(row, 2, options.get("sequence"))
    if name in PIXELS:
        inputs = (torch.zeros(2, 3, PIXELS[name], PIXELS[name]),)
    return build(name, width=0.125, num_classes=10, **options), inputs


def exported(name: str, exporter: Exporter, mode: Mode) -> onnx.ModelProto:
    """As ``torch.onnx.export`` writes it."""
    module, inputs = network(name)
    module.train(mode != "eval")
    names = [f"in{i}" for i in range(len(inputs))]
    with quiet():
        if exporter == "dynamo":
            batch = torch.export.Dim("batch")
            program = torch.onnx.export(
                module, inputs, dynamo=True, verbose=False, optimize=mode != "preserve", input_names=names,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
            )  # fmt: skip
            assert program is not None
            return program.model_proto
        buffer = io.BytesIO()
        training = {"eval": TrainingMode.EVAL, "training": TrainingMode.TRAINING, "preserve": TrainingMode.PRESERVE}
        torch.onnx.export(
            module, inputs, buffer, dynamo=False, opset_version=17, training=training[mode],  # type: ignore[arg-type]
            do_constant_folding=False, input_names=names, dynamic_axes={key: {0: "batch"} for key in names},
        )  # fmt: skip
        return onnx.load_model_from_string(buffer.getvalue())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def samples(proto: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    """A batch whose samples differ in scale; of masks, each has its own."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for value in proto.graph.input:
        shape = (BATCH, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            scale = rng.uniform(0.3, 3, (BATCH, *(1,) * (len(shape) - 1)))
            found[value.name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        else:
            found[value.name] = rng.integers(0, 2, shape)
            found[value.name][:, 0] = 1
    return found


def trained(proto: onnx.ModelProto, steps: int = 2) -> onnx.ModelProto:
    module = sift_onnx.to_torch(proto).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        outputs = module(*(torch.from_numpy(array) for array in samples(proto, seed=step).values()))
        torch.stack([output.square().mean() for output in outputs] if isinstance(outputs, tuple) else
                    [outputs.square().mean()]).sum().backward()  # fmt: skip
        for name, mask in module.masks.items():
            gradient = module.get_parameter(name).grad
            assert gradient is not None
            gradient.mul_(mask)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    written = sift_onnx.write_back(proto, module.eval())
    assert isinstance(written, onnx.ModelProto)
    return written


def assert_alone_as_in_batch(proto: onnx.ModelProto) -> None:
    feeds = samples(proto, seed=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for session in (
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]),
        sift_onnx.InferenceSession(proto),
    ):
        together = session.run(None, feeds)
        for i in range(BATCH):
            alone = session.run(None, {name: array[i : i + 1] for name, array in feeds.items()})
            for one, all_of_them in zip(alone, together, strict=True):
                assert np.isfinite(one).all()
                # Rounding grows from layer to layer, relative to what a layer makes.
                np.testing.assert_allclose(one[0], all_of_them[i], rtol=0, atol=2e-4 * np.abs(one).max())


def check(name: str, exporter: Exporter, mode: Mode, family: dict[str, Any]) -> None:
    proto = exported(name, exporter, mode)
    transformed = sift_onnx.transform(proto, **family)
    onnx.checker.check_model(transformed, full_check=True)
    assert_alone_as_in_batch(transformed)
    written = trained(transformed)
    onnx.checker.check_model(written, full_check=True)
    assert_alone_as_in_batch(written)
    # Without a transform, the file that came is the one that is written back to.
    assert_alone_as_in_batch(trained(proto, steps=1))


QUICK = [
    ("images", "torchscript", "training"),
    ("images-without-scale", "torchscript", "preserve"),
    ("images", "dynamo", "training"),
    ("signals", "torchscript", "training"),
    ("resnet18-cifar", "torchscript", "training"),
    ("bert-small", "torchscript", "training"),
]
EVERY = [(name, exporter, mode) for name in (*OURS, *ARCHITECTURES) for exporter in EXPORTERS for mode in MODES]


@pytest.mark.parametrize(
    ("name", "exporter", "mode"),
    [case if case[0] in OURS else pytest.param(*case, marks=pytest.mark.slow) for case in QUICK],
)
def test_a_sample_is_what_it_is_alone(name: str, exporter: Exporter, mode: Mode) -> None:
    check(name, exporter, mode, FAMILIES[QUICK.index((name, exporter, mode)) % len(FAMILIES)])


@pytest.mark.full
@pytest.mark.parametrize(("name", "exporter", "mode"), EVERY)
def test_a_sample_of_every_export_is_what_it_is_alone(name: str, exporter: Exporter, mode: Mode) -> None:
    check(name, exporter, mode, FAMILIES[EVERY.index((name, exporter, mode)) % len(FAMILIES)])


def test_what_the_exporter_writes_does_need_it() -> None:
    """Else the others would hold of themselves."""
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_alone_as_in_batch(exported("images", "torchscript", "training"))
