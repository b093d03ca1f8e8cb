"""Steps on rows, moved in front of a reshape that keeps the rows as they are.

Keras and TensorFlow flatten tokens before a product, and give them their axes back before they add its bias. Kernels
see the same rows either way; but fusion only sees a layer, and what follows it, where nothing lies between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sift_onnx.backends.lowering.dims import Dims, product
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import ChannelScale, Elementwise, Reshaped

__all__ = ["before_reshapes"]


def before_reshapes(
    steps: Sequence[Step], outputs: Collection[str], dims_of: Callable[[str], Dims | None]
) -> list[Step]:
    """``steps`` with those on rows of a reshaped value on the value itself; some results have no reader then.

    Args:
        steps: of one region, in topological order.
        outputs: values that leave the region.
        dims_of: sizes of a value by its name, where they are known.
    """
    moved = _Moved(outputs, dims_of)
    for step in steps:
        moved.take(step)
    return moved.steps


class _Moved:
    def __init__(self, outputs: Collection[str], dims_of: Callable[[str], Dims | None]) -> None:
        self.steps: list[Step] = []
        self._outputs = outputs
        self._dims_of = dims_of
        self._own: dict[str, Dims] = {}
        self._reshapes: dict[str, Step] = {}
        self._names: dict[str, str] = {}

    def _dims(self, name: str) -> Dims | None:
        return self._own.get(name) or self._dims_of(name)

    def take(self, step: Step) -> None:
        """Add a step, in front of the reshape that its operand comes from if that is possible."""
        step = replace(step, inputs=tuple(self._names.get(name, name) for name in step.inputs))
        if self._keeps_rows(step):
            source = self._reshapes.get(step.inputs[0])
            origin = source.inputs[0] if source is not None else ""
            if origin and self._dims(origin) == self._dims(step.output) and step.output not in self._outputs:
                self._names[step.output] = origin
                return
            self._reshapes[step.output] = step
        source = self._source(step)
        if source is None:
            self.steps.append(step)
            return
        dims = self._dims(source.inputs[0]) or ()
        name = made_name(step.output, f"as {source.inputs[0]}")
        self._own[name] = dims
        operands = tuple(self._flat(operand, step) for operand in step.inputs)
        self.take(replace(step, inputs=operands, output=name))
        self.take(replace(source, inputs=(name,), output=step.output))

    def _flat(self, name: str, reader: Step) -> str:
        """An operand of a step that moves, as the value that its others are reshaped from."""
        if name in self._reshapes:
            return self._reshapes[name].inputs[0]
        flat, dims = made_name(name, "flattened"), self._dims(name) or ()
        if flat not in self._own:
            rank = len(dims)
            self._own[flat] = (product(dims[:-1]), dims[-1])
            spec = Reshaped(((0, rank - 1), (rank - 1, rank)))
            self.steps.append(Step(spec, (name,), flat, "rows", "rows", reader.nodes))
        return flat

    def _keeps_rows(self, step: Step) -> bool:
        if not isinstance(step.spec, Reshaped) or (step.view, step.result_view) != ("rows", "rows") or step.is_extra:
            return False
        before, after = (self._dims(name) for name in (step.inputs[0], step.output))
        return bool(before and after and len(before) > 1 and len(after) > 1 and before[-1] == after[-1])

    def _source(self, step: Step) -> Step | None:
        """The reshape in front of which a step on each value, or each row, can be; None if it stays where it is.

        Of several operands, all are reshaped from the same sizes; or some are, from two axes, and the others may be
        flattened as well.
        """
        spec = step.spec
        is_plain = isinstance(spec, ChannelScale) or (
            isinstance(spec, Elementwise) and not spec.broadcasts and not spec.repeats
        )
        are_floats = step.dtype is step.result_dtype is DType.FLOAT32
        if not is_plain or not are_floats or (step.view, step.result_view) != ("rows", "rows") or step.mask:
            return None
        sources = [self._reshapes[name] for name in step.inputs if name in self._reshapes]
        origins = {self._dims(source.inputs[0]) for source in sources}
        own = {self._dims(name) for name in step.inputs}
        if len(origins) != 1 or len(own) != 1 or None in own:
            return None
        (dims,) = origins
        is_whole = len(sources) == len(step.inputs) or (dims is not None and len(dims) == 2)
        return sources[0] if dims is not None and is_whole else None
