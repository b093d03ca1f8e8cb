"""Where each value of a region lies, while its steps are scheduled one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.byte_calls import ByteCalls
from sift_onnx.backends.cpu.run.schedules.calls import Calls, words_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, input_key, kernel_shape, operand_key
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.tensor_copies import TensorCopies
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import Moving
from sift_onnx.errors import BackendError

__all__ = ["OpOf", "Values", "array_sizes"]

# The operator of a step in a layout.
OpOf = Callable[[int, Layout], _kernels.Op]


class Values:
    """The values of a region, and the calls that have been made for them.

    Attributes:
        region: that they are of.
        dims: sizes of each, by name; of inputs, under :func:`input_key`.
        layout_of: the layout of tensors of a given shape.
        op_of: the operator of a step in a layout.
        threads: that run it.
        isa: instruction set.
        calls: in order.
        views: of floats, by name.
        copies: of views.
        bytes: quantized values.
        integers: places of values.
        masks: arrays of the caller, by the name of the mask.
        direct: the caller's array of each output, by name.
        array_sizes: floats of each array of the caller.
    """

    def __init__(
        self,
        region: Region,
        dims: Mapping[str, Sizes],
        layout_of: Callable[[Shape], Layout],
        op_of: OpOf,
        threads: int,
        isa: str,
    ) -> None:
        self.region, self.layout_of, self.op_of, self.threads, self.isa = region, layout_of, op_of, threads, isa
        self.dims = dict(dims)
        self.calls = Calls()
        self.views: dict[str, PlacedView] = {}
        self.copies = TensorCopies(self.calls, layout_of, isa)
        self.bytes = ByteCalls(self.calls, isa)
        self.integers: dict[str, Stored] = {}
        self.masks: dict[str, str] = {}
        self.direct = {name: stored_key(name, "array") for name in region.outputs}
        self._movers = {step.output: i for i, step in enumerate(region.steps) if isinstance(step.spec, Moving)}
        keys = [input_key(name, view) for name, view in region.inputs]
        for number, (key, (name, view)) in enumerate(zip(keys, region.inputs, strict=True)):
            self._receive(number, key, name, view)
        first = len(keys)
        self.calls.places.update((array, (first + i, 0)) for i, array in enumerate(self.direct.values()))
        self.array_sizes = array_sizes(region, dims)

    def _receive(self, number: int, key: str, name: str, view: View) -> None:
        """An input lies in an array of the caller."""
        array = stored_key(key, "array")
        self.calls.places[array] = (number, 0)
        # An empty operand that is left out has no reader.
        dtype = self.region.dtypes.get(name, DType.FLOAT32)
        if view == "array":
            self.masks[name] = array
        elif dtype is DType.INT64:
            self.integers[key] = Stored(array, kernel_shape(self.dims[key], view), "integers")
        elif dtype.is_bytes:
            self.bytes.stored[key] = Stored(array, kernel_shape(self.dims[key], view), "bytes")
            if name in self.region.signed:
                self.bytes.signed.add(key)
        else:
            stored = Stored(array, kernel_shape(self.dims[key], view), "planes")
            self.views[key] = PlacedView.of(stored, self.dims[key])

    def view(self, step: Step, position: int) -> PlacedView:
        """An operand of floats."""
        return self.views[operand_key(step, position, self.views)]

    def operand(self, step: Step, position: int, view: PlacedView, read_as: View, layout: Layout) -> Stored:
        """A view of an operand as a tensor, see :meth:`TensorCopies.tensor`."""
        return self.copies.tensor(view, read_as, layout, step.dtype, self.mover(step.inputs[position]))

    def mover(self, name: str) -> int | None:
        """The index of the step that only moved a value to where it is."""
        return self._movers.get(name)

    def result_key(self, name: str, layout: Layout) -> str:
        """The tensor that a result is written to: the caller's array, if its layout is that."""
        in_place = layout == "planes" and name in self.direct
        return self.direct[name] if in_place else stored_key(name, layout)

    def compute(
        self,
        index: int,
        step: Step,
        op: _kernels.Op,
        operands: Sequence[Stored],
        result: tuple[str, Layout],
        mask: str = "",
    ) -> Stored:
        """Call ``op`` for a step; the tensor of its result, given by its key and layout."""
        key, layout = result
        read = tuple(stored.key for stored in operands)
        made = self.calls.call(op, operands[0].shape, read, key, step.result_dtype, index, mask)
        return Stored(key, made, layout)

    def check_result(self, step: Step, made: Stored) -> None:
        """Whether an operator makes the sizes that a step was planned with.

        Raises:
            BackendError: it does not.
        """
        dims = self.dims[step.output]
        if made.shape != kernel_shape(dims, step.result_view):
            raise BackendError(f"{step.output!r} comes out as {made.shape}, and {dims} was expected")


def array_sizes(region: Region, dims: Mapping[str, Sizes]) -> list[int]:
    """Floats, or words of four bytes, of the caller's arrays: the region's inputs, in order, then its outputs."""
    names = [(input_key(name, view), name) for name, view in region.inputs] + [(name, name) for name in region.outputs]
    return [words_of(math.prod(dims[key]), region.array_dtype(name)) for key, name in names]
