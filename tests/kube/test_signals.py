# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Signals call their subscribers at once and in order; the scheduler's parts hear what they subscribed to."""

import pytest

from cotenant.kube.scheduler.signals import Signal, Signals


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
    Signals().lead_won.send()


def test_the_signals_of_two_schedulers_are_apart() -> None:
    one, other, heard = Signals(), Signals(), list[str | None]()
    one.freed.subscribe(heard.append)
    other.freed.send("n1")
    assert heard == []
    one.freed.send(None)
    assert heard == [None]


def test_an_exception_of_a_subscriber_reaches_the_sender_and_skips_those_after_it() -> None:
    signal, heard = Signal[[str]](), list[str]()

    def fails(text: str) -> None:
        raise ValueError(text)

    signal.subscribe(heard.append, fails, heard.append)
    with pytest.raises(ValueError, match="broken"):
        signal.send("broken")
    assert heard == ["broken"]
