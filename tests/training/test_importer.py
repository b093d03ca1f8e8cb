"""The importer: names, parameters, modes, shapes, and every architecture against onnxruntime."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.models import ARCHITECTURES, export
from sift_onnx.models.registry import example_inputs

SMALL = {
    "resnet18": 0.0625,
    "resnet50-cifar": 0.0625,
    "mobilenetv2-cifar": 0.25,
    "mobilevit-s-cifar": 0.25,
    "botnet50-cifar": 0.125,
    "gpt3-small": 0.125,
    "bert-small": 0.125,
    "retinanet-resnet18": 0.125,
    "deeplabv3plus-resnet18": 0.125,
}


def build(nodes, inputs, outputs, initializers=(), opset=17):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, ins, outs, f"node{i}", **attrs) for i, (op, ins, outs, attrs) in enumerate(nodes)],
        "g",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in dict(initializers).items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def run(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: x for i, x in zip(session.get_inputs(), feeds, strict=True)})


def inputs_of(row, batch, sequence):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.rand(x.shape, generator=generator) if x.is_floating_point() else torch.ones_like(x)
        for x in example_inputs(row, batch, sequence)
    ]


def check_model(model, inputs):
    """Outputs equal onnxruntime's, every parameter has a gradient, an untrained import is written back as it was."""
    module = sift_onnx.to_torch(model)
    expected = run(model, [x.numpy() for x in inputs])
    with torch.no_grad():
        found = module(*inputs)
    for one, other in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-4 * max(np.abs(other).max(), 1e-3))
    assert sift_onnx.write_back(model, module).SerializeToString() == model.SerializeToString()
    outputs = module.train()(*inputs)
    sum((y * torch.rand_like(y)).sum() for y in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    assert [name for name, p in module.named_parameters() if p.grad is None] == []
    weights = {t.name for t in model.graph.initializer if len(t.dims) > 1 and t.name.endswith("weight")}
    assert weights <= module.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("gpt3-small", "torchscript"),
        *(pytest.param(name, "torchscript", marks=pytest.mark.slow) for name in SMALL if name != "gpt3-small"),
        pytest.param("gpt3-small", "dynamo", marks=pytest.mark.slow),
        *(pytest.param(name, "dynamo", marks=pytest.mark.full) for name in SMALL if name != "gpt3-small"),
    ],
)
def test_architectures(name, exporter, tmp_path):
    row = ARCHITECTURES[name]
    options = {"layers": 1, "sequence": 8} if "layers" in row.options else {}
    options["keep_batch_norm"] = exporter == "torchscript"
    export(name, tmp_path / "m.onnx", width=SMALL[name], num_classes=10, batch="dynamic", exporter=exporter, **options)

    check_model(onnx.load(tmp_path / "m.onnx"), inputs_of(row, 2, options.get("sequence")))


@pytest.mark.parametrize("family", ["wide", "parallel", "factorized", "doped"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "gpt3-small" else pytest.mark.full) for name in SMALL]
)
def test_transforms(name, family, tmp_path):
    row = ARCHITECTURES[name]
    options = {"layers": 1, "sequence": 8} if "layers" in row.options else {}
    options |= {"width": SMALL[name], "num_classes": 10, "keep_batch_norm": True, "batch": "dynamic"}
    export(name, tmp_path / "m.onnx", **options)
    # So narrow a network has no non-zeros to repay its dense layers with.
    settings = {"budget": "layer"} if family == "wide" else {}
    model = sift_onnx.transform(onnx.load(tmp_path / "m.onnx"), **{family: 0.75}, **settings)

    check_model(model, inputs_of(row, 2, options.get("sequence")))
    module, masks = sift_onnx.to_torch(model), sift_onnx.masks(model)
    assert module.masks.keys() == masks.keys()
    assert all(np.array_equal(module.masks[name].numpy(), mask) for name, mask in masks.items())


def test_names_that_torch_cannot_take_are_still_the_keys():
    names = ["fc", "fc.weight", "a..b", "class.x", "float", 'quo"te', ".", "training.x", "onnx::MatMul_3", "a.b.c"]
    values = {name: np.full((2, 2), i + 1, np.float32) for i, name in enumerate(names)}
    nodes = [("MatMul", [f"x{i}", name], [f"x{i + 1}"], {}) for i, name in enumerate(names)]
    model = build(nodes, {"x0": (2, 2)}, [f"x{len(names)}"], values)
    module = sift_onnx.to_torch(model)
    state = module.state_dict()

    assert set(state) == set(names)
    assert all(np.array_equal(state[name], values[name]) for name in names)
    twin = sift_onnx.to_torch(model)
    twin.load_state_dict({name: tensor + 1 for name, tensor in state.items()})
    assert all(np.array_equal(twin.state_dict()[name], values[name] + 1) for name in names)
    inside = torch.nn.Sequential(twin)
    assert set(inside.state_dict()) == {f"0.{name}" for name in names}
    inside.load_state_dict(inside.state_dict())
    assert sift_onnx.write_back(model, module).SerializeToString() == model.SerializeToString()


def test_a_shared_initializer_is_one_parameter():
    nodes = [("MatMul", ["x", "w"], ["h"], {}), ("MatMul", ["h", "w"], ["y"], {})]
    module = sift_onnx.to_torch(build(nodes, {"x": (2, 2)}, ["y"], {"w": np.eye(2, dtype=np.float32)}))

    assert [name for name, _ in module.named_parameters()] == ["w"]


def test_what_identity_renames_is_a_parameter_of_its_own():
    nodes = [
        ("Identity", ["a.weight"], ["b.weight"], {}),
        ("MatMul", ["x", "a.weight"], ["h"], {}),
        ("MatMul", ["h", "b.weight"], ["y"], {}),
    ]
    model = build(nodes, {"x": (2, 2)}, ["y"], {"a.weight": np.eye(2, dtype=np.float32)})
    module = sift_onnx.to_torch(model)

    assert set(module.state_dict()) == {"a.weight", "b.weight"}
    assert sift_onnx.write_back(model, module).SerializeToString() == model.SerializeToString()
    with torch.no_grad():
        module.get_parameter("b.weight").mul_(3)
    written = sift_onnx.write_back(model, module)
    assert {t.name for t in written.graph.initializer} == {"a.weight", "b.weight"}
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(run(written, [x])[0], 3 * x)


def test_weights_in_constant_nodes_are_parameters():
    weight = onnx.numpy_helper.from_array(np.ones((2, 2), np.float32), "value")
    nodes = [("Constant", [], ["w"], {"value": weight}), ("MatMul", ["x", "w"], ["y"], {})]
    model = build(nodes, {"x": (2, 2)}, ["y"])
    module = sift_onnx.to_torch(model)
    with torch.no_grad():
        module.get_parameter("w").mul_(2)
    x = np.ones((2, 2), np.float32)

    np.testing.assert_array_equal(run(sift_onnx.write_back(model, module), [x])[0], module(torch.ones(2, 2)).detach())


def batch_norm(**attributes):
    rng = np.random.default_rng(0)
    names = ("scale", "shift", "mean", "var")
    values = {name: rng.uniform(0.5, 1.5, 3).astype(np.float32) for name in names}
    nodes = [("BatchNormalization", ["x", *names], ["y"], attributes)]
    return build(nodes, {"x": ("n", 3, 4)}, ["y"], values)


def test_batch_norm_updates_its_statistics_as_torch_does():
    module = sift_onnx.to_torch(batch_norm(momentum=0.8, epsilon=1e-3))
    ours = torch.nn.BatchNorm1d(3, eps=1e-3, momentum=0.2)
    state = module.state_dict()
    keys = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "var"}
    ours.load_state_dict({key: state[name].clone() for key, name in keys.items()}, strict=False)
    x = torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(module(x), ours.eval()(x))
    torch.testing.assert_close(module.train()(x), ours.train()(x))
    torch.testing.assert_close(module.state_dict()["mean"], ours.running_mean)
    torch.testing.assert_close(module.state_dict()["var"], ours.running_var)
    assert set(dict(module.named_parameters())) == {"scale", "shift"}


def test_dropout_follows_the_mode_of_the_module():
    module = sift_onnx.to_torch(
        build([("Dropout", ["x", "r"], ["y"], {})], {"x": (64,)}, ["y"], {"r": np.float32(0.5)})
    )
    x = torch.ones(64)

    torch.testing.assert_close(module(x), x)
    assert set(module.train()(x).tolist()) == {0.0, 2.0}


def test_shapes_are_computed_in_host_memory():
    nodes = [
        ("Shape", ["x"], ["s"], {}),
        ("Gather", ["s", "zero"], ["n"], {}),
        ("Unsqueeze", ["n", "axes"], ["n1"], {}),
        ("Concat", ["n1", "rest"], ["target"], {"axis": 0}),
        ("Reshape", ["x", "target"], ["y"], {}),
    ]
    ints = {"zero": np.int64(0), "axes": np.array([0]), "rest": np.array([-1])}
    module = sift_onnx.to_torch(build(nodes, {"x": ("n", 2, 3)}, ["y"], ints))

    assert module(torch.ones(4, 2, 3, device="meta")).shape == (4, 6)
    assert module(torch.ones(7, 2, 3, device="meta")).shape == (7, 6)
    assert list(module.state_dict()) == []


def test_constants_that_are_no_parameters_move_with_the_module_but_are_not_saved():
    mask = np.array([[0, -np.inf], [0, 0]], np.float32)
    module = sift_onnx.to_torch(build([("Add", ["x", "mask"], ["y"], {})], {"x": (2, 2)}, ["y"], {"mask": mask}))

    assert list(module.state_dict()) == []
    assert module.to("meta")(torch.ones(2, 2, device="meta")).shape == (2, 2)


def test_trainable_names_further_parameters():
    model = build([("Mul", ["x", "s"], ["y"], {})], {"x": (2,)}, ["y"], {"s": np.float32(2)})

    assert [n for n, _ in sift_onnx.to_torch(model, trainable=["s"]).named_parameters()] == ["s"]
    with pytest.raises(UsageError, match="matches no floating-point initializer"):
        sift_onnx.to_torch(model, trainable=["nothing*"])


def test_a_copy_is_independent_and_keeps_what_was_attached():
    module = sift_onnx.to_torch(batch_norm())
    module.register_buffer("scale_mask", torch.ones(3, dtype=torch.bool))
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.get_parameter("scale").zero_()
    x = torch.ones(1, 3, 4)

    assert module.get_parameter("scale").ne(0).all()
    assert set(twin.state_dict()) == set(module.state_dict())
    assert not torch.equal(module(x), twin(x))


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
def test_axes_as_attribute_and_as_input(opset):
    attribute = opset < 13
    nodes = [
        ("Unsqueeze", ["x"], ["u"], {"axes": [0]}) if attribute else ("Unsqueeze", ["x", "axes"], ["u"], {}),
        ("Softmax", ["u"], ["s"], {"axis": 2}),
        ("ReduceSum", ["s"], ["y"], {"axes": [0]}) if attribute else ("ReduceSum", ["s", "axes"], ["y"], {}),
    ]
    model = build(nodes, {"x": (2, 3)}, ["y"], {} if attribute else {"axes": np.array([0])}, opset=opset)
    x = np.random.default_rng(0).random((2, 3), dtype=np.float32)

    np.testing.assert_allclose(sift_onnx.to_torch(model)(torch.from_numpy(x)), run(model, [x])[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["gpt3-small", "bert-small"])
def test_dynamic_axes_stay_dynamic_and_new_tensors_are_where_the_inputs_are(name, tmp_path):
    row = ARCHITECTURES[name]
    export(name, tmp_path / "m.onnx", width=0.125, num_classes=10, layers=1, batch="dynamic", sequence="dynamic")
    module = sift_onnx.to_torch(tmp_path / "m.onnx")

    # A tensor on another device than the others is an error there, as it is on a GPU.
    module.to("meta")
    for batch, sequence in ((1, 5), (3, 7)):
        outputs = module(*(x.to("meta") for x in example_inputs(row, batch, sequence)))
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        assert first.shape == (batch, sequence, 10)


def test_sizes_in_single_precision_are_rounded_as_onnxruntime_does():
    """``10 * 0.7`` is 7 in single precision, and a little less in double precision."""
    nodes = [
        ("Shape", ["x"], ["shape"], {"start": 0, "end": 1}),
        ("Cast", ["shape"], ["length"], {"to": onnx.TensorProto.FLOAT}),
        ("Mul", ["length", "factor"], ["part"], {}),
        ("Floor", ["part"], ["whole"], {}),
        ("Cast", ["whole"], ["count"], {"to": onnx.TensorProto.INT64}),
        ("Slice", ["x", "zero", "count"], ["y"], {}),
    ]
    model = build(nodes, {"x": ["n", 3]}, ["y"], {"factor": np.float32(0.7), "zero": np.array([0])})
    x = torch.rand(10, 3)
    assert sift_onnx.to_torch(model)(x).shape == run(model, [x.numpy()])[0].shape == (7, 3)
