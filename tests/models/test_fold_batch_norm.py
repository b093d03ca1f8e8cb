import pytest
import torch
from torch import nn

from sift_onnx.models import build
from sift_onnx.models.fold_batch_norm import fold_batch_norm


class SharedInput(nn.Module):
    """A convolution read by a normalization and by an addition."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return y + self.bn(y)


class CalledTwice(nn.Module):
    """One convolution, called twice, before two normalizations: the heads of RetinaNet."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn1, self.bn2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.bn2(self.conv(self.bn1(self.conv(x))))


def test_folding_changes_no_output_and_no_name(shake):
    model = shake(build("resnet50-cifar", width=0.125, num_classes=5))
    x = torch.rand(2, 3, 16, 16)
    expected = model(x)
    assert len(fold_batch_norm(model)) == 53
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert {"conv1.weight", "conv1.bias", "layer1.0.downsample.0.bias"} <= set(model.state_dict())


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("mobilenetv2-cifar", 52),
        ("mobilevit-s-cifar", 32),
        ("botnet50-cifar", 50),  # those after attention stay
        ("retinanet-resnet18", 20),
        ("deeplabv3plus-resnet18", 34),
        ("bert-small", 0),
    ],
)
def test_architectures_are_folded_as_far_as_can_be(name, norms):
    assert len(fold_batch_norm(build(name, width=0.125, num_classes=5))) == norms


def test_a_bias_is_folded_too(shake):
    model = shake(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    x = torch.rand(1, 3, 2, 2)
    expected = model(x)
    assert len(fold_batch_norm(model)) == 1
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    "model",
    [SharedInput(), CalledTwice(), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), nn.Sequential(nn.Conv2d(3, 3, 1))],
)
def test_what_is_not_a_lone_pair_is_left_as_it_is(model, shake):
    shake(model)
    x = torch.rand(1, 3, 2, 2)
    expected = model(x)
    assert len(fold_batch_norm(model)) == 0
    assert torch.equal(model(x), expected)
