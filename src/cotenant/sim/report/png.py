# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes a heat map as a PNG with a palette, which takes 1 % of the bytes of one SVG rectangle per cell."""

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence

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
