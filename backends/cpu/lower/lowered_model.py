"""A model once it is lowered: all that a program needs of it, whether it was read from the model or from a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.plan import Plan
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.lower.weights import packed_rows, packed_weights, quad_weights
from sift_onnx.backends.lowering.equal_sizes import NOTHING_EQUAL, EqualSizes
from sift_onnx.backends.lowering.specs import LinearLayer, QuantizedMatmul, Recurrent
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["LayerWeights", "LoweredModel", "ModelMetadata", "RegionWeights", "weights_of"]

# Of the steps that have any, by their place in a region.
LayerWeights = _kernels.SparseWeights | _kernels.PackedRows | _kernels.QuadWeights
RegionWeights = Mapping[int, LayerWeights]


@dataclass(frozen=True)
class ModelMetadata:
    """What the file says about itself, under onnxruntime's names."""

    graph_name: str
    producer_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class LoweredModel:
    """A plan and what belongs to it.

    Attributes:
        plan: what is run.
        weights: of each part of the plan; none of sub-graphs.
        inputs: of the model.
        outputs: of the model.
        metadata: of the model.
        is_timed: whether onnxruntime may have the whole model, so that the plan can be timed against it.
        is_widened: whether the plan computes in float32 where the model has halves.
        equal: sizes of inputs that the plan takes for one.
    """

    plan: Plan
    weights: tuple[RegionWeights, ...] = field(repr=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: ModelMetadata
    is_timed: bool
    is_widened: bool = False
    equal: EqualSizes = NOTHING_EQUAL


def weights_of(part: Region | Subgraph, isa: str) -> RegionWeights:
    """The packed weights of a part of a plan that was made from a model; none of a sub-graph.

    Args:
        part: of the plan.
        isa: instruction set of the kernels.
    """
    if not isinstance(part, Region):
        return {}
    weights: dict[int, LayerWeights] = {}
    for index, step in enumerate(part.steps):
        if isinstance(step.spec, QuantizedMatmul):
            weights[index] = quad_weights(step.spec)
        elif isinstance(step.spec, (LinearLayer, Recurrent)):
            matrix = step.spec.weights
            weights[index] = packed_weights(matrix) if matrix.values == "float32" else packed_rows(matrix, isa)
    return weights
