"""Operators of decoders: rotary embedding, attention with a cache, and normalization of a sum."""

from __future__ import annotations

import math

import numpy as np

from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, check_float
from sift_onnx.backends.lowering.specs import ChannelScale, Elementwise, LayerNormalization, Range, Sliced
from sift_onnx.backends.lowering.specs.decoding import (
    NOTHING,
    CachedAttention,
    CacheNames,
    MaskPart,
    Rotated,
    TableRows,
)
from sift_onnx.backends.lowering.weights import Floats
from sift_onnx.operators.domains import is_standard

__all__ = ["attention", "group_query_attention", "rotary_embedding", "skip_normalization"]


def skip_normalization(node: NodeView) -> tuple[Step, ...]:
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization: a sum, which others may read, and its norm."""
    is_simplified = node.op == "SkipSimplifiedLayerNormalization"
    for position in range(2):
        node.operand(position, "rows")
    dims = node.dims(0)
    channels = dims[-1]
    if dims != node.dims(1) or not isinstance(channels, int) or channels == 0:
        raise NotLowered("its operands are not known to be of one shape")
    outputs = [*node.proto.output, *[""] * 4]
    used = [name for name in outputs[1:3] if name and (node.graph.readers.get(name) or name in node.graph.outputs)]
    if used:
        raise NotLowered(f"its output {used[0]!r} is read: statistics are for training")
    scale = node.float_vector(2, channels, "the scale")
    zeros = np.zeros(channels, np.float32)
    shift = zeros if is_simplified or not node.input(3) else node.float_vector(3, channels, "the bias")
    bias = node.input(3 if is_simplified else 4)
    total = outputs[3] or made_name(outputs[0], "sum")
    added = made_name(total, "unbiased") if bias else total
    steps = [_made(node, Elementwise("add"), (node.input(0), node.input(1)), added)]
    if bias:
        more = node.float_vector(3 if is_simplified else 4, channels, "the bias")
        steps.append(_made(node, ChannelScale(np.ones(channels, np.float32), more), (added,), total))
    epsilon = float(node.attribute("epsilon", 1e-12))
    norm = LayerNormalization(scale, shift, epsilon, is_centered=not is_simplified)
    return (*steps, _made(node, norm, (total,), outputs[0]))


def rotary_embedding(node: NodeView) -> tuple[Step, ...]:
    """RotaryEmbedding, of opset 23 and of onnxruntime, whose inputs come in another order."""
    standard = is_standard(node.proto.domain)
    cosines, sines, positions = (1, 2, 3) if standard else (2, 3, 1)
    node.operand(0, "rows")
    dims = node.dims(0)
    if float(node.attribute("scale", 1.0)) != 1 or node.attribute("is_packed_batching", 0):
        raise NotLowered("it scales, or has packed batches")
    interleaved = bool(node.attribute("interleaved", 0))
    if not node.input(positions):
        return (_rotated(node, cosines, sines, interleaved),)
    _refuse_constants(node, positions)
    tables = [_table(node, position) for position in (cosines, sines)]
    rotated = int(node.attribute("rotary_embedding_dim", 0)) or 2 * tables[0].shape[1]
    heads, depth = _heads_of(dims, int(node.attribute("num_heads", 0)), rotated)
    if rotated != 2 * tables[0].shape[1] or len(node.dims(positions)) != 2:
        raise NotLowered("its tables do not have a cosine for each pair, or positions are not those of tokens")
    names = [made_name(node.output, kind) for kind in ("cosines", "sines")]
    looked_up = [
        _rows(node, TableRows(table, name=node.input(place)), (node.input(positions),), name)
        for table, place, name in zip(tables, (cosines, sines), names, strict=True)
    ]
    spec = Rotated(heads, depth, rotated, interleaved, heads_axis=1 if len(dims) == 4 else None)
    return (*looked_up, _made(node, spec, (node.input(0), *names), node.output))


def _rotated(node: NodeView, cosines: int, sines: int, interleaved: bool) -> Step:
    """Where the angles are those of tokens already, [sequences, tokens, pairs]."""
    for position in (cosines, sines):
        node.operand(position, "rows")
    dims, angles = node.dims(0), node.dims(cosines)
    pairs = angles[-1]
    if len(angles) != 3 or angles != node.dims(sines) or not isinstance(pairs, int):
        raise NotLowered("its cosines and sines are not known to be those of tokens")
    rotated = int(node.attribute("rotary_embedding_dim", 0)) or 2 * pairs
    heads, depth = _heads_of(dims, int(node.attribute("num_heads", 0)), rotated)
    tokens = dims[2] if len(dims) == 4 else dims[1]
    if rotated != 2 * pairs or angles[0] not in (1, dims[0]) or angles[1] != tokens:
        raise NotLowered("its cosines and sines do not fit its operand")
    spec = Rotated(heads, depth, rotated, interleaved, heads_axis=1 if len(dims) == 4 else None)
    return _made(node, spec, (node.input(0), node.input(cosines), node.input(sines)), node.output)


def group_query_attention(node: NodeView) -> tuple[Step, ...]:
    """com.microsoft's GroupQueryAttention in float32: sequences of any lengths, with or without rotation."""
    heads, key_heads = int(node.attribute("num_heads", 0)), int(node.attribute("kv_num_heads", 0))
    for name, default in (
        ("smooth_softmax", 0), ("qk_output", 0), ("k_quant_type", "NONE"), ("v_quant_type", "NONE"),
    ):  # fmt: skip
        if node.attribute(name, default) not in (default, ""):
            raise NotLowered(f"no kernel for {name}={node.attribute(name)!r}")
    for position, what in ((9, "positions"), (10, "a bias of scores"), (11, "a sink")):
        if node.input(position):
            raise NotLowered(f"no kernel with {what} as an operand")
    output, keys, values = _with_cache(node, 3)
    dims = node.dims(0)
    past = node.dims(3)
    depth = past[-1]
    if (
        len(dims) != 3
        or len(past) != 4
        or heads < 1
        or key_heads < 1
        or heads % key_heads
        or not isinstance(depth, int)
    ):
        raise NotLowered("its heads do not fit its operands")
    node.operand(0, "rows")
    steps, operands = _parts(node, heads, key_heads, depth, output)
    lengths, total = node.input(5), node.input(6)
    _refuse_constants(node, 5, 6)
    if int(node.attribute("do_rotary", 0)):
        tables = [_table(node, position) for position in (7, 8)]
        rotated = 2 * tables[0].shape[1]
        if rotated > depth:
            raise NotLowered("its tables have more angles than heads have pairs")
        names = [made_name(output, kind) for kind in ("cosines", "sines")]
        for table, place, name in zip(tables, (7, 8), names, strict=True):
            rows = TableRows(table, "lengths", dims[1], total, node.input(place))
            steps.append(_rows(node, rows, (lengths, total), name))
        interleaved = bool(node.attribute("rotary_interleaved", 0))
        for place, (count, what) in enumerate(((heads, "queries"), (key_heads, "keys"))):
            spec = Rotated(count, depth, rotated, interleaved, heads_axis=None)
            turned = made_name(output, f"turned {what}")
            steps.append(_made(node, spec, (operands[place], *names), turned))
            operands[place] = turned
    scale = float(node.attribute("scale", 0.0)) or 1 / math.sqrt(depth)
    window = max(int(node.attribute("local_window_size", -1)), 0)
    softcap = float(node.attribute("softcap", 0.0))
    spec_of = CachedAttention(
        heads, key_heads, depth, depth, scale, is_causal=True, window=window, softcap=softcap, is_parted=False
    )
    cache = CacheNames(node.input(3), node.input(4), keys, values, lengths=lengths, total=total)
    return (*steps, _made(node, spec_of, tuple(operands), output, cache))


def attention(node: NodeView) -> tuple[Step, ...]:
    """Attention of opset 23, where it has a cache."""
    if not node.input(4) or not node.input(5):
        raise NotLowered("no kernel without a cache")
    if node.input(6):
        raise NotLowered("no kernel with numbers of keys as an operand")
    if int(node.attribute("softmax_precision", 1)) != 1:
        raise NotLowered(f"no kernel for softmax_precision={node.attribute('softmax_precision')!r}")
    is_causal = bool(node.attribute("is_causal", 0))
    window = int(node.attribute("left_window_size", -1)) + 1
    if window and not is_causal:
        raise NotLowered("no kernel for a window of attention that is not causal")
    if not is_causal and int(node.attribute("right_window_size", -1)) >= 0:
        raise NotLowered(f"no kernel for right_window_size={node.attribute('right_window_size')!r}")
    used = node.proto.output[3] if len(node.proto.output) > 3 else ""
    if used and (node.graph.readers.get(used) or used in node.graph.outputs):
        raise NotLowered("its scores are read")
    output, keys, values = _with_cache(node, 4)
    for position in range(3):
        node.operand(position, "rows")
    dims, of_keys, of_values = (node.dims(position) for position in range(3))
    is_parted = len(dims) == 4
    if is_parted:
        sizes = (dims[1], of_keys[1], dims[3], of_values[3])
    else:
        heads, key_heads = int(node.attribute("q_num_heads", 0)), int(node.attribute("kv_num_heads", 0))
        sizes = (heads, key_heads, _part(dims, heads), _part(of_values, key_heads))
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise NotLowered("its heads are unknown")
    heads, key_heads, depth, value_depth = (int(size) for size in sizes if isinstance(size, int))
    if heads % key_heads:
        raise NotLowered(f"{heads} heads of queries and {key_heads} of keys")
    tokens, of_new_keys = (own[2 if is_parted else 1] for own in (dims, of_keys))
    if isinstance(tokens, int) and isinstance(of_new_keys, int) and tokens != of_new_keys:
        raise NotLowered(f"it has {tokens} queries and {of_new_keys} new keys; the kernel has as many of both")
    scale = float(node.attribute("scale", 0.0)) or 1 / math.sqrt(depth)
    mask = node.input(3)
    if mask and (mask in node.graph.constants or not 1 <= len(node.graph.dims(mask) or ()) <= 4):
        raise NotLowered(f"its mask {mask!r} is a constant, or of unknown rank")
    softcap = float(node.attribute("softcap", 0.0))
    spec = CachedAttention(
        heads, key_heads, depth, value_depth, scale, is_causal=is_causal, window=window, softcap=softcap,
        is_parted=is_parted, nan_to_zero=True,
    )  # fmt: skip
    masks = (MaskPart(mask, NOTHING),) if mask else ()
    cache = CacheNames(node.input(4), node.input(5), keys, values, masks)
    operands = tuple(node.input(position) for position in range(3))
    return (_made(node, spec, operands, output, cache),)


def _with_cache(node: NodeView, past: int) -> tuple[str, str, str]:
    """Names of the result and of the cache after the run, which are outputs of the model as the past is an input."""
    output, *presents = [*node.proto.output, "", ""][:3]
    for name, before in zip(presents, (node.input(past), node.input(past + 1)), strict=True):
        if before not in node.graph.inputs or name not in node.graph.outputs:
            raise NotLowered("its cache is not among the inputs and outputs of the model")
        check_float(node.graph, before)
    return output, presents[0], presents[1]


def _parts(node: NodeView, heads: int, key_heads: int, depth: int, output: str) -> tuple[list[Step], list[str]]:
    """Queries, keys and values, which may be the channels of one operand; and the steps that part them."""
    if node.input(1):
        for position in (1, 2):
            node.operand(position, "rows")
        return [], [node.input(position) for position in range(3)]
    counts = (heads, key_heads, key_heads)
    whole = depth * sum(counts)
    dims = node.dims(0)
    if dims[-1] != whole:
        raise NotLowered(f"its operand has {dims[-1]} channels, its heads {whole}")
    steps, names, first = [], [], 0
    for count, what in zip(counts, ("queries", "keys", "values"), strict=True):
        end = first + count * depth
        names.append(made_name(output, what))
        taken = Sliced((Range(2, first, end, of=whole),))
        steps.append(_made(node, taken, (node.input(0),), names[-1]))
        first = end
    return steps, names


def _refuse_constants(node: NodeView, *positions: int) -> None:
    """Of integers that a region takes from outside: a constant is none of its inputs."""
    for name in map(node.input, positions):
        if name in node.graph.constants:
            raise NotLowered(f"{name!r} is a constant")


def _heads_of(dims: Dims, heads: int, rotated: int) -> tuple[int, int]:
    """How many heads an operand has, and how many channels each of them."""
    if len(dims) == 4 and isinstance(dims[1], int) and isinstance(dims[3], int):
        return dims[1], dims[3]
    channels = dims[-1]
    if len(dims) != 3 or not isinstance(channels, int):
        raise NotLowered("its heads are unknown")
    heads = heads or channels // rotated
    if not heads or channels % heads:
        raise NotLowered(f"{channels} channels are not those of {heads} heads")
    return heads, channels // heads


def _part(dims: Dims, heads: int) -> Dim:
    channels = dims[-1]
    return channels // heads if isinstance(channels, int) and heads > 0 and channels % heads == 0 else 0


def _table(node: NodeView, position: int) -> Floats:
    values = node.graph.shared_values(node.input(position))
    if values is None or values.dtype != np.float32 or values.ndim != 2:
        raise NotLowered(f"its table {node.input(position)!r} is no stored matrix of float32")
    return np.asarray(values, np.float32)


def _made(
    node: NodeView,
    spec: Elementwise | ChannelScale | LayerNormalization | Rotated | CachedAttention | Sliced,
    inputs: tuple[str, ...],
    output: str,
    cache: CacheNames | None = None,
) -> Step:
    return Step(spec, inputs, output, "rows", "rows", (node.index,), cache=cache)


def _rows(node: NodeView, spec: TableRows, inputs: tuple[str, ...], output: str) -> Step:
    return Step(spec, inputs, output, "array", "rows", (node.index,))
