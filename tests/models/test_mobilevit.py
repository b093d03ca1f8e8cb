import pytest
import torch
from torch import nn

from sift_onnx.errors import UsageError
from sift_onnx.models.mobilevit import MobileVit, MobileVitBlock


def test_parameters_are_the_5_6_million_of_the_paper():
    with torch.device("meta"):
        assert sum(p.numel() for p in MobileVit().parameters()) == 5_578_632


@pytest.mark.parametrize(
    ("image_size", "small_images", "expected"), [(256, False, [32, 16, 8]), (32, True, [16, 8, 4])]
)
def test_transformers_see_even_maps(image_size, small_images, expected):
    model = MobileVit(0.125, 10, image_size=image_size, small_images=small_images)
    sizes = []
    for module in model.modules():
        if isinstance(module, MobileVitBlock):
            module.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[-1]))
    assert model(torch.zeros(1, 3, image_size, image_size)).shape == (1, 10)
    assert sizes == expected


def test_a_sequence_holds_the_positions_with_one_place_in_their_patches():
    block = MobileVitBlock(channels=2, features=4, depth=0, size=6)
    block.local = nn.Identity()
    block.features = 2
    seen = []
    block.transformer = nn.Identity()
    block.transformer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    block.projection = nn.Identity()
    block.fusion = nn.Identity()
    x = torch.arange(2 * 2 * 36.0).reshape(2, 2, 6, 6)
    out = block(x)
    assert seen[0].shape == (8, 9, 2)
    torch.testing.assert_close(seen[0][1].T, x[0, :, 0::2, 1::2].flatten(1), rtol=0, atol=0)
    torch.testing.assert_close(seen[0][6].T, x[1, :, 1::2, 0::2].flatten(1), rtol=0, atol=0)
    torch.testing.assert_close(out, torch.cat((x, x), 1), rtol=0, atol=0)


@pytest.mark.parametrize("width", [0.0, 0.01, float("nan")])
def test_width_out_of_range_is_refused(width):
    with pytest.raises(UsageError, match="width"):
        MobileVit(width)
