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

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import sift_onnx
from sift_onnx.errors import SiftError
from sift_onnx.model import Model
from sift_onnx.training.sparse.distributed import mask_digest
from sift_onnx.training.trainer import TrainingSettings, parallelism, train_file
from sift_onnx.training.trainer.batch import input_specs
from sift_onnx.training.trainer.data import load_data
from sift_onnx.training.trainer.loop import Trainer
from sift_onnx.training.trainer.optimizer_step import OptimizerStep
from sift_onnx.training.trainer.process_group import Ranks, joined_ranks
from sift_onnx.training.trainer.state.checkpoint import checkpoints_in, load_checkpoint

DYNAMIC = {"update": {"freq": 10, "stop": 150}, "param_filter": "*.weight"}
ALGORITHMS: dict[str, Any] = {
    "rigl": {"algorithm": "rigl", "sparsity": 0.8, "metrics": True, **DYNAMIC},
    "set": {"algorithm": "set", "sparsity": 0.8, "regrown": "zero", **DYNAMIC},
    "imp": {"algorithm": "imp", "sparsity": 0.8, "rounds": 2, "rewind_to": 3, "update": {"freq": 5},
            "param_filter": "*.weight"},
    # From step 8 on sparse kernels by the rule of "auto", up to step 7 on dense ones.
    "gmp": {"algorithm": "gmp", "sparsity": {"type": "linear", "init": 0.0, "slope": 0.1}, "param_filter": "*.weight",
            "update": {"freq": 4, "stop": 9}},
    # On dense kernels again from step 9 on.
    "spdf": {"algorithm": "rigl", "sparsity": 0.8, "update": {"freq": 4}, "param_filter": "*.weight", "densify_at": 9},
    "90%": {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 5}, "param_filter": "*.weight"},
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
    saved = None if resume is None else load_checkpoint(resume)
    kernels = None if saved is None else saved["kernels"]
    trainer = Trainer(
        module, source, settings, ranks, progress=note_masks, checkpoints=checkpoints, saved_kernels=kernels
    )
    if resume is not None and saved is not None:
        trainer.resume(resume, saved)
    trainer.run()
    return trainer, digests


def final(trainer: Trainer) -> list[Any]:
    """Everything that the training has changed."""
    assert trainer.sparsity is not None
    states = trainer.full_optimizer_state()["state"]
    return [*trainer.full_state().values(), *(v for state in states.values() for v in state.values())]


class CountingDDP(DistributedDataParallel):
    """Averages gradients where :func:`reduced_bytes` can see it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_comm_hook(None, allreduce_hook)


def reduced_bytes(folder: Path, ranks: Ranks, kernels: str) -> tuple[list[int], list[str]]:
    """The bytes of gradients that a rank has reduced in each step of RigL at 90 %, and the digests of the masks."""
    chosen = recipe(folder, steps=11, sparsity=ALGORITHMS["90%"], kernels=kernels)
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        reduce, step = dist.all_reduce, OptimizerStep.run

        def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # Ranks agree by integers on when an epoch is over.
            sizes[-1] += tensor.nbytes if tensor.is_floating_point() else 0
            return reduce(tensor, *args, **kwargs)

        def starting(self: OptimizerStep, *args: Any) -> float:
            sizes.append(0)
            return step(self, *args)

        patch.setattr(parallelism, "DistributedDataParallel", CountingDDP)
        patch.setattr(OptimizerStep, "run", starting)
        sizes.append(0)
        patch.setattr(dist, "all_reduce", counting)
        digests = train(folder, ranks, chosen, net="wide32.onnx")[1]
    return sizes[1:], digests


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with joined_ranks("cpu") as ranks:
        found["of the leader"] = ranks.of_leader({"rank": ranks.rank})
        for kind in ("ddp", "fsdp2"):
            for name in ("rigl", "set"):
                steps = 200 if name == "rigl" else 30
                settings = recipe(folder, parallelism=kind, steps=steps, sparsity=ALGORITHMS[name])
                trainer, found[f"{kind} {name}"] = train(folder, ranks, settings)
            accumulated = recipe(folder, parallelism=kind, steps=30, accumulate=2)
            trainer, found[f"{kind} accumulate"] = train(folder, ranks, accumulated)
            state = trainer.full_state()
            found[f"{kind} pruned"] = all(
                not state[name][~mask].any() for name, mask in trainer.sparsity.masks().items()
            )
            for name in ("rigl", "imp"):
                chosen = recipe(folder, parallelism=kind, steps=18, sparsity=ALGORITHMS[name], checkpoint_every=12)
                kept = folder / f"{kind} {name}"
                kept.mkdir(exist_ok=True)
                whole, digests = train(folder, ranks, chosen, kept)
                again, rest = train(folder, ranks, chosen, None, checkpoints_in(kept)[0])
                same = all(torch.equal(a, b) for a, b in zip(final(whole), final(again), strict=True))
                found[f"{kind} {name} resumed"] = same and digests[12:] == rest
        sparse = recipe(folder, steps=30, kernels="sparse")
        trainer, found["sparse kernels"] = train(folder, ranks, sparse, net="net32.onnx")
        found["kernels"] = trainer.kernels.to_dict()
        for name in ("gmp", "spdf"):
            chosen = recipe(
                folder, steps=14, batch_size=32, sparsity=ALGORITHMS[name], checkpoint_every=1, keep_checkpoints=14
            )
            kept = folder / f"following {name}"
            kept.mkdir(exist_ok=True)
            whole, found[f"following {name}"] = train(folder, ranks, chosen, kept, net="net32.onnx")
            found[f"following {name} kernels"] = whole.kernels.to_dict()
            found[f"following {name} resumed"] = []
            for done in (6, 11):
                again, rest = train(folder, ranks, chosen, None, checkpoints_in(kept)[done - 1], net="net32.onnx")
                same = all(torch.equal(a, b) for a, b in zip(final(whole), final(again), strict=True))
                same = same and found[f"following {name}"][done:] == rest and again.kernels == whole.kernels
                found[f"following {name} resumed"].append(same)
        for kernels in ("sparse", "dense"):
            found[f"bytes {kernels}"], found[f"masks {kernels}"] = reduced_bytes(folder, ranks, kernels)
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
