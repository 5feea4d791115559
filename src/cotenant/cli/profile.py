# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant profile` and `cotenant profiles`: measures workloads alone on a GPU, and manages the measured profiles."""

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from cotenant.cli.options import CommandOfWords, complete_files, output_option
from cotenant.cli.output import emit, or_dash
from cotenant.cli.request import duration, request_of, request_options
from cotenant.client.client import Client, encoded
from cotenant.client.http import at
from cotenant.client.problems import RefusedByDaemonError
from cotenant.errors import CotenantError, InputError
from cotenant.wire.job_views import ENDED, JobView, described_state
from cotenant.wire.machine import GpuView
from cotenant.wire.profile import JobProfile, Profiles, decode_profiles
from cotenant.wire.text import ago, counted

POLL_S = 0.2
ACTIONS = ("list", "show", "export", "import", "remove")
COLUMNS = (
    ("WORKLOAD", lambda one: one.workload.name, False),
    ("GPU TYPE", lambda one: one.card, False),
    ("STEP", lambda one: or_dash(one.step_seconds and 1000 * one.step_seconds, "{:.3g} ms"), False),
    ("SAMPLES/S", lambda one: or_dash(one.samples_per_second, "{:.4g}"), False),
    ("BUSY", lambda one: or_dash(one.utilisation, "{:.0%}"), False),
    ("BANDWIDTH", lambda one: or_dash(one.bandwidth, "{:.0%}"), False),
    ("MEMORY", lambda one: or_dash(one.memory_mib, "{:.0f} MiB"), False),
    ("PCIE", lambda one: or_dash(one.pcie_mib_s, "{:.4g} MiB/s"), True),
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


@click.command(cls=CommandOfWords, epilog=PROFILE_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--duration", default="60s", show_default=True, callback=duration, help="Duration of the measurement.")
@request_options
@output_option
@click.argument("command", nargs=-1, required=True, shell_complete=complete_files)
def profile(duration: float, output: str, command: tuple[str, ...], **options: Any) -> None:
    """Runs a command alone on a GPU, measures it, stops it, and stores its profile."""
    request = msgspec.structs.replace(request_of(command, **options), exclusive=True, tune=False)
    if request.gpus != 1:
        raise InputError(f"--gpus {request.gpus}: a profile is measured on exactly 1 GPU")
    client = Client()
    job = client.post("/v1/jobs", JobView, encoded(request)).id
    try:
        found = _measure(client, job, duration)
    finally:
        _stop(client, job)
    emit(found, output, COLUMNS)
    if found.step_seconds is None:
        click.echo(
            "the command reported no steps, so the profile has no step time; use the job library to report them",
            err=True,
        )


def _measure(client: Client, job: str, seconds: float) -> JobProfile:
    """Waits until the job has been measured for that long, and returns its profile."""
    while (view := client.get(f"/v1/jobs/{at(job)}", JobView)).state not in ENDED:
        if view.state == "running":
            path = f"/v1/jobs/{at(job)}/profile?seconds={math.ceil(seconds)}"
            if found := client.post(path, list[JobProfile]):
                return found[0]
        time.sleep(POLL_S)
    raise CotenantError(f"{job} ended before the measurement of {seconds:g} s was complete: {described_state(view)}")


def _stop(client: Client, job: str) -> None:
    with suppress(RefusedByDaemonError):  # the job has already ended
        client.post(f"/v1/jobs/{at(job)}/cancel", JobView)


@click.command(epilog=PROFILES_EPILOG)
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("what", required=False, metavar="[WORKLOAD|FILE]", shell_complete=complete_files)
@output_option
def profiles(action: str, what: str | None, output: str) -> None:
    """Lists all profiles, shows or removes those of a workload, exports all to a file, or imports a file."""
    if (what is None) != (action == "list"):
        expected = {"list": "no argument", "show": "a workload", "remove": "a workload"}.get(action, "a file name")
        raise InputError(f"profiles {action}: expected {expected}")
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
        click.echo(f"{counted(len(found.profiles), 'profile')} written to {what}")
    else:
        _import(client, Path(what), output)


def _import(client: Client, file: Path, output: str) -> None:
    try:
        content = file.read_bytes()
        imported = decode_profiles(content)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; expected a file that `cotenant profiles export` wrote") from None
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    emit(client.post("/v1/profiles", list[JobProfile], content), output, COLUMNS, "no profiles")
    local_types = {gpu.type for gpu in client.get("/v1/gpus", list[GpuView])}
    elsewhere = sorted({one.card for one in imported.profiles} - local_types)
    if elsewhere:
        click.echo(f"stored, but not used on this machine, which has no GPU of type {' or '.join(elsewhere)}", err=True)
