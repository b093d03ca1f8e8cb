"""What a layerwise pass does to the layers of a model, for hosts that replace them one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping, Sequence
from typing import NamedTuple

import onnx_graphsurgeon as gs

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.training_mode import in_words, training_nodes
from sift_onnx.errors import PreconditionError
from sift_onnx.graphs.constants import MaskedConstant
from sift_onnx.model import Model, ModelLike
from sift_onnx.passes.base import HISTORY_KEY, already_applied, record
from sift_onnx.passes.layerwise.activations import own_function
from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.layerwise.replacement import Part
from sift_onnx.passes.layerwise.replacement_builder import ReplacementBuilder
from sift_onnx.passes.node_builder import NodeBuilder
from sift_onnx.weights.mask_storage import MASKS_KEY, text_of_masks

__all__ = ["LayerPlan", "NodeNames"]


class NodeNames(NamedTuple):
    """A node by what it is and what it reads and makes; left-out inputs are empty names."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, op: str, inputs: Iterable[str | None], outputs: Iterable[str | None]) -> NodeNames:
        """Those of a node; inputs left out at the end do not count."""
        names = [name or "" for name in inputs]
        while names and not names[-1]:
            names.pop()
        return cls(op, tuple(names), tuple(name for name in outputs if name))


class LayerPlan:
    """Which layers of a model a layerwise pass replaces, and by what."""

    def __init__(self, pass_: LayerwisePass, source: ModelLike) -> None:
        """Decide for the model as it is.

        Raises:
            PreconditionError: a node is in training mode, which rules about layers leave as it is.
            SiftError: see the pass; that it leaves every layer as it is, is none here.
        """
        self._pass = pass_
        self._model = Model.load(source)
        training = training_nodes(self._model.graph)
        if training:
            raise PreconditionError(
                f"the model is not for inference; apply passes.InferenceMode first, since these nodes are in training "
                f"mode: {in_words([entry.node for entry in training])}"
            )
        self._occurrences: dict[frozenset[NodeNames], tuple[LinearLayer, Occurrence]] = {}
        self._left: dict[str, str] = {}
        self._done: dict[str, tuple[ReplacementBuilder, tuple[Part, ...]]] = {}
        self._builder = NodeBuilder(self._model.graph)
        self._own = own_function(self._model.graph)
        self._refusal = ""
        if already_applied(self._model, pass_.identity(), repeatable=True):
            self._refusal = "the model was transformed before, with these settings"
        elif pass_.is_identity():
            self._refusal = pass_.why_identity()
        else:
            self._choose()

    def _choose(self) -> None:
        analysis = analyze(self._model, self._pass.input_shapes)
        chosen = self._pass.choose_layers(self._model, analysis)
        layers = {name: layer for name, layer in chosen.items() if isinstance(layer, LinearLayer)}
        self._left = {name: reason for name, reason in chosen.items() if isinstance(reason, str)}
        self._pass.begin(analysis, layers)
        for layer in layers.values():
            for occurrence in layer.occurrences:
                self._occurrences[frozenset(map(_names_of, occurrence.nodes))] = layer, occurrence

    def occurrence_of(self, nodes: Collection[NodeNames]) -> Occurrence | str:
        """The occurrence that consists of ``nodes``, or why there is none to be replaced."""
        found = self._occurrences.get(frozenset(nodes))
        if found is not None:
            return found[1]
        read = {name for node in nodes for name in node.inputs}
        left = next((f"{name!r}: {reason}" for name, reason in self._left.items() if name in read), "")
        return self._refusal or left or "these nodes are not a linear layer of the model, or have changed since"

    def replace(self, occurrence: Occurrence) -> tuple[list[gs.Node], str]:
        """The nodes that take the place of an occurrence, producers first, and the name of what the last one makes.

        They read what the occurrence reads, and initializers of their own; occurrences of one weight share those.
        """
        layer = next(layer for layer, other in self._occurrences.values() if other is occurrence)
        if layer.name not in self._done:
            builder = self._pass.replacement_builder(self._builder, layer, self._own)
            self._done[layer.name] = builder, self._pass.replace(builder).parts
        builder, parts = self._done[layer.name]
        result = self._pass.connect(builder, occurrence, parts)
        return self._builder.take_nodes(), result.name

    def weights(self) -> list[str]:
        """Names of the weights that took the place of others so far."""
        return [part.constant.name for _, parts in self._done.values() for part in parts]

    def note(self, metadata: MutableMapping[str, str], made: Sequence[str]) -> None:
        """Note in a model's metadata what was done to it, and the masks.

        Args:
            metadata: to be changed.
            made: those of :meth:`weights` that are in the model.
        """
        if not made:
            return
        noted = Model(gs.Graph(), dict(metadata))
        record(noted, self._pass.identity(), made)
        metadata[HISTORY_KEY] = noted.metadata[HISTORY_KEY]
        constants = [part.constant for _, parts in self._done.values() for part in parts]
        new = {c.name: c for c in constants if isinstance(c, MaskedConstant) and c.name in made}
        masked = {**self._model.masked(), **new}
        if masked:
            metadata[MASKS_KEY] = text_of_masks(masked)


def _names_of(node: gs.Node) -> NodeNames:
    return NodeNames.of(node.op, (t.name for t in node.inputs), (t.name for t in node.outputs))
