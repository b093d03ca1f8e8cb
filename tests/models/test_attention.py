import pytest
import torch
from torch.nn import functional

from sift_onnx.models.attention import attend


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("bias_shape", [None, (5, 5), (2, 1, 1, 5), (2, 3, 5, 5)])
def test_it_is_scaled_dot_product_attention_head_by_head(bias_shape):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 5, 12, generator=generator) for _ in range(3))
    bias = None if bias_shape is None else torch.randn(bias_shape, generator=generator)
    expected = functional.scaled_dot_product_attention(*(heads_of(x, 3) for x in (q, k, v)), attn_mask=bias)
    torch.testing.assert_close(attend(q, k, v, 3, 4, bias), expected.transpose(1, 2).flatten(2))
