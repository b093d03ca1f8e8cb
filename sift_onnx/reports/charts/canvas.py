"""A chart on a page: drawn once for a wide screen and once for a narrow one, as SVG that follows the page's colours."""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sift_onnx.errors import MissingExtraError
from sift_onnx.reports.charts.theme import SETTINGS, VARIABLES
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.table import Table, table_html

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Canvas", "Chart", "charts_html", "require_charts"]

WIDE, NARROW = 1020, 350  # CSS pixels
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass
class Canvas:
    """What a chart is drawn on.

    Attributes:
        figure: of matplotlib.
        narrow: whether it is for a phone; there is room for some thirty digits across.
        tips: texts that are shown where the pointer rests on an artist.
    """

    figure: Figure
    narrow: bool
    tips: dict[str, str] = field(default_factory=dict)

    def axes(self) -> Axes:
        """One pair of axes."""
        return self.figure.add_subplot()

    def panels(self, count: int, **options: Any) -> list[Axes]:
        """Axes next to each other, or below each other where it is narrow."""
        rows, columns = (count, 1) if self.narrow else (1, count)
        grid = self.figure.subplots(rows, columns, squeeze=False, **options)
        return [axes for row in grid for axes in row]

    def tip(self, artist: Artist, text: str) -> None:
        """Show ``text`` at ``artist``."""
        name = f"tip-{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = text

    def height(self, pixels: float) -> None:
        """Set the height, in CSS pixels."""
        self.figure.set_figheight(pixels / 72)

    def legend(self, *grid: Axes, columns: tuple[int, int] = (2, 4)) -> None:
        """A legend above the axes, where it covers nothing; what several axes show is named once.

        Args:
            grid: the axes.
            columns: of the legend, on a narrow and on a wide screen.
        """
        shown: dict[str, Artist] = {}
        for axes in grid:
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                shown[name] = handle
        number = columns[0 if self.narrow else 1]
        self.figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=number)


@dataclass(frozen=True)
class Chart:
    """A chart with all that must come with it.

    Attributes:
        title: what is shown.
        caption: how to read it.
        description: the text alternative: what can be seen in it.
        draw: draws it; called once for either width.
        table: the figures that it shows.
    """

    title: str
    caption: str
    description: str
    draw: Callable[[Canvas], None]
    table: Table


def charts_html(charts: Sequence[Chart], prefix: str) -> Markup:
    """Charts one below the other.

    Args:
        charts: to be drawn.
        prefix: of names in the page; no other charts'.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return join(*(_chart_html(chart, f"{prefix}-{i}") for i, chart in enumerate(charts)))


def require_charts() -> None:
    """Find out early, before any work is done, whether charts can be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("charts need matplotlib: pip install 'sift-onnx[report]'")


def _chart_html(chart: Chart, prefix: str) -> Markup:
    """A figure: title, caption, chart, and the table of its figures, folded."""
    drawings = [_draw(chart, narrow, f"{prefix}-{'n' if narrow else 'w'}") for narrow in (False, True)]
    return tag(
        "figure",
        tag("figcaption", tag("strong", chart.title), tag("p", chart.caption) if chart.caption else ""),
        *drawings,
        tag("details", tag("summary", f"Figures: {chart.table.title.lower()}"), table_html(chart.table)),
        id=prefix,
    )


def _draw(chart: Chart, narrow: bool, prefix: str) -> Markup:
    require_charts()
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    text = io.StringIO()
    with rc_context({**SETTINGS, "svg.hashsalt": prefix}), warnings.catch_warnings():
        # Names may be in any script. The browser has the glyphs; only what room they take is guessed.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = Figure(figsize=((NARROW if narrow else WIDE) / 72, 300 / 72), layout="constrained")
        FigureCanvasSVG(figure)
        canvas = Canvas(figure, narrow)
        chart.draw(canvas)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(text.getvalue(), chart, canvas, prefix)


def _inline(text: str, chart: Chart, canvas: Canvas, prefix: str) -> Markup:
    """Matplotlib's file as a part of a page: names that are the chart's own, no fonts, colours of the page."""
    root = ET.fromstring(text)  # noqa: S314  (matplotlib wrote it)
    for parent in list(root.iter()):
        for child in list(parent):
            is_style = child.tag == f"{{{_SVG}}}defs" and child.find(f"{{{_SVG}}}style") is not None
            if is_style or child.tag == f"{{{_SVG}}}metadata":
                parent.remove(child)
    used = set(re.findall(r'(?:url\(#|href="#)([\w.-]+)', text))
    for node in root.iter():
        name = node.attrib.pop("id", None)
        if name in canvas.tips:
            title = ET.Element("title")
            title.text = canvas.tips[name]
            node.insert(0, title)
        if name in used:
            node.set("id", f"{prefix}-{name}")
        _rewrite(node, prefix)
    width, height = (root.attrib.pop(key).removesuffix("pt") for key in ("width", "height"))
    root.attrib.clear()
    root.set("viewBox", f"0 0 {float(width):g} {float(height):g}")
    root.set("class", "narrow" if canvas.narrow else "wide")
    root.set("role", "img")
    root.set("aria-label", f"{chart.title}. {chart.description}")
    return Markup(ET.tostring(root, encoding="unicode", short_empty_elements=True))


def _rewrite(node: ET.Element, prefix: str) -> None:
    node.tag = node.tag.removeprefix(f"{{{_SVG}}}")
    if node.text is not None and not node.text.strip():
        node.text = None
    node.tail = None
    for key, value in list(node.attrib.items()):
        if key == f"{{{_LINK}}}href":
            del node.attrib[key]
            node.set("href", f"#{prefix}-{value[1:]}" if value.startswith("#") else value)
        elif key == "clip-path":
            node.set(key, value.replace("url(#", f"url(#{prefix}-"))
        elif key == "style":
            node.set(key, _style(value))
        elif key == "transform" and value.startswith("rotate(-0 "):
            del node.attrib[key]
        elif key in ("d", "x", "y", "points", "transform"):
            node.set(key, re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value))


def _style(value: str) -> str:
    parts = [part.strip() for part in value.split(";")]
    kept = ";".join(part.replace(": ", ":") for part in parts if part and not part.startswith("font-family"))
    return re.sub(r"#[0-9a-f]{6}", lambda m: VARIABLES.get(m[0], m[0]), kept)
