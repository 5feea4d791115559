# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Draws paired differences with their intervals: one row for each policy, one panel for each metric."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cotenant.sim.report.axes import Axis
from cotenant.sim.report.plots import COLOURS, WIDTH, label_width, short, svg, text_at

_ROW, _HEAD, _FOOT, _GAP = 24.0, 26.0, 30.0, 14.0
_LONGEST_NAME = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """One policy: its mean difference and half the width of its interval."""

    name: str
    style: int
    mean: float
    half: float
    label: str
    parts: bool
    """whether the interval excludes 0"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestPanel:
    """One metric."""

    title: str
    better: str
    """which side of 0 is better: `left` or `right`"""
    axis: Axis
    rows: Sequence[Whisker]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Several metrics below each other."""

    slug: str
    title: str
    text: str
    panels: Sequence[ForestPanel]


def draw_forest(figure: Forest) -> str:
    """Draws the panels as one SVG element."""
    names = [short(row.name, _LONGEST_NAME) for panel in figure.panels for row in panel.rows]
    labels = [row.label for panel in figure.panels for row in panel.rows]
    left = 18.0 + label_width(max(map(len, names)))
    right = WIDTH - 18.0 - label_width(max(map(len, labels)))
    parts: list[str] = []
    top = 4.0
    for panel in figure.panels:
        parts += _panel(panel, left, right, top)
        top += _HEAD + _ROW * len(panel.rows) + _FOOT + _GAP
    return svg(figure.slug, figure.title, figure.text, top, parts)


def _panel(panel: ForestPanel, left: float, right: float, top: float) -> Iterable[str]:
    first, last = top + _HEAD, top + _HEAD + _ROW * len(panel.rows)
    yield text_at(left, top + 14, panel.title, more=' font-weight="600"')
    hint = "← better" if panel.better == "left" else "better →"
    yield text_at(right, top + 14, hint, anchor="end", kind="faint")
    for value, label in panel.axis.ticks:
        x = panel.axis.place(value, left, right)
        yield f'<path class="grid" d="M{x:.1f} {first:g}V{last:g}" stroke="#e3e6e9"/>'
        yield text_at(x, last + 16, label, anchor="middle", kind="faint", more=' font-size="11"')
    zero = panel.axis.place(0.0, left, right)
    yield f'<path class="axis" d="M{zero:.1f} {first:g}V{last:g}" stroke="#6b747d" stroke-width="1.4"/>'
    for index, row in enumerate(panel.rows):
        y = first + _ROW * (index + 0.5)
        colour = COLOURS[row.style % len(COLOURS)]
        ends = [panel.axis.place(value, left, right) for value in (row.mean - row.half, row.mean + row.half)]
        name = f"c{row.style % len(COLOURS)}"
        yield text_at(left - 10, y + 4.3, short(row.name, _LONGEST_NAME), anchor="end")
        yield (
            f'<path class="line {name}" d="M{ends[0]:.1f} {y:g}H{ends[1]:.1f}M{ends[0]:.1f} {y - 5:g}v10'
            f'M{ends[1]:.1f} {y - 5:g}v10" stroke="{colour}" stroke-width="1.8" fill="none"/>'
        )
        centre = panel.axis.place(row.mean, left, right)
        # A hollow point says that the difference may be chance.
        inside = f'fill="{colour}"' if row.parts else 'class="paper" fill="#ffffff"'
        yield f'<circle cx="{centre:.1f}" cy="{y:g}" r="4.2" {inside}/>'
        yield (
            f'<circle class="line {name}" cx="{centre:.1f}" cy="{y:g}" r="4.2" fill="none" stroke="{colour}" '
            'stroke-width="1.8"/>'
        )
        weight = ' font-weight="600"' if row.parts else ""
        yield text_at(right + 10, y + 4.3, row.label, more=weight)
