"""A run that was interrupted and goes on gives what it would have given, to the last bit."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from training.trainer.cases import arrays, classifier, examples, settings

import sift_onnx
from sift_onnx.errors import OutputError, UsageError
from sift_onnx.training.trainer import train_file
from sift_onnx.training.trainer.state.checkpoint import load_checkpoint, model_identity

DYNAMIC = {"update": {"freq": 3}, "param_filter": "*.weight"}
ALGORITHMS: dict[str, Any] = {
    "dense": None,
    "static": 0.5,
    "set": {"algorithm": "set", "sparsity": 0.5, "seed": 5, **DYNAMIC},
    "rigl": {"algorithm": "rigl", "sparsity": 0.5, "metrics": True, **DYNAMIC, "param_filter": "body.*",
             "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": 20}},
    "gmp": {"algorithm": "gmp", "sparsity": [0.1, 0.2, 0.3, 0.5], **DYNAMIC, "param_filter": "body.*"},
    "imp": {"algorithm": "imp", "sparsity": 0.5, "rounds": 2, "rewind_to": 2, "update": {"freq": 5},
            "param_filter": "body.*"},
    "rigl 2:4": {"algorithm": "rigl", "sparsity": 0.5, "pattern": "2:4", **DYNAMIC, "param_filter": "body.*"},
    "spdf": {"algorithm": "rigl", "sparsity": 0.5, "densify_at": 8, **DYNAMIC, "param_filter": "body.*"},
}  # fmt: skip


class Killed(Exception):  # noqa: N818
    pass


def killing_at(step: int) -> Any:
    def progress(done: int, total: int, loss: float) -> None:
        if done == step:
            raise Killed

    return progress


def augmented_loader() -> torch.utils.data.DataLoader[Any]:
    """Shuffled, and with noise from torch's generator in every fetch."""
    x, y = (torch.from_numpy(array) for array in examples(48))

    class Noisy(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> Any:
            return x[i] + 0.1 * torch.randn(x[i].shape) + random.random(), y[i]

    return torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True)


@pytest.mark.parametrize("kernels", ["sparse", pytest.param("dense", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, name: str, kernels: str) -> None:
    model, data = classifier(tmp_path / "net.onnx"), arrays(tmp_path / "d.npz")
    optimizer = {"type": "adamw", "lr": 0.01} if name in ("rigl", "static") else {"type": "sgd", "lr": 0.05}
    chosen = settings(
        epochs=4, sparsity=ALGORITHMS[name], optimizer=optimizer, checkpoint_every=1, clip_norm=1.0, kernels=kernels
    )
    train_file(model, tmp_path / "whole.onnx", data, chosen, device="cpu")
    stop = random.Random(name).randrange(2, 16)
    with pytest.raises(Killed):
        train_file(model, tmp_path / "killed.onnx", data, chosen, device="cpu", progress=killing_at(stop))
    assert not (tmp_path / "killed.onnx").exists()
    folder = tmp_path / "killed.onnx.checkpoints"
    assert [path.name for path in sorted(folder.iterdir())][-1] == f"step-{stop - 1:08d}.pt"
    torch.manual_seed(99)
    train_file(model, tmp_path / "killed.onnx", data, chosen, device="cpu", resume=folder)
    assert (tmp_path / "killed.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    whole = load_checkpoint(tmp_path / "whole.onnx.checkpoints" / "step-00000016.pt")
    resumed = load_checkpoint(folder / "step-00000016.pt")
    for key, tensor in whole["model"].items():
        assert torch.equal(tensor, resumed["model"][key]), key
    torch.testing.assert_close(resumed["optimizer"]["state"], whole["optimizer"]["state"], rtol=0, atol=0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_shuffled_and_noisy_loader_goes_on_where_it_was(tmp_path: Path, accumulate: int) -> None:
    model = classifier(tmp_path / "net.onnx")
    chosen = settings(epochs=3, accumulate=accumulate, checkpoint_every=2, keep_checkpoints=1)
    train_file(model, tmp_path / "whole.onnx", augmented_loader, chosen, device="cpu")
    with pytest.raises(Killed):
        train_file(model, tmp_path / "o.onnx", augmented_loader, chosen, device="cpu", progress=killing_at(5))
    train_file(
        model, tmp_path / "o.onnx", augmented_loader, chosen, device="cpu", resume=tmp_path / "o.onnx.checkpoints"
    )
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    classifier(folder / "net.onnx")
    classifier(folder / "other.onnx", width=4)
    arrays(folder / "d.npz")
    arrays(folder / "more.npz", count=80)
    chosen = settings(epochs=1, checkpoint_every=2, sparsity=0.5)
    train_file(folder / "net.onnx", folder / "o.onnx", folder / "d.npz", chosen, device="cpu", checkpoints=folder / "c")
    return folder


@pytest.mark.parametrize(
    ("model", "data", "changes", "message"),
    [
        ("other", "d", {}, "another model"),
        ("net", "d", {"optimizer": {"lr": 0.06}}, "optimizer .*0.06.* in this one"),
        ("net", "d", {"sparsity": 0.6}, "sparsity 0.5 in the saved run and 0.6 in this one"),
        ("net", "d", {"epochs": 2}, "epochs 1 in the saved run and 2"),
        ("net", "more", {}, "data of .*64.* in the saved run"),
    ],
)
def test_another_model_recipe_or_data_is_refused(
    run: Path, tmp_path: Path, model: str, data: str, changes: dict[str, Any], message: str
) -> None:
    chosen = settings(**{"epochs": 1, "checkpoint_every": 2, "sparsity": 0.5} | changes)
    with pytest.raises(UsageError, match=message):
        train_file(
            run / f"{model}.onnx", tmp_path / "o.onnx", run / f"{data}.npz", chosen, device="cpu", resume=run / "c"
        )


def test_another_recipe_is_found_before_data_is_read(run: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def data(): raise AssertionError('it reads')\n")
    chosen = settings(epochs=1, checkpoint_every=2, sparsity=0.6)
    with pytest.raises(UsageError, match="resume with the recipe"):
        train_file(run / "net.onnx", tmp_path / "o", f"{tmp_path}/own.py:data", chosen, device="cpu", resume=run / "c")


def test_what_is_no_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    chosen = settings(epochs=1, checkpoint_every=2, sparsity=0.5)

    def resume(folder: Path) -> None:
        train_file(run / "net.onnx", tmp_path / "o.onnx", run / "d.npz", chosen, device="cpu", resume=folder)

    with pytest.raises(UsageError, match="there is no checkpoint"):
        resume(tmp_path / "none")
    shutil.copytree(run / "c", tmp_path / "c")
    path = tmp_path / "c" / "step-00000009.pt"
    for content in ((tmp_path / "c" / "step-00000004.pt").read_bytes()[:500], b"", b"junk"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is damaged"):
            resume(tmp_path / "c")
    torch.save({"version": 1, "x": Killed()}, path)
    with pytest.raises(UsageError, match="is not a checkpoint"):
        resume(tmp_path / "c")
    torch.save([1], path)
    with pytest.raises(UsageError, match="of this version"):
        resume(tmp_path / "c")


def test_checkpoints_of_two_runs_are_not_mixed(run: Path, tmp_path: Path) -> None:
    chosen = settings(epochs=1, checkpoint_every=2)
    with pytest.raises(OutputError, match="checkpoints of another run"):
        train_file(run / "net.onnx", tmp_path / "o", run / "d.npz", chosen, device="cpu", checkpoints=run / "c")


def test_the_oldest_checkpoints_go_and_no_part_of_a_file_is_left(run: Path) -> None:
    assert sorted(path.name for path in (run / "c").iterdir()) == ["step-00000002.pt", "step-00000004.pt"]


def test_a_model_has_the_identity_that_checkpoints_of_earlier_versions_hold() -> None:
    """Kernels on tensors, on the host and for parameters of 16 bits: moving one must not change the identity."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float16[n, 4, 6] x) => (float16[n, k] y)
        <int64[1] first = {0}, int64[1] rest = {-1}, float16[6] scale = {1, 2, 3, 4, 5, 6}> {
            shape = Shape(x)
            batch = Gather(shape, first)
            flat = Concat<axis = 0>(batch, rest)
            scaled = Mul(x, scale)
            left, right = Split<axis = 2>(scaled)
            both = Concat<axis = 2>(right, left)
            y = Reshape(both, flat)
        }""")
    assert (
        model_identity(sift_onnx.to_torch(model)) == "b047ca45db21060d4e437a5cdd84239b97c5692a5b29d560cb263c3b820d3a0b"
    )
