# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs another program as if it had been started in our place: same terminal, same signals, its exit code is ours."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from cotenant.errors import CotenantError

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
FROM_THE_KERNEL = 128
"""what a signal of the terminal says of its sender"""


class NotStartedError(CotenantError):
    """The command is not there, or cannot be run."""


def run_in_foreground(argv: Sequence[str], env: Mapping[str, str], *, tick: Callable[[], None], every_s: float) -> int:
    """Waits for the program, calling `tick` all the while; returns its exit code, or 128 + the signal that ended it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # one who ignores it could not be told how a child ended
    waited = {signal.SIGCHLD, *PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = _spawn(argv, env, before)
        due = time.monotonic() + every_s
        while True:
            caught = signal.sigtimedwait(waited, max(0.0, due - time.monotonic()))
            if caught is not None and caught.si_signo != signal.SIGCHLD and not _has_got_it(caught):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, caught.si_signo)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if time.monotonic() >= due:
                tick()
                due = time.monotonic() + every_s
    finally:
        while signal.sigtimedwait(waited, 0) is not None:
            pass  # they were for the program, which has gone
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_got_it(caught: signal.struct_siginfo) -> bool:
    """Whether the program was told too: terminals tell all in the foreground, but only the first that they hang up."""
    only_us = caught.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
    return caught.si_code == FROM_THE_KERNEL and not only_us


def _spawn(argv: Sequence[str], env: Mapping[str, str], mask: Iterable[int]) -> int:
    try:
        return os.posix_spawnp(argv[0], list(argv), env, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)
    except (OSError, ValueError) as error:
        failed = NotStartedError(f"{argv[0][:200]}: cannot be run: {getattr(error, 'strerror', None) or error}")
        failed.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
        raise failed from None
