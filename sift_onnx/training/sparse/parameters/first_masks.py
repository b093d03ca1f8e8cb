"""The first mask of a parameter, checked before any training."""

from __future__ import annotations

import numpy as np
import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.distributed import to_local
from sift_onnx.training.sparse.parameters.mask_settings import MaskSettings
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection import init_methods, patterned
from sift_onnx.weights.sparse import generator

__all__ = ["check_first_mask", "first_mask"]

_EMPTY = Share(1)


def first_mask(sparse: SparseParameter, settings: MaskSettings, level: Share, step: int) -> torch.Tensor:
    """The mask that a parameter starts with, a bool tensor of its shape.

    Args:
        sparse: the parameter.
        settings: how masks are chosen.
        level: the sparsity of the mask.
        step: number of optimizer steps so far.

    Raises:
        UsageError: no weight would be active, or the mask does not fit the parameter or the pattern.
    """
    rng = generator(settings.seed, sparse.name, "mask", step)
    method = settings.init_method
    if settings.is_structured and method in (init_methods.random, init_methods.topk):
        return _patterned(sparse, settings, level, rng)
    values, shaper, rule = sparse.full_values(), settings.shaper_of(sparse), settings.rule
    mask: object
    if method is init_methods.random and rule.name == "cbsparse":
        mask = torch.from_numpy(np.asarray(rng.random(tuple(values.shape)) < 1 - float(level)))
    elif method is init_methods.random:
        mask = init_methods.random(values, level, shaper, rng=rng, rule=rule)
    elif method is init_methods.topk:
        mask = init_methods.topk(values, level, shaper, rule=rule)
    else:
        mask = method(values, level, score_shaper=shaper, device=to_local(sparse.param).device)
    return check_first_mask(sparse, settings, mask, level)


def check_first_mask(
    sparse: SparseParameter, settings: MaskSettings, mask: object, level: Share = _EMPTY
) -> torch.Tensor:
    """``mask`` as a bool tensor, if a parameter can start with it.

    Args:
        sparse: the parameter.
        settings: how masks are chosen.
        mask: what was made or given.
        level: the sparsity that was asked for.

    Raises:
        UsageError: no weight would be active, or the mask does not fit the parameter or the pattern.
    """
    found = init_methods.check_mask(mask, sparse.param, sparse.name)
    if not bool(found.any()):
        raise _empty(sparse, level)
    if settings.is_structured and not patterned.conforms(settings.pattern, sparse.matrix, found):
        raise UsageError(
            f"the first mask of {sparse.name!r} is no {settings.pattern} mask; init_method='topk' makes one that is"
        )
    return found


def _patterned(sparse: SparseParameter, settings: MaskSettings, level: Share, rng: np.random.Generator) -> torch.Tensor:
    count = settings.room(sparse, level)
    if not count:
        raise _empty(sparse, level)
    if settings.init_method is init_methods.random:
        return patterned.draw_mask(settings.pattern, sparse.matrix, count, rng)
    return patterned.choose_mask(settings.pattern, sparse.matrix, count, sparse.full_values().abs())


def _empty(sparse: SparseParameter, level: Share) -> UsageError:
    return UsageError(
        f"sparsity {float(level):g} leaves none of the {sparse.numel} weights of {sparse.name!r}; lower it, or "
        "leave that parameter out"
    )
