"""What masks cost in the training of ResNet-18 Sparse Wide: their updates by RigL, and the steps in between.

    python benchmarks/training/mask_updates.py [--sparsity 0.9] [--rounds 7] [--threads 1] [--batch 16] [--image 64]

Updates: of all masks, against the same update by ``torch.topk`` of flattened scores, which is what cerebras.pytorch's
``make_mask_drop_minimum`` and ``make_mask_grow_maximum`` compute. Both have the same weights, gradients and numbers to
drop and grow, keep a copy of the gradients until the update, and prune the weights by the new masks. The masks are
compared: they have to be equal save for scores that are equal.

Steps: forward, backward, SGD with momentum and weight decay, against the same training of a plainly masked model, that
is, without an algorithm: ``torch.nn.utils.prune`` (masks multiplied in at each forward pass), and the least that keeps
masks, one product per weight after each step. Dense is the same training without masks.

All of them take turns in one process, in another order each round. Times are of the processor, medians of the rounds.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import prune

import sift_onnx
from sift_onnx.models import export
from sift_onnx.training import sparse

DROP = 0.3
NEVER = 10**9


def wide_resnet18(sparsity: float) -> Any:
    """The imported module of the transformed model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet18.onnx"
        export("resnet18", path, keep_batch_norm=True, batch="dynamic")
        return sift_onnx.to_torch(sift_onnx.transform(str(path), wide=sparsity)).train()


def interleaved(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each case in each round."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            start = time.process_time()
            cases[name]()
            times[name].append(time.process_time() - start)
    return times


def ratio(times: dict[str, list[float]], one: str, other: str) -> str:
    """The median of the rounds' ratios, and the least and the largest."""
    found = [a / b for a, b in zip(times[one], times[other], strict=True)]
    return f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})"


def topk_mask(score: torch.Tensor, count: int) -> torch.Tensor:
    """The mask of the ``count`` highest scores, by position."""
    flat = score.flatten()
    chosen = torch.topk(flat, count, sorted=False).indices
    return torch.zeros_like(flat, dtype=torch.bool).scatter_(0, chosen, True).reshape(score.shape)


@torch.no_grad()
def topk_update(param: torch.Tensor, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Drop and grow by topk of all scores."""
    kept_gradient = gradient.clone()
    nnz = int(torch.count_nonzero(mask))
    keep = nnz - int(DROP * nnz)
    kept = topk_mask(param.abs(), keep)
    grown = topk_mask(torch.where(kept, -torch.inf, kept_gradient.abs()), nnz - keep)
    new = kept.logical_or_(grown)
    param.mul_(new)
    return new


def updates(sparsity: float, rounds: int) -> None:
    """Time both updates of all masks, from the same state each time."""
    module = wide_resnet18(sparsity)
    masks = {module.parameter_paths[name]: mask for name, mask in module.masks.items()}
    params = {name: param for name, param in module.named_parameters() if name in masks}
    weights = {name: param.detach().clone() for name, param in params.items()}
    generator = torch.Generator().manual_seed(1)
    for param in params.values():
        param.grad = torch.randn(param.shape, generator=generator)
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    chosen = tuple(params)
    algorithm = sparse.RigL(drop_fraction=DROP, update={"freq": 1})
    sparse.Group({chosen: algorithm}).attach(module, optimizer)
    for param in algorithm.sparse_params.values():
        param.mark_used()

    @torch.no_grad()
    def reset() -> None:
        for name, param in params.items():
            param.copy_(weights[name])
            algorithm.sparse_params[name].mask.copy_(masks[name])

    found: dict[str, dict[str, torch.Tensor]] = {"ours": {}, "topk": {}}

    def ours() -> None:
        algorithm.observe_gradients(list(algorithm.sparse_params.values()))
        algorithm.update(optimizer)
        algorithm.forget_gradients()

    def by_topk() -> None:
        for name, param in params.items():
            found["topk"][name] = topk_update(param, param.grad, masks[name])

    times: dict[str, list[float]] = {"ours": [], "topk": []}
    for index in range(-1, rounds):
        for name, run in sorted({"ours": ours, "topk": by_topk}.items(), reverse=bool(index % 2)):
            reset()
            start = time.process_time()
            run()
            if index >= 0:
                times[name].append(time.process_time() - start)
            if name == "ours":
                found["ours"] = {n: sparse_param.mask.clone() for n, sparse_param in algorithm.sparse_params.items()}
    size = sum(mask.numel() for mask in masks.values())
    different = sum(int((found["ours"][name] != found["topk"][name]).sum()) for name in masks)
    print(f"{size:,} weights in {len(masks)} masks; {different} of them differ, where scores are equal")
    print(f"update, ours: {statistics.median(times['ours']):.3f} s, topk: {statistics.median(times['topk']):.3f} s")
    print(f"update, ours / topk: {ratio(times, 'ours', 'topk')}")


def stepping(module: torch.nn.Module, batch: int, image: int) -> tuple[Any, torch.optim.Optimizer]:
    """A training step, and the optimizer whose hooks it runs."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
    x = torch.randn(batch, 3, image, image, generator=torch.Generator().manual_seed(2))
    y = torch.arange(batch)

    def step(after: Callable[[], None] = lambda: None) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        after()

    return step, optimizer


def steps(sparsity: float, rounds: int, batch: int, image: int) -> None:
    """Time the steps of one model under each way to mask it."""
    base = wide_resnet18(sparsity)
    masks = {base.parameter_paths[name]: mask for name, mask in base.masks.items()}
    cases: dict[str, Callable[[], Any]] = {}
    # The cases share weights where they can: four copies with gradients and momenta are 6 GB.
    dense = copy.deepcopy(base)
    dense_step, _ = stepping(dense, batch, image)
    cases["dense"] = dense_step

    params = dict(dense.named_parameters())
    factors = [(params[name], mask.float()) for name, mask in masks.items()]

    @torch.no_grad()
    def multiply() -> None:
        for param, factor in factors:
            param.mul_(factor)

    cases["one product"] = lambda: dense_step(multiply)

    pruned = copy.deepcopy(base)
    for name, mask in masks.items():
        owner, _, leaf = name.rpartition(".")
        prune.custom_from_mask(pruned.get_submodule(owner), leaf, mask)
    # The graph reads parameters by name and does not call their owners, whose hooks would do this.
    holders = [pruned.get_submodule(name.rpartition(".")[0]) for name in masks]
    pruned_step, _ = stepping(pruned, batch, image)

    def step_of_prune() -> None:
        for holder in holders:
            for hook in holder._forward_pre_hooks.values():
                hook(holder, None)
        pruned_step()

    cases["torch.nn.utils.prune"] = step_of_prune

    ours = base
    step, optimizer = stepping(ours, batch, image)
    sparse.Group({tuple(masks): sparse.RigL(update={"freq": NEVER}, start_sparse=True)}).attach(ours, optimizer)
    cases["ours"] = step

    for run in cases.values():
        run()
    times = interleaved(cases, rounds)
    for name, found in times.items():
        print(f"step, {name}: {statistics.median(found):.3f} s")
    for other in ("torch.nn.utils.prune", "one product", "dense"):
        print(f"step, ours / {other}: {ratio(times, 'ours', other)}")


def main() -> None:
    """Both measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image", type=int, default=64, help="pixels along each side")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    random.seed(0)
    updates(options.sparsity, options.rounds)
    steps(options.sparsity, options.rounds, options.batch, options.image)


if __name__ == "__main__":
    main()
