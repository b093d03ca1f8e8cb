"""Where batches come from: arrays of an ``.npz`` file, a folder of images, or whatever a user's function gives.

A source gives, epoch by epoch, one list of batches for each optimizer step: the parts whose gradients are accumulated.
Every epoch can be entered in its middle, so that a resumed run sees what the interrupted one would have seen.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sift_onnx.datasets.batches import fetched, part_of
from sift_onnx.datasets.examples import Examples
from sift_onnx.datasets.named_data import LoaderFunction, open_data
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec
from sift_onnx.training.trainer.augmentation import make_augment
from sift_onnx.training.trainer.batch import Batch, make_batch
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.seeds import mixed_seed, seed_everything
from sift_onnx.training.trainer.settings import TrainingSettings

__all__ = ["DataSource", "ExampleSource", "LoaderSource", "load_data", "source_of"]

_END = object()


class DataSource(ABC):
    """Batches for a training.

    Attributes:
        steps_per_epoch: optimizer steps in an epoch; None if that is not known.
        fingerprint: what a resumed run must find again, in words.
    """

    steps_per_epoch: int | None
    fingerprint: str

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """The parts of each step of an epoch, from step ``start`` on."""

    @abstractmethod
    def validation(self) -> Iterator[Batch]:
        """Batches to validate on, if there are any."""

    def targets(self) -> Iterable[torch.Tensor]:
        """All targets, where they are known beforehand."""
        return ()


class ExampleSource(DataSource):
    """Examples that are shuffled again in each epoch; what does not fill a batch is left for other epochs."""

    def __init__(
        self,
        train: Examples,
        validation: Examples | None,
        settings: TrainingSettings,
        ranks: Ranks,
        where: str = "the data",
    ) -> None:
        """Examples to train on, and to validate on.

        Raises:
            UsageError: there are too few examples for a batch, or a batch cannot be shared out.
        """
        self._train, self._validation = train, validation
        self._settings, self._ranks = settings, ranks
        size, parts = settings.batch_size, settings.accumulate * ranks.size
        if size % parts:
            raise UsageError(
                f"batch_size is {size}, which {settings.accumulate} accumulated parts on {ranks.size} ranks cannot "
                f"share; choose a multiple of {parts}"
            )
        if train.count < size:
            raise UsageError(f"{where} has {train.count} examples, and batch_size is {size}; choose a smaller one")
        self.steps_per_epoch = train.count // size
        self.fingerprint = train.fingerprint

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        generator = torch.Generator().manual_seed(mixed_seed("order", self._settings.seed, epoch))
        order = torch.randperm(self._train.count, generator=generator)
        assert self.steps_per_epoch is not None
        size, accumulate = self._settings.batch_size, self._settings.accumulate
        for step in range(start, self.steps_per_epoch):
            chosen = order[step * size : (step + 1) * size].chunk(accumulate * self._ranks.size)
            # Augmentation draws the same in a run that is resumed here.
            seed_everything(mixed_seed("augment", self._settings.seed, epoch, step, self._ranks.rank))
            own = chosen[self._ranks.rank :: self._ranks.size]
            yield [Batch.of_arrays(self._train.batch(rows.numpy())) for rows in own]

    def validation(self) -> Iterator[Batch]:
        if self._validation is not None:
            count, size = self._validation.count, max(1, self._settings.batch_size // self._settings.accumulate)
            for first in range(0, count, size):
                yield Batch.of_arrays(self._validation.batch(np.arange(first, min(first + size, count))))

    def targets(self) -> Iterable[torch.Tensor]:
        parts = [part for part in (self._train, self._validation) if part is not None]
        return [torch.from_numpy(part.target) for part in parts if part.target is not None]


class LoaderSource(DataSource):
    """Any iterable of batches: a DataLoader, a list, or a function that gives an iterable for each epoch.

    Each rank takes its share of every batch, unless the data is shared out already.
    """

    def __init__(
        self,
        train: Iterable[Any] | Callable[[int], Iterable[Any]],
        validation: Iterable[Any] | None,
        specs: Sequence[TensorSpec],
        settings: TrainingSettings,
        ranks: Ranks,
        *,
        shared_out: bool = False,
        where: str = "the data",
    ) -> None:
        """Wrap an iterable.

        Args:
            train: iterated once per epoch, or called with the epoch's number.
            validation: iterated after each epoch.
            specs: the model's inputs.
            settings: of the training.
            ranks: that share the data.
            shared_out: whether each rank has batches of its own.
            where: what error messages call the data.
        """
        self._make = train if callable(train) else lambda epoch: train
        self._validation, self._specs = validation, specs
        self._settings, self._ranks = settings, ranks
        self._shared_out, self._where = shared_out or ranks.size == 1, where
        length = None if callable(train) else _length(train)
        self.steps_per_epoch = None if length is None else -(-length // settings.accumulate)
        if length == 0:
            raise UsageError(f"{where} has no batches")
        self.fingerprint = f"{length} batches"

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        # A DataLoader draws its order from torch's generator, or from its own.
        seed = mixed_seed("epoch", self._settings.seed, epoch)
        seed_everything(seed)
        items = self._make(epoch)
        sampler = getattr(items, "sampler", None)
        for holder in (items, sampler):
            if isinstance(own := getattr(holder, "generator", None), torch.Generator):
                own.manual_seed(seed)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        fetches = self._fetched(fetched(iter(items), self._where), epoch)
        accumulate = self._settings.accumulate
        for _ in itertools.islice(fetches, start * accumulate):
            pass
        while parts := list(itertools.islice(fetches, accumulate)):
            batches = [make_batch(item, self._specs, self._where) for item in parts]
            if not self._shared_out:
                # Too few for every rank to have one: left out on all of them.
                batches = [b.part(self._ranks.rank, self._ranks.size) for b in batches if b.size >= self._ranks.size]
            if batches:
                yield batches

    def _fetched(self, iterator: Iterator[Any], epoch: int) -> Iterator[Any]:
        """What an iterator gives; random draws of a fetch are its own, whether it is used or skipped."""
        for index in itertools.count():
            seed_everything(mixed_seed("fetch", self._settings.seed, epoch, index))
            item = next(iterator, _END)
            if item is _END:
                return
            yield item

    def validation(self) -> Iterator[Batch]:
        where = f"{self._where}, validation"
        for item in fetched(self._validation, where) if self._validation is not None else ():
            yield make_batch(item, self._specs, where)


def load_data(spec: str, specs: Sequence[TensorSpec], settings: TrainingSettings, ranks: Ranks) -> DataSource:
    """The data that ``spec`` names.

    Args:
        spec: what :func:`~sift_onnx.datasets.named_data.open_data` takes. A function is offered ``seed``, ``rank``
            and ``world_size``. Iterables that can be read only once are made again for each epoch.
        specs: the model's inputs.
        settings: of the training.
        ranks: that share the data; a function that takes ``rank`` gives each its own batches.

    Raises:
        UsageError: there is no such data, or it does not fit the model.
    """
    data = open_data(
        spec,
        specs,
        offered={"seed": settings.seed, "rank": ranks.rank, "world_size": ranks.size},
        normalize=settings.normalize,
        augment=make_augment(settings.augment),
    )
    if isinstance(data, LoaderFunction):
        shared_out = "rank" in data.taken
        return source_of(data.call, specs, settings, ranks, shared_out=shared_out, where=data.where)
    return ExampleSource(data.train, data.held_out, settings, ranks, spec)


def source_of(
    data: Any,
    specs: Sequence[TensorSpec],
    settings: TrainingSettings,
    ranks: Ranks,
    *,
    shared_out: bool = False,
    where: str = "the data",
) -> DataSource:
    """A source from an iterable of batches, a mapping of ``train`` and ``validation``, or a function that gives one.

    Raises:
        UsageError: it is none of these, or can be read only once and nothing makes it again.
    """
    made = data() if callable(data) else data
    train, validation = made, None
    if isinstance(made, Mapping):
        train, validation = part_of(made, where, "train"), made.get("validation")
    if not isinstance(train, Iterable) or not (validation is None or isinstance(validation, Iterable)):
        wrong = validation if isinstance(train, Iterable) else train
        raise UsageError(f"{where}: {type(wrong).__name__} is not an iterable of batches")
    if validation is not None and iter(validation) is validation:
        validation = list(validation)
    if iter(train) is not train:
        return LoaderSource(train, validation, specs, settings, ranks, shared_out=shared_out, where=where)
    if not callable(data):
        raise UsageError(f"{where}: an iterator can be read once only; give a list, a DataLoader or a function")

    def reread(epoch: int) -> Iterable[Any]:
        given = data()
        batches: Iterable[Any] = given["train"] if isinstance(given, Mapping) else given
        return batches

    return LoaderSource(reread, validation, specs, settings, ranks, shared_out=shared_out, where=where)


def _length(items: Any) -> int | None:
    try:
        return len(items)
    except TypeError:  # a DataLoader over an iterable dataset has __len__, and does not know
        return None
