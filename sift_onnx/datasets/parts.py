"""One part of a data set as batches of arrays: what is evaluated on, or calibrated with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sift_onnx.datasets.batches import ArrayBatch, array_batch, fetched, part_of
from sift_onnx.datasets.examples import Examples
from sift_onnx.datasets.named_data import ExampleSet, open_data
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["DataLike", "DataPart", "PartName", "read_part"]

PartName = Literal["train", "validation"]
DataLike = str | Path | Iterable[Any] | Mapping[str, Any] | Callable[[], Any]

_BATCH = 64


@dataclass(frozen=True)
class DataPart:
    """A part of a data set, read once.

    Attributes:
        label: the data, and which part of it.
        batches: of at most the size that was asked for, in the order of the data.
        count: examples there are; None where a loader does not say.
    """

    label: str
    batches: Iterator[ArrayBatch]
    count: int | None = None


def read_part(
    data: DataLike,
    specs: Sequence[TensorSpec],
    part: PartName,
    *,
    batch: int | None = None,
    samples: int | None = None,
    normalize: str | None = None,
    seed: int = 0,
) -> DataPart:
    """A part of the data that is named or given.

    Args:
        data: what :func:`~sift_onnx.datasets.named_data.open_data` takes; or an iterable of batches, a mapping of
            ``train`` and ``validation``, or a function that gives one of these.
        specs: the model's inputs.
        part: ``validation`` is what is held out, and everything where nothing is; ``train`` is what is trained on.
        batch: largest batch; None leaves a loader's as they are, and picks 64 of examples that are picked by number.
        samples: at most as many examples: of ``train``, drawn by ``seed`` where they are picked by number.
        normalize: of images.
        seed: of the draw, and offered to a function.

    Raises:
        UsageError: there is no such data, or it does not fit the model.
        MissingExtraError: it needs a package that is not installed.
    """
    where, given = "the data", data
    if isinstance(data, (str, Path)):
        where = str(data)
        opened = open_data(str(data), specs, offered={"seed": seed, "rank": 0, "world_size": 1}, normalize=normalize)
        if isinstance(opened, ExampleSet):
            return _picked(opened, where, part, batch or _BATCH, samples, seed)
        given = opened.call
    elif normalize is not None:
        raise UsageError("`normalize` is for folders of images; normalize what the data gives")
    items, name = _items(given, where, part)
    batches = (array_batch(item, specs, where) for item in fetched(items, where))
    return DataPart(f"{where}{name}", _cut(batches, batch, samples))


def _picked(data: ExampleSet, where: str, part: PartName, batch: int, samples: int | None, seed: int) -> DataPart:
    held_out = part == "validation" and data.held_out is not None
    examples: Examples = data.held_out if held_out and data.held_out is not None else data.train
    rows = np.arange(examples.count)
    if samples is not None and samples < examples.count:
        # In the order of the data: only what is drawn depends on the seed.
        drawn = np.random.default_rng(seed).permutation(examples.count)[:samples]
        rows = np.sort(drawn) if part == "train" else rows[:samples]
    batches = (examples.batch(rows[start : start + batch]) for start in range(0, len(rows), batch))
    name = ", validation" if held_out else ", training part" if data.held_out is not None else ""
    return DataPart(f"{where}{name}", batches, len(rows))


def _items(given: Any, where: str, part: PartName) -> tuple[Iterable[Any], str]:
    """The batches of a loader's part, and which part it is, in words."""
    made = given() if callable(given) else given
    name = ""
    if isinstance(made, Mapping):
        name = ", validation" if part == "validation" and made.get(part) is not None else ", training part"
        made = part_of(made, where, *dict.fromkeys((part, "train")))
    if not isinstance(made, Iterable):
        raise UsageError(f"{where}: {type(made).__name__} is not an iterable of batches")
    return made, name


def _cut(batches: Iterable[ArrayBatch], size: int | None, samples: int | None) -> Iterator[ArrayBatch]:
    """Batches of at most ``size`` examples, and at most ``samples`` in all."""
    left = samples
    for batch in batches:
        step = size or batch.size
        for start in range(0, batch.size, max(step, 1)):
            stop = min(start + step, batch.size)
            stop = stop if left is None else min(stop, start + left)
            if stop > start:
                yield batch.slice(start, stop)
            if left is not None:
                left -= stop - start
        if left == 0:
            return
