"""The first mask of a parameter, checked before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.distributed.sharded import local_part, whole
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection import init_methods, patterned
from sift_onnx.weights.sparse import generator

if TYPE_CHECKING:
    from sift_onnx.training.sparse.algorithms.algorithm import SparsityAlgorithm
    from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter

__all__ = ["first_mask"]


def first_mask(
    algorithm: SparsityAlgorithm, sparse: SparseParameter, given: torch.Tensor | None = None
) -> torch.Tensor:
    """The mask that a parameter starts with, a bool tensor of its shape.

    Args:
        algorithm: that the parameter belongs to.
        sparse: the parameter.
        given: the mask that it was asked to start with.

    Raises:
        UsageError: no weight would be active, or the mask does not fit the parameter or the pattern.
    """
    param = sparse.param
    _check_pattern(algorithm, sparse)
    if given is not None:
        return _checked(algorithm, sparse, given)
    level = algorithm.levels.of(sparse, algorithm.sparse_params, algorithm.step, algorithm.pattern)
    if not algorithm.starts_sparse:
        return torch.ones(param.shape, dtype=torch.bool)
    rng = generator(algorithm.seed, sparse.name, "mask", algorithm.step)
    method = algorithm.init_method
    if algorithm.pattern.kind != "unstructured" and method in (init_methods.random, init_methods.topk):
        return _patterned(algorithm, sparse, level, rng)
    values = whole(param)
    if method is init_methods.random and algorithm.compat == "cbsparse":
        drawn = rng.random(tuple(values.shape)) < 1 - float(level)
        mask = torch.from_numpy(np.asarray(drawn))
    elif method is init_methods.random:
        mask = init_methods.random(values, level, algorithm.shaper_of(sparse), rng=rng, rule=algorithm.rule)
    elif method is init_methods.topk:
        mask = init_methods.topk(values, level, algorithm.shaper_of(sparse), rule=algorithm.rule)
    else:
        device = local_part(param).device
        mask = method(values, level, score_shaper=algorithm.shaper_of(sparse), device=device)
    return _checked(algorithm, sparse, mask)


def _patterned(
    algorithm: SparsityAlgorithm, sparse: SparseParameter, level: Share, rng: np.random.Generator
) -> torch.Tensor:
    pattern, matrix = algorithm.pattern, sparse.matrix
    count = patterned.room(pattern, matrix, algorithm.rule.target(matrix.size, level))
    if not count:
        raise _empty(sparse, level)
    if algorithm.init_method is init_methods.random:
        return patterned.draw_mask(pattern, matrix, count, rng)
    return patterned.choose_mask(pattern, matrix, count, whole(sparse.param).abs())


def _check_pattern(algorithm: SparsityAlgorithm, sparse: SparseParameter) -> None:
    if algorithm.pattern.kind == "unstructured":
        return
    if algorithm.score_shaper is not None:
        raise UsageError("balanced groups and a pattern cannot be had together; leave one of them out")
    if sparse.param.dim() < 2:
        raise UsageError(f"{sparse.name!r} is a vector, and pattern {algorithm.pattern} needs matrices; leave it out")
    misfit = algorithm.pattern.misfit(sparse.matrix)
    if misfit is not None:
        raise UsageError(f"{sparse.name!r}: {misfit}; leave it out, or choose another pattern")


def _checked(algorithm: SparsityAlgorithm, sparse: SparseParameter, mask: object) -> torch.Tensor:
    found = init_methods.check_mask(mask, sparse.param, sparse.name)
    if not bool(found.any()):
        raise _empty(sparse, algorithm.levels.of(sparse, algorithm.sparse_params, algorithm.step, algorithm.pattern))
    if algorithm.pattern.kind != "unstructured" and not patterned.conforms(algorithm.pattern, sparse.matrix, found):
        raise UsageError(
            f"the first mask of {sparse.name!r} is no {algorithm.pattern} mask; init_method='topk' makes one that is"
        )
    return found


def _empty(sparse: SparseParameter, level: Share) -> UsageError:
    return UsageError(
        f"sparsity {float(level):g} leaves none of the {sparse.param.numel()} weights of {sparse.name!r}; lower it, or "
        "leave that parameter out"
    )
