"""Accuracies of configurations over several seeds, all with the learning rate that suits the dense network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from images import SETTINGS, ImageSetting, shares_of_macs, train_images
from jobs import Jobs

from sift_onnx.errors import UnsupportedError

__all__ = ["DENSE", "Configuration", "Found", "ImageStudy", "wide"]

FIRST_TUNING_SEED = 1000
# Those from 0 on have been looked at when the small setting was chosen.
FIRST_SEED = 100


@dataclass(frozen=True)
class Configuration:
    """What is trained.

    Attributes:
        transform: arguments of :func:`sift_onnx.transform` as pairs; none for the dense network.
        algorithm: ``static``, ``set`` or ``rigl``.
    """

    transform: tuple[tuple[str, str], ...] = ()
    algorithm: str = "static"


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


class ImageStudy:
    """Trains configurations that several tables share, once.

    Args:
        setting: a key of ``SETTINGS``.
        device: of the training.
        jobs: runs it.
    """

    def __init__(self, setting: str, device: str, jobs: Jobs) -> None:
        self._name, self._device, self._jobs = setting, device, jobs

    @property
    def setting(self) -> ImageSetting:
        """How much is trained."""
        return SETTINGS[self._name]

    def find(self, configurations: Sequence[Configuration], what: str) -> dict[Configuration, Found]:
        """Choose a rate for the dense network on validation images, then train with other seeds.

        All have that rate, as in the paper, where published settings of the dense network are taken over (appendix B);
        chosen for each of them by a few runs, it would differ by chance, and so would accuracies. Configurations that
        do not apply to this network, whose layers are too small, are left out.
        """
        chosen = self.setting
        sizes = self._sizes(configurations)
        configurations = list(sizes)
        tuning = [
            self._job(DENSE, rate, FIRST_TUNING_SEED + seed, "validation")
            for rate in chosen.rates
            for seed in range(chosen.tuning_seeds)
        ]
        scores = iter(self._jobs.run(train_images, tuning, f"{what}, learning rates"))
        means = {rate: statistics.mean(next(scores) for _ in range(chosen.tuning_seeds)) for rate in chosen.rates}
        best = max(means, key=lambda rate: means[rate])
        runs = [
            self._job(configuration, best, FIRST_SEED + seed, "test")
            for configuration in configurations
            for seed in range(chosen.seeds)
        ]
        accuracies = iter(self._jobs.run(train_images, runs, what))
        found = {}
        for configuration in configurations:
            values = tuple(next(accuracies) for _ in range(chosen.seeds))
            found[configuration] = Found(best, values, *sizes[configuration])
        return found

    def _sizes(self, configurations: Sequence[Configuration]) -> dict[Configuration, tuple[int, float]]:
        sizes = {}
        for configuration in configurations:
            try:
                sizes[configuration] = shares_of_macs(self._name, dict(configuration.transform))
            except UnsupportedError as error:
                click.echo(f"{configuration} does not apply: {error}", err=True)
        return sizes

    def _job(self, configuration: Configuration, rate: float, seed: int, part: str) -> dict[str, Any]:
        return {
            "setting": self._name,
            "transform": dict(configuration.transform),
            "algorithm": configuration.algorithm,
            "rate": rate,
            "seed": seed,
            "part": part,
            "device": self._device,
        }
