"""Files of earlier builds find the kernels that they name, wherever these have moved."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import fx

from sift_onnx.operators.domains import full_domain
from sift_onnx.training.graph_module import LoweredModule
from sift_onnx.training.kernels.released_names import released_names
from sift_onnx.training.registry import kernels

# A line for each kernel: domain, operator, first version, module, function. Lines may be added, none may go.
RELEASED = Path(__file__).with_name("kernel_names.txt").read_text(encoding="utf-8").splitlines()
# What else pickles name.
MACHINERY = {
    "graph_module": ["LoweredModule", "_Kernel", "_Record", "_Reference", "_blank"],
    "host": ["as_tensor"],
    "host_kernels": ["shape", "size"],
    "lowering": ["rounded"],
    "module": ["ImportedModule", "_to_attribute_paths", "_to_initializer_names"],
}

Run = Callable[..., Any]


def released_kernels() -> list[tuple[str, str, Run]]:
    """Module and name under which each kernel of this package was released, and what it is today."""
    runs = {f"{full_domain(k.domain)} {k.op} {k.since}": k.run for k in kernels()}
    lines = [line.rsplit(" ", 2) for line in RELEASED]
    return [(module, name, runs[key]) for key, module, name in lines if module.startswith("sift_onnx.")]


def calling(run: Run) -> LoweredModule:
    """A module that calls ``run``."""
    graph = fx.Graph()
    graph.output(graph.call_function(run, (graph.placeholder("x"),)))
    module = LoweredModule({}, graph)
    module.recompile()
    return module


def test_no_released_kernel_is_dropped_or_renamed() -> None:
    names = {
        f"{full_domain(k.domain)} {k.op} {k.since} {released_names(k.run.__module__)} {k.run.__name__}"
        for k in kernels()
    }

    assert sorted(set(RELEASED) - names) == []


def test_the_identity_of_a_model_has_released_names() -> None:
    for module, name, run in released_kernels():
        assert f"{module.replace('.', '_')}_{name}(x)" in released_names(calling(run).code)


def test_a_pickle_of_an_earlier_build_finds_its_kernels() -> None:
    importable = [(module, name, run) for module, name, run in released_kernels() if "<locals>" not in run.__qualname__]

    assert len(importable) > 100
    for module, name, run in importable:
        assert pickle.loads(f"c{module}\n{name}\n.".encode()) is run


def test_what_else_a_pickle_names_is_found() -> None:
    for module, names in MACHINERY.items():
        for name in names:
            assert pickle.loads(f"csift_onnx.training.{module}\n{name}\n.".encode()).__name__ == name


def test_a_pickle_names_a_kernel_by_its_operator() -> None:
    for _, _, run in released_kernels():
        data = pickle.dumps(calling(run))
        strings = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]

        assert not [text for text in strings if text.startswith("sift_onnx.training.kernels")]
        assert run in [node.target for node in pickle.loads(data).graph.nodes]


def test_classes_of_modules_stand_where_pickles_name_them() -> None:
    modules = {k.run.__module__ for k in kernels() if k.is_module and k.run.__module__.startswith("sift_onnx.")}

    assert modules
    assert {released_names(module) for module in modules} == modules
