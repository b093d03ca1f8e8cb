"""From an ONNX graph to a workload: every weighted node becomes a CSR matrix times activations.

A convolution is the CSR matrix of its kernel times the im2col matrix of its input. The zeros of a weight are those of
its mask; a weight without a mask counts as pruned if a tenth of it is zero, and as dense otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.analysis.first_and_last import first_and_last
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.backends.dataflow.workloads.matrix_maps import IndexMap, conv_maps, conv_transpose_maps, matrix_maps
from sift_onnx.backends.dataflow.workloads.pattern import FullPattern, Pattern, StoredPattern
from sift_onnx.backends.dataflow.workloads.weightless_costs import VIEWS, cost_of
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, Uncosted, WeightlessOp, Workload
from sift_onnx.errors import UsageError
from sift_onnx.graphs.constants import MaskedConstant, shape_of, sparse_weight_of, value_pieces
from sift_onnx.model import Model, ModelLike
from sift_onnx.operators.labels import node_name
from sift_onnx.operators.traits import RECURRENT
from sift_onnx.shapes.input_binding import BoundInputs
from sift_onnx.weights.sparse import index_dtype

__all__ = ["KnownWeights", "lower", "lower_at"]

# A weight without a mask counts as pruned from this share of zeros on; below, indices cost more than the zeros save.
_PRUNED_FROM = 0.1


@dataclass
class KnownWeights:
    """What has been found out about the weights of a model, whatever the shapes of its inputs.

    Attributes:
        patterns: matrix and non-zeros of each, by its name and the index of its node.
        fixed: those that are fixed functions; None before the first analysis.
    """

    patterns: dict[tuple[str, int], tuple[Pattern, IndexMap]] = field(default_factory=dict)
    fixed: Mapping[str, str] | None = None


def lower(
    model: ModelLike, batch: int | None = None, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> Workload:
    """What ``model`` asks of a machine.

    Args:
        model: anything that :meth:`Model.load` takes.
        batch: items that are processed together; the model's own, or 1, by default. A model that was exported at one
            batch is taken to work alike at any other: every activation grows in proportion.
        input_shapes: sizes of dynamic axes.

    Raises:
        UsageError: an input shape is missing or wrong, or ``batch`` is below 1.
        ModelReadError: the model cannot be read.
        UnsupportedError: the graph contradicts itself, or its local functions cannot be inlined.
    """
    if batch is not None and not isinstance(batch, Integral):
        raise UsageError(f"batch is {batch!r}; it must be a whole number")
    if batch is not None and batch < 1:
        raise UsageError(f"batch is {batch}; it must be at least 1")
    loaded, _ = store_computed_parameters(inline_bodies(Model.load(model)))
    return lower_at(loaded, input_shapes, batch)


def lower_at(
    loaded: Model,
    input_shapes: Mapping[str, Sequence[int]] | BoundInputs | None = None,
    batch: int | None = None,
    *,
    known: KnownWeights | None = None,
    caches: Collection[str] = (),
) -> Workload:
    """As :func:`lower`, of a model that is lowered at several shapes.

    Args:
        loaded: the model, computed parameters stored.
        input_shapes: as :func:`analyze` takes them.
        batch: see :func:`lower`.
        known: of weights that have been looked at; those that were not are added.
        caches: inputs that stay where they are, so that to append to one writes what is new.
    """
    known = known or KnownWeights()
    analysis = analyze(loaded, input_shapes, fixed=known.fixed)
    known.fixed = analysis.fixed
    own = _own_batch(loaded, analysis)
    scale = Fraction(int(batch) if batch is not None else own, own)
    roles = first_and_last(analysis)
    products: list[SparseProduct] = []
    lookups: list[WeightlessOp] = []
    for layer in analysis.layers.values():
        if layer.kind == "embedding":
            lookups.extend(_lookups(layer, analysis, scale))
        else:
            is_first = roles.get(layer.name) == "first layer"
            products.extend(_products(layer, analysis, scale, known, needs_input_gradient=not is_first))
    weightless, uncosted = _weightless(analysis, scale, caches)
    name = loaded.path.name if loaded.path is not None else str(loaded.graph.name or "model")
    assumptions = (f"exported at batch {own}; every activation scaled by {scale}",) if scale != 1 else ()
    return Workload(
        name=name,
        batch=batch if batch is not None else own,
        products=tuple(products),
        weightless=(*lookups, *weightless),
        uncosted=uncosted,
        assumptions=(*analysis.inputs.said, *assumptions),
        inputs=analysis.inputs,
    )


def _own_batch(model: Model, analysis: AxisAnalysis) -> int:
    for tensor in model.graph.inputs:
        axes = analysis.axes.get(tensor.name)
        if axes:
            return max(1, analysis.system.original(axes[0].size))
    return 1


def _scaled(elements: int, scale: Fraction) -> int:
    return math.ceil(elements * scale)


def _products(
    layer: WeightLayer, analysis: AxisAnalysis, scale: Fraction, known: KnownWeights, needs_input_gradient: bool
) -> list[SparseProduct]:
    """One product per node that multiplies by the weight."""
    original = analysis.system.original
    shape = tuple(original(axis.size) for axis in layer.axes)
    if not math.prod(shape):
        return []
    products = []
    for use in layer.uses:
        node = analysis.order[use.index]
        key = layer.name, use.index
        if key not in known.patterns:
            forward, backward = _maps(layer, node, shape)
            known.patterns[key] = _pattern(layer.constant, shape, forward), backward
        pattern, backward = known.patterns[key]
        sizes = [original(size) for size in use.positions]
        sequential = 1
        if use.op in RECURRENT and len(node.inputs) > 2 and node.inputs[2].name == layer.name:
            # The recurrent weight meets one time step after the other.
            sequential, sizes = sizes[0], sizes[1:]
        products.append(
            SparseProduct(
                name=layer.name,
                node=use.node,
                op=use.op,
                kind=layer.kind,
                pattern=pattern,
                gradient_map=backward,
                tokens=_scaled(math.prod(sizes), scale),
                sequential=sequential,
                needs_input_gradient=needs_input_gradient,
            )
        )
    return products


def _maps(layer: WeightLayer, node: gs.Node, shape: tuple[int, ...]) -> tuple[IndexMap, IndexMap]:
    if layer.kind not in ("conv", "depthwise"):
        return matrix_maps(shape, layer.out_axis, layer.in_axis)
    groups = int(node.attrs.get("group", 1))
    if node.op == "ConvTranspose":
        return conv_transpose_maps(shape, _transposed_out(layer), 1 - _transposed_out(layer), groups)
    strides = node.attrs.get("strides") or [1] * (len(shape) - 2)
    return conv_maps(shape, layer.out_axis, layer.in_axis, groups, [int(s) for s in strides])


def _transposed_out(layer: WeightLayer) -> int:
    """The axis of the kernel that counts the output channels of one group."""
    # Of a depthwise convolution the analysis names the channels as the output, since inputs and outputs are tied.
    return layer.in_axis if layer.kind == "depthwise" else layer.out_axis


def _pattern(constant: gs.Constant, shape: tuple[int, ...], index_map: IndexMap) -> Pattern:
    indices = _active(constant)
    zeros = math.prod(shape) - len(indices)
    pruned = isinstance(constant, MaskedConstant) or zeros >= _PRUNED_FROM * math.prod(shape)
    # An all-zero weight without a mask is one that is still to be trained.
    return StoredPattern(index_map, indices) if zeros and len(indices) and pruned else FullPattern(index_map)


def _active(constant: gs.Constant) -> npt.NDArray[Any]:
    """Flat positions of the active weights, ascending; without their values, which no cycle depends on."""
    weight = sparse_weight_of(constant)
    if weight is not None:
        return weight.indices
    size = math.prod(shape_of(constant))
    dtype = index_dtype(size)
    parts: list[npt.NDArray[Any]] = []
    start = 0
    for piece in value_pieces(constant):
        parts.append((np.flatnonzero(piece) + start).astype(dtype))
        start += len(piece)
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _lookups(layer: WeightLayer, analysis: AxisAnalysis, scale: Fraction) -> list[WeightlessOp]:
    lookups = []
    for use in layer.uses:
        node = analysis.order[use.index]
        written = _elements(analysis, node.outputs[:1])
        if written is None:
            continue
        table = math.prod(analysis.system.original(axis.size) for axis in layer.axes)
        copied = _scaled(written[0], scale)
        lookups.append(WeightlessOp(use.node, use.op, "lookup", 0, copied, copied, table_elements=table))
    return lookups


def _weightless(
    analysis: AxisAnalysis, scale: Fraction, caches: Collection[str]
) -> tuple[tuple[WeightlessOp, ...], tuple[Uncosted, ...]]:
    costed = {use.index for layer in analysis.layers.values() for use in layer.uses}
    costed |= {product.index for product in analysis.products}
    ops: list[WeightlessOp] = []
    uncosted: list[Uncosted] = []
    for product in analysis.products:
        node = analysis.order[product.index]
        macs = _scaled(math.prod(analysis.system.original(size) for size in product.factors), scale)
        read = _elements(analysis, [t for t in node.inputs if not isinstance(t, gs.Constant)]) or []
        made = _elements(analysis, node.outputs[:1]) or []
        ops.append(
            WeightlessOp(product.node, node.op, "product", macs, _scaled(sum(read), scale), _scaled(sum(made), scale))
        )
    for index, node in enumerate(analysis.order):
        if index in costed or _is_free(node, analysis):
            continue
        label = node_name(node)
        if any(isinstance(value, gs.Graph) for value in node.attrs.values()):
            uncosted.append(Uncosted(label, node.op, "its subgraphs are not looked into"))
            continue
        operands = [t for t in node.inputs if _is_activation(t, analysis)]
        new = [t for t in operands if t.name not in caches]
        appends = node.op == "Concat" and len(new) < len(operands)
        reads = _elements(analysis, new if appends else operands, unknown=0)
        writes = reads if appends else _elements(analysis, [t for t in node.outputs if t.name])
        if reads is None or writes is None:
            uncosted.append(Uncosted(label, node.op, "its output shape is unknown"))
            continue
        scaled = ([_scaled(n, scale) for n in sizes] for sizes in (reads, writes))
        cost, known = cost_of(node.op, label, dict(node.attrs), *scaled)
        ops.append(cost)
        if not known:
            uncosted.append(Uncosted(label, node.op, "no cost is known of this operator; counted as elementwise"))
    return tuple(ops), tuple(uncosted)


def _is_activation(tensor: gs.Tensor, analysis: AxisAnalysis) -> bool:
    return bool(tensor.name) and not isinstance(tensor, gs.Constant) and tensor.name not in analysis.derived


def _is_free(node: gs.Node, analysis: AxisAnalysis) -> bool:
    """Whether a node costs nothing at run time: a view, a shape computation, or a function of constants alone."""
    if node.op in VIEWS:
        return True
    made = [t.name for t in node.outputs if t.name]
    return all(name in analysis.derived or name in analysis.elements for name in made)


def _elements(analysis: AxisAnalysis, tensors: Sequence[gs.Tensor], unknown: int | None = None) -> list[int] | None:
    """Elements of each tensor; None where a shape is unknown, unless ``unknown`` is to stand for it."""
    sizes: list[int] = []
    for tensor in tensors:
        axes = analysis.axes.get(tensor.name)
        if axes is None:
            if unknown is None:
                return None
            sizes.append(unknown)
        else:
            sizes.append(math.prod(analysis.system.original(axis.size) for axis in axes))
    return sizes
