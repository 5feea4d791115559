# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant whatif`: where a job would go now, and how slow it and its neighbours would get. Nothing is submitted."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.cluster_jobs import KUBERNETES, check_on, on_option
from cotenant.cli.options import output_option
from cotenant.cli.pods import pod_options
from cotenant.core.isolation import Rung

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cotenant.wire.explanation import NeighbourView, SpeedView, WhatIf

MOST_REFUSALS = 20
"""nodes in a table; -o wide shows all"""

EPILOG = """\b
Examples:
  cotenant whatif --memory 4GiB --compute 30%
  cotenant whatif --memory 4GiB --workload bert -o json
  cotenant whatif --on kubernetes --gpus 8 --replicas 4
"""


@click.command(epilog=EPILOG)
@click.option("--gpus", type=click.IntRange(0, 1024), default=1, show_default=True, help="Number of GPUs.")
@click.option("--memory", metavar="4GiB|50%", help="Memory on each GPU. Default: all of it.")
@click.option("--compute", metavar="30%", help="Compute share of each GPU.")
@click.option("--mig", metavar="1g.10gb", help="Profile of the MIG instances to use.")
@click.option("--type", "types", multiple=True, metavar="NAME", help="Acceptable GPU type; repeatable.")
@click.option("--exclusive", is_flag=True, help="Share the GPUs with no other job.")
@click.option(
    "--isolation", type=click.Choice([rung.value for rung in Rung]), help="What would hold the job to its limits."
)
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="Queue priority.")
@click.option("--workload", metavar="NAME", help="Workload name, by which speeds are predicted.")
@click.option("--replicas", type=click.IntRange(1), help="Number of pods that start together or not at all.")
@click.option("--policy", metavar="NAME", help="Placement policy of the pods. Default: that of the cluster.")
@on_option
@pod_options
@output_option
def whatif(
    gpus: int,
    memory: str | None,
    compute: str | None,
    mig: str | None,
    types: tuple[str, ...],
    exclusive: bool,
    isolation: str | None,
    priority: int,
    workload: str | None,
    replicas: int | None,
    policy: str | None,
    on: str,
    namespace: str | None,
    kubeconfig: Path | None,
    output: str,
) -> None:
    """Shows where a job would go now, by the same ranking that places jobs, and how fast it and its neighbours would be
    by the predictor. Nothing is submitted and nothing changes."""
    from cotenant.cli.output import render
    from cotenant.wire.text import printable

    check_on(on, ("replicas", "policy"), ("isolation", "priority"))
    wanted: dict[str, Any] = {"gpus": gpus, "memory": memory, "compute": compute, "mig": mig, "types": types}
    wanted |= {"exclusive": exclusive, "workload": workload}
    if on == KUBERNETES:
        answer = ask_cluster(namespace, kubeconfig, **wanted, replicas=replicas, policy=policy)
    else:
        answer = ask_daemon(**wanted, priority=priority, isolation=None if isolation is None else Rung(isolation))
    one_machine = on != KUBERNETES
    render(
        answer,
        output,
        lambda wide: click.echo("\n".join(map(printable, _lines(answer, wide=wide, one_machine=one_machine)))),
    )


def ask_daemon(**wanted: Any) -> "WhatIf":
    """Asks the daemon of this machine about a job with these fields of a `WhatIfRequest`."""
    import msgspec

    from cotenant.client.client import Client
    from cotenant.wire.explanation import WhatIf, WhatIfRequest

    return Client().post("/v1/whatif", WhatIf, msgspec.json.encode(WhatIfRequest(**wanted)))


def ask_cluster(namespace: str | None, kubeconfig: Path | None, **wanted: Any) -> "WhatIf":
    """Asks the scheduler of a cluster about pods with these fields of a `TrainingRequest`."""
    import asyncio
    import os

    from cotenant.kube.api.access import find_access
    from cotenant.kube.deploy.training import TrainingRequest, job_object
    from cotenant.kube.scheduler.why import ask_what_if

    access = find_access(os.environ, kubeconfig)
    request = TrainingRequest(name="what-if", image="what-if", command=("what-if",), **wanted)
    template = job_object(request)["spec"]["template"]
    return asyncio.run(ask_what_if(access, namespace or access.namespace, template))


def _lines(answer: "WhatIf", *, wide: bool, one_machine: bool) -> "Iterable[str]":
    from cotenant.cli.output import aligned
    from cotenant.cli.suggested import gpus_of, place_of, suggestion_lines
    from cotenant.wire.text import counted

    if answer.slots:
        trial = "; it would be measured there and judged again" if answer.trial else ""
        yield f"it would go to {place_of(answer.slots, one_machine=one_machine)} (policy {answer.policy}){trial}"
        yield from _speeds(answer.tenants, one_machine=one_machine)
    else:
        yield f"it would wait (policy {answer.policy}): {answer.waits}"
        yield from suggestion_lines(answer.suggestions, answer.gang, wide=wide, one_machine=one_machine)
    yield from (f"note: {note}" for note in answer.notes)
    if wide or not (answer.slots or one_machine):
        rows = [
            (fit.node, f"fits on {gpus_of(fit.gpus)}, score {' '.join(f'{part:g}' for part in fit.score)}")
            for fit in answer.fits
        ] + [(one.node, one.text) for one in answer.refusals]
        shown = rows if wide else rows[:MOST_REFUSALS]
        yield from aligned(shown) if shown else ()
        if hidden := len(rows) - len(shown) + answer.more:
            yield f"and {counted(hidden, 'more node')}" + ("" if wide else " (-o wide)")


def _speeds(tenants: "Sequence[NeighbourView]", *, one_machine: bool) -> "Iterable[str]":
    from cotenant.cli.output import aligned

    if not tenants:
        return
    table = [["JOB", "GPU" if one_machine else "NODE/GPU", "WORKLOAD", "SPEED NOW", "SPEED THEN", "9 OF 10"]]
    for one in tenants:
        where = str(one.gpu) if one_machine else f"{one.node}/{one.gpu}"
        now = "-" if one.before is None else f"{one.before.mean:.0%}"
        table.append([one.job, where, one.workload or "-", now, f"{one.after.mean:.0%}", _interval(one.after)])
    yield from (f"  {line}" for line in aligned(table))
    yield "speeds are predicted, relative to running alone"


def _interval(speed: "SpeedView") -> str:
    return "-" if speed.low == speed.high else f"{speed.low:.0%} to {speed.high:.0%}"
