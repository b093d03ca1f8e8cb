import sys

import pytest

from sift_onnx.errors import MissingExtraError, UsageError
from sift_onnx.models import ARCHITECTURES, build
from sift_onnx.models.registry import example_inputs, find


def test_near_matches_are_listed_for_an_unknown_name():
    with pytest.raises(UsageError, match=r"'resnet19'; did you mean resnet18"):
        find("resnet19")
    with pytest.raises(UsageError, match="resnet18-cifar"):
        find("ResNet18_CIFAR")


def test_all_names_are_listed_where_none_is_near():
    with pytest.raises(UsageError, match=", ".join(ARCHITECTURES)):
        find("vgg")


def test_missing_torch_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"^[^\n]*pip install 'sift-onnx\[train\]'$"):
        build("resnet18")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_row_builds_its_model_and_its_inputs(name):
    torch = pytest.importorskip("torch")
    row = ARCHITECTURES[name]
    model = build(name, device="meta")
    inputs = example_inputs(row, 2)
    assert row.name == name
    assert not model.training
    assert len(inputs) == len(row.inputs)
    assert inputs[0].shape == (2, *row.input_shape)
    with torch.device("meta"):
        outputs = model(*(tensor.to("meta") for tensor in inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(row.outputs)
    assert all(output.shape[0] == 2 for output in outputs)
    anchors = 9 if name.startswith("retinanet") else 1
    assert row.num_classes * anchors in outputs[0].shape


def test_example_sequences_have_the_length_that_is_asked_for():
    pytest.importorskip("torch")
    inputs = example_inputs(ARCHITECTURES["bert-small"], 3, 5)
    assert [tuple(tensor.shape) for tensor in inputs] == [(3, 5)] * 3


def test_initial_weights_depend_on_the_seed_alone():
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build("resnet18-cifar", width=0.125, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    second = build("resnet18-cifar", width=0.125, seed=3).state_dict()
    other = build("resnet18-cifar", width=0.125, seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_layers_and_sequence_are_options_of_language_models():
    pytest.importorskip("torch")
    assert [name for name, row in ARCHITECTURES.items() if "layers" in row.options] == [
        "gpt3-small",
        "gpt3-medium",
        "gpt3-1.3b",
        "bert-small",
    ]
    model = build("bert-small", device="meta", layers=2, sequence=600)
    assert len(model.bert.encoder.layer) == 2
    assert model.bert.embeddings.position_embeddings.weight.shape[0] == 600


def test_an_option_that_the_architecture_does_not_have_is_refused():
    with pytest.raises(UsageError, match="resnet18 has no option heads; it takes zero_init_residual"):
        build("resnet18", heads=True)
