"""What test_ranks.py runs on each of two ranks, by torchrun's variables: ``two_ranks.py FOLDER``.

Every case trains by the trainer; its digests of the masks after each step, and what else there is to compare, are
written as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import sift_onnx
from sift_onnx.errors import SiftError
from sift_onnx.model import Model
from sift_onnx.training.sparse.distributed import mask_digest
from sift_onnx.training.trainer import TrainingSettings, train_file
from sift_onnx.training.trainer.batch import input_specs
from sift_onnx.training.trainer.checkpoint import checkpoints_in, load_checkpoint
from sift_onnx.training.trainer.data import load_data
from sift_onnx.training.trainer.loop import Trainer
from sift_onnx.training.trainer.process_group import Ranks, joined_ranks

DYNAMIC = {"update": {"freq": 10, "stop": 150}, "param_filter": "*.weight"}
ALGORITHMS: dict[str, Any] = {
    "rigl": {"algorithm": "rigl", "sparsity": 0.8, "metrics": True, **DYNAMIC},
    "set": {"algorithm": "set", "sparsity": 0.8, "regrown": "zero", **DYNAMIC},
    "imp": {"algorithm": "imp", "sparsity": 0.8, "rounds": 2, "rewind_to": 3, "update": {"freq": 5},
            "param_filter": "*.weight"},
}  # fmt: skip


def recipe(folder: Path, **changes: Any) -> TrainingSettings:
    """Double precision all the way, so that sums over ranks and over a batch lead to the same masks."""
    base = {
        "loss": f"{folder}/loss.py:mean_square",
        "steps": 200,
        "batch_size": 16,
        "optimizer": {"type": "adamw", "lr": 0.01},
        "clip_norm": 1.0,
        "sparsity": ALGORITHMS["rigl"],
    }
    return TrainingSettings.of_recipe(base | changes)


def train(
    folder: Path,
    ranks: Ranks,
    settings: TrainingSettings,
    checkpoints: Path | None = None,
    resume: Path | None = None,
    net: str = "net.onnx",
) -> tuple[Trainer, list[str]]:
    """A training and the digest of its masks after each step."""
    model = Model.load(folder / net)
    source = load_data(str(folder / "d.npz"), input_specs(model), settings, ranks)
    digests: list[str] = []

    def note_masks(step: int, total: int, loss: float) -> None:
        assert trainer.sparsity is not None
        digests.append(mask_digest(trainer.sparsity.masks()).hex())

    module = sift_onnx.to_torch(model, trainable=settings.trainable)
    trainer = Trainer(module, source, settings, ranks, progress=note_masks, checkpoints=checkpoints)
    if resume is not None:
        trainer.resume(resume, load_checkpoint(resume))
    trainer.run()
    return trainer, digests


def final(trainer: Trainer) -> list[Any]:
    """Everything that the training has changed."""
    assert trainer.sparsity is not None
    states = trainer.full_optimizer_state()["state"]
    return [*trainer.full_state().values(), *(v for state in states.values() for v in state.values())]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with joined_ranks("cpu") as ranks:
        found["of the leader"] = ranks.of_leader({"rank": ranks.rank})
        for parallelism in ("ddp", "fsdp2"):
            for name in ("rigl", "set"):
                steps = 200 if name == "rigl" else 30
                settings = recipe(folder, parallelism=parallelism, steps=steps, sparsity=ALGORITHMS[name])
                trainer, found[f"{parallelism} {name}"] = train(folder, ranks, settings)
            accumulated = recipe(folder, parallelism=parallelism, steps=30, accumulate=2)
            trainer, found[f"{parallelism} accumulate"] = train(folder, ranks, accumulated)
            state = trainer.full_state()
            found[f"{parallelism} pruned"] = all(
                not state[name][~mask].any() for name, mask in trainer.sparsity.masks().items()
            )
            for name in ("rigl", "imp"):
                chosen = recipe(
                    folder, parallelism=parallelism, steps=18, sparsity=ALGORITHMS[name], checkpoint_every=12
                )
                kept = folder / f"{parallelism} {name}"
                kept.mkdir(exist_ok=True)
                whole, digests = train(folder, ranks, chosen, kept)
                again, rest = train(folder, ranks, chosen, None, checkpoints_in(kept)[0])
                same = all(torch.equal(a, b) for a, b in zip(final(whole), final(again), strict=True))
                found[f"{parallelism} {name} resumed"] = same and digests[12:] == rest
        sparse = recipe(folder, steps=30, kernels="sparse")
        trainer, found["sparse kernels"] = train(folder, ranks, sparse, net="net32.onnx")
        found["kernels"] = trainer.kernels.to_dict()
        written = recipe(folder, parallelism="fsdp2", steps=20)
        train_file(folder / "net.onnx", folder / "written.onnx", folder / "d.npz", written, device="cpu")
        scalar = recipe(folder, parallelism="fsdp2", trainable=["scale"])
        try:
            train(folder, ranks, scalar)
        except SiftError as error:
            found["scalar"] = str(error)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
