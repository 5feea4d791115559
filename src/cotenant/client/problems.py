# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The errors of requests to the daemon, and of jobs and calls that did not end well."""

import msgspec

from cotenant.errors import CotenantError, InputError

MOST_SUGGESTED = 3
"""changes that are named if the daemon refuses a job"""


class NoDaemonError(CotenantError):
    """No daemon answers."""

    exit_code = 3


class NotFoundError(CotenantError):
    """The daemon has no such job or GPU."""

    exit_code = 4


class RefusedByDaemonError(InputError):
    """The daemon rejected the request."""


class NeverFitsError(RefusedByDaemonError):
    """The request is valid, but this machine can never satisfy it."""

    exit_code = 5


class ListedError(RefusedByDaemonError):
    """The daemon rejected several requests because of one of them."""

    def __init__(self, text: str, item: int, exit_code: int) -> None:
        super().__init__(text)
        self.item, self.exit_code = item, exit_code


class JobFailedError(CotenantError):
    """A job did not end with exit code 0."""


def raise_problem(status: int, content: bytes) -> None:
    """Raises the error that an answer of the daemon describes."""
    from cotenant.wire.protocol import Problem

    try:
        problem = msgspec.json.decode(content, type=Problem)
    except msgspec.MsgspecError:
        raise CotenantError(f"the daemon answered with HTTP status {status}") from None
    text = ": ".join([problem.error, "; ".join(problem.reasons.values())] if problem.reasons else [problem.error])
    if problem.suggestions:
        text += f"; it would run {', or '.join(problem.suggestions[:MOST_SUGGESTED])}"
    default = RefusedByDaemonError if status < 500 else CotenantError
    kind = {404: NotFoundError, 422: NeverFitsError}.get(status, default)
    raise kind(text) if problem.item is None else ListedError(text, problem.item, kind.exit_code)
