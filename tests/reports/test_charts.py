"""Charts: what they compute, and what names may hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sift_onnx.records.profile import NodeProfile, ProfileReport
from sift_onnx.records.transform import LayerChange, Totals, TransformReport
from sift_onnx.reports.charts.accuracy import accuracy_chart, pareto
from sift_onnx.reports.charts.canvas import Chart, charts_html
from sift_onnx.reports.charts.latency import Curve, bounds_chart
from sift_onnx.reports.charts.layers import budget_chart, layers_chart
from sift_onnx.reports.charts.masks import picture_of
from sift_onnx.reports.charts.nodes import nodes_chart
from sift_onnx.reports.charts.rows import MOST_ROWS, choose_rows
from sift_onnx.reports.page.frame import style
from sift_onnx.reports.page.markup import tag
from sift_onnx.reports.page.table import MOST_ROWS as MOST_TABLE_ROWS
from sift_onnx.reports.page.table import Table, table_html
from sift_onnx.reports.trained_models import Point

HOSTILE = "<script>alert(1)</script> & $x_$ \u4e2d"


def nodes(count: int, name: str = "node") -> ProfileReport:
    entries = tuple(NodeProfile(f"{name} {i}", "Conv", "kernels", "", float(i)) for i in range(count))
    return ProfileReport(model="m", backend="cpu", batch=1, threads=2, total_ms=9.0, nodes=entries, placements=())


def test_pareto_leaves_out_what_something_cheaper_beats() -> None:
    assert pareto([(30, 0.7), (10, 0.5), (20, 0.4), (20, 0.6), (40, 0.7)]) == [(10, 0.5), (20, 0.6), (30, 0.7)]
    assert pareto([]) == []


def test_repetitions_are_summed_up_and_compared_at_equal_cost() -> None:
    points = [
        Point("dense", 1000, 0.70, True, 10),
        Point("dense", 1000, 0.72, True, 10),
        Point("wide", 1001, 0.75, False, 10),
        Point("large", 4000, 0.90, True, 10),
    ]
    chart = accuracy_chart(points)
    assert "At the cost of dense, wide is 4.00 points above it." in chart.caption
    assert tuple(chart.table.rows[0][:5]) == ("dense", "dense", "1,000", "2", "71.00%")
    charts_html([chart], "a")


def test_models_of_one_cost_are_rows_and_no_axis_spreads_their_rounding() -> None:
    points = [Point("dense", 14748, 0.96, True, 10), Point("wide", 14744, 0.97, False, 10)]
    chart = accuracy_chart(points)
    assert "All models cost the same: 14,744 to 14,748 MACs" in chart.caption
    assert "best for their cost" not in charts_html([chart], "a")


def test_two_models_are_compared_by_bars_and_no_line_joins_them() -> None:
    curves = [
        Curve("onnxruntime: zeros are executed", "dense", [(10.0, 9.0, 12.0), (100.0, 99.0, 120.0)]),
        Curve("cpu", "measured", [None, (15.0, 14.0, 16.0)]),
        Curve("ideal: net on onnxruntime", "ideal", [(10.0, 10.0, 10.0)] * 2),
    ]
    text = charts_html([bounds_chart("Latency", "", {"net": 0.0, "wide": 0.9}, curves)], "a")
    for shown in ("10 ms", "100 ms", "15 ms", "wide, 90 %", "ideal: net on onnxruntime"):
        assert f">{shown}<" in text, shown


def test_a_picture_of_a_mask_has_its_densities() -> None:
    mask = np.random.default_rng(0).random((300, 20, 3, 3)) < 0.1
    picture = picture_of("w", mask)
    assert picture.matrix == (300, 180)
    assert picture.density.shape == (128, 128)
    matrix = mask.reshape(300, 180)
    rows, columns = slice(127 * 300 // 128, 300), slice(0, 180 // 128)
    assert picture.density[-1, 0] == pytest.approx(matrix[rows, columns].mean())
    assert picture.by_row.sum() == picture.by_column.sum() == mask.sum()
    assert np.array_equal(picture.corner, matrix[:64, :128])


def test_long_networks_are_cut_and_say_so() -> None:
    shown, remark = choose_rows(list(range(100)), float)
    assert shown == list(range(100 - MOST_ROWS, 100))
    assert str(MOST_ROWS) in remark
    assert "100" in remark
    chart = nodes_chart(nodes(100))
    assert remark in chart.caption
    assert len(chart.table.rows) == 100


def test_long_tables_are_cut_and_say_so() -> None:
    text = table_html(Table.of("t", "<a", [(str(i),) for i in range(1000)]))
    assert text.count("<tr>") == MOST_TABLE_ROWS + 1
    assert f"{MOST_TABLE_ROWS} of 1,000 rows" in text


def test_names_are_text_whatever_they_hold() -> None:
    text = charts_html([nodes_chart(nodes(3, HOSTILE))], "a")
    assert "<script" not in text
    assert "$x_$" in text
    assert "\u4e2d" in text
    assert tag("p", "<b>", title='"&') == '<p title="&quot;&amp;">&lt;b&gt;</p>'


def test_names_of_one_chart_are_not_those_of_another() -> None:
    chart = nodes_chart(nodes(3))
    text = charts_html([chart, chart], "a")
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names)) > 2
    for name in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text):
        assert (name[0] or name[1]) in names


def test_a_page_says_nothing_of_when_or_where_it_was_drawn() -> None:
    chart = nodes_chart(nodes(3))
    assert charts_html([chart], "a") == charts_html([chart], "a")
    assert "matplotlib" not in charts_html([chart], "a").replace("matplotlib.axis", "")


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_the_background(theme: int) -> None:
    """By the Web Content Accessibility Guidelines: 4.5 to 1 for text, 3 to 1 for marks."""
    blocks = re.findall(r":root \{(.*?)\}", style(), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[theme]))
    for name, colour in colours.items():
        high, low = sorted((_luminance(colour), _luminance(colours["bg"])), reverse=True)
        ratio = (high + 0.05) / (low + 0.05)
        if name in ("fg", "soft"):
            assert ratio >= 4.5, name
        elif name not in ("bg", "line", "faint"):
            assert ratio >= 3, (name, ratio)


def test_a_chart_is_drawn_for_two_widths(tmp_path: Path) -> None:
    widths = []

    def draw(canvas: object) -> None:
        widths.append(canvas.narrow)  # type: ignore[attr-defined]
        canvas.axes().plot([1, 2], [1, 2])  # type: ignore[attr-defined]

    charts_html([Chart("t", "", "d", draw, Table.of("t", "a", [("1",)]))], "a")
    assert widths == [False, True]


def layer(name: str, before: int, after: int, status: str) -> LayerChange:
    return LayerChange(
        name=name, node=name, op="Gemm", kind="gemm", shape_before=(4, before), shape_after=(4, 2 * before), nnz=after,
        sparsity=0.5, macs_before=before, macs_after=after, status=status, reason="",
    )  # fmt: skip


def test_a_layer_that_two_passes_changed_counts_once() -> None:
    totals = Totals(
        weight_macs_before=100, weight_macs_after=100, weight_macs_ratio=1.0, nnz_before=0, nnz_after=0, search_space=0
    )
    layers = (layer("a", 60, 80, "dense"), layer("b", 30, 10, "sparse"), layer("a", 80, 70, "sparse"))
    report = TransformReport(layers=layers, totals=totals)
    chart = budget_chart(report)
    assert list(chart.table.rows)[:2] == [("masked layers", "90", "80"), ("unchanged layers", "10", "20")]
    rows = layers_chart(report).table.rows
    assert [(row[0], row[6], row[7]) for row in rows] == [("a", "60", "70"), ("b", "30", "10")]
