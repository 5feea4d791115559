# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector during a simulation."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 200_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Lets the garbage collector run once per 200,000 new objects; Python's default is a few hundred or thousand.

    Jobs, nodes and placements form no reference cycles, so the collector frees none of them. With the default, it takes
    a tenth of the time of a long replay.
    """
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
