from __future__ import annotations

import pickle

import pytest
import torch

from sift_onnx.training.packed_masks import PackedMasks


@pytest.mark.parametrize("shape", [(3, 5), (8,), (0, 4), (), (2, 3, 5, 7)])
def test_what_is_set_is_read(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) < 0.5
    masks = PackedMasks({"a": mask})
    assert masks["a"].dtype == torch.bool
    assert torch.equal(masks["a"], mask)
    masks["a"] = ~mask
    assert torch.equal(masks["a"], ~mask)
    assert torch.equal(pickle.loads(pickle.dumps(masks))["a"], ~mask)


def test_a_mask_takes_a_bit_per_weight() -> None:
    masks = PackedMasks({"a": torch.ones(1 << 16, dtype=torch.bool)})
    assert len(pickle.dumps(masks)) < (1 << 13) + 1000


def test_they_are_a_mapping() -> None:
    masks = PackedMasks({"a": torch.ones(2, dtype=torch.bool), "b": torch.zeros(3, dtype=torch.bool)})
    assert list(masks) == ["a", "b"]
    assert "c" not in masks
    assert list(masks.renamed({"a": "c"})) == ["c", "b"]
    del masks["a"]
    assert len(masks) == 1
    assert repr(masks) == "PackedMasks(b: 0 of 3)"
    with pytest.raises(KeyError):
        masks["a"]
