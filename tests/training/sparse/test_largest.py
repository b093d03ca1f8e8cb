"""Selection on the host and on other devices, held against a sort; and zeros outside of masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.training.sparse import host_tensors
from sift_onnx.training.sparse.host_tensors import copied, magnitudes, zero_outside
from sift_onnx.training.sparse.selection import largest as selection
from sift_onnx.training.sparse.selection.largest import largest


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples, chunks and threads on tensors of a few hundred elements."""
    monkeypatch.setattr(selection, "_SAMPLE", 16)
    monkeypatch.setattr(selection, "_CHUNK", 37)
    monkeypatch.setattr(host_tensors, "_WORTH_A_THREAD", 50)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


def by_sorting(
    scores: torch.Tensor, count: int, preferred: torch.Tensor | None, candidates: torch.Tensor | None
) -> torch.Tensor:
    values = torch.where(torch.isnan(scores), -torch.inf, scores).tolist()
    order = [i for i in range(len(values)) if candidates is None or candidates[i]]
    order.sort(key=lambda i: (-values[i], preferred is not None and not preferred[i], i))
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[order[: max(count, 0)]] = True
    return mask


def drawn(kind: str, size: int, rng: np.random.Generator) -> torch.Tensor:
    scores = rng.standard_normal(size).astype(np.float32)
    if kind == "tied":
        scores = np.round(scores)
    elif kind == "pruned":
        scores[rng.random(size) < 0.8] = 0
    elif kind == "strange":
        for value in (np.nan, np.inf, -np.inf):
            scores[rng.random(size) < 0.2] = value
    elif kind == "equal":
        scores[:] = 1
    return torch.from_numpy(scores)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["plain", "tied", "pruned", "strange", "equal"]),
    size=st.integers(1, 400),
    count=st.integers(-1, 401),
    share=st.none() | st.floats(0, 1),
    prefers=st.booleans(),
    by_magnitude=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_largest_are_those_of_a_sort(
    kind: str, size: int, count: int, share: float | None, prefers: bool, by_magnitude: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = drawn(kind, size, rng)
    candidates = None if share is None else torch.from_numpy(rng.random(size) < share)
    preferred = torch.from_numpy(rng.random(size) < 0.3) if prefers else None
    expected = by_sorting(scores.abs() if by_magnitude else scores, count, preferred, candidates)

    assert torch.equal(largest(scores, count, preferred, candidates, magnitudes=by_magnitude), expected)
    if 0 < count < (size if candidates is None else int(candidates.sum())):
        compared = scores.abs() if by_magnitude else scores
        assert torch.equal(selection._largest_on_device(compared, count, preferred, candidates), expected)


def test_scores_that_repeat_a_pattern_leave_few_to_select_among(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_SAMPLE", 1 << 10)
    selected: list[int] = []
    partition = np.partition
    monkeypatch.setattr(np, "partition", lambda a, k: (selected.append(a.size), partition(a, k))[1])
    # Gradients of windows of 3x3: those at the corners sum over fewer pixels.
    gradients = torch.randn(1 << 12, 9, generator=torch.Generator().manual_seed(0))
    gradients[:, 0] *= 0.1
    scores = gradients.reshape(-1)
    mask = largest(scores, 1 << 10, magnitudes=True)
    assert torch.equal(mask, by_sorting(scores.abs(), 1 << 10, None, None))
    assert sum(selected) < scores.numel() / 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_everything_outside_of_a_mask_becomes_a_positive_zero(dtype: torch.dtype, layout: str) -> None:
    values = torch.linspace(-2, 2, 240).reshape(4, 5, 4, 3)
    values[0, 0, 0], values[0, 1] = torch.tensor([torch.nan, torch.inf, -torch.inf]), -0.0
    if layout == "channels last":
        values = values.to(memory_format=torch.channels_last)
    mask = torch.rand(4, 5, 4, 3, generator=torch.Generator().manual_seed(0)) < 0.4
    mask[0, :2] = False
    tensor = values.to(dtype)
    before, version = tensor.clone(), tensor._version
    zero_outside(mask, tensor)

    assert torch.equal(tensor.float()[mask], before.float()[mask])
    assert not tensor.float()[~mask].any()
    assert not torch.signbit(tensor.float()[~mask]).any()
    assert tensor._version > version


def test_a_weight_that_is_pruned_between_forward_and_backward_is_noticed() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    zero_outside(torch.tensor([True, False, True]), weight.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_share_nothing(dtype: torch.dtype) -> None:
    tensor = torch.linspace(-1, 1, 6).reshape(2, 3).to(dtype).t().requires_grad_()
    for made, expected in ((copied(tensor), tensor), (magnitudes(tensor), tensor.abs())):
        assert torch.equal(made, expected)
        assert not made.requires_grad
        assert made.data_ptr() != tensor.data_ptr()
