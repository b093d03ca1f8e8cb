"""The loop of docs/training.md, run as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from training.trainer.cases import classifier, examples

import sift_onnx
from sift_onnx.training.sparse.parameters.compact import compact_weights

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "training.md"
_BLOCK = re.compile(r"^```python *(?P<name>[\w.]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> dict[str, str]:
    """The code from the heading on, by the name of its file; the loop has none."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Your own loop")[2]
    return {match["name"]: match["text"] for match in _BLOCK.finditer(section)}


def test_a_loop_of_ones_own_trains_evolves_masks_and_writes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier(tmp_path / "net.onnx", bias=False)
    wide = sift_onnx.transform(str(tmp_path / "net.onnx"), wide=0.75, budget="layer")
    sift_onnx.save(wide, tmp_path / "wide.onnx")
    images, labels = (torch.from_numpy(array) for array in examples(64))
    monkeypatch.chdir(tmp_path)
    names = {"loader": list(zip(images.split(16), labels.split(16), strict=True))}
    exec(compile(blocks()[""], str(DOCUMENT), "exec"), names)

    before, after = sift_onnx.masks(tmp_path / "wide.onnx"), sift_onnx.masks(tmp_path / "trained.onnx")
    assert before.keys() == after.keys()
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    assert all(before[name].sum() == after[name].sum() for name in before)
    assert compact_weights(names["net"]), "masked layers run on sparse kernels"
    net = names["net"].eval()
    (scores,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(scores, net(images).numpy(), atol=1e-4)


def test_code_for_other_trainers_is_valid() -> None:
    others = {name: text for name, text in blocks().items() if name}
    assert set(others) == {"lightning_module.py", "hf_callback.py"}
    for name, text in others.items():
        compile(text, name, "exec")
