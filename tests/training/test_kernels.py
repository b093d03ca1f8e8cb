"""Kernels: ONNX's own cases of single operators, their gradients, and the registry."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx_node_cases import check, node_cases

from sift_onnx.errors import UnsupportedError
from sift_onnx.training import register_kernel, to_torch
from sift_onnx.training.kernels.spatial.region_alignment import align_regions
from sift_onnx.training.registry import NEWEST_OPSET, find_kernel, kernels

# Cases that this version of onnx has and the kernels compute; onnx 1.23.
CLAIMED = 1723


def model_of(op, inputs, outputs=1, opset=17, domain="", initializers=None, **attributes):
    """A model of one node; inputs are arrays by name, those named in ``initializers`` are stored."""
    stored = initializers or {}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, list(inputs), [f"y{i}" for i in range(outputs)], "n", domain=domain, **attributes)],
        "g",
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in inputs.items()
            if name not in stored
        ],
        [onnx.helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.FLOAT, None) for i in range(outputs)],
        [onnx.numpy_helper.from_array(inputs[name], name) for name in stored],
    )
    opsets = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    return onnx.helper.make_model(graph, opset_imports=opsets)


def outcomes(cases):
    """Names of the cases that pass, and what is wrong with those that do not."""
    passed, wrong = [], {}
    for case in cases:
        try:
            if check(case) is None:
                passed.append(case.name)
        except Exception as error:  # whatever it is, the case is named
            wrong[case.name] = f"{type(error).__name__}: {error}"
    return passed, wrong


@pytest.mark.slow
def test_cases_of_onnx_give_their_outputs():
    passed, wrong = outcomes(list(node_cases().values())[::4])

    assert not wrong
    assert len(passed) > CLAIMED / 5


@pytest.mark.full
def test_every_claimed_case_of_onnx_gives_its_outputs():
    passed, wrong = outcomes(node_cases().values())

    assert not wrong
    if onnx.__version__.startswith("1.23"):
        assert len(passed) >= CLAIMED


def test_no_version_between_opset_11_and_the_newest_is_left_out():
    missing = []
    for op in {entry.op for entry in kernels() if not entry.domain}:
        first = min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, ""))
        for opset in range(max(11, first), min(NEWEST_OPSET, onnx.defs.onnx_opset_version()) + 1):
            try:
                find_kernel(op, "", opset)
            except UnsupportedError as error:
                missing.append(str(error))

    assert not missing


RNG = np.random.default_rng(0)


def randoms(**shapes):
    return {name: RNG.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "opset"),
    [
        ("Conv", randoms(x=(1, 4, 5, 5), w=(4, 2, 3, 3), b=(4,)), {"group": 2, "pads": [1, 0, 2, 1]}, 17),
        (
            "ConvTranspose",
            randoms(x=(1, 2, 3, 3), w=(2, 2, 3, 3), b=(2,)),
            {"strides": [2, 2], "pads": [1, 1, 0, 0]},
            17,
        ),
        ("Gemm", randoms(a=(3, 4), b=(2, 4), c=(2,)), {"transB": 1, "alpha": 0.5, "beta": 2.0}, 17),
        ("MatMul", randoms(a=(2, 3, 4), b=(4, 2)), {}, 17),
        ("Einsum", randoms(a=(2, 3), b=(3, 4)), {"equation": "ij,jk->ik"}, 17),
        ("LayerNormalization", randoms(x=(3, 4), scale=(4,), bias=(4,)), {}, 17),
        ("RMSNormalization", randoms(x=(3, 4), scale=(4,)), {}, 23),
        ("GroupNormalization", randoms(x=(2, 4, 3), scale=(4,), bias=(4,)), {"num_groups": 2}, 21),
        ("InstanceNormalization", randoms(x=(2, 3, 4), scale=(3,), bias=(3,)), {}, 17),
        ("PRelu", randoms(x=(2, 3, 4), slope=(3, 1)), {}, 17),
        ("Add", randoms(x=(2, 3), b=(3,)), {}, 17),
        ("Mul", randoms(x=(2, 3), b=(3,)), {}, 17),
        ("Attention", randoms(q=(1, 2, 3, 4), k=(1, 2, 3, 4), v=(1, 2, 3, 4)), {"is_causal": 1}, 23),
        ("LSTM", randoms(x=(2, 1, 3), w=(1, 8, 3), r=(1, 8, 2), b=(1, 16)), {"hidden_size": 2}, 17),
        ("GRU", randoms(x=(2, 1, 3), w=(1, 6, 3), r=(1, 6, 2), b=(1, 12)), {"hidden_size": 2}, 17),
        ("RNN", randoms(x=(2, 1, 3), w=(1, 2, 3), r=(1, 2, 2), b=(1, 4)), {"hidden_size": 2}, 17),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gradients_of_trainable_operators(op, inputs, attributes, opset):
    stored = [] if op == "Attention" else list(inputs)[1:]
    module = to_torch(model_of(op, inputs, opset=opset, initializers=stored, **attributes))
    data = [torch.from_numpy(value).requires_grad_() for name, value in inputs.items() if name not in stored]
    names = [name for name, _ in module.named_parameters()]
    assert set(names) == set(stored)

    def function(*tensors):
        weights = dict(zip(names, tensors[len(data) :], strict=True))
        return torch.func.functional_call(module, weights, tensors[: len(data)])

    assert torch.autograd.gradcheck(function, (*data, *(p.detach().requires_grad_() for p in module.parameters())))


def test_embedding_tables_have_gradients():
    table = RNG.standard_normal((5, 3))
    module = to_torch(model_of("Gather", {"t": table, "i": np.array([[0, -1], [4, 4]])}, initializers=["t"]))
    module(torch.tensor([[0, -1], [4, 4]])).sum().backward()

    np.testing.assert_array_equal(module.get_parameter("t").grad[:, 0], [1, 0, 0, 0, 3])


@pytest.mark.parametrize("ratio", [0, 3])
@pytest.mark.parametrize("shift", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_inside_and_outside_of_an_image_are_aligned_as_onnxruntime_does(mode, shift, ratio):
    corners = RNG.uniform(-3, 15, (7, 2))
    regions = np.concatenate([corners, corners + RNG.uniform(0.5, 18, (7, 2))], 1)
    inputs = {
        "x": RNG.standard_normal((2, 3, 9, 11)).astype(np.float32),
        "r": regions.astype(np.float32),
        "i": RNG.integers(0, 2, 7),
    }
    attributes = {"mode": mode, "coordinate_transformation_mode": shift, "sampling_ratio": ratio}
    model = model_of("RoiAlign", inputs, output_height=3, output_width=4, spatial_scale=0.5, **attributes)
    model.ir_version = 8
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    found = to_torch(model)(*(torch.from_numpy(value) for value in inputs.values()))

    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_aligned_regions_have_gradients():
    features = torch.from_numpy(RNG.standard_normal((1, 2, 6, 6))).requires_grad_()
    regions = torch.tensor([[1.0, 1.0, 7.3, 8.1]], dtype=torch.float64, requires_grad=True)

    def function(*tensors):
        return align_regions(*tensors, torch.tensor([0]), output_height=2, spatial_scale=0.6, sampling_ratio=2)

    assert torch.autograd.gradcheck(function, (features, regions))


def test_an_unknown_operator_is_named_with_its_node():
    with pytest.raises(UnsupportedError, match=r"node 'n' \(Fancy\): operator my\.domain::Fancy has no torch kernel"):
        to_torch(model_of("Fancy", {"x": np.ones(2, np.float32)}, domain="my.domain"))


def test_an_unknown_attribute_is_named():
    with pytest.raises(UnsupportedError, match=r"node 'n' \(FusedMatMul\): its attribute 'transBatchA'"):
        to_torch(
            model_of(
                "FusedMatMul",
                {"a": np.ones((2, 2), np.float32), "b": np.ones((2, 2), np.float32)},
                domain="com.microsoft",
                transBatchA=1,
            )
        )


def test_a_user_teaches_the_importer_an_operator():
    def twice(x, *, factor=2.0):
        return x * factor

    register_kernel("Twice", twice, domain="test.kernels")
    module = to_torch(model_of("Twice", {"x": np.ones(2, np.float32)}, domain="test.kernels", factor=3.0))

    assert module(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_version_beyond_the_known_ones_is_refused(monkeypatch):
    class Schema:
        since_version = NEWEST_OPSET + 1

    monkeypatch.setattr(onnx.defs, "get_schema", lambda *_: Schema)

    with pytest.raises(UnsupportedError, match=f"changed in opset {NEWEST_OPSET + 1}"):
        find_kernel("Relu", "", NEWEST_OPSET + 1)


@pytest.mark.parametrize("layout", [(6, 8), (6, 8, 5, 5)])
def test_a_normalization_whose_scale_is_one_number_spread_out_has_its_gradient(layout):
    """As dynamo exports one without parameters; torch reads a scale's elements one after the other in memory."""
    x = np.random.default_rng(0).standard_normal(layout).astype(np.float32)
    statistics = {"mean": np.zeros(8, np.float32), "variance": np.ones(8, np.float32)}
    spread = {"scale": np.float32([2]), "shift": np.float32([0.5]), "shape": np.array([8])}
    nodes = [onnx.helper.make_node("Expand", [name, "shape"], [f"{name}s"]) for name in ("scale", "shift")]
    norm = onnx.helper.make_node("BatchNormalization", ["x", "scales", "shifts", "mean", "variance"], ["y"])
    graph = onnx.helper.make_graph(
        [*nodes, norm],
        "spread",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, layout)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, layout)],
        [onnx.numpy_helper.from_array(value, name) for name, value in (statistics | spread).items()],
    )
    module = to_torch(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    weights = torch.randn(layout, generator=torch.Generator().manual_seed(1))
    found, expected = (torch.from_numpy(x.copy()).requires_grad_() for _ in range(2))
    (module.train()(found) * weights).sum().backward()
    normal = torch.nn.functional.batch_norm(
        expected, None, None, torch.full((8,), 2.0), torch.full((8,), 0.5), True, 0.0, 1e-5
    )
    (normal * weights).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("size", [None, 1, [1, 1, 1]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_pieces_of_one_position_have_the_axes_that_onnxruntime_gives_them(size, keepdims):
    """torch's unbind is a split by the number 1 without keepdims, whose axis onnxruntime drops."""
    stored = {} if size is None else {"size": np.array(size)}
    inputs = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), **stored, "at": np.array(2)}
    nodes = [
        onnx.helper.make_node("SplitToSequence", ["x", *stored], ["parts"], axis=1, keepdims=keepdims),
        onnx.helper.make_node("SequenceAt", ["parts", "at"], ["y0"]),
    ]
    model = model_of("Identity", inputs, initializers=[*stored, "at"])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.ir_version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": inputs["x"]})
    assert np.array_equal(to_torch(model)(torch.from_numpy(inputs["x"])).numpy(), expected)


def test_pieces_of_another_size_keep_their_axis():
    """The specification ignores keepdims beside a size; onnxruntime runs no such node."""
    inputs = {"x": np.arange(16, dtype=np.float32).reshape(4, 4), "size": np.array(2), "at": np.array(1)}
    model = model_of("Identity", inputs, initializers=["size", "at"])
    del model.graph.node[:]
    model.graph.node.extend(
        [
            onnx.helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1, keepdims=0),
            onnx.helper.make_node("SequenceAt", ["parts", "at"], ["y0"]),
        ]
    )
    assert np.array_equal(to_torch(model)(torch.from_numpy(inputs["x"])).numpy(), inputs["x"][:, 2:])
