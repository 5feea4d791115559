# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When Python's garbage collector runs in the scheduler: between calls, since a call must not wait for it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from itertools import count
from typing import NoReturn

EVERYTHING_S = 600
"""interval at which garbage is looked for among all objects that were made since the scheduler was ready"""
GARBAGE_S = 0.02
"""between two searches for garbage among the objects of the last calls: after 0.1 s one takes 0.5 ms, and 1 of 50
calls would wait for it"""
FEW_OBJECTS = 200
"""new objects among which garbage is not worth a search"""
MOST_YOUNG = 20_000
"""new objects at which garbage is looked for in a call; a hundred calls make fewer"""
NEVER = 1_000_000_000


def limit_to_new_objects() -> None:
    """Have Python look for garbage among new objects only, and rarely; for the rest there is `collect`.

    Almost all objects of the scheduler's start stay. If they were scanned again and again, that would take a fourth of
    the time of the start.
    """
    gc.set_threshold(MOST_YOUNG, NEVER, NEVER)


def freeze() -> None:
    """Never look at the objects of now again."""
    gc.collect()
    gc.freeze()


async def collect(wait: Callable[[], Awaitable[None]]) -> NoReturn:
    """Collect the garbage of the last calls between calls, often, so that it never takes long, and all of it rarely.

    `wait` waits until no call is being answered.
    """
    for number in count(1):
        await asyncio.sleep(GARBAGE_S)
        await wait()
        if number % round(EVERYTHING_S / GARBAGE_S) == 0:
            gc.collect(2)
        elif gc.get_count()[0] > FEW_OBJECTS:
            gc.collect(1)
    raise AssertionError("it counts on")
