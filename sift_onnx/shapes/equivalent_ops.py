"""Standard nodes that make the same types and shapes as nodes that ONNX infers no shapes for.

These are preprocessing of ai.onnx.ml, as converters of scikit-learn write it, what onnxruntime's optimizers make of
activations, normalizations and layers, what its quantizer makes of operators (for shapes, integers are floats), and
GroupNormalization, a standard operator that onnx infers nothing of. Only operators whose specification leaves no doubt
have an equivalent: Scaler and Normalizer give floats in the shape of their input, whatever its type is. Of attentions,
those without a cache have one, and GroupQueryAttention with a cache that grows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import onnx

from sift_onnx.graphs.node_checks import all_nodes, with_subgraphs
from sift_onnx.operators.domains import MICROSOFT, ML, canonical_domain, is_standard, opset_versions
from sift_onnx.operators.registry import Registry
from sift_onnx.shapes.equivalent_attentions import appended_keys, attended, embedded, node_like, projected_and_attended

__all__ = [
    "equivalent_nodes",
    "forget_recorded_shapes",
    "names_made_by_equivalents",
    "with_canonical_domains",
    "with_equivalent_nodes",
]

# A model that imports no standard operators still gets standard ones.
_OPSET = 13

_ATTENTIONS = ("Attention", "MultiHeadAttention")

_MakeNodes = Callable[[onnx.NodeProto], list[onnx.NodeProto]]


def _same(*outputs: int) -> _MakeNodes:
    """These outputs have the type and the shape of the first input; there are no others."""

    def make(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        named = [i for i, name in enumerate(node.output) if name]
        if not set(named) <= set(outputs):
            return []
        return [node_like(node, "Identity", node.input[:1], [node.output[i]]) for i in named]

    return make


def _floats(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Floats in the shape of the input."""
    return [_cast(node, node.input[0], node.output[0])]


def _fused(op: str, inputs: int, *attributes: str) -> _MakeNodes:
    """``op`` with something behind it that changes no shape; ``attributes`` decide on it."""

    def make(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        bare = node_like(node, op, node.input[:inputs], node.output[:1])
        bare.attribute.extend(attribute for attribute in node.attribute if attribute.name in attributes)
        return [bare]

    return make


def _of_integers(op: str, operands: tuple[int, ...], result: int | None, *attributes: str) -> _MakeNodes:
    """``op`` on what these inputs stand for; ``result`` is the input that is its scale, the zero point is the next.

    Without a result's scale, it is of floats.
    """

    def make(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if len(node.input) <= max(operands):
            return []
        inputs = [f"{node.output[0]}:operand {i}" for i in operands]
        nodes = [_cast(node, node.input[i], name) for i, name in zip(operands, inputs, strict=True)]
        quantization = list(node.input[result : result + 2]) if result is not None else []
        made = f"{node.output[0]}:floats" if any(quantization) else node.output[0]
        bare = node_like(node, op, inputs, [made])
        bare.attribute.extend(attribute for attribute in node.attribute if attribute.name in attributes)
        nodes.append(bare)
        if any(quantization):
            nodes.append(node_like(node, "QuantizeLinear", [made, *quantization], node.output[:1]))
        return nodes

    return make


def _joined_integers(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Concat of every third input from the third on; the first two are the result's scale and zero point."""
    make = _of_integers("Concat", tuple(range(2, len(node.input), 3)), 0, "axis")
    return make(node) if len(node.input) > 2 else []


def _mean_of_integers(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    last = any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    return [] if last else _of_integers("GlobalAveragePool", (0,), 3)(node)


def _average_of_integers(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    last = any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    window = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    return [] if last else _of_integers("AveragePool", (0,), 3, *window)(node)


def _cast(like: onnx.NodeProto, name: str, made: str) -> onnx.NodeProto:
    cast = node_like(like, "Cast", [name], [made])
    cast.attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.FLOAT))
    return cast


def _untransposed_matmul(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A FusedMatMul that is a MatMul times a number; no standard node transposes operands of any rank."""
    flags = ("transA", "transB", "transBatchA", "transBatchB")
    if any(attribute.i for attribute in node.attribute if attribute.name in flags):
        return []
    return [node_like(node, "MatMul", node.input[:2], node.output[:1])]


_EQUIVALENTS: Registry[_MakeNodes] = Registry("an equivalent")
_EQUIVALENTS.add("GroupNormalization", _same(0))
# onnxruntime's optimizers write these two in the standard domain, whatever its version; LayerNormalization is standard
# from 17 on, and then onnx infers it.
_EQUIVALENTS.add("SimplifiedLayerNormalization", _same(0))
_EQUIVALENTS.add("LayerNormalization", _same(0))
_EQUIVALENTS.add_table({"Imputer": _same(0), "Binarizer": _same(0), "Scaler": _floats, "Normalizer": _floats}, ML)
_EQUIVALENTS.add_table(
    {
        **dict.fromkeys(("BiasAdd", "BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "QuickGelu"), _same(0)),
        **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "RotaryEmbedding"), _same(0)),
        # Output 3 is the sum that is normalized; 1 and 2 are statistics, for training.
        **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _same(0, 3)),
        "Attention": projected_and_attended,
        "EmbedLayerNormalization": embedded,
        "GroupQueryAttention": appended_keys,
        "MultiHeadAttention": attended,
        "FusedConv": _fused("Conv", 3, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
        "FusedGemm": _fused("Gemm", 3, "transA", "transB"),
        "FusedMatMul": _untransposed_matmul,
        "QLinearAdd": _of_integers("Add", (0, 3), 6),
        "QLinearMul": _of_integers("Mul", (0, 3), 6),
        "QLinearConcat": _joined_integers,
        "QLinearGlobalAveragePool": _mean_of_integers,
        "QLinearAveragePool": _average_of_integers,
        "QGemm": _of_integers("Gemm", (0, 3), 7, "transA", "transB"),
        "DynamicQuantizeMatMul": _of_integers("MatMul", (0, 1), None),
        "MatMulIntegerToFloat": _of_integers("MatMul", (0, 1), None),
    },
    MICROSOFT,
)


def equivalent_nodes(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """Standard nodes that read what ``node`` reads, and make the same types and shapes; [] where there are none.

    Args:
        node: of any domain.
        opset: version of the standard operators that they belong to; there are none before 6, where Cast
            named types by strings.
    """
    if node.op_type == "LayerNormalization" and is_standard(node.domain) and opset >= 17:
        return []
    if node.op_type in _ATTENTIONS and opset < 13:  # ReduceSum has its axes in another place
        return []
    make = _EQUIVALENTS.find(node.op_type, node.domain)
    return make(node) if make is not None and node.input and opset >= 6 else []


def with_equivalent_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy with equivalent nodes for all nodes that have them, in subgraphs too; to infer shapes of.

    Calls of the model's own functions stay, whatever the functions are named.
    """
    if not any(_replaced(model, node) for node in all_nodes(model.graph.node)):
        return model
    copy = deepcopy(model)
    if "" not in opset_versions(model.opset_import):
        copy.opset_import.add(domain="", version=_OPSET)
    # Inner ones first, since the nodes that hold them are copied.
    for graph in reversed(list(with_subgraphs(copy.graph))):
        nodes = [made for node in graph.node for made in _replaced(copy, node) or [node]]
        del graph.node[:]
        graph.node.extend(nodes)
    return copy


def with_canonical_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy where the standard domain has one name: onnx infers no shapes of its operators by the other.

    onnxruntime runs such a model as any.
    """
    if all(node.domain == canonical_domain(node.domain) for node in all_nodes(model.graph.node)):
        return model
    copy = deepcopy(model)
    for node in all_nodes(copy.graph.node):
        node.domain = canonical_domain(node.domain)
    for entry in copy.opset_import:
        entry.domain = canonical_domain(entry.domain)
    return copy


def names_made_by_equivalents(model: onnx.ModelProto) -> set[str]:
    """What nodes of the main graph make that have equivalents, which make the same shapes, and other numbers."""
    return {name for node in model.graph.node if _replaced(model, node) for name in node.output}


def forget_recorded_shapes(model: onnx.ModelProto) -> None:
    """Drop what a model says of shapes that inference finds by itself: it may be of another batch, or stale.

    For operators of other domains that have no equivalent, it is all that is known, and stays.
    """
    foreign = {
        name
        for node in model.graph.node
        if not is_standard(node.domain) and not _replaced(model, node)
        for name in node.output
    }
    kept = [info for info in model.graph.value_info if info.name in foreign]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    for info in model.graph.output:
        if info.name not in foreign:
            _forget_shape(info.type)


def _forget_shape(kind: onnx.TypeProto) -> None:
    """Drop the shape of a tensor, or of the elements of a sequence or an optional."""
    # To clear a field of another kind would change the kind.
    held = kind.WhichOneof("value")
    if held in ("tensor_type", "sparse_tensor_type"):
        getattr(kind, held).ClearField("shape")
    elif held in ("sequence_type", "optional_type"):
        _forget_shape(getattr(kind, held).elem_type)


def _replaced(model: onnx.ModelProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if any((function.domain, function.name) == (node.domain, node.op_type) for function in model.functions):
        return []
    return equivalent_nodes(node, opset_versions(model.opset_import).get("", _OPSET))
