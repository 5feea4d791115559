# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Replays recorded decisions for `cotenant why --decision`: one decision with all scores, or all of a recording."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.suggested import gpus_of
from cotenant.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cotenant.core.model import Slot
    from cotenant.core.placement.ranking import Ranking
    from cotenant.wire.decision import RecordedDecision

MOST_BYTES = 512 * 1024 * 1024
MOST_NAMED = 20
"""decisions that are listed if they differ from what was recorded"""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A decision made once more."""

    recorded: "RecordedDecision"
    ranking: "Ranking | None"
    slots: "tuple[Slot, ...]"
    same: bool


def replay(path: Path, job: str | None, most: int, output: str) -> None:
    """Replays a file of one decision; or of a recording the last decision about a job, or all decisions."""
    from cotenant.wire.codec import read_bounded
    from cotenant.wire.decision import decode

    if _is_recording(path):
        if job is None:
            _replay_all(path, output)
        else:
            *before, last = _all_about(path, job)
            _show(path, last, most, output, before)
        return
    if job is not None:
        raise InputError(
            f"{job}: --decision {path} has one decision and takes no job or pod; "
            "write `cotenant why --decision FILE` for each file, or `cotenant why JOB` without --decision"
        )
    _show(path, decode(read_bounded(path, MOST_BYTES, "a recorded decision"), str(path)), most, output)


def _is_recording(path: Path) -> bool:
    """Whether a file has many decisions, one on each line."""
    try:
        with path.open("rb") as file:
            return b'"type":' in file.readline(200)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a recorded decision") from None


def _decisions(path: Path) -> "Iterator[tuple[int, RecordedDecision, bool]]":
    from cotenant.history.recorded import open_recording, recorded_decisions

    return recorded_decisions(open_recording(path), str(path))


def _all_about(path: Path, job: str) -> "list[RecordedDecision]":
    found = [one for _, one, _ in _decisions(path) if one.job.id == job]
    if not found:
        raise InputError(f"{path}: no decision about {job[:100]!r} in it; without a job, all decisions are replayed")
    return found


def _decide_again(recorded: "RecordedDecision", *, ranked: bool) -> Replayed:
    from cotenant.core.placement.deciding import place_gang, rank
    from cotenant.core.placement.ranking import Ranker

    policy, cluster = recorded.build_policy(), recorded.cluster()
    ranking = rank(policy, recorded.job, cluster, crowding=recorded.crowding) if ranked else None
    placed = None
    if not recorded.waits:
        placed = place_gang(Ranker(policy), recorded.job, cluster, None, recorded.crowding, recorded.closed)
    slots = tuple(one.slot for one in placed.placements) if placed is not None else ()
    same = slots == recorded.slots or (policy.random and bool(slots) == bool(recorded.slots))
    return Replayed(recorded, ranking, slots, same)


def _show(
    path: Path, recorded: "RecordedDecision", most: int, output: str, before: "Sequence[RecordedDecision]" = ()
) -> None:
    """Shows a decision, and those before it about the same job in one line each."""
    from cotenant.cli.output import render

    again = _decide_again(recorded, ranked=True)
    ranking = again.ranking
    assert ranking is not None
    answer = {**_answer(again, ranking), "before": [_earlier(one) for one in before]}
    render(answer, output, lambda wide: _print_table(answer, ranking, len(ranking.fits) if wide else most))
    if not again.same:
        chosen = _where(recorded.slots)
        raise InputError(f"{path}: the replay differs from what was recorded ({chosen}); was the file edited?")


def _replay_all(path: Path, output: str) -> None:
    from cotenant.cli.output import render
    from cotenant.wire.text import counted, printable

    differing: list[dict[str, Any]] = []
    count = partial = refused = 0
    for number, one, complete in _decisions(path):
        again = _decide_again(one, ranked=False)
        count, partial, refused = count + 1, partial + (not complete), refused + (not one.slots)
        if not again.same:
            found = {"line": number, "job": one.job.id, "recorded": _where(one.slots), "replayed": _where(again.slots)}
            differing.append({**found, "complete": complete})
    answer = {
        "decisions": count,
        "refused": refused,
        "as_recorded": count - len(differing),
        "partial": partial,
        "differing": differing,
    }

    def lines() -> "Iterator[str]":
        refusals = f" ({counted(refused, 'refusal')})" if refused else ""
        yield f"{counted(count, 'decision')}{refusals}, {count - len(differing)} as recorded"
        if partial:
            yield f"{partial} without the predicted speeds, which were too many to be recorded; these may differ"
        for one in differing[:MOST_NAMED]:
            yield f"line {one['line']}, {one['job']}: recorded {one['recorded']}, replayed {one['replayed']}"
        if len(differing) > MOST_NAMED:
            yield f"and {len(differing) - MOST_NAMED} more (-o json lists all)"

    render(answer, output, lambda wide: click.echo("\n".join(map(printable, lines()))))
    if any(one["complete"] for one in differing):
        raise InputError(f"{path}: {counted(len(differing), 'decision')} of {count} would be made otherwise now")


def _where(slots: "Sequence[Slot]") -> str:
    return ", ".join(f"{slot.node}/{list(slot.gpus)}" for slot in slots) or "nowhere"


def _print_table(answer: dict[str, Any], ranking: "Ranking", most: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from cotenant.wire.text import counted

    console = Console()
    where = ", ".join(f"{slot['node']} {gpus_of(slot['gpus'])}" for slot in answer["slots"])
    for earlier in answer["before"]:
        at = time.strftime("%H:%M:%S", time.localtime(earlier["at"]))
        console.print(escape(f"{at} {earlier['outcome']}"), highlight=False)
    found = where or (f"waits: {answer['outside']}" if answer["outside"] else "fits nowhere")
    console.print(escape(f"{answer['job']} under {answer['policy']}: {found}"), highlight=False)
    if ranking.fits:
        fits = Table("rank", "node", "GPUs", "score")
        for place, fit in enumerate(ranking.fits[:most], 1):
            score = " ".join(f"{part:g}" for part in fit.score)
            fits.add_row(str(place), escape(fit.slot.node), " ".join(map(str, fit.slot.gpus)), score)
        console.print(fits)
        if len(ranking.fits) > most:
            more = counted(len(ranking.fits) - most, "more node")
            console.print(f"and {more} that fit (--most {len(ranking.fits)} shows all)")
    if ranking.verdict.reason is not None:
        console.print(escape(f"The policy prefers to wait: {ranking.verdict.reason}"), highlight=False)
    if ranking.reasons:
        refused = Table("nodes", "reason", "for example")
        texts = Counter(reason.text for reason in ranking.reasons.values())
        for text, count in texts.most_common():
            node, reason = next((node, why) for node, why in ranking.reasons.items() if why.text == text)
            refused.add_row(str(count), escape(str(reason)), escape(node))
        console.print(refused)


def _earlier(recorded: "RecordedDecision") -> dict[str, Any]:
    """A decision in one line: where the job was placed, or what was missing on most nodes."""
    if recorded.slots:
        return {"at": recorded.now, "outcome": f"placed on {_where(recorded.slots)}"}
    text = recorded.waits
    if not text:
        ranking = _decide_again(recorded, ranked=True).ranking
        assert ranking is not None
        texts = Counter(map(str, (*ranking.reasons.values(), *filter(None, [ranking.verdict.reason]))))
        text = texts.most_common(1)[0][0] if texts else "nothing fitted"
    return {"at": recorded.now, "outcome": f"refused: {text}"}


def _answer(again: Replayed, ranking: "Ranking") -> dict[str, Any]:
    return {
        "job": again.recorded.job.id,
        "policy": again.recorded.policy,
        "slots": [{"node": slot.node, "gpus": slot.gpus} for slot in again.slots],
        "as_recorded": again.same,
        "fits": [{"node": fit.slot.node, "gpus": fit.slot.gpus, "score": fit.score} for fit in ranking.fits],
        "outside": again.recorded.waits or None,
        "waits": None if ranking.verdict.reason is None else str(ranking.verdict.reason),
        "trial": ranking.verdict.trial,
        "reasons": {
            node: {"check": why.check, "text": str(why), "needed": why.needed, "available": why.available}
            for node, why in sorted(ranking.reasons.items())
        },
    }
