# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a program in the foreground: it has our terminal, gets our signals, and its exit code becomes ours."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from cotenant.errors import CotenantError

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""reset to their defaults in the program, which must not inherit Python's setting"""
FROM_THE_KERNEL = 128
"""`si_code` of a signal that the kernel sent, such as Ctrl-C in a terminal (SI_KERNEL)"""


class NotStartedError(CotenantError):
    """The command was not found or cannot be executed."""


def run_in_foreground(argv: Sequence[str], env: Mapping[str, str], *, tick: Callable[[], None], every_s: float) -> int:
    """Runs the program and calls `tick` every `every_s` seconds until it ends; returns its exit code, or 128 +
    signal."""
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # if it were ignored, the kernel would discard the exit status of the child
    waited = {signal.SIGCHLD, *FORWARDED}
    # Signals are blocked and read with sigtimedwait, so none can arrive between two steps of the loop and be missed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = _spawn(argv, env, before)
        due = time.monotonic() + every_s
        while True:
            caught = signal.sigtimedwait(waited, max(0.0, due - time.monotonic()))
            if caught is not None and caught.si_signo != signal.SIGCHLD and not _was_sent_to_program(caught):
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
            pass  # pending signals were meant for the program, which has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _was_sent_to_program(caught: signal.struct_siginfo) -> bool:
    """Whether the kernel sent this signal to the program too. A terminal signals its whole foreground group, except
    that SIGHUP goes to the session leader alone."""
    only_us = caught.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
    return caught.si_code == FROM_THE_KERNEL and not only_us


def _spawn(argv: Sequence[str], env: Mapping[str, str], mask: Iterable[int]) -> int:
    try:
        return os.posix_spawnp(argv[0], list(argv), env, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)
    except (OSError, ValueError) as error:
        failed = NotStartedError(f"{argv[0][:200]}: cannot be executed: {getattr(error, 'strerror', None) or error}")
        failed.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
        raise failed from None
