"""Architectures of this package, widened, against onnxruntime at batches around a multiple of 16."""

import pytest
from exported_models import export_once
from sparse_nets import assert_same_at_batches, places

pytest.importorskip("torch", reason="the architectures are built with it")

import sift_onnx
from sift_onnx.passes import Doped, Factorized, Parallel

BATCHES = (1, 2, 5, 16, 17, 33)
# Outputs of hundreds of layers, relative to the largest.
TOLERANCE = 2e-4


def exported(name, folder, *, keep_batch_norm=False, **options):
    return sift_onnx.load(
        export_once(name, folder / "m.onnx", batch="dynamic", keep_batch_norm=keep_batch_norm, **options)
    )


@pytest.mark.parametrize(("name", "sparsity"), [
    ("resnet18-cifar", 0.75), ("mobilenetv2-cifar", 0.9),
    *(pytest.param(*other, marks=pytest.mark.slow) for other in (
        ("resnet18-cifar", 0.5), ("resnet18-cifar", 0.9), ("resnet50-cifar", 0.5), ("resnet50-cifar", 0.75),
        ("resnet50-cifar", 0.9), ("mobilenetv2-cifar", 0.5), ("mobilenetv2-cifar", 0.75),
    )),
])  # fmt: skip
def test_wide_networks_for_images(name, sparsity, tmp_path):
    model = exported(name, tmp_path, width=0.125)
    wide = sift_onnx.transform(model, wide=sparsity).to_proto()
    program = assert_same_at_batches(wide, BATCHES if sparsity == 0.75 else (1, 17), tolerance=TOLERANCE)
    assert "kernels" in places(program).values()


def test_normalizations_that_were_kept(tmp_path):
    model = exported("resnet18-cifar", tmp_path, width=0.125, keep_batch_norm=True)
    program = assert_same_at_batches(sift_onnx.transform(model, wide=0.75).to_proto(), (1, 17), tolerance=TOLERANCE)
    assert set(places(program).values()) == {"kernels"}


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("family", [Parallel, Factorized, Doped])
def test_local_members_of_the_family(family, tmp_path):
    model = exported("resnet18-cifar", tmp_path, width=0.125)
    result = family(0.75)(model).model.to_proto()
    assert "kernels" in places(assert_same_at_batches(result, (1, 17), tolerance=TOLERANCE)).values()


@pytest.mark.usefixtures("every_region_pays")
def test_transformer(tmp_path):
    model = exported("bert-small", tmp_path, width=0.25, sequence=16, layers=2)
    wide = sift_onnx.transform(model, wide=0.75, budget="layer").to_proto()
    program = assert_same_at_batches(wide, (1, 2, 5), tolerance=TOLERANCE)
    assert sum(place == "kernels" for place in places(program).values()) > 20
