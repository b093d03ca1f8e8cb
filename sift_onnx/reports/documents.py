"""Reads JSON results of the other verbs for a report, and finds which verb wrote each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from sift_onnx.errors import UsageError
from sift_onnx.records.benchmark import BenchmarkReport
from sift_onnx.records.check import CheckReport
from sift_onnx.records.cost import CostReport
from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.records.profile import ProfileReport
from sift_onnx.records.quantization import QuantizationReport
from sift_onnx.records.reading import is_document_of, read_record
from sift_onnx.records.record import SCHEMA, Record
from sift_onnx.records.simulate import SimulationReport
from sift_onnx.records.train import TrainReport
from sift_onnx.records.transform import TransformReport

__all__ = ["KINDS", "Document", "documents_of", "read_document", "sparsities"]

# The first kind whose fields are all there is taken.
KINDS: dict[str, type[Record]] = {
    "simulate": SimulationReport,
    "profile": ProfileReport,
    "benchmark": BenchmarkReport,
    "train": TrainReport,
    "evaluate": EvaluationReport,
    "check": CheckReport,
    "transform": TransformReport,
    "inspect": CostReport,
}

# It has the fields of a result of ``inspect``, and others.
_NOT_SHOWN = QuantizationReport

Report = TypeVar("Report", bound=Record, covariant=True)


@dataclass(frozen=True)
class Document(Generic[Report]):
    """A result.

    Attributes:
        path: of the file, as given.
        kind: the verb that wrote it: a key of :data:`KINDS`; ``transform`` for ``prune`` and ``densify`` too.
        data: what the verb reported.
    """

    path: str
    kind: str
    data: Report

    @property
    def model(self) -> str:
        """The model that it is about, by the name of its file; of a benchmark the file of the result."""
        return Path(getattr(self.data, "model", None) or self.path).name


def documents_of(kind: type[Report], documents: Sequence[Document[Record]]) -> list[Document[Report]]:
    """Those of one kind."""
    return [Document(d.path, d.kind, d.data) for d in documents if isinstance(d.data, kind)]


def read_document(path: str) -> Document[Record]:
    """Read a file of ``--json``.

    Raises:
        UsageError: it cannot be read, is not JSON, or no result that a report can show.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not JSON: it is not text (byte {error.start}); give files written by --json"
        ) from None
    try:
        data = _printable(json.loads(text, parse_constant=_no_number))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error}); give files written by --json") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise UsageError(f"{path} is not a result of sift-onnx: it has no field 'schema'; give files written by --json")
    if data["schema"] != SCHEMA:
        raise UsageError(
            f"{path} has schema {data['schema']!r}, and this version reads schema {SCHEMA}; create it again, or use "
            "the version that wrote it"
        )
    for kind, record in KINDS.items():
        if is_document_of(data, record) and not is_document_of(data, _NOT_SHOWN):
            return Document(path, kind, read_record(data, record, f"{path}, a result of {kind},"))
    raise UsageError(
        f"{path} is of no verb that a report shows (it has the fields {', '.join(list(data)[:6])}); these are "
        "transform, prune, densify, inspect, check, train, evaluate, benchmark, profile and simulate"
    )


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not a number in JSON")


def _printable(value: Any) -> Any:
    """The value with characters escaped that no page can hold: half surrogates, controls."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {_printable(key): _printable(entry) for key, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list) else value


def sparsities(documents: Sequence[Document[Record]]) -> dict[str, float]:
    """The share of pruned weights in the masked layers of each model that the documents are about, by path."""
    found: dict[str, float] = {}
    for document in documents:
        match document.data:
            case TrainReport(out=path, sparsity=masks):
                nnz, weights = masks.nnz, masks.numel
            case TransformReport(out=path, layers=layers) | CostReport(model=path, layers=layers):
                masked = [layer for layer in layers if layer.search_space]
                nnz, weights = sum(layer.nnz for layer in masked), sum(layer.search_space for layer in masked)
            case _:
                continue
        if path and weights:
            found[path] = 1 - nnz / weights
    return found
