"""Modules of ``to_torch`` through pickle, torch's files and copies."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from training.test_importer import SMALL, batch_norm, build, inputs_of

import sift_onnx
from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.models import ARCHITECTURES, export
from sift_onnx.training import register_kernel, registry, sparse
from sift_onnx.training.module import ImportedModule


def through_pickle(module):
    return pickle.loads(pickle.dumps(module))


def through_torch(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {"pickle": through_pickle, "torch.save": through_torch, "deepcopy": copy.deepcopy, "copy": copy.copy}


def listed(outputs):
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def assert_same_module(twin, module, inputs):
    for one, other in zip(listed(twin(*inputs)), listed(module(*inputs)), strict=True):
        assert torch.equal(one, other)
    ours, theirs = module.state_dict(), twin.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in twin.named_parameters()]
    assert module.masks.keys() == twin.masks.keys()
    assert all(torch.equal(mask, twin.masks[name]) for name, mask in module.masks.items())
    assert module.feature_axes == twin.feature_axes
    assert module.parameter_paths == twin.parameter_paths
    assert module.training == twin.training
    noted = [[node.meta.get("onnx_node") for node in either.graph.nodes] for either in (module, twin)]
    assert noted[0] == noted[1]


def step(module, inputs):
    """One step of training on the sum of squares; the outputs after it."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    torch.manual_seed(0)
    sum(y.float().square().mean() for y in listed(module.train()(*inputs))).backward()
    optimizer.step()
    with torch.no_grad():
        return listed(module.eval()(*inputs))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "gpt3-small" else pytest.mark.full) for n in SMALL])
def test_every_architecture_comes_back_and_goes_on_training(name, tmp_path):
    """One export for all ways, since it takes seconds."""
    row = ARCHITECTURES[name]
    options = {"layers": 1, "sequence": 8} if "layers" in row.options else {}
    options |= {"width": SMALL[name], "num_classes": 10, "keep_batch_norm": True, "batch": "dynamic"}
    export(name, tmp_path / "m.onnx", **options)
    model = sift_onnx.transform(onnx.load(tmp_path / "m.onnx"), wide=0.75, budget="layer")
    module, inputs = sift_onnx.to_torch(model), inputs_of(row, 2, options.get("sequence"))
    twins = {way: through(module) for way, through in WAYS.items()}

    with torch.no_grad():
        for twin in twins.values():
            assert_same_module(twin, module, inputs)
    shared = twins.pop("copy")
    assert all(ours is theirs for ours, theirs in zip(module.parameters(), shared.parameters(), strict=True))
    written = sift_onnx.write_back(model, module)
    assert all(sift_onnx.write_back(model, twin) == written for twin in twins.values())
    expected = step(module, inputs)
    for twin in twins.values():
        assert all(torch.equal(one, other) for one, other in zip(step(twin, inputs), expected, strict=True))


def conditional():
    """A model with a branch, whose graphs are modules of their own."""
    branches = [
        onnx.helper.make_graph(
            [onnx.helper.make_node(op, ["x", "w"], [f"{op}_y"], op)],
            op,
            [],
            [onnx.helper.make_tensor_value_info(f"{op}_y", onnx.TensorProto.FLOAT, None)],
        )
        for op in ("Add", "Mul")
    ]
    nodes = [
        ("ReduceSum", ["x"], ["total"], {"keepdims": 0}),
        ("Greater", ["total", "zero"], ["positive"], {}),
        ("If", ["positive"], ["y"], {"then_branch": branches[0], "else_branch": branches[1]}),
    ]
    values = {"zero": np.float32(0), "w": np.array([2, 3], np.float32)}
    return sift_onnx.to_torch(build(nodes, {"x": (2,)}, ["y"], values))


@pytest.mark.parametrize("way", WAYS)
def test_branches_come_back(way):
    module = conditional()
    twin = WAYS[way](module)

    for x in (torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])):
        assert torch.equal(twin(x), module(x))


@pytest.mark.parametrize("way", WAYS)
def test_names_that_torch_cannot_take_are_still_the_keys_afterwards(way):
    values = {name: np.full((2, 2), i + 1, np.float32) for i, name in enumerate(["fc", "fc.weight", "onnx::MatMul_3"])}
    nodes = [("MatMul", [f"x{i}", name], [f"x{i + 1}"], {}) for i, name in enumerate(values)]
    module = sift_onnx.to_torch(build(nodes, {"x0": (1, 2)}, ["x3"], values))
    twin = WAYS[way](module)

    assert list(twin.state_dict()) == list(module.state_dict())
    assert set(twin.state_dict()) == set(values)
    twin.load_state_dict({name: tensor + 1 for name, tensor in module.state_dict().items()})
    assert all((twin.state_dict()[name] == i + 2).all() for i, name in enumerate(values))
    if way != "copy":
        assert all((module.state_dict()[name] == i + 1).all() for i, name in enumerate(values))


def squares():
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    return sift_onnx.to_torch(build([("MatMul", ["x", "w"], ["y"], {})], {"x": (1, 4)}, ["y"], {"w": value}))


@pytest.mark.parametrize("way", WAYS)
def test_statistics_go_on_where_they_were(way):
    module = sift_onnx.to_torch(batch_norm()).train()
    x = torch.arange(24.0).reshape(2, 3, 4)
    module(x)
    twin = WAYS[way](module)
    assert twin.training
    if way != "copy":
        module(x)
    twin(x)

    ours, theirs = module.state_dict(), twin.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class Summed(ImportedModule):
    """A kind of a user's own."""

    def total(self):
        return sum(p.sum() for p in self.parameters())


@pytest.mark.parametrize("way", WAYS)
def test_a_class_of_ones_own_stays(way):
    module = squares()
    own = Summed(module.graph, dict(module.named_parameters()), module.parameter_paths)
    twin = WAYS[way](own)

    assert isinstance(twin, Summed)
    assert twin.total() == own.total() == 120
    assert torch.equal(twin(torch.ones(1, 4)), module(torch.ones(1, 4)))


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_a_module_with_an_algorithm_is_refused_with_what_to_save_in_its_place(way):
    module = squares()
    sparse.attach(sparse.RigL(sparsity=0.5), module, torch.optim.SGD(module.parameters(), lr=0.1))

    with pytest.raises(UsageError, match=r"state_dict\(\)"):
        WAYS[way](module)


def test_any_module_with_an_algorithm_is_refused():
    module = torch.nn.Linear(4, 4)
    algorithm = sparse.Static(sparsity=0.5)
    algorithm.apply(module)

    for thing in (module, algorithm):
        with pytest.raises(UsageError, match=r"state_dict\(\)"):
            pickle.dumps(thing)
    assert pickle.loads(pickle.dumps(sparse.Static(sparsity=0.5))).step == 0


def odd():
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Odd", ["x"], ["y"], "odd", domain="test.pickle")],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2,))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2,))],
    )
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("test.pickle", 1)]
    return sift_onnx.to_torch(onnx.helper.make_model(graph, opset_imports=sets, ir_version=8))


@pytest.fixture
def known_kernels():
    """The kernels without those that a test registers; these are forgotten after it."""
    before = registry._KERNELS.snapshot()
    yield before
    registry._KERNELS.restore(before)


def test_a_kernel_of_ones_own_stands_for_its_operator(known_kernels):
    register_kernel("Odd", lambda x: x + 1, domain="test.pickle")
    saved = pickle.dumps(odd())
    assert pickle.loads(saved)(torch.ones(2)).tolist() == [2, 2]

    registry._KERNELS.restore(known_kernels)
    with pytest.raises(UnsupportedError, match=r"test\.pickle::Odd.*register_kernel"):
        pickle.loads(saved)


def one_more(x):
    return x + 1


def test_an_importable_kernel_of_ones_own_stands_for_itself(known_kernels):
    register_kernel("Odd", one_more, domain="test.pickle")
    saved = pickle.dumps(odd())

    registry._KERNELS.restore(known_kernels)
    assert pickle.loads(saved)(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.usefixtures("known_kernels")
def test_a_kernel_of_this_package_is_the_one_that_is_registered_where_it_is_read():
    module = sift_onnx.to_torch(build([("LeakyRelu", ["x"], ["y"], {})], {"x": (2,)}, ["y"], {}))
    saved = pickle.dumps(module)
    register_kernel("LeakyRelu", lambda x, alpha=0.01: x + 1, since=6)

    assert pickle.loads(saved)(torch.ones(2)).tolist() == [2, 2]
    assert module(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.usefixtures("known_kernels")
def test_a_kernel_without_a_name_that_was_replaced_is_refused_by_its_node():
    register_kernel("Odd", lambda x: x + 1, domain="test.pickle")
    module = odd()
    register_kernel("Odd", lambda x: x + 2, domain="test.pickle")

    with pytest.raises(UsageError, match=r"node 'odd'.*top of a module"):
        pickle.dumps(module)


@pytest.mark.full
def test_another_process_reads_it(tmp_path):
    torch.save(conditional(), tmp_path / "m.pt")
    code = "import sys, torch; print(torch.load(sys.argv[1], weights_only=False)(torch.tensor([1.0, 2.0])).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.pt"], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["[3.0,", "5.0]"]
