"""Recipes as text: what is read, what is refused and how, and that a dump is read back."""

from __future__ import annotations

import onnx_graphsurgeon as gs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes.pipeline import run_recipe
from sift_onnx.recipe import Recipe, Step

MIXED = """\
version: 1
passes:
  - wide: {sparsity: 0.9, keep_dense: ["head.*"], pattern: 2:4}
  - parallel: {sparsity: 0.50, only: ["head.*"], activation: none, seed: 3}
  - unshare-initializers
"""


def test_a_recipe_is_an_ordered_list_of_passes() -> None:
    assert Recipe.parse(MIXED).steps == (
        Step("wide", {"sparsity": 0.9, "keep_dense": ["head.*"], "pattern": "2:4"}),
        Step("parallel", {"sparsity": 0.5, "only": ["head.*"], "activation": "none", "seed": 3}),
        Step("unshare-initializers", {}),
    )


def test_a_dump_is_read_back() -> None:
    recipe = Recipe.parse(MIXED)
    assert Recipe.parse(recipe.dump()) == recipe


@pytest.mark.parametrize("passes", ["", "passes: [wide: {sparsity: 0.5}]"])
def test_a_training_stands_beside_the_passes_or_alone(passes: str) -> None:
    recipe = Recipe.parse(f"version: 1\ntraining: {{epochs: 3, sparsity: {{algorithm: rigl}}}}\n{passes}")
    assert recipe.training == {"epochs": 3, "sparsity": {"algorithm": "rigl"}}
    assert len(recipe.steps) == bool(passes)
    assert Recipe.parse(recipe.dump()) == recipe


def test_a_recipe_without_passes_transforms_nothing() -> None:
    with pytest.raises(UsageError, match="it is for sift-onnx train"):
        run_recipe(Model(gs.Graph()), Recipe.parse("version: 1\ntraining: {epochs: 3}"))


VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.integers(-5, 10**6),
    st.booleans(),
    st.floats(0, 1).map(lambda x: round(x, 6)),
    st.lists(st.sampled_from(["layer1.*", "2:4", "0.5", "1e-5", "no", "a: b", "[x]", "1_000", "-", "007"])),
)


@given(st.dictionaries(st.sampled_from(["sparsity", "only", "pattern", "seed", "2:4"]), VALUES))
def test_any_settings_survive_a_dump(settings: dict[str, object]) -> None:
    recipe = Recipe((Step("wide", settings),))
    assert Recipe.parse(recipe.dump()) == recipe


@pytest.mark.parametrize(
    ("text", "value"),
    [("2:4", "2:4"), ("4:8-transposable", "4:8-transposable"), ("1:30:00", "1:30:00"), ("0.5", 0.5), (".5", 0.5),
     ("5.0e-1", 0.5), ("12", 12), ("'12'", "12"), ("010", "010"), ("1_000", "1_000"), ("true", True)],
)  # fmt: skip
def test_only_decimals_are_numbers(text: str, value: object) -> None:
    (step,) = Recipe.parse(f"version: 1\npasses: [wide: {{pattern: {text}}}]").steps
    assert step.settings["pattern"] == value
    assert type(step.settings["pattern"]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.yaml is not a recipe: it needs the keys version, passes, training"),
        ("- wide", "r.yaml is not a recipe"),
        ("version: 2\npasses: [wide]", "version 2 is unknown; write 'version: 1'"),
        ("passes: [wide]", "version None is unknown"),
        ("version: 1", "'passes' lists one pass or more"),
        ("version: 1\npasses: []", "'passes' lists one pass or more"),
        ("version: 1\npasses: {wide: {}}", "'passes' lists one pass or more"),
        ("version: 1\nsteps: []", "unknown key 'steps'; the keys are version, passes, training"),
        ("version: 1\npasses:\n  - wide: {sparsity: 0.9", "r.yaml, line 3: expected"),
        ("version: 1\ntraining: 5", "r.yaml: 'training' is not a mapping"),
        ("version: 1\ntraining: {epochs: 1}\npasses: []", "'passes' lists one pass or more"),
        ("version: 1\n\tpasses: x", r"r.yaml, line 2: found character '\\t'"),
        ("version: 1\npasses:\n  - wide: {sparsity: 0.9, sparsity: 0.5}", "r.yaml, line 3: 'sparsity' is given twice"),
        ("version: 1\nversion: 1\npasses: [wide]", "line 2: 'version' is given twice"),
        ("version: 1\npasses: [wide: 5]", "r.yaml, pass 1: the settings of 'wide' are not a mapping"),
        ("version: 1\npasses: [wide, {a: 1, b: 2}]", "r.yaml, pass 2: write one pass and its settings"),
        ("version: 1\npasses: [{1: {}}]", "r.yaml, pass 1: the settings of 1"),
        ("version: 1\npasses: [wide: {1: 2}]", "1 is not a name of a setting"),
        ("version: 1\npasses: [{? [a] : 1}]", "unhashable key"),
        ("version: 1\npasses: [&a wide, *a]", "a recipe has no aliases"),
        ("version: 1\npasses: [!!python/object:os.system x]", "could not determine a constructor"),
        ("version: 1\npasses: [wide]\n---\nx", "but found another document"),
        ("[" * 50_000, "its lists are too deep"),
        ("\0", "special characters are not allowed"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused_in_one_line_with_the_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Recipe.parse(text, "r.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_cannot_be_read(tmp_path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_bytes(b"#" * ((1 << 20) + 1))
    for name, message in (("none", "No such file"), ("binary", "not UTF-8"), ("long", "more than 1,048,576 bytes")):
        with pytest.raises(UsageError, match=message):
            Recipe.load(tmp_path / name)
    with pytest.raises(UsageError, match="cannot read"):
        Recipe.load(tmp_path)


def test_a_recipe_says_where_it_is_from(tmp_path) -> None:
    (tmp_path / "r.yaml").write_text(MIXED)
    recipe = Recipe.load(tmp_path / "r.yaml")
    assert recipe.source == str(tmp_path / "r.yaml")
    assert recipe == Recipe.parse(MIXED)
