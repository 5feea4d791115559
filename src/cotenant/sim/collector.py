# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector during a simulation."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 200_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collects garbage after so many new objects, not after each 700.

    Jobs, nodes and placements form no cycles, so the collector finds nothing among them: it only takes time, a tenth of
    that of a long replay.
    """
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
