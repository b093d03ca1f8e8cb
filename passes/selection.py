"""Which weight layers a transform leaves dense."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.analysis.first_and_last import first_and_last
from sift_onnx.analysis.quantized_layers import quantized_layers
from sift_onnx.analysis.unanalyzed_layers import left_out_layers, why_left_out
from sift_onnx.errors import UsageError

__all__ = ["KEPT_DENSE", "NOT_SELECTED", "Selection", "fixed_layers", "left_out_too", "no_layers"]

# Why globs exclude a layer.
KEPT_DENSE, NOT_SELECTED = "kept dense by `keep_dense`", "not selected by `only`"


@dataclass(frozen=True)
class Selection:
    """Globs over initializer names, case-sensitive; ``*`` crosses dots.

    Attributes:
        only: weights that may become sparse; all of them if empty.
        keep_dense: weights that stay dense.
    """

    only: tuple[str, ...] = ()
    keep_dense: tuple[str, ...] = ()

    def dense_layers(self, analysis: AxisAnalysis) -> dict[str, str]:
        """The weight layers that stay dense, and why.

        These are first and last layers, embeddings, fixed functions, and those that the globs say.

        Raises:
            UsageError: a glob matches no weight.
        """
        dense = self.excluded(analysis) | fixed_layers(analysis) | first_and_last(analysis)
        for name, layer in analysis.layers.items():
            if layer.kind == "embedding":
                # An embedding multiplies nothing; one that a layer shares (a language model's head) does.
                shared = any(use.op != layer.uses[0].op for use in layer.uses)
                dense[name] = "tied embedding" if shared else "embedding"
        return dense

    def excluded(self, analysis: AxisAnalysis) -> dict[str, str]:
        """The weight layers that the globs exclude, and which of them.

        Raises:
            UsageError: a glob matches no weight.
        """
        names = list(analysis.layers)
        left_out = left_out_layers(analysis)
        for setting, patterns in (("only", self.only), ("keep_dense", self.keep_dense)):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    missed = [layer for layer in left_out if fnmatchcase(layer.constant.name, pattern)]
                    if missed and setting == "keep_dense":
                        continue  # they stay as they are
                    if missed:
                        raise UsageError(
                            f"`{setting}` {pattern!r} matches only what is left out: {why_left_out(missed)[0]}"
                        )
                    example = ", ".join(repr(name) for name in names[:3]) or "none"
                    raise UsageError(
                        f"`{setting}` {pattern!r} matches no weight of the model; its weights are {example}, ..."
                    )
        excluded: dict[str, str] = {}
        for name in names:
            if any(fnmatchcase(name, p) for p in self.keep_dense):
                excluded[name] = KEPT_DENSE
            elif self.only and not any(fnmatchcase(name, p) for p in self.only):
                excluded[name] = NOT_SELECTED
        return excluded


def fixed_layers(analysis: AxisAnalysis) -> dict[str, str]:
    """The weights that no training has made, and what function each is."""
    return {name: f"a fixed function: {reason}" for name, reason in analysis.fixed.items()}


def left_out_too(analysis: AxisAnalysis) -> str:
    """For the end of a message about layers that were found: those besides that were left out, and why."""
    return "".join(f"; left out besides: {reason}" for reason in why_left_out(left_out_layers(analysis)))


def no_layers(analysis: AxisAnalysis) -> str:
    """Why the analysis of a model has found no weight layer."""
    quantized = quantized_layers(analysis)
    if quantized:
        name = quantized[0].constant.name
        return f"the weights of the model are quantized ({name!r}, ...); transform it before it is quantized"
    reasons = why_left_out(left_out_layers(analysis))
    if reasons:
        return f"every weight layer of the model is left out: {'; '.join(reasons)}"
    return "the model has no weight layer (Conv, Gemm, MatMul with a constant)"
