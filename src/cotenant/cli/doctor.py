# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant doctor`: what is wrong with this machine or with an installation on Kubernetes, and how to fix it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.cluster_jobs import KUBERNETES, check_on, on_options
from cotenant.cli.options import output_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cotenant.kube.api.client import Client
    from cotenant.wire.diagnosis import Diagnosis

EPILOG = """\b
Examples:
  cotenant doctor
  cotenant doctor --on kubernetes
  cotenant doctor --on kubernetes -o json
Exit code: 0 without findings, 6 with warnings only, 7 with errors.
"""


@click.command(epilog=EPILOG)
@on_options
@output_option
def doctor(on: str, namespace: str | None, kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Checks this machine, or with --on kubernetes an installation in a cluster, and gives a fix for each finding. It
    changes nothing."""
    from cotenant.cli.output import render
    from cotenant.wire.text import printable

    check_on(on, (), ())
    found = _of_cluster(namespace, kubeconfig, context) if on == KUBERNETES else _of_machine()
    render(found, output, lambda wide: click.echo("\n".join(map(printable, _lines(found, wide)))))
    sys.exit(found.exit_code)


def _of_machine() -> "Diagnosis":
    from cotenant.local.doctor import diagnose, this_place

    return diagnose(this_place())


def _of_cluster(namespace: str | None, kubeconfig: Path | None, context: str | None) -> "Diagnosis":
    from cotenant.cli.cluster import in_cluster
    from cotenant.kube.install.doctor.reading import diagnose

    async def work(client: "Client", chosen: str) -> "Diagnosis":
        return await diagnose(client, chosen)

    return in_cluster(work, namespace, kubeconfig, context)


def _lines(found: "Diagnosis", wide: bool) -> "Iterator[str]":
    from cotenant.wire.text import counted

    for one in found.findings:
        yield f"{one.severity}: {one.check}: {one.about}: {one.text}"
        yield f"  fix: {one.fix}"
    checked = counted(len(found.checked), "check")
    if not found.findings:
        yield f"no findings; {checked} made: {', '.join(found.checked)}"
    elif wide:
        yield f"{counted(len(found.findings), 'finding')}; {checked} made: {', '.join(found.checked)}"
