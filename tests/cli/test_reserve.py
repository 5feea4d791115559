# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant reserve` on the command line: times, tables, JSON, and refusals in one line."""

import json
from datetime import datetime, timedelta

import pytest

from cotenant.cli.reserve import _start
from cotenant.errors import InputError
from tests.cli.command import refusal, run
from tests.local.daemon import Daemon

NOON = datetime(2026, 11, 18, 12, 0, 30).astimezone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("14:00", NOON.replace(hour=14, second=0)),
        ("today 14:00", NOON.replace(hour=14, second=0)),
        ("12:00", NOON.replace(second=0)),
        ("tomorrow 9:05", NOON.replace(hour=9, minute=5, second=0) + timedelta(days=1)),
        ("2026-11-20 14:00", NOON.replace(day=20, hour=14, second=0)),
        ("2026-11-20T14:00:00", NOON.replace(day=20, hour=14, second=0)),
        ("+90m", NOON + timedelta(minutes=90)),
    ],
)
def test_times_are_those_of_this_machine(text: str, expected: datetime) -> None:
    assert _start(text, NOON) == expected.timestamp()


@pytest.mark.parametrize("text", ["", "noon", "25:00", "12:61", "+2", "-1h", "tomorrow", "99999-01-01", "\0"])
def test_other_words_are_no_times(text: str) -> None:
    assert _start(text, NOON) is None


def test_a_time_that_has_passed_today_is_refused() -> None:
    with pytest.raises(InputError, match="write 'tomorrow 9:00'"):
        _start("9:00", NOON)


def test_a_reservation_is_made_shown_listed_and_cancelled(daemon: Daemon, env: dict[str, str]) -> None:
    made = json.loads(run("reserve", "--on", "1", "--from", "+2h", "--for", "1h", "-o", "json", env=env).stdout)
    assert (made["gpus"], made["state"], made["end"] - made["start"]) == ([1], "pending", 3600)
    assert made["id"] in run("reserve", "list", env=env).stdout
    assert "01:00:00" in run("reserve", "show", made["id"], env=env).stdout
    assert f"{made['user']} from " in run("gpus", env=env).stdout
    assert f"GPU 1 is reserved for {made['user']} from " in run("top", "--once", env=env).stdout
    assert "cancelled" in run("reserve", "cancel", made["id"], env=env).stdout
    assert run("reserve", "list", env=env).stdout == "nothing is reserved\n"
    assert run("reserve", "show", made["id"], env=env).returncode == 4


def test_bad_input_is_refused_in_one_line(daemon: Daemon, env: dict[str, str]) -> None:
    assert "give --for" in refusal("reserve", env=env)
    assert "expected a time" in refusal("reserve", "--from", "noon", "--for", "1h", env=env)
    assert refusal("reserve", "--for", "0h", env=env).startswith("--for 0h: expected a run time")
    assert "not both" in refusal("reserve", "--gpus", "1", "--on", "0", "--for", "1h", env=env)
    assert "is in the past" in refusal("reserve", "--from", "2020-01-01 10:00", "--for", "1h", env=env)
    assert "expected the ID of a reservation" in refusal("submit", "--reservation", "x", "--", "true", env=env)
    assert run("submit", "--reservation", "r-000099", "--", "true", env=env).returncode == 4
