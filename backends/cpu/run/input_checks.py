"""Whether arrays fit the inputs of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UsageError
from sift_onnx.shapes.random_inputs import check_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["InputCheck"]

Array = npt.NDArray[Any]
_FLOAT = np.dtype(np.float32)
_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Expected:
    """What an input's array has to be like; axes by their position."""

    name: str
    dtypes: tuple[np.dtype[Any], ...]
    rank: int | None
    sizes: tuple[tuple[int, int], ...]
    symbols: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, spec: TensorSpec, is_wide: bool) -> _Expected:
        extents = tuple(enumerate(spec.extents))
        sizes = tuple((axis, size) for axis, size in extents if isinstance(size, int))
        symbols = tuple((axis, size) for axis, size in extents if isinstance(size, str))
        dtypes = (spec.dtype, _FLOAT) if is_wide else (spec.dtype,)
        return cls(spec.name, dtypes, None if spec.shape is None else len(spec.shape), sizes, symbols)

    def fits(self, array: Array, known: dict[str, int]) -> bool:
        shape = array.shape
        if array.dtype not in self.dtypes or self.rank not in (None, len(shape)):
            return False
        for axis, size in self.sizes:
            if shape[axis] != size:
                return False
        return all(known.setdefault(symbol, shape[axis]) == shape[axis] for axis, symbol in self.symbols)


class InputCheck:
    """Checks the arrays of a request; of a decoder's, whose shapes are new in each step, there are dozens."""

    def __init__(self, inputs: Sequence[TensorSpec], wide: Collection[str] = ()) -> None:
        """Of a model with these inputs; those named ``wide`` may be float32 as well, whatever the model says."""
        self._inputs = tuple(inputs)
        self._wide = frozenset(wide)
        self._expected = tuple(_Expected.of(spec, spec.name in self._wide) for spec in inputs)

    def __call__(self, feeds: Mapping[str, Array], sizes: Mapping[str, int] = _NOTHING) -> None:
        """Also that axes of one name have one size: the lowering relies on it.

        Args:
            feeds: by name.
            sizes: of axes that are known besides, by their names.

        Raises:
            UsageError: an input is missing, unknown, or of another dtype or shape, or two sizes contradict each other.
        """
        known = dict(sizes)
        if len(feeds) == len(self._expected):
            for one in self._expected:
                array = feeds.get(one.name)
                if array is None or not one.fits(array, known):
                    break
            else:
                return
        inputs = [self._as_given(spec, feeds) for spec in self._inputs]
        check_feeds(inputs, feeds)
        _check_symbols(inputs, feeds, sizes)

    def _as_given(self, spec: TensorSpec, feeds: Mapping[str, Array]) -> TensorSpec:
        is_wide = spec.name in self._wide and spec.name in feeds and feeds[spec.name].dtype == _FLOAT
        return replace(spec, dtype=_FLOAT) if is_wide else spec


def _check_symbols(inputs: Sequence[TensorSpec], feeds: Mapping[str, Array], known_sizes: Mapping[str, int]) -> None:
    sizes = {name: (size, "the cache") for name, size in known_sizes.items()}
    for spec in inputs:
        for axis, (name, size) in enumerate(zip(spec.extents, feeds[spec.name].shape, strict=False)):
            if not isinstance(name, str):
                continue
            known, where = sizes.setdefault(name, (size, f"input {spec.name!r}"))
            if known != size:
                raise UsageError(
                    f"input {spec.name!r} has {size} along axis {axis}, but {name!r} is {known} in {where}"
                )
