# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes writes them (`1Gi`, `500m`, `1e3`, `1.5G`), exact: the API server writes 3000 as `3k`."""

import re
from fractions import Fraction

from cotenant.wire.text import printable

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{0,40})(?:\.(?P<part>\d{0,40}))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_FACTORS = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", start=1)},
}


def parse_quantity(written: str | int) -> Fraction:
    """The number; ValueError if the text is no quantity."""
    if isinstance(written, int):
        return Fraction(written)
    match = _QUANTITY.fullmatch(written)
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f"{printable(written[:40])!r} is not a quantity; write for example 1, 4096 or 4Ki")
    part = match["part"] or ""
    number = Fraction(int((match["whole"] or "") + part), 10 ** len(part))
    if match["sign"] == "-":
        number = -number
    if match["exponent"]:
        return number * Fraction(10) ** int(match["exponent"])
    return number * _FACTORS.get(match["suffix"] or "", Fraction(1))
