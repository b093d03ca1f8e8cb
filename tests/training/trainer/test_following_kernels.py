"""Under ``auto`` layers change kernels when their masks do: sparse ones once they are sparse, dense ones once full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training.trainer.cases import arrays, classifier, settings

import sift_onnx
from sift_onnx.training.trainer import train_file
from sift_onnx.training.trainer.state.checkpoint import load_checkpoint

BOTH = ["body.weight", "head.weight"]
FILTER = {"param_filter": BOTH}
ALGORITHMS: dict[str, Any] = {
    "gmp": {"algorithm": "gmp", "sparsity": {"type": "linear", "init": 0.0, "slope": 0.1},
            "update": {"freq": 2, "stop": 9}},
    "imp": {"algorithm": "imp", "sparsity": 0.75, "rounds": 2, "rewind_to": 2, "update": {"freq": 4}},
    "spdf": {"algorithm": "rigl", "sparsity": 0.75, "densify_at": 8, "update": {"freq": 3}},
    "set that gets denser": {"algorithm": "set", "sparsity": {"type": "linear", "init": 0.8, "slope": -0.05},
                             "update": {"freq": 2, "stop": 9}},
}  # fmt: skip
# Of 12 steps. GMP's sparsity is 0.8 after step 8 and 0.6 after step 6; a third of the weights may be active.
CHANGES: dict[str, Any] = {
    "gmp": [{"step": 8, "sparse": BOTH, "dense": []}],
    "imp": [{"step": 8, "sparse": BOTH, "dense": []}],
    "spdf": [{"step": 8, "sparse": [], "dense": BOTH}],
    "set that gets denser": None,
}


class Killed(Exception):  # noqa: N818
    pass


def killing_at(step: int) -> Any:
    def progress(done: int, total: int, loss: float) -> None:
        if done == step:
            raise Killed

    return progress


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("following")
    classifier(folder / "net.onnx")
    arrays(folder / "d.npz")
    return folder


@pytest.fixture(scope="module", params=ALGORITHMS)
def whole(folder: Path, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], list[Any]]:
    """An algorithm, and its run under ``auto``."""
    return request.param, *train(folder, f"{request.param}.onnx", request.param, "auto")


def train(folder: Path, out: str, name: str, kernels: str, **options: Any) -> tuple[dict[str, Any], list[Any]]:
    events: list[dict[str, Any]] = []
    optimizer = {"type": "adamw", "lr": 0.01} if name == "spdf" else {"type": "sgd", "lr": 0.05}
    chosen = settings(
        epochs=3, sparsity=ALGORITHMS[name] | FILTER, optimizer=optimizer, checkpoint_every=1, clip_norm=1.0,
        kernels=kernels,
    )  # fmt: skip
    document = train_file(
        folder / "net.onnx",
        folder / out,
        folder / "d.npz",
        chosen,
        device="cpu",
        report=events.append,
        **{"force": True} | options,
    )
    assert document is not None
    return document, events


def test_layers_change_at_the_update_that_makes_them_sparse_or_dense(folder: Path, whole: Any) -> None:
    name, document, events = whole
    assert document["kernels"].get("changes") == CHANGES[name]
    kind = "dense" if name == "spdf" else "sparse"
    assert [layer["kernels"] for layer in document["kernels"]["layers"]] == [kind, kind]
    told = [event for event in events if event["event"] == "kernels"][1:]
    text = "2 layers run on dense kernels again" if name == "spdf" else "2 more layers run on sparse kernels"
    assert [(event["step"], event["text"]) for event in told] == [(8, f"step 8: {text}")] * len(CHANGES[name] or ())
    assert all(event["changes"] == CHANGES[name] for event in told)
    train(folder, "dense.onnx", name, "dense")
    ours, theirs = (sift_onnx.to_torch(folder / f"{run}.onnx") for run in (name, "dense"))
    for initializer, mask in theirs.masks.items():
        assert torch.equal(ours.masks[initializer], mask)
    for key, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("whole", ["gmp", "imp", "spdf"], indirect=True)
@pytest.mark.parametrize("stop", [8, 10])
def test_a_killed_run_resumes_with_the_kernels_of_that_step_bit_for_bit(folder: Path, whole: Any, stop: int) -> None:
    name, document, _ = whole
    out = f"{name} {stop}.onnx"
    with pytest.raises(Killed):
        train(folder, out, name, "auto", progress=killing_at(stop))
    resumed, events = train(folder, out, name, "auto", resume=folder / f"{out}.checkpoints")
    first = next(event for event in events if event["event"] == "kernels")
    # The last checkpoint is that of the step before.
    kind = "sparse" if (stop > 8) != (name == "spdf") else "dense"
    assert {layer["kernels"] for layer in first["layers"]} == {kind}
    assert resumed["kernels"] == document["kernels"]
    assert (folder / out).read_bytes() == (folder / f"{name}.onnx").read_bytes()
    ours, theirs = (
        load_checkpoint(folder / f"{run}.checkpoints" / "step-00000012.pt") for run in (out, f"{name}.onnx")
    )
    torch.testing.assert_close(ours["optimizer"]["state"], theirs["optimizer"]["state"], rtol=0, atol=0)
    assert ours["kernels"] == theirs["kernels"]


def test_a_dense_run_goes_on_by_auto_with_the_kernels_that_its_masks_ask_for(folder: Path) -> None:
    with pytest.raises(Killed):
        train(folder, "o.onnx", "gmp", "dense", progress=killing_at(12))
    document, events = train(folder, "o.onnx", "gmp", "auto", resume=folder / "o.onnx.checkpoints")
    assert document["kernels"]["changes"] == [{"step": 11, "sparse": BOTH, "dense": []}]
    (told,) = [event for event in events if event["event"] == "kernels"]
    assert {layer["kernels"] for layer in told["layers"]} == {"sparse"}


def test_kernels_that_were_asked_for_stay(folder: Path) -> None:
    for kernels in ("sparse", "dense"):
        document, _ = train(folder, "o.onnx", "gmp", kernels)
        assert "changes" not in document["kernels"]
        assert {layer["kernels"] for layer in document["kernels"]["layers"]} == {kernels}
