"""Steps on tokens: attention and rotation read heads as ranges of channels, means over tokens read them as pixels."""

from __future__ import annotations

from sift_onnx.backends.cpu.run.operators import build_attention, build_cached_attention
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Sizes, input_key, kernel_shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.cpu.run.schedules.view_moves import by_head, of_tokens
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Attention, GlobalPool
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, Rotated

__all__ = ["attend", "attend_to_cache", "pool_rows", "rotate"]


def pool_rows(values: Values, index: int, step: Step, spec: GlobalPool) -> None:
    """A mean over tokens, as that of images whose pixels they are."""
    image = values.view(step, 0).with_pixels(spec.axes)
    layout = values.layout_of(kernel_shape(image.dims, "image"))
    stored = values.operand(step, 0, image, "image", layout)
    made = values.compute(index, step, values.op_of(index, layout), [stored], (stored_key(step.output, layout), layout))
    values.views[step.output] = PlacedView.of(made, values.dims[step.output])


def attend(values: Values, index: int, step: Step, spec: Attention) -> None:
    """Attention of tokens to each other, or to others."""
    queries, keys, weighed = (values.view(step, position) for position in range(3))
    views = [of_tokens(queries), of_tokens(keys.transposed_last()), of_tokens(weighed)]
    sequences, tokens, _ = views[0].dims
    layout = values.layout_of(kernel_shape(views[0].dims, "rows"))
    operands, channels = [], []
    for position, view in enumerate(views):
        whole, first = view.within_rows()
        stored = values.operand(step, position, whole, "rows", layout)
        operands.append(stored)
        channels.append((stored.shape[1], first))
    mask = values.dims[input_key(step.mask, "array")] if step.mask else None
    op = build_attention(spec, sequences, (tokens, views[1].dims[1]), channels, mask, layout, values.isa)
    result = (stored_key(step.output, layout), layout)
    values.calls.attentions[len(values.calls.calls)] = (index, tuple(channels))
    made = values.compute(index, step, op, operands, result, values.masks.get(step.mask, ""))
    heads = PlacedView.of(made, (sequences, tokens, spec.heads, spec.value_depth))
    values.views[step.output] = by_head(heads, values.dims[step.output])


def attend_to_cache(values: Values, index: int, step: Step, spec: CachedAttention) -> None:
    """Queries, keys and values of the new tokens are read in planes; a cache has no layout."""
    operands, channels = [], []
    sizes: Sizes = ()
    for position in range(len(step.inputs)):
        view = of_tokens(values.view(step, position))
        sizes = sizes or view.dims
        whole, first = view.within_rows()
        stored = values.operand(step, position, whole, "rows", "planes")
        operands.append(stored)
        channels.append((stored.shape[1], first))
    sequences, tokens, _ = sizes
    op = build_cached_attention(spec, sequences, tokens, channels, values.isa)
    made = values.compute(index, step, op, operands, (stored_key(step.output, "planes"), "planes"))
    _place_heads(values, step, made, sizes[:2], spec.heads, 1 if spec.is_parted else None)


def rotate(values: Values, index: int, step: Step, spec: Rotated) -> None:
    """Rotary embedding: channels of heads are turned by the angles of their tokens."""
    x, *angles = (values.view(step, position) for position in range(3))
    x = of_tokens(x, spec.heads_axis)
    sequences, tokens, _ = x.dims
    layout = values.layout_of(kernel_shape(x.dims, "rows"))
    operands = [values.operand(step, 0, x, "rows", layout)]
    for position, view in enumerate(angles, 1):
        own = of_tokens(view, spec.heads_axis)
        repeated = own.repeated((sequences, tokens, own.dims[-1]))
        operands.append(values.operand(step, position, repeated, "rows", layout))
    made = values.compute(index, step, values.op_of(index, layout), operands, (stored_key(step.output, layout), layout))
    _place_heads(values, step, made, (sequences, tokens), spec.heads, spec.heads_axis)


def _place_heads(values: Values, step: Step, stored: Stored, rows: Sizes, heads: int, heads_axis: int | None) -> None:
    """The result of an operator on rows of tokens, as the model has it."""
    dims = values.dims[step.output]
    view = PlacedView.of(stored, (*rows, heads, stored.shape[1] // heads))
    values.views[step.output] = by_head(view, dims) if heads_axis == 1 else PlacedView.of(stored, dims)
