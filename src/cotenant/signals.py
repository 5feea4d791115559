# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A typed signal: one part sends it, other parts subscribe, and neither needs a reference to the other."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls its subscribers synchronously, in the order in which they subscribed.

    An exception in a subscriber reaches the sender, and later subscribers are not called: a sender may rely on every
    subscriber having run when `send` returns.
    """

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, *subscribers: Callable[P, object]) -> None:
        """Adds subscribers, after those that are there."""
        self._subscribers.extend(subscribers)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls every subscriber."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)
