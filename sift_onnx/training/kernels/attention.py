"""Attention, rotary and linear, on batch x heads x length x features or batch x length x hidden."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sift_onnx.training.registry import kernel
from sift_onnx.training.tensors import torch_dtype

__all__: list[str] = []

# What the fourth output of Attention shows.
_AFTER_PRODUCT, _AFTER_SOFTCAP, _AFTER_MASK, _AFTER_SOFTMAX = 0, 1, 2, 3


def _heads(x: Tensor, heads: int | None) -> Tensor:
    return x if x.dim() == 4 else x.reshape(*x.shape[:2], heads or 1, -1).transpose(1, 2)


def _bias(
    query: Tensor, length: int, mask: Tensor | None, offset: Tensor | int, causal: int, left: int, right: int
) -> Tensor | None:
    """What is added to scores: 0 or the mask's number where attention is allowed, minus infinity elsewhere."""
    nothing = torch.zeros((), dtype=query.dtype, device=query.device)
    bias = None
    if mask is not None:
        missing = length - mask.shape[-1]
        allows = mask.dtype == torch.bool
        bias = torch.where(mask, nothing, nothing - torch.inf) if allows else mask
        bias = torch.nn.functional.pad(bias, (0, missing), value=-torch.inf)
    if not causal and left < 0 and right < 0:
        return bias
    # Number of steps by which the query comes after the key.
    steps = torch.arange(query.shape[2], device=query.device)[:, None] + offset
    behind = steps - torch.arange(length, device=query.device)
    allowed = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    if left >= 0:
        allowed = allowed & (behind <= left)
    if right >= 0:
        allowed = allowed & (-behind <= right)
    window = torch.where(allowed, nothing, nothing - torch.inf)
    return window if bias is None else bias + window


@kernel("Attention", since=23)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    """Scaled dot-product attention: output, keys and values with the past, and the scores at one of four stages."""
    flat = query.dim() == 3
    query, key, value = _heads(query, q_num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    present_key, present_value = key, value
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    length = key.shape[2]
    lengths = None if nonpad_kv_seqlen is None else nonpad_kv_seqlen.reshape(-1, 1, 1, 1).to(query.device)
    offset = past if lengths is None or past_key is not None else lengths - query.shape[2]
    bias = _bias(query, length, mask, offset, is_causal, left_window_size, right_window_size)
    if lengths is not None:
        hidden = torch.arange(length, device=query.device) >= lengths
        padding = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device).masked_fill(hidden, -torch.inf)
        bias = padding if bias is None else bias + padding
    # The root of the scale on both sides keeps 16-bit products in range.
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[3]))
    product = (query * root) @ (key * root).transpose(2, 3)
    capped = softcap * torch.tanh(product / softcap) if softcap > 0 else product
    masked = capped if bias is None else capped + bias
    weights = _softmax(masked, softmax_precision)
    result = weights @ value
    if flat:
        result = result.transpose(1, 2).flatten(2)
    stages = {_AFTER_PRODUCT: product, _AFTER_MASK: masked, _AFTER_SOFTCAP: capped, _AFTER_SOFTMAX: weights}
    return result, present_key, present_value, stages[qk_matmul_output_mode]


def _softmax(scores: Tensor, precision: int | None) -> Tensor:
    wide = scores if precision is None else scores.to(torch_dtype(precision))
    # A query that may attend to nothing yields zeros, where softmax is undefined.
    nothing = torch.isneginf(wide).all(-1, keepdim=True)
    weights = torch.softmax(wide.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    return weights.to(scores.dtype)


@kernel("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Pairs of features turned by the angle of their position; features after ``rotary_embedding_dim`` stay."""
    heads = _heads(x, num_heads)
    turned = rotary_embedding_dim or heads.shape[3]
    if positions is not None:
        cosines, sines = cosines[positions.to(torch.int64)], sines[positions.to(torch.int64)]
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    part, rest = heads[..., :turned], heads[..., turned:]
    first, second = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    real, imaginary = cosines * first - sines * second, sines * first + cosines * second
    joined = torch.stack([real, imaginary], -1).flatten(-2) if interleaved else torch.cat([real, imaginary], -1)
    result = torch.cat([joined, rest], -1)
    return result if x.dim() == 4 else result.transpose(1, 2).flatten(2)


@kernel("LinearAttention", since=27)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    """Attention by a state of keys x values that every step decays, corrects and adds to; computed in float32."""
    kind, state_kind = query.dtype, query.dtype if past_state is None else past_state.dtype
    q, k, v = (_heads(t, n).float() for t, n in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads)))
    batch, _, steps, width = q.shape
    factor = scale or 1 / math.sqrt(width)
    state = q.new_zeros(batch, kv_num_heads, width, v.shape[3]) if past_state is None else past_state.float()
    gates = None if decay is None else _heads(decay, kv_num_heads).float().exp()
    rates = None if beta is None else beta.float().transpose(1, 2).unsqueeze(-1)
    results = []
    for i in range(steps):
        new = v[:, :, i]
        if gates is not None:
            state = state * gates[:, :, i].unsqueeze(-1)
        if rates is not None:
            new = rates[:, :, i] * (new - torch.einsum("bhkv,bhk->bhv", state, k[:, :, i]))
        state = state + k[:, :, i].unsqueeze(-1) * new.unsqueeze(-2)
        read = state.repeat_interleave(q_num_heads // kv_num_heads, 1)
        results.append(torch.einsum("bhkv,bhk->bhv", read, q[:, :, i]) * factor)
    result = torch.stack(results, 2).transpose(1, 2).flatten(2)
    return result.to(kind), state.to(state_kind)
