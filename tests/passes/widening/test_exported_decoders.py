"""Decoders with a cache as torch exports them: what verbs make of them keeps the cache, and generates."""

from __future__ import annotations

import onnx
import pytest
from exported_decoders import OUTPUTS, exported_decoder

import sift_onnx
from sift_onnx.backends.decoding.decoder import Decoder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", params=["dynamo", "TorchScript"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    return exported_decoder(tmp_path_factory.mktemp("exported"), dynamo=request.param == "dynamo")


def ends(model: onnx.ModelProto) -> list[tuple[str, list[int | str]]]:
    """Inputs and outputs with their sizes and the names of open axes."""
    return [
        (info.name, [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim])
        for info in (*model.graph.input, *model.graph.output)
    ]


def tokens_of(model: onnx.ModelProto, backend: str = "onnxruntime") -> list[list[int]]:
    return list(Decoder(model, 1, backend=backend).generate([[3, 5, 7], [1, 4]], 5))


def test_what_is_embedded_says_what_the_original_says(model: onnx.ModelProto) -> None:
    wider = sift_onnx.transform(model, wide=0.75, init="embed")
    assert ends(wider) == ends(model)
    assert sum(t.ByteSize() for t in wider.graph.initializer) > 2 * sum(t.ByteSize() for t in model.graph.initializer)
    assert tokens_of(wider) == tokens_of(model) == tokens_of(wider, "cpu")


@pytest.mark.parametrize("options", [{"wide": 0.75}, {"parallel": 0.75}])
def test_every_transform_keeps_the_cache(model: onnx.ModelProto, options: dict[str, float]) -> None:
    made = sift_onnx.transform(model, **options)
    assert ends(made) == ends(model)
    assert len(tokens_of(made)) == 5
    report = sift_onnx.simulate(made, "stonne-1ms", decode=(4, 4))
    assert report.decoded.steps.vs_dense_wide.value > 1
    assert not report.uncosted


def test_pruned_weights_are_checked_counted_and_simulated(model: onnx.ModelProto) -> None:
    made = sift_onnx.prune(model, sparsity=0.6).model.to_proto()
    assert ends(made) == ends(model)
    checked = sift_onnx.check(made)
    assert checked.ok, checked
    counted = sift_onnx.inspect(made).to_dict()
    assert not counted["left_out"]
    assert counted["totals"]["effective_macs"] < 0.8 * counted["totals"]["macs"]
    assert len(tokens_of(made, "cpu")) == 5
    assert [info.name for info in made.graph.output] == OUTPUTS
