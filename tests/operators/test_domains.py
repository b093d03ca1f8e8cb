"""``ai.onnx`` is the standard domain's other name: a model whose nodes have it is treated as the one without."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from nets import Net

import sift_onnx
from sift_onnx.analysis import rule_registry
from sift_onnx.analysis.rule_registry import register_axis_rule, rule_for
from sift_onnx.feature_maps import registry
from sift_onnx.feature_maps.registry import feature_map_rule, feature_map_rule_for
from sift_onnx.model import Model
from sift_onnx.operators.domains import canonical_domain, full_domain
from sift_onnx.passes import Doped, Factorized, FoldBatchNorm, LowRank, Parallel, Prune, Wide
from sift_onnx.passes.base import HISTORY_KEY

# Folders that a package installs among its own, and a checkout has beside it.
SUBPACKAGES = ("passes", "backends", "models")


def network() -> Net:
    """Convolutions with normalization, a pooling, shape arithmetic and matrix products."""
    net = Net(opset=17)
    x = net.conv(net.input("x", 1, 3, 8, 8, declared=["n", 3, 8, 8]), 3, 16, 3, name="stem")
    x = net.conv(net.op("Relu", x), 16, 24, 3, name="a")
    values = np.linspace(0.5, 1.5, 24).astype(np.float32)
    channels = [net.constant(values, name) for name in ("scale", "shift", "mean", "variance")]
    x = net.op("Relu", net.op("BatchNormalization", x, *channels))
    x = net.conv(x, 24, 24, 3, name="b")
    x = net.op("GlobalAveragePool", net.op("Relu", x))
    size = net.op("Gather", net.op("Shape", x), net.constant(np.int64(0), "zero"), axis=0)
    size = net.op("Unsqueeze", size, net.constant(np.array([0]), "axes"))
    x = net.op("Reshape", x, net.op("Concat", size, net.constant(np.array([-1]), "rest"), axis=0))
    net.output(net.dense(net.op("Relu", net.dense(x, 24, 32, name="c")), 32, 5, name="d"), "n", 5)
    return net


def named(model: onnx.ModelProto, domain: str) -> onnx.ModelProto:
    """The model with a domain in every node, and perhaps its operator set."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        node.domain = domain
    return copy


@pytest.fixture(params=["nodes", "nodes and operator set"])
def pair(request):
    """A model without a domain, and the same with ``ai.onnx``."""
    plain = network().model()
    other = named(plain, "ai.onnx")
    if request.param != "nodes":
        other.opset_import[0].domain = "ai.onnx"
    return plain, other


def without_domains(model: Model) -> onnx.ModelProto:
    proto = named(model.to_proto(), "")
    proto.opset_import[0].domain = ""
    return proto


@pytest.mark.parametrize(
    "pass_",
    [
        Wide(0.5, budget="layer"),
        Wide(0.5, init="embed"),
        Parallel(0.5),
        Factorized(0.5),
        Doped(0.5),
        LowRank(1),
        Prune(0.5),
        FoldBatchNorm(),
    ],
    ids=lambda pass_: f"{pass_.name} {getattr(pass_, 'init', '')}",
)
def test_passes_do_the_same(pair, pass_):
    plain, other = (pass_(Model.load(model)) for model in pair)
    assert plain.changed
    assert without_domains(other.model) == without_domains(plain.model)
    assert other.model.metadata[HISTORY_KEY] == plain.model.metadata[HISTORY_KEY]


def test_what_is_counted_and_simulated_is_the_same(pair):
    plain, other = (sift_onnx.inspect(model).to_dict() for model in pair)
    assert plain == other
    plain, other = (sift_onnx.simulate(model, fidelity="functional").to_dict() for model in pair)
    assert plain["totals"] == other["totals"]
    assert [layer["name"] for layer in plain["layers"]] == [layer["name"] for layer in other["layers"]]


def test_what_runs_is_the_same(pair):
    feeds = network().feeds
    plain, other = (sift_onnx.InferenceSession(model, threads=1) for model in pair)
    assert [p.placement for p in plain.placements] == [p.placement for p in other.placements]
    for one, two in zip(plain.run(None, feeds), other.run(None, feeds), strict=True):
        assert np.array_equal(one, two)


def test_what_is_trained_is_the_same(pair):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(network().feeds["x"])
    plain, other = (sift_onnx.to_torch(model) for model in pair)
    assert list(plain.state_dict()) == list(other.state_dict())
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in other.named_parameters()]
    with torch.no_grad():
        assert torch.equal(plain(x), other(x))


def test_rules_are_found_by_either_name():
    given = [("ai.onnx", "OneOfMine"), ("", "AnotherOfMine")]
    registries = (rule_registry.RULES, registry.RULES)
    before = [rules.snapshot() for rules in registries]
    for domain, op in given:
        register_axis_rule(op, lambda ctx: None, domain=domain)
        feature_map_rule(op, domain=domain)(lambda ctx: None)
    for _, op in given:
        for domain in ("", "ai.onnx", None):
            assert rule_for(op, domain) is not None
            assert feature_map_rule_for(op, domain) is not None
    for rules, entries in zip(registries, before, strict=True):
        rules.restore(entries)


def test_domains_have_one_name_in_reports():
    assert [full_domain(d) for d in (None, "", "ai.onnx", "com.microsoft")] == [*["ai.onnx"] * 3, "com.microsoft"]


def test_other_domains_stay_what_they_are():
    assert [canonical_domain(d) for d in (None, "", "ai.onnx", "com.microsoft")] == ["", "", "", "com.microsoft"]


def folder_of(name: str) -> Path:
    return Path(str(importlib.import_module(f"sift_onnx.{name}").__file__)).parent


def test_names_of_domains_are_spelled_in_one_file():
    """Elsewhere they come from there, so that no comparison forgets that the standard domain has two names."""
    package = Path(sift_onnx.__file__).parent
    sources = [*package.rglob("*.py"), *(p for name in SUBPACKAGES for p in folder_of(name).rglob("*.py"))]
    assert len(sources) > 300
    spelled = {
        path.name
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("ai.onnx", "ai.onnx.ml", "com.microsoft")
    }
    assert spelled == {"domains.py"}
