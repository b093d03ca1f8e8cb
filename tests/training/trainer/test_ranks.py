"""Two ranks on this machine train by the trainer: the same masks at every step, and those of one rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from training.trainer import two_ranks

import sift_onnx
from sift_onnx.training.trainer import train_file
from sift_onnx.training.trainer.process_group import Ranks

ROOT = Path(__file__).resolve().parents[3]
# Under xdist on one worker, so that the ranks are started once; what they train takes long.
pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.slow]
LOSS = "def mean_square(outputs, target):\n    return (outputs - target).square().mean()\n"


def network(path: Path, dtype: type[np.floating[Any]] = np.float64, widths: tuple[int, ...] = (12, 24, 4)) -> None:
    """Layers of these widths, and a number that scales the inputs."""
    rng = np.random.default_rng(0)
    weights = {"first.bias": np.zeros(widths[1]), "scale": np.array(1.5)}
    nodes = [helper.make_node("Mul", ["x", "scale"], ["a"])]
    x = "a"
    for name, inputs, outputs in zip(("first", "second", "third"), widths, widths[1:], strict=False):
        weights[f"{name}.weight"] = rng.standard_normal((outputs, inputs)) / inputs**0.5
        if len(nodes) > 1:
            nodes.append(helper.make_node("Tanh", [x], [f"{name}.in"]))
            x = f"{name}.in"
        operands = [x, f"{name}.weight", *(["first.bias"] if name == "first" else [])]
        x = "y" if name == ("first", "second", "third")[len(widths) - 2] else f"{name}.out"
        nodes.append(helper.make_node("Gemm", operands, [x], transB=1))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(n, kind, ["n", w]) for n, w in (("x", 12), ("y", 4))]
    stored = [numpy_helper.from_array(value.astype(dtype), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    network(folder / "net.onnx")
    network(folder / "net32.onnx", np.float32)
    network(folder / "wide32.onnx", np.float32, (12, 64, 64, 4))
    (folder / "loss.py").write_text(LOSS)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((96, 12))
    np.savez(folder / "d.npz", x=x, y=np.tanh(x @ rng.standard_normal((12, 4))))
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [sys.executable, two_ranks.__file__, str(folder)],
            env={**common, "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def alone(folder: Path, **changes: Any) -> list[str]:
    return two_ranks.train(folder, Ranks(0, 1, torch.device("cpu")), two_ranks.recipe(folder, **changes))[1]


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_200_steps_of_rigl_have_the_same_masks_on_both_ranks_and_on_one(
    ranks: list[dict[str, Any]], folder: Path, parallelism: str
) -> None:
    masks = ranks[0][f"{parallelism} rigl"]
    assert masks == ranks[1][f"{parallelism} rigl"]
    assert len(masks) == 200
    assert len(set(masks)) > 10
    assert alone(folder) == masks


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
def test_set_and_accumulated_batches_have_the_masks_of_one_rank(
    ranks: list[dict[str, Any]], folder: Path, parallelism: str
) -> None:
    for case, changes in (
        ("set", {"sparsity": two_ranks.ALGORITHMS["set"]}),
        ("accumulate", {"accumulate": 2}),
    ):
        masks = ranks[0][f"{parallelism} {case}"]
        assert masks == ranks[1][f"{parallelism} {case}"] == alone(folder, steps=30, **changes)
    assert ranks[0][f"{parallelism} pruned"]


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2"])
@pytest.mark.parametrize("algorithm", ["rigl", "imp"])
def test_a_checkpoint_resumes_bit_for_bit(ranks: list[dict[str, Any]], parallelism: str, algorithm: str) -> None:
    assert all(rank[f"{parallelism} {algorithm} resumed"] for rank in ranks)


def test_the_first_rank_writes_the_whole_model(ranks: list[dict[str, Any]], folder: Path, tmp_path: Path) -> None:
    assert len(ranks) == 2
    settings = two_ranks.recipe(folder, steps=20)
    train_file(folder / "net.onnx", tmp_path / "one.onnx", folder / "d.npz", settings, device="cpu")
    one, two = (sift_onnx.to_torch(path) for path in (tmp_path / "one.onnx", folder / "written.onnx"))
    assert sorted(one.masks) == ["first.weight", "second.weight"]
    for name, mask in one.masks.items():
        assert torch.equal(mask, two.masks[name])
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)


def test_ranks_get_what_the_first_one_has(ranks: list[dict[str, Any]]) -> None:
    assert [rank["of the leader"] for rank in ranks] == [{"rank": 0}, {"rank": 0}]


def test_sparse_kernels_have_the_same_masks_on_both_ranks_and_on_one(ranks: list[dict[str, Any]], folder: Path) -> None:
    assert ranks[0]["kernels"] == ranks[1]["kernels"]
    assert [layer["kernels"] for layer in ranks[0]["kernels"]["layers"]] == ["sparse", "sparse"]
    assert ranks[0]["sparse kernels"] == ranks[1]["sparse kernels"]
    settings = two_ranks.recipe(folder, steps=30, kernels="sparse")
    masks = two_ranks.train(folder, Ranks(0, 1, torch.device("cpu")), settings, net="net32.onnx")[1]
    assert ranks[0]["sparse kernels"] == masks
    assert len(set(masks)) > 2


@pytest.mark.parametrize(("name", "change"), [
    ("gmp", {"step": 8, "sparse": ["first.weight", "second.weight"], "dense": []}),
    ("spdf", {"step": 9, "sparse": [], "dense": ["first.weight", "second.weight"]}),
])  # fmt: skip
def test_ranks_change_kernels_at_the_same_step_and_have_the_masks_of_one_rank(
    ranks: list[dict[str, Any]], folder: Path, name: str, change: dict[str, Any]
) -> None:
    for rank in ranks:
        assert rank[f"following {name} kernels"]["changes"] == [change]
        assert rank[f"following {name} resumed"] == [True, True]
    settings = two_ranks.recipe(folder, steps=14, batch_size=32, sparsity=two_ranks.ALGORITHMS[name])
    masks = two_ranks.train(folder, Ranks(0, 1, torch.device("cpu")), settings, net="net32.onnx")[1]
    assert ranks[0][f"following {name}"] == ranks[1][f"following {name}"] == masks


def test_gradients_on_the_wire_are_those_of_active_weights(ranks: list[dict[str, Any]]) -> None:
    weights = 12 * 64 + 64 * 64 + 64 * 4
    sparse, dense = ranks[0]["bytes sparse"], ranks[0]["bytes dense"]
    assert (len(sparse), set(dense)) == (11, {4 * (weights + 64)})
    # The fifth and the tenth step update masks: the gradients of all weights are averaged besides.
    updates = [sparse.pop(9), sparse.pop(4)]
    assert max(sparse) <= 0.15 * dense[0]
    assert max(updates) <= max(sparse) + 4 * weights
    assert ranks[0]["masks sparse"] == ranks[1]["masks sparse"] == ranks[0]["masks dense"]
    assert len(set(ranks[0]["masks sparse"])) == 3


def test_what_cannot_be_shared_out_is_named(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "fsdp2 cannot share 'scale', a single number" in rank["scalar"]


def test_one_process_says_that_there_is_nothing_to_share(folder: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    settings = two_ranks.recipe(folder, parallelism="fsdp2", steps=1)
    train_file(folder / "net.onnx", tmp_path / "o", folder / "d.npz", settings, device="cpu", report=events.append)
    assert any("start it by torchrun" in event.get("text", "") for event in events)
