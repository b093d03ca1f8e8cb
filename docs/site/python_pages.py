"""Pages of the Python interface: which modules are public. What a page says is in the docstrings."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

__all__ = ["PUBLIC", "python_pages"]

# What pipelines of others import: every name in the ``__all__`` of these is public.
PUBLIC = (
    "sift_onnx",
    "sift_onnx.errors",
    "sift_onnx.model",
    "sift_onnx.passes",
    "sift_onnx.recipe",
    "sift_onnx.analysis.findings",
    "sift_onnx.analysis.graph_analysis",
    "sift_onnx.analysis.rule_context",
    "sift_onnx.analysis.rule_registry",
    "sift_onnx.feature_maps.context",
    "sift_onnx.feature_maps.findings",
    "sift_onnx.feature_maps.maps",
    "sift_onnx.feature_maps.registry",
    "sift_onnx.feature_maps.search",
    "sift_onnx.graphs.constants",
    "sift_onnx.graphs.constant_tensors",
    "sift_onnx.weights.sparse",
    "sift_onnx.weights.masked_values",
    "sift_onnx.training",
    "sift_onnx.training.sparse",
    "sift_onnx.training.trainer",
    "sift_onnx.backends.base",
    "sift_onnx.backends.dataflow",
    "sift_onnx.backend",
    "sift_onnx.models",
    "sift_onnx.hosts.graphsurgeon",
    "sift_onnx.hosts.olive",
    "sift_onnx.hosts.onnx_ir",
    "sift_onnx.hosts.onnxscript",
    "sift_onnx.hosts.qonnx",
    "sift_onnx.compat.deepsparse",
)


def python_pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of each public module; mkdocstrings fills them."""
    for name in PUBLIC:
        members = ", ".join(public for public in importlib.import_module(name).__all__ if public != "__version__")
        options = f"    options:\n      members: [{members}]\n      show_root_heading: false\n      heading_level: 2\n"
        yield name, f"# {name}\n\n::: {name}\n{options}"
