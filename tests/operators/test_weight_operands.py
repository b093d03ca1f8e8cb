"""Tables of operators, held against what ONNX says of them."""

from __future__ import annotations

import onnx
import pytest

from sift_onnx.operators import traits, weight_operands
from sift_onnx.operators.weight_operands import PARAMETERS, feature_axes

# Of onnxruntime's domain, or of its own in the standard one.
FOREIGN = {"FusedConv", "FusedGemm", "FusedMatMul", "SimplifiedLayerNormalization", "TransposeMatMul"}
NAMES = {
    "weights": {"w", "b", "r", "weight", "a", "data", "inputs"},
    "scales": {"scale", "slope", "p"},
    "shifts": {"b", "bias", "c"},
    "statistics": {"input_mean", "input_var"},
}


def known() -> dict[str, onnx.defs.OpSchema]:
    return {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}


@pytest.mark.parametrize("name", traits.__all__)
def test_traits_are_of_operators_that_onnx_has(name: str) -> None:
    assert getattr(traits, name) <= set(known())


@pytest.mark.parametrize("op", sorted(set(PARAMETERS) - FOREIGN))
@pytest.mark.parametrize("kind", sorted(NAMES))
def test_parameters_are_inputs_of_such_a_name(op: str, kind: str) -> None:
    schema = known().get(op)
    if schema is None:
        pytest.skip(f"onnx {onnx.__version__} has no {op}")
    for position in getattr(PARAMETERS[op], kind):
        # Einsum has one list of inputs.
        assert schema.inputs[min(position, len(schema.inputs) - 1)].name.lower() in NAMES[kind]


def test_sets_of_layers_have_parameters() -> None:
    for name in ("CONVOLUTIONS", "MATRIX_PRODUCTS", "FOLDABLE", "NORMALIZATIONS", "CHANNEL_NORMALIZATIONS"):
        assert getattr(weight_operands, name) <= set(PARAMETERS)


@pytest.mark.parametrize(
    ("op", "attributes", "position", "rank", "expected"),
    [
        ("Conv", {}, 1, 4, (0, 1)),
        ("ConvTranspose", {}, 1, 4, (1, 0)),
        ("Conv", {}, 2, 1, None),
        ("MatMul", {}, 1, 2, (1, 0)),
        ("MatMul", {}, 0, 3, (1, 2)),
        ("Gemm", {"transB": 1}, 1, 2, (0, 1)),
        ("Gemm", {"transA": 1}, 0, 2, (1, 0)),
        ("LSTM", {}, 2, 3, (1, 2)),
        ("Einsum", {"equation": "bi,oi->bo"}, 1, 2, (0, 1)),
        ("Einsum", {"equation": "...i,oi->...o"}, 1, 2, None),
        ("Gather", {}, 0, 2, None),
        ("Relu", {}, 0, 2, None),
    ],
)
def test_axes_of_features(op, attributes, position, rank, expected) -> None:
    assert feature_axes(op, attributes, position, rank) == expected
