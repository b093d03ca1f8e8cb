"""Accuracies of configurations over several seeds, all with the learning rate that suits the dense network."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from compare import Difference
from images import SETTINGS, ImageSetting, Sizes, sizes, train_images
from jobs import Jobs

from sift_onnx.errors import UnsupportedError

__all__ = ["DENSE", "Configuration", "Found", "ImageStudy", "differences", "wide"]

FIRST_TUNING_SEED = 1000


@dataclass(frozen=True)
class Configuration:
    """What is trained.

    Attributes:
        transform: arguments of :func:`sift_onnx.transform` as pairs; none for the dense network.
        algorithm: ``static``, ``set`` or ``rigl``.
        width: of the dense network; None for that of the setting.
        length: of the training, as a share of the setting's.
        network: a name of `networks.py`; empty for the setting's own.
    """

    transform: tuple[tuple[str, str], ...] = ()
    algorithm: str = "static"
    width: float | None = None
    length: float = 1.0
    network: str = ""

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Configuration:
        """Of what JSON keeps of it."""
        return cls(**{**kept, "transform": tuple((name, value) for name, value in kept["transform"])})


DENSE = Configuration()


def wide(sparsity: str, algorithm: str = "rigl", **more: str) -> Configuration:
    """Sparse Wide."""
    return Configuration((("wide", sparsity), *more.items()), algorithm)


@dataclass(frozen=True)
class Found:
    """Of a configuration.

    Attributes:
        rate: the learning rate that was best on validation images.
        accuracies: on test images in percent, seed by seed.
        macs: multiply-accumulates for an image.
        dense: share of them in layers that stay dense.
    """

    rate: float
    accuracies: tuple[float, ...]
    macs: int
    dense: float

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Found:
        """Of what JSON keeps of it."""
        return cls(**{**kept, "accuracies": tuple(kept["accuracies"])})


def differences(
    found: Mapping[Configuration, Found], pairs: Mapping[str, tuple[Configuration, Configuration]]
) -> tuple[list[bool | None], str]:
    """Whether the first of each pair is above the second, and the differences as text with the pairs' labels."""
    told = {label: Difference.of(found[a].accuracies, found[b].accuracies) for label, (a, b) in pairs.items()}
    text = ", ".join(f"{difference} at {label}" for label, difference in told.items())
    return [difference.is_above for difference in told.values()], text


class ImageStudy:
    """Trains configurations that several tables share, once.

    Args:
        setting: a key of ``SETTINGS``.
        device: of the training.
        jobs: runs it.
    """

    def __init__(self, setting: str, device: str, jobs: Jobs) -> None:
        self._name, self._device, self.jobs = setting, device, jobs

    @property
    def name(self) -> str:
        """Key of the setting."""
        return self._name

    @property
    def setting(self) -> ImageSetting:
        """How much is trained."""
        return SETTINGS[self._name]

    def find(
        self, configurations: Sequence[Configuration], what: str, seeds: int | None = None
    ) -> dict[Configuration, Found]:
        """Choose a rate for each dense network on validation images, then train with other seeds.

        All that is made of a network has its rate, as in the paper, where published settings of the dense network are
        taken over (appendix B); chosen for each of them by a few runs, it would differ by chance, and so would
        accuracies. Configurations that do not apply, as layers are too small, are left out.

        Args:
            configurations: what is trained.
            what: it is for, in lines that say how far it is.
            seeds: runs of each; those of the setting if it is None.
        """
        count = seeds or self.setting.seeds
        found_sizes = self.sizes(configurations)
        there = list(found_sizes)
        rates = {network: self.rate(what, network) for network in dict.fromkeys(c.network for c in there)}
        runs = [
            self._job(configuration, rates[configuration.network], self.setting.first_seed + seed, "test")
            for configuration in there
            for seed in range(count)
        ]
        accuracies = iter(self.jobs.run(train_images, runs, what))
        found = {}
        for configuration in there:
            values = tuple(next(accuracies) for _ in range(count))
            own = found_sizes[configuration]
            found[configuration] = Found(rates[configuration.network], values, own.macs, own.dense)
        return found

    def rate(self, what: str, network: str = "") -> float:
        """The learning rate of what is made of a network: the best of the dense one on validation images."""
        chosen = self.setting
        seeds = 1 if network else chosen.tuning_seeds
        tuning = [
            self._job(Configuration(network=network), rate, FIRST_TUNING_SEED + seed, "validation")
            for rate in chosen.rates
            for seed in range(seeds)
        ]
        scores = iter(self.jobs.run(train_images, tuning, f"{what}, learning rates {network}".rstrip()))
        means = {rate: statistics.mean(next(scores) for _ in range(seeds)) for rate in chosen.rates}
        return max(means, key=lambda rate: means[rate])

    def sizes(self, configurations: Sequence[Configuration]) -> dict[Configuration, Sizes]:
        """What each computes; those that do not apply are left out."""
        found = {}
        for configuration in configurations:
            width = self.width_of(configuration)
            try:
                found[configuration] = sizes(self._name, dict(configuration.transform), width, configuration.network)
            except UnsupportedError as error:
                click.echo(f"{configuration} does not apply: {error}", err=True)
        return found

    def width_of(self, configuration: Configuration) -> float:
        """Of the dense network that a configuration is made of."""
        return self.setting.width if configuration.width is None else configuration.width

    def own_width(self, width: float) -> float | None:
        """What a configuration of this width has, so that the setting's own is the same one everywhere."""
        return None if width == self.setting.width else width

    def _job(self, configuration: Configuration, rate: float, seed: int, part: str) -> dict[str, Any]:
        network = {"network": configuration.network} if configuration.network else {}
        return {
            **network,
            "setting": self._name,
            "transform": dict(configuration.transform),
            "algorithm": configuration.algorithm,
            "width": self.width_of(configuration),
            "length": configuration.length,
            "rate": rate,
            "seed": seed,
            "part": part,
            "device": self._device,
        }
