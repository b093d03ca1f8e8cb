"""Steps that kernels run without leaving their layout, and what they need from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu.lower.algorithms import pools_at_once
from sift_onnx.backends.cpu.lower.bands import Chain, chains_of
from sift_onnx.backends.cpu.lower.float_quads import floats_beside_bytes
from sift_onnx.backends.cpu.lower.stages import count_of_large, count_of_wide
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.fusion import fuse
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.partition import Part
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import LinearResize, OpenSliced, PixelCopy, Transposed
from sift_onnx.backends.lowering.specs.decoding import CacheNames, TableRows
from sift_onnx.operators.labels import node_name

__all__ = ["PreparedRows", "Region", "fused_steps", "region_of"]

# Constants of as many bytes are not copied.
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class PreparedRows:
    """Rows of a table that are looked up before a region runs.

    Attributes:
        output: its name of them.
        inputs: positions, or lengths and the total.
        spec: what is looked up.
    """

    output: str
    inputs: tuple[str, ...]
    spec: TableRows


@dataclass(frozen=True)
class Region:
    """Steps that kernels run without leaving their layout.

    Attributes:
        steps: after fusion, in order.
        inputs: values from outside, and how they are read; a value may come in several ways. Masks are the last ones.
        outputs: values that are read outside.
        names: of the node that each step is named after.
        ops: operator of that node.
        early: how many of the first steps run image by image, if a batch fills the lanes; see :attr:`stages`.
        early_of_few: the same if it does not fill them; see :attr:`stages_of_few`.
        passed: sizes of what either of these passes on, as far as they are known before a run.
        single: whether images run one by one, whatever the batch.
        constants: values of those inputs that are constants.
        symbols: sizes of the other inputs, as far as they are known before a run.
        signed: inputs and outputs of bytes that are int8 outside.
        prepared: inputs that are looked up in tables.
        caches: of the steps that have one, in order.
    """

    steps: tuple[Step, ...]
    inputs: tuple[tuple[str, View], ...]
    outputs: tuple[str, ...]
    names: tuple[str, ...]
    ops: tuple[str, ...]
    early: int = 0
    early_of_few: int = 0
    passed: Mapping[str, Dims] = field(default_factory=dict, repr=False)
    single: bool = False
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    symbols: Mapping[str, Dims] = field(default_factory=dict, repr=False)
    signed: frozenset[str] = frozenset()
    prepared: tuple[PreparedRows, ...] = ()
    caches: tuple[CacheNames, ...] = ()

    @cached_property
    def read(self) -> tuple[str, ...]:
        """Names of all that it needs from outside."""
        looked_up = {one.output for one in self.prepared}
        names = [name for name, _ in self.inputs if name not in self.constants and name not in looked_up]
        names += [name for one in self.prepared for name in one.inputs]
        names += [name for cache in self.caches for name in cache.read]
        return tuple(dict.fromkeys(names))

    @cached_property
    def made(self) -> tuple[str, ...]:
        """Names of all that it makes for others: its outputs, then its caches."""
        return (*self.outputs, *(name for cache in self.caches for name in cache.written))

    @cached_property
    def stages(self) -> tuple[Region, ...]:
        """The steps that run image by image, and those after them; none where all of a batch passes each step."""
        return self._divided(self.early)

    @cached_property
    def stages_of_few(self) -> tuple[Region, ...]:
        """The same for a batch that does not fill the lanes."""
        return self._divided(self.early_of_few)

    def _divided(self, early: int) -> tuple[Region, ...]:
        # Bounds of slices follow from the inputs of the region, which a later stage does not have.
        if not early or any(
            isinstance(step.spec, (LinearResize, OpenSliced, PixelCopy)) and step.spec.names() for step in self.steps
        ):
            return ()
        if early == len(self.steps):
            return (replace(self, early=0, early_of_few=0, single=True),)
        passed = _passed(self.steps, early, self.outputs)
        outputs = tuple(name for name in self.outputs if name not in passed)
        return (
            self._stage(slice(0, early), passed, single=True),
            self._stage(slice(early, None), outputs),
        )

    def _stage(self, part: slice, outputs: tuple[str, ...], single: bool = False) -> Region:
        steps = self.steps[part]
        inputs = _inputs_of(steps)
        constants = {name: self.constants[name] for name, _ in inputs if name in self.constants}
        known = {**self.passed, **self.symbols}
        return replace(
            self,
            steps=steps,
            inputs=inputs,
            outputs=outputs,
            names=self.names[part],
            ops=self.ops[part],
            early=0,
            early_of_few=0,
            passed={},
            single=single,
            constants=constants,
            symbols={name: known.get(name, ()) for name, _ in inputs if name not in constants},
            prepared=(),
        )

    def section(self, part: slice) -> Region:
        """Some of the steps as a region; its outputs are what other steps, or others, read of them."""
        others = (*self.steps[: part.start], *self.steps[part.stop :])
        read = {*self.outputs, *(name for step in others for name in step.inputs)}
        return self._stage(part, tuple(step.output for step in self.steps[part] if step.output in read))

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """Layers that may run in bands of rows."""
        return chains_of(self.steps, self.outputs)

    @cached_property
    def float_quads(self) -> Mapping[str, Quantization | None]:
        """Floats that layers of integers make beside bytes; see :func:`floats_beside_bytes`."""
        return floats_beside_bytes(self.steps, self.outputs)

    @cached_property
    def turns_volumes(self) -> bool:
        """Whether frames of volumes change between images of their own and rows of one."""
        return _turns_volumes(self.steps)

    @cached_property
    def dtypes(self) -> Mapping[str, DType]:
        """Element types of what its steps read and make, by name; those of bytes are UINT8 within it."""
        read = {name: step.dtype_of(place) for step in self.steps for place, name in enumerate(step.inputs)}
        return read | {step.output: step.result_dtype for step in self.steps}

    def array_dtype(self, name: str) -> DType:
        """The element type of what enters or leaves it."""
        return DType.INT8 if name in self.signed else self.dtypes.get(name, DType.FLOAT32)


def fused_steps(graph: GraphView, part: Part) -> list[Step]:
    """The steps of a part for kernels, after fusion."""
    steps = [group.step for group in part.groups if group.step is not None]
    return fuse(steps, part.outputs, pools_at_once, graph.dims)


def _turns_volumes(steps: Sequence[Step]) -> bool:
    return any(isinstance(step.spec, Transposed) and step.is_extra for step in steps)


def region_of(graph: GraphView, part: Part) -> Region:
    """The region of a part for kernels."""
    prepared, steps = _parted(fused_steps(graph, part))
    caches = tuple(step.cache for step in steps if step.cache is not None)
    outputs = tuple(name for name in part.outputs if not any(name in cache.written for cache in caches))
    inputs = _inputs_of(steps)
    # Between lanes of volumes and lanes of frames, each value would move to another vector.
    single = _turns_volumes(steps)
    early = early_of_few = 0
    if not caches and not single:
        dims = {name: graph.dims(name) or () for step in steps for name in step.inputs}
        chains = chains_of(steps, outputs)
        early = count_of_large(steps, dims, chains)
        early_of_few = count_of_wide(steps, dims, chains)
    passed = dict.fromkeys(name for count in (early, early_of_few) for name in _passed(steps, count, outputs))
    constants = {name: _held(graph, name) for name, _ in inputs if name in graph.constants}
    nodes = [graph.nodes[step.nodes[0]] for step in steps]
    return Region(
        tuple(steps),
        inputs,
        outputs,
        tuple(node_name(node) for node in nodes),
        tuple(node.op_type for node in nodes),
        early,
        early_of_few,
        {name: graph.dims(name) or () for name in passed},
        single,
        constants,
        {name: graph.dims(name) or () for name, _ in inputs if name not in constants},
        frozenset(
            name for name in (*(name for name, _ in inputs), *outputs) if graph.elem_type(name) == DType.INT8.onnx_type
        ),
        prepared,
        caches,
    )


def _passed(steps: Sequence[Step], early: int, outputs: Sequence[str]) -> tuple[str, ...]:
    """What the first steps make for others."""
    read = {name for step in steps[early:] for name in step.inputs}
    return tuple(step.output for step in steps[:early] if step.output in read or step.output in outputs)


def _parted(fused: Sequence[Step]) -> tuple[tuple[PreparedRows, ...], list[Step]]:
    """Rows of tables, and the steps that run; layers that look up the same rows read them under one name."""
    rows: dict[tuple[object, ...], PreparedRows] = {}
    names: dict[str, str] = {}
    for step in fused:
        if isinstance(step.spec, TableRows):
            key = (step.spec.name, step.spec.kind, step.spec.tokens, step.inputs)
            first = rows.setdefault(key, PreparedRows(step.output, step.inputs, step.spec))
            names[step.output] = first.output
    steps = [
        replace(step, inputs=tuple(names.get(name, name) for name in step.inputs))
        for step in fused
        if not isinstance(step.spec, TableRows)
    ]
    return tuple(rows.values()), steps


def _held(graph: GraphView, name: str) -> npt.NDArray[Any]:
    """The values of a constant. Large ones, such as tables of embeddings, are not copied, though they hold the file."""
    values = graph.values_of(name)
    assert values is not None
    return np.ascontiguousarray(values) if values.nbytes >= _LARGE_BYTES else np.array(values)


def _inputs_of(steps: Sequence[Step]) -> tuple[tuple[str, View], ...]:
    """What steps read from outside, and how; masks are the last ones."""
    made = {step.output for step in steps}
    inputs = dict.fromkeys((name, step.view) for step in steps for name in step.inputs if name not in made)
    inputs.update(dict.fromkeys((step.mask, "array") for step in steps if step.mask))
    return tuple(inputs)
