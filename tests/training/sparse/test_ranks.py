"""Two ranks on this machine: the same masks at every update, and those of one rank with all of the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training.sparse import two_ranks

from sift_onnx.training.sparse.distributed import mask_digest

ROOT = Path(__file__).resolve().parents[3]
# Under xdist on one worker, so that the ranks are started once; what they train takes long.
pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    program = Path(two_ranks.__file__)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests"))),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(folder)],
            env=environment,
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def alone(name: str, steps: int, accumulate: int = 1) -> list[str]:
    model = two_ranks.network()
    model.apply(group := two_ranks.algorithm(name))
    return two_ranks.train(model, group, [0, 1], steps, accumulate)


@pytest.mark.parametrize("case", ["ddp rigl", "ddp set", "ddp gmp", "ddp accumulate", "fsdp rigl"])
def test_both_ranks_have_the_same_masks_at_every_update(ranks: list[dict[str, Any]], case: str) -> None:
    assert ranks[0][case] == ranks[1][case]
    assert len(set(ranks[0][case])) > 2


@pytest.mark.parametrize(("case", "name"), [("ddp rigl", "rigl"), ("ddp set", "set"), ("fsdp rigl", "rigl")])
def test_one_rank_with_all_of_the_data_has_the_same_masks(ranks: list[dict[str, Any]], case: str, name: str) -> None:
    expected = ranks[0][case]
    assert alone(name, 10 * len(expected)) == expected


def test_gradients_that_are_accumulated_without_synchronizing_count_once(ranks: list[dict[str, Any]]) -> None:
    assert alone("rigl", 30, accumulate=3) == ranks[0]["ddp accumulate"]


@pytest.mark.parametrize(("name", "accumulate"), [("rigl", 1), ("set", 1), ("rigl", 3)])
def test_compact_weights_get_the_masks_of_one_rank_with_all_of_the_data(
    ranks: list[dict[str, Any]], name: str, accumulate: int
) -> None:
    case = f"ddp compact {name} {accumulate}"
    assert ranks[0][case] == ranks[1][case] == alone(name, 30, accumulate)


@pytest.mark.parametrize("case", ["ddp compact gmp 1", "fsdp compact", "compact fsdp"])
def test_what_ranks_cannot_do_with_compact_weights_is_refused(ranks: list[dict[str, Any]], case: str) -> None:
    for rank in ranks:
        assert rank[case].endswith('train with kernels="dense"')


def test_sharded_weights_are_pruned(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["fsdp zeros"]
    assert ranks[1]["fsdp zeros"]


def test_masks_that_differ_are_noticed_on_both_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "masks differ between ranks at step 1: ranks [1] have others than rank 0" in rank["disagreement"]


def test_a_wrapped_model_has_the_names_of_the_model(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["names under ddp"] == ["0.weight", "2.weight"]


def test_a_digest_knows_names_shapes_and_bits() -> None:
    mask = torch.tensor([True, False, True, True])
    digests = {
        mask_digest(masks)
        for masks in (
            {"a": mask},
            {"b": mask},
            {"a": mask.reshape(2, 2)},
            {"a": ~mask},
            {"a": mask, "b": mask},
            {"b": mask, "a": mask},
        )
    }
    assert len(digests) == 5
