"""The functional model: what comes out. Weighted nodes run as CSR, everything else in onnxruntime, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort

from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.backends.base import Placement
from sift_onnx.backends.dataflow.execution.csr_kernels import CsrMatrix, multiply, multiply_in_arrival_order
from sift_onnx.backends.dataflow.execution.csr_nodes import CsrNode, csr_node
from sift_onnx.backends.dataflow.execution.outputs import Arithmetic
from sift_onnx.backends.dataflow.machines.machine import GridMachine, Machine
from sift_onnx.backends.lowering.graph import names_read
from sift_onnx.backends.processors import usable_processors
from sift_onnx.errors import BackendError, UnsupportedError
from sift_onnx.files.data_types import data_type_of
from sift_onnx.graphs.constant_tensors import full_tensor
from sift_onnx.graphs.constants import array_of
from sift_onnx.graphs.exporting import graph_constants
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_name
from sift_onnx.plugins import first_line
from sift_onnx.shapes.random_inputs import check_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

__all__ = ["FunctionalModel"]

Array = npt.NDArray[Any]


class FunctionalModel:
    """A model that computes what a simulated machine would return.

    Attributes:
        machine: whose order of additions ``float16`` follows.
        arithmetic: ``float32`` for outputs that equal onnxruntime's to rounding; ``float16`` to round after every
            multiply-accumulate, in the order in which weights and partial sums arrive.
        threads: of onnxruntime, for nodes without weights.
        inputs: what :meth:`run` takes.
        constants: initializers by name, those too that only subgraphs read.
    """

    def __init__(
        self, model: Model, machine: Machine, arithmetic: Arithmetic = "float32", threads: int | None = None
    ) -> None:
        """Cut ``model`` into weighted nodes and pieces between them.

        Raises:
            UnsupportedError: ``float16`` was asked for, and the machine has no grid; or onnx cannot inline the model's
                local functions.
        """
        if arithmetic == "float16" and not isinstance(machine, GridMachine):
            raise UnsupportedError(f"{machine.name} has no grid, and so no order in which partial sums arrive")
        self.machine, self.arithmetic = machine, arithmetic
        self.threads = threads or usable_processors()
        model = inline_bodies(model)
        self.inputs = graph_inputs(model.origin)
        self._skeleton = model.skeleton()
        self.constants = graph_constants(model.graph, model.origin.graph)
        nodes = {tuple(t.name for t in node.outputs): node for node in model.graph.nodes}
        self._placements: list[Placement] = []
        self._pieces = self._cut(nodes)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Per node of the model: ``csr`` or ``onnxruntime``, and why."""
        return tuple(self._placements)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name; errors as :meth:`Program.run` has them."""
        check_feeds(self.inputs, feeds)
        arrays: dict[str, Array] = dict(feeds)
        for piece in self._pieces:
            arrays.update(piece.run(arrays, self._multiply))
            for name in piece.dead:
                arrays.pop(name, None)
        names = [output.name for output in self._skeleton.graph.output]
        # An output may be an initializer.
        return {name: arrays[name] if name in arrays else array_of(self.constants[name]) for name in names}

    def _multiply(self, matrix: CsrMatrix, x: Array) -> Array:
        if self.arithmetic == "float32":
            return multiply(matrix, x)
        assert isinstance(self.machine, GridMachine)
        used = min(self.machine.columns, matrix.width)
        rows = len(matrix.indptr) - 1
        shard = np.arange(matrix.width) * used // max(matrix.width, 1)
        return multiply_in_arrival_order(matrix, x, shard, np.arange(rows) * used // max(rows, 1))

    def _cut(self, nodes: Mapping[tuple[str, ...], gs.Node]) -> list[_Piece]:
        pieces: list[_Piece] = []
        waiting: list[onnx.NodeProto] = []
        for proto in self._skeleton.graph.node:
            node = nodes.get(tuple(proto.output))
            csr = csr_node(node) if node is not None and _has_weight(node) else "it has no stored weight"
            label = node_name(proto)
            if isinstance(csr, str):
                self._placements.append(Placement(label, proto.op_type, "onnxruntime", csr))
                waiting.append(proto)
                continue
            self._placements.append(Placement(label, proto.op_type, "csr", "one AXPY per active weight"))
            if waiting:
                pieces.append(_Piece(waiting, None, self))
                waiting = []
            pieces.append(_Piece([proto], csr, self))
        if waiting:
            pieces.append(_Piece(waiting, None, self))
        # Liveness, from the last piece to the first: a piece returns only what later pieces or the outputs read.
        needed = {output.name for output in self._skeleton.graph.output}
        for piece in reversed(pieces):
            piece.outputs = [name for name in piece.made if name in needed]
            piece.dead = [name for name in piece.reads if name not in needed]
            needed.update(piece.reads)
        return pieces

    def open_session(self, nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Array], outputs: Sequence[str]) -> Any:
        """A session of onnxruntime on some of the nodes."""
        used = {name for node in nodes for name in names_read(node)}
        graph = onnx.helper.make_graph(
            list(nodes),
            "piece",
            [onnx.helper.make_tensor_value_info(n, data_type_of(a.dtype), [None] * a.ndim) for n, a in inputs.items()],
            [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
            [full_tensor(self.constants[name]) for name in sorted(used & self.constants.keys())],
        )
        model = onnx.helper.make_model(
            graph,
            opset_imports=list(self._skeleton.opset_import),
            ir_version=self._skeleton.ir_version,
            functions=list(self._skeleton.functions),
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 4
        try:
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # whatever comes out of here is onnxruntime's
            where = f"the nodes from {nodes[0].output[0]!r} on"
            raise BackendError(f"onnxruntime cannot load {where}: {first_line(error)}") from error


class _Piece:
    """A weighted node, or the nodes between two of them.

    Attributes:
        reads: names of the arrays that it needs.
        made: names of what its nodes make.
        outputs: those that later pieces or the model's outputs read.
        dead: those it reads that nothing after it needs.
    """

    def __init__(self, nodes: Sequence[onnx.NodeProto], csr: CsrNode | None, model: FunctionalModel) -> None:
        self._nodes, self._csr, self._model = nodes, csr, model
        self._session: Any = None
        self.made = [name for node in nodes for name in node.output if name]
        inside = set(self.made)
        read = dict.fromkeys(name for node in nodes for name in names_read(node))
        self.reads = [name for name in read if name not in inside and name not in model.constants]
        self.outputs: list[str] = []
        self.dead: list[str] = []

    def run(self, arrays: Mapping[str, Array], multiply_by: Any) -> dict[str, Array]:
        if self._csr is not None:
            return {self._nodes[0].output[0]: self._csr(arrays, multiply_by)}
        if not self.outputs:
            return {}
        inputs = {name: arrays[name] for name in self.reads}
        if self._session is None:
            self._session = self._model.open_session(self._nodes, inputs, self.outputs)
        try:
            results = self._session.run(self.outputs, inputs)
        except Exception as error:  # as above
            raise BackendError(f"onnxruntime cannot run up to {self.outputs[0]!r}: {first_line(error)}") from error
        return dict(zip(self.outputs, results, strict=True))


def _has_weight(node: gs.Node) -> bool:
    return len(node.inputs) > 1 and node.op in ("Conv", "Gemm", "MatMul") and isinstance(node.inputs[1], gs.Constant)
