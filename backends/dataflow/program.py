"""A program of the back end: outputs of the functional model, times of the fast simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from sift_onnx.backends.base import DEFAULT_OPTIONS, CompileOptions, NodeProfile, Placement, Profile, Program
from sift_onnx.backends.dataflow.execution.functional_model import FunctionalModel
from sift_onnx.backends.dataflow.execution.outputs import Arithmetic
from sift_onnx.backends.dataflow.machines.machine import Machine
from sift_onnx.backends.dataflow.simulation.model_simulation import simulate
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.model import Model, ModelLike

__all__ = ["DataflowProgram"]

Array = npt.NDArray[Any]


class DataflowProgram(Program):
    """A model on a simulated machine.

    :meth:`run` computes what the machine would return, on this one; how long the machine would take is simulated, and
    in :attr:`simulated_ms`.

    Attributes:
        threads: of onnxruntime, for nodes without weights.
        machine: that is simulated.
        arithmetic: see :class:`FunctionalModel`.
        inputs: what :meth:`run` takes.
    """

    def __init__(
        self,
        model: ModelLike,
        machine: Machine,
        options: CompileOptions = DEFAULT_OPTIONS,
        arithmetic: Arithmetic = "float32",
    ) -> None:
        """Cut ``model`` into weighted nodes and pieces between them; errors as :meth:`Backend.compile` has them."""
        self.machine, self.arithmetic = machine, arithmetic
        self._options = options
        self._model = Model.load(model)
        self._functional = FunctionalModel(self._model, machine, arithmetic, options.threads)
        self.threads, self.inputs = self._functional.threads, self._functional.inputs
        self._simulation: Simulation | None = None

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Per node of the model: ``csr`` or ``onnxruntime``, and why."""
        return self._functional.placements

    @property
    def simulation(self) -> Simulation:
        """The fast simulation, at the batch and shapes that the program was compiled for."""
        if self._simulation is None:
            shapes = self._options.input_shapes
            self._simulation = simulate(self._model, self.machine, self._options.batch, input_shapes=shapes)
        return self._simulation

    @property
    def simulated_ms(self) -> float:
        """How long a run takes on the simulated machine, in milliseconds."""
        return 1e3 * self.simulation.seconds

    def profile(self, feeds: Mapping[str, Array] | None = None) -> Profile:
        """Simulated time per node, see :meth:`Program.profile`; it does not depend on ``feeds``."""
        nodes = [
            NodeProfile(
                layer.node,
                layer.op,
                self.machine.name,
                f"bound by {layer.bound}",
                ms=1e3 * layer.cycles / self.machine.clock_hz,
            )
            for layer in self.simulation.layers
        ]
        return Profile(tuple(nodes), 1)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`Program.run`."""
        return self._functional.run(feeds)
