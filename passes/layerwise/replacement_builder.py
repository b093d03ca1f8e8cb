"""The weights and nodes that replace a linear layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values, shape_of
from sift_onnx.operators.labels import node_name
from sift_onnx.passes.layerwise.activations import NonLinearity, apply_function
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.node_builder import NodeBuilder, part_of
from sift_onnx.sparsity.draw import draw_dense, draw_sparse, energy_per_feature, neutral
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["ReplacementBuilder"]

Like = Literal["layer", "scale", "nothing"]

_EPSILON = 1e-5
# Scale, shift, mean and variance of a BatchNormalization that does nothing.
_NEUTRAL_NORM = (1.0, 0.0, 0.0, 1.0)
_NORM_ROLES = ("weight", "bias", "running_mean", "running_var")
# A Gemm of an older one has to have a bias.
_OPSET_OF_OPTIONAL_BIAS = 11


@dataclass
class ReplacementBuilder:
    """The weights and nodes that replace one linear layer.

    Attributes:
        nodes: adds them to the graph.
        layer: the layer.
        non_linearity: between its parts; None for a linear one.
        fresh: whether weights are random draws, so that trained biases and statistics mean nothing any more.
        seed: of every draw.
        pattern: of every mask.
    """

    nodes: NodeBuilder
    layer: LinearLayer
    non_linearity: NonLinearity | None
    fresh: bool
    seed: int
    pattern: Pattern
    # Parameters that several occurrences share stay shared.
    _made: dict[tuple[str, int], gs.Constant] = field(default_factory=dict, init=False)

    @property
    def has_norm(self) -> bool:
        """Whether a BatchNormalization follows the layer."""
        return any(occurrence.norm is not None for occurrence in self.layer.occurrences)

    # Weights.

    def energy(self, *, rectified: bool) -> float:
        """Sum of squared weights of an output feature, see :func:`~sift_onnx.sparsity.draw.energy_per_feature`.

        Args:
            rectified: whether the weights feed the layer's non-linearity. If they do, a zero-initialised branch does
                not stay zero: its gradient behind a ReLU would be zero, too.
        """
        rectified = rectified and self.non_linearity is not None
        energy = energy_per_feature(self.layer.values(), self.layer.out_axis, rectified=rectified)
        return energy or (2.0 if rectified else 0.0)

    def sparse(self, part: str, shape: Sequence[int], nnz: int, energy: float) -> gs.Constant:
        """A weight under a random mask.

        Args:
            part: what it is called.
            shape: as an operator of the layer's kind reads it.
            nnz: active weights.
            energy: of each output feature.
        """
        name = part_of(self.layer.name, part)
        drawn = draw_sparse(
            name, shape, nnz, self.layer.out_axis, energy, self.layer.dtype, self.seed, pattern=self.pattern
        )
        return self.nodes.constant(name, drawn)

    def dense(self, part: str, shape: Sequence[int], energy: float) -> gs.Constant:
        """A dense weight; arguments as for :meth:`sparse`."""
        name = part_of(self.layer.name, part)
        values = draw_dense(name, shape, self.layer.out_axis, energy, self.layer.dtype, self.seed)
        return self.nodes.constant(name, values)

    def given(self, part: str, values: npt.NDArray[np.floating[Any]] | SparseWeight) -> gs.Constant:
        """A weight of these values, in the type of the layer's weight."""
        if isinstance(values, SparseWeight):
            typed = SparseWeight(values.shape, values.indices, values.values.astype(self.layer.dtype, copy=False))
            return self.nodes.constant(part_of(self.layer.name, part), typed)
        return self.nodes.constant(part_of(self.layer.name, part), values.astype(self.layer.dtype))

    def largest(
        self, values: npt.NDArray[np.floating[Any]], nnz: int, kept: npt.NDArray[np.integer[Any]] | None = None
    ) -> SparseWeight:
        """The ``nnz`` largest of ``values``, which are laid out as a weight of the layer, under the pattern.

        Args:
            values: dense.
            nnz: active weights.
            kept: flat positions that come before all others.
        """
        scores = np.abs(values)
        if kept is not None:
            scores.reshape(-1)[kept] = np.inf
        indices = self.pattern.choose(WeightMatrix.of(values.shape, self.layer.out_axis), nnz, scores)
        return SparseWeight(values.shape, indices, values.reshape(-1)[indices])

    # Nodes.

    def product(
        self, occurrence: Occurrence, weight: gs.Constant, part: str, bias: Literal["none", "outer", "inner"] = "none"
    ) -> gs.Variable:
        """The layer's product with ``weight`` in place of its own.

        Args:
            occurrence: where.
            weight: ``[features, ...]`` in the layout of the layer's weight.
            part: what it is called.
            bias: if the layer has one: ``outer`` adds it, ``inner`` one like it that starts at zero.
        """
        node, name = occurrence.product, self._label(occurrence, part)
        shape = self._output_shape(occurrence, shape_of(weight)[self.layer.out_axis])
        vector = self._bias(occurrence, part, outer=bias == "outer") if bias != "none" else None
        attrs = {} if node.op == "MatMul" else node.attrs
        return self._apply(
            node.op, occurrence.source, weight, vector, attrs, like=node.outputs[0], name=name, shape=shape
        )

    def projection(self, occurrence: Occurrence, hidden: gs.Variable, weight: gs.Constant, part: str) -> gs.Variable:
        """The product of ``hidden`` with ``weight`` at every position, plus the layer's bias if it has one.

        For a convolution that is a 1x1 convolution without strides or groups.
        """
        node, name = occurrence.product, self._label(occurrence, part)
        # The factor of the product is applied once, by the first factor; that of the bias where the bias is.
        attrs = {key: node.attrs[key] for key in ("transB", "beta") if key in node.attrs} if node.op == "Gemm" else {}
        vector = self._bias(occurrence, part, outer=True)
        like = node.outputs[0]
        return self._apply(node.op, hidden, weight, vector, attrs, like=like, name=name, shape=like.shape)

    def _apply(
        self,
        op: str,
        x: gs.Tensor,
        weight: gs.Constant,
        bias: gs.Tensor | None,
        attrs: Mapping[str, Any],
        *,
        like: gs.Variable,
        name: str,
        shape: Sequence[int | str | None] | None,
    ) -> gs.Variable:
        if bias is None and op == "Gemm" and self.nodes.opset < _OPSET_OF_OPTIONAL_BIAS:
            bias = self._zero_bias(weight)
        joined = [bias] if bias is not None and op != "MatMul" else []
        out = self.nodes.node(op, [x, weight, *joined], like=like, name=name, attrs=attrs, shape=shape)
        if bias is None or joined:
            return out
        return self.nodes.node("Add", [out, bias], like=out, name=f"{name}.biased")

    def activate(
        self,
        occurrence: Occurrence,
        x: gs.Variable,
        features: int,
        part: str,
        *,
        gain: float = 1.0,
        like: Like = "layer",
    ) -> gs.Variable:
        """The non-linearity, its BatchNormalization included, after ``x``; arguments as for :meth:`norm`."""
        assert self.non_linearity is not None
        if self.non_linearity.norm:
            x = self.norm(occurrence, x, features, part, gain=gain, like=like)
        label = self._label(occurrence, f"{part}.act")
        return apply_function(self.nodes, self.non_linearity.function, x, self.layer.dtype, label)

    def norm(
        self,
        occurrence: Occurrence,
        x: gs.Variable,
        features: int,
        part: str,
        *,
        gain: float = 1.0,
        like: Like = "layer",
    ) -> gs.Variable:
        """A BatchNormalization of its own.

        Args:
            occurrence: where.
            x: what is normalized.
            features: its channels.
            part: what it is called.
            gain: factor for the second moment of the output.
            like: ``layer`` is like the layer's, ``scale`` too but without its mean and shift; ``nothing``, or a layer
                without a normalization, makes one that does nothing.
        """
        own = occurrence.norm if like != "nothing" else None
        attrs = occurrence.norm.attrs if occurrence.norm is not None else {"epsilon": _EPSILON}
        parameters: list[gs.Tensor] = [x]
        for i, (role, value) in enumerate(zip(_NORM_ROLES, _NEUTRAL_NORM, strict=True)):
            known = own.inputs[i + 1] if own is not None else None
            key = (f"{part}.{role}", id(known))
            if key not in self._made:
                if known is None:
                    stem = part_of(self.layer.name, f"{part}.norm").removesuffix(".weight")
                    # So that dividing by the root of variance + epsilon is dividing by one.
                    filled = value - attrs.get("epsilon", _EPSILON) if role == "running_var" else value
                    name, values = f"{stem}.{role}", np.full(features, filled, dtype=self.layer.dtype)
                else:
                    name, values = part_of(known.name, part), self._kept(known, value)
                    if like == "scale" and role in ("bias", "running_mean"):
                        values = np.zeros_like(values)
                if role == "weight":
                    # A ReLU after a scale of zero passes no gradient: a zero-initialised branch starts at one.
                    values = np.where(values == 0, values.dtype.type(1), values) * values.dtype.type(gain**0.5)
                self._made[key] = self.nodes.constant(name, values)
            parameters.append(self._made[key])
        name = self._label(occurrence, f"{part}.norm")
        return self.nodes.node("BatchNormalization", parameters, like=x, name=name, attrs=attrs)

    def add(self, occurrence: Occurrence, a: gs.Variable, b: gs.Variable, part: str) -> gs.Variable:
        """The sum of two tensors of the layer's output shape."""
        return self.nodes.node("Add", [a, b], like=occurrence.output, name=self._label(occurrence, part))

    def finish(self, occurrence: Occurrence, x: gs.Variable) -> gs.Variable:
        """The layer's own BatchNormalization after ``x``, if it has one."""
        if occurrence.norm is None:
            return x
        values = zip(occurrence.norm.inputs[1:], _NEUTRAL_NORM, strict=True)
        parameters = [x, *(self._outer(known, value) for known, value in values)]
        name = self._label(occurrence, "norm")
        return self.nodes.node("BatchNormalization", parameters, like=x, name=name, attrs=occurrence.norm.attrs)

    def factors(self, occurrence: Occurrence, u: gs.Constant, v: gs.Constant) -> gs.Variable:
        """``V f(U x)``, and the layer's own BatchNormalization after it."""
        hidden = self.product(occurrence, u, "U")
        if self.non_linearity is not None:
            rank = shape_of(u)[self.layer.out_axis]
            hidden = self.activate(occurrence, hidden, rank, "U", like="nothing")
        return self.finish(occurrence, self.projection(occurrence, hidden, v, "V"))

    # What they share.

    def _kept(self, known: gs.Tensor, value: float) -> npt.NDArray[Any]:
        """Values of one of the layer's own parameters: as they are, or neutral in a fresh model."""
        constant = constant_values(known)
        assert constant is not None
        values = array_of(constant)
        return neutral(values, values.shape, value) if self.fresh else np.array(values)

    def _outer(self, known: gs.Tensor, value: float) -> gs.Tensor:
        """One of the layer's own parameters, under its own name."""
        if constant_values(known) is None:
            return known
        key = ("", id(known))
        if key not in self._made:
            mine = {id(node) for occurrence in self.layer.occurrences for node in occurrence.nodes}
            exclusive = isinstance(known, gs.Constant) and all(id(reader) in mine for reader in known.outputs)
            values = self._kept(known, value)
            self._made[key] = gs.Constant(known.name, values) if exclusive else self.nodes.constant(known.name, values)
        return self._made[key]

    def _bias(self, occurrence: Occurrence, part: str, *, outer: bool) -> gs.Tensor | None:
        """The layer's bias, or one of its shape that starts at zero; None where it has none."""
        if occurrence.bias is None:
            return None
        if outer:
            return self._outer(occurrence.bias, 0.0)
        key = (part, id(occurrence.bias))
        if key not in self._made:
            zeros = np.zeros(self.layer.features_out, dtype=self.layer.dtype)
            self._made[key] = self.nodes.constant(part_of(occurrence.bias.name, part), zeros)
        return self._made[key]

    def _zero_bias(self, weight: gs.Constant) -> gs.Constant:
        """A bias of zeros for a product with ``weight``, which has none of its own."""
        key = ("bias", id(weight))
        if key not in self._made:
            zeros = np.zeros(shape_of(weight)[self.layer.out_axis], dtype=self.layer.dtype)
            self._made[key] = self.nodes.constant(f"{weight.name.removesuffix('.weight')}.bias", zeros)
        return self._made[key]

    def _output_shape(self, occurrence: Occurrence, features: int) -> list[int | str | None] | None:
        known = occurrence.product.outputs[0].shape
        if known is None:
            return None
        axis = 1 if self.layer.is_conv else len(known) - 1
        return [features if i == axis else n for i, n in enumerate(known)]

    def _label(self, occurrence: Occurrence, part: str) -> str:
        return f"{node_name(occurrence.product)}.{part}"
