"""Models whose ``If`` chooses between two graphs by an input, as optimum merges decoders."""

from __future__ import annotations

import onnx

__all__ = ["CONDITION", "merged", "with_other_logits"]

CONDITION = "use_cache_branch"


def merged(model: onnx.ModelProto, other: onnx.ModelProto) -> onnx.ModelProto:
    """What runs ``model`` where :data:`CONDITION` holds, and ``other``, which has its inputs and outputs, elsewhere."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    bodies = [_body(each, suffix) for each, suffix in ((model, ":then"), (other, ":else"))]
    names = [info.name for info in model.graph.output]
    known = {tensor.name for tensor in model.graph.initializer}
    made.graph.initializer.extend(tensor for tensor in other.graph.initializer if tensor.name not in known)
    del made.graph.node[:]
    del made.graph.value_info[:]
    choice = onnx.helper.make_node("If", [CONDITION], names, "choice", then_branch=bodies[0], else_branch=bodies[1])
    made.graph.node.append(choice)
    made.graph.input.append(onnx.helper.make_tensor_value_info(CONDITION, onnx.TensorProto.BOOL, [1]))
    return made


def _body(model: onnx.ModelProto, suffix: str) -> onnx.GraphProto:
    """The nodes of a model, which read its inputs and initializers from outside."""
    own = {name for node in model.graph.node for name in node.output if name}
    body = onnx.GraphProto(name=suffix)
    for node in model.graph.node:
        copy = body.node.add()
        copy.CopyFrom(node)
        for listed in (copy.input, copy.output):
            for place, name in enumerate(listed):
                listed[place] = f"{name}{suffix}" if name in own else name
    for info in model.graph.output:
        copied = body.output.add()
        copied.CopyFrom(info)
        copied.name = f"{info.name}{suffix}"
    return body


def with_other_logits(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with the least likely token as the most likely one."""
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == "logits":
                node.output[place] = "negative"
    model.graph.node.append(onnx.helper.make_node("Neg", ["negative"], ["logits"], "turned"))
    return model
