import pytest
import torch

from sift_onnx.models.resnet import Bottleneck
from sift_onnx.models.retinanet import RetinaNet, retinanet_resnet18


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_those_of_the_toolbox_of_the_paper():
    with torch.device("meta"):
        assert parameters(retinanet_resnet18()) == 21_410_100
        fifty = RetinaNet(Bottleneck, (3, 4, 6, 3))
    # It counts what it trains: the stem and the first stage are frozen there.
    frozen = parameters(fifty.backbone.conv1) + parameters(fifty.backbone.bn1) + parameters(fifty.backbone.layer1)
    assert round((parameters(fifty) - frozen) / 1e6, 2) == 37.74


def test_outputs_are_raw_predictions_at_strides_8_to_128():
    model = retinanet_resnet18(0.125, 5).eval()
    outputs = model(torch.zeros(2, 3, 64, 128))
    sizes = [(8, 16), (4, 8), (2, 4), (1, 2), (1, 1)]
    assert [tuple(output.shape) for output in outputs[:5]] == [(2, 45, *size) for size in sizes]
    assert [tuple(output.shape) for output in outputs[5:]] == [(2, 36, *size) for size in sizes]


def test_objects_begin_as_improbable():
    model = retinanet_resnet18(0.125, 5).eval()
    probabilities = torch.sigmoid(model(torch.zeros(1, 3, 64, 64))[0])
    assert probabilities.mean().item() == pytest.approx(0.01, rel=0.1)


def test_coarse_maps_reach_the_finer_ones():
    pyramid = retinanet_resnet18(0.125, 5).pyramid
    maps = [torch.zeros(1, 16, 8, 8), torch.zeros(1, 32, 4, 4), torch.zeros(1, 64, 2, 2)]
    before = pyramid(*maps)
    maps[2] = torch.ones(1, 64, 2, 2)
    changed = [not torch.equal(one, other) for one, other in zip(before, pyramid(*maps), strict=True)]
    assert changed == [True] * 5
    maps[2] = torch.zeros(1, 64, 2, 2)
    maps[0] = torch.ones(1, 16, 8, 8)
    changed = [not torch.equal(one, other) for one, other in zip(before, pyramid(*maps), strict=True)]
    assert changed == [True, False, False, False, False]
