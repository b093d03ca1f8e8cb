"""Every adapter, every pass: the host gives what the pass gives on its own."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from hosts.cases import HOSTS, PASSES, changed_by, content, copy_of, network, outputs, passes_of

from sift_onnx.passes.base import Pass

Run = Callable[[list[Pass], onnx.ModelProto], onnx.ModelProto]


def with_onnx_ir(passes: list[Pass], proto: onnx.ModelProto) -> onnx.ModelProto:
    from sift_onnx.hosts.onnx_ir import SiftPass

    model = onnx_ir.from_proto(proto)
    # Three steps, of which the second finds nothing to do and ends it.
    manager = onnx_ir.passes.PassManager([SiftPass(passes[-1])], steps=3)
    if len(passes) > 1:
        manager = onnx_ir.passes.Sequential(*map(SiftPass, passes[:-1]), manager)
    result = manager(model)
    assert result.model is model
    assert result.modified
    return onnx_ir.to_proto(model)


def with_onnxscript(passes: list[Pass], proto: onnx.ModelProto) -> onnx.ModelProto:
    from onnxscript.rewriter import rewrite

    from sift_onnx.hosts.onnxscript import layer_rules

    (pass_,) = passes
    # Rules see layers, not what a pass prepares first.
    first = (
        "inference-mode",
        "inline-functions",
        "lift-constants",
        "store-computed-parameters",
        "unshare-initializers",
    )
    for prepare in first:
        proto = PASSES[prepare]()(proto).model.to_proto()
    rules = layer_rules(pass_)
    result = rewrite(proto, rules)
    assert content(rewrite(result, rules)) == content(result)
    return result


def with_graphsurgeon(passes: list[Pass], proto: onnx.ModelProto) -> onnx.ModelProto:
    from sift_onnx.hosts.graphsurgeon import apply, export_onnx

    graph = gs.import_onnx(proto)
    for pass_ in passes:
        graph = apply(pass_, graph)
    assert isinstance(graph, gs.Graph)
    return export_onnx(graph)


def with_qonnx(passes: list[Pass], proto: onnx.ModelProto) -> onnx.ModelProto:
    modelwrapper = pytest.importorskip("qonnx.core.modelwrapper")
    from sift_onnx.hosts.qonnx import SiftTransformation

    model = modelwrapper.ModelWrapper(copy_of(proto))
    for pass_ in passes:
        cleaned = model.transform(SiftTransformation(pass_))
        model = model.transform(SiftTransformation(pass_), cleanup=False)
    for got, expected in zip(outputs(cleaned.model), outputs(model.model), strict=True):
        assert got.tobytes() == expected.tobytes()
    return model.model


RUN: dict[str, Run] = {
    "onnx_ir": with_onnx_ir,
    "onnxscript": with_onnxscript,
    "graphsurgeon": with_graphsurgeon,
    "qonnx": with_qonnx,
}
CELLS = [(host, name) for host in RUN for name in HOSTS[host]]


@pytest.mark.parametrize(("host", "name"), CELLS)
def test_a_host_gives_what_the_pass_gives(host: str, name: str) -> None:
    proto = network()
    before = proto.SerializeToString(deterministic=True)
    made = RUN[host](passes_of(name), proto)
    assert content(made) == content(changed_by(passes_of(name), proto))
    onnx.checker.check_model(made, full_check=True)
    assert outputs(made)[0].shape == (1, 4, 8, 8)
    assert proto.SerializeToString(deterministic=True) == before
