"""Reads JSON results of the other verbs for a report, and tells what each of them is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sift_onnx.errors import UsageError
from sift_onnx.report.fields import Maybe, Number, hold, is_there

__all__ = ["KINDS", "Document", "read_document"]

SCHEMA = 1
_COUNT, _AMOUNT, _REAL = Number(0, whole=True), Number(0), Number(-1e18)
_SIDE = Number(1, 2**20, whole=True)
_SHARE = Number(-1e-9, 1 + 1e-9)
_POSITIVE = Number(1e-12)
_SHAPE = [_COUNT]
_LAYER = {"name": str, "kind": str, "nnz": _COUNT, "sparsity": _SHARE}
_SPEED = Maybe(_POSITIVE)
_BAND = Maybe((_POSITIVE, _POSITIVE))

# What a report needs of each verb's document, in the words of fields.py. The first kind whose fields are all there is
# taken; of a field that is a mapping, it is the first name that tells.
KINDS: dict[str, Any] = {
    "simulate": {
        "model": str, "preset": str, "batch": _COUNT, "training": bool, "weights": str, "fidelity": str,
        "layers": [{
            "name": str, "op": str, "step": str, "storage": str, "cycles": _COUNT, "bound": str, "utilization": _AMOUNT,
            "imbalance": _AMOUNT, "nnz": _COUNT, "macs": _COUNT, "size": _COUNT, "fabric_bytes": _AMOUNT,
            "sram_bytes": _AMOUNT, "edge_index_bytes": _AMOUNT, "edge_value_bytes": _AMOUNT, "energy_j": _AMOUNT,
            "limits": {"*": _AMOUNT}, "notes": [str],
        }],
        "totals": {
            "cycles": _COUNT, "seconds": _POSITIVE, "utilization": _AMOUNT, "energy_j": _AMOUNT, "weight_macs": _COUNT,
            "edge_index_bytes": _AMOUNT, "edge_value_bytes": _AMOUNT,
        },
        "speedup": {
            "vs_dense_wide": _SPEED, "vs_dense_original": _SPEED,
            "bands": {"vs_dense_wide": _BAND, "vs_dense_original": _BAND},
        },
        "machine": {
            "summary": str, "clock_hz": _POSITIVE, "peak_macs_per_cycle": _POSITIVE,
            "parameters": {"*": {
                "value": Maybe(_REAL), "low": Maybe(_REAL), "high": Maybe(_REAL), "unit": str, "confidence": str,
                "source": str,
            }},
        },
        "energy": {"assumed": [str]}, "notes": [str], "uncosted": [{"node": str, "op": str, "reason": str}],
        "published?": [{"speedup": _AMOUNT, "source": str, "remark": str}],
        "functional?": {
            "nodes": {"*": _COUNT}, "inputs": {"*": _SHAPE}, "arithmetic": str, "seed": _REAL,
            "outputs": [{"name": str, "shape": _SHAPE, "max_abs_error": Maybe(_AMOUNT), "max_abs": Maybe(_AMOUNT)}],
        },
        "maps?": [{
            "title": str, "columns": _SIDE, "rows": _SIDE, "shape": (_SIDE, _SIDE), "largest": _AMOUNT, "shares": str,
        }],
        "sweep?": [{"sparsity": _SHARE, "value": _POSITIVE, "low": _POSITIVE, "high": _POSITIVE}],
    },
    "profile": {
        "model": str, "backend": str, "batch": _COUNT, "threads": _COUNT, "total_ms": _AMOUNT,
        "nodes": [{
            "name": str, "op": str, "placement": str, "ms": _AMOUNT, "density?": _SHARE, "gflops?": _AMOUNT,
            "share_of_peak?": _AMOUNT, "kernel?": str,
        }],
        "placements": [{"name": str, "placement": str, "reason": str}],
        "warnings?": [str],
    },
    "benchmark": {
        "host": {},
        "runs": [{
            "model": str, "label": str, "baseline": bool, "backend": str, "batch": _COUNT, "threads": _COUNT,
            "simulated": bool, "median_ms": _POSITIVE, "min_ms": _POSITIVE, "p90_ms": _POSITIVE, "p99_ms": _POSITIVE,
            "iterations": _COUNT, "items_per_second": _AMOUNT,
        }],
        "ratios": [{"a": str, "b": str, "batch": _COUNT, "median": _POSITIVE, "spread": (_POSITIVE, _POSITIVE)}],
        "warnings?": [str],
    },
    "train": {
        "model": str, "out": str, "steps": _COUNT, "loss": Maybe(_REAL),
        "validation": {"accuracy?": _SHARE, "loss?": _REAL}, "device": str, "seconds": _AMOUNT,
        "sparsity": {
            "layers": _COUNT, "nnz": _COUNT, "numel": _COUNT,
            "algorithms": [{"algorithm": str, "itop?": _SHARE, "doc?": _SHARE, "churn?": _SHARE}],
        },
        "cost?": {"params": _COUNT, "nnz": _COUNT, "macs": _COUNT, "effective_macs": _COUNT, "attention_macs": _COUNT},
        "history?": {
            "steps": [{"step": _COUNT, "loss?": _REAL, "itop?": _SHARE, "doc?": _SHARE, "churn?": _SHARE}],
            "validations": [{"step": _COUNT, "loss?": _REAL, "accuracy?": _SHARE}],
        },
    },
    "check": {
        "ok": bool, "max_abs_error": Maybe(_AMOUNT), "model?": str, "reference?": str,
        "checks": [{"name": str, "ok": bool, "detail": str}],
    },
    "transform": {
        "layers": [{
            **_LAYER, "shape_before": _SHAPE, "shape_after": _SHAPE, "macs_before": _COUNT, "macs_after": _COUNT,
            "status": str, "reason": str, "parts?": [{"role": str, "shape": _SHAPE}], "search_space?": _COUNT,
        }],
        "totals": {
            "weight_macs_before": _COUNT, "weight_macs_after": _COUNT, "weight_macs_ratio": _AMOUNT,
            "nnz_before": _COUNT, "nnz_after": _COUNT, "search_space": _COUNT, "attention_macs_before?": _COUNT,
            "attention_macs_after?": _COUNT,
        },
        "model?": str, "out?": str, "pass?": str, "sparsity?": _REAL, "warnings?": [str], "unknown?": [str],
        "pinned?": [{
            "size": _COUNT, "layers": [str], "macs_share": _AMOUNT, "reason": str, "node": str, "op": str,
        }],
    },
    "inspect": {
        "layers": [{
            **_LAYER, "shape": _SHAPE, "params": _COUNT, "macs": _COUNT, "effective_macs": _COUNT,
            "search_space": _COUNT,
        }],
        "totals": {
            "params": _COUNT, "nnz": _COUNT, "macs": _COUNT, "effective_macs": _COUNT, "attention_macs": _COUNT,
        },
        "model?": str, "warnings?": [str],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Document:
    """A result.

    Attributes:
        path: of the file, as given.
        kind: the verb that wrote it: a key of :data:`KINDS`; ``transform`` for ``prune`` and ``densify`` too.
        data: the JSON document.
    """

    path: str
    kind: str
    data: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model that it is about, by the name of its file; of a benchmark the file of the result."""
        return Path(str(self.data.get("model") or self.path)).name


def read_document(path: str) -> Document:
    """Read a file of ``--json``.

    Raises:
        UsageError: it cannot be read, is no JSON, or no result that a report can show.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no JSON: it is no text (byte {error.start}); give files written by --json"
        ) from None
    try:
        data = _printable(json.loads(text, parse_constant=_no_number))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON ({error}); give files written by --json") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise UsageError(f"{path} is no result of sift-onnx: it has no field 'schema'; give files written by --json")
    if data["schema"] != SCHEMA:
        raise UsageError(
            f"{path} has schema {data['schema']!r}, and this version reads schema {SCHEMA}; make it anew, or use the "
            "version that wrote it"
        )
    return Document(path, _kind(path, data), data)


def _kind(path: str, data: Mapping[str, Any]) -> str:
    for kind, fields in KINDS.items():
        if all(key.endswith("?") or is_there(data, key, wanted) for key, wanted in fields.items()):
            hold(data, fields, "", f"{path}, a result of {kind},")
            return kind
    raise UsageError(
        f"{path} is of no verb that a report shows (it has the fields {', '.join(list(data)[:6])}); these are "
        "transform, prune, densify, inspect, check, train, benchmark, profile and simulate"
    )


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is no number of JSON")


def _printable(value: Any) -> Any:
    """The value with characters escaped that no page can hold: half surrogates, controls."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {_printable(key): _printable(entry) for key, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list) else value


def sparsities(documents: Sequence[Document]) -> dict[str, float]:
    """The share of pruned weights in the masked layers of each model that the documents tell about, by path."""
    found: dict[str, float] = {}
    for document in documents:
        data = document.data
        if document.kind == "train":
            if data["sparsity"]["numel"]:
                found[data["out"]] = 1 - data["sparsity"]["nnz"] / data["sparsity"]["numel"]
        elif document.kind in ("transform", "inspect"):
            path = data.get("out" if document.kind == "transform" else "model")
            masked = [layer for layer in data["layers"] if layer.get("search_space")]
            weights = sum(layer["search_space"] for layer in masked)
            if path and weights:
                found[path] = 1 - sum(layer["nnz"] for layer in masked) / weights
    return found
