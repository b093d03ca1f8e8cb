"""Layers whose BatchNormalization was folded into them, and what to do about it.

A layer that has taken up its normalization looks like one that never had any. Three things tell them apart:

1. Marks. dynamo's rewriter notes on a node which of its rules made it. TorchScript numbers the weights that it makes,
   onnxruntime and onnxslim name theirs after the fusion. Passes of this package note the weights in the model. Where
   one layer is marked, all that were folded are.
2. Structure, where there are no marks: convolutions that no normalization follows, and more of them than the
   network has normalizations. Folding leaves them a bias or none: dynamo drops one of zeros, as fresh networks have.
3. Depth. A shallow network may have been designed without normalization. It is taken for one where each node is as a
   torch exporter named it, which then folded nothing, and where no convolution has a bias, which a folded
   normalization leaves. A deeper one may have been folded before the export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values, shape_of
from sift_onnx.graphs.walks import origin_of
from sift_onnx.model import Model
from sift_onnx.operators.traits import REARRANGING, RECURRENT, SHAPE_READING
from sift_onnx.operators.weight_operands import BIAS, CONVOLUTIONS, FOLDABLE, WEIGHT
from sift_onnx.passes.base import folded_by_passes, history

__all__ = ["FoldedBatchNorms", "find_folded", "folding_warnings", "starts_at_random", "stored_parameter"]

_CONVOLUTIONS = CONVOLUTIONS & FOLDABLE
# What ends the stretch that a layer's normalization may be in.
_PRODUCTS = FOLDABLE | RECURRENT | {"MatMul", "Einsum"}
_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean"})
# Between the last layer of a head and the model's output there may be these: they give another form or range.
_PRESENTING = REARRANGING | {
    *("Cast", "Concat", "DepthToSpace", "Resize", "Slice", "Split"),
    *("HardSigmoid", "LogSoftmax", "Sigmoid", "Softmax", "Tanh"),
}

_RULE_KEY, _RULE = "pkg.onnxscript.rewriter.rule_name", "FuseBatchNorm"
_EXPORTER_KEY = "pkg.torch.onnx."
_NUMBERED = re.compile(r"onnx::Conv_\d+(_.*)?")
_FUSED = re.compile(r"ConvBnFusion_W_.*|.*/BatchNormalization\w*_output_0_weight")
# The eight convolutions of VGG's configuration A: the authors could train no deeper one from random weights (Simonyan
# and Zisserman, "Very Deep Convolutional Networks", section 3.1).
_SHALLOW = 8

_DRAWING = frozenset({"wide", "parallel", "factorized", "doped", "low-rank"})
_NAMED = 3
# Each of them is tried by tests/training/trainer/test_folded_exports.py.
_WAYS_OUT = (
    "export the original with its BatchNormalization (models export does; torch.onnx.export(model.eval(), ...) does "
    "with dynamo=True, optimize=False, or with dynamo=False, training=TrainingMode.PRESERVE, "
    "do_constant_folding=False), or put it back with passes.InsertBatchNorm(data) before the transform"
)


@dataclass(frozen=True)
class FoldedBatchNorms:
    """The layers of a model that seem to have had a BatchNormalization.

    Attributes:
        nodes: the layers.
        marked: whether the file says so; otherwise it is concluded from the structure.
        normalizations: how many the model has.
        designed: whether the network does without them by design, as far as can be told.
    """

    nodes: tuple[gs.Node, ...]
    marked: bool
    normalizations: int
    designed: bool

    @property
    def weights(self) -> list[str]:
        """Names of the layers' weights; one that several layers share is named once."""
        return list(dict.fromkeys(str(node.inputs[WEIGHT].name) for node in self.nodes))

    @property
    def prevails(self) -> bool:
        """Whether most of the network lacks its normalization."""
        return not self.designed and len(self.weights) > self.normalizations

    def what(self) -> str:
        """What was found, in words."""
        names = self.weights
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} others" if len(names) > _NAMED else "")
        if self.marked:
            return f"the normalization of {listed} was folded into the layers"
        return f"no normalization is behind {listed}, as if an exporter had folded it into the layers"

    def advice(self) -> str:
        """What was found, what that means for a training from random weights, and the ways out; empty if nothing."""
        if not self.prevails and not self.marked:
            return ""
        effect = "the model hardly trains without" if self.prevails else "the model may train worse without"
        return f"{self.what()}, and from random weights {effect}; {_WAYS_OUT}"


def find_folded(model: Model) -> FoldedBatchNorms:
    """The layers of ``model`` whose BatchNormalization seems to have been folded into them."""
    graph = model.graph
    metadata = {name: node.metadata_props for node in model.origin.graph.node for name in node.output}
    notes = {
        id(node): {entry.key: entry.value for entry in metadata.get(node.outputs[0].name, ())}
        for node in graph.nodes
        if node.op in FOLDABLE
    }
    noted = folded_by_passes(model)
    layers = [node for node in graph.nodes if node.op in FOLDABLE and _is_stored(node)]
    marked = [
        node
        for node in layers
        if (_weight(node) in noted or _is_marked(node, notes[id(node)])) and not _is_normalized_at_once(node)
    ]
    normalizations = sum(_is_normalization(node) for node in graph.nodes)
    if marked:
        return FoldedBatchNorms(tuple(marked), True, normalizations, False)
    shown = {id(tensor) for tensor in graph.outputs}
    pooled = _pooled(graph)
    bare = [
        node
        for node in layers
        if node.op in _CONVOLUTIONS
        and not _is_normalized(node)
        and not _is_shown(node.outputs[0], shown)
        and not _is_gate(node, pooled)
    ]
    count = len({_weight(node) for node in bare})
    if count <= normalizations:
        # Exporters fold all or none: those that are left were never there.
        return FoldedBatchNorms((), False, normalizations, True)
    torch = model.origin.producer_name == "pytorch"
    as_exported = torch and all(_is_as_exported(node, notes[id(node)]) for node in bare)
    designed = count <= _SHALLOW and (as_exported or not any(map(_has_bias, bare)))
    return FoldedBatchNorms(tuple(bare), False, normalizations, designed)


def starts_at_random(model: Model) -> bool:
    """Whether a transform put random weights in the place of the model's."""
    # Notes leave out what has its default, which is a random draw.
    return any(entry["pass"] in _DRAWING and entry.get("init", "random") == "random" for entry in history(model))


def folding_warnings(model: Model, init: str) -> list[str]:
    """What a transform has to say of the folded normalizations of ``model``.

    Args:
        model: what came in.
        init: how the transform's new weights start.
    """
    if init != "random" or starts_at_random(model):
        return []
    advice = find_folded(model).advice()
    return [advice] if advice else []


def stored_parameter(tensor: gs.Tensor) -> gs.Constant | None:
    """The constant that a layer's parameter is, perhaps under another name."""
    return constant_values(origin_of(tensor, ("Identity",))[0])


def _weight(node: gs.Node) -> str:
    return str(node.inputs[WEIGHT].name)


def _has_bias(node: gs.Node) -> bool:
    return len(node.inputs) > BIAS and not node.inputs[BIAS].is_empty()


def _is_stored(node: gs.Node) -> bool:
    """Whether weight and bias are in the file, and the bias, if there is one, is a number for each channel."""
    parameters = [stored_parameter(tensor) for tensor in node.inputs[WEIGHT:] if not tensor.is_empty()]
    if not parameters or any(constant is None for constant in parameters):
        return False
    return all(size == 1 for constant in parameters[1:] if constant is not None for size in shape_of(constant)[:-1])


def _is_marked(node: gs.Node, notes: dict[str, str]) -> bool:
    if _RULE in notes.get(_RULE_KEY, ""):
        return True
    if node.op not in _CONVOLUTIONS or not _has_bias(node):
        return False
    # Weights that were computed in another way, from a weight norm say, are numbered too; their biases are not.
    numbered = all(_NUMBERED.fullmatch(node.inputs[i].name) for i in (WEIGHT, BIAS))
    return numbered or _FUSED.fullmatch(_weight(node)) is not None


def _is_as_exported(node: gs.Node, notes: dict[str, str]) -> bool:
    """Whether the node is one that a torch exporter made for a layer of the module, and none has changed since."""
    # TorchScript names nodes after the path of the module.
    return any(key.startswith(_EXPORTER_KEY) for key in notes) or node.name.startswith("/")


def _is_normalization(node: gs.Node) -> bool:
    return bool(node.op.endswith("Normalization")) or node.op == "Selu"


def _is_normalized_at_once(node: gs.Node) -> bool:
    return any(_is_normalization(reader) for reader in node.outputs[0].outputs)


def _is_normalized(node: gs.Node) -> bool:
    """Whether there is a normalization between a layer and the next products."""
    for tensor, reader in _readers(node.outputs[0]):
        if _is_normalization(reader):
            return True
        # A normalization that an exporter took apart subtracts the mean first.
        if reader.op == "ReduceMean" and any(
            other.op == "Sub" and any(read is tensor for read in other.inputs) for other in reader.outputs[0].outputs
        ):
            return True
    return False


def _readers(tensor: gs.Tensor) -> Iterator[tuple[gs.Tensor, gs.Node]]:
    """Nodes that read a tensor or what other operators than products make of it, each with what it reads."""
    seen = {id(tensor)}
    pending = [tensor]
    while pending:
        current = pending.pop()
        for reader in current.outputs:
            yield current, reader
            if reader.op in _PRODUCTS or reader.op in SHAPE_READING:
                continue
            fresh = [output for output in reader.outputs if id(output) not in seen]
            seen.update(map(id, fresh))
            pending.extend(fresh)


def _is_shown(tensor: gs.Tensor, outputs: set[int]) -> bool:
    """Whether the tensor is an output of the model, save for its form and range."""
    if id(tensor) in outputs:
        return True
    readers = [node for node in tensor.outputs if node.op in _PRESENTING]
    return any(_is_shown(output, outputs) for node in readers for output in node.outputs)


def _is_gate(node: gs.Node, pooled: set[int]) -> bool:
    """Whether a layer makes, of features pooled over all positions, factors for others (squeeze and excitation)."""
    return id(node.inputs[0]) in pooled and _scales_others(node.outputs[0])


def _pooled(graph: gs.Graph) -> set[int]:
    """Tensors, by their ids, that are computed from pooled features alone."""
    found: set[int] = set()
    for node in graph.nodes:
        computed = [tensor for tensor in node.inputs if stored_parameter(tensor) is None]
        if node.op in _POOLS or (computed and all(id(tensor) in found for tensor in computed)):
            found.update(map(id, node.outputs))
    return found


def _scales_others(tensor: gs.Tensor) -> bool:
    """Whether a product with something else is the first where what a tensor leads to meets it."""
    own = {id(tensor)}
    pending = [tensor]
    meetings: list[gs.Node] = []
    while pending:
        current = pending.pop()
        meetings.extend(reader for reader in current.outputs if reader.op not in SHAPE_READING)
        # SiLU multiplies a tensor by its own sigmoid: both have to be known first.
        for reader in meetings:
            known = all(id(source) in own or stored_parameter(source) is not None for source in reader.inputs)
            if known and id(reader.outputs[0]) not in own:
                own.update(map(id, reader.outputs))
                pending.extend(reader.outputs)
    foreign = [node for node in meetings if id(node.outputs[0]) not in own]
    return bool(foreign) and all(node.op == "Mul" for node in foreign)
