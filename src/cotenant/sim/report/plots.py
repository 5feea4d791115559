# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Draws line plots and heat maps as self-contained SVG, with light and dark colours and without scripts.

A plotting library is not used, so that the report is one small file whose bytes depend only on the results.
"""

import math
import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from cotenant.sim.report.axes import Axis

Cells = Sequence[Sequence[float | None]]

# From empty to full: dark blue, grey, yellow. Lightness increases evenly, so it is readable with any colour vision.
_ANCHORS = (
    (12, 28, 66),
    (38, 66, 108),
    (77, 92, 109),
    (112, 117, 115),
    (150, 144, 114),
    (193, 174, 100),
    (248, 214, 66),
)


def _between(percent: int) -> tuple[int, int, int]:
    where, inside = divmod(percent * (len(_ANCHORS) - 1), 100)
    low, high = _ANCHORS[where], _ANCHORS[min(where + 1, len(_ANCHORS) - 1)]
    red, green, blue = (round(a + (b - a) * inside / 100) for a, b in zip(low, high, strict=True))
    return red, green, blue


_PALETTE = tuple(_between(percent) for percent in range(101))
SCALE = tuple(f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in _PALETTE[::4])


def data_address(values: Cells) -> str:
    """A data URL of the picture: one pixel per percentage, top row first; None is transparent."""
    return "data:image/png;base64," + b64encode(encode(values)).decode()


def encode(values: Cells) -> bytes:
    """Encodes a PNG with one pixel per percentage; None is transparent."""
    # Every row begins with its filter type: 0 (none), the best for palette indices.
    rows = b"".join(b"\0" + bytes(map(_index, row)) for row in values)
    header = struct.pack(">IIBBBBB", len(values[0]), len(values), 8, 3, 0, 0, 0)
    palette = b"".join(bytes(colour) for colour in (*_PALETTE, (0, 0, 0)))
    opacity = b"\xff" * len(_PALETTE) + b"\0"
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"tRNS", opacity),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _index(value: float | None) -> int:
    return len(_PALETTE) if value is None else min(100, max(0, round(value)))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


Point = tuple[float, float]

WIDTH = 640.0
"""of every drawing, in SVG units; text is sized for this width"""
_ROW_LABEL = 16
_LEFT, _RIGHT, _BOTTOM, _PLOT_HEIGHT = 64.0, 18.0, 50.0, 300.0

# Okabe and Ito's palette, distinguishable with any colour vision; yellow is last because it is faint on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4.5 2", "14 3", "7 2 2 2 2 2")
# 7 dashes and 8 colours have no common factor, so 56 policies get distinct combinations.

_REFERENCE = 'class="axis" fill="none" stroke="#6b747d" stroke-width="1.3" stroke-dasharray="1.3 3"'
_STYLE = (
    "@media screen and (prefers-color-scheme:dark){"
    ".paper{fill:#15181c}.ink{fill:#d9dde2}.faint{fill:#9aa3ad}.grid{stroke:#2b3138}.axis{stroke:#7b858f}"
    ".line.c0{stroke:#2f93d6}.band.c0{fill:#2f93d6}.line.c6{stroke:#f2f2f2}.band.c6{fill:#f2f2f2}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One policy's curve; `band` is the outline of its confidence interval."""

    name: str
    points: Sequence[Point]
    band: Sequence[Point] = ()
    style: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Curves on two axes, with an optional reference curve."""

    slug: str
    title: str
    text: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    reference: Sequence[Point] = ()
    reference_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One heat map: percentages from 0 to 100, top row first; None is blank."""

    title: str
    rows: Sequence[str]
    values: Cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Several heat maps with a common axis and colour scale."""

    slug: str
    title: str
    text: str
    x: Axis
    scale_name: str
    panels: Sequence[Panel] = field(default_factory=list)


def draw(plot: Plot) -> str:
    """Draws a plot as one SVG element."""
    legend, top = _legend(plot)
    right, bottom = WIDTH - _RIGHT, top + _PLOT_HEIGHT
    frame = f'x="{_LEFT:g}" y="{top:g}" width="{right - _LEFT:g}" height="{_PLOT_HEIGHT:g}"'
    parts = [
        *legend,
        *_horizontal(plot.x, (_LEFT, right), (top, bottom)),
        *_vertical(plot.y, (bottom, top), (_LEFT, right)),
        f'<clipPath id="clip-{plot.slug}"><rect {frame}/></clipPath><g clip-path="url(#clip-{plot.slug})">',
    ]

    def path(points: Sequence[Point], *, closed: bool = False) -> str:
        return _path([(plot.x.place(x, _LEFT, right), plot.y.place(y, bottom, top)) for x, y in points], closed=closed)

    if plot.reference:
        parts.append(f'<path d="{path(plot.reference)}" {_REFERENCE}/>')
    for line in plot.lines:
        if line.band:
            parts.append(f'<path d="{path(line.band, closed=True)}" {_fill(line.style)}/>')
    # The first policy is drawn last, on top of the others.
    parts += [f'<path d="{path(line.points)}" {_stroke(line.style)}/>' for line in reversed(plot.lines)]
    parts.append("</g>")
    return svg(plot.slug, plot.title, plot.text, bottom + _BOTTOM, parts)


def draw_panels(figure: Panels) -> str:
    """Draws heat maps as one SVG element, with the colour scale above them."""
    columns = 1 if len(figure.panels) == 1 else 2
    gap, head, title, height, foot = 22.0, 40.0, 22.0, 132.0, 22.0
    left = 14.0 + label_width(max(len(short(row, _ROW_LABEL)) for panel in figure.panels for row in panel.rows))
    width = (WIDTH - _RIGHT - left - (columns - 1) * gap) / columns
    parts = list(_colour_scale(figure.scale_name, left))
    for index, panel in enumerate(figure.panels):
        x = left + (index % columns) * (width + gap)
        y = head + (index // columns) * (title + height + foot) + title
        # All policies have the same cluster, so rows are labelled only on the left.
        parts += _panel(panel, figure.x, (x, y, width, height), named=index % columns == 0)
    bottom = head + math.ceil(len(figure.panels) / columns) * (title + height + foot)
    parts.append(text_at((left + WIDTH - _RIGHT) / 2, bottom + 16, figure.x.label, anchor="middle"))
    return svg(figure.slug, figure.title, figure.text, bottom + 28, parts)


def clean(text: str) -> str:
    """Escapes text for XML, and replaces control characters, which XML does not allow."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def svg(slug: str, title: str, text: str, height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img"'
        f' aria-labelledby="title-{slug} text-{slug}" font-size="12.5"'
        ' font-family="Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif">'
        f'<title id="title-{slug}">{clean(title)}</title><desc id="text-{slug}">{clean(text)}</desc>'
        f'<style>{_STYLE}</style><rect class="paper" width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>"
    )


def _legend(plot: Plot) -> tuple[list[str], float]:
    """The legend above the plot, and the height at which the plot begins."""
    entries = [(short(line.name, 44), _stroke(line.style)) for line in plot.lines]
    if plot.reference:
        entries.append((plot.reference_name, _REFERENCE))
    parts, x, y = [], _LEFT, 14.0
    for name, stroke in entries:
        width = 30 + label_width(len(name)) + 12
        if x > _LEFT and x + width - 12 > WIDTH:
            x, y = _LEFT, y + 19
        parts.append(f'<path d="M{x:g} {y:g}h24" {stroke}/>')
        parts.append(text_at(x + 30, y + 4.2, name))
        x += width
    return parts, y + 16


def _horizontal(axis: Axis, across: Point, down: Point) -> Iterable[str]:
    for value, label in axis.ticks:
        x = axis.place(value, *across)
        yield f'<path class="grid" d="M{x:.1f} {down[0]:g}V{down[1]:g}" stroke="#e3e6e9"/>'
        yield text_at(x, down[1] + 18, label, anchor="middle")
    yield f'<path class="axis" d="M{across[0]:g} {down[1]:g}H{across[1]:g}" stroke="#6b747d"/>'
    yield text_at((across[0] + across[1]) / 2, down[1] + 40, axis.label, anchor="middle")


def _vertical(axis: Axis, up: Point, across: Point) -> Iterable[str]:
    for value, label in axis.ticks:
        y = axis.place(value, *up)
        yield f'<path class="grid" d="M{across[0]:g} {y:.1f}H{across[1]:g}" stroke="#e3e6e9"/>'
        yield text_at(across[0] - 8, y + 4.3, label, anchor="end")
    yield f'<path class="axis" d="M{across[0]:g} {up[1]:g}V{up[0]:g}" stroke="#6b747d"/>'
    middle = (up[0] + up[1]) / 2
    yield text_at(16, middle, axis.label, anchor="middle", more=f' transform="rotate(-90 16 {middle:g})"')


def _panel(panel: Panel, axis: Axis, box: tuple[float, float, float, float], *, named: bool) -> Iterable[str]:
    x, y, width, height = box
    rows, columns = len(panel.values), len(panel.values[0])
    # Sharp cells if each is at least one unit wide and high; smoothed otherwise.
    rendering = ' style="image-rendering:pixelated"' if rows <= height and columns <= width else ""
    frame = f'x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}"'
    yield text_at(x, y - 6, short(panel.title, 44), more=' font-weight="600"')
    yield (
        f'<image {frame} preserveAspectRatio="none"{rendering}'
        f' href="{data_address(panel.values)}"/>'
        f'<rect class="axis" {frame} fill="none" stroke="#6b747d"/>'
    )
    ends = (
        [(panel.rows[0], y + 9.5), (panel.rows[-1], y + height - 1)] if rows > 1 else [(panel.rows[0], y + height / 2)]
    )
    for label, where in ends if named else []:
        yield text_at(x - 6, where, short(label, _ROW_LABEL), anchor="end", kind="faint", more=' font-size="10.5"')
    for value, label in axis.ticks:
        at = axis.place(value, x, x + width)
        yield f'<path class="axis" d="M{at:.1f} {y + height:g}v4" stroke="#6b747d"/>'
        yield text_at(at, y + height + 15, label, anchor="middle", kind="faint", more=' font-size="10.5"')


def _colour_scale(name: str, left: float) -> Iterable[str]:
    width = 160.0
    step = width / len(SCALE)
    for index, colour in enumerate(SCALE):
        yield f'<rect x="{left + index * step:.2f}" y="6" width="{step + 0.3:.2f}" height="10" fill="{colour}"/>'
    yield text_at(left, 28, "0", kind="faint", more=' font-size="10.5"')
    yield text_at(left + width, 28, "100", anchor="end", kind="faint", more=' font-size="10.5"')
    yield text_at(left + width + 12, 15.3, name)


def _path(points: Sequence[Point], *, closed: bool) -> str:
    """A path with relative steps in tenths of a unit: a third of the bytes, and no accumulated rounding error."""
    whole = [(round(x * 10), round(y * 10)) for x, y in points]
    kept = _thin(whole)
    start = kept[0]
    steps = (f"{_tenth(b[0] - a[0])} {_tenth(b[1] - a[1])}" for a, b in pairwise(kept))
    return f"M{_tenth(start[0])} {_tenth(start[1])}l{' '.join(steps)}{'z' if closed else ''}"


def _thin(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drops points inside horizontal and vertical stretches, of which step curves have many."""
    kept = list(points[:1])
    for point, after in pairwise(points[1:]):
        level = kept[-1][1] == point[1] == after[1]
        upright = kept[-1][0] == point[0] == after[0]
        if not level and not upright:
            kept.append(point)
    return [*kept, points[-1]] if len(points) > 1 else [*kept, *kept]


def _tenth(value: int) -> str:
    return f"{value // 10}" if value % 10 == 0 else f"{value / 10:.1f}"


def _fill(style: int) -> str:
    index = style % len(COLOURS)
    return f'class="band c{index}" fill="{COLOURS[index]}" fill-opacity=".16"'


def _stroke(style: int) -> str:
    index = style % len(COLOURS)
    dash = DASHES[style % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    colour = f'class="line c{index}" fill="none" stroke="{COLOURS[index]}"'
    return f'{colour} stroke-width="1.8" stroke-linejoin="round"{dashes}'


def text_at(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "ink", more: str = "") -> str:
    fill = "#1d2125" if kind == "ink" else "#5c656e"
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{more}>{clean(text)}</text>'
    )


def short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def label_width(characters: int) -> float:
    # Fonts cannot be measured here; 6.2 units per character is slightly too wide for most of those named above.
    return 6.2 * characters
