# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the same jobs in a cluster under a policy and under a baseline, and compares the two runs.

The demo checks the cluster before it creates anything, and removes all that it created, also after a signal.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec

from cotenant.cli.cluster import Connected, connected
from cotenant.cli.cluster_batch import ClusterSubmitter, batch_options
from cotenant.cli.cluster_jobs import Where
from cotenant.cli.kube_demo_summary import ClusterPart, ClusterSummary, text_of
from cotenant.cli.output import or_dash, render
from cotenant.errors import CotenantError, InputError
from cotenant.wire.text import counted, printable
from cotenant.workloads.driving import Change, Ledger, Life, drive
from cotenant.workloads.generator import PlannedJob

if TYPE_CHECKING:
    from cotenant.kube.deploy.batches import BatchOptions
    from cotenant.kube.deploy.preflight import Location

EXCLUSIVE, NONE = "exclusive", "none"
SUMMARY = "summary.json"
SILENT_S = 30.0
"""after this time without a start or an end, the demo says why the first job waits"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a demo runs."""

    jobs: Sequence[PlannedJob]
    image: str | None
    policy: str
    baseline: str
    volume: str | None
    size: str
    label_nodes: bool


def run(plan: Plan, where: Where, out: Path | None, output: str) -> None:
    """Runs the demo and prints its report; CotenantError if a job failed."""
    from cotenant.kube.deploy.setup import has_namespace

    runs = runs_of(plan)
    if plan.volume is not None and where.namespace is None:
        raise InputError("--volume needs --namespace, because a PersistentVolumeClaim belongs to a namespace")
    if out is not None:
        from cotenant.cli.simulate import check_writable

        check_writable(out)
    say = _speaker(quiet=output in ("json", "yaml"))
    own = where._replace(namespace=where.namespace or f"cotenant-demo-{runs[0].run}")
    with connected(*own) as cluster, _stopped_by_signals():
        make = where.namespace is None or not cluster.do(has_namespace(cluster.client, where.namespace))
        gpus = _checked(cluster, plan, make_namespace=make)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        with _cleaning(say) as cleanup:
            _prepare(cluster, cleanup, plan, runs, gpus, say, make=make)
            parts = [_run(cluster, one, plan.jobs, gpus, say, out) for one in runs]
    summary = ClusterSummary(policy=plan.policy, baseline=plan.baseline, gpus=gpus, planned=plan.jobs, parts=parts)
    if out is not None:
        (out / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary.as_json()), indent=1) + b"\n")
    render(summary.as_json(), output, lambda wide: click.echo(f"\n{text_of(summary)}"))
    if not summary.done:
        raise CotenantError("some jobs of the demo failed; the report has their states")


def runs_of(plan: Plan) -> "list[BatchOptions]":
    """The runs, in order: that of the policy, and that of the baseline unless it is none."""

    def options(policy: str | None) -> "BatchOptions":
        return batch_options(plan.image, policy, compute=False, volume=plan.volume)

    if plan.baseline == NONE:
        return [options(plan.policy)]
    baseline = replace(options(None), exclusive=True) if plan.baseline == EXCLUSIVE else options(plan.baseline)
    return [options(plan.policy), baseline]


def _checked(cluster: Connected, plan: Plan, *, make_namespace: bool) -> "dict[str, Location]":
    """The GPUs of the cluster; CotenantError if something is missing for a demo. Nothing is created yet."""
    from cotenant.kube.deploy import preflight

    rights = preflight.rights_for(cluster.namespace, make_namespace=make_namespace, label_nodes=plan.label_nodes)
    cluster.do(preflight.check_rights(cluster.client, rights))
    gpus = cluster.do(preflight.gpus(cluster.client))
    preflight.check_memory(gpus, plan.jobs)
    return gpus


def _prepare(
    cluster: Connected,
    cleanup: ExitStack,
    plan: Plan,
    runs: "Sequence[BatchOptions]",
    gpus: "dict[str, Location]",
    say: Callable[[str], None],
    *,
    make: bool,
) -> None:
    """Creates the namespace, labels nodes and fills the volume; `cleanup` has the removal of all that."""
    from cotenant.kube.deploy import preflight, setup
    from cotenant.kube.deploy.batches import delete

    client, namespace = cluster.client, cluster.namespace
    nodes = sorted({one.node for one in gpus.values()})
    say(f"{counted(len(gpus), 'GPU')} on {counted(len(nodes), 'node')}; namespace {namespace}")
    # What is created is removed by its label, so each removal can be registered before the creation.
    names = [one.run for one in runs if one.run is not None]
    cleanup.callback(lambda: cluster.do(setup.remove_namespace(client, namespace, names[0])))
    cleanup.callback(lambda: [cluster.do(delete(client, namespace, run)) for run in names])
    if make:
        cluster.do(setup.make_namespace(client, namespace, names[0]))
    cluster.do(preflight.check_scheduling(client, namespace, runs[0].image))
    if plan.label_nodes:
        labelled = cluster.do(setup.without_label(client, nodes))
        cleanup.callback(lambda: cluster.do(setup.label_nodes(client, labelled, None)))
        cluster.do(setup.label_nodes(client, labelled, "true"))
        say(f"labelled {counted(len(labelled), 'node')} {setup.GPU_LABEL}=true, until the demo ends")
    if (claim := runs[0].claim) is not None:
        cluster.do(preflight.check_volume(client, namespace, claim))
        _fill(cluster, runs[0], claim, plan.size, say)


def _fill(cluster: Connected, options: "BatchOptions", claim: str, size: str, say: Callable[[str], None]) -> None:
    """Runs the job that writes the data sets to the volume."""
    from cotenant.kube.deploy.batches import preparation
    from cotenant.kube.deploy.jobs import create, one_job
    from cotenant.kube.deploy.training import job_object
    from cotenant.wire.job_views import ENDED, described_state

    say(f"writing data sets to the volume {claim}")
    made = job_object(preparation(claim, options.image, size, options.run))
    view = cluster.do(create(cluster.client, cluster.namespace, made))
    while view.state not in ENDED:
        cluster.sleep(0.5)
        view = cluster.do(one_job(cluster.client, cluster.namespace, view.id))
    if described_state(view) != "done":
        raise CotenantError(f"data sets could not be written to the volume {claim}: {view.error or view.state}")


def _run(
    cluster: Connected,
    options: "BatchOptions",
    planned: Sequence[PlannedJob],
    gpus: "dict[str, Location]",
    say: Callable[[str], None],
    out: Path | None,
) -> ClusterPart:
    """Runs all jobs once, until the last one has ended."""
    name = EXCLUSIVE if options.exclusive else options.policy or ""
    submitter = ClusterSubmitter(cluster, options)
    say(f"\n{counted(len(planned), 'job')}, {name}")
    lives: dict[str, Life] = {}
    began = spoke = time.monotonic()
    with ExitStack() as files:
        ledger = (
            None if out is None else files.enter_context(Ledger(out / f"{name.replace('/', '-')}-{options.run}.csv"))
        )
        for changes in drive(planned, submitter.submit, submitter.poll, sleep=cluster.sleep):
            for change in changes:
                if ledger is not None:
                    ledger.add(change)
                if change.event == "finished":
                    lives[change.planned.name] = change.life
                if change.event != "submitted":
                    done = f"{len(lives)} of {len(planned)} ended"
                    what = _described(change, submitter, gpus)
                    spoke = time.monotonic()
                    say(f"{spoke - began:7.1f} s  {done}  {what}")
            if time.monotonic() - spoke > SILENT_S and (waits := _first_waiting(cluster, submitter)):
                spoke = time.monotonic()
                say(f"{spoke - began:7.1f} s  {waits}")
    ordered = [lives[job.name] for job in planned]
    results = cluster.do(submitter.batch.last_lines([life.job for life in ordered]))
    places = [submitter.batch.places.get(life.job) for life in ordered]
    return ClusterPart(name=name, lives=ordered, results=results, places=places)


def _first_waiting(cluster: Connected, submitter: ClusterSubmitter) -> str:
    """Why the first job of the queue waits; empty if none does."""
    from cotenant.kube.deploy.jobs import one_job

    for name, view in submitter.views.items():
        if view.state == "queued":
            found = cluster.do(one_job(cluster.client, cluster.namespace, name))
            return f"{name} is {found.state}" + (f": {found.reason}" if found.reason else "")
    return ""


def _described(change: Change, submitter: ClusterSubmitter, gpus: "dict[str, Location]") -> str:
    life, name = change.life, change.planned.name
    if change.event == "finished":
        return f"{name} ended ({life.state}), JCT {or_dash(life.jct, '{:.0f} s')}"
    place = submitter.batch.places.get(life.job)
    if place is None:
        return f"{name} started"
    node, uuids = place
    numbers = ",".join(str(gpus[uuid].number) if uuid in gpus else "?" for uuid in uuids)
    beside = sum(
        other != life.job and submitter.views[other].ended is None and bool(set(uuids) & set(theirs))
        for other, (_, theirs) in submitter.batch.places.items()
        if other in submitter.views
    )
    neighbours = f" next to {counted(beside, 'other')}" if beside else ""
    return f"{name} started on {node} GPU {numbers}{neighbours}"


def _speaker(*, quiet: bool) -> Callable[[str], None]:
    """Prints progress: on standard output, or on standard error if programs read standard output."""
    return lambda line: click.echo("\n".join(map(printable, line.split("\n"))), err=quiet)


@contextmanager
def _cleaning(say: Callable[[str], None]) -> Iterator[ExitStack]:
    """A stack of removals, which run at the end for any reason; signals are ignored meanwhile."""
    cleanup = ExitStack()
    try:
        yield cleanup
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        say("\nremoving what the demo created")
        cleanup.close()


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the demo as Ctrl-C does, and restores all handlers at the end."""
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS[1:]}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Passes a signal on as SIGINT, which asyncio turns into the cancellation of what runs now."""
    signal.raise_signal(signal.SIGINT)
