"""Standard nodes that make the same types and shapes as attention and embeddings of onnxruntime's domain."""

from __future__ import annotations

import onnx

__all__ = ["appended_keys", "attended", "embedded", "node_like", "projected_and_attended"]


def node_like(like: onnx.NodeProto, op: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    """A standard node in the place of another; errors of inference name the latter."""
    return onnx.helper.make_node(op, inputs, outputs, name=f"{like.name} ({like.op_type})")


def appended_keys(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What GroupQueryAttention makes of queries and keys that come apart: the cache is longer by the new tokens.

    A cache that has room for them already, as long as it is, has no equivalent.
    """
    heads = next((attribute.i for attribute in node.attribute if attribute.name == "kv_num_heads"), 0)
    if heads < 1 or len(node.input) < 5 or not all(node.input[i] for i in (1, 2, 3, 4)) or any(node.output[3:]):
        return []
    made = [node_like(node, "Identity", node.input[:1], node.output[:1])]
    for new, past, present in zip(node.input[1:3], node.input[3:5], node.output[1:3], strict=False):
        if not present:
            continue
        name = f"{present} ({node.op_type})"
        target = onnx.helper.make_node("Constant", [], [f"{name}:target"], value_ints=[0, 0, heads, -1])
        parted = node_like(node, "Reshape", [new, f"{name}:target"], [f"{name}:parted"])
        turned = node_like(node, "Transpose", [f"{name}:parted"], [f"{name}:turned"])
        turned.attribute.append(onnx.helper.make_attribute("perm", [0, 2, 1, 3]))
        joined = node_like(node, "Concat", [past, f"{name}:turned"], [present])
        joined.attribute.append(onnx.helper.make_attribute("axis", 2))
        made += [target, parted, turned, joined]
    return made


def attended(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What MultiHeadAttention makes of three operands: the tokens of queries, with the channels of values.

    Values are [batch, tokens, channels] or [batch, heads, tokens, channels of a head]. One that returns a cache has no
    equivalent.
    """
    if len(node.input) < 3 or not all(node.input[:3]) or any(node.output[1:]):
        return []
    made = node.output[0]
    axes = {"last": [-1], "batch and tokens": [0, -2]}
    constants = [
        onnx.helper.make_node("Constant", [], [f"{made}:{what}"], value_ints=values) for what, values in axes.items()
    ]
    tokens = node_like(node, "ReduceSum", [node.input[0], f"{made}:last"], [f"{made}:tokens"])
    channels = node_like(node, "ReduceSum", [node.input[2], f"{made}:batch and tokens"], [f"{made}:channels"])
    flat = node_like(node, "Flatten", [f"{made}:channels"], [f"{made}:flat"])
    return [*constants, tokens, channels, flat, node_like(node, "Add", [f"{made}:tokens", f"{made}:flat"], [made])]


def projected_and_attended(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """What Attention makes of tokens and the joined weight of queries, keys and values: as many tokens, of values.

    One that returns a cache has no equivalent.
    """
    if len(node.input) < 2 or any(node.output[1:]):
        return []
    sizes = [n for attribute in node.attribute if attribute.name == "qkv_hidden_sizes" for n in attribute.ints]
    joined, parts, made = f"{node.output[0]}:joined", f"{node.output[0]}:parts", node.output[0]
    target, axis = f"{parts}:target", f"{parts}:axis"
    nodes = [node_like(node, "MatMul", node.input[:2], [joined])]
    if len(sizes) == 3:
        bounds = [
            onnx.helper.make_node("Constant", [], [f"{parts}:{i}"], value_ints=[n])
            for i, n in enumerate((0, sizes[2], 2))
        ]
        return [*nodes, *bounds, node_like(node, "Slice", [joined, *[f"{parts}:{i}" for i in range(3)]], [made])]
    nodes.append(onnx.helper.make_node("Constant", [], [target], value_ints=[0, 0, 3, -1]))
    nodes.append(node_like(node, "Reshape", [joined, target], [parts]))
    nodes.append(onnx.helper.make_node("Constant", [], [axis], value_ints=[2]))
    summed = node_like(node, "ReduceSum", [parts, axis], [made])
    summed.attribute.append(onnx.helper.make_attribute("keepdims", 0))
    return [*nodes, summed]


def embedded(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Rows of the words' table, their sum with those of other tables, and a number for each sequence."""
    if len(node.input) < 3 or not node.input[2] or any(node.output[3:]):
        return []
    made = [node_like(node, "Gather", [node.input[2], node.input[0]], [name]) for name in node.output[::2] if name]
    if len(node.output) > 1 and node.output[1]:
        numbers = f"{node.output[1]}:numbers"
        counted = node_like(node, "ArgMax", node.input[:1], [numbers])
        counted.attribute.extend(onnx.helper.make_attribute(*pair) for pair in (("axis", 1), ("keepdims", 0)))
        cast = node_like(node, "Cast", [numbers], [node.output[1]])
        cast.attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.INT32))
        made += [counted, cast]
    return made
