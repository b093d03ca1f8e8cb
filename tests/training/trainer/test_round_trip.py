"""From an export through a transform and a training with evolving masks, and back: the file is what was trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import sift_onnx
from sift_onnx.models import ARCHITECTURES, export
from sift_onnx.models.registry import example_inputs
from sift_onnx.training.trainer import TrainingSettings, train_file
from sift_onnx.training.trainer.state.checkpoint import load_checkpoint, newest_checkpoint

CLASSES, STEPS = 10, 9
WIDTHS = {"resnet18-cifar": 0.125, "mobilenetv2-cifar": 0.25, "bert-small": 0.125, "gpt3-small": 0.125}


def pretraining(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Of BERT's two heads."""
    cross_entropy = torch.nn.functional.cross_entropy
    return cross_entropy(outputs[0].transpose(1, 2), target) + cross_entropy(outputs[1], target[:, 0] % 2)


LOSSES = {"bert-small": f"{__file__}:pretraining", "gpt3-small": "next-token"}


def inputs(name: str, batch: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Noise for images, any tokens, and nothing masked."""
    made = list(example_inputs(ARCHITECTURES[name], batch, 8))
    if made[0].is_floating_point():
        made[0] = torch.rand(made[0].shape, generator=generator)
    else:
        made[0] = torch.randint(0, CLASSES, made[0].shape, generator=generator)
    return made


def batches(name: str) -> Iterator[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        given = inputs(name, 4, generator)
        yield *given, given[0] if given[0].dim() == 2 else torch.randint(0, CLASSES, (4,), generator=generator)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("resnet18-cifar", "rigl"),
        ("gpt3-small", "set"),
        pytest.param("mobilenetv2-cifar", "set", marks=pytest.mark.slow),
        pytest.param("bert-small", "rigl", marks=pytest.mark.slow),
        *(
            pytest.param(*pair, marks=pytest.mark.full)
            for pair in (
                ("resnet18-cifar", "set"),
                ("mobilenetv2-cifar", "rigl"),
                ("bert-small", "set"),
                ("gpt3-small", "rigl"),
            )
        ),
    ],
)
def test_the_file_is_what_was_trained(name: str, algorithm: str, tmp_path: Path) -> None:
    original, wide, out = tmp_path / "original.onnx", tmp_path / "wide.onnx", tmp_path / "out.onnx"
    sizes = {"layers": 1, "sequence": 8} if "layers" in ARCHITECTURES[name].options else {"keep_batch_norm": True}
    export(name, original, width=WIDTHS[name], num_classes=CLASSES, batch="dynamic", **sizes)
    # So narrow a network has no non-zeros to repay its dense layers with.
    sift_onnx.transform(str(original), wide=0.75, budget="layer").save(wide)
    settings = TrainingSettings.of_recipe(
        {
            "steps": STEPS,
            "loss": LOSSES.get(name, "classification"),
            "optimizer": {"type": "adamw", "lr": 0.003},
            "sparsity": {"algorithm": algorithm, "sparsity": "masks", "param_filter": "*", "update": {"freq": 2}},
            "checkpoint_every": STEPS,
        }
    )
    train_file(wide, out, list(batches(name)), settings, device="cpu")
    trained = load_checkpoint(newest_checkpoint(tmp_path / "out.onnx.checkpoints"))["model"]

    before, after = sift_onnx.masks(wide), sift_onnx.masks(out)
    assert before.keys() == after.keys() == {key[:-5] for key in trained if key.endswith("_mask")}
    for key, mask in after.items():
        assert np.array_equal(mask, trained[f"{key}_mask"].numpy()), key
        assert mask.sum() == before[key].sum(), key
        assert not np.array_equal(mask, before[key]), key

    module = sift_onnx.to_torch(str(wide)).eval()
    module.load_state_dict({key: value for key, value in trained.items() if not key.endswith("_mask")})
    given = inputs(name, 3, torch.Generator().manual_seed(1))
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), given, strict=True)}
    with torch.no_grad():
        expected = module(*given)
    for one, other in zip(
        session.run(None, feeds), expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-4 * float(other.abs().max()))
