"""Pages of the Python interface: which modules are public. What a page says is in the docstrings."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator

__all__ = ["PUBLIC", "documented_names", "place_of", "python_pages"]

# What pipelines of others import: every name in the ``__all__`` of these is public.
PUBLIC = (
    "sift_onnx",
    "sift_onnx.api.pages",
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
        public = documented_names(name)
        own = [entry for entry in public if not _is_hidden(name, entry)]
        alone = "    options:\n      heading_level: 3\n"
        hidden = [f"::: {place_of(name, entry)}\n{alone}" for entry in public if entry not in own]
        members = f"      members: [{', '.join(own)}]\n"
        options = f"    options:\n{members}      show_root_heading: false\n      heading_level: 2\n"
        yield name, "\n".join([f"# {name}\n\n::: {name}\n{options}", *hidden])


def documented_names(module: str) -> list[str]:
    """The public names of a module that its page has: all but what is of another package, and the version."""
    found = importlib.import_module(module)
    homes = {name: getattr(getattr(found, name), "__module__", module) for name in found.__all__}
    return [name for name, home in homes.items() if str(home).startswith("sift_onnx") and name != "__version__"]


def place_of(module: str, name: str) -> str:
    """The name under which a page has a public name: where it is defined, if a module of that name hides it."""
    if not _is_hidden(module, name):
        return f"{module}.{name}"
    value = getattr(importlib.import_module(module), name)
    return f"{value.__module__}.{value.__qualname__}"


def _is_hidden(module: str, name: str) -> bool:
    value = getattr(importlib.import_module(module), name)
    is_package = hasattr(importlib.import_module(module), "__path__")
    return not inspect.ismodule(value) and is_package and importlib.util.find_spec(f"{module}.{name}") is not None
