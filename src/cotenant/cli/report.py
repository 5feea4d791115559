# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant report`: what a machine or a cluster did in the last hours or days, and what sharing saved."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.cluster_jobs import KUBERNETES, on_option
from cotenant.cli.decisions import download
from cotenant.cli.options import age_option
from cotenant.cli.pods import pod_options
from cotenant.errors import CotenantError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cotenant.history.day_report import DayReport, Group, Use

FORMATS = ("table", "json", "yaml", "csv", "html")
DAY_S = 86_400.0
EPILOG = """\b
Examples:
  cotenant report --since 24h
  cotenant report --since 7d --on kubernetes -o csv
  cotenant report --recording day.jsonl -o html --file report.html
"""


@click.command(epilog=EPILOG)
@age_option("--since", "The period, until now. Default: 24h.")
@click.option(
    "--recording",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Report on a file of `cotenant decisions` instead; its period ends with the file.",
)
@on_option
@pod_options
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file. Default: print.")
@click.option("--output", "-o", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format.")
def report(
    since: float | None,
    recording: Path | None,
    on: str,
    namespace: str | None,
    kubeconfig: Path | None,
    file: Path | None,
    output: str,
) -> None:
    """Reports utilisation, sharing, waits, slowdowns and GPU-hours saved, for all jobs and by user, team and
    namespace."""
    made = day_report(since or DAY_S, recording, on, namespace, kubeconfig)
    text = formatted(made, output)
    if file is None:
        click.echo(text, nl=False)
        return
    from cotenant.cli.decisions import write_file

    write_file([text.encode()], file)


def day_report(
    seconds: float, recording: Path | None, on: str, namespace: str | None, kubeconfig: Path | None
) -> "DayReport":
    """The report of a period; CotenantError if nothing was recorded."""
    from cotenant.history.day_report import Use, make_report
    from cotenant.history.recorded import open_recording, read_recording
    from cotenant.sim.exclusive import replay_exclusive

    now = time.time()
    if recording is not None:
        found = read_recording(open_recording(recording), str(recording))
        now = found.end
    else:
        lines = b"".join(download(int(now - seconds), on, kubeconfig)).splitlines(keepends=True)
        if not lines:
            raise CotenantError("nothing was recorded in that time")
        found = read_recording(lines, "the recording")
    use, notes = Use(), list[str]()
    if recording is None and on != KUBERNETES:
        use = _measured_use(int(now - seconds), int(now) + 1)
    elif recording is None:
        use, notes = _measured_in_cluster(now - seconds, kubeconfig)
    since = max(now - seconds, found.start)
    names = None if namespace is None else frozenset((namespace,))
    exclusive = replay_exclusive(found, since, now) if names is None else None
    return make_report(found, since, now, use=use, exclusive=exclusive, namespaces=names, notes=notes)


def _measured_in_cluster(since: float, kubeconfig: Path | None) -> "tuple[Use, list[str]]":
    """The mean use of all GPUs, which the pages of the cluster record; and what a reader should know about it."""
    import asyncio

    from cotenant.history.day_report import Use
    from cotenant.kube.api.access import find_access
    from cotenant.web.kube.usage import ask_usage

    try:
        found = asyncio.run(ask_usage(find_access(os.environ, kubeconfig), since))
    except CotenantError as error:
        return Use(), [f"utilisation and memory in use are not known: {error}"]
    note = f"utilisation and memory in use are means over all GPUs of the cluster and the last {found.hours:.1f} h"
    return Use(found.utilisation, found.memory_percent), [note] if found.hours else []


def _measured_use(since: int, until: int) -> "Use":
    """The mean use of all GPUs, from the history."""
    from cotenant.client.client import Client
    from cotenant.client.problems import NotFoundError
    from cotenant.history.day_report import Use

    def mean(quantity: str) -> float | None:
        path = f"/v1/history?kind=gpu&quantity={quantity}&since={since}&until={until}&points=1"
        found = [points[0][1] for points in Client().get(path, dict[str, list[list[float]]]).values() if points]
        return sum(found) / len(found) if found else None

    try:
        used, whole = mean("memory_used_mib"), mean("memory_mib")
        share = None if used is None or not whole else 100 * used / whole
        return Use(mean("utilisation"), share)
    except NotFoundError:  # it keeps no history
        return Use()


def formatted(made: "DayReport", output: str) -> str:
    """The report as text."""
    import msgspec

    if output == "json":
        return msgspec.json.encode(made, order="deterministic").decode() + "\n"
    if output == "yaml":
        from msgspec import yaml

        return yaml.encode(made).decode()
    if output == "csv":
        return _csv(made)
    if output == "html":
        from cotenant.sim.report.day import render_day

        return render_day(made)
    return "\n".join(_lines(made)) + "\n"


def _csv(made: "DayReport") -> str:
    """One row for all jobs and for each user, team and namespace."""
    import csv
    import io

    text = io.StringIO()
    fields = made.groups[0].__struct_fields__
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    for group in made.groups:
        writer.writerow([_cell(getattr(group, field)) for field in fields])
    return text.getvalue()


def _cell(value: Any) -> str:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return "" if value is None else f"{value:.6g}"


def _lines(made: "DayReport") -> "Iterator[str]":
    from cotenant.cli.output import aligned, or_dash
    from cotenant.wire.text import counted, duration_text, printable

    hours, saved, waits, slow = made.gpu_hours, made.saved, made.waits_s, made.slowdowns
    span = duration_text(made.until - made.since)
    where = f"{counted(made.nodes, 'node')}, {counted(made.gpus, 'GPU')}"
    yield f"{_time(made.since)} to {_time(made.until)} ({span}): {where}, policy {printable(made.policy)}"
    outcomes = ", ".join(f"{count} {word}" for word, count in made.outcomes.items())
    rows = [
        ["jobs", f"{made.came} came, {made.started} started: {outcomes or 'none'}"],
        ["GPU-hours", f"{hours.capacity:.2f} in all, {hours.occupied:.2f} occupied, {hours.shared:.2f} shared"],
        ["utilisation", f"{or_dash(made.utilisation, '{:.0f} %')}, memory {or_dash(made.memory_percent, '{:.0f} %')}"],
        ["wait", _spread(waits.mean, waits.median, waits.p95, waits.highest, duration_text)],
        ["slowdown", _spread(slow.mean, slow.median, slow.p95, slow.highest, "{:.2f}×".format)],
        ["saved", f"{saved.estimate:.2f} GPU-hours ({saved.low:.2f} to {saved.high:.2f}) against one job per GPU"],
    ]
    if made.exclusive is not None and made.exclusive.mean_wait_s is not None:
        wait = duration_text(made.exclusive.mean_wait_s)
        rows.append(["one per GPU", f"mean wait {wait}, simulated with the same jobs and the durations alone"])
    yield from aligned(rows)
    yield ""
    heads = ["BY", "NAME", "JOBS", "FINISHED", "FAILED", "GPU-HOURS", "SHARED", "MEAN WAIT", "P95 WAIT", "SLOWDOWN"]
    yield from aligned([heads, *map(_group_cells, made.groups)])
    yield ""
    yield f"saved: {saved.method}"
    if saved.unmeasured:
        yield f"The interval comes from {counted(saved.unmeasured, 'job')} whose speed beside others was not measured."
    yield from (f"note: {printable(note)}" for note in made.notes)


def _spread(mean: float | None, middle: float | None, p95: float | None, highest: float | None, form: Any) -> str:
    if mean is None or middle is None or p95 is None or highest is None:
        return "not measured"
    return f"mean {form(mean)}, median {form(middle)}, 95th percentile {form(p95)}, highest {form(highest)}"


def _group_cells(group: "Group") -> list[str]:
    from cotenant.cli.output import cut, or_dash
    from cotenant.wire.text import duration_text, printable

    waits = ("-" if one is None else duration_text(one) for one in (group.mean_wait_s, group.p95_wait_s))
    return [
        group.by,
        cut(printable(group.name), 40),
        str(group.jobs),
        str(group.finished),
        str(group.failed),
        f"{group.gpu_hours:.2f}",
        f"{group.shared_percent:.0f} %",
        *waits,
        or_dash(group.mean_slowdown, "{:.2f}×"),
    ]


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
