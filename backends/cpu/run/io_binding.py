"""``IOBinding``: arrays that stay bound to inputs and outputs from run to run, as onnxruntime has it, on the CPU.

A cache whose past and present are bound to one memory grows in place: a run writes what is new, and copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from sift_onnx.errors import UsageError

__all__ = ["IOBinding"]

Array = npt.NDArray[Any]


class IOBinding:
    """What is bound to the inputs and outputs of a session; made by ``InferenceSession.io_binding``.

    Attributes:
        inputs: arrays by the names of inputs.
        outputs: by the names of outputs, in the order in which they were bound: memory for them, or None where the run
            makes it.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Bind nothing.

        Args:
            inputs: names that the model has.
            outputs: likewise.
        """
        self._known = {"input": tuple(inputs), "output": tuple(outputs)}
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, Array | None] = {}
        self._results: dict[str, Array] = {}
        # Values of onnxruntime whose memory is bound.

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array; what it holds when a run begins is read.

        Raises:
            UsageError: there is no such input, or it is no array.
        """
        self._check("input", name)
        if not isinstance(arr_on_cpu, np.ndarray):
            raise UsageError(f"input {name!r} is a {type(arr_on_cpu).__name__}; pass a numpy array")
        self.inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory to an input.

        Args:
            name: of the input.
            device_type: ``cpu``.
            device_id: 0.
            element_type: a type of numpy, or a number as of ``onnx.TensorProto``.
            shape: of the array.
            buffer_ptr: address of its first element; the memory must stay while it is bound.

        Raises:
            UsageError: there is no such input, or the device is no CPU.
        """
        self._check("input", name)
        _check_device(device_type)
        self.inputs[name] = _array_at(buffer_ptr, shape, element_type)

    def bind_ortvalue_input(self, name: str, ortvalue: ort.OrtValue) -> None:
        """Bind a value of onnxruntime on the CPU; errors as of :meth:`bind_input`."""
        self._check("input", name)
        self.inputs[name] = self._memory_of("input", name, ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in memory of the caller's or in what the run makes.

        Args:
            name: of the output.
            device_type: ``cpu``.
            device_id: 0.
            element_type: with ``buffer_ptr``: as of :meth:`bind_input`.
            shape: likewise.
            buffer_ptr: address of memory that the output is written to; None leaves that to the run.

        Raises:
            UsageError: there is no such output, the device is no CPU, or memory comes without a type and a shape.
        """
        self._check("output", name)
        _check_device(device_type)
        if buffer_ptr is None:
            self.outputs[name] = None
            return
        if element_type is None or shape is None:
            raise UsageError(f"output {name!r}: memory needs an `element_type` and a `shape`")
        self.outputs[name] = _array_at(buffer_ptr, shape, element_type)

    def bind_ortvalue_output(self, name: str, ortvalue: ort.OrtValue) -> None:
        """Ask for an output in the memory of a value of onnxruntime; errors as of :meth:`bind_output`."""
        self._check("output", name)
        self.outputs[name] = self._memory_of("output", name, ortvalue)

    def synchronize_inputs(self) -> None:
        """Nothing: the CPU's memory is up to date."""

    def synchronize_outputs(self) -> None:
        """As :meth:`synchronize_inputs`."""

    def get_outputs(self) -> list[ort.OrtValue]:
        """The outputs of the run before, in the order in which they were bound, without a copy."""
        return [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for array in self._results.values()]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The outputs of the run before as arrays of their own."""
        return [array.copy() for array in self._results.values()]

    def clear_binding_inputs(self) -> None:
        """Bind no input any more."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no output any more."""
        self.outputs.clear()
        self._results.clear()

    def take(self, results: Mapping[str, Array]) -> None:
        """Bring what a run has made to where it is bound.

        Raises:
            UsageError: the memory is of another type or shape.
        """
        self._results = {}
        for name, target in self.outputs.items():
            made = results[name]
            if target is not None and target is not made:
                if target.dtype != made.dtype or target.shape != made.shape:
                    raise UsageError(
                        f"output {name!r} is {made.dtype} of {list(made.shape)}, and {target.dtype} of "
                        f"{list(target.shape)} is bound to it"
                    )
                np.copyto(target, made)
            self._results[name] = made if target is None else target

    def _check(self, kind: str, name: str) -> None:
        known = self._known[kind]
        if name not in known:
            raise UsageError(f"unknown {kind} {name!r}; the model's {kind}s are {', '.join(map(repr, known))}")

    def _memory_of(self, kind: str, name: str, ortvalue: ort.OrtValue) -> Array:
        if not isinstance(ortvalue, ort.OrtValue) or not ortvalue.is_tensor():
            raise UsageError(
                f"{kind} {name!r} is a {type(ortvalue).__name__}; pass an onnxruntime.OrtValue of a tensor"
            )
        _check_device(ortvalue.device_name())
        return _array_at(ortvalue.data_ptr(), ortvalue.shape(), ortvalue.element_type(), owner=ortvalue)


def _check_device(kind: str) -> None:
    if kind.lower() != "cpu":
        raise UsageError(f"the device is {kind!r}; the kernels run on the CPU")


@dataclass(frozen=True)
class _Memory:
    """Bytes as numpy takes them; arrays over them keep the owner alive.

    Attributes:
        owner: of the bytes; None if the caller keeps them.
    """

    address: int
    nbytes: int
    owner: object

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False)}


def _array_at(address: int, shape: Sequence[int], element_type: Any, owner: object = None) -> Array:
    if isinstance(element_type, int):
        element_type = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    dtype = np.dtype(element_type)
    if dtype.hasobject:
        raise UsageError("strings have no memory to bind; bind them as an array by `bind_cpu_input`")
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(tuple(shape), dtype)
    array: Array = np.asarray(_Memory(address, nbytes, owner)).view(dtype).reshape(tuple(shape))
    return array
