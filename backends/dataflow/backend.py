"""The back end: programs whose time is simulated."""

from __future__ import annotations

from typing import ClassVar

from sift_onnx.backends.base import DEFAULT_OPTIONS, Backend, CompileOptions, ModelSource
from sift_onnx.backends.dataflow.machines.preset_files import available_presets, load_machine
from sift_onnx.backends.dataflow.program import DataflowProgram

__all__ = ["DataflowBackend"]


class DataflowBackend(Backend):
    """A dataflow machine that skips every zero weight; wse2 unless a preset is named."""

    name = "dataflow"
    presets: ClassVar[tuple[str, ...]] = available_presets()

    def __init__(self, preset: str | None = None) -> None:
        """Choose a preset, or a TOML file by its path.

        Raises:
            UsageError: there is no such preset.
        """
        is_file = preset is not None and preset.endswith(".toml")
        super().__init__(None if is_file else preset)
        self.preset = preset

    def compile(self, model: ModelSource, options: CompileOptions = DEFAULT_OPTIONS) -> DataflowProgram:
        """See :meth:`Backend.compile`; layers that do not fit on the machine are found when it is simulated."""
        return DataflowProgram(model, load_machine(self.preset or "wse2"), options)
