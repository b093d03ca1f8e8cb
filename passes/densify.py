"""Densify: masks are dropped, for dense fine-tuning after sparse pre-training (SPDF, Thangarasa et al. 2023)."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, ClassVar

import onnx_graphsurgeon as gs
from msgspec.structs import replace

from sift_onnx.analysis.cost import as_counted
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.graphs.constants import array_of, replace_values, stored_values_of
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult, record
from sift_onnx.passes.layer_report import quantized_changes
from sift_onnx.passes.mask_report import describe_masks
from sift_onnx.passes.masking import active_weights
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.settings import NEVER_NOTED, InputShapes

__all__ = ["Densify"]


@dataclass(frozen=True)
class Densify(Pass):
    """Drop every mask: pruned weights become ordinary weights that are zero.

    Ensures: the model computes what it did; no value changes; a model without masks is handed back as it is. Where
    zeros count (``sift-onnx inspect``), they do so until training has filled them.

    Attributes:
        input_shapes: sizes of dynamic axes, for counting multiply-accumulates.
    """

    name: ClassVar[str] = "densify"

    is_noted = True

    _: KW_ONLY
    input_shapes: Annotated[InputShapes, NEVER_NOTED, "shape of an input with dynamic axes"] = field(
        default=None, hash=False
    )

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx densify``."""
        start = time.perf_counter()
        masked = bool(model.masked())
        copy = model.copy() if masked else as_counted(model)
        analysis = analyze(copy, self.input_shapes)
        names = copy.masked().keys()
        before = {name: active_weights(layer) for name, layer in analysis.layers.items()}
        for constant in copy.masked().values():
            _drop_mask(constant)
        after = {name: active_weights(layer) for name, layer in analysis.layers.items()}
        statuses = {name: ("dense", "") if name in names else ("unchanged", "it has no mask") for name in after}
        if masked:
            record(copy, self.identity())
        # Among those of a model with masks, some may have lost theirs.
        others = () if masked else quantized_changes(analysis)
        report = replace(describe_masks(analysis, before, after, statuses, start, others), pass_=self.name)
        return PassResult(copy if masked else model, masked, report.to_dict())


def _drop_mask(constant: gs.Constant) -> None:
    """Turn a masked constant into a plain one in place; what is stored densely stays where it is."""
    stored = stored_values_of(constant)
    replace_values(constant, array_of(constant) if stored is None else stored)
