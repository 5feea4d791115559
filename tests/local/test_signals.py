# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Signals call every listener at once and in order, and hide no error."""

import re
from pathlib import Path

import pytest

from cotenant.local import signals
from cotenant.local.signals import Signal

PACKAGE = Path(signals.__file__).parent


def test_listeners_are_called_in_the_order_in_which_they_subscribed() -> None:
    signal: Signal[[str, int]] = Signal()
    calls: list[tuple[str, str, int]] = []
    signal.subscribe(lambda name, number: calls.append(("first", name, number)))
    signal.subscribe(lambda name, number: calls.append(("second", name, number)))
    signal("a", 1)
    assert calls == [("first", "a", 1), ("second", "a", 1)]


def test_a_signal_without_listeners_does_nothing() -> None:
    signal: Signal[[]] = Signal()
    signal()


def test_an_error_reaches_the_sender_and_stops_later_listeners() -> None:
    signal: Signal[[]] = Signal()
    calls: list[str] = []

    def fail() -> None:
        raise OSError("full")

    signal.subscribe(lambda: calls.append("before"))
    signal.subscribe(fail)
    signal.subscribe(lambda: calls.append("after"))
    with pytest.raises(OSError, match="full"):
        signal()
    assert calls == ["before"]


def test_the_map_lists_every_signal_of_the_engine_and_no_other() -> None:
    listed = set(re.findall(r"^\| `\w+\.(\w+)` \|", (PACKAGE / "README.md").read_text(), re.MULTILINE))
    sources = (path.read_text() for path in PACKAGE.glob("*.py"))
    sent = {name for source in sources for name in re.findall(r"self\.(\w+): Signal\[", source)}
    assert listed == sent


def test_every_signal_of_the_engine_has_a_listener() -> None:
    sources = {path.name: path.read_text() for path in PACKAGE.glob("*.py")}
    sent = {name for source in sources.values() for name in re.findall(r"self\.(\w+): Signal\[", source)}
    heard = {name for source in sources.values() for name in re.findall(r"\.(\w+)\.subscribe\(", source)}
    assert sent == heard - {"events"}
