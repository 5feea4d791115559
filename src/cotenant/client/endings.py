# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How a job ended, as a sentence for people and as an exit code for programs."""

import signal

from cotenant.wire.job_views import ENDED, JobView
from cotenant.wire.text import duration_text

TIMED_OUT = 124
"""exit code of a job that was ended at its time limit, and of `wait --timeout`, as of timeout(1)"""


def ending(
    job: str,
    *,
    outcome: str | None,
    code: int | None,
    number: int | None,
    error: str | None,
    started: float | None,
    ended: float | None,
) -> str:
    """What happened to a job that has ended, with its numbers; `number` is the signal that ended it."""
    ran = "" if started is None or ended is None else f" after {duration_text(ended - started)}"
    because = "" if error is None else f": {error}"
    match outcome:
        case "exited" if code == 0:
            return f"{job} is done: it exited with code 0{ran}"
        case "exited":
            return f"{job} failed with exit code {code}{ran}"
        case "signalled":
            return f"{job} was ended by {_signal_name(number)}{ran}{'' if _is_plain(error) else because}"
        case "out-of-memory":
            return f"{job} ran out of memory{ran}{because}"
        case "time-limit":
            return f"{job} was ended at its time limit{ran}{because}"
        case "dependency-failed":
            return f"{job} did not run{because}"
        case "exec-failed":
            return f"{job} could not be started{because}"
        case "interrupted":
            return f"{job} was interrupted{ran}{because or ' by a restart of the machine'}"
        case "lost":
            return f"{job} is lost{ran}: its supervisor was killed, so its outcome is unknown"
        case "cancelled":
            return f"{job} was cancelled{ran or ' before it started'}{because}"
    return f"{job} has ended{ran}{because}"


def ending_of(job: JobView) -> str:
    return ending(
        job.id,
        outcome=job.outcome or job.state,
        code=job.code,
        number=job.signal,
        error=job.error,
        started=job.started,
        ended=job.ended,
    )


def exit_code(job: JobView) -> int:
    """The exit code as a shell reports it: the job's own, 128 + signal, 137 if out of memory, 130 if cancelled, 124 at
    its time limit, or if it has not ended."""
    if job.state not in ENDED:
        return TIMED_OUT
    if job.outcome == "exited" or job.outcome == "exec-failed":
        return job.code if job.code is not None else 1
    if job.outcome == "signalled" and job.signal is not None:
        return 128 + job.signal
    return {"out-of-memory": 137, "cancelled": 130, "time-limit": TIMED_OUT}.get(job.outcome or job.state, 1)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _is_plain(error: str | None) -> bool:
    """Whether an error names the signal and nothing else."""
    return error is None or (error.startswith("ended by ") and ";" not in error)
