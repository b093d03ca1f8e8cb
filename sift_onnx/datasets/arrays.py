"""Data in ``.npz`` files.

An array for each input of the model, under the input's name (``x`` will do for a single one), and ``target`` (or
``y``); ``val_`` in front of a name makes it part of the validation data.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.datasets.batches import check_input
from sift_onnx.datasets.examples import ArrayExamples
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["read_arrays"]


def read_arrays(path: Path, specs: Sequence[TensorSpec]) -> tuple[ArrayExamples, ArrayExamples | None]:
    """Training and validation examples; the latter are None where the file has none.

    Pickled objects are not loaded.

    Raises:
        UsageError: the file cannot be read, or does not fit the model.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise UsageError(f"{path} holds one array; write a file of named ones with numpy.savez")
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise UsageError(f"cannot read {path} (`data`): {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, UsageError):
            raise
        reason = str(error)
        if "allow_pickle" in reason:  # what numpy says of every file that it does not know
            pickled = "it holds pickled objects, which are not loaded"
            reason = pickled if zipfile.is_zipfile(path) else "it is not a file of numpy.savez"
        raise UsageError(f"cannot read {path} (`data`): {reason}") from error
    names = [_names(spec, specs, prefix="") for spec in specs]
    known = {f"{p}{n}" for p in ("", "val_") for group in (*names, ("target", "y")) for n in group}
    foreign = [name for name in arrays if name not in known]
    if foreign:
        raise UsageError(
            f"{path}: what is {foreign[0]!r}? The model's inputs are {_listed(specs)}; 'target' is also known, "
            "and all of these with 'val_' in front"
        )
    train = _arrays(path, arrays, specs, "")
    if train is None:
        raise UsageError(f"{path} has no {specs[0].name!r}; the model's inputs are {_listed(specs)}")
    return train, _arrays(path, arrays, specs, "val_")


def _arrays(
    path: Path, arrays: dict[str, npt.NDArray[Any]], specs: Sequence[TensorSpec], prefix: str
) -> ArrayExamples | None:
    if not any(name.startswith("val_") == bool(prefix) for name in arrays):
        return None
    found: list[npt.NDArray[Any]] = []
    count: int | None = None
    for spec in specs:
        name = next((n for n in _names(spec, specs, prefix) if n in arrays), None)
        if name is None:
            raise UsageError(f"{path} has no {prefix + spec.name!r}; it has {', '.join(arrays)}")
        array = arrays[name]
        check_input(spec, array.shape, array.dtype, str(path))
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"{path}: {name!r} has values that are not finite; take them out first")
        count = array.shape[0] if count is None else count
        _check_count(path, name, array, count)
        found.append(np.ascontiguousarray(array.astype(spec.dtype, copy=False)))
    target = next((n for n in (f"{prefix}target", f"{prefix}y") if n in arrays), None)
    if target is None:
        return ArrayExamples(found, None)
    assert count is not None
    array = arrays[target]
    if array.dtype.kind not in "iufb":
        raise UsageError(f"{path}: {target!r} is {array.dtype}; write numbers")
    _check_count(path, target, array, count)
    wide = array.astype(np.int64) if array.dtype.kind in "iu" else array
    return ArrayExamples(found, np.ascontiguousarray(wide))


def _check_count(path: Path, name: str, array: npt.NDArray[Any], count: int) -> None:
    if array.ndim == 0 or array.shape[0] != count:
        raise UsageError(f"{path}: {name!r} is {list(array.shape)}; its first axis has to count {count} examples")


def _names(spec: TensorSpec, specs: Sequence[TensorSpec], prefix: str) -> tuple[str, ...]:
    names = (spec.name, "x") if len(specs) == 1 else (spec.name,)
    return tuple(prefix + name for name in names)


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.name for spec in specs)
