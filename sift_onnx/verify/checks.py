"""Whether a model is sound: it is valid ONNX, its shapes hold, it runs, and it computes what a reference computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.analysis.graph_analysis import fitting_inputs
from sift_onnx.errors import SiftError
from sift_onnx.files.external_data import is_external
from sift_onnx.model import Model
from sift_onnx.model_files.paths import check_name_for_onnx
from sift_onnx.operators.domains import full_domain
from sift_onnx.records.check import Check, CheckReport
from sift_onnx.shapes.inference import infer_proto
from sift_onnx.shapes.input_binding import BoundInputs
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs
from sift_onnx.verify.samples import alone_and_in_batch, inference_mode

__all__ = ["Runnable", "check_model", "max_abs_error"]

_MAX_DETAIL = 600
# Kinds of numpy dtypes that hold strings.
_TEXT = "OSU"
# Which kinds of errors native code makes of a damaged model besides its own.
_OTHER_FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
Result = TypeVar("Result")


class Runnable(Protocol):
    """What runs a model: a program of a back end is one."""

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """All outputs by name."""


class _FailedCheckError(Exception):
    """A check's finding, where it is a bad one."""


@dataclass
class _Record:
    """The checks made so far."""

    checks: list[Check] = field(default_factory=list)

    def make(self, name: str, action: Callable[[], tuple[Result, str]], needs: tuple[str, ...] = ()) -> Result | None:
        """Make a check, unless one that it needs has failed; what ``action`` returns first, if it passed."""
        failed = [check.name for check in self.checks if check.name in needs and not check.ok]
        if failed:
            self.checks.append(Check(name, False, f"not run, since {failed[0]} failed"))
            return None
        try:
            found, detail = action()
        except (
            _FailedCheckError,
            SiftError,
            onnx.checker.ValidationError,
            onnx.shape_inference.InferenceError,
            *_OTHER_FAILURES,
        ) as error:
            text = " ".join(str(error).split())
            detail = text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + " ..."
            self.checks.append(Check(name, False, detail))
            return None
        self.checks.append(Check(name, True, detail))
        return found

    def report(self, inputs: BoundInputs, max_abs_error: float | None = None) -> CheckReport:
        """All checks, with the shapes that the model was run with."""
        return CheckReport(
            ok=all(check.ok for check in self.checks),
            checks=tuple(self.checks),
            max_abs_error=max_abs_error,
            nominal=inputs.nominal,
            assumed=inputs.remarks,
        )


def check_model(
    path: str | Path,
    reference: str | Path | None = None,
    *,
    compile_model: Callable[[Path], Runnable],
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    atol: float = 1e-4,
    rtol: float = 1e-3,
) -> CheckReport:
    """Check the model in the file ``path``, alone or against that in ``reference``.

    Args:
        path: the model.
        reference: one that takes the same inputs and should give the same outputs.
        compile_model: makes a runnable program of a file.
        input_shapes: shapes of inputs with dynamic axes, see :func:`sift_onnx.shapes.input_binding.bindings`.
        seed: of the random inputs.
        atol: outputs may differ by ``atol + rtol * abs(reference)``.
        rtol: see ``atol``.

    Raises:
        ModelReadError: a file cannot be read.
        UsageError: an input has a dynamic axis that ``input_shapes`` does not give, and nothing can be assumed of.
    """
    path = Path(path)
    for name in (path, *(() if reference is None else (reference,))):
        check_name_for_onnx(name)
    loaded = Model.load(path)
    model = loaded.origin
    inputs = graph_inputs(model)
    record = _Record()
    record.make("reads", lambda: (None, _summary(model)))
    record.make("checker", lambda: _onnx_checker(path, loaded))
    record.make("shapes", lambda: _infer_shapes(loaded))
    record.make("inference-mode", lambda: _verdict(*inference_mode(loaded.graph)))
    compiled: list[Runnable] = []

    def compile_once(path: Path) -> Runnable:
        compiled.append(compile_model(path))
        return compiled[-1]

    def compare_samples() -> None:
        def action() -> tuple[None, str]:
            return _verdict(*alone_and_in_batch(compiled[0], loaded, inputs, input_shapes, seed))

        record.make("alone-and-in-batch", action, needs=("runs",))

    if reference is None:
        bound = fitting_inputs(loaded, input_shapes, inputs=inputs)
        feeds = random_feeds(inputs, input_shapes=bound.shapes, seed=seed)
        _run(record, path, compile_once, feeds)
        compare_samples()
        return record.report(bound)

    other_inputs = graph_inputs(Model.load(reference).origin)
    agreed = record.make("inputs-agree", lambda: _agree(inputs, other_inputs))
    bound = fitting_inputs(loaded, input_shapes, inputs=agreed or inputs)
    feeds = random_feeds(agreed or inputs, input_shapes=bound.shapes, seed=seed)
    outputs = _run(record, path, compile_once, feeds)
    compare_samples()
    expected = record.make(
        "reference-runs", lambda: _outputs(compile_model(Path(reference)), feeds), needs=("inputs-agree",)
    )
    needs = ("runs", "reference-runs")
    record.make("same-outputs", lambda: _same_outputs(outputs or {}, expected or {}), needs)
    record.make("close-values", lambda: _close(outputs or {}, expected or {}, atol, rtol), (*needs, "same-outputs"))
    return record.report(bound, max_abs_error(outputs or {}, expected or {}))


def _run(
    record: _Record, path: Path, compile_model: Callable[[Path], Runnable], feeds: Feeds
) -> dict[str, npt.NDArray[Any]] | None:
    outputs = record.make("runs", lambda: _outputs(compile_model(path), feeds))
    record.make("finite", lambda: _finite(outputs or {}), needs=("runs",))
    return outputs


def _verdict(finding: str, detail: str) -> tuple[None, str]:
    if finding:
        raise _FailedCheckError(finding)
    return None, detail


def _summary(model: onnx.ModelProto) -> str:
    opsets = ", ".join(f"{full_domain(entry.domain)} {entry.version}" for entry in model.opset_import)
    nodes = len(model.graph.node)
    return f"{nodes} node{'s' * (nodes != 1)}, IR version {model.ir_version}, opset {opsets}"


def _onnx_checker(path: Path, model: Model) -> tuple[None, str]:
    sparse = model.origin.graph.sparse_initializer
    if not any(part.external_data for tensor in sparse for part in (tensor.values, tensor.indices)):
        # By its path: a model above 2 GB cannot be checked in memory. The full check infers shapes, and onnx cannot do
        # that with sparse initializers; the next check does it without them.
        onnx.checker.check_model(str(path), full_check=not sparse)
        return None, "valid"
    # onnx's checker cannot read sparse tensors from external data. It gets the graph with inputs in place of all
    # data that was left out, and the tensors are read here, which holds their indices against their shapes.
    skeleton = model.skeleton()
    stubs = {tensor.name: tensor for tensor in skeleton.graph.initializer if is_external(tensor)}
    kept = [tensor for tensor in skeleton.graph.initializer if tensor.name not in stubs]
    del skeleton.graph.initializer[:]
    skeleton.graph.initializer.extend(kept)
    for name in stubs.keys() - {info.name for info in skeleton.graph.input}:
        info = onnx.helper.make_tensor_value_info(name, stubs[name].data_type, stubs[name].dims)
        skeleton.graph.input.append(info)
    onnx.checker.check_model(skeleton)
    for name, constant in model.masked().items():
        found, declared = constant.weight.nnz, constant.nnz
        if found != declared:
            raise _FailedCheckError(f"sparse initializer {name!r} has {found} active weights, and declares {declared}")
    return None, f"valid; {len(sparse)} sparse tensors, some of which lie beside the file, were read"


def _infer_shapes(model: Model) -> tuple[None, str]:
    skeleton = model.skeleton()
    inferred = infer_proto(skeleton, check_type=True, strict_mode=True)
    return None, f"shapes of {len(inferred.graph.value_info)} intermediate values"


def _outputs(program: Runnable, feeds: Feeds) -> tuple[dict[str, npt.NDArray[Any]], str]:
    outputs = program.run(feeds)
    for name, array in outputs.items():
        # onnxruntime returns an output that is a sparse initializer as it is stored.
        if not isinstance(array, (np.ndarray, np.generic)):
            raise _FailedCheckError(f"output {name!r} is a {type(array).__name__}, and not an array")
    return outputs, f"outputs {', '.join(f'{name!r} {array.shape}' for name, array in outputs.items())}"


def _finite(outputs: Mapping[str, npt.NDArray[Any]]) -> tuple[None, str]:
    for name, array in outputs.items():
        if array.dtype.kind in _TEXT:
            continue
        bad = np.argwhere(~np.isfinite(array.astype(np.float64)))
        if len(bad):
            first = tuple(int(i) for i in bad[0])
            raise _FailedCheckError(
                f"output {name!r}: {len(bad)} of {array.size} values are not finite; at {first}: {array[first]}"
            )
    return None, "all values are finite"


def _agree(inputs: tuple[TensorSpec, ...], others: tuple[TensorSpec, ...]) -> tuple[tuple[TensorSpec, ...], str]:
    """Inputs that suit both models: an axis that one of them fixes is fixed."""
    theirs = {spec.name: spec for spec in others}
    if {spec.name for spec in inputs} != theirs.keys():
        raise _FailedCheckError(f"inputs {_names(inputs)}, but those of the reference are {_names(others)}")
    agreed = []
    for spec in inputs:
        other = theirs[spec.name]
        if spec.dtype != other.dtype:
            raise _FailedCheckError(f"input {spec.name!r} is {spec.dtype}, in the reference {other.dtype}")
        pairs = list(zip(spec.extents, other.extents, strict=False))
        if spec.shape is None or other.shape is None:
            agreed.append(other if spec.shape is None else spec)
            continue
        if len(spec.shape) != len(other.shape) or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs
        ):
            raise _FailedCheckError(f"input {spec.name!r} has the shape {spec.shape}, in the reference {other.shape}")
        agreed.append(TensorSpec(spec.name, spec.dtype, tuple(b if isinstance(b, int) else a for a, b in pairs)))
    return tuple(agreed), f"inputs {_names(inputs)}"


def _names(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(repr(spec.name) for spec in specs) or "none"


def _same_outputs(
    outputs: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]
) -> tuple[None, str]:
    if outputs.keys() != expected.keys():
        raise _FailedCheckError(f"outputs {', '.join(outputs)}, but those of the reference are {', '.join(expected)}")
    differing = [
        f"output {name!r} has the shape {array.shape}, in the reference {expected[name].shape}"
        for name, array in outputs.items()
        if array.shape != expected[name].shape
    ]
    if differing:
        raise _FailedCheckError("; ".join(differing))
    return None, "the same names and shapes"


def _abs_error(array: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Elementwise; where strings differ, infinity."""
    if array.dtype.kind in _TEXT or expected.dtype.kind in _TEXT:
        return np.where(array == expected, 0.0, np.inf)
    return np.abs(array.astype(np.float64) - expected.astype(np.float64))


def max_abs_error(outputs: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]) -> float | None:
    """Over the outputs that both have in the same shape; None where that is not a finite number."""
    errors = [
        _abs_error(array, expected[name]).max()
        for name, array in outputs.items()
        if name in expected and array.shape == expected[name].shape and array.size
    ]
    worst = float(np.max(errors)) if errors else math.nan
    return worst if math.isfinite(worst) else None


def _close(
    outputs: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]], atol: float, rtol: float
) -> tuple[None, str]:
    for name, array in outputs.items():
        theirs = expected[name]
        error = _abs_error(array, theirs)
        size = np.zeros(theirs.shape) if theirs.dtype.kind in _TEXT else np.abs(theirs.astype(np.float64))
        # Negated, so that NaN counts as far off.
        off = ~(error <= atol + rtol * size)
        if off.any():
            worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(off, error, -1.0)), array.shape))
            raise _FailedCheckError(
                f"output {name!r}: {int(off.sum())} of {array.size} values are off by more than atol {atol:g} + "
                f"rtol {rtol:g}; the worst at {worst}: {array[worst]}, in the reference {theirs[worst]}"
            )
    largest = max_abs_error(outputs, expected)
    return None, "no values to compare" if largest is None else f"max abs error {largest:.3g}"
