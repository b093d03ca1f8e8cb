"""Batches as numpy arrays, and what a loader gives, taken apart and checked against the model's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import SiftError, UsageError, listing
from sift_onnx.plugins import first_line
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["ArrayBatch", "array_batch", "check_input", "check_sizes", "fetched", "part_of", "parts_of"]


@dataclass(frozen=True)
class ArrayBatch:
    """Examples for one run of a model.

    Attributes:
        inputs: one array per input of the model, in its order; the first axis counts examples.
        target: what predictions are compared with; None if the data has none.
    """

    inputs: tuple[npt.NDArray[Any], ...]
    target: Any = None

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(self.inputs[0])

    def slice(self, start: int, stop: int) -> ArrayBatch:
        """The examples from ``start`` to ``stop``."""
        target = self.target
        counts = isinstance(target, (np.ndarray, list, tuple)) and np.shape(target)[:1] == (self.size,)
        return ArrayBatch(tuple(array[start:stop] for array in self.inputs), target[start:stop] if counts else target)


def part_of(given: Mapping[str, Any], where: str, *names: str) -> Any:
    """The first of the parts ``names`` that a mapping of the user's has.

    Raises:
        UsageError: it has none of them.
    """
    found = next((given[name] for name in names if given.get(name) is not None), None)
    if found is None:
        there = listing([repr(name) for name in given]) or "nothing"
        raise UsageError(f"{where}: the mapping has {there}; it needs {' or '.join(repr(name) for name in names)}")
    return found


def fetched(items: Iterable[Any], where: str) -> Iterator[Any]:
    """What a loader of the user's gives.

    Raises:
        UsageError: the loader fails.
    """
    try:
        yield from items
    except SiftError:
        raise
    except Exception as error:
        raise UsageError(f"{where}: the next batch fails: {first_line(error)}") from error


def check_input(spec: TensorSpec, shape: Sequence[int], dtype: np.dtype[Any], where: str) -> None:
    """Check an array against an input; the first axis is left to the model.

    Raises:
        UsageError: number of axes, a fixed size or the kind of number differ.
    """
    if spec.shape is not None:
        wanted = [extent if isinstance(extent, int) else None for extent in spec.extents]
        if len(shape) != len(wanted) or any(
            w is not None and w != got for w, got in zip(wanted[1:], shape[1:], strict=True)
        ):
            sizes = ["examples", *("any" if w is None else str(w) for w in wanted[1:])] if wanted else []
            raise UsageError(
                f"{where}: input {spec.name!r} of the model is [{', '.join(sizes)}], the data has {list(shape)}"
            )
    if not shape:
        raise UsageError(f"{where}: {spec.name!r} is a single number; its first axis has to count examples")
    if spec.dtype.kind != dtype.kind and not (spec.dtype.kind == "f" and dtype.kind in "iu"):
        raise UsageError(f"{where}: input {spec.name!r} of the model is {spec.dtype}, the data is {dtype}")


def parts_of(item: Any, specs: Sequence[TensorSpec], where: str = "the data") -> tuple[list[Any], Any]:
    """The inputs of a batch, in the model's order, and its target, or None.

    Args:
        item: ``(inputs..., target)``, or a mapping of input names and ``target``; a tensor alone for a model of one
            input where there is no target.
        specs: the model's inputs.
        where: what error messages call the data.

    Raises:
        UsageError: inputs are missing, or there are too many parts.
    """
    if isinstance(item, Mapping):
        missing = [spec.name for spec in specs if spec.name not in item]
        if missing:
            raise UsageError(f"{where}: a batch has no {missing[0]!r}; it has {', '.join(map(str, item))}")
        return [item[spec.name] for spec in specs], item.get("target")
    if isinstance(item, (tuple, list)):
        if len(item) not in (len(specs), len(specs) + 1):
            names = ", ".join(spec.name for spec in specs)
            raise UsageError(f"{where}: a batch has {len(item)} parts; the model wants {names}, and then the target")
        return list(item[: len(specs)]), item[len(specs)] if len(item) > len(specs) else None
    if len(specs) > 1:
        raise UsageError(f"{where}: a batch is one {type(item).__name__}; the model has {len(specs)} inputs")
    return [item], None


def check_sizes(sizes: Sequence[int], where: str) -> None:
    """Check that all parts of a batch have as many examples.

    Raises:
        UsageError: they differ.
    """
    if len(set(sizes)) > 1:
        raise UsageError(f"{where}: a batch has parts of {' and '.join(map(str, sorted(set(sizes))))} examples")


def array_batch(item: Any, specs: Sequence[TensorSpec], where: str = "the data") -> ArrayBatch:
    """A batch of arrays from what a loader gives; see :func:`parts_of`.

    Tensors of torch become arrays, on whatever device they are. Inputs get the model's types.

    Raises:
        UsageError: it does not fit the model.
    """
    values, target = parts_of(item, specs, where)
    inputs = []
    for value, spec in zip(values, specs, strict=True):
        array = _array(value)
        if array is None:
            raise UsageError(f"{where}: {spec.name!r} is a {type(value).__name__}; give tensors or numpy arrays")
        check_input(spec, array.shape, array.dtype, where)
        inputs.append(np.ascontiguousarray(array.astype(spec.dtype, copy=False)))
    found = _array(target)
    target = target if found is None else found
    counted = [target.shape[0]] if isinstance(target, np.ndarray) and target.ndim else []
    check_sizes([*(len(array) for array in inputs), *counted], where)
    return ArrayBatch(tuple(inputs), target)


def _array(value: Any) -> npt.NDArray[Any] | None:
    """The array of an array or a tensor; None of anything else."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # a tensor of torch, which need not be installed
        tensor = value.detach().cpu()
        return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
    return None
