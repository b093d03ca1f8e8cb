"""A transformed model trains from its own masks, and takes the evolved ones back into the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import sift_onnx
from sift_onnx.models import export
from sift_onnx.training.sparse import SET, Group, RigL, attach


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    path: Path = tmp_path_factory.mktemp("models") / "resnet.onnx"
    export("resnet18-cifar", path, width=0.125, num_classes=10, keep_batch_norm=True)
    transformed = sift_onnx.transform(onnx.load(path), wide=0.75)
    assert isinstance(transformed, onnx.ModelProto)
    return transformed


@pytest.mark.parametrize("algorithm", [RigL, SET])
def test_masks_evolve_at_the_non_zeros_of_the_file(wide: onnx.ModelProto, algorithm: Any) -> None:
    module = sift_onnx.to_torch(wide)
    before = sift_onnx.masks(wide)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    attach(algorithm(update={"freq": 2}), module, optimizer)
    module.train()
    for step in range(4):
        optimizer.zero_grad()
        x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(step))
        torch.nn.functional.cross_entropy(module(x), torch.tensor([step])).backward()
        optimizer.step()
    written = sift_onnx.write_back(wide, module.eval())
    after = sift_onnx.masks(written)

    assert before
    assert before.keys() == after.keys()
    for name, mask in after.items():
        assert np.array_equal(mask, module.state_dict()[f"{name}_mask"].numpy())
        assert mask.sum() == before[name].sum()
        assert not np.array_equal(mask, before[name])
    x = torch.rand(1, 3, 32, 32)
    session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x).numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "kept"), [({}, True), ({"sparsity": 0.5}, True), ({"init_method": "random"}, False)]
)
def test_algorithms_start_from_the_masks_of_the_model_unless_they_are_told_otherwise(
    wide: onnx.ModelProto, settings: dict[str, Any], kept: bool
) -> None:
    module = sift_onnx.to_torch(wide)
    Group({tuple(module.masks): RigL(**{"sparsity": 0.75, **settings})}).apply(module)

    assert all(torch.equal(module.state_dict()[f"{n}_mask"], mask) == kept for n, mask in module.masks.items())
