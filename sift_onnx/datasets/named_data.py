"""What ``--data`` names, for training, calibration and evaluation alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sift_onnx.datasets.arrays import read_arrays
from sift_onnx.datasets.examples import Augment, Examples, ImageExamples
from sift_onnx.datasets.folder import read_image_folder
from sift_onnx.datasets.hub import read_hub_images
from sift_onnx.datasets.normalization import Normalization
from sift_onnx.datasets.user_functions import load_function
from sift_onnx.errors import UsageError
from sift_onnx.plugins import first_line
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["DATA_FORMS", "ExampleSet", "LoaderFunction", "open_data"]

DATA_FORMS = "FILE.py:FUNCTION|FILE.npz|FOLDER|hf:NAME[:SPLIT]"


@dataclass(frozen=True)
class ExampleSet:
    """Examples that are picked by number.

    Attributes:
        train: examples to train on, and to calibrate with.
        held_out: examples to validate on; None if the data has no such part.
    """

    train: Examples
    held_out: Examples | None


@dataclass(frozen=True)
class LoaderFunction:
    """A function of the user's that gives batches.

    Attributes:
        call: gives an iterable of batches, or a mapping of ``train`` and ``validation``.
        taken: names of the arguments that it takes of those that were offered.
        where: what error messages call it.
    """

    call: Callable[[], Any]
    taken: frozenset[str]
    where: str


def open_data(
    spec: str,
    specs: Sequence[TensorSpec],
    *,
    offered: Mapping[str, Any] | None = None,
    normalize: str | None = None,
    augment: Augment | None = None,
) -> ExampleSet | LoaderFunction:
    """The data that ``spec`` names.

    Args:
        spec: ``FILE.npz``; a folder of images (:func:`~sift_onnx.datasets.folder.read_image_folder`);
            ``hf:NAME[:SPLIT]``, images of Hugging Face's ``datasets``; or ``FILE.py:FUNCTION``, which returns an
            iterable of batches, or a mapping with ``train`` and ``validation``.
        specs: the model's inputs.
        offered: arguments that such a function is given if it has parameters of these names.
        normalize: of images, see :meth:`Normalization.parse`.
        augment: changes images of the training part.

    Raises:
        UsageError: there is no such data, or it does not fit the model.
        MissingExtraError: it needs a package that is not installed.
    """
    normalization = Normalization.parse(normalize)
    if not spec:
        raise UsageError(f"`data` is empty; write {DATA_FORMS}")
    if spec.startswith("hf:") or Path(spec).is_dir():
        images = read_hub_images(spec) if spec.startswith("hf:") else read_image_folder(Path(spec))
        held_out = images.held_out
        return ExampleSet(
            ImageExamples(images.train, specs, spec, normalization, augment),
            None if held_out is None else ImageExamples(held_out, specs, spec, normalization),
        )
    for name, value in (("normalize", normalization), ("augment", augment)):
        if value is not None:
            raise UsageError(f"`{name}` is for folders of images, and `data` is {spec!r}; do it in that data")
    if spec.endswith(".npz"):
        return ExampleSet(*read_arrays(Path(spec), specs))
    if ".py:" not in spec:
        raise UsageError(f"`data` is {spec!r}; write FILE.npz, a folder of images, hf:NAME, or FILE.py:FUNCTION")
    function = load_function(spec, "`data`")
    parameters = inspect.signature(function).parameters
    taken = {name: value for name, value in (offered or {}).items() if name in parameters}

    def call() -> Any:
        try:
            return function(**taken)
        except Exception as error:
            raise UsageError(f"`data` {spec!r}: the function fails: {first_line(error)}") from error

    return LoaderFunction(call, frozenset(taken), f"`data` {spec!r}")
