"""Operators of ai.onnx.ml in front of a network, and between its layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embedded_models import kept_for
from nets import Net, widen

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model
from sift_onnx.passes import Doped, Factorized, Parallel, Wide

ML = "ai.onnx.ml"


def in_front(kind: str, dtype: type = np.float32, **attributes: Any) -> Net:
    """Layers behind an operator, as converters of scikit-learn write them: the batch is dynamic, Cast makes floats."""
    net = Net()
    rows = np.random.default_rng(0).normal(size=(3, 4)) * 5
    x = net.input("x", 3, 4, values=rows.astype(dtype), declared=["n", 4])
    h = net.op("Cast", net.op(kind, x, name="prepared", domain=ML, **attributes), to=1)
    for i, (inputs, outputs) in enumerate(((4, 12), (12, 10), (10, 8), (8, 2))):
        h = net.dense(net.op("Relu", h) if i else h, inputs, outputs, name=f"layer{i}")
    net.output(h, 3, 2)
    return net


def between(kind: str, width: int = 8, **attributes: Any) -> Net:
    """The same operator between the layers of a matrix."""
    net = Net()
    h = net.dense(net.input("x", 3, 4), 4, 6, name="stem")
    h = net.dense(net.op("Relu", h), 6, width, name="before")
    h = net.op(kind, h, name="prepared", domain=ML, **attributes)
    h = net.dense(net.op("Relu", net.dense(h, width, 6, name="after")), 6, 2, name="head")
    net.output(h, 3, 2)
    return net


FOUR = [1.0, 2.0, 3.0, 4.0]
KINDS: list[tuple[str, type, dict[str, Any]]] = [
    ("Scaler", np.float32, {"offset": FOUR, "scale": FOUR}),
    ("Scaler", np.int64, {"offset": FOUR, "scale": FOUR}),
    ("Scaler", np.float64, {"offset": [1.0], "scale": [2.0]}),
    ("Imputer", np.float32, {"imputed_value_floats": FOUR, "replaced_value_float": float("nan")}),
    ("Imputer", np.int64, {"imputed_value_int64s": [1, 2, 3, 4], "replaced_value_int64": 0}),
    ("Normalizer", np.float32, {"norm": "L2"}),
    ("Normalizer", np.int64, {"norm": "L1"}),
    ("Binarizer", np.float32, {"threshold": 0.5}),
]


@pytest.mark.parametrize(("kind", "dtype", "attributes"), KINDS)
def test_layers_behind_preprocessing_are_widened(kind: str, dtype: type, attributes: dict[str, Any]) -> None:
    wide = widen(in_front(kind, dtype, **attributes), "0.75", input_shapes={"x": [3, 4]})
    assert [wide.shape(f"layer{i}.weight") for i in range(4)] == [(4, 24), (24, 20), (20, 16), (16, 2)]
    assert [wide.status(f"layer{i}.weight") for i in range(4)] == ["dense", "sparse", "sparse", "dense"]
    assert wide.shape("prepared") == (3, 4)
    np.testing.assert_array_equal(wide.after["prepared"], wide.before["prepared"])
    assert wide.report["left_out"] == []


@pytest.mark.parametrize(("kind", "dtype", "attributes"), KINDS)
def test_the_original_lies_in_the_wide_model(kind: str, dtype: type, attributes: dict[str, Any]) -> None:
    wide = widen(in_front(kind, dtype, **attributes), "0.75", init="embed", input_shapes={"x": [3, 4]})
    np.testing.assert_allclose(wide.after["layer3"], wide.before["layer3"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("member", [Parallel, Factorized, Doped])
def test_layers_behind_preprocessing_are_replaced(member: Any) -> None:
    report = member("0.5")(in_front("Scaler", offset=FOUR, scale=FOUR).model()).report
    assert [layer["status"] for layer in report["layers"]] == ["unchanged", "sparse", "sparse", "unchanged"]
    assert report["totals"]["weight_macs_ratio"] == 1


EIGHT = [1.0] * 8


@pytest.mark.parametrize(
    ("kind", "attributes", "reason"),
    [
        ("Scaler", {"offset": EIGHT, "scale": EIGHT}, "it has an offset and a scale for each feature"),
        ("Scaler", {"scale": EIGHT}, "it has an offset and a scale for each feature"),
        (
            "Imputer",
            {"imputed_value_floats": EIGHT, "replaced_value_float": 9.0},
            "it has a value for each feature",
        ),
        ("Normalizer", {"norm": "L2"}, "each row is divided by its norm, over all features"),
    ],
)
def test_what_belongs_to_features_keeps_them_and_is_named(kind: str, attributes: dict[str, Any], reason: str) -> None:
    net = between(kind, **attributes)
    report = Wide("0.75", budget="layer")(net.model()).report
    (pinned,) = [entry for entry in report["pinned"] if entry["node"] == "prepared"]
    assert pinned == {"size": 8, "op": kind, "node": "prepared", "reason": reason} | {
        key: pinned[key] for key in ("layers", "macs_share")
    }
    assert pinned["layers"] == ["before.weight", "after.weight"]
    shapes = {layer["name"]: layer["shape_after"] for layer in report["layers"]}
    assert shapes["before.weight"] == [12, 8]
    assert shapes["after.weight"] == [8, 12]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("Scaler", {"offset": [1.0], "scale": [2.0]}),
        ("Imputer", {"imputed_value_floats": [1.0], "replaced_value_float": 9.0}),
        ("Binarizer", {"threshold": 0.5}),
    ],
)
def test_one_number_for_all_features_lets_them_grow(kind: str, attributes: dict[str, Any]) -> None:
    assert widen(between(kind, **attributes), "0.75").shape("prepared") == (3, 16)


def test_features_that_grow_through_preprocessing_have_no_place_yet() -> None:
    net = between("Binarizer", threshold=0.5)
    assert "has no rule" in kept_for(Wide("0.75", init="embed")(net.model()), "prepared")


def test_no_rule_needs_a_known_shape() -> None:
    net = Net()
    h = net.op("Mystery", net.input("x", 1, 4), name="strange", domain="nobody")
    for kind, attributes in (("Scaler", {"scale": FOUR}), ("Imputer", {}), ("Binarizer", {}), ("Normalizer", {})):
        h = net.op(kind, h, domain=ML, name=kind, **attributes)
    net.output(h, 1, 4)
    assert analyze(Model.load(net.model())).axes["Normalizer"] is None
