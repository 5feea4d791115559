# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant reserve`: GPUs of one machine that belong to a user or a group for a while."""

import re
import time
from datetime import datetime, timedelta

import click
import msgspec

from cotenant.cli.options import output_option
from cotenant.cli.output import emit, note
from cotenant.cli.request import length
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.client.requests import parse_seconds
from cotenant.errors import InputError
from cotenant.wire.reservations import ReservationRequest, ReservationView
from cotenant.wire.text import clock, duration_text

CLOCK_TIME = re.compile(r"(?:(today|tomorrow)\s+)?(\d{1,2}):(\d{2})", re.ASCII)
COLUMNS = (
    ("ID", lambda one: one.id, False),
    ("FOR", lambda one: one.user if one.user is not None else f"group {one.group}", False),
    ("GPU", lambda one: ",".join(map(str, one.gpus)) or "-", False),
    ("FROM", lambda one: clock(one.start, time.time()), False),
    ("UNTIL", lambda one: clock(one.end, time.time()), False),
    ("LENGTH", lambda one: duration_text(one.end - one.start), False),
    ("STATE", lambda one: one.state, False),
    ("OWNER", lambda one: one.owner, True),
    ("EVICTS", lambda one: "yes" if one.evict else "no", True),
)
EPILOG = """\b
Examples:
  cotenant reserve --gpus 1 --from 14:00 --for 2h
  cotenant reserve --on 0 --from "tomorrow 9:00" --for 8h --group vision
  cotenant reserve --gpus 2 --from +30m --for 1h -o json
  cotenant reserve list
  cotenant reserve cancel r-000001
"""


def start_time(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Converts `14:00`, `tomorrow 9:00`, `2026-11-20 14:00` or `+30m` into seconds since 1970; None: now."""
    if text is None or text.strip() == "now":
        return None
    found = _start(text.strip(), datetime.now().astimezone())
    if found is None:
        raise InputError(
            f"{option.opts[0]} {text[:40]}: expected a time, for example 14:00, 'tomorrow 9:00', '2026-11-20 14:00' "
            "or +30m"
        )
    return found


def _start(text: str, now: datetime) -> float | None:
    if text.startswith("+"):
        return now.timestamp() + seconds if (seconds := parse_seconds(text[1:])) else None
    match = CLOCK_TIME.fullmatch(text)
    try:
        if match is None:
            return datetime.fromisoformat(text).astimezone().timestamp()
        day = now.date() + timedelta(days=match[1] == "tomorrow")
        moment = datetime(day.year, day.month, day.day, int(match[2]), int(match[3])).astimezone()
    except (ValueError, OverflowError):
        return None
    if match[1] is None and moment < now.replace(second=0, microsecond=0):
        raise InputError(f"--from {text}: that time has passed today; for the next day, write 'tomorrow {text}'")
    return moment.timestamp()


@click.group(epilog=EPILOG, invoke_without_command=True)
@click.option(
    "--gpus",
    type=click.IntRange(1, 1024),
    show_default="1",
    help="How many GPUs; those that are free by then are chosen.",
)
@click.option("--on", multiple=True, metavar="GPU", help="This GPU, by index or UUID, instead of a number. Repeatable.")
@click.option(
    "--from",
    "start",
    metavar="TIME",
    callback=start_time,
    help="When it starts: 14:00, 'tomorrow 9:00', '2026-11-20 14:00', or +30m from now. Default: now.",
)
@click.option("--for", "duration", metavar="2h", callback=length, help="How long it lasts.")
@click.option("--user", metavar="NAME", help="For this user; only administrators reserve for others. Default: for you.")
@click.option("--group", metavar="NAME", help="For all users of a group of this machine.")
@click.option(
    "--evict",
    is_flag=True,
    help="Stop jobs of others that still run there at the start, and queue them again. For administrators only.",
)
@output_option
@click.pass_context
def reserve(
    context: click.Context,
    gpus: int | None,
    on: tuple[str, ...],
    start: float | None,
    duration: float | None,
    user: str | None,
    group: str | None,
    evict: bool,
    output: str,
) -> None:
    """Reserves GPUs of this machine for a user or a group.

    While a reservation lasts, only jobs of its user or group are placed on its GPUs. Before it starts, jobs of others
    are placed there only if their --time ends them in time, so no job is stopped. If jobs without a time limit run on
    too many GPUs already, the reservation is refused.
    """
    if context.invoked_subcommand is not None:
        return
    if duration is None:
        raise InputError(
            "reserve: give --for with the length, for example --for 2h; `cotenant reserve list` lists them"
        )
    if gpus is not None and on:
        raise InputError("reserve: give --gpus or --on, not both")
    request = ReservationRequest(
        start=start, length_s=duration, gpus=gpus or 1, on=on, user=user, group=group, evict=evict
    )
    made = Client().post("/v1/reservations", ReservationView, msgspec.json.encode(request))
    emit(made, output, COLUMNS)
    for line in made.notes if output in ("table", "wide") else ():
        note(line)


@reserve.command("list", epilog="\b\nExample:\n  cotenant reserve list -o json\n")
@output_option
def list_reservations(output: str) -> None:
    """Lists the reservations of all users that have not ended."""
    emit(Client().get("/v1/reservations", list[ReservationView]), output, COLUMNS, "nothing is reserved")


@reserve.command(epilog="\b\nExample:\n  cotenant reserve show r-000001\n")
@click.argument("reservation", metavar="ID")
@output_option
def show(reservation: str, output: str) -> None:
    """Shows one reservation."""
    emit(Client().get(f"/v1/reservations/{at(reservation)}", ReservationView), output, COLUMNS)


@reserve.command(epilog="\b\nExample:\n  cotenant reserve cancel r-000001\n")
@click.argument("reservation", metavar="ID")
@output_option
def cancel(reservation: str, output: str) -> None:
    """Cancels a reservation. Jobs that run in it continue; jobs that were submitted for it wait as all others."""
    emit(Client().post(f"/v1/reservations/{at(reservation)}/cancel", ReservationView), output, COLUMNS)
