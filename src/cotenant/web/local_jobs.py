# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs and answers of one machine's daemon as the pages show them: pure functions of values."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.local.events import Event
from cotenant.web.model import (
    JobDetail,
    JobRow,
    Moment,
    Neighbour,
    Option,
    Probe,
    State,
    Tenant,
    Verdict,
    WhatIf,
    WhatIfAnswer,
)
from cotenant.wire.explanation import WhatIf as Foreseen
from cotenant.wire.explanation import WhatIfRequest
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView, described_state
from cotenant.wire.text import counted

STATES = {"queued": State.WAITING, "starting": State.STARTING, "running": State.RUNNING}
MOST_PROBES = 60
MOST_NEIGHBOURS = 50
_JOB_ID = re.compile(r"\bj-\d{6,}\b")


def named(text: str, names: Mapping[str, str]) -> str:
    """The text with the names of jobs beside their IDs, which no list on the pages shows; commands stay as they are."""

    def name(found: re.Match[str]) -> str:
        known = names.get(found[0], found[0])
        return found[0] if known == found[0] else f"{known[:60]} ({found[0]})"

    parts = text.split("`")
    return "`".join(_JOB_ID.sub(name, part) if place % 2 == 0 else part for place, part in enumerate(parts))


def row_of(job: JobView, *, node: str, limit: MiB | None, names: Mapping[str, str], own: bool = True) -> JobRow:
    state = State.HELD if job.held else STATES.get(job.state, State.ENDED)
    ending = described_state(job) if state is State.ENDED else None
    return JobRow(
        id=job.id,
        name=job.name,
        user=job.user,
        state=state,
        ending=ending,
        failed=ending not in (None, "done", "cancelled"),
        own=own,
        reason=job.error or (named(job.reason, names) if job.reason else None),
        asks=asks_of(job.request),
        priority=0 if job.request is None else job.request.priority,
        submitted=job.submitted,
        started=job.started,
        ended=job.ended,
        node=node if job.gpus else None,
        gpus=job.gpus,
        speed=None if job.speed is None else round(job.speed, 2),
        predicted=None if job.predicted is None else round(job.predicted, 2),
        batch=job.batch,
        used_mib=None if job.memory_used_mib is None else MiB(job.memory_used_mib),
        limit_mib=limit,
    )


def asks_of(request: JobRequest | None) -> str:
    """What a job requested, in a few words."""
    if request is None:
        return ""
    words = [counted(request.gpus, "GPU"), request.mig, request.memory, request.compute]
    words += ["alone"] if request.exclusive else []
    return " · ".join(word for word in words if word)


def detail_of(
    job: JobView,
    row: JobRow,
    events: Iterable[Event],
    why: Mapping[str, Any] | None,
    company: tuple[Tenant, ...],
    names: Mapping[str, str],
) -> JobDetail:
    """`why` is None if the viewer may see neither that nor its command, folder and output."""
    waits = row.state is State.WAITING and why is not None
    return JobDetail(
        row=row,
        facts=tuple(_facts(job, why)),
        timeline=tuple(Moment(at=one.at, kind=one.kind, text=one.text) for one in events),
        verdicts=() if not waits or why is None else tuple(_verdicts(why)),
        would_fit=() if why is None else tuple(named(one["text"], names) for one in why["suggestions"]),
        company=company,
        probes=tuple(_probes(job)),
        has_log=job.attempts > 0 and why is not None,
    )


def _facts(job: JobView, why: Mapping[str, Any] | None) -> Iterable[tuple[str, str]]:
    request = job.request
    if request is not None and why is not None:
        yield "Command", shlex.join(request.command)
        yield "Folder", request.cwd
        if request.workload:
            yield "Workload", request.workload
        if request.retries:
            yield "Retries", str(request.retries)
    if job.attempts > 1:
        yield "Attempts", str(job.attempts)
    if job.isolation:
        yield "Isolation", job.isolation
    for sentence in job.enforcement:
        yield "Limits", sentence
    if why is None:
        return
    for note in why["notes"]:
        yield "Note", note
    for fault, count in job.faults.items():
        yield "Fault", f"{fault}: {count}"
    for gpu in job.drift:
        yield "Drift", gpu
    if why.get("overtaken"):
        yield "Overtaken by", counted(why["overtaken"], "job")


def _verdicts(why: Mapping[str, Any]) -> Iterable[Verdict]:
    for fit in why["fits"]:
        gpus, score = ", ".join(map(str, fit["gpus"])), " / ".join(f"{part:.4g}" for part in fit["score"])
        yield Verdict(place=f"GPU {gpus}", fits=True, text=f"score {score}")
    for text in why["reasons"].values():
        yield Verdict(place="This machine", fits=False, text=text)


def _probes(job: JobView) -> Iterable[Probe]:
    """The trials in which the job took part."""
    since = job.started or job.submitted
    for trial in job.tuning[-MOST_PROBES:]:
        size = trial["sizes"].get(job.id)
        if size is None:
            continue
        measured = (trial.get("measured") or {}).get(job.id)
        words = [trial["kind"], "" if measured is None else f"{measured:.1f} samples/s", trial.get("note") or ""]
        words += ["rejected"] if trial.get("rejected") else []
        yield Probe(at=since + trial["at"], batch=int(size), text=", ".join(word for word in words if word))


def whatif_request(wish: WhatIf) -> WhatIfRequest:
    """The request; InputError if it makes no sense."""
    if not wish.gpus.strip().isdecimal():
        raise InputError(f"GPUs {wish.gpus[:20]!r}: expected a whole number")
    given = {
        "gpus": int(wish.gpus),
        "memory": wish.memory.strip() or None,
        "compute": wish.compute.strip() or None,
        "types": tuple(word for word in wish.types.replace(",", " ").split() if word),
        "exclusive": wish.exclusive,
        "workload": wish.workload.strip() or None,
    }
    try:
        return msgspec.convert(given, WhatIfRequest)
    except msgspec.ValidationError as error:
        raise InputError(str(error)) from None


def whatif_answer(found: Foreseen, names: Mapping[str, str], host: str) -> WhatIfAnswer:
    options = []
    for number, fit in enumerate(found.fits[:MOST_NEIGHBOURS]):
        chosen = number == 0 and bool(found.slots)
        here = [one for one in found.tenants if one.gpu in fit.gpus] if chosen else []
        own = next((one for one in here if one.before is None), None)
        neighbours = tuple(
            Neighbour(job=one.job, name=names.get(one.job, one.job), before=one.before.mean, after=one.after.mean)
            for one in here
            if one.before is not None
        )
        words = [f"score {' / '.join(f'{part:.4g}' for part in fit.score)}"]
        words += ["no neighbour would be slowed"] if chosen and not neighbours else []
        options.append(
            Option(
                node=host,
                gpus=fit.gpus,
                speed=None if own is None else own.after.mean,
                neighbours=neighbours,
                text="; ".join(words),
            )
        )
    return WhatIfAnswer(
        options=tuple(options),
        verdicts=tuple(Verdict(place=host, fits=False, text=one.text) for one in found.refusals),
        would_fit=tuple(named(one.text, names) for one in found.suggestions),
        text=_sentence(found, found.notes),
    )


def _sentence(found: Foreseen, notes: Sequence[str]) -> str:
    if not found.slots:
        return f"It would wait: {found.waits or 'no reason is known'}"
    gpus = ", ".join(str(gpu) for slot in found.slots for gpu in slot.gpus) or "none"
    trial = "; its neighbours would be measured and the placement judged again" if found.trial else ""
    return ". ".join((f"It would start at once on GPU {gpus} by policy {found.policy}{trial}", *notes))
