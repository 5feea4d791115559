# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A typed signal: one part sends it, other parts subscribe, and neither needs a reference to the other."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls its listeners synchronously, in the order in which they subscribed.

    An exception in a listener reaches the sender, and later listeners are not called: a sender may rely on every
    listener having run when the call returns.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[P, object]] = []

    def subscribe(self, listener: Callable[P, object]) -> None:
        self._listeners.append(listener)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)
