# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the full screen of `cotenant top` shows and how keys change that; no terminal and no daemon is needed here.

A narrow terminal drops the least important columns first, so that each line fits from 60 columns on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from textwrap import wrap
from typing import Any, NamedTuple

import msgspec

from cotenant.cli.gpus import reserved, state, unmanaged
from cotenant.cli.output import cut, or_dash
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from cotenant.wire.text import ago, counted, printable

BAR = 10
"""characters of a bar"""
GAP = "  "
MOST_QUEUED = 100
"""waiting jobs that are read"""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What `top` shows at one moment."""

    status: dict[str, Any]
    gpus: list[GpuView]
    jobs: list[JobView]
    """that hold a slot"""
    queue: list[JobView] = []
    """the first of those that wait"""


class Column(NamedTuple):
    """One column of a section."""

    title: str
    text: Callable[[Any], str]
    rank: int
    """columns with the largest rank are dropped first"""
    flexible: bool = False
    """whether its text may be cut; at most one in a section"""
    least: int = 8
    """characters of a flexible column, below which another column is dropped"""


def bar(part: float, promised: float = 0.0) -> str:
    """A part of a whole; behind it what is promised to jobs, if that is more."""
    filled = round(BAR * min(1.0, max(0.0, part)))
    kept = max(filled, round(BAR * min(1.0, promised)))
    return "█" * filled + "▒" * (kept - filled) + "░" * (BAR - kept)


def _gib(mib: int | None) -> str:
    return or_dash(None if mib is None else mib / 1024, "{:.1f}")


def _memory(gpu: GpuView) -> str:
    promised, whole = gpu.memory_mib - gpu.free_memory_mib, max(1, gpu.memory_mib)
    used = promised if gpu.used_mib is None else gpu.used_mib
    return f"{bar(used / whole, promised / whole)} {_gib(used)}/{_gib(gpu.memory_mib)} GiB"


def _busy(gpu: GpuView) -> str:
    return "-" if gpu.utilisation is None else f"{bar(gpu.utilisation / 100)} {gpu.utilisation:.0f}%"


GPUS = (
    Column("GPU", lambda gpu: str(gpu.index), 0),
    Column("MEMORY", _memory, 1),
    Column("BUSY", _busy, 2),
    Column("TEMP", lambda gpu: or_dash(gpu.temperature_celsius, "{:.0f} °C"), 5),
    Column("POWER", lambda gpu: or_dash(gpu.power_watts, "{:.0f} W"), 6),
    Column("GIVEN", lambda gpu: f"{(gpu.compute - gpu.free_compute) * 100 / gpu.compute:.0f}%", 7),
    Column("JOBS", lambda gpu: str(len(gpu.tenants)), 3),
    Column("STATE", state, 4),
    Column("TYPE", lambda gpu: gpu.type, 8, flexible=True),
)
JOBS = (
    Column("GPU", lambda job: ",".join(map(str, job.gpus)) or "-", 1),
    Column("JOB", lambda job: job.id, 0),
    Column("USER", lambda job: cut(job.user, 12), 3),
    Column("MEMORY", lambda job: or_dash(job.memory_used_mib, "{} MiB"), 5),
    Column("BUSY", lambda job: or_dash(job.utilisation, "{:.0f}%"), 6),
    Column("SPEED", lambda job: or_dash(job.speed, "{:.0%}"), 2),
    Column("BATCH", lambda job: str(job.batch or "-"), 8),
    Column("RAN", lambda job: ago(job.started), 7),
    Column("NAME", lambda job: f"{job.name} (idle)" if job.idle_s else job.name, 4, flexible=True),
)
QUEUE = (
    Column("JOB", lambda job: job.id, 0),
    Column("USER", lambda job: cut(job.user, 12), 2),
    Column("NAME", lambda job: cut(job.name, 18), 4),
    Column("WAITED", lambda job: ago(job.submitted), 3),
    Column("WAITS BECAUSE", lambda job: job.reason or "-", 1, flexible=True, least=30),
)
SORTS: tuple[tuple[str, Callable[[JobView], Any]], ...] = (
    ("gpu", lambda job: (job.gpus, job.id)),
    ("user", lambda job: (job.user, job.id)),
    ("memory", lambda job: -(job.memory_used_mib or 0)),
    ("busy", lambda job: -(job.utilisation or 0.0)),
    ("slowest", lambda job: 9.0 if job.speed is None else job.speed),
    ("oldest", lambda job: job.started or 0.0),
)
HELP = "q quit  ↑↓ choose  s sort  / filter  w why  l logs  c cancel"
END = 1_000_000
"""more than there are jobs"""
STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -10, "page-down": 10, "home": -END, "end": END}
"""how far a key moves the choice"""


@dataclass(frozen=True, slots=True)
class View:
    """What the user has chosen."""

    sort: int = 0
    """index in `SORTS`"""
    filter: str = ""
    typing: bool = False
    """whether keys are added to the filter"""
    chosen: str | None = None
    """ID of a job"""
    confirming: str | None = None
    """the job that is cancelled after a `y`"""
    panel: tuple[str, ...] = ()
    """text that is shown instead of the tables until the next key"""
    source: "Action | None" = None
    """what the panel shows; it is read again at every update"""
    note: str = ""
    """what the last action did"""
    lost: str = ""
    """why the daemon did not answer the last update; empty: it did"""


class Action(NamedTuple):
    """What a key asks the daemon for."""

    what: str
    """`quit`, `cancel`, `why` or `logs`"""
    job: str = ""


def fit(rows: Sequence[Any], columns: Sequence[Column], width: int) -> list[str]:
    """The heading and one line for each row, none wider than `width`."""
    texts = {one: [one.title, *(printable(one.text(row)) for row in rows)] for one in columns}
    kept = list(columns)

    def least(one: Column) -> int:
        longest = max(map(len, texts[one]))
        return min(longest, max(one.least, len(one.title))) if one.flexible else longest

    while len(kept) > 1 and sum(map(least, kept)) + len(GAP) * (len(kept) - 1) > width:
        kept.remove(max(kept, key=lambda one: one.rank))
    fixed = sum(least(one) for one in kept if not one.flexible) + len(GAP) * (len(kept) - 1)
    widths = {one: width - fixed if one.flexible else least(one) for one in kept}
    lines = []
    for number in range(len(rows) + 1):
        cells = (cut(texts[one][number], widths[one]).ljust(widths[one]) for one in kept)
        lines.append(GAP.join(cells).rstrip())
    return lines


def shown_jobs(shown: Snapshot, view: View) -> tuple[list[JobView], list[JobView]]:
    """The running and the waiting jobs that match the filter, in their order on the screen."""
    word = view.filter.lower()

    def matches(job: JobView) -> bool:
        return not word or any(word in text.lower() for text in (job.id, job.name, job.user, job.reason or ""))

    running = sorted(filter(matches, shown.jobs), key=SORTS[view.sort][1])
    return running, list(filter(matches, shown.queue))


def draw(shown: Snapshot, view: View, width: int, height: int) -> list[str]:
    """The lines of the screen, at most `height`, each at most `width` characters."""
    footer = [cut(_footer(view), width)]
    room = max(0, height - len(footer))
    panel = (wrap(printable(line), width, subsequent_indent="  ") or [""] for line in view.panel)
    body = list(chain.from_iterable(panel)) if view.panel else _tables(shown, view, width, room)
    if len(body) > room:
        body = [*body[: room - 1], cut(f"… and {counted(len(body) - room + 1, 'more line')}", width)]
    return [*body, *[""] * (room - len(body)), *footer]


def _tables(shown: Snapshot, view: View, width: int, room: int) -> list[str]:
    status, (running, waiting) = shown.status, shown_jobs(shown, view)
    gpus = counted(status["gpus"], f"{status['devices']} GPU")
    title = f"{gpus}, {status['policy']}: {status['running']} running, {status['queued']} queued"
    clock = f"{GAP}{time.strftime('%H:%M:%S')}"
    lines = [cut(title + clock if len(title + clock) <= width else title, width)]
    lines += [cut(line, width) for line in host_line(status.get("host") or {})]
    lines += fit(shown.gpus, GPUS, width)
    for gpu in (gpu for gpu in shown.gpus if gpu.unmanaged):
        lines.append(cut(f"without a job on GPU {gpu.index}: {unmanaged(gpu)}", width))
    for gpu in (gpu for gpu in shown.gpus if gpu.reservations):
        lines.append(cut(f"GPU {gpu.index} is reserved for {reserved(gpu)}", width))
    order = f" by {SORTS[view.sort][0]}"
    parts = [(f"RUNNING{order}", running, JOBS), ("QUEUE", waiting, QUEUE)]
    left = max(0, room - len(lines) - 4)
    """lines for both sections, without titles and empty lines; the queue gets a third of them at least"""
    for number, (name, jobs, columns) in enumerate(parts):
        most = max(left - max(2, left // 3), left - len(waiting) - 1) if number == 0 else left
        rows = _window(jobs, view.chosen, max(1, most - 1))
        left -= len(rows) + 1
        more = f", {len(jobs) - len(rows)} more" if len(jobs) > len(rows) else ""
        lines += ["", cut(f"── {name} ({len(jobs)}{more})", width)]
        if rows:
            heading, *texts = fit(rows, columns, width - 2)
            marks = (">" if job.id == view.chosen else " " for job in rows)
            lines += [f"  {heading}", *(f"{mark} {text}" for mark, text in zip(marks, texts, strict=True))]
    return lines


def _window(jobs: list[JobView], chosen: str | None, size: int) -> list[JobView]:
    """So many jobs: the first ones, or those up to the chosen one if it is behind them."""
    place = next((number for number, job in enumerate(jobs) if job.id == chosen), 0)
    first = max(0, place - size + 1)
    return jobs[first : first + size]


def host_line(host: dict[str, Any]) -> list[str]:
    """What jobs have requested of the machine beside its GPUs, in one line; empty if they have requested nothing."""
    parts = []
    cpus, memory = host.get("cpus"), host.get("memory_mib")
    if cpus is not None and (taken := cpus - host["free_cpus"]):
        parts.append(f"CPUs {bar(taken / max(cpus, 0.001))} {taken:g}/{cpus:g}")
    if memory is not None and (taken := memory - host["free_memory_mib"]):
        parts.append(f"host memory {bar(taken / max(memory, 1))} {_gib(taken)}/{_gib(memory)} GiB")
    return [f"requested: {GAP.join(parts)}"] if parts else []


def _footer(view: View) -> str:
    if view.confirming is not None:
        return f"cancel {view.confirming}? y: yes, any other key: no"
    if view.typing:
        return f"filter: {view.filter}█  (Enter ends it, Esc clears it)"
    if view.panel:
        return "any key: back"
    if view.lost:
        return f"NOT CURRENT: {view.lost}; q quit"
    kept = f"[{view.filter}] " if view.filter else ""
    return f"{kept}{view.note}{GAP if view.note else ''}{HELP}"


def press(view: View, key: str, shown: Snapshot) -> tuple[View, Action | None]:
    """What a key changes, and what it asks the daemon for. Keys are characters, `enter`, `esc`, `backspace`, or in
    `STEPS`."""
    view = replace(view, note="")
    if view.confirming is not None:
        return replace(view, confirming=None), Action("cancel", view.confirming) if key == "y" else None
    if view.typing:
        return _type(view, key), None
    if view.panel:
        return replace(view, panel=(), source=None), Action("quit") if key == "q" else None
    match key:
        case "q":
            return view, Action("quit")
        case "s":
            return replace(view, sort=(view.sort + 1) % len(SORTS)), None
        case "/":
            return replace(view, typing=True), None
        case "esc":
            return replace(view, filter="", chosen=None), None
        case _ if key in STEPS:
            return replace(view, chosen=_next(view, shown, STEPS[key])), None
        case "c" | "w" | "l" | "enter" if view.chosen is None:
            return replace(view, note="choose a job with ↑ and ↓ first;"), None
        case "c":
            return replace(view, confirming=view.chosen), None
        case "w" | "enter":
            return view, Action("why", view.chosen or "")
        case "l":
            return view, Action("logs", view.chosen or "")
    return view, None


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, typing=False)
    if key == "esc":
        return replace(view, typing=False, filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    return replace(view, filter=view.filter + key) if len(key) == 1 and key.isprintable() else view


def _next(view: View, shown: Snapshot, step: int) -> str | None:
    running, waiting = shown_jobs(shown, view)
    ids = [job.id for job in (*running, *waiting)]
    if not ids:
        return None
    if view.chosen not in ids:
        return ids[0 if 0 < step < END or step == -END else -1]
    return ids[max(0, min(len(ids) - 1, ids.index(view.chosen) + step))]
