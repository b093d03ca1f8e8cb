"""Algorithms from numbers, dictionaries, lists and YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sift_onnx.errors import SiftError, UsageError
from sift_onnx.training.sparse import (
    GMP,
    SET,
    Group,
    RigL,
    SparsityAlgorithm,
    Static,
    configure,
    default_sparse_param_filter,
)

YAML = """
algorithm: rigl
sparsity: 0.75
init_method: random
drop_fraction: {type: cosine, init: 0.3, half_period: 17209}
update: {freq: 500, stop: 17209}
param_filter: ['*proj_[qkv]_dense_layer.weight', '*linear_layer.weight']
"""


class EveryOther(SparsityAlgorithm):
    """A user's own algorithm."""

    def __init__(self, sparsity: float = 0.5, offset: int = 0, **kwargs: Any) -> None:
        super().__init__(sparsity, **kwargs)
        self.offset = offset

    def update(self, optimizer: Any = None) -> None:
        self.step += 1


def only(config: Any) -> SparsityAlgorithm:
    group = configure(config)
    assert isinstance(group, Group)
    assert len(group) == 1
    return group[0]


def test_a_number_is_static() -> None:
    algorithm = only(0.3)
    assert isinstance(algorithm, Static)
    assert algorithm.sparsity.default(0) == 0.3  # type: ignore[misc]


@pytest.mark.parametrize("key", ["sparsity", "schedule"])
def test_a_dictionary_names_algorithm_and_arguments(key: str) -> None:
    algorithm = only({"algorithm": "SET", key: 0.9, "update": {"freq": 100}, "drop_fraction": 0.2, "seed": 5})
    assert isinstance(algorithm, SET)
    assert algorithm.drop_fraction(0) == 0.2
    assert algorithm.seed == 5
    assert algorithm.update_schedule(100)


def test_a_list_makes_one_algorithm_each() -> None:
    group = configure([0.5, {"algorithm": "gmp", "schedule": [0.1, 0.2], "param_filter": "fc1.*"}, {"sparsity": None}])
    assert group is not None
    assert [type(member) for member in group.members] == [Static, GMP]


@pytest.mark.parametrize(
    "config",
    [
        {"groups": {"algorithm": "rigl", "params": {"sparsity": 0.9, "seed": 3}}},
        {"groups": [{"algorithm": "rigl", "params": {"sparsity": 0.9}, "seed": 3}]},
    ],
)
def test_nested_groups_and_params_are_flattened(config: Any) -> None:
    algorithm = only(config)
    assert isinstance(algorithm, RigL)
    assert algorithm.seed == 3


def test_a_recipe_of_the_model_zoo_reads_from_text_and_file(tmp_path: Path) -> None:
    path = tmp_path / "sparsity.yaml"
    path.write_text(YAML)
    for config in (YAML, path, str(path)):
        algorithm = only(config)
        assert isinstance(algorithm, RigL)
        assert algorithm.update_schedule.stop == 17209
    assert isinstance(only("0.9"), Static)


def test_a_users_algorithm_is_found_by_its_class_name_in_lower_case() -> None:
    algorithm = only({"algorithm": "everyother", "sparsity": 0.5, "offset": 1, "seed": 2})
    assert isinstance(algorithm, EveryOther)
    assert algorithm.offset == 1
    assert algorithm.seed == 2


def test_type_is_the_old_name_of_algorithm() -> None:
    with pytest.warns(DeprecationWarning, match="old name"):
        assert isinstance(only({"type": "rigl", "sparsity": 0.5}), RigL)


def test_a_sparsity_of_none_asks_for_nothing() -> None:
    assert configure({"algorithm": "rigl", "sparsity": None}) is None


def test_masks_that_come_with_the_model_need_no_number() -> None:
    assert only({"algorithm": "rigl", "sparsity": "masks"}).sparsity.default is None


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"algorithm": "rigl"}, KeyError, "no 'sparsity'; its keys are"),
        ({"sparsity": 0.5, "schedule": 0.5}, ValueError, "another name of"),
        ({"algorithm": "prune", "sparsity": 0.5}, ValueError, "unknown; choose one of .*gmp, imp, .*rigl, set, static"),
        ({"algorithm": "group", "sparsity": 0.5}, ValueError, "unknown"),
        ({"algorithm": "rigl", "sparsity": 0.5, "frequency": 3}, ValueError, "no setting 'frequency'; it has .*update"),
        ({"sparsity": 0.5, "param_filter": lambda name, p: True}, TypeError, "a glob or a list of globs"),
        ({"sparsity": 1}, ValueError, "a float such as 0.9, not 1"),
        (0, ValueError, "a float such as 0.9, not 0"),
        (None, TypeError, "not a sparsity configuration"),
        (True, TypeError, "not a sparsity configuration"),
        (object(), TypeError, "not a sparsity configuration"),
        ("rigl", ValueError, "give a number, a mapping or a list"),
        ("{a: [", ValueError, "not YAML"),
        ("nowhere.yaml", ValueError, "cannot read nowhere.yaml"),
        ({"algorithm": "rigl", "sparsity": 0.5, "compat": "tf"}, ValueError, "compat 'tf' is unknown"),
        ({"algorithm": "rigl", "sparsity": 0.5, "distribution": "er"}, ValueError, "choose one of uniform, erk"),
        ({"algorithm": "rigl", "sparsity": 0.5, "pattern": "4:2"}, ValueError, "leaves 4 of 2"),
        ({"algorithm": "rigl", "sparsity": 2}, ValueError, "sparsity 2 is out of range"),
        ({"algorithm": "gmp", "sparsity": [0.1, -0.2]}, ValueError, "sparsity -0.2 is out of range"),
        ({"algorithm": "gmp", "sparsity": 0.5}, ValueError, "would never change a mask"),
    ],
)
def test_what_is_no_configuration_is_refused(config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        configure(config)
    assert isinstance(caught.value, SiftError)


def test_python_objects_in_yaml_are_not_made() -> None:
    with pytest.raises(UsageError, match="not YAML"):
        configure("!!python/object/apply:os.getcwd []")


@pytest.mark.parametrize(
    ("name", "shape", "sparse"),
    [
        ("fc.weight", (4, 4), True),
        ("fc.bias", (4,), False),
        ("Embedding.weight", (4, 4), False),
        ("layer.Norm.weight", (4, 4), False),
        ("lm_head.weight", (4, 4), False),
        ("x.pe_helper.w", (4, 4), False),
        ("conv.weight", (4, 4, 3, 3), True),
    ],
)
def test_embeddings_norms_heads_and_vectors_stay_dense_by_default(name: str, shape: Any, sparse: bool) -> None:
    assert default_sparse_param_filter(name, torch.empty(shape)) is sparse
    assert not default_sparse_param_filter(name, None)
