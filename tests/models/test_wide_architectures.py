"""Wide on an export gives the graph of the module of that width: same names, same shapes, same outputs."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import sift_onnx
from sift_onnx.models import ARCHITECTURES, build, export
from sift_onnx.models.fold_batch_norm import fold_batch_norm
from sift_onnx.models.registry import example_inputs


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("gpt3-small", 0.125),
        *(
            pytest.param(*other, marks=pytest.mark.slow)
            for other in (
                ("mobilenetv2-cifar", 1.0),  # narrower ones round their channels to multiples of 8
                ("mobilevit-s-cifar", 0.25),
                ("bert-small", 0.125),
                ("retinanet-resnet18", 0.125),
                ("deeplabv3plus-resnet18", 0.25),
            )
        ),
    ],
)
def test_three_quarters_sparse_is_twice_as_wide(name, width, tmp_path):
    row = ARCHITECTURES[name]
    options = {"layers": 1, "sequence": 8} if "layers" in row.options else {}
    export(name, tmp_path / "m.onnx", width=width, num_classes=10, keep_batch_norm=False, **options)
    model = sift_onnx.transform(onnx.load(tmp_path / "m.onnx"), wide=0.75, budget="layer")
    module = build(name, width=2 * width, num_classes=10, **options)
    fold_batch_norm(module)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    tied = {"lm_head.weight", "cls.predictions.decoder.weight"}
    learned = {key for key in module.state_dict() if not key.endswith("num_batches_tracked")} - tied
    module.load_state_dict({key: torch.from_numpy(stored[key].copy()) for key in learned}, strict=False)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.rand(tensor.shape, generator=generator) if tensor.is_floating_point() else torch.ones_like(tensor)
        for tensor in example_inputs(row, 1, options.get("sequence"))
    ]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {key: tensor.numpy() for key, tensor in zip(row.inputs, inputs, strict=True)})
    with torch.no_grad():
        expected = module(*inputs)
    for one, other in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-4 * other.abs().max().item())
