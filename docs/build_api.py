"""Pages of the Python interface, made of its docstrings by pdoc: ``python docs/build_api.py build/api``."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

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


def build(folder: Path, modules: tuple[str, ...] = PUBLIC) -> None:
    """Write a page for each of ``modules``, and an index.

    Raises:
        ModuleNotFoundError: pdoc, or what an adapter is for, is not installed: ``pip install -e '.[dev,train]'``.
    """
    import pdoc

    from sift_onnx.passes.base import get_pass, pass_names
    from sift_onnx.passes.declared_settings import resolve_annotations

    for name in modules:
        module = importlib.import_module(name)
        # Names that a package imports on first use are there for pdoc when they have been used.
        vars(module).update({public: getattr(module, public) for public in module.__all__})
    for pass_class in map(get_pass, pass_names()):
        resolve_annotations(pass_class)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sift_onnx"]:
        _import_names_of_annotations(sys.modules[name])
    templates = Path(__file__).parent / "api-templates"
    pdoc.render.configure(docformat="google", show_source=False, template_directory=templates)
    to_html = pdoc.render.env.filters["to_html"]
    # What a docstring abbreviates with Sphinx's `~` is linked by its whole name here.
    pdoc.render.env.filters["to_html"] = lambda text: to_html(text.replace("`~", "`"))
    # A package brings its modules along; those that are public have their turn.
    specs = [spec for name in modules for spec in (name, f"!{re.escape(name)}\\.")]
    pdoc.pdoc(*specs, output_directory=folder)


def _import_names_of_annotations(module: ModuleType) -> None:
    """Import what ``module`` imports for type checkers alone, so that its annotations resolve."""
    if not (module.__file__ or "").endswith(".py"):
        return
    if "ModelLike" in vars(module):  # an alias that has the name of Model in it
        vars(module).setdefault("Model", importlib.import_module("sift_onnx.model").Model)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for imported in [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]:
        for alias in imported.names:
            parent = importlib.import_module(str(imported.module))
            if hasattr(parent, alias.name):
                value = getattr(parent, alias.name)
            else:
                value = importlib.import_module(f"{imported.module}.{alias.name}")
            vars(module)[alias.asname or alias.name] = value


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)  # pdoc's own: an annotation or a name that does not resolve
    build(Path(sys.argv[1]))
