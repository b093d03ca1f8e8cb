import torch

from sift_onnx.models.deeplab import deeplabv3plus_resnet18


def test_scores_have_the_resolution_of_the_image():
    model = deeplabv3plus_resnet18(0.125, 7).eval()
    assert model(torch.zeros(2, 3, 64, 96)).shape == (2, 7, 64, 96)


def test_the_backbone_ends_at_stride_16_with_dilation():
    model = deeplabv3plus_resnet18(0.125).eval()
    assert [tuple(c.shape[-2:]) for c in model.backbone(torch.zeros(1, 3, 64, 96))] == [
        (16, 24),
        (8, 12),
        (4, 6),
        (4, 6),
    ]
    last = model.backbone.layer4
    assert {(c.stride, c.dilation) for c in (last[0].conv1, last[1].conv2)} == {((1, 1), (2, 2))}


def test_the_pyramid_has_three_rates_and_the_whole_image():
    model = deeplabv3plus_resnet18(0.125).eval()
    assert [branch[0][0].dilation for branch in model.pyramid.atrous] == [(6, 6), (12, 12), (18, 18)]
    image = model.pyramid.pool(torch.rand(1, 64, 4, 6))
    assert image.shape == (1, 16, 1, 1)


def test_parameters():
    with torch.device("meta"):
        model = deeplabv3plus_resnet18()
    heads = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("backbone."))
    assert heads == 469_039
    assert sum(p.numel() for p in model.backbone.parameters()) == 11_176_512
