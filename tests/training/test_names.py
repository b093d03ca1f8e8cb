"""Attribute paths: every set of names gets paths that torch takes, and keeps its names wherever that is possible."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from sift_onnx.training.importing.names import attribute_paths
from sift_onnx.training.module import ImportedModule

SEGMENTS = st.sampled_from(["a", "b", "weight", "0", "", "_", "float", "class", "a_", 'q"', "n\n", "onnx::Conv_1", "é"])
NAMES = st.lists(st.lists(SEGMENTS, min_size=1, max_size=3).map(".".join), unique=True, max_size=12)


@given(NAMES)
@settings(max_examples=150, deadline=None)
def test_every_set_of_names_is_the_keys_of_a_state_dict(names):
    paths = attribute_paths(names, reserved=["b"])
    graph = fx.Graph()
    graph.output(tuple(graph.get_attr(paths[name]) for name in names))
    module = ImportedModule(graph, {name: nn.Parameter(torch.tensor(float(i))) for i, name in enumerate(names)}, paths)

    assert len(set(paths.values())) == len(names)
    assert {key: int(tensor) for key, tensor in module.state_dict().items()} == {n: i for i, n in enumerate(names)}
    assert [int(tensor) for tensor in module()] == list(range(len(names)))
    module.load_state_dict({name: torch.tensor(-1.0) for name in names})
    assert all(int(tensor) == -1 for tensor in module())


def test_ordinary_names_are_their_own_paths():
    names = ["layer1.0.conv1.weight", "fc.weight", "fc.bias", "onnx::MatMul_12", "/model/Constant_output_0"]

    assert attribute_paths(names) == {name: name for name in names}


def test_a_name_above_others_gives_way():
    paths = attribute_paths(["fc", "fc.weight"])

    assert paths["fc.weight"] == "fc.weight"
    assert paths["fc"] != "fc"
