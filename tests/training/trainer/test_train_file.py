"""From a file to a file: what is learnt, what is written, and what is left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from training.trainer.cases import arrays, classifier, examples, language_model, settings

import sift_onnx
from sift_onnx.errors import PreconditionError
from sift_onnx.training.trainer import train_file

RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 4}, "param_filter": "body.*"}


def train(*args: Any, **options: Any) -> dict[str, Any]:
    document = train_file(*args, device="cpu", **options)
    assert document is not None
    return document


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return classifier(tmp_path / "net.onnx")


def accuracy(path: Path) -> float:
    x, y = examples(40, seed=1)
    (scores,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": x})
    return float((scores.argmax(1) == y).mean())


@pytest.mark.parametrize("optimizer", [{"lr": 0.1}, {"type": "adamw", "lr": "2e-2", "weight_decay": 0.01}])
def test_a_classifier_learns_and_the_file_has_what_was_validated(
    model: Path, tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    target = tmp_path / "out.onnx"
    document = train(model, target, arrays(tmp_path / "d.npz"), settings(epochs=25, optimizer=optimizer, sparsity=RIGL))
    assert document["steps"] == 100
    assert document["validation"]["accuracy"] > 0.8
    assert accuracy(target) == pytest.approx(document["validation"]["accuracy"])
    assert document["sparsity"]["nnz"] == 288
    assert sift_onnx.masks(target)["body.weight"].sum() == 288
    before, after = onnx.load(model), onnx.load(target)
    for node in after.graph.node:  # which say how sparse they are
        del node.metadata_props[:]
    assert [n.SerializeToString() for n in before.graph.node] == [n.SerializeToString() for n in after.graph.node]


def test_next_tokens_are_learnt(tmp_path: Path) -> None:
    model = language_model(tmp_path / "lm.onnx")
    # Each token is followed by the next greater one.
    tokens = (np.arange(10)[None] + np.arange(64)[:, None]) % 7
    np.savez(tmp_path / "d.npz", tokens=tokens.astype(np.int32), val_tokens=tokens[:8])
    chosen = settings(loss="next-token", epochs=25, optimizer={"type": "adamw", "lr": 0.02})
    document = train(model, tmp_path / "out.onnx", str(tmp_path / "d.npz"), chosen)
    assert document["validation"]["accuracy"] > 0.95


def test_the_masks_of_a_transformed_model_stay_without_a_sparsity(tmp_path: Path) -> None:
    model = classifier(tmp_path / "net.onnx", bias=False)
    wide = tmp_path / "wide.onnx"
    sift_onnx.save(sift_onnx.transform(str(model), wide=0.75, budget="layer"), wide)
    before = sift_onnx.masks(wide)
    assert before
    train(wide, tmp_path / "out.onnx", arrays(tmp_path / "d.npz"), settings())
    after = sift_onnx.masks(tmp_path / "out.onnx")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_masks_that_no_algorithm_takes_over_stay(tmp_path: Path) -> None:
    model = classifier(tmp_path / "net.onnx")
    pruned = tmp_path / "pruned.onnx"
    sift_onnx.save(sift_onnx.passes.Prune(0.5)(str(model)).model, pruned)
    before = sift_onnx.masks(pruned)
    chosen = settings(sparsity=RIGL | {"param_filter": "head.weight"})
    train(pruned, tmp_path / "out.onnx", arrays(tmp_path / "d.npz"), chosen)
    after = sift_onnx.masks(tmp_path / "out.onnx")
    assert (list(before), sorted(after)) == (["body.weight"], ["body.weight", "head.weight"])
    assert np.array_equal(before["body.weight"], after["body.weight"])


def test_accumulated_parts_give_the_step_of_the_whole_batch(tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "net.onnx", norm=False), arrays(tmp_path / "d.npz")
    for parts in (1, 4):
        train(model, tmp_path / f"{parts}.onnx", data, settings(accumulate=parts, sparsity=RIGL, clip_norm=1.0))
    whole, accumulated = (sift_onnx.to_torch(tmp_path / f"{parts}.onnx").state_dict() for parts in (1, 4))
    for name, tensor in whole.items():
        torch.testing.assert_close(accumulated[name], tensor, rtol=1e-4, atol=1e-6)


def test_any_iterable_is_data(model: Path, tmp_path: Path) -> None:
    x, y = (torch.from_numpy(array) for array in examples(64))
    dataset = torch.utils.data.TensorDataset(x, y)
    batches = [{"x": x[i : i + 16].numpy(), "target": y[i : i + 16]} for i in range(0, 64, 16)]
    sources: list[Any] = [
        torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True),
        {"train": batches, "validation": batches[:1]},
        lambda: (item for item in batches),
    ]
    for i, source in enumerate(sources):
        document = train(model, tmp_path / f"{i}.onnx", source, settings(epochs=None, steps=9))
        assert (document["steps"], document["epochs"]) == (9, 2)
        assert bool(document["validation"]) == (i == 1)


def test_a_loss_of_the_users_own(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\n\ndef loss(outputs, target):\n"
        "    return (outputs - torch.nn.functional.one_hot(target, 4)).square().mean()\n"
    )
    document = train(model, tmp_path / "out.onnx", arrays(tmp_path / "d.npz"), settings(loss=f"{own}:loss", epochs=5))
    assert document["validation"]["loss"] < 0.2
    assert "accuracy" not in document["validation"]


def test_bfloat16_trains(model: Path, tmp_path: Path) -> None:
    chosen = settings(amp="bfloat16", epochs=10, sparsity=RIGL)
    document = train(model, tmp_path / "out.onnx", arrays(tmp_path / "d.npz"), chosen)
    assert document["validation"]["accuracy"] > 0.6


def test_an_option_gives_the_log_line_of_every_step(model: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    schedule = {"type": "cosine", "warmup": 2}
    train(model, tmp_path / "o.onnx", arrays(tmp_path / "d.npz"), settings(schedule=schedule), report=events.append)
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, 9))
    assert [event["lr"] for event in steps[:3]] == pytest.approx([0.025, 0.05, 0.05])
    assert [event["event"] for event in events].count("validation") == 2


def test_folded_normalization_is_not_trained_from_scratch_unless_that_is_wanted(tmp_path: Path) -> None:
    model = classifier(tmp_path / "net.onnx", norm=False, bias=True)
    data = arrays(tmp_path / "d.npz")
    wide = tmp_path / "wide.onnx"
    sift_onnx.save(sift_onnx.transform(str(model), wide=0.5, budget="layer"), wide)
    with pytest.raises(PreconditionError, match=r"stem\.weight.*folded.*folded_batch_norm: allow"):
        train(wide, tmp_path / "o.onnx", data, settings())
    train(wide, tmp_path / "o.onnx", data, settings(folded_batch_norm="allow", epochs=1))
    events: list[dict[str, Any]] = []
    train(model, tmp_path / "p.onnx", data, settings(epochs=1), report=events.append)
    assert "fine-tuning" in events[0]["text"]


def test_where_most_normalizations_are_left_a_folded_one_is_a_warning(tmp_path: Path) -> None:
    model = onnx.load(classifier(tmp_path / "net.onnx"))
    body = next(node for node in model.graph.node if "body.weight" in node.input)
    body.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value="FuseBatchNormIntoConv")
    wide = tmp_path / "wide.onnx"
    sift_onnx.save(sift_onnx.transform(model, wide=0.5, budget="layer"), wide)
    events: list[dict[str, Any]] = []
    train(wide, tmp_path / "o.onnx", arrays(tmp_path / "d.npz"), settings(epochs=1), report=events.append)
    assert "body.weight was folded" in events[0]["text"]
    assert "may train worse" in events[0]["text"]
