# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The signals of one scheduler reach only its own parts."""

from cotenant.kube.scheduler.shared import Signals


def test_the_signals_of_two_schedulers_are_apart() -> None:
    one, other, heard = Signals(), Signals(), list[str | None]()
    one.freed.subscribe(heard.append)
    other.freed.send("n1")
    assert heard == []
    one.freed.send(None)
    assert heard == [None]
