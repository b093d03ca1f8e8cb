"""Reads JSON results of the other verbs for a report, and tells what each of them is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn

from sift_onnx.errors import UsageError

__all__ = ["KINDS", "Document", "read_document"]

SCHEMA = 1
_NUMBER = int | float
_NAME = str | None
_LAYER = {"name": str, "kind": str, "nnz": int, "sparsity": _NUMBER}

# What a report needs of each verb's document: types, mappings of fields, and lists by their entries. A trailing ``?``
# marks what need not be there. The first kind whose fields are all there is taken; of a field that is a mapping, it is
# the first name that tells.
KINDS: dict[str, Any] = {
    "simulate": {
        "model": str, "preset": str, "batch": int, "training": bool, "weights": str, "fidelity": str,
        "layers": [{
            "name": str, "op": str, "step": str, "storage": str, "cycles": int, "bound": str, "utilization": _NUMBER,
            "imbalance": _NUMBER, "nnz": int, "macs": int, "size": int, "fabric_bytes": _NUMBER, "sram_bytes": _NUMBER,
            "edge_index_bytes": _NUMBER, "edge_value_bytes": _NUMBER, "energy_j": _NUMBER, "limits": dict,
            "notes": list,
        }],
        "totals": {
            "cycles": int, "seconds": _NUMBER, "utilization": _NUMBER, "energy_j": _NUMBER, "weight_macs": int,
            "edge_index_bytes": _NUMBER, "edge_value_bytes": _NUMBER,
        },
        "speedup": {"vs_dense_wide": _NUMBER | None, "vs_dense_original": _NUMBER | None, "bands": dict},
        "machine": {"summary": str, "clock_hz": _NUMBER, "peak_macs_per_cycle": _NUMBER, "parameters": dict},
        "energy": {"assumed": list}, "notes": list, "uncosted": list,
        "maps?": [{"title": str, "columns": int, "rows": int, "shape": list, "largest": _NUMBER, "shares": str}],
        "sweep?": [{"sparsity": _NUMBER, "value": _NUMBER, "low": _NUMBER, "high": _NUMBER}],
    },
    "profile": {
        "model": str, "backend": str, "batch": int, "threads": int, "total_ms": _NUMBER,
        "nodes": [{"name": str, "op": str, "placement": str, "ms": _NUMBER}],
        "placements": [{"name": str, "placement": str, "reason": str}],
    },
    "benchmark": {
        "host": dict,
        "runs": [{
            "model": str, "label": str, "baseline": bool, "backend": str, "batch": int, "threads": int,
            "simulated": bool, "median_ms": _NUMBER, "min_ms": _NUMBER, "p90_ms": _NUMBER, "p99_ms": _NUMBER,
            "iterations": int, "items_per_second": _NUMBER,
        }],
        "ratios": [{"a": str, "b": str, "batch": int, "median": _NUMBER, "spread": list}],
    },
    "train": {
        "model": str, "out": str, "steps": int, "loss": _NUMBER | None,
        "validation": dict, "device": str, "seconds": _NUMBER,
        "sparsity": {"layers": int, "nnz": int, "numel": int, "algorithms": [{"algorithm": str}]},
        "cost?": {"params": int, "nnz": int, "macs": int, "effective_macs": int, "attention_macs": int},
        "history?": {"steps": [{"step": int}], "validations": [{"step": int}]},
    },
    "check": {
        "ok": bool, "max_abs_error": _NUMBER | None, "model?": str, "reference?": _NAME,
        "checks": [{"name": str, "ok": bool, "detail": str}],
    },
    "transform": {
        "layers": [{
            **_LAYER, "shape_before": list, "shape_after": list, "macs_before": int, "macs_after": int, "status": str,
            "reason": str, "parts?": [{"role": str, "shape": list}],
        }],
        "totals": {
            "weight_macs_before": int, "weight_macs_after": int, "weight_macs_ratio": _NUMBER, "nnz_before": int,
            "nnz_after": int, "search_space": int,
        },
        "model?": str, "out?": _NAME, "pass?": str,
    },
    "inspect": {
        "layers": [{**_LAYER, "shape": list, "params": int, "macs": int, "effective_macs": int, "search_space": int}],
        "totals": {"params": int, "nnz": int, "macs": int, "effective_macs": int, "attention_macs": int},
        "model?": str,
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
        if all(key.endswith("?") or _is_there(data, key, wanted) for key, wanted in fields.items()):
            _hold(data, fields, "", f"{path}, a result of {kind},")
            return kind
    raise UsageError(
        f"{path} is of no verb that a report shows (it has the fields {', '.join(list(data)[:6])}); these are "
        "transform, prune, densify, inspect, check, train, benchmark, profile and simulate"
    )


def _is_there(data: Mapping[str, Any], key: str, wanted: Any) -> bool:
    """Whether a field is there, and is what is meant: several verbs have ``totals``, with other names in them."""
    if key not in data or not isinstance(wanted, Mapping):
        return key in data
    return isinstance(data[key], dict) and next(iter(wanted)) in data[key]


def _hold(value: Any, wanted: Any, where: str, what: str) -> None:
    """Hold a value against what is wanted; a difference is an error that says where."""
    if isinstance(wanted, Mapping):
        _hold(value, dict, where, what)
        for key, inner in wanted.items():
            name = key.removesuffix("?")
            place = f"{where}.{name}" if where else name
            if name not in value:
                if key == name:
                    raise UsageError(f"{what} has no {place}; it is damaged, or of another version: make it anew")
            elif not (key != name and value[name] is None):
                _hold(value[name], inner, place, what)
    elif isinstance(wanted, list):
        _hold(value, list, where, what)
        for i, entry in enumerate(value):
            _hold(entry, wanted[0], f"{where}[{i}]", what)
    elif not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise UsageError(f"{what} has {_shown(value)} for {where}, which is to be {_type_name(wanted)}; make it anew")


def _type_name(wanted: type | UnionType) -> str:
    names = {"str": "text", "dict": "an object", "list": "a list", "bool": "true or false", "NoneType": "null"}
    parts = [part.__name__ for part in getattr(wanted, "__args__", (wanted,))]
    if "float" in parts or parts == ["int"]:
        parts = ["a number" if part == "int" else part for part in parts if part != "float"]
    return " or ".join(names.get(part, part) for part in parts)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."


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
