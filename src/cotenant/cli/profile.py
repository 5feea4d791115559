# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant profile` and `profiles`: what workloads do alone, measured, listed and passed on."""

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from cotenant.cli.client import Client, RefusedByDaemonError, at
from cotenant.cli.jobs import described_state
from cotenant.cli.options import ENDED, file_words, output_option
from cotenant.cli.request import duration, encoded, request_of, request_options
from cotenant.cli.show import ago, emit, known
from cotenant.errors import CotenantError, InputError
from cotenant.wire.local import GpuView, JobView
from cotenant.wire.profile import JobProfile, Profiles, decode_profiles

LOOK_EVERY_S = 0.2
ACTIONS = ("list", "show", "export", "import", "remove")
COLUMNS = (
    ("WORKLOAD", lambda one: one.workload.name, False),
    ("CARD", lambda one: one.card, False),
    ("STEP", lambda one: known(one.step_seconds and 1000 * one.step_seconds, "{:.3g} ms"), False),
    ("SAMPLES/S", lambda one: known(one.samples_per_second, "{:.4g}"), False),
    ("BUSY", lambda one: known(one.utilisation, "{:.0%}"), False),
    ("BANDWIDTH", lambda one: known(one.bandwidth, "{:.0%}"), False),
    ("MEMORY", lambda one: known(one.memory_mib, "{:.0f} MiB"), False),
    ("PCIE", lambda one: known(one.pcie_mib_s, "{:.4g} MiB/s"), True),
    ("MEASURED", lambda one: f"{one.measured_s:.0f}s", False),
    ("AGE", lambda one: ago(one.at), False),
    ("TIMES", lambda one: str(one.times), True),
    ("COMMAND", lambda one: one.digest[:12], True),
)
PROFILE_EPILOG = """\b
Examples:
  cotenant profile --duration 60s -- python train.py
  cotenant profile --workload bert --batch 32 --memory 4GiB -- python train.py
"""
PROFILES_EPILOG = """\b
Examples:
  cotenant profiles list
  cotenant profiles show bert@32 -o yaml
  cotenant profiles export profiles.json
  cotenant profiles import profiles.json
  cotenant profiles remove bert@32
"""


@click.command(epilog=PROFILE_EPILOG)
@click.option("--duration", default="60s", show_default=True, callback=duration, help="How long to measure it.")
@request_options
@output_option
@click.argument("command", nargs=-1, required=True, shell_complete=file_words)
def profile(duration: float, output: str, command: tuple[str, ...], **wishes: Any) -> None:
    """Runs a command alone on a GPU for a while, stops it, and keeps what it took."""
    request = msgspec.structs.replace(request_of(command, **wishes), exclusive=True, tune=False)
    if request.gpus != 1:
        raise InputError(f"--gpus {request.gpus}: a profile is of one GPU")
    client = Client()
    job = client.post("/v1/jobs", JobView, encoded(request)).id
    try:
        measured = _measured(client, job, duration)
    finally:
        _stop(client, job)
    emit(measured, output, COLUMNS)
    if measured.step_seconds is None:
        click.echo("it did not report its steps, so their time is not known; see the job library", err=True)


def _measured(client: Client, job: str, seconds: float) -> JobProfile:
    """Its profile once it has been measured for that long."""
    while (view := client.get(f"/v1/jobs/{at(job)}", JobView)).state not in ENDED:
        if view.state == "running":
            path = f"/v1/jobs/{at(job)}/profile?seconds={math.ceil(seconds)}"
            if found := client.post(path, list[JobProfile]):
                return found[0]
        time.sleep(LOOK_EVERY_S)
    raise CotenantError(f"{job} ended before it was measured for {seconds:g} s: {described_state(view)}")


def _stop(client: Client, job: str) -> None:
    with suppress(RefusedByDaemonError):  # it has ended by itself
        client.post(f"/v1/jobs/{at(job)}/cancel", JobView)


@click.command(epilog=PROFILES_EPILOG)
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("what", required=False, metavar="[WORKLOAD|FILE]", shell_complete=file_words)
@output_option
def profiles(action: str, what: str | None, output: str) -> None:
    """Lists the profiles of workloads, shows or removes those of one, writes all to a file, or reads them from one."""
    if (what is None) != (action == "list"):
        wanted = {"list": "nothing more", "show": "a workload", "remove": "a workload"}.get(action, "a file")
        raise InputError(f"profiles {action}: expected {wanted}")
    client, what = Client(), what or ""
    if action == "list":
        emit(client.get("/v1/profiles", list[JobProfile]), output, COLUMNS, "no profiles")
    elif action == "show":
        emit(client.get(f"/v1/profiles?workload={at(what)}", list[JobProfile]), output, COLUMNS)
    elif action == "remove":
        emit(client.post(f"/v1/profiles/remove?workload={at(what)}", list[JobProfile]), output, COLUMNS)
    elif action == "export":
        found = Profiles(profiles=tuple(client.get("/v1/profiles", list[JobProfile])))
        Path(what).write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        click.echo(f"{len(found.profiles)} profiles in {what}")
    else:
        _import(client, Path(what), output)


def _import(client: Client, file: Path, output: str) -> None:
    try:
        content = file.read_bytes()
        given = decode_profiles(content)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; expected what `cotenant profiles export` wrote") from None
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    emit(client.post("/v1/profiles", list[JobProfile], content), output, COLUMNS, "no profiles")
    here = {gpu.type for gpu in client.get("/v1/gpus", list[GpuView])}
    elsewhere = sorted({one.card for one in given.profiles} - here)
    if elsewhere:
        click.echo(f"kept, but of no use here, where there is no {' and no '.join(elsewhere)}", err=True)
