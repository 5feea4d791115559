# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube demo`: its options. `kube_demo_run` has the rest, which agents and schedulers need not load."""

from pathlib import Path
from typing import Any

import click

from cotenant.cli.cluster import cluster_options
from cotenant.cli.cluster_jobs import Where
from cotenant.cli.options import complete_policies, folder_option, kube_output_option
from cotenant.cli.output import emit
from cotenant.cli.planning import PLAN_COLUMNS, plan_of, plan_options

EPILOG = """\b
Examples:
  cotenant kube demo --image team/workloads:1 --policy iadeep --jobs 100 --scale 1
  cotenant kube demo --image team/workloads:1 --policy iadeep --baseline binpack --out report
  cotenant kube demo --jobs 20 --dry-run
"""


@click.command(name="demo", epilog=EPILOG, short_help="Compares a policy with exclusive GPUs in a cluster.")
@click.option("--image", metavar="NAME", help="Image with cotenant[workloads], in which the tasks run.")
@click.option(
    "--policy",
    default="cotenant",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_policies,
    help="Placement policy of the first run.",
)
@click.option(
    "--baseline",
    default="exclusive",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_policies,
    help="Second run: exclusive (each job has a GPU of its own), another policy, or none.",
)
@plan_options(jobs=100, mix="iadeep")
@click.option(
    "--volume",
    metavar="CLAIM",
    help="PersistentVolumeClaim of --namespace: the demo writes data sets to it, and tasks read them. Default: tasks "
    "make their own samples.",
)
@click.option(
    "--label-nodes",
    is_flag=True,
    help="Label nodes with GPUs gpushare=true while the demo runs, for manifests that select nodes by it.",
)
@click.option("--dry-run", is_flag=True, help="Print the planned jobs without running them.")
@folder_option("Folder for summary.json and a CSV file for each run.")
@cluster_options
@kube_output_option
def demo(
    image: str | None,
    policy: str,
    baseline: str,
    volume: str | None,
    label_nodes: bool,
    dry_run: bool,
    out: Path | None,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
    **options: Any,
) -> None:
    """Runs the same benchmark tasks in a cluster under a policy and under a baseline, compares their completion times,
    and removes all that it created. Without --namespace it works in a new one."""
    planned = plan_of(**options)
    if dry_run:
        emit(planned, output, PLAN_COLUMNS)
        return
    from cotenant.cli.kube_demo_run import Plan, run

    chosen = Plan(
        jobs=planned,
        image=image,
        policy=policy,
        baseline=baseline,
        volume=volume,
        size=options["size"],
        label_nodes=label_nodes,
    )
    run(chosen, Where(namespace, kubeconfig, context), out, output)
