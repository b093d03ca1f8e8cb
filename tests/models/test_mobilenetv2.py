import pytest
import torch

from sift_onnx.errors import UsageError
from sift_onnx.models.mobilenetv2 import InvertedResidual, MobileNetV2


@pytest.mark.parametrize(("width", "published"), [(1.0, 3_504_872), (0.5, 1_968_680), (1.4, 6_108_776)])
def test_parameter_counts_are_the_published_ones(width, published):
    with torch.device("meta"):
        assert sum(p.numel() for p in MobileNetV2(width).parameters()) == published


def test_state_dict_keys_are_those_of_checkpoints_in_circulation():
    with torch.device("meta"):
        keys = set(MobileNetV2().state_dict())
    assert len(keys) == 314
    assert {"features.0.0.weight", "features.1.conv.1.weight", "features.2.conv.0.1.running_mean"} <= keys
    assert {"features.17.conv.2.weight", "features.18.1.bias", "classifier.1.weight"} <= keys


def test_only_the_stride_of_the_stem_differs_for_cifar():
    sizes = {}
    for stride in (1, 2):
        model = MobileNetV2(0.25, 10, stem_stride=stride)
        model.avgpool.register_forward_hook(lambda _, inputs, __, s=stride: sizes.update({s: inputs[0].shape[-1]}))
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 10)
    assert sizes == {1: 4, 2: 2}


def test_a_shortcut_needs_equal_shapes():
    assert InvertedResidual(8, 8, 1, 6).has_shortcut
    assert not InvertedResidual(8, 8, 2, 6).has_shortcut
    assert not InvertedResidual(8, 16, 1, 6).has_shortcut


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_width_out_of_range_is_refused(width):
    with pytest.raises(UsageError, match="width"):
        MobileNetV2(width)
