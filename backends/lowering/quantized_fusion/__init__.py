"""Fusion where values are quantized: what reads dequantized bytes and is quantized again computes on the bytes.

Twelve rules, applied after those of ``fusion``. "Sole" is meant as there. A value is "dequantized" if a Dequantize
makes it; that step goes once nothing reads its floats.

1. A layer of integers whose sole result is quantized makes bytes; a clip before that is a range of bytes.
2. An activation, or one factor and one shift for all channels, of a dequantized value whose sole result is quantized
   is a table. So is quantizing a dequantized value, and a sum or a product of functions of one value.
3. A sum of two dequantized values whose sole result is quantized is one of bytes.
4. So are the maximum of a window, the mean of an image, and what moves values; where the scales differ, a table makes
   bytes of the result's scale of an operand's.
5. A table after a table is one table; one that only cuts off at both ends joins a layer or sum of bytes before it.
6. A table that changes nothing is none, and bytes that are only handed on are read where they come from.
7. A sum of bytes joins the layer that makes one of its operands, if that is sole and not clamped.
8. The maximum of a window after a layer of integers, of a sole result that is quantized, is that of bytes. Quantizing
   keeps the order of values, so the maximum of the bytes is the byte of the maximum.
9. A sum of floats that no other rule took joins a layer of integers that makes one of its operands, if that is sole.
10. A number for each channel that is added to the sole bytes of a layer, before they get another scale, joins it.
11. Bytes that are reshaped or transposed right before they are dequantized, or right after they were quantized, are
    moved as floats: those are views, and cost at most one copy.
12. Padding with the zero point before a convolution of bytes joins its own.
"""

from __future__ import annotations

from sift_onnx.backends.lowering.quantized_fusion.bytes_in_place import (
    add_bytes,
    move_bytes,
    move_floats_before,
    move_floats_behind,
    pad_bytes,
    read_through,
)
from sift_onnx.backends.lowering.quantized_fusion.layers import (
    add_floats,
    add_to_layer,
    pool_bytes,
    requantize,
    shift_bytes,
    with_dynamic_bytes,
)
from sift_onnx.backends.lowering.quantized_fusion.tables import drop_identity, join_tables, tabulate

__all__ = ["QUANTIZED_RULES", "with_dynamic_bytes"]

QUANTIZED_RULES = (
    pool_bytes,
    requantize,
    tabulate,
    add_bytes,
    move_bytes,
    join_tables,
    drop_identity,
    read_through,
    pad_bytes,
    add_to_layer,
    shift_bytes,
    add_floats,
    move_floats_behind,
    move_floats_before,
)
