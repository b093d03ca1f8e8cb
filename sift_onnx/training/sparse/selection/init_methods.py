"""First masks.

Names and signature are those of ``cstorch.sparse.init``: ``(param, sparsity, score_shaper=None, device=None) -> mask``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.errors import WrongTypeError
from sift_onnx.training.sparse.schedules.share import Share, ShareLike
from sift_onnx.training.sparse.selection.counts import EXACT, CountRule
from sift_onnx.training.sparse.selection.masks import Shaper, make_mask_topk_sparsity
from sift_onnx.weights.sparse import sample_positions

__all__ = ["InitMethod", "check_mask", "checkerboard", "from_zeros", "make_init_method", "random", "topk"]

InitMethod = Callable[..., torch.Tensor]


def random(
    param: torch.Tensor,
    sparsity: ShareLike,
    score_shaper: Shaper | None = None,
    device: torch.device | None = None,
    *,
    rng: np.random.Generator | None = None,
    rule: CountRule = EXACT,
) -> torch.Tensor:
    """A random mask of exactly the sparsity, in each balanced group, every such mask equally likely.

    Args:
        param: a tensor of any shape.
        sparsity: share of weights to leave out.
        score_shaper: lays out the groups that are filled alike; one group if None.
        device: of the mask; that of ``param`` if None.
        rng: where chance comes from; algorithms give one that depends on seed, name and step alone.
        rule: how weights are counted.
    """
    rng = rng if rng is not None else np.random.default_rng()
    device = device or param.device
    if score_shaper is not None:
        scores = torch.from_numpy(rng.random(tuple(param.shape)))
        return make_mask_topk_sparsity(scores, sparsity, score_shaper, rule=rule).to(device)
    share = Share(sparsity).clamped()
    mask = np.zeros(param.numel(), dtype=np.bool_)
    mask[sample_positions(mask.size, rule.target(mask.size, share), rng)] = True
    return torch.from_numpy(mask).reshape(param.shape).to(device)


def topk(
    param: torch.Tensor,
    sparsity: ShareLike,
    score_shaper: Shaper | None = None,
    device: torch.device | None = None,
    *,
    rule: CountRule = EXACT,
) -> torch.Tensor:
    """The mask of the weights of the largest magnitude."""
    initial = replace(rule, target=rule.initial)
    mask = make_mask_topk_sparsity(param.detach().abs(), sparsity, score_shaper, rule=initial)
    return mask.to(device or param.device)


def from_zeros(
    param: torch.Tensor,
    sparsity: ShareLike,
    score_shaper: Shaper | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """The mask of the weights that are not zero; the sparsity is not looked at."""
    return (param.detach() != 0).to(device or param.device)


def checkerboard(
    param: torch.Tensor,
    sparsity: ShareLike,
    score_shaper: Shaper | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """A mask that is spread as evenly as can be, with exactly the sparsity.

    Weight ``i`` is active where ``i * density`` passes a whole number, and each row is rotated by one element more than
    the row before, so that columns are filled evenly, too, where rows would all look alike.
    """
    density = 1 - Share(sparsity).clamped().exact
    count = math.floor(density * param.numel())
    rows = param.shape[0] if param.dim() > 1 else 1
    passed = np.arange(param.numel() + 1, dtype=np.int64) * count // max(param.numel(), 1)
    board = (np.diff(passed) > 0).reshape(max(rows, 1), -1)
    for index, row in enumerate(board):
        board[index] = np.roll(row, index % max(row.size, 1))
    return torch.from_numpy(board).reshape(param.shape).to(device or param.device)


_METHODS: dict[str, InitMethod] = {
    "random": random,
    "topk": topk,
    "from_zeros": from_zeros,
    "checkerboard": checkerboard,
}


def make_init_method(init_method: Any) -> InitMethod:
    """The function that a setting stands for.

    Args:
        init_method: ``random``, ``topk``, ``from_zeros``, ``checkerboard``, or a function that can be called as
            ``f(param, sparsity, score_shaper=..., device=...)``.

    Raises:
        UsageError: there is no such method, or the function takes other arguments.
    """
    if isinstance(init_method, str) and init_method in _METHODS:
        return _METHODS[init_method]
    names = ", ".join(_METHODS)
    if not callable(init_method):
        raise UsageError(f"init_method {init_method!r} is unknown; choose one of {names}, or give a function")
    try:
        inspect.signature(init_method).bind(None, None, score_shaper=None, device=None)
    except TypeError as error:
        raise UsageError(
            f"init_method is called as f(param, sparsity, score_shaper=None, device=None), but: {error}"
        ) from error
    except ValueError:
        pass  # a builtin without a signature
    method: InitMethod = init_method
    return method


def check_mask(mask: object, param: torch.Tensor, name: str) -> torch.Tensor:
    """``mask`` as a bool tensor, if it fits.

    Raises:
        WrongTypeError: it is not a tensor.
        UsageError: it has another shape than the parameter.
    """
    if not isinstance(mask, torch.Tensor):
        raise WrongTypeError(f"the init method gave {type(mask).__name__} as mask of {name!r}, not a tensor")
    if mask.shape != param.shape:
        raise UsageError(f"the mask of {name!r} has shape {list(mask.shape)}, the parameter {list(param.shape)}")
    return mask.to(torch.bool)
