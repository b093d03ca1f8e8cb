"""Mutations that say something false, or too much, in a form that protobuf takes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from random import Random

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from fuzz.fields import NAMES, NUMBERS
from sift_onnx.passes.base import HISTORY_KEY
from sift_onnx.weights.mask_storage import MASKS_KEY

__all__ = ["mutate_structure"]

_LOCATIONS = (
    *("data.bin", "data.bin", "data.bin", "missing.bin", "", ".", "..", "folder", "pipe", "link.bin", "link-folder/x"),
    *("../outside.bin", "folder/../../outside.bin", "/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem", "~/x"),
    *("\0", "data.bin\0", "a\nb", "x" * 5000, "case.onnx", "loop.bin", "empty.bin", "file:///etc/passwd", "./data.bin"),
)
_DIMS = (
    *([], [0], [1], [-1], [2**60], [2**31, 2**31], [2**32, 2**32], [2**63 - 1, 2], [-1, -1], [0, 2**62], [0, -1]),
    *([2**62, 0, 2**62], [1] * 40, [1] * 3000, [2**20, 2**20], [2**15, 2**15], [1, 0, 1]),
)


def mutate_structure(model: onnx.ModelProto, rng: Random) -> None:
    """One random mutation; none where it would nest messages deeper than protobuf copies them."""
    mutated = onnx.ModelProto()
    try:
        mutated.CopyFrom(model)
        rng.choice(_MUTATIONS)(mutated, rng)
    except DecodeError:
        return
    model.CopyFrom(mutated)


def _initializer(model: onnx.ModelProto, rng: Random) -> TensorProto | None:
    return rng.choice(model.graph.initializer) if model.graph.initializer else None


def _dims(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _initializer(model, rng)
    if tensor is not None:
        del tensor.dims[:]
        tensor.dims.extend(rng.choice(_DIMS))


def _data_type(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _initializer(model, rng)
    if tensor is not None:
        tensor.data_type = rng.choice((*range(30), 1000, -1))


def _consistent_type(model: onnx.ModelProto, rng: Random) -> None:
    """Another data type, with the data that it calls for."""
    tensor = _initializer(model, rng)
    if tensor is None or not 0 < len(tensor.raw_data) < 10_000:
        return
    kind = rng.choice([k for k in range(1, 27) if k != TensorProto.STRING])
    bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4, 25: 2, 26: 2}.get(kind)
    if bits is None:
        try:
            bits = 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize
        except (KeyError, TypeError):
            bits = 8
    count = int(np.prod(tensor.dims, dtype=object)) if tensor.dims else 1
    if 0 <= count < 10_000:
        tensor.data_type = kind
        tensor.raw_data = rng.randbytes(-(-count * bits // 8))


def _raw_length(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _initializer(model, rng)
    if tensor is not None and tensor.raw_data:
        tensor.raw_data = (tensor.raw_data * 2)[: max(0, len(tensor.raw_data) + rng.choice((-4, -1, 1, 4, 400)))]


def _values(model: onnx.ModelProto, rng: Random) -> None:
    """Extreme values in a constant: axes, shapes, pads, indices."""
    small = [t for t in model.graph.initializer if t.data_type in (TensorProto.INT64, TensorProto.FLOAT) and t.raw_data]
    if not small:
        return
    tensor = rng.choice(small)
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except Exception:
        return
    if array.size:
        flat = array.reshape(-1)
        integral = array.dtype.kind == "i"
        flat[rng.randrange(flat.size)] = rng.choice(NUMBERS) if integral else rng.choice((0, np.inf, np.nan, 1e38, -1))
        tensor.raw_data = array.tobytes()


def _sparse(model: onnx.ModelProto, rng: Random) -> None:
    """An initializer becomes sparse, with indices that are right or wrong in some way."""
    tensor = _initializer(model, rng)
    if tensor is None or tensor.data_type != TensorProto.FLOAT:
        return
    dims = list(tensor.dims)
    size = int(np.prod(dims, dtype=object)) if dims else 1
    count = rng.choice((0, 1, 2, 5, 20))
    indices = sorted({rng.randrange(max(1, min(size, 2**62))) for _ in range(count)})
    wrong = rng.choice(("", "", "order", "twice", "outside", "negative", "matrix", "huge", "length", "dims", "type"))
    if wrong == "order":
        indices.reverse()
    elif wrong == "twice" and indices:
        indices[-1] = indices[0]
    elif wrong == "outside":
        indices.append(min(rng.choice((size, size + 1, 2**62)), 2**63 - 1))
    elif wrong == "negative":
        indices.insert(0, -rng.choice((1, 2**62)))
    elif wrong in ("huge", "dims"):
        dims = rng.choice(_DIMS) if wrong == "dims" else [min(n * 2**20, 2**63 - 1) for n in dims]
    sparse = model.graph.sparse_initializer.add(dims=dims)
    sparse.values.name, sparse.values.data_type = tensor.name, TensorProto.FLOAT
    sparse.values.float_data.extend([rng.choice((0.0, 1.5))] * (len(indices) + (wrong == "length")))
    sparse.values.dims.append(len(indices))
    sparse.indices.data_type = TensorProto.INT32 if wrong == "type" else TensorProto.INT64
    sparse.indices.dims.extend([len(indices) // 2, 2] if wrong == "matrix" else [len(indices)])
    sparse.indices.int64_data.extend(indices)
    if rng.random() < 0.9:
        model.graph.initializer.remove(tensor)


def _external(model: onnx.ModelProto, rng: Random) -> None:
    tensor = _initializer(model, rng)
    if tensor is None:
        return
    nbytes = len(tensor.raw_data) or 256
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    entries = {
        "location": rng.choice(_LOCATIONS),
        "offset": str(rng.choice((0, 0, 64, 4096, -1, 2**40, 2**63, 2**64 - 1, "x", "1e3", "٣", "9" * 5000))),
        "length": str(rng.choice((nbytes, nbytes, nbytes + 1, 0, -1, 2**40, 2**64, " 4", "-0"))),
    }
    for key, value in entries.items():
        if rng.random() < 0.9:
            tensor.external_data.add(key=key, value=value)


def _nested(model: onnx.ModelProto, rng: Random) -> None:
    """Subgraphs within subgraphs, as deep as protobuf takes them."""
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph) if rng.random() < 0.3 and model.ByteSize() < 5000 else graph.CopyFrom(_body("inner"))
    for level in range(rng.choice((2, 10, 20, 30))):
        outer = onnx.GraphProto(name=f"level{level}")
        outer.node.add(op_type="If", input=["deep"], output=[f"y{level}"], name=f"if{level}")
        for name in ("then_branch", "else_branch")[: 1 if level > 4 else 2]:
            attribute = outer.node[0].attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(graph)
        outer.output.add(name=f"y{level}")
        graph = outer
    model.graph.input.append(helper.make_tensor_value_info("deep", TensorProto.BOOL, []))
    model.graph.node.extend(graph.node)
    if model.graph.node and rng.random() < 0.5:
        model.graph.output.append(helper.make_tensor_value_info(graph.node[0].output[0], TensorProto.FLOAT, []))


def _body(name: str) -> onnx.GraphProto:
    value = numpy_helper.from_array(np.float32(1), f"{name}.value")
    return helper.make_graph(
        [helper.make_node("Constant", [], [f"{name}.out"], value=value)],
        name, [], [helper.make_tensor_value_info(f"{name}.out", TensorProto.FLOAT, [])],
    )  # fmt: skip


def _recursive_function(model: onnx.ModelProto, rng: Random) -> None:
    """A function that calls itself, at once, through others, or in its subgraph."""
    length = rng.choice((1, 1, 2, 5))
    names = [f"f{i}" for i in range(length)]
    for i, name in enumerate(names):
        call = helper.make_node(names[(i + 1) % length], ["a"], ["b"], domain="local")
        if rng.random() < 0.2:
            branch = helper.make_graph([call], "g", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)])
            call = helper.make_node("If", ["a"], ["b"], then_branch=branch, else_branch=branch)
        _add_function(model, name, [call])
    _call(model, names[0], rng)


def _growing_functions(model: onnx.ModelProto, rng: Random) -> None:
    """Functions that call the next one several times each: a few lines that stand for billions of nodes."""
    levels, calls = rng.choice(((3, 2), (10, 2), (20, 2), (30, 2), (12, 8), (200, 1), (1000, 1)))
    for i in range(levels):
        values = [f"v{j}" for j in range(calls + 1)]
        kind, domain = (f"f{i + 1}", "local") if i + 1 < levels else ("Relu", "")
        nodes = [helper.make_node(kind, [values[j]], [values[j + 1]], domain=domain) for j in range(calls)]
        nodes[0].input[0], nodes[-1].output[0] = "a", "b"
        _add_function(model, f"f{i}", nodes)
    _call(model, "f0", rng)


def _add_function(model: onnx.ModelProto, name: str, nodes: list[onnx.NodeProto]) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, opsets))


def _call(model: onnx.ModelProto, name: str, rng: Random) -> None:
    """Put a call of a function between two nodes."""
    if not any(entry.domain == "local" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("local", 1))
    model.ir_version = max(model.ir_version, 8)
    readers = [node for node in model.graph.node if node.input]
    if not readers:
        return
    reader = rng.choice(readers)
    i = rng.randrange(len(reader.input))
    call = helper.make_node(name, [reader.input[i]], ["from-function"], domain="local")
    reader.input[i] = "from-function"
    at = list(model.graph.node).index(reader)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], call, *nodes[at:]])


def _cycle(model: onnx.ModelProto, rng: Random) -> None:
    nodes = [node for node in model.graph.node if node.input and node.output]
    if nodes:
        early, late = rng.choice(nodes), rng.choice(nodes)
        early.input[rng.randrange(len(early.input))] = rng.choice(late.output)


def _shuffle(model: onnx.ModelProto, rng: Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _metadata(model: onnx.ModelProto, rng: Random) -> None:
    """The entries that this package reads: masks and what was done to the model."""
    masks = {t.name: rng.choice(list(_mask_texts(rng))) for t in model.graph.initializer if rng.random() < 0.5}
    texts = {
        MASKS_KEY: (json.dumps(masks), json.dumps(masks), "[]", "{", "null", "1" * 5000, "[" * 100_000, '{"w": 3}'),
        HISTORY_KEY: (
            *("[]", "{}", "[1]", '[{"pass": 1}]', '[{"pass": "wide", "made": 3}]', '[{"pass": {}, "sparsity": []}]'),
            *('[{"pass": "prune", "made": ["w"]}]', "[" * 100_000, "1" * 5000, '[{"pass": "parallel", "made": [[]]}]'),
            *('[{"pass": "wide", "sparsity": "x", "seed": NaN}]', '[{"pass": null}]', "\ud7ff", '{"pass": "wide"}'),
        ),
    }
    key = rng.choice(list(texts))
    for entry in list(model.metadata_props):
        if entry.key == key:
            model.metadata_props.remove(entry)
    model.metadata_props.add(key=key, value=rng.choice(texts[key]))


@cache
def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _mask_texts(rng: Random) -> Iterator[str]:
    width = rng.choice((1, 2, 8))
    yield ""
    yield f"u{width}:{_packed(bytes(2**24))}"
    yield f"u{width}:{_packed(bytes([1]) + bytes(width - 1))}"
    yield f"u{width}:{_packed(b'')}"
    yield f"u8:{_packed(bytes([0xFF] * 8) * 3)}"
    yield f"u1:{_packed(bytes([1] * 300))[:20]}"
    yield f"u3:{_packed(bytes(9))}"
    yield "u1:ééé"
    yield rng.choice(NAMES)


def _big_shapes(model: onnx.ModelProto, rng: Random) -> None:
    """Sizes of inputs and outputs, fixed and named."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    for info in rng.sample(values, min(len(values), 2)):
        shape = info.type.tensor_type.shape
        if shape.dim and rng.random() < 0.8:
            dim = rng.choice(shape.dim)
            if rng.random() < 0.7:
                dim.dim_value = rng.choice(NUMBERS)
            else:
                dim.dim_param = rng.choice(NAMES)
        else:
            shape.dim.add(dim_value=rng.choice(NUMBERS))


def _big_constant(model: onnx.ModelProto, rng: Random) -> None:
    """Nodes that make of a few numbers a huge tensor, or of each other a larger one, beside a weight."""
    size = rng.choice((2**8, 2**20, 2**28, 2**31, 2**34, 2**60, -1))
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]
    source = rng.choice(floats).name if floats else None
    shape = numpy_helper.from_array(np.array([size] * rng.choice((1, 1, 2)), np.int64), "big.shape")
    model.graph.initializer.append(shape)
    kind = rng.choice(("ConstantOfShape", "Expand", "Tile", "Range", "Resize"))
    nodes = model.graph.node
    if kind == "Range":
        for name, value in (("big.start", 0), ("big.limit", size), ("big.step", 1)):
            model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
        nodes.add(op_type="Range", input=["big.start", "big.limit", "big.step"], output=["big.ints"])
        nodes.append(helper.make_node("Cast", ["big.ints"], ["big"], to=TensorProto.FLOAT))
    elif kind == "ConstantOfShape":
        nodes.add(op_type=kind, input=["big.shape"], output=["big"])
    elif source is None:
        return
    elif kind == "Resize":
        nodes.add(op_type=kind, input=[source, "", "", "big.shape"], output=["big"])
    else:
        nodes.add(op_type=kind, input=[source, "big.shape"], output=["big"])
    if rng.random() < 0.7 and source is not None:
        nodes.add(op_type=rng.choice(("Mul", "MatMul", "Add", "Gather")), input=["big", source], output=["bigger"])
        model.graph.output.append(helper.make_tensor_value_info("bigger", TensorProto.FLOAT, None))
    else:
        model.graph.output.append(helper.make_tensor_value_info("big", TensorProto.FLOAT, None))


def _duplicate_names(model: onnx.ModelProto, rng: Random) -> None:
    graph = model.graph
    what = rng.choice(("initializer", "node", "output", "input", "function"))
    if what == "node" and len(graph.node) > 1:
        rng.choice(graph.node).name = rng.choice(graph.node).name
    elif what == "initializer" and graph.initializer:
        graph.initializer.add().CopyFrom(rng.choice(graph.initializer))
    elif what == "output" and graph.output:
        graph.output.add().CopyFrom(rng.choice(graph.output))
    elif what == "input" and graph.input:
        graph.input.add().CopyFrom(rng.choice(graph.input))
    elif model.functions:
        model.functions.add().CopyFrom(rng.choice(model.functions))


def _opset(model: onnx.ModelProto, rng: Random) -> None:
    if model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*range(1, 30), *NUMBERS))


def _attribute(model: onnx.ModelProto, rng: Random) -> None:
    """Numbers of an attribute: strides of zero, groups of minus one, axes out of range."""
    attributes = [a for node in model.graph.node for a in node.attribute if a.type in (2, 7)]
    if not attributes:
        return
    attribute = rng.choice(attributes)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)


def _operator(model: onnx.ModelProto, rng: Random) -> None:
    """A node becomes another operator, with its inputs and attributes as they are."""
    known = onnx.defs.get_all_schemas()
    if model.graph.node:
        node, schema = rng.choice(model.graph.node), rng.choice(known)
        node.op_type, node.domain = schema.name, schema.domain


_MUTATIONS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    *(_dims, _data_type, _consistent_type, _raw_length, _values, _values, _sparse, _sparse, _external, _external),
    *(_nested, _recursive_function, _growing_functions, _cycle, _shuffle, _metadata, _big_shapes, _big_constant),
    *(_duplicate_names, _opset, _attribute, _attribute, _operator, _operator),
)
