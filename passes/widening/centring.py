"""Features whose mean is zero, where a normalization subtracts it: the stream that it reads is centred.

The mean of ``D`` features is another one than that of the ``d`` old ones among them, unless it is zero. Where only
such normalizations read a residual stream, its mean has no effect, and all that writes to the stream may be centred:
columns of output products, their biases, rows of embeddings (Ashkboos et al., SliceGPT, 2024, section 3.2). That costs
nothing.

What cannot be centred where it is stored (weights under a mask, an embedding that the head shares, a product of
activations) is centred when it is computed: ``x - mean(x) * m``, where ``m`` is ``D / d`` at old features and zero at
added ones. If others see the mean, or that takes as many nodes, it is done right before the normalizations. So it is
where the mean is over positions as well (a group normalization of one group): the means of single positions are seen.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.graphs.constants import constant_values
from sift_onnx.operators.traits import REARRANGING
from sift_onnx.passes.widening.centring_nodes import insert_centring, is_centred_by_nodes
from sift_onnx.passes.widening.centring_writers import Written, written_by

__all__ = ["Centring"]

# Sums and moves: if what they read is centred, so is what they give.
_STREAM = REARRANGING | {
    *("Add", "AveragePool", "Cast", "Concat", "Dropout", "Expand", "Gather", "GlobalAveragePool", "ReduceMean"),
    *("ReduceSum", "Slice", "Split", "Sub", "Sum"),
}
# Inputs other than the first of these say how, not what.
_MOVES_FIRST = _STREAM - {"Add", "Concat", "Sub", "Sum"}


@dataclass
class _Stream:
    """Tensors that are sums and parts of each other.

    Attributes:
        wanted: those that have to be centred.
        writers: those that something else makes.
        is_private: whether their mean has no effect on anything else.
    """

    wanted: list[str] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)
    is_private: bool = True


class Centring:
    """Centres what normalizations read, by weights before anything is resized and by nodes afterwards."""

    def __init__(self, graph: gs.Graph, analysis: AxisAnalysis, maps: FeatureMaps) -> None:
        """Find out what is centred where.

        Args:
            graph: of the original, which is going to be resized.
            analysis: of it.
            maps: where the features of the original lie.
        """
        self._graph = graph
        self._analysis = analysis
        self._maps = maps
        self._tensors: Mapping[str, gs.Tensor] = graph.tensors()
        self._readers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        # Of each tensor that has to be centred: by the axes of the mean, the inputs that it is for.
        self._demands: dict[str, dict[tuple[int, ...], list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for demand in maps.centred:
            name = analysis.order[demand.node].inputs[demand.input].name
            self._demands[name][demand.axes].append((demand.node, demand.input))
        self._outputs = {tensor.name for tensor in graph.outputs}
        self._folded: list[str] = []
        self._at_writers: list[tuple[str, tuple[int, ...]]] = []
        self._at_readers: list[tuple[str, tuple[int, ...]]] = []
        for stream in self._streams():
            self._decide(stream)

    @property
    def centred_by_nodes(self) -> list[str]:
        """Names of the tensors that are centred when they are computed."""
        return list(dict.fromkeys(name for name, _ in (*self._at_writers, *self._at_readers)))

    def centre_weights(self) -> None:
        """Centre what is stored and written to streams whose mean nobody sees; before anything is resized."""
        for name in self._folded:
            written = self._written(name)
            assert written is not None
            written.centre()

    def insert_nodes(self) -> None:
        """Centre all else when it is computed; after everything has been resized."""
        order = self._analysis.order
        for name, axes in self._at_writers:
            insert_centring(self._graph, self._maps, self._tensors[name], axes, None)
        for name, axes in self._at_readers:
            reads = [(order[index], i) for index, i in self._demands[name][axes]]
            insert_centring(self._graph, self._maps, self._tensors[name], axes, reads)

    def _decide(self, stream: _Stream) -> None:
        foldable = [name for name in stream.writers if self._written(name) is not None]
        own = {name: (self._feature_axis(name),) for name in stream.writers} if stream.is_private else {}
        computed = [n for n in own if n not in foldable and not self._is_centred(n, own[n])]
        is_computed = all(self._tensors[name].inputs for name in computed)
        if stream.is_private and is_computed and len(computed) < len(stream.wanted):
            self._folded += foldable
            self._at_writers += [(name, own[name]) for name in computed]
        else:
            wanted = [(name, axes) for name in stream.wanted for axes in self._demands[name]]
            self._at_readers += [(name, axes) for name, axes in wanted if not self._is_centred(name, axes)]

    def _streams(self) -> Sequence[_Stream]:
        if not self._demands:
            return []
        for index, node in enumerate(self._analysis.order):
            for i, tensor in enumerate(node.inputs):
                self._readers[tensor.name].append((index, i))
        seen: set[str] = set()
        streams: list[_Stream] = []
        for name in self._demands:
            if name not in seen:
                streams.append(self._stream_of(name, seen))
        return streams

    def _stream_of(self, start: str, seen: set[str]) -> _Stream:
        stream, width = _Stream(), self._width(start)
        pending = [start]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            stream.is_private &= self._width(name) == width and name not in self._outputs
            if name in self._demands:
                stream.wanted.append(name)
                stream.is_private &= all(self._is_of_features(name, axes) for axes in self._demands[name])
            sources = self._sources(name)
            if not sources:
                stream.writers.append(name)
            pending += sources
            for index, i in self._readers[name]:
                node = self._analysis.order[index]
                wanted = (index, i) in itertools.chain(*self._demands.get(name, {}).values())
                if wanted or node.op == "Shape":
                    continue
                if not self._streams_through(index, i):
                    stream.is_private = False
                    continue
                pending += [tensor.name for tensor in node.outputs if self._maps.grows(tensor.name)]
        return stream

    def _streams_through(self, index: int, i: int) -> bool:
        node = self._analysis.order[index]
        if node.op in ("Mul", "Div"):
            # By one number for all features.
            other = node.inputs[1 - i]
            return (i == 0 or node.op == "Mul") and constant_values(other) is not None and not self._grows(other)
        if node.op not in _STREAM or (i > 0 and node.op in _MOVES_FIRST) or is_centred_by_nodes(node):
            return False
        if self._width(node.inputs[i].name) != self._width(node.outputs[0].name):
            return False  # what is joined, parted or reduced are features
        return self._maps.layer_at(index) is None and index not in self._maps.subtractions

    def _sources(self, name: str) -> list[str]:
        """What a tensor of the stream is a sum or a part of; nothing if it comes from outside."""
        tensor = self._tensors[name]
        if constant_values(tensor) is not None or not tensor.inputs:
            return []
        node = tensor.inputs[0]
        if node.op == "Mul" and self._grows(node.inputs[1]):
            return [node.inputs[1].name] if self._streams_through(self._maps.index_of(node), 1) else []
        if not self._streams_through(self._maps.index_of(node), 0):
            return []
        read = node.inputs[:1] if node.op in _MOVES_FIRST else node.inputs
        return [t.name for t in read if self._maps.grows(t.name)]

    def _grows(self, tensor: gs.Tensor) -> bool:
        return self._maps.grows(tensor.name)

    def _width(self, name: str) -> tuple[int, int] | None:
        """Old and new length of the one axis that grows; None if there are several."""
        growing = [(axis.old, axis.new) for axis in self._maps.extents(name) if axis.grows]
        return growing[0] if len(growing) == 1 else None

    def _feature_axis(self, name: str) -> int:
        return next(axis.axis for axis in self._maps.extents(name) if axis.grows)

    def _is_of_features(self, name: str, axes: Sequence[int]) -> bool:
        """Whether a mean over ``axes`` is one over features alone, at each position by itself."""
        return all(axis.grows or axis.old == 1 for axis in self._maps.extents(name) if axis.axis in axes)

    def _is_centred(self, name: str, axes: Sequence[int]) -> bool:
        """Whether a tensor that something outside of the stream makes has a mean of zero over ``axes`` already."""
        tensor = self._tensors[name]
        return bool(tensor.inputs) and is_centred_by_nodes(tensor.inputs[0], axes)

    def _written(self, name: str) -> Written | None:
        return written_by(self._tensors[name], self._analysis, self._maps)
