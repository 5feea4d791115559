# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Signals call every subscriber at once and in order, and hide no error."""

import pytest

from cotenant.signals import Signal


def test_subscribers_are_called_at_once_in_the_order_of_subscription() -> None:
    signal, heard = Signal[[str, int]](), list[tuple[str, str, int]]()
    signal.subscribe(lambda text, number: heard.append(("first", text, number)))
    signal.subscribe(
        lambda text, number: heard.append(("second", text, number)),
        lambda text, number: heard.append(("third", text, number)),
    )
    signal.send("a", 1)
    assert heard == [("first", "a", 1), ("second", "a", 1), ("third", "a", 1)]


def test_a_signal_without_subscribers_does_nothing() -> None:
    Signal[[]]().send()


def test_an_exception_of_a_subscriber_reaches_the_sender_and_skips_those_after_it() -> None:
    signal, heard = Signal[[str]](), list[str]()

    def fails(text: str) -> None:
        raise ValueError(text)

    signal.subscribe(heard.append, fails, heard.append)
    with pytest.raises(ValueError, match="broken"):
        signal.send("broken")
    assert heard == ["broken"]
