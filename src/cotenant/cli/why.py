# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant why`: explains why a job or a pod waits, why it was placed where it is, or how it ended, with the numbers
that decided."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.cluster_jobs import KUBERNETES, Where, on_option, pod_to_explain
from cotenant.cli.options import job_argument, output_option
from cotenant.cli.pods import STATES, ask_about_pod, is_pod, pod_options, speed_line
from cotenant.cli.replay import replay
from cotenant.cli.suggested import gpus_of, suggestion_lines
from cotenant.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cotenant.kube.scheduler.why import WhyPod
    from cotenant.wire.explanation import SuggestionView

EPILOG = """\b
Examples:
  cotenant simulate --policy fgd --mode timed --record demo-0017 --out report
  cotenant why --decision report/decision-fgd-42-demo_0017.json
  cotenant decisions --file day.jsonl
  cotenant why --decision day.jsonl
  cotenant why --decision day.jsonl j-000001
  cotenant why j-000001
  cotenant why pod/train-0 -n team
  cotenant why --on kubernetes sweep
"""


@click.command(epilog=EPILOG)
@job_argument(required=False)
@click.option(
    "--decision",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Replay a decision of `cotenant simulate --record`, or a recording of `cotenant decisions`.",
)
@click.option(
    "--most", type=click.IntRange(1), default=20, show_default=True, help="Largest number of nodes in the table."
)
@on_option
@pod_options
@output_option
def why(
    job: str | None,
    decision: Path | None,
    most: int,
    on: str,
    namespace: str | None,
    kubeconfig: Path | None,
    output: str,
) -> None:
    """Explains why a job of this machine (or pod/NAME of a cluster) waits, why it was placed where it is, or how it
    ended; or replays a recorded decision with the score of every node."""
    if job is None and decision is None:
        raise InputError("expected one of: a job of this machine, a pod of a cluster (pod/NAME), or --decision FILE")
    if decision is not None:
        replay(decision, job, most, output)
    elif job is not None and on == KUBERNETES and not is_pod(job):
        pod = pod_to_explain(Where(namespace, kubeconfig), job)
        _explain_pod(pod, namespace, kubeconfig, most, output)
    elif job is not None and is_pod(job):
        _explain_pod(job, namespace, kubeconfig, most, output)
    elif job is not None:
        _explain_job(job, output)


def _explain_job(job: str, output: str) -> None:
    from cotenant.cli.output import render
    from cotenant.client.client import Client
    from cotenant.client.http import at

    answer = Client().get(f"/v1/jobs/{at(job)}/why", dict[str, Any])
    render(answer, output, lambda wide: click.echo("\n".join(answer_lines(answer, wide))))


def answer_lines(answer: dict[str, Any], wide: bool) -> list[str]:
    """The explanation of the daemon as text."""
    from cotenant.wire.text import counted, printable

    job, state = answer["job"], answer["state"]
    policy, placed, reason = answer["policy"], answer["placed_on"], answer["reason"] or ""
    if answer.get("end") is not None:
        lines = list(_end_lines(job, answer["end"]))
    elif placed is not None:
        lines = [f"{job} is {state} on {gpus_of(placed)} (policy {policy})", reason.removeprefix(f"{policy}: ")]
    else:
        lines = [f"{job} is {state} (policy {policy})"]
    if state == "queued":
        ahead = answer["ahead"]
        position = (
            f"{counted(ahead, 'job') if ahead else 'no job'} {'are' if ahead > 1 else 'is'} ahead of it in the queue"
        )
        lines.append(f"it waits: {reason}" if answer.get("outside") else f"it waits: {reason}; {position}")
        lines += [f"shares: {answer['shares']}"] if answer.get("shares") else []
        lines += _overtaking(answer)
        lines += suggestion_lines(_suggestions(answer), wide=wide, one_machine=True)
    if answer.get("isolation") is not None:
        lines.append(f"isolation: {answer['isolation']}")
    lines += [f"note: {note}" for note in answer.get("notes", ())]
    lines += map(_neighbour, answer.get("company", ()) if len(answer.get("company", ())) > 1 else ())
    if wide:
        for fit in answer["fits"]:
            score = " ".join(f"{part:g}" for part in fit["score"])
            lines.append(f"fits on {gpus_of(fit['gpus'])}, score {score}")
        lines += [f"{node}: {reason}" for node, reason in answer["reasons"].items()]
    return list(map(printable, lines))


def _suggestions(answer: dict[str, Any]) -> "list[SuggestionView]":
    import msgspec

    from cotenant.wire.explanation import SuggestionView

    return msgspec.convert(answer.get("suggestions", []), list[SuggestionView])


def _end_lines(job: str, end: "Mapping[str, Any]") -> "Iterator[str]":
    """How a job ended, what its owner can do, and its last output."""
    from cotenant.client.endings import ending
    from cotenant.wire.text import counted

    names = ("outcome", "code", "error", "started", "ended")
    sentence = ending(job, **{name: end[name] for name in names}, number=end["signal"])
    retry = "" if (end["outcome"], end["code"]) == ("exited", 0) else f". `cotenant retry {job}` runs it again"
    yield f"{sentence}{retry}"
    if end["attempts"] > 1:
        had = counted(end["attempts"], "attempt")
        yield f"it had {had}; `cotenant logs --attempt 1 {job}` shows the output of the first"
    if end["output"]:
        yield f"the end of its output (`cotenant logs {job}` shows all that is kept):"
        yield from (f"  {line}" for line in end["output"])
    elif end.get("pruned"):
        yield "its output was removed (`cotenant prune`)"
    elif end["attempts"]:
        yield "it wrote no output"


def _overtaking(answer: dict[str, Any]) -> "Iterable[str]":
    """The jobs behind it in the queue that have started since it was submitted."""
    from cotenant.wire.text import counted

    named = answer.get("overtaken_by", ())
    if named:
        yield f"{counted(answer['overtaken'], 'job')} behind it in the queue started before it:"
        yield from (f"  {one['job']}: {one['reason']}" for one in named)
        if answer["overtaken"] > len(named):
            yield f"  and {answer['overtaken'] - len(named)} before these"


def _neighbour(neighbour: dict[str, Any]) -> str:
    from cotenant.cli.output import or_dash

    expected, measured = (or_dash(neighbour[name], "{:.0%}") for name in ("predicted", "measured"))
    return f"{neighbour['job']} ({neighbour['workload']}): predicted {expected}, measured {measured} of its speed alone"


def _explain_pod(name: str, namespace: str | None, kubeconfig: Path | None, most: int, output: str) -> None:
    """Asks the scheduler of a cluster about a pod, and prints the answer."""
    from cotenant.cli.output import render
    from cotenant.wire.text import printable

    answer = ask_about_pod(name, namespace, kubeconfig)
    render(answer, output, lambda wide: click.echo("\n".join(map(printable, _pod_lines(answer, most, wide)))))


def _pod_lines(answer: "WhyPod", most: int, wide: bool) -> "Iterable[str]":
    from cotenant.cli.output import aligned
    from cotenant.wire.text import counted

    pod = f"pod {answer.metadata.namespace}/{answer.metadata.name}"
    yield f"{pod} {STATES.get(answer.state, answer.state)} (policy {answer.policy}): {answer.reason}"
    yield from () if answer.isolation is None else (f"isolation: {answer.isolation}",)
    yield from (f"note: {note}" for note in answer.notes)
    yield from map(speed_line, answer.tenants if len(answer.tenants) > 1 else ())
    yield from suggestion_lines(answer.suggestions, answer.gang, wide=wide, one_machine=False)
    if answer.state != "waiting" and not wide:
        return
    rows = [
        (fit.node, f"fits on {gpus_of(fit.gpus)}, score {' '.join(f'{part:g}' for part in fit.score)}")
        for fit in answer.fits
    ] + [(refusal.node, refusal.text) for refusal in answer.refusals]
    shown = rows if wide else rows[:most]
    yield from aligned(shown) if shown else ()
    hidden = len(rows) - len(shown) + answer.more
    if hidden:
        yield f"and {counted(hidden, 'more node')}" + ("" if wide else " (see --most and -o wide)")
