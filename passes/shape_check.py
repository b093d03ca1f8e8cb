"""The check at the end of every rewrite: predicted shapes against those that inference finds."""

from __future__ import annotations

from sift_onnx.analysis.axes.solution import Solution
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.analysis.graph_analysis import analyze, known_shapes
from sift_onnx.errors import ShapeCheckError, UnsupportedError
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_label
from sift_onnx.shapes.inference import infer_shapes

__all__ = ["check_shapes"]

_NOTHING_WRITTEN = "nothing was written. Please report the model; `keep_dense` can leave this part as it is"


def check_shapes(model: Model, analysis: AxisAnalysis, solution: Solution) -> None:
    """Compare every predicted shape with what shape inference finds in the rewritten model.

    Sizes that inference leaves open are compared with a new analysis of the rewritten model, both at the input shapes
    of ``analysis``.

    Raises:
        ShapeCheckError: they differ; the message names the node.
    """
    try:
        inferred = infer_shapes(model, analysis.inputs.shapes)
        reanalysed = known_shapes(analyze(model, analysis.inputs.shapes))
    except UnsupportedError as error:
        raise ShapeCheckError(f"the rewritten model contradicts itself: {error}; {_NOTHING_WRITTEN}") from error
    producers = {t.name: n for n in analysis.order for t in n.outputs}
    for name, axes in analysis.axes.items():
        if axes is None:
            continue
        predicted = tuple(solution.value(axis.size) for axis in axes)
        for found in (inferred.get(name), reanalysed.get(name)):
            if found is None or (
                len(found) == len(predicted) and all(f is None or f == p for f, p in zip(found, predicted, strict=True))
            ):
                continue
            node = producers.get(name)
            where = f"node {node_label(node)}" if node is not None else f"tensor {name!r}"
            raise ShapeCheckError(
                f"{where}: {name!r} was to become {list(predicted)}, but is {list(found)} after the rewrite; "
                f"{_NOTHING_WRITTEN}"
            )
