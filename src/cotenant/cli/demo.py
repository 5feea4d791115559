# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant demo`: runs the same jobs on shared and on exclusive GPUs, with its own daemon, and compares the two runs.

The demo has three parts. First every task is compiled for every batch size that tuning may choose, so that compilation
is part of neither measured run. Then the jobs run on shared GPUs with tuned batch sizes, and then again with one GPU
each.
"""

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import click
import msgspec

from cotenant.cli.demo_screen import show_progress
from cotenant.cli.demo_summary import JobComparison, PartResult, Summary, text_of
from cotenant.cli.generate import Submitter, active_jobs, cancel_all
from cotenant.cli.options import complete_policies, finite
from cotenant.cli.output import emit
from cotenant.cli.planning import PLAN_COLUMNS
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.client.problems import NoDaemonError
from cotenant.core.units import Seconds
from cotenant.errors import CotenantError, InputError
from cotenant.extras import require
from cotenant.node.foreign import core_seconds
from cotenant.wire.job_views import JobView
from cotenant.wire.text import counted
from cotenant.workloads.driving import Ledger, Life, drive
from cotenant.workloads.generator import PlannedJob, mix_named, plan

MEMORY = "30%"
"""of a GPU's memory for each job, so that three jobs fit on a GPU of any size"""
PROBE_S = 0.5
"""duration of a tuning measurement; the jobs of a demo are too short for the daemon's default"""
START_FRACTION = 4
"""the batch size that a job begins with is this fraction of the task's usual one"""
SUMMARY = "summary.json"
EVERY_JOB = "/v1/jobs?limit=20000"
LOCK = "demo.lock"
"""lock file; it also marks a folder as written by a demo, so that its content may be replaced"""
JOB_PREFIX = "demo-"
"""of the name of every job of a demo"""
STOPPED_WITHIN_S = 30.0
LONGEST_STATE = 80
"""bytes in the path of the state folder: the path of a unix socket may have about 100"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EPILOG = """\b
Examples:
  cotenant demo
  cotenant demo --jobs 6 --mix neumf,lstm_ai --out somewhere
"""


@click.command(epilog=EPILOG)
@click.option("--jobs", type=click.IntRange(2, 100), default=6, show_default=True, help="Number of jobs.")
@click.option(
    "--work",
    type=float,
    callback=finite,
    default=1.5,
    show_default=True,
    help="Length of each job, as a multiple of its default.",
)
@click.option(
    "--scale",
    type=float,
    callback=finite,
    default=0.02,
    show_default=True,
    help="Scale of the gaps between arrivals, as in `cotenant generate`.",
)
@click.option(
    "--mix",
    default="waiting",
    show_default=True,
    metavar="NAME|TASK=WEIGHT,…",
    help="Mix of tasks, as in `cotenant generate`.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed for the choice of tasks.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="build/demo",
    show_default=True,
    help="Folder for the summary and the state of the daemon.",
)
@click.option(
    "--policy",
    default="spread",
    show_default=True,
    shell_complete=complete_policies,
    help="Placement policy for the shared run (spread, binpack, …).",
)
@click.option("--dry-run", is_flag=True, help="Print the jobs without running them.")
def demo(jobs: int, work: float, scale: float, mix: str, seed: int, out: Path, policy: str, dry_run: bool) -> None:
    """Runs the same jobs on shared and on exclusive GPUs, and compares their completion times. Without a real GPU it
    simulates 2."""
    planned = [narrowed(job) for job in plan(jobs=jobs, scale=scale, mix=mix_named(mix), seed=seed, work=work)]
    if dry_run:
        emit(planned, "wide", PLAN_COLUMNS)
        return
    require("jax")
    compiling, shared, exclusive = parts = parts_of(planned)
    ran: dict[str, PartResult] = {}
    with _locked(out), _daemon(out / "state", policy) as client:
        status = client.get("/v1/status", dict[str, Any])
        click.echo(f"{status['notice']}; results go to {out}")
        for number, part in enumerate(parts, start=1):
            ran[part.name] = _run(client, part, f"{number} of {len(parts)}. {part.title}", out)
            if part is compiling:
                _check_compiled(client, ran[part.name].lives)
        ours, theirs = ran[shared.name].lives, ran[exclusive.name].lives
        views = [client.get(f"/v1/jobs/{at(life.job)}", JobView) for life in ours]
    summary = Summary(
        devices=counted(status["gpus"], f"{status['devices']} GPU"),
        most_together=most_together(views),
        jobs=[JobComparison(*one) for one in zip(planned, ours, theirs, views, strict=True)],
        parts=ran,
    )
    (out / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary.as_json()), indent=1) + b"\n")
    click.echo(f"\n{text_of(summary)}\n\n{_next_steps(out, views)}")
    if not all(job.done for job in summary.jobs):
        raise CotenantError("some jobs of the demo failed; `cotenant logs` shows their output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the demo: a set of jobs, and whether they share GPUs."""

    name: str
    title: str
    jobs: Sequence[PlannedJob]
    exclusive: bool
    """whether each job gets a GPU of its own"""


def parts_of(planned: Sequence[PlannedJob]) -> tuple[Part, Part, Part]:
    """The three parts, in order: compilation, shared and tuned, exclusive and untuned."""
    untuned = [_renamed(job, f"{job.name}-alone") for job in planned]
    return (
        Part(name="compile", title="Compiling each task once", jobs=compilations(planned), exclusive=True),
        Part(name="shared", title="Shared GPUs, with tuned batch sizes", jobs=planned, exclusive=False),
        Part(name="exclusive", title="The same jobs, each on its own GPU", jobs=untuned, exclusive=True),
    )


def _renamed(job: PlannedJob, name: str) -> PlannedJob:
    return replace(job, name=name, batch_range=(job.batch, job.batch))


def narrowed(job: PlannedJob) -> PlannedJob:
    """The job as its owner might submit it before anyone tuned it: with a quarter of the task's usual batch size, and
    with few sizes that tuning may choose, so that all of them can be compiled in advance."""
    batch = max(job.batch_range[0], job.batch // START_FRACTION)
    return replace(job, batch=batch, batch_range=(batch, job.batch))


def compilations(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """One job for each task, which compiles it and exits."""
    first = {job.task: job for job in reversed(jobs)}
    argv = ("-P", "-m", "cotenant.workloads")
    return [
        replace(
            _renamed(job, f"compile-{task}"),
            at=Seconds(0.0),
            argv=(*argv, task, "--compile", "{}-{}".format(*job.batch_range)),
        )
        for task, job in first.items()
    ]


def most_together(views: Sequence[JobView]) -> int:
    """The largest number of jobs that ran on one GPU at the same time."""
    spans = [(view.started, view.ended, view.gpus) for view in views if view.started and view.ended]
    return max(
        (
            sum(set(gpus) & set(others) != set() and a <= start < b for a, b, others in spans)
            for start, _, gpus in spans
        ),
        default=0,
    )


def _run(client: Client, part: Part, title: str, out: Path) -> PartResult:
    """Runs one part of the demo until its last job has ended."""
    submitter = Submitter(client, memory=MEMORY, exclusive=part.exclusive)
    ended: dict[str, Life] = {}
    named = [replace(job, name=f"{JOB_PREFIX}{job.name}") for job in part.jobs]
    began, busy = time.monotonic(), _busy_seconds()
    with show_progress(client, title, len(named)) as screen, Ledger(out / f"{part.name}.csv") as ledger:
        for changes in drive(named, submitter.submit, submitter.poll):
            for change in changes:
                ledger.add(change)
                if change.event == "finished":
                    ended[change.life.job] = change.life
            screen.show(changes, submitter.views)
    seconds, busy = time.monotonic() - began, _busy_seconds() - busy
    results = [_result(client, job) for job in submitter.views]
    foreign = busy - sum(float(result.get("cpu_s", 0.0)) for result in results)
    return PartResult(
        lives=[ended[job] for job in submitter.views],
        results=results,
        seconds=round(seconds, 1),
        others=round(max(0.0, foreign / seconds / len(os.sched_getaffinity(0))), 3),
    )


def _last_line(client: Client, job: str) -> str:
    lines = b"".join(client.lines(f"/v1/jobs/{at(job)}/log")).decode(errors="replace").splitlines()
    return lines[-1] if lines else ""


def _result(client: Client, job: str) -> dict[str, Any]:
    """The result that a task prints as its last line; empty if it failed."""
    try:
        return msgspec.json.decode(_last_line(client, job), type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _busy_seconds() -> float:
    """CPU seconds for which the cores that we may use have been busy, for any process."""
    mine = os.sched_getaffinity(0)
    return sum(seconds for core, seconds in core_seconds().items() if core in mine)


def _check_compiled(client: Client, lives: Sequence[Life]) -> None:
    for life in lives:
        if life.state != "done":
            raise CotenantError(f"a task could not be compiled ({life.state}): {_last_line(client, life.job)}")


def _next_steps(out: Path, views: Sequence[JobView]) -> str:
    slowest = max(views, key=lambda view: (view.ended or 0.0) - (view.started or 0.0))
    return f"""\
Next steps
  {out / SUMMARY}: all results and every tuning measurement; {out}/*.csv: when each job was submitted, started and ended
  export COTENANT_STATE={shlex.quote(str((out / "state").absolute()))}; cotenant up --detach
  cotenant jobs -o wide; cotenant show {slowest.name}; cotenant logs {slowest.name}; cotenant down
  cotenant generate --help: more jobs, other tasks, arrival times of public traces"""


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Locks the folder for this demo and removes the results of an earlier one."""
    state = out.absolute() / "state"
    if len(os.fsencode(state)) > LONGEST_STATE:
        raise InputError(f"{state}: the path is too long for a unix socket; choose a shorter one with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()) and not (out / LOCK).exists():
            raise InputError(f"--out {out}: the folder has files that no demo wrote; choose a new or an empty folder")
        lock = (out / LOCK).open("w")
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another demo is running in {out}") from None
        for earlier in (*out.glob("*.csv"), out / SUMMARY):
            earlier.unlink(missing_ok=True)
        yield


@contextmanager
def _daemon(state: Path, policy: str) -> Iterator[Client]:
    """Runs a daemon for the demo; on exit, for any reason, its jobs are cancelled and it is stopped."""
    os.environ["COTENANT_STATE"] = str(state.absolute())
    os.environ.setdefault("COTENANT_CACHE", str(state.absolute().with_name("cache")))
    os.environ.pop("COTENANT_URL", None)
    client = Client()
    if state.exists():
        _clear(client, state)
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        _up("--policy", policy, "--probe", str(PROBE_S))
        yield client
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _stop(client)
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear(client: Client, state: Path) -> None:
    """Stops the jobs that a killed demo left running, and deletes its state; refuses if there are jobs of anyone
    else."""
    _up()
    others = [view.name for view in client.get(EVERY_JOB, list[JobView]) if not view.name.startswith(JOB_PREFIX)]
    if others:
        client.post("/v1/shutdown", dict[str, Any])
        raise InputError(f"{state}: has jobs that no demo submitted ({', '.join(others[:3])}); choose another --out")
    _stop(client)
    shutil.rmtree(state)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt once; further signals are ignored while the demo cleans up."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _up(*options: str) -> None:
    """Starts the daemon in its own session, so that Ctrl-C reaches only the demo, which then stops the daemon."""
    try:
        Client().get("/v1/status", dict[str, Any])
        return
    except NoDaemonError:
        command = [sys.executable, "-P", "-m", "cotenant", "up", "--detach", *options]
    starting = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, errors = starting.communicate()
    except KeyboardInterrupt:
        starting.communicate()
        raise
    if starting.returncode:
        raise CotenantError(errors.strip().removeprefix("cotenant: "))


def _stop(client: Client) -> None:
    """Cancels every job, waits until all have ended, and stops the daemon."""
    try:
        cancel_all(client, {view.id for view in active_jobs(client)})
        _wait(lambda: not active_jobs(client), "the jobs did not stop in time")
        pid = client.post("/v1/shutdown", dict[str, Any])["pid"]
    except NoDaemonError:
        return
    _wait(lambda: not Path(f"/proc/{pid}").exists(), "the daemon did not stop in time")


def _wait(done: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while not done():
        if time.monotonic() > deadline:
            raise CotenantError(f"{message}; see {os.environ['COTENANT_STATE']}")
        time.sleep(0.1)
