"""The charts of a simulation as inline SVG; colours are CSS variables, so that they follow light and dark."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["heat_chart", "limits_chart", "roofline_chart", "sweep_chart"]

_LIMITS = ("compute", "reduce", "stream", "sram")
_MOST_BARS = 48
_WIDTH = 860
_STEPS = {"forward": "", "input_gradient": " dX", "weight_gradient": " dW", "mask_update": " mask"}


def limits_chart(layers: Sequence[Mapping[str, Any]]) -> str:
    """Cycles per layer, stacked by what bound them; the layers with the most cycles where there are many."""
    shown = layers
    if len(layers) > _MOST_BARS:
        longest = sorted(range(len(layers)), key=lambda i: -layers[i]["cycles"])[:_MOST_BARS]
        shown = [layers[i] for i in sorted(longest)]
    left, bar, gap = 250, 13, 5
    height = len(shown) * (bar + gap) + 34
    most = max((layer["cycles"] for layer in shown), default=1)
    scale = (_WIDTH - left - 20) / most
    parts = [_x_axis(left, height - 22, most, scale, _cycles)]
    for i, layer in enumerate(shown):
        y = i * (bar + gap) + 4
        label = _short(layer["name"] + _STEPS[layer["step"]], 38)
        parts.append(f'<text x="{left - 8}" y="{y + bar - 3}" class="label end">{escape(label)}</text>')
        x = float(left)
        for name in _LIMITS:
            cycles = layer["limits"][name]
            width = cycles * scale
            if width < 0.05:
                continue
            title = f"{layer['name']} ({layer['step']}): {cycles:,.0f} of {layer['cycles']:,} cycles bound by {name}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.4):.1f}" height="{bar}" class="f-{name}">'
                f"<title>{escape(title)}</title></rect>"
            )
            x += width
    legend = "".join(f'<span class="key"><i class="b-{name}"></i>{name}</span>' for name in _LIMITS)
    return f'<p class="legend">{legend}</p>' + _svg(_WIDTH, height, parts, "Cycles per layer by what bound them")


def roofline_chart(layers: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
    """Multiply-accumulates per second over multiply-accumulates per byte at the wafer's edge; one point per layer."""
    clock, peak = machine["clock_hz"], machine["clock_hz"] * machine["peak_macs_per_cycle"]
    points = []
    for layer in layers:
        edge = layer["edge_index_bytes"] + layer["edge_value_bytes"]
        if edge > 0 and layer["macs"] > 0:
            points.append((layer["macs"] / edge, layer["macs"] / layer["cycles"] * clock, layer))
    if not points:
        return "<p>No layer moves bytes over the wafer's edge.</p>"
    bandwidth = (machine["parameters"].get("edge_bytes_per_cycle") or {}).get("value")
    roof = bandwidth * clock if bandwidth else None
    xs = [x for x, _, _ in points] + ([peak / roof] if roof else [])
    ys = [y for _, y, _ in points] + [peak]
    x_low, x_high = _decades(xs)
    y_low, y_high = _decades(ys)
    left, top, width, height = 80, 12, _WIDTH - 110, 330
    x_at, y_at = _log_scale(x_low, x_high, left, width), _log_scale(y_low, y_high, top + height, -height)
    parts = [_log_grid(x_low, x_high, y_low, y_high, x_at, y_at, left, top, width, height)]
    corner = peak / roof if roof else 10**x_low
    if roof:
        start = max(10**x_low, 10**y_low / roof)
        parts.append(_line(x_at(start), y_at(start * roof), x_at(min(corner, 10**x_high)), y_at(peak), "roof"))
    if corner < 10**x_high:
        parts.append(_line(x_at(max(corner, 10**x_low)), y_at(peak), x_at(10**x_high), y_at(peak), "roof"))
    for x, y, layer in points:
        title = f"{layer['name']} ({layer['step']}): {y:.3g} MAC/s, {x:.3g} MAC per byte, bound by {layer['bound']}"
        parts.append(
            f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="4" class="f-{layer["bound"]} dot">'
            f"<title>{escape(title)}</title></circle>"
        )
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 40}" class="label mid">'
        "multiply-accumulates per byte over the wafer's edge</text>"
    )
    parts.append(f'<text x="{left}" y="{top - 2}" class="label">MAC/s</text>')
    return _svg(_WIDTH, top + height + 48, parts, "Roofline of the layers")


def sweep_chart(points: Sequence[tuple[float, float, float, float]], now: tuple[float, float] | None) -> str:
    """Speed-up over the same model executed dense, with its band.

    Args:
        points: sparsity, speed-up, lower and upper end of the band.
        now: sparsity and speed-up of the model itself.
    """
    left, top, width, height = 60, 12, _WIDTH - 90, 300
    most = 1.15 * max(1.0, *(high for *_, high in points), now[1] if now is not None else 0.0)

    def x_at(sparsity: float) -> float:
        return left + sparsity * width

    def y_at(speedup: float) -> float:
        return top + height - min(speedup, most) / most * height

    parts = []
    step = _round_step(most / 5)
    for i in range(int(most / step) + 1):
        y = y_at(i * step)
        parts.append(_line(left, y, left + width, y, "grid"))
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" class="label end">{i * step:g}x</text>')
    for percent in range(0, 101, 10):
        x = x_at(percent / 100)
        parts.append(f'<text x="{x:.1f}" y="{top + height + 18}" class="label mid">{percent} %</text>')
    ideal = [(s / 200, 1 / (1 - s / 200)) for s in range(200) if 1 / (1 - s / 200) <= most]
    parts.append(_path([(x_at(s), y_at(v)) for s, v in ideal], "ideal"))
    band = [(x_at(s), y_at(high)) for s, _, _, high in points] + [(x_at(s), y_at(low)) for s, _, low, _ in points[::-1]]
    parts.append(f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in band)}" class="band"/>')
    parts.append(_path([(x_at(s), y_at(v)) for s, v, _, _ in points], "curve"))
    for s, value, low, high in points:
        title = f"{s:.0%}: {value:.2f}x ({low:.2f}x to {high:.2f}x)"
        parts.append(
            f'<circle cx="{x_at(s):.1f}" cy="{y_at(value):.1f}" r="4" class="f-compute"><title>{title}</title></circle>'
        )
    if now is not None:
        parts.append(
            f'<circle cx="{x_at(now[0]):.1f}" cy="{y_at(now[1]):.1f}" r="6" class="now">'
            f"<title>this model: {now[0]:.1%}, {now[1]:.2f}x</title></circle>"
        )
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 38}" class="label mid">sparsity of the sparse layers</text>'
    )
    return _svg(_WIDTH, top + height + 46, parts, "Speed-up over sparsity")


def heat_chart(title: str, values: npt.NDArray[np.float64], columns: int, rows: int) -> str:
    """A map of the grid; the strongest colour is the largest value."""
    most = float(values.max())
    image = _png(values / most if most else values)
    unit = f"{most:.1%}" if "share" in title else f"{most:,.3g}"
    return (
        f"<figure><figcaption>{escape(title)}: pale to full colour is 0 to {unit}, mean "
        f"{values.mean() / most if most else 0:.0%} of that; {columns} x {rows} cores</figcaption>"
        f'<img class="heat" alt="{escape(title)}" style="aspect-ratio:{columns}/{max(rows, 1)};'
        f'max-height:420px" src="data:image/png;base64,{image}"></figure>'
    )


def _png(values: npt.NDArray[np.float64]) -> str:
    """Shares as the opacity of one colour, so that the page's background shows through; base 64."""
    height, width = values.shape
    pixels = np.zeros((height, width, 4), np.uint8)
    pixels[..., :3] = (47, 111, 214)
    pixels[..., 3] = np.clip(values * 255, 0, 255).astype(np.uint8)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode("ascii")


def _svg(width: int, height: int, parts: Sequence[str], label: str) -> str:
    # Scaled down to a telephone's width, the labels could not be read.
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg></div>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _path(points: Sequence[tuple[float, float]], kind: str) -> str:
    steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{steps}" class="{kind}"/>'


def _x_axis(left: float, y: float, most: float, scale: float, text: Callable[[float], str]) -> str:
    step = _round_step(most / 5)
    parts = []
    for i in range(int(most / step) + 1):
        x = left + i * step * scale
        parts.append(_line(x, 0, x, y, "grid"))
        parts.append(f'<text x="{x:.1f}" y="{y + 16}" class="label mid">{text(i * step)}</text>')
    return "".join(parts)


def _log_grid(
    x_low: int,
    x_high: int,
    y_low: int,
    y_high: int,
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
    left: float,
    top: float,
    width: float,
    height: float,
) -> str:
    parts = []
    for power in range(x_low, x_high + 1):
        x = x_at(10.0**power)
        parts.append(_line(x, top, x, top + height, "grid"))
        parts.append(f'<text x="{x:.1f}" y="{top + height + 18}" class="label mid">{_power(power)}</text>')
    for power in range(y_low, y_high + 1):
        y = y_at(10.0**power)
        parts.append(_line(left, y, left + width, y, "grid"))
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" class="label end">{_power(power)}</text>')
    return "".join(parts)


def _log_scale(low: int, high: int, start: float, length: float) -> Callable[[float], float]:
    return lambda value: start + (math.log10(value) - low) / (high - low) * length


def _decades(values: Sequence[float]) -> tuple[int, int]:
    # Room for a point that lies on a power of ten.
    low, high = math.floor(math.log10(min(values)) - 0.1), math.ceil(math.log10(max(values)) + 0.1)
    return low, max(high, low + 1)


def _power(power: int) -> str:
    return f'10<tspan dy="-4" font-size="8">{power}</tspan>'


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below ``rough``."""
    base = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(float(base * factor) for factor in (1, 2, 5, 10) if base * factor >= rough)


def _cycles(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g} {unit}"
    return f"{value:g}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else "..." + text[3 - most :]
