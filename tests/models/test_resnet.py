import pytest
import torch

from sift_onnx.errors import UsageError
from sift_onnx.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet34, resnet50


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("builder", "published"), [(resnet18, 11_689_512), (resnet34, 21_797_672), (resnet50, 25_557_032)]
)
def test_parameter_counts_are_the_published_ones(builder, published):
    with torch.device("meta"):
        assert parameters(builder()) == published


def test_state_dict_keys_are_those_of_checkpoints_in_circulation():
    with torch.device("meta"):
        keys = set(resnet18().state_dict())
        bottleneck_keys = set(resnet50().state_dict())
    assert len(keys) == 122
    assert len(bottleneck_keys) == 320
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.bias", "fc.bias"} <= keys
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.num_batches_tracked"} <= keys
    assert not any(key.startswith("layer1.0.downsample") for key in keys)
    assert {"layer1.0.downsample.0.weight", "layer3.5.conv3.weight"} <= bottleneck_keys


def test_bottleneck_strides_in_its_3x3_convolution():
    block = Bottleneck(16, 8, stride=2)
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_zero_initialized_residuals_make_every_block_begin_as_the_identity(block):
    model = ResNet(block, (2, 1, 1, 1), base_width=4, zero_init_residual=True).eval()
    x = torch.rand(1, 4 * block.expansion, 8, 8)
    torch.testing.assert_close(model.layer1[1](x), x, rtol=0, atol=0)


def test_residuals_can_begin_with_a_scale_of_one():
    model = ResNet(BasicBlock, (1, 1, 1, 1), base_width=4, zero_init_residual=False)
    assert all(bool((block.bn2.weight == 1).all()) for block in model.modules() if isinstance(block, BasicBlock))


def test_convolutions_begin_after_kaiming_he():
    weight = resnet18().layer3[1].conv1.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)


def test_cifar_stem_keeps_the_resolution_and_the_imagenet_stem_quarters_it():
    sizes = {}
    for stem in ("cifar", "imagenet"):
        model = resnet18(0.125, 10, stem=stem)
        model.layer1.register_forward_hook(lambda _, inputs, __, stem=stem: sizes.update({stem: inputs[0].shape[-2:]}))
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sizes == {"cifar": (32, 32), "imagenet": (8, 8)}


def test_width_multiplies_the_channels_of_every_stage():
    with torch.device("meta"):
        model = resnet50(1.5)
    assert model.conv1.out_channels == 96
    assert [layer[0].conv2.out_channels for layer in (model.layer1, model.layer2, model.layer3, model.layer4)] == [
        96,
        192,
        384,
        768,
    ]
    assert model.fc.in_features == 3072


@pytest.mark.parametrize("width", [0.0, 0.007, -1.0, float("nan"), float("inf"), 1e9])
def test_width_out_of_range_is_refused(width):
    with pytest.raises(UsageError, match="width"):
        resnet18(width)


def test_sizes_and_stems_that_do_not_exist_are_refused():
    with pytest.raises(UsageError, match="num_classes"):
        resnet18(num_classes=0)
    with pytest.raises(UsageError, match="stem"):
        resnet18(stem="mnist")
