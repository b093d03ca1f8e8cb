"""Scaled dot-product attention over several heads, in the operators that every ONNX tool knows.

It is spelled out as two matrix products and a softmax. ``torch.nn.functional.scaled_dot_product_attention`` exports
less clean graphs: TorchScript computes the scale from ``Shape`` and multiplies its fourth root into both factors, where
dynamo leaves the ``d ** -0.25`` as two numbers, or, from opset 23 on, an ``Attention`` node that few tools know yet.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["attend"]


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, head_size: int, bias: Tensor | None = None) -> Tensor:
    """Attention of every position to every position: ``softmax(q k^T / sqrt(head_size) + bias) v``, head by head.

    Args:
        query: ``[N, T, heads * head_size]``, head by head.
        key: as ``query``.
        value: as ``query``.
        heads: how many heads there are.
        head_size: features of one head.
        bias: added to the scores; broadcast to ``[N, heads, T, T]``.

    Returns:
        ``[N, T, heads * head_size]``.
    """
    q = _split_heads(query * head_size**-0.5, heads, head_size)
    k = _split_heads(key, heads, head_size)
    v = _split_heads(value, heads, head_size)
    scores = q @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    mixed = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2)
    return mixed.reshape(mixed.shape[0], mixed.shape[1], heads * head_size)


def _split_heads(x: Tensor, heads: int, head_size: int) -> Tensor:
    """From ``[N, T, heads * head_size]`` to ``[N, heads, T, head_size]``."""
    return x.reshape(x.shape[0], x.shape[1], heads, head_size).transpose(1, 2)
