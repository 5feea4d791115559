# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant why pod/NAME`: asks the scheduler of a cluster, through its API server."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import click

from cotenant.cli.show import aligned, render
from cotenant.errors import InputError
from cotenant.kube.api.access import find_access
from cotenant.kube.scheduler.why import WhyPod, ask_scheduler
from cotenant.wire.text import printable

STATES = {
    "waiting": "waits",
    "placing": "is being placed",
    "placed": "is placed",
    "ended": "has ended",
    "elsewhere": "is not ours",
}


def why_pod(name: str, namespace: str | None, kubeconfig: Path | None, most: int, output: str) -> None:
    """Prints what the scheduler says of a pod."""
    if not name or "/" in name:
        raise InputError(f"pod/{name[:80]}: expected pod/NAME, and its namespace with -n")
    access = find_access(os.environ, kubeconfig)
    answer = asyncio.run(ask_scheduler(access, namespace or access.namespace, name))
    render(answer, output, lambda wide: click.echo("\n".join(map(printable, _lines(answer, most, wide)))))


def _lines(answer: WhyPod, most: int, wide: bool) -> Iterable[str]:
    pod = f"pod {answer.metadata.namespace}/{answer.metadata.name}"
    yield f"{pod} {STATES.get(answer.state, answer.state)} under {answer.policy}: {answer.reason}"
    yield from (f"note: {note}" for note in answer.notes)
    if answer.state != "waiting" and not wide:
        return
    rows = [
        (fit.node, f"fits on GPU {' '.join(map(str, fit.gpus))}, score {' '.join(f'{part:g}' for part in fit.score)}")
        for fit in answer.fits
    ] + [(refusal.node, refusal.text) for refusal in answer.refusals]
    shown = rows if wide else rows[:most]
    yield from aligned(shown) if shown else ()
    hidden = len(rows) - len(shown) + answer.more
    if hidden:
        yield f"and {hidden} more nodes" + ("" if wide else " (--most, or -o wide)")
