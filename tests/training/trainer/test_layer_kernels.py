"""The setting ``kernels``: which layers it gives sparse kernels, and what the log says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training.trainer.cases import arrays, classifier, settings
from training.trainer.stand_in_layers import StandIn

import sift_onnx
from sift_onnx import training
from sift_onnx.errors import UsageError
from sift_onnx.records.train import Kernels, LayerKernels
from sift_onnx.training import sparse
from sift_onnx.training.trainer import train_file
from sift_onnx.training.trainer.kernels import layer_kernels, masked_layers
from sift_onnx.training.trainer.kernels.layer_kernels import choose_kernels, kernels_summary
from sift_onnx.training.trainer.process_group import Ranks

MASKED = ["body.weight", "head.weight"]
SPARSE = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 3}, "param_filter": MASKED}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(["body.weight"])
    monkeypatch.setattr(layer_kernels, "sparsify_layers", found)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    classifier(tmp_path / "net.onnx")
    arrays(tmp_path / "d.npz")
    return tmp_path


def train(folder: Path, out: str, **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    options = {name: changes.pop(name) for name in ("resume", "progress", "threads", "kernels") if name in changes}
    chosen = settings(**{"sparsity": SPARSE} | changes)
    document = train_file(
        folder / "net.onnx", folder / out, folder / "d.npz", chosen, device="cpu", report=events.append, **options
    )
    assert document is not None
    return document, events


def kernels_in(document: dict[str, Any]) -> dict[str, str]:
    return {layer["name"]: layer["kernels"] for layer in document["kernels"]["layers"]}


def test_auto_takes_what_is_faster_for_each_layer_and_says_so_once(folder: Path, stand_in: StandIn) -> None:
    document, events = train(folder, "o.onnx")
    assert stand_in.asked == ["auto"]
    assert document["kernels"]["setting"] == "auto"
    assert kernels_in(document) == {"body.weight": "sparse", "head.weight": "dense"}
    (told,) = [event for event in events if event["event"] == "kernels"]
    assert told["layers"] == document["kernels"]["layers"]
    assert told["text"] == (
        "1 of 2 masked layers run on sparse kernels; dense: head.weight (faster so: 2 ms against 3)"
    )


@pytest.mark.parametrize("given", ["recipe", "option"])
def test_sparse_takes_all_that_it_can(folder: Path, stand_in: StandIn, given: str) -> None:
    where: dict[str, Any] = {"kernels": "sparse"}
    if given == "recipe":
        document = train_file(
            folder / "net.onnx", folder / "o.onnx", folder / "d.npz", settings(sparsity=SPARSE, **where), device="cpu"
        )
    else:
        document, _ = train(folder, "o.onnx", **where)
    assert document is not None
    assert kernels_in(document) == dict.fromkeys(MASKED, "sparse")
    assert stand_in.asked == ["sparse"]


def test_dense_kernels_are_torchs_and_nothing_is_measured(folder: Path, stand_in: StandIn) -> None:
    document, events = train(folder, "o.onnx", kernels="dense")
    assert stand_in.asked == []
    assert kernels_in(document) == dict.fromkeys(MASKED, "dense")
    assert "kernels" not in [event["event"] for event in events]
    assert document["original_examples_per_second_estimate"] is None
    assert document["examples_per_second"] > 0


def test_without_masks_nothing_is_told(folder: Path, stand_in: StandIn) -> None:
    document, events = train(folder, "o.onnx", sparsity=None)
    assert stand_in.asked == []
    assert document["kernels"] == {"setting": "auto", "layers": []}
    assert document["original_examples_per_second_estimate"] is None
    assert "kernels" not in [event["event"] for event in events]
    assert not any("original_examples_per_second_estimate" in event for event in events)


def test_the_speed_of_the_dense_original_stands_beside_that_of_the_training(folder: Path, stand_in: StandIn) -> None:
    document, events = train(folder, "o.onnx")
    estimate = document["original_examples_per_second_estimate"]
    assert estimate > 0
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 8
    for event in (*steps, *document["history"]["steps"]):
        assert event["original_examples_per_second_estimate"] == estimate
        assert event["examples_per_second"] > 0


def test_an_estimate_that_fails_is_a_warning(folder: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> float:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(masked_layers, "seconds_of_dense_original", failing)
    document, events = train(folder, "o.onnx")
    assert document["original_examples_per_second_estimate"] is None
    texts = [event["text"] for event in events if event["event"] == "warning"]
    assert "the speed of the dense original is not estimated: RuntimeError: no such kernel" in texts


def killing_at(step: int) -> Any:
    def progress(done: int, total: int, loss: float) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


def test_a_resumed_run_has_the_kernels_that_auto_chose_and_the_same_bits(folder: Path, stand_in: StandIn) -> None:
    train(folder, "whole.onnx", checkpoint_every=2)
    stand_in.faster = ["body.weight"]
    with pytest.raises(KeyboardInterrupt):
        train(folder, "o.onnx", checkpoint_every=2, progress=killing_at(5))
    assert stand_in.faster == []
    document, _ = train(folder, "o.onnx", checkpoint_every=2, resume=folder / "o.onnx.checkpoints")
    assert kernels_in(document) == {"body.weight": "sparse", "head.weight": "dense"}
    assert stand_in.asked[-1] == {"body.weight": "sparse", "head.weight": "dense"}
    assert (folder / "o.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()


@pytest.mark.parametrize(("first", "second"), [("dense", "sparse"), ("sparse", "dense"), ("dense", "auto")])
def test_a_run_goes_on_with_other_kernels(folder: Path, stand_in: StandIn, first: str, second: str) -> None:
    train(folder, "whole.onnx", kernels=first)
    with pytest.raises(KeyboardInterrupt):
        train(folder, "o.onnx", checkpoint_every=2, progress=killing_at(5), kernels=first)
    document, _ = train(folder, "o.onnx", checkpoint_every=2, resume=folder / "o.onnx.checkpoints", kernels=second)
    assert document["kernels"]["setting"] == second
    whole, other = (sift_onnx.to_torch(folder / name) for name in ("whole.onnx", "o.onnx"))
    for name, mask in whole.masks.items():
        assert torch.equal(mask, other.masks[name])
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparsity", [SPARSE, SPARSE | {"algorithm": "gmp", "sparsity": [0.1, 0.5]}])
def test_sparse_kernels_train_what_dense_ones_do(folder: Path, sparsity: dict[str, Any]) -> None:
    for kernels in ("sparse", "dense"):
        document, _ = train(folder, f"{kernels}.onnx", kernels=kernels, sparsity=sparsity, clip_norm=1.0)
        assert kernels_in(document) == dict.fromkeys(MASKED, kernels)
    one, other = (sift_onnx.to_torch(folder / f"{kernels}.onnx") for kernels in ("sparse", "dense"))
    for name, mask in one.masks.items():
        assert torch.equal(mask, other.masks[name])
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def choose(setting: Any, device: str = "cpu", is_sharded: bool = False, **config: Any) -> Kernels:
    graph, weights = torch.fx.Graph(), {"a": torch.nn.Parameter(torch.ones(4, 4))}
    module = training.ImportedModule(graph, weights, {"a": "a"})
    algorithm = sparse.configure({"algorithm": "set", "sparsity": 0.5, "update": {"freq": 2}} | config)
    algorithm.apply(module)
    where = Ranks(0, 1, torch.device(device))
    return choose_kernels(
        module,
        torch.optim.SGD([weights["a"]]),
        algorithm,
        setting,
        where,
        batch_size=16,
        rows={},
        is_sharded=is_sharded,
        saved=None,
    )


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ({"device": "cuda:0"}, "sparse kernels run on the CPU, and the training is on cuda:0"),
        ({"is_sharded": True}, "sparse kernels do not go with parallelism fsdp2"),
    ],
)
def test_where_there_are_no_sparse_kernels_auto_is_dense_and_sparse_an_error(
    stand_in: StandIn, where: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=f"kernels sparse: {reason}; choose kernels auto or dense"):
        choose("sparse", **where)
    found = choose("auto", **where)
    assert [layer.kernels for layer in found.layers] == ["dense"]
    assert kernels_summary(found) == f"no masked layer runs on sparse kernels: {reason}"
    assert choose("dense", **where).setting == "dense"
    assert stand_in.asked == []


def test_one_process_follows_the_number_of_active_weights(stand_in: StandIn) -> None:
    assert choose("sparse", algorithm="gmp", sparsity=[0.2, 0.5]).layers[0].kernels == "sparse"


def test_a_summary_names_the_first_layers_that_stay_dense() -> None:
    def summary(sparse: int, dense: int) -> str:
        layers = [LayerKernels(name=f"wide{i}", kernels="sparse", reason="as asked") for i in range(sparse)]
        layers += [LayerKernels(name=f"layer{i}", kernels="dense", reason=f"reason {i}") for i in range(dense)]
        return kernels_summary(Kernels(setting="auto", layers=tuple(layers)))

    assert summary(1, 0) == "the masked layer runs on sparse kernels"
    assert summary(4, 0) == "all 4 masked layers run on sparse kernels"
    text = "4 of 9 masked layers run on sparse kernels; dense: layer0 (reason 0), layer1 (reason 1), layer2 (reason 2)"
    assert summary(4, 5) == f"{text} and 2 more"


def test_a_training_has_its_threads_and_gives_them_back(folder: Path, stand_in: StandIn) -> None:
    before, seen = torch.get_num_threads(), set()
    train(folder, "o.onnx", threads=before + 1, progress=lambda *_: seen.add(torch.get_num_threads()))
    assert seen == {before + 1}
    assert torch.get_num_threads() == before
    with pytest.raises(UsageError, match="threads is 0"):
        train(folder, "p.onnx", threads=0)
