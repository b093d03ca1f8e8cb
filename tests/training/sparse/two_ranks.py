"""What test_ranks.py runs on each of two ranks: ``two_ranks.py RANK FOLDER``; writes digests of masks as JSON."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training.sparse.compact_layers import make_compact

from sift_onnx.errors import UsageError
from sift_onnx.training import sparse
from sift_onnx.training.sparse.distributed import mask_digest
from sift_onnx.training.sparse.parameters.compact import compact_parameter

STEPS, BATCH = 60, 8


def network() -> torch.nn.Sequential:
    """Double precision, so that a sum over ranks and one over a batch lead to the same masks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 4)).double()


def batch(step: int, ranks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples that ``ranks`` have at a step."""
    parts = [torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(2 * step + r)).double() for r in ranks]
    x = torch.cat(parts)
    return x[:, :12], x[:, 12:]


def algorithm(name: str) -> sparse.Group:
    recipes: dict[str, Any] = {
        "rigl": sparse.RigL(sparsity=0.8, update={"freq": 10, "stop": 150}),
        "set": sparse.SET(sparsity=0.8, update={"freq": 10}, regrown="zero"),
        "gmp": sparse.GMP(sparsity={"type": "cubic", "final": 0.9, "stop": 100}, update={"freq": 10}),
    }
    return sparse.Group({"*.weight": recipes[name]})


def train(
    model: torch.nn.Module, group: sparse.Group, ranks: list[int], steps: int = STEPS, accumulate: int = 1
) -> list[str]:
    """Digests of all masks after each update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    group.apply(optimizer)
    digests = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = batch(step * accumulate + part, ranks)
            if hasattr(model, "require_backward_grad_sync"):
                model.require_backward_grad_sync = part == accumulate - 1
            torch.nn.functional.mse_loss(model(x), y).div(accumulate).backward()
        group.finalize_grads()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 10 == 0:
            digests.append(mask_digest(group.masks()).hex())
    return digests


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name in ("rigl", "set", "gmp"):
        model = network()
        model.apply(group := algorithm(name))
        found[f"ddp {name}"] = train(DistributedDataParallel(model), group, [rank], STEPS if name == "rigl" else 30)
    model = network()
    model.apply(group := algorithm("rigl"))
    found["ddp accumulate"] = train(DistributedDataParallel(model), group, [rank], 30, accumulate=3)
    for name, accumulate in (("rigl", 1), ("set", 1), ("rigl", 3), ("gmp", 1)):
        model = network()
        model.apply(group := algorithm(name))
        make_compact(model)
        case = f"ddp compact {name} {accumulate}"
        try:
            found[case] = train(DistributedDataParallel(model), group, [rank], 30, accumulate)
        except UsageError as error:
            found[case] = str(error)
    wrapped = DistributedDataParallel(network())
    wrapped.apply(group := algorithm("rigl"))
    found["names under ddp"] = sorted(group.masks())
    model = network()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    model.apply(group := algorithm("rigl"))
    found["fsdp rigl"] = train(model, group, [rank])
    try:
        compact_parameter(model[0], "weight", torch.ones(24, 12, dtype=torch.bool))
    except UsageError as error:
        found["fsdp compact"] = str(error)
    found["fsdp zeros"] = all(
        not sparse_param.param.full_tensor()[~sparse_param.mask].any()  # type: ignore[attr-defined]
        for sparse_param in group.get_sparse_params(model)
    )
    model = network()
    model.apply(group := algorithm("rigl"))
    make_compact(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    try:
        model.state_dict()
    except UsageError as error:
        found["compact fsdp"] = str(error)
    model = network()
    sparse.Static(sparsity=0.5, seed=rank).apply(model)
    other = sparse.Static(sparsity=0.5, seed=rank)
    other.apply(model := network())
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        other.apply(optimizer)
        model(batch(0, [rank])[0]).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        found["disagreement"] = str(error)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    # Cycles hold process groups, whose threads abort the process if they ask for Python while it ends.
    gc.collect()
