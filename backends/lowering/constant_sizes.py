"""How large constants become that nodes make of other constants: onnxruntime computes them when it loads a model."""

from __future__ import annotations

import math

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.errors import UnsupportedError
from sift_onnx.files.data_types import bits_of
from sift_onnx.graphs.constants import nbytes_of
from sift_onnx.operators.labels import node_label

__all__ = ["check_constant_sizes"]

# A few bytes can stand for a constant of any size. Weights that are decompressed when a model is loaded pass.
_LARGE = 1 << 31
_GROWTH = 100


def check_constant_sizes(graph: GraphView) -> None:
    """Refuse constants that take more than 2 GiB and a hundred times what the model stores.

    Raises:
        UnsupportedError: there is one; the message names its node.
    """
    most = max(_LARGE, _GROWTH * sum(nbytes_of(constant) for constant in graph.constants.values()))
    for name, index in graph.derived.items():
        dims = graph.dims(name)
        if dims is None or not all(isinstance(size, int) for size in dims):
            continue
        nbytes = math.prod(size for size in dims if isinstance(size, int)) * max(bits_of(graph.elem_type(name)), 8) // 8
        if nbytes > most:
            node = graph.nodes[index]
            raise UnsupportedError(
                f"node {node_label(node)} makes a constant of shape {list(dims)}, which takes "
                f"{nbytes / 2**30:.1f} GiB and is hardly stored; if the model needs it, make it an input"
            )
