"""Constants of the graph: what they hold, read without building more than is needed, and replaced in place.

graphsurgeon keeps the values of a constant in a private field, as an array or as ``LazyValues``. No other module reads
or writes that field. Two kinds of lazy values are added: :class:`~sift_onnx.files.stored_values.StoredValues` for
tensors that stay in their file, and :class:`~sift_onnx.weights.masked_values.MaskedValues` for weights under a mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues

from sift_onnx.files.data_types import numpy_dtype
from sift_onnx.files.stored_values import StoredValues, array_pieces, count_nonzeros
from sift_onnx.graphs.walks import axis_order, origin_of
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.weights.masked_values import DenseUnderMask, MaskedValues, WeightSource
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import SparseWeight

__all__ = [
    "MaskedConstant",
    "Values",
    "active_zeros_of",
    "apply_export_dtype",
    "array_of",
    "constant_values",
    "dtype_of",
    "explicit_mask_of",
    "imported_tensor",
    "is_masked",
    "named",
    "nbytes_of",
    "new_constant",
    "nnz_of",
    "own_array",
    "parameter_behind",
    "replace_values",
    "shape_of",
    "share_values",
    "sparse_weight_of",
    "stored_values_of",
    "value_pieces",
]

Array = npt.NDArray[Any]

# What a constant can hold: dense values, in memory or in a file, or a masked weight, in memory or lazy.
Values = Array | StoredValues | SparseWeight | WeightSource | MaskedValues


class MaskedConstant(gs.Constant):  # type: ignore[misc]  # graphsurgeon has no type information
    """A constant that keeps its mask when its dense values are read or replaced.

    Replacing the values by an array of the same shape keeps those positions active that were active and zero, makes
    every non-zero active, and takes what has become zero out of the mask.
    """

    _values: MaskedValues

    @property
    def weight(self) -> SparseWeight:
        """The weight with its mask; read from its source, unless one that was read earlier is still in use."""
        return self._values.weight

    @property
    def is_lazy(self) -> bool:
        """Whether the weight is drawn, or read from a file, each time that it is used."""
        return not isinstance(self._values.source, SparseWeight)

    @property
    def nnz(self) -> int:
        """Number of active weights, known without reading the weight."""
        return self._values.nnz

    @property
    def values(self) -> Array:
        """The dense values, built at each call; read-only, since writing into them would change nothing."""
        dense: Array = self._values.load()
        dense.flags.writeable = False
        return dense

    @values.setter
    def values(self, values: Any) -> None:
        if isinstance(values, (MaskedValues, SparseWeight)):
            self._values = values if isinstance(values, MaskedValues) else MaskedValues(values)
            return
        dense = values.load() if isinstance(values, LazyValues) else np.asarray(values)
        before = self.weight
        zeros = before.active_zeros() if before.shape == dense.shape else None
        self._values = MaskedValues(SparseWeight.from_dense(dense, zeros))

    def copy(self) -> MaskedConstant:
        """A constant with the same, shared, values."""
        return MaskedConstant(self.name, self._values)


def new_constant(name: str, values: Values) -> gs.Constant:
    """A constant that holds ``values``: a :class:`MaskedConstant` where they are a masked weight."""
    held = _held(values)
    return MaskedConstant(name, held) if isinstance(held, MaskedValues) else gs.Constant(name, held)


def named(constant: gs.Constant, name: str) -> gs.Constant:
    """The constant, if that is its name; otherwise another one with that name and the same, shared, values."""
    return constant if constant.name == name else new_constant(name, constant._values)


def replace_values(constant: gs.Constant, values: Values) -> None:
    """Give the constant other values in place, so that its consumers see them.

    It is a :class:`MaskedConstant` afterwards if ``values`` are a masked weight, and has no mask if they are dense.
    """
    held = _held(values)
    constant.__class__ = MaskedConstant if isinstance(held, MaskedValues) else gs.Constant
    constant._values = held
    constant._export_dtype = None


def share_values(tensor: gs.Tensor, constant: gs.Constant) -> gs.Constant:
    """Make ``tensor`` a constant in place, with the values, and the mask, of ``constant``."""
    if not isinstance(tensor, gs.Constant):
        tensor.to_constant(constant._values)
    replace_values(tensor, constant._values)
    return tensor


def own_array(constant: gs.Constant) -> None:
    """Replace an array by a copy of it; lazy values are never written to, and stay shared."""
    if isinstance(constant._values, np.ndarray):
        constant._values = constant._values.copy()


def _held(values: Values) -> Array | StoredValues | MaskedValues:
    return values if isinstance(values, (np.ndarray, LazyValues)) else MaskedValues(values)


def imported_tensor(constant: gs.Constant) -> onnx.TensorProto | onnx.SparseTensorProto | None:
    """The tensor that graphsurgeon's importer left in place of the values; None once they have been replaced."""
    values = constant._values
    is_imported = isinstance(values, (SparseValues, LazyValues)) and not isinstance(
        values, (MaskedValues, StoredValues)
    )
    return values.tensor if is_imported else None


def apply_export_dtype(constant: gs.Constant) -> None:
    """Cast an array to the type that graphsurgeon would cast it to on export."""
    # Versions of graphsurgeon differ in whether they have the field.
    wanted = vars(constant).get("_export_dtype")
    if wanted is not None and isinstance(constant._values, np.ndarray):
        dtype = numpy_dtype(wanted) if isinstance(wanted, int) else wanted
        replace_values(constant, constant._values.astype(dtype))


def constant_values(tensor: gs.Tensor) -> gs.Constant | None:
    """The constant that a tensor is: an initializer, or the value of a Constant node; None for other tensors."""
    if isinstance(tensor, gs.Constant):
        return tensor
    if len(tensor.inputs) == 1 and tensor.inputs[0].op == "Constant":
        attrs = tensor.inputs[0].attrs
        value = attrs.get("value")
        if isinstance(value, gs.Constant):
            return value
        for key, dtype in (
            ("value_int", np.int64),
            ("value_ints", np.int64),
            ("value_float", np.float32),
            ("value_floats", np.float32),
        ):
            if key in attrs:
                return gs.Constant(tensor.name, np.asarray(attrs[key], dtype=dtype))
    return None


def parameter_behind(tensor: gs.Tensor) -> tuple[gs.Constant, tuple[int, ...]] | None:
    """The floating-point constant that a tensor is, and the permutation of its axes on the way, or None.

    Between the constant and the tensor there may be nodes that copy, cast or transpose it.
    """
    tensor, passed = origin_of(tensor, PARAMETER_VIEWS)
    constant = constant_values(tensor)
    if constant is None or dtype_of(constant).kind in "iub":
        return None
    return named(constant, tensor.name), axis_order(passed, len(shape_of(constant)))


def shape_of(constant: gs.Constant) -> tuple[int, ...]:
    """The shape, without loading values."""
    return tuple(int(n) for n in constant._values.shape)


def dtype_of(constant: gs.Constant) -> np.dtype[Any]:
    """The type of the elements, without loading values."""
    dtype: np.dtype[Any] = np.dtype(constant._values.dtype)
    return dtype


def nbytes_of(constant: gs.Constant) -> int:
    """Size of the dense values in bytes."""
    return int(constant._values.nbytes)


def array_of(constant: gs.Constant) -> Array:
    """The dense values, to be read only, without keeping a loaded copy in the graph."""
    stored = stored_values_of(constant)
    if stored is not None:
        return stored.view()
    values = constant._values
    return values.load() if isinstance(values, LazyValues) else values  # type: ignore[no-any-return]


def value_pieces(constant: gs.Constant) -> Iterator[Array]:
    """The dense values in row-major order, some megabytes at a time, as vectors.

    Values in a file are read piece by piece, where their type allows that. A piece is valid until the next one is read.
    """
    stored = stored_values_of(constant)
    return array_pieces(array_of(constant)) if stored is None else stored.flat_pieces()


def stored_values_of(constant: gs.Constant) -> StoredValues | None:
    """The dense tensor in a file that holds the values, of a masked weight too; None where there is none."""
    values = constant._values
    if isinstance(values, MaskedValues):
        return values.stored
    return values if isinstance(values, StoredValues) else None


def is_masked(constant: gs.Constant) -> bool:
    """Whether the constant is a weight under a mask."""
    return isinstance(constant._values, MaskedValues)


def sparse_weight_of(constant: gs.Constant) -> SparseWeight | None:
    """The masked weight, or None for a constant that has no mask."""
    values = constant._values
    return values.weight if isinstance(values, MaskedValues) else None


def explicit_mask_of(constant: gs.Constant) -> PackedMask | None:
    """The mask of a weight that is stored as a dense tensor; None if it is exactly the non-zeros of that tensor."""
    values = constant._values
    source = values.source if isinstance(values, MaskedValues) else None
    return source.explicit_mask() if isinstance(source, DenseUnderMask) else None


def nnz_of(constant: gs.Constant) -> int:
    """Number of active weights under a mask, of non-zeros without one.

    A tensor of nothing but zeros that has no mask counts as dense: a zero-initialised branch is going to be trained.
    """
    if is_masked(constant):
        return int(constant._values.nnz)
    return count_nonzeros(value_pieces(constant)) or math.prod(shape_of(constant))


def active_zeros_of(constant: gs.Constant) -> int:
    """How many of the weights that :func:`nnz_of` counts are zero."""
    values = constant._values
    if isinstance(values, MaskedValues):
        return values.nnz - values.nonzeros
    return 0 if any(np.count_nonzero(piece) for piece in value_pieces(constant)) else math.prod(shape_of(constant))
