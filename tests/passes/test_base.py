"""What every pass is: found by name, called with any kind of model, noted in the model."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import linear, random_weight

from sift_onnx import passes
from sift_onnx.errors import ModelReadError, PluginError, PreconditionError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Pass, PassResult, UnshareInitializers, get_pass, register_pass
from sift_onnx.passes import base as base_module
from sift_onnx.passes.base import BUILT_IN, HISTORY_KEY, already_applied, history, record


def model() -> Model:
    """A model without a history."""
    return Model.load(linear({"w": random_weight(4, 3)}))


class Renames(Pass):
    """Gives the graph another name."""

    name: ClassVar[str] = "renames"

    def call(self, model: Model) -> PassResult:
        copy = model.copy()
        copy.graph.name = "renamed"
        return PassResult(copy, True, {"was": model.graph.name})


# Calling and finding.


@pytest.mark.parametrize("kind", ["path", "text", "proto", "graph", "ir", "model"])
def test_a_pass_takes_whatever_a_model_can_be_loaded_from(kind: str, tmp_path: Path) -> None:
    proto = linear({"w": random_weight(4, 3)})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    sources: dict[str, Any] = {
        "path": path, "text": str(path), "proto": proto, "graph": gs.import_onnx(proto), "model": Model.load(proto),
    }  # fmt: skip
    if kind == "ir":
        sources["ir"] = pytest.importorskip("onnx_ir").from_proto(proto)
    result = Renames()(sources[kind])
    assert (result.model.graph.name, result.changed, result.report) == ("renamed", True, {"was": "linear"})


def test_a_pass_without_a_call_cannot_be_made() -> None:
    class Empty(Pass):
        """Does nothing."""

    with pytest.raises(TypeError, match="call"):
        Empty()  # type: ignore[abstract]


@pytest.mark.parametrize(("name", "home"), BUILT_IN.items())
def test_a_pass_of_this_package_is_found_by_its_name_and_handed_on_by_the_package(name: str, home: str) -> None:
    found = get_pass(name)
    assert found.name == name
    assert getattr(passes, home.partition(":")[2]) is found


def test_what_the_package_hands_on_is_there_and_nothing_else_is() -> None:
    assert all(hasattr(passes, name) for name in passes.__all__)
    assert {home.partition(":")[2] for home in BUILT_IN.values()} < set(passes.__all__)
    with pytest.raises(AttributeError, match=r"module 'sift_onnx\.passes' has no attribute 'Wider'"):
        passes.Wider  # noqa: B018


def test_every_pass_of_this_package_is_among_its_passes() -> None:
    for module in pkgutil.walk_packages(passes.__path__[:1], "sift_onnx.passes."):
        importlib.import_module(module.name)
    waiting, concrete = [Pass], set()
    while waiting:
        waiting.extend(subclasses := waiting.pop().__subclasses__())
        concrete |= {c for c in subclasses if c.__module__.startswith("sift_onnx.") and not c.__name__.startswith("_")}
    assert {c for c in concrete if not inspect.isabstract(c)} == {get_pass(name) for name in BUILT_IN}


def test_a_transform_imports_nothing_that_it_does_not_need() -> None:
    program = "import sys, sift_onnx; sift_onnx.transform; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "sift_onnx.passes.wide" in loaded
    others = {
        "sift_onnx.passes.doped",
        "sift_onnx.passes.layerwise.base",
        "sift_onnx.feature_maps",
        "yaml",
        "onnxruntime",
    }
    assert not others & set(loaded)


def test_a_registered_pass_is_found_and_named_where_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_module, "_REGISTERED", dict(base_module._REGISTERED))
    assert register_pass(Renames) is Renames
    assert get_pass("renames") is Renames
    with pytest.raises(UsageError, match=r"no pass 'wider'; the passes are .*renames.*wide"):
        get_pass("wider")


def test_a_pass_that_returns_no_result_is_refused_with_what_it_has_to_return() -> None:
    class Forgetful(Renames):
        name: ClassVar[str] = "forgetful"

        def call(self, model: Model) -> PassResult:
            return super().call(model).model  # type: ignore[return-value]

    with pytest.raises(PluginError, match=r"the pass 'forgetful' of .*test_base returns Model and not PassResult; let"):
        Forgetful()(model())


def test_a_pass_that_changes_nothing_returns_the_very_model() -> None:
    plain = model()
    result = UnshareInitializers()(plain)
    assert result.model is plain
    assert not result.changed


# What a model went through.


def test_the_transforms_are_listed_oldest_first() -> None:
    plain = model()
    assert history(plain) == []
    record(plain, {"pass": "wide", "sparsity": "0.5"})
    record(plain, {"pass": "prune", "only": ["a", "b"]})
    assert history(plain) == [{"pass": "wide", "sparsity": "0.5"}, {"pass": "prune", "only": ["a", "b"]}]


def test_the_history_survives_a_file(tmp_path: Path) -> None:
    plain = model()
    record(plain, {"pass": "wide", "sparsity": "0.5"})
    plain.save(tmp_path / "m.onnx")
    assert history(Model.load(tmp_path / "m.onnx")) == [{"pass": "wide", "sparsity": "0.5"}]


def test_the_entry_does_not_depend_on_the_order_of_the_settings() -> None:
    first, second = model(), model()
    record(first, {"pass": "wide", "seed": 1})
    record(second, {"seed": 1, "pass": "wide"})
    assert first.metadata == second.metadata


def test_a_transform_is_recognised_by_all_its_settings() -> None:
    settings = {"pass": "wide", "sparsity": "0.5", "only": ["a"]}
    plain = model()
    assert not already_applied(plain, settings)
    record(plain, settings)
    assert already_applied(plain, dict(settings))


def test_the_same_transform_with_other_settings_is_refused_and_says_which() -> None:
    plain = model()
    record(plain, {"pass": "wide", "sparsity": "0.5", "seed": 0})
    with pytest.raises(PreconditionError, match=r"'wide' already, with sparsity='0\.5'; transform the original model"):
        already_applied(plain, {"pass": "wide", "sparsity": "0.9", "seed": 0})
    with pytest.raises(PreconditionError, match="with round_to=None"):
        already_applied(plain, {"pass": "wide", "sparsity": "0.5", "seed": 0, "round_to": 8})


def test_another_transform_is_no_obstacle() -> None:
    plain = model()
    record(plain, {"pass": "prune", "sparsity": "0.9"})
    assert not already_applied(plain, {"pass": "wide", "sparsity": "0.5"})
    record(plain, {"pass": "wide", "sparsity": "0.5"})
    assert already_applied(plain, {"pass": "wide", "sparsity": "0.5"})
    assert already_applied(plain, {"pass": "prune", "sparsity": "0.9"})


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[1]", '{"pass": "wide"}', '["wide"]', '[{"sparsity": 1}]', "null", '[{"pass": null}]'),
        *('[{"pass": "wide", "made": 3}]', '[{"pass": "wide", "made": [[]]}]', "1" * 5000, "[" * 100_000),
    ],
)
def test_a_damaged_history_is_named(text: str) -> None:
    plain = model()
    plain.metadata[HISTORY_KEY] = text
    for use in (history, lambda m: record(m, {"pass": "wide"}), lambda m: already_applied(m, {"pass": "wide"})):
        with pytest.raises(ModelReadError, match=rf"'{HISTORY_KEY}' is damaged"):
            use(plain)
    assert plain.metadata[HISTORY_KEY] == text


def test_recording_does_not_touch_the_other_metadata() -> None:
    plain = model()
    plain.metadata["author"] = "someone"
    record(plain, {"pass": "wide"})
    assert plain.metadata["author"] == "someone"
    assert json.loads(plain.metadata[HISTORY_KEY]) == [{"pass": "wide"}]
