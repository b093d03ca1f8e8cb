"""Vision transformers whose positions are resized to the image by computed sizes, as TorchScript exports them."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from nets import run, widen
from torch import Tensor, nn
from torch.nn import functional

import sift_onnx
from sift_onnx.backends.dataflow import simulate
from sift_onnx.model import Model
from sift_onnx.passes import Doped, Factorized, Parallel, Prune
from sift_onnx.shapes.inference import infer_shapes
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.tensor_specs import model_inputs

PATCH, WIDTH, SIDE = 4, 16, 5
LAYERS = 1 + 2 * 6 + 1

# What torch says of tracing, of which there is much.
pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    """Attention by scaled dot products, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(self.norm(x)).view(batch, length, 2, width // 2).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(-1, -2)) / (width // 2) ** 0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(x)))


class Vit(nn.Module):
    """Patches, a class token, and positions that are resized to the patches by ``resized``."""

    def __init__(self, resized: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, SIDE * SIDE + 1, WIDTH))
        self.resized = resized
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1)
        count = self.positions.shape[1] - 1
        side = int(count**0.5)
        table = self.positions[:, 1:].reshape(1, side, side, WIDTH).permute(0, 3, 1, 2)
        table = self.resized(table, image).permute(0, 2, 3, 1).view(1, -1, WIDTH)
        x = x + torch.cat([self.positions[:, :1], table], 1)
        return self.head(self.blocks(x)[:, 0])


def by_scale(table: Tensor, image: Tensor) -> Tensor:
    """As DINOv2: a little is added, so that rounding down finds the number of patches; tracing makes numbers of it."""
    scale = tuple(float((int(image.shape[axis]) // PATCH + 0.1) / SIDE) for axis in (2, 3))
    return functional.interpolate(table, scale_factor=scale, mode="bicubic", recompute_scale_factor=True)


def by_size(table: Tensor, image: Tensor) -> Tensor:
    """As DPT, and DINOv2 in transformers."""
    size = tuple(torch.div(image.shape[axis], PATCH, rounding_mode="floor").to(torch.int64) for axis in (2, 3))
    return functional.interpolate(table, size=size, mode="bilinear")


@cache
def exported(resized: Callable[[Tensor, Tensor], Tensor], dynamic: str) -> onnx.ModelProto:
    torch.manual_seed(0)
    file = io.BytesIO()
    axes = {"fixed": {}, "batch": {0: "n"}, "any image": {0: "n", 2: "h", 3: "w"}}[dynamic]
    torch.onnx.export(
        Vit(resized).eval(),
        (torch.randn(1, 3, 24, 28),),
        file,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": axes} if axes else None,
        opset_version=17,
        dynamo=False,
    )
    return onnx.load_from_string(file.getvalue())


CASES = [(by_scale, "fixed"), (by_scale, "batch"), (by_size, "any image")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].__name__}, {case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, list[tuple[int, int, int, int]]]:
    """A model, and shapes of images that it takes."""
    resized, dynamic = request.param
    shapes = [(1, 3, 24, 28)]
    if dynamic != "fixed":
        shapes.append((2, 3, 24, 28))
    if dynamic == "any image":
        shapes += [(1, 3, 20, 20), (1, 3, 41, 19)]
    return exported(resized, dynamic), shapes


def settings_of(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"input_shapes": {"x": shape}}


def test_every_shape_is_known_and_that_of_onnxruntime(case: Any) -> None:
    proto, shapes = case
    model = Model.load(proto)
    for shape in shapes:
        made = run(proto, {"x": np.zeros(shape, np.float32)})
        found = infer_shapes(model, bind(model_inputs(model), {"x": shape}).shapes)
        assert {name: found.get(name) for name in made} == {name: array.shape for name, array in made.items()}


def test_inspect_knows_every_layer(case: Any) -> None:
    proto, shapes = case
    document = sift_onnx.inspect(proto, **settings_of(shapes[0])).to_dict()
    assert len(document["layers"]) == LAYERS
    assert (document["left_out"], document["warnings"]) == ([], [])


def test_wide_grows_every_layer_but_the_first_and_the_last(case: Any) -> None:
    proto, shapes = case
    for shape in shapes[-1:]:
        feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        wide = widen(proto, feeds=feeds, **settings_of(shape))
        assert [layer["status"] for layer in wide.report["layers"]].count("sparse") == LAYERS - 2
    # A model that was widened at one size takes the others.
    for other in shapes:
        run(wide.proto, {"x": np.zeros(other, np.float32)})


@pytest.mark.parametrize("make", [Parallel, Factorized, Doped, Prune])
def test_the_other_families_find_every_layer(make: Any) -> None:
    report = make("0.5", **settings_of((1, 3, 41, 19)))(exported(by_size, "any image")).report
    assert len(report["layers"]) == LAYERS
    assert not report["left_out"]


def test_the_simulator_counts_every_layer(case: Any) -> None:
    proto, shapes = case
    simulation = simulate(proto, "wse2", input_shapes={"x": shapes[-1]})
    assert [layer.kind in ("conv", "matmul", "gemm") for layer in simulation.layers].count(True) == LAYERS
    assert not simulation.uncosted


def test_the_cpu_back_end_computes_what_onnxruntime_does(case: Any) -> None:
    proto, shapes = case
    pruned = Prune("0.9", **settings_of(shapes[-1]))(proto).model.to_proto()
    session = sift_onnx.InferenceSession(pruned)
    for shape in shapes:
        feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        np.testing.assert_allclose(session.run(None, feeds)[0], run(pruned, feeds)["y"], atol=1e-4)


def test_torch_trains_what_onnxruntime_runs(case: Any) -> None:
    proto, shapes = case
    module = sift_onnx.to_torch(proto)
    for shape in shapes:
        image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        made = module(torch.from_numpy(image))
        np.testing.assert_allclose(made.detach().numpy(), run(proto, {"x": image})["y"], atol=1e-4)
