"""The ``onnx.backend.base`` interface on the sparse CPU back end, for tools that run models through it.

    import sift_onnx.backend as backend
    outputs = backend.prepare(model).run([x])

Models whose inputs or outputs numpy cannot hold (sequences, maps, 4-bit types) run in onnxruntime whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime as ort
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from sift_onnx.backends.base import CompileOptions, Placement, refuse_copies
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_label

__all__ = [
    "SiftBackend",
    "SiftBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

# run_node() gets an operator but not its version.
_NODE_OPSET = 21
_NODE_IR_VERSION = 10


class SiftBackendRep(BackendRep):
    """A prepared model."""

    def __init__(self, program: CpuProgram | ort.InferenceSession) -> None:
        """Wrap what runs the model."""
        self._program = program
        if isinstance(program, CpuProgram):
            self._inputs = [spec.name for spec in program.inputs]
            self._outputs = [spec.name for spec in program.outputs]
        else:
            self._inputs = [value.name for value in program.get_inputs()]
            self._outputs = [value.name for value in program.get_outputs()]

    def __reduce__(self) -> NoReturn:
        refuse_copies("a prepared model")

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Where each node runs, and why there; empty where onnxruntime has the whole model."""
        return self._program.placements if isinstance(self._program, CpuProgram) else ()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, as a named tuple in the model's order.

        Args:
            inputs: one per input of the model in its order, or by name; a single one may come without a list.
            **kwargs: none is known.

        Raises:
            UsageError: the inputs are not those of the model.
            BackendError: the run failed.
        """
        if kwargs:
            raise UsageError(f"unknown argument {next(iter(kwargs))!r}; run() takes the inputs alone")
        feeds = self._feeds(inputs)
        if isinstance(self._program, CpuProgram):
            arrays = list(self._program.run(feeds).values())
        else:
            arrays = self._program.run(None, feeds)
        outputs: tuple[Any, ...] = namedtupledict("Outputs", self._outputs)(*arrays)
        return outputs

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) > len(self._inputs):
                raise UsageError(f"{len(given)} inputs were given, the model takes {len(self._inputs)}")
            feeds = dict(zip(self._inputs, given, strict=False))
        # onnx's own cases hand a tensor of no dimensions over as a scalar of numpy.
        return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in feeds.items()}


class SiftBackend(Backend):
    """The sparse CPU back end as onnx's test suite and tools expect one."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether :meth:`prepare` would take the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except Exception:  # the question is whether it works, not what else goes wrong
            return False
        return True

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | bytes | str | os.PathLike[str], device: str = "CPU", **kwargs: Any
    ) -> SiftBackendRep:
        """Compile a model.

        Args:
            model: the model, its bytes, or its path.
            device: ``CPU``.
            **kwargs: ``threads``.

        Raises:
            UsageError: another device, or an unknown argument.
            ModelReadError: the file cannot be read.
            BackendError: onnxruntime refused the model.
        """
        if not cls.supports_device(device):
            raise UsageError(f"device {device!r} is not supported; there is 'CPU'")
        threads = kwargs.pop("threads", None)
        if kwargs:
            raise UsageError(f"unknown argument {next(iter(kwargs))!r}; prepare() knows threads")
        try:
            source = Model.load(model) if isinstance(model, bytes) else model
            return SiftBackendRep(CpuProgram(source, CompileOptions(threads)))
        except UnsupportedError:
            whole = model.SerializeToString() if isinstance(model, onnx.ModelProto) else os.fspath(model)
            return SiftBackendRep(ort.InferenceSession(whole, providers=["CPUExecutionProvider"]))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on arrays.

        Args:
            node: whose non-empty inputs get the arrays in order.
            inputs: the arrays.
            device: ``CPU``.
            outputs_info: types of the outputs; inferred if None.
            **kwargs: ``opset_version``, by default 21, and those of :meth:`prepare`.
        """
        version = kwargs.pop("opset_version", _NODE_OPSET)
        names = [name for name in node.input if name]
        arrays = [np.asarray(array) for array in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        if len(arrays) != len(names):
            raise UsageError(f"node {node_label(node)} reads {len(names)} inputs, {len(arrays)} were given")
        element = onnx.helper.np_dtype_to_tensor_dtype
        values = [
            onnx.helper.make_tensor_value_info(name, element(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        made = [name for name in node.output if name]
        if outputs_info is None:
            results = [onnx.ValueInfoProto(name=name) for name in made]
        else:
            results = [
                onnx.helper.make_tensor_value_info(name, element(np.dtype(dtype)), shape)
                for name, (dtype, shape) in zip(made, outputs_info, strict=True)
            ]
        graph = onnx.helper.make_graph([node], "node", values, results)
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)], ir_version=_NODE_IR_VERSION
        )
        if outputs_info is None:
            model = onnx.shape_inference.infer_shapes(model)
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether ``device`` is a CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, KeyError, ValueError):
            return False


is_compatible = SiftBackend.is_compatible
prepare = SiftBackend.prepare
run_model = SiftBackend.run_model
run_node = SiftBackend.run_node
supports_device = SiftBackend.supports_device
