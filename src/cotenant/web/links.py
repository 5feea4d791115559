# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Draws how the GPUs of a node are connected: GPUs on a circle, a line for each pair, thicker for faster links."""

import math
import re
from dataclasses import dataclass

SIZE, RADIUS = 320, 124
MOST_DRAWN = 16
"""GPUs above which only the table is shown"""
WORDS = {
    "nvlink": "NVLink",
    "board": "one board",
    "switch": "PCIe switch",
    "bridge": "host bridge",
    "socket": "across CPU sockets",
}
"""class of a line -> what the legend calls it"""
_CLASSES = {"PSB": "board", "PIX": "switch", "PXB": "switch", "PHB": "bridge", "NODE": "bridge", "SYS": "socket"}
_NVLINK = re.compile(r"NV(\d+)")


@dataclass(frozen=True, slots=True)
class Line:
    """A pair of GPUs."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The image and the table of the same links."""

    names: tuple[str, ...] = ()
    points: tuple[tuple[float, float, str], ...] = ()
    lines: tuple[Line, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    """(class, word) of the legend"""


def kind_of(link: str) -> str:
    return "nvlink" if _NVLINK.fullmatch(link) else _CLASSES.get(link, "socket")


def drawing(links: tuple[tuple[str, ...], ...], names: tuple[str, ...]) -> Drawing:
    if not links or len(links) != len(names) or len(names) < 2:
        return Drawing()
    points = []
    for number, name in enumerate(names):
        angle = 2 * math.pi * number / len(names) - math.pi / 2
        x, y = SIZE / 2 + RADIUS * math.cos(angle), SIZE / 2 + RADIUS * math.sin(angle)
        points.append((round(x, 1), round(y, 1), name))
    lines = []
    for i in range(len(names)):
        for k in range(i + 1, len(names)):
            link = links[i][k]
            count = _NVLINK.fullmatch(link)
            width = 1.0 if count is None else 1.5 + min(6, int(count[1])) * 0.9
            (x1, y1, _), (x2, y2, _) = points[i], points[k]
            lines.append(Line(x1, y1, x2, y2, kind_of(link), width, f"GPU {names[i]} – GPU {names[k]}: {link}"))
    used = {line.kind for line in lines}
    drawn = len(names) <= MOST_DRAWN
    # slow links first, so that fast ones are drawn above them
    rank = list(WORDS)
    return Drawing(
        names,
        tuple(points) if drawn else (),
        tuple(sorted(lines, key=lambda line: -rank.index(line.kind))) if drawn else (),
        tuple(tuple("·" if i == k else links[i][k] for k in range(len(names))) for i in range(len(names))),
        tuple((kind, word) for kind, word in WORDS.items() if kind in used),
    )
