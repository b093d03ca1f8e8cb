"""Ten steps of whole models under the algorithms, on either kernels and in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from training.sparse_layers.test_exactness import batch, exported, masked

from sift_onnx.training import ImportedModule, sparsify_layers, to_torch
from sift_onnx.training.sparse import GMP, SET, RigL, Static, attach
from sift_onnx.training.sparse.parameters.compact import compact_weights

ALGORITHMS: dict[str, Callable[[], Any]] = {
    "static": Static,
    "SET": lambda: SET(update={"freq": 3}),
    "RigL": lambda: RigL(update={"freq": 3}),
    "GMP": lambda: GMP(sparsity={"type": "cubic", "final": 0.8, "stop": 8}, update={"freq": 2}),
}


def smooth(path: Path) -> Path:
    """The model with an activation whose derivative has no steps, so that rounding cannot decide about a gradient."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type in ("Relu", "Clip"):
            node.op_type = "Softplus"
            del node.input[1:]
    onnx.save(model, path)
    return path


def trained(module: ImportedModule, algorithm: Any, kernels: str, batches: list[torch.Tensor]) -> dict[str, Any]:
    module = copy.deepcopy(module).train()
    dtype = next(module.parameters()).dtype
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    attach(algorithm, module, optimizer)
    sparsify_layers(module, optimizer, kernels=kernels)  # type: ignore[arg-type]
    assert bool(compact_weights(module)) == (kernels == "sparse")
    for x in batches:
        y = module(x.to(dtype) if x.is_floating_point() else x)
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(module.state_dict())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "name",
    [
        "gpt3-small",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18-cifar", "mobilenetv2-cifar")),
    ],
)
def test_ten_steps_have_the_masks_of_dense_kernels_and_are_as_exact(name: str, algorithm: str, tmp_path: Path) -> None:
    path = smooth(exported(name, tmp_path))
    module = to_torch(str(path)) if algorithm == "GMP" else masked(path)
    batches = [batch(name, size) for size in (16, 5, 17, 16, 2, 16, 5, 17, 16, 2)]
    ours, theirs = (trained(module, ALGORITHMS[algorithm](), kernels, batches) for kernels in ("sparse", "dense"))
    exact = trained(module.double(), ALGORITHMS[algorithm](), "dense", batches)
    assert ours.keys() == theirs.keys() == exact.keys()
    for key, wanted in exact.items():
        if key.endswith("_mask"):
            assert torch.equal(ours[key], wanted), key
            assert torch.equal(theirs[key], wanted), key
    errors = {k: [float((s[k] - exact[k]).abs().max() / exact[k].abs().max().clamp(1e-3)) for s in (ours, theirs)]
              for k in exact if exact[k].is_floating_point()}
    print(max(e[0] for e in errors.values()), max(e[1] for e in errors.values()))
    print(sorted(((e[0]/(e[1]+1e-7), e, k) for k, e in errors.items()))[-5:])
