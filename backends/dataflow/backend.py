"""The back end: programs whose time is simulated."""

from __future__ import annotations

from typing import ClassVar

from sift_onnx.backends.base import DEFAULT_OPTIONS, Backend, CompileOptions, ModelSource
from sift_onnx.backends.dataflow.functional import DataflowProgram
from sift_onnx.backends.dataflow.machine import available_presets, load_machine

__all__ = ["DataflowBackend"]


class DataflowBackend(Backend):
    """A dataflow machine that skips every zero weight; wse2 unless a preset is named."""

    name = "dataflow"
    presets: ClassVar[tuple[str, ...]] = available_presets()

    def compile(self, model: ModelSource, options: CompileOptions = DEFAULT_OPTIONS) -> DataflowProgram:
        """See :meth:`Backend.compile`; layers that do not fit on the machine are found when it is simulated."""
        return DataflowProgram(model, load_machine(self.preset or "wse2"), options)
