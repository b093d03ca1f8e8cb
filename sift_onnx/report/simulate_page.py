"""A simulation as one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sift_onnx.errors import OutputError
from sift_onnx.report.numbers import file_size, si
from sift_onnx.report.simulate import energy_text, functional_lines, source_line, speedup_lines, time_text
from sift_onnx.report.simulate_charts import heat_chart, limits_chart, roofline_chart, sweep_chart

if TYPE_CHECKING:
    from sift_onnx.backends.dataflow.heat import HeatMap
    from sift_onnx.backends.dataflow.sweep import SweepPoint

__all__ = ["page", "write_page"]

_STYLE = """
:root { color-scheme: light dark; --bg:#fff; --fg:#1b1f24; --soft:#5b6470; --line:#d9dee5; --card:#f5f7fa;
  --compute:#2f6fd6; --reduce:#d9731f; --stream:#138a7e; --sram:#8a56b8; }
@media (prefers-color-scheme: dark) { :root { --bg:#14171c; --fg:#e6e9ee; --soft:#98a2b0; --line:#313843;
  --card:#1d222a; --compute:#6ea2f5; --reduce:#f09a52; --stream:#45c2b3; --sram:#bb8fe6; } }
body { margin:0 auto; max-width:940px; padding:24px 20px 60px; background:var(--bg); color:var(--fg);
  font:15px/1.5 system-ui, sans-serif; }
h1 { font-size:22px; margin:0 0 4px; } h2 { font-size:17px; margin:36px 0 8px; }
p { margin:6px 0; } .soft, figcaption { color:var(--soft); font-size:13px; }
.cards { display:grid; grid-template-columns:repeat(auto-fit, minmax(135px, 1fr)); gap:10px; margin:16px 0; }
.card { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:10px 12px; }
.card b { display:block; font-size:19px; } .card span { color:var(--soft); font-size:12px; }
svg { width:100%; min-width:680px; height:auto; display:block; } .label { font-size:11px; fill:var(--soft); }
.end { text-anchor:end; } .mid { text-anchor:middle; } .grid { stroke:var(--line); stroke-width:1; }
.f-compute { fill:var(--compute); } .f-reduce { fill:var(--reduce); } .f-stream { fill:var(--stream); }
.f-sram { fill:var(--sram); } .dot { fill-opacity:.8; } .roof { stroke:var(--fg); stroke-width:1.5; }
.b-compute { background:var(--compute); } .b-reduce { background:var(--reduce); }
.b-stream { background:var(--stream); } .b-sram { background:var(--sram); }
.legend { font-size:13px; } .key { margin-right:16px; }
.key i { display:inline-block; width:11px; height:11px; border-radius:2px; margin-right:5px; }
.band { fill:var(--compute); fill-opacity:.18; } .curve { fill:none; stroke:var(--compute); stroke-width:2; }
.ideal { fill:none; stroke:var(--soft); stroke-width:1.2; stroke-dasharray:4 4; }
.now { fill:none; stroke:var(--reduce); stroke-width:2.5; }
figure { margin:12px 0; }
.heat { width:100%; image-rendering:pixelated; border:1px solid var(--line); object-fit:fill; }
.scroll { overflow-x:auto; } table { border-collapse:collapse; font-size:12.5px; width:100%; }
th, td { padding:3px 8px; border-bottom:1px solid var(--line); text-align:right; white-space:nowrap; }
th { color:var(--soft); font-weight:600; } .text { text-align:left; white-space:normal; }
.assumed { color:var(--reduce); }
"""


def write_page(
    path: str | Path, document: Mapping[str, Any], maps: Sequence[HeatMap] = (), sweep: Sequence[SweepPoint] = ()
) -> None:
    """Write the page of the JSON document of ``sift-onnx simulate``.

    Args:
        path: the file; overwritten.
        document: what ``--json`` has.
        maps: of the grid.
        sweep: speed-up over sparsity.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        Path(path).write_text(page(document, maps, sweep), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the page {str(path)!r} (--html): {error.strerror}") from error


def page(document: Mapping[str, Any], maps: Sequence[HeatMap] = (), sweep: Sequence[SweepPoint] = ()) -> str:
    """The page as text; arguments as :func:`write_page` has them."""
    title = f"{document['model']} on {document['preset']}"
    weighted = [layer for layer in document["layers"] if layer["storage"] != "none"]
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(document))}</p>',
        _cards(document),
        "".join(f"<p>{escape(line)}</p>" for line in (*speedup_lines(document), *functional_lines(document))),
        "<h2>What binds each layer</h2>",
        '<p class="soft">Cycles of weighted layers; hover for figures. Compute includes waiting for the busiest grid '
        "column of a window.</p>",
        limits_chart(weighted),
    ]
    if sweep:
        sections += ["<h2>Speed-up over sparsity</h2>", _SWEEP_TEXT, _sweep(document, weighted, sweep)]
    sections += ["<h2>Roofline</h2>", roofline_chart(weighted, document["machine"])]
    if maps:
        sections.append("<h2>The grid</h2>")
        sections += [heat_chart(m.title, m.values, m.columns, m.rows) for m in maps]
    sections += ["<h2>Layers</h2>", _layers(document["layers"])]
    sections += ["<h2>The machine, and what is known of it</h2>", _parameters(document["machine"])]
    sections += ["<h2>Notes</h2>", _notes(document)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _subtitle(document: Mapping[str, Any]) -> str:
    what = "training step" if document["training"] else "inference"
    return (
        f"{what}, batch {document['batch']}, weights {document['weights']}, {document['fidelity']} model; "
        f"{document['machine']['summary']}. Simulated: a model of the machine, not the machine."
    )


def _cards(document: Mapping[str, Any]) -> str:
    totals = document["totals"]
    clock = document["machine"]["clock_hz"] / 1e9
    assumed = ", parts assumed" if document["energy"]["assumed"] else ""
    cards = [
        (time_text(totals["seconds"]), f"{totals['cycles']:,} cycles at {clock:g} GHz"),
        (f"{totals['utilization']:.1%}", "utilisation"),
        (energy_text(totals["energy_j"]), f"energy{assumed}"),
        (f"{si(totals['weight_macs'])}", "MACs of non-zero weights"),
        (
            file_size(round(totals["edge_index_bytes"] + totals["edge_value_bytes"])),
            f"over the wafer's edge, {file_size(round(totals['edge_index_bytes']))} of it indices",
        ),
    ]
    for key, label in (("vs_dense_wide", "vs. itself dense"), ("vs_dense_original", "vs. the original")):
        value = document["speedup"][key]
        if value is not None:
            low, high = document["speedup"]["bands"][key]
            cards.append((f"{value:.2f}x", f"speed {label} ({low:.2f}x to {high:.2f}x)"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in cards
        )
        + "</div>"
    )


_SWEEP_TEXT = (
    '<p class="soft">The same layers at other sparsities, masks sampled, against the same model executed dense. The '
    "band runs over what is not published of the machine; the dashed line is 1 / (1 - sparsity), the ring this "
    "model.</p>"
)


def _sweep(document: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], sweep: Sequence[SweepPoint]) -> str:
    points = [(p.sparsity, p.speedup.value, p.speedup.low, p.speedup.high) for p in sweep]
    sparse = [layer for layer in layers if layer["storage"] == "csr" and layer["step"] == "forward"]
    size = sum(layer["size"] for layer in sparse)
    value = document["speedup"]["vs_dense_wide"]
    now = (1 - sum(layer["nnz"] for layer in sparse) / size, value) if size and value is not None else None
    return sweep_chart(points, now)


def _layers(layers: Sequence[Mapping[str, Any]]) -> str:
    head = ["name", "operator", "step", "cycles", "bound", "utilisation", "imbalance", "non-zeros", "MACs", "fabric",
            "SRAM", "index", "values", "energy"]  # fmt: skip
    rows = []
    for layer in layers:
        sizes = (layer[key] for key in ("fabric_bytes", "sram_bytes", "edge_index_bytes", "edge_value_bytes"))
        cells = [
            f"{layer['cycles']:,}",
            layer["bound"],
            f"{layer['utilization']:.2%}",
            f"{layer['imbalance']:.2f}",
            f"{layer['nnz']:,}",
            si(layer["macs"]),
            *(file_size(round(size)) for size in sizes),
            energy_text(layer["energy_j"]),
        ]
        texts = (layer["name"], layer["op"], layer["step"].replace("_", " "))
        rows.append(
            "".join(f'<td class="text">{escape(t)}</td>' for t in texts) + "".join(f"<td>{c}</td>" for c in cells)
        )
    return _table(head, rows, {0, 1, 2})


def _parameters(machine: Mapping[str, Any]) -> str:
    rows = []
    for name, p in machine["parameters"].items():
        value, low, high = (_number(p[key]) for key in ("value", "low", "high"))
        spread = f"{low} to {high}" if low != high else ""
        kind = ' class="text assumed"' if p["confidence"] == "assumed" else ' class="text"'
        rows.append(
            f'<td class="text">{escape(name)}</td><td>{value}</td><td class="text">{escape(p["unit"])}</td>'
            f'<td>{spread}</td><td{kind}>{escape(p["confidence"])}</td><td class="text">{escape(p["source"])}</td>'
        )
    return _table(["parameter", "value", "unit", "range", "confidence", "source"], rows, {0, 2, 4, 5})


def _number(value: float | None) -> str:
    return "unlimited" if value is None else f"{value:g}"


def _table(head: Sequence[str], rows: Sequence[str], text_columns: Container[int]) -> str:
    cells = "".join(
        f"<th{' class=text' if i in text_columns else ''}>{escape(name)}</th>" for i, name in enumerate(head)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _notes(document: Mapping[str, Any]) -> str:
    notes = [source_line(document), *document["notes"]]
    if document["energy"]["assumed"]:
        notes.append(f"energy rests on assumed values of {', '.join(document['energy']['assumed'])}")
    notes += [
        f"{layer['name']} ({layer['step']}): {note}"
        for layer in document["layers"]
        for note in layer["notes"]
        if layer["step"] != "mask_update"
    ]
    notes += [f"not fully costed: {e['node']} ({e['op']}): {e['reason']}" for e in document["uncosted"]]
    return "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in dict.fromkeys(notes)) + "</ul>"
