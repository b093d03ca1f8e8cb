"""Activations in lanes are held against double precision, and against torch's error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sift_onnx.training.sparse_layers.lanes.operators import elementwise, kernel_of
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, token_lanes

# By name and attributes; the roundings, of the largest number in a range, that are allowed beside twice torch's error.
KERNELS: list[tuple[str, tuple[Any, ...], dict[str, Any], float]] = [
    ("gelu", (), {}, 0),
    ("gelu", (), {"approximate": "tanh"}, 0),
    ("relu", (), {}, 0),
    ("leaky_relu", (), {"alpha": 0.1}, 0),
    ("clip", (0.0, 6.0), {}, 0),
    ("clip", (None, 1.5), {}, 0),
    ("hard_sigmoid", (), {}, 0),
    ("hard_swish", (), {}, 0),
    # Torch's error is half a rounding for some of these.
    ("swish", (), {}, 2),
    ("swish", (), {"alpha": 1.5}, 2),
    ("sigmoid", (), {}, 2),
    ("tanh", (), {}, 4),
]
EDGES = (-12.0, -5.0, -3.0, -2.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 12.0)


def exact(name: str, x: Tensor, *args: Any, **attributes: Any) -> Tensor:
    """In double precision; torch's GELU cancels in its tail."""
    if name == "gelu" and attributes:
        return x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    if name == "gelu":
        return x * torch.erfc(-x / 2**0.5) / 2
    result: Tensor = kernel_of(name)(x, *args, **attributes)
    return result


@pytest.mark.parametrize(("name", "args", "attributes", "roundings"), KERNELS)
def test_the_error_is_at_most_twice_that_of_torch(
    name: str, args: tuple[Any, ...], attributes: dict[str, Any], roundings: float
) -> None:
    draw = torch.Generator().manual_seed(0)
    for low, high in pairwise(EDGES):
        x = torch.rand(33, 40, generator=draw) * (high - low) + low
        ours, theirs, wanted = (x.to(dtype, copy=True).requires_grad_() for dtype in (x.dtype, x.dtype, torch.double))
        results = (
            from_lanes(elementwise(name, token_lanes(ours), *args, attributes=attributes)),
            kernel_of(name)(theirs, *args, **attributes),
            exact(name, wanted, *args, **attributes),
        )
        gradient = torch.randn(x.shape, generator=draw)
        for result in results:
            result.backward(gradient.to(result.dtype))
        for found, of_torch, true in (results, (ours.grad, theirs.grad, wanted.grad)):
            assert true is not None
            errors = [float((tensor - true).detach().abs().max()) for tensor in (found, of_torch) if tensor is not None]
            allowed = 2 * errors[1] + roundings * 2.0**-23 * float(true.detach().abs().max())
            assert errors[0] <= allowed, (low, high, errors)


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_one_tensor_is_kept_for_the_backward_pass(name: str) -> None:
    kept: list[Tensor] = []
    x = token_lanes(torch.randn(5, 3)).data.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        out = elementwise(name, Lanes(x, 5, (5, 3), is_tokens=True), attributes={})
    assert [t.data_ptr() for t in kept] == [(out.data if name == "relu" else x).data_ptr()]
