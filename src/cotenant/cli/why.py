# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant why`: why a job was put where it is, or why it waits, in numbers."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.options import job_argument, output_option
from cotenant.errors import InputError

if TYPE_CHECKING:
    from cotenant.core.model import Slot
    from cotenant.core.placement.ranking import Ranking

MOST_BYTES = 512 * 1024 * 1024

EPILOG = """\b
Example:
  cotenant simulate --policy fgd --mode timed --record demo-0017 --out report
  cotenant why --decision report/decision-fgd-42-demo_0017.json
  cotenant why j-000001
  cotenant why pod/train-0 -n team
"""
POD = ("pod/", "pods/")
"""before the name of a pod, as kubectl writes it; no job has such a name"""


@click.command(epilog=EPILOG)
@job_argument(required=False)
@click.option("--decision", type=click.Path(path_type=Path), metavar="FILE", help="A recorded decision to replay.")
@click.option("--most", type=click.IntRange(1), default=20, show_default=True, help="table: how many nodes to show.")
@click.option("--namespace", "-n", metavar="NAME", help="pod: its namespace.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="pod: how to reach the API server.")
@output_option
def why(
    job: str | None, decision: Path | None, most: int, namespace: str | None, kubeconfig: Path | None, output: str
) -> None:
    """Why a job of this machine, or pod/NAME of a cluster, waits or is where it is; or a recorded decision, replayed
    with every node's score."""
    if (job is None) == (decision is None):
        raise InputError(
            "give either a job of this machine's daemon, a pod of a cluster (pod/NAME), or --decision FILE"
        )
    if decision is not None:
        _replay(decision, most, output)
    elif job is not None and job.startswith(POD):
        from cotenant.cli.why_pod import why_pod

        why_pod(job.partition("/")[2], namespace, kubeconfig, most, output)
    elif job is not None:
        _ask(job, output)


def _ask(job: str, output: str) -> None:
    from cotenant.cli.client import Client, at
    from cotenant.cli.show import render

    answer = Client().get(f"/v1/jobs/{at(job)}/why", dict[str, Any])
    render(answer, output, lambda wide: _print_answer(answer, wide))


def _print_answer(answer: dict[str, Any], wide: bool) -> None:
    from cotenant.wire.text import printable

    lines = [f"{answer['job']} is {answer['state']} under {answer['policy']}"]
    if answer["placed_on"] is not None:
        lines.append(f"on GPU {' '.join(map(str, answer['placed_on'])) or 'none'}: {answer['reason']}")
    elif answer["state"] == "queued":
        lines.append(f"it waits: {answer['reason']} ({answer['ahead']} jobs before it)")
    lines += [f"note: {note}" for note in answer.get("notes", ())]
    lines += map(_told, answer.get("company", ()) if len(answer.get("company", ())) > 1 else ())
    if wide:
        for fit in answer["fits"]:
            score = " ".join(f"{part:g}" for part in fit["score"])
            lines.append(f"fits on GPU {' '.join(map(str, fit['gpus'])) or 'none'}, score {score}")
        lines += [f"{node}: {reason}" for node, reason in answer["reasons"].items()]
    click.echo("\n".join(map(printable, lines)))


def _told(neighbour: dict[str, Any]) -> str:
    from cotenant.cli.show import known

    expected, measured = (known(neighbour[name], "{:.0%}") for name in ("predicted", "measured"))
    return f"{neighbour['job']} ({neighbour['workload']}): predicted {expected}, measured {measured} of its speed alone"


def _replay(decision: Path, most: int, output: str) -> None:
    from cotenant.cli.show import render
    from cotenant.core.placement.deciding import place_together, rank
    from cotenant.core.placement.ranking import Ranker
    from cotenant.wire.decision import decode
    from cotenant.wire.files import read_bounded

    recorded = decode(read_bounded(decision, MOST_BYTES, "a recorded decision"), str(decision))
    policy, cluster = recorded.build_policy(), recorded.cluster()
    ranking = rank(policy, recorded.job, cluster, crowding=recorded.crowding)
    placed = place_together(Ranker(policy), recorded.job, cluster, None, recorded.crowding, recorded.closed)
    slots = tuple(one.slot for one in placed.placements) if placed is not None else ()
    same = slots == recorded.slots or (policy.random and bool(slots) == bool(recorded.slots))
    answer = _answer(recorded.job.id, policy.name, ranking, slots, same)
    render(answer, output, lambda wide: _print_table(answer, ranking, len(ranking.fits) if wide else most))
    if not same:
        chosen = ", ".join(f"{slot.node}/{list(slot.gpus)}" for slot in recorded.slots) or "nowhere"
        raise InputError(f"{decision}: the replay differs from what was recorded ({chosen}); was the file edited?")


def _print_table(answer: dict[str, Any], ranking: "Ranking", most: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    where = ", ".join(f"{slot['node']} GPU {' '.join(map(str, slot['gpus'])) or 'none'}" for slot in answer["slots"])
    console.print(escape(f"{answer['job']} under {answer['policy']}: {where or 'fits nowhere'}"), highlight=False)
    if ranking.fits:
        fits = Table("rank", "node", "GPUs", "score")
        for place, fit in enumerate(ranking.fits[:most], 1):
            score = " ".join(f"{part:g}" for part in fit.score)
            fits.add_row(str(place), escape(fit.slot.node), " ".join(map(str, fit.slot.gpus)), score)
        console.print(fits)
        if len(ranking.fits) > most:
            console.print(f"and {len(ranking.fits) - most} more nodes that fit (--most {len(ranking.fits)} shows all)")
    if ranking.verdict.reason is not None:
        console.print(escape(f"It had better wait: {ranking.verdict.reason}"), highlight=False)
    if ranking.reasons:
        refused = Table("nodes", "why not", "for example")
        texts = Counter(reason.text for reason in ranking.reasons.values())
        for text, count in texts.most_common():
            node, reason = next((node, why) for node, why in ranking.reasons.items() if why.text == text)
            refused.add_row(str(count), escape(str(reason)), escape(node))
        console.print(refused)


def _answer(job: str, policy: str, ranking: "Ranking", slots: "tuple[Slot, ...]", same: bool) -> dict[str, Any]:
    return {
        "job": job,
        "policy": policy,
        "slots": [{"node": slot.node, "gpus": slot.gpus} for slot in slots],
        "as_recorded": same,
        "fits": [{"node": fit.slot.node, "gpus": fit.slot.gpus, "score": fit.score} for fit in ranking.fits],
        "waits": None if ranking.verdict.reason is None else str(ranking.verdict.reason),
        "trial": ranking.verdict.trial,
        "reasons": {
            node: {"check": why.check, "text": str(why), "needed": why.needed, "available": why.available}
            for node, why in sorted(ranking.reasons.items())
        },
    }
