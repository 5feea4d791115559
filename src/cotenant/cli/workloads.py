# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant workloads`: the data sets of the benchmark tasks, and a manifest for each task."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.options import folder_option, output_option
from cotenant.cli.planning import task_options
from cotenant.errors import InputError
from cotenant.workloads.registry import SIZES, TASKS, find

if TYPE_CHECKING:
    from cotenant.workloads.datasets import Written

CLAIM_SIZE = "1Gi"
DATA_FILE = "data"
EPILOG = """\b
Examples:
  cotenant workloads prepare --out datasets
  cotenant workloads manifests --image team/workloads:1 --volume datasets --out tasks
  kubectl apply -f tasks/data.yaml && kubectl wait --for=condition=complete --timeout=10m job/prepare-data
  kubectl apply -f tasks
"""
PREPARE_EPILOG = """\b
Examples:
  cotenant workloads prepare --out datasets
  cotenant workloads prepare --out datasets --size full -o json
"""
MANIFESTS_EPILOG = """\b
Examples:
  cotenant workloads manifests vgg16 --image team/workloads:1
  cotenant workloads manifests --image team/workloads:1 --policy iadeep --volume datasets --out tasks
"""
COLUMNS = (
    ("FILE", lambda one: one.name, False),
    ("BYTES", lambda one: f"{one.bytes:,}", False),
    ("STATE", lambda one: "written" if one.new else "present", False),
    ("SHA256", lambda one: one.sha256, True),
)


@click.group(epilog=EPILOG)
def workloads() -> None:
    """Prepares the benchmark tasks: their data sets, and a manifest for each."""


@workloads.command(epilog=PREPARE_EPILOG)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the data sets."
)
@click.option(
    "--size", type=click.Choice(SIZES), default="tiny", show_default=True, help="Size of the tasks that read them."
)
@output_option
def prepare(out: Path, size: str, output: str) -> None:
    """Writes the data sets that tasks can read: synthetic, and the same on every machine. Files with the right content
    are left as they are."""
    from cotenant.cli.output import emit, progress
    from cotenant.workloads import datasets

    with progress("data sets", len(datasets.files(size))) as advance:

        def written(one: "Written") -> None:
            advance(one.name)

        found = datasets.prepare(out, size, written)
    emit(found, output, COLUMNS)


@workloads.command(epilog=MANIFESTS_EPILOG)
@click.argument("tasks", nargs=-1, metavar="[TASK]…")
@task_options
@click.option("--size", type=click.Choice(SIZES), default="tiny", show_default=True, help="Size of every task's model.")
@folder_option("Folder for one file per task. Default: print all of them.")
def manifests(
    tasks: tuple[str, ...], image: str | None, size: str, policy: str | None, volume: str | None, out: Path | None
) -> None:
    """Writes the Kubernetes Job of each benchmark task; without a task, those of all. With --volume, the claim and a
    Job that fills it come first. `kubectl apply` creates them."""
    from cotenant.cli.cluster import yaml_text

    found = _manifests([find(name).name for name in tasks] or list(TASKS), image, size, policy, volume)
    if out is None:
        click.echo(yaml_text([one for objects in found.values() for one in objects]), nl=False)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, objects in found.items():
            (out / f"{name}.yaml").write_text(yaml_text(objects))
            click.echo(out / f"{name}.yaml")
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from None


def _manifests(
    tasks: list[str], image: str | None, size: str, policy: str | None, volume: str | None
) -> dict[str, list[dict[str, Any]]]:
    """File name -> its objects."""
    from cotenant.cli.cluster_batch import batch_options
    from cotenant.kube.deploy.batches import preparation, request_of
    from cotenant.kube.deploy.training import job_object
    from cotenant.workloads.generator import single

    options = replace(batch_options(image, policy, compute=False, volume=volume), run=None)
    found: dict[str, list[dict[str, Any]]] = {}
    if volume is not None:
        found[DATA_FILE] = [_claim(volume), job_object(preparation(volume, options.image, size))]
    for task in tasks:
        found[task.replace("_", "-")] = [job_object(request_of(single(task, size), options))]
    return found


def _claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": CLAIM_SIZE}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
