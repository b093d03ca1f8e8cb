"""A back end: the reference evaluator of onnx, which runs in numpy, with Snake added."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from sift_onnx.backends.base import DEFAULT_OPTIONS, Backend, CompileOptions, ModelSource, Program
from sift_onnx.errors import BackendError


class Snake(OpRun):
    """``x + sin(alpha x) ** 2 / alpha``."""

    op_domain = "com.example"

    def _run(self, x: npt.NDArray[Any], alpha: npt.NDArray[Any]) -> tuple[npt.NDArray[Any]]:
        alpha = alpha.reshape(-1, *(1,) * (x.ndim - 2))
        return ((x + np.sin(alpha * x) ** 2 / alpha).astype(x.dtype),)


class ReferenceBackend(Backend):
    """onnx's reference evaluator: slow, and close to the words of the standard."""

    name = "reference"

    def compile(self, model: ModelSource, options: CompileOptions = DEFAULT_OPTIONS) -> ReferenceProgram:
        """An evaluator of ``model``; it runs at any batch, on one thread."""
        source = os.fspath(model) if isinstance(model, (str, os.PathLike)) else model
        try:
            return ReferenceProgram(ReferenceEvaluator(source, new_ops=[Snake]))
        except Exception as error:  # the evaluator raises types of its own, and of numpy
            raise BackendError(f"the reference evaluator cannot load the model: {error}") from error


class ReferenceProgram(Program):
    """An evaluator."""

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        """Wrap ``evaluator``."""
        self._evaluator = evaluator

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """See :meth:`Program.run`."""
        try:
            arrays = self._evaluator.run(None, dict(feeds))
        except Exception as error:  # as above
            raise BackendError(f"the reference evaluator cannot run the model: {error}") from error
        return dict(zip(self._evaluator.output_names, arrays, strict=True))
