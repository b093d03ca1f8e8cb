"""Importing and training on a GPU; skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from training.sparse_layers.masked_models import sparsified
from training.sparse_layers.test_layers import conv
from training.trainer.cases import arrays, classifier, examples, settings
from training.trainer.test_resume import ALGORITHMS, Killed, killing_at

import sift_onnx
from sift_onnx.models.export import export
from sift_onnx.models.registry import ARCHITECTURES
from sift_onnx.training.trainer import train_file

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32 and the same sums in every run."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_imported_model_computes_the_same_on_a_gpu(tmp_path: Path, name: str, exporter: Any) -> None:
    layers = 2 if name.startswith("gpt") else None
    export(name, tmp_path / "m.onnx", width=0.25, layers=layers, exporter=exporter)
    module = sift_onnx.to_torch(str(tmp_path / "m.onnx")).eval()
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in value.shape]
        # Two, as BERT has two kinds of tokens.
        whole = rng.integers(0, 2, shape) if "int" in value.type else rng.standard_normal(shape).astype(np.float32)
        feeds[value.name] = whole
    expected = session.run(None, feeds)
    with torch.no_grad():
        found = module.cuda()(*(torch.from_numpy(feed).cuda() for feed in feeds.values()))
    found = found if isinstance(found, tuple) else (found,)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.is_cuda
        scale = float(np.abs(theirs).max()) or 1.0
        np.testing.assert_allclose(ours.cpu().numpy() / scale, theirs / scale, atol=1e-4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_on_a_gpu_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    model, data = classifier(tmp_path / "net.onnx"), arrays(tmp_path / "d.npz")
    optimizer = {"type": "adamw", "lr": 0.01} if name in ("imp", "static") else {"type": "sgd", "lr": 0.05}
    chosen = settings(epochs=4, sparsity=ALGORITHMS[name], optimizer=optimizer, checkpoint_every=1, clip_norm=1.0)
    train_file(model, tmp_path / "whole.onnx", data, chosen, device="cuda")
    with pytest.raises(Killed):
        train_file(model, tmp_path / "killed.onnx", data, chosen, device="cuda", progress=killing_at(9))
    torch.manual_seed(99)
    folder = tmp_path / "killed.onnx.checkpoints"
    train_file(model, tmp_path / "killed.onnx", data, chosen, device="cuda", resume=folder)
    assert (tmp_path / "killed.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_training_on_a_gpu_ends_where_one_on_the_cpu_does(tmp_path: Path, name: str) -> None:
    # Dropout would draw other numbers there.
    model, data = classifier(tmp_path / "net.onnx", norm=False), arrays(tmp_path / "d.npz")
    chosen = settings(epochs=2, sparsity=ALGORITHMS[name])
    for device in ("cpu", "cuda"):
        train_file(model, tmp_path / f"{device}.onnx", data, chosen, device=device)
    masks = [sift_onnx.masks(sift_onnx.load(tmp_path / f"{device}.onnx")) for device in ("cpu", "cuda")]
    assert masks[0].keys() == masks[1].keys()
    for key, mask in masks[0].items():
        assert np.array_equal(np.asarray(mask), np.asarray(masks[1][key])), key
    images = examples(40, seed=3)[0]
    outputs = [
        onnxruntime.InferenceSession(tmp_path / f"{device}.onnx", providers=["CPUExecutionProvider"]).run(
            None, {"x": images}
        )[0]
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-4)


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_mixed_precision_learns_on_a_gpu(tmp_path: Path, amp: str) -> None:
    model, data = classifier(tmp_path / "net.onnx"), arrays(tmp_path / "d.npz")
    losses: list[float] = []
    train_file(
        model,
        tmp_path / "out.onnx",
        data,
        settings(epochs=10, amp=amp, sparsity=ALGORITHMS["rigl"], ema=0.9, keep_best=True),
        device="cuda",
        progress=lambda step, total, loss: losses.append(loss),
    )
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])


def test_a_teacher_goes_to_the_gpu_too(tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "net.onnx"), arrays(tmp_path / "d.npz")
    teacher = classifier(tmp_path / "teacher.onnx", norm=False)
    found = train_file(model, tmp_path / "out.onnx", data, settings(), device="cuda", teacher=teacher)
    assert found is not None


def test_the_front_door_takes_the_gpu_by_itself(tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "net.onnx"), arrays(tmp_path / "d.npz")
    events: list[dict[str, Any]] = []
    train_file(model, tmp_path / "out.onnx", data, settings(sparsity=0.5), report=events.append)
    assert any("cuda:0" in str(event) for event in events)


def test_sparse_layers_that_move_to_a_gpu_compute_there_and_warn() -> None:
    twin, _ = sparsified(conv(pads=[1, 1, 1, 1]))
    x = torch.randn(2, 6, 9, 8)
    expected = twin(x)
    with pytest.warns(UserWarning, match="moved to cuda"):
        found = twin.cuda()(x.cuda())
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)
    found.sum().backward()
    assert all(parameter.grad.is_cuda for parameter in twin.parameters())
