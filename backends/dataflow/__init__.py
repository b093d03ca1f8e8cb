"""Simulation of a weight-streaming dataflow machine that skips every zero weight.

Activations are resident on a grid of cores; each non-zero weight that arrives triggers one AXPY; partial sums are
reduced along a row of cores. ``docs/simulator.md`` states the model, its calibration and what is assumed.
"""

from sift_onnx.backends.dataflow.machines.machine import Machine
from sift_onnx.backends.dataflow.machines.preset_files import available_presets, load_machine
from sift_onnx.backends.dataflow.simulation.model_simulation import simulate
from sift_onnx.backends.dataflow.simulation.result import Simulation

__all__ = ["Machine", "Simulation", "available_presets", "load_machine", "simulate"]
