# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of the caller, converted without an exception: a bad value is ignored, and training goes on."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import SupportsFloat, SupportsInt, TypeAlias

    Number: TypeAlias = SupportsFloat | None
    """a number, or anything that float() accepts: a scalar of numpy, JAX or PyTorch"""


def finite(value: Number) -> float | None:
    """A finite number, or None. Converting the caller's value may raise anything: a deleted buffer, a lost device."""
    if value is None:
        return None
    try:
        number = float(value)
    except Exception:  # noqa: BLE001  never an exception into training
        return None
    return number if math.isfinite(number) else None


def positive(value: SupportsInt | str | None) -> int | None:
    """A positive integer, or None."""
    try:
        number = int(value or 0)
    except Exception:  # noqa: BLE001  never an exception into training
        return None
    return number if number > 0 else None


def batch_bounds(bounds: tuple[int, int] | None, batch: int | None) -> tuple[int, int] | None:
    """The bounds, widened to include `batch`; None: they are not valid."""
    try:
        least, most = bounds or (None, None)
    except (TypeError, ValueError):
        return None
    low, high = positive(least), positive(most)
    if low is None or high is None or low > high:
        return None
    return (low, high) if batch is None else (min(low, batch), max(high, batch))
