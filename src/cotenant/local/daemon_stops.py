# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The reasons for which the daemon itself stops a job that runs."""

from cotenant.core.placement.deciding import judge_again
from cotenant.errors import CotenantError
from cotenant.local.events import log_error
from cotenant.local.idle import IdleAction
from cotenant.local.lifecycle import ACTIVE, Stop, StopRequested
from cotenant.local.parts import Parts
from cotenant.local.transitions import Transitions
from cotenant.node.interference import Newcomer
from cotenant.node.mps import Crash


class DaemonStops:
    """Stops jobs that are idle, harm their neighbours, have to give memory back, or whose MPS has failed."""

    def __init__(self, parts: Parts, transitions: Transitions) -> None:
        self._transitions = transitions
        self._journal, self._events, self._tenants = parts.journal, parts.events, parts.tenants
        self._idle_action = parts.settings.idle.action
        self._learner, self._interference, self._backoff = parts.learner, parts.interference, parts.backoff

    def on_idle(self, job: str, text: str) -> None:
        """Reports a job that does not use its GPU; it is stopped only if the daemon was started with that option."""
        self._events.record("idle", job, text)
        record = self._journal.job(job)
        if self._idle_action is IdleAction.REPORT or record.state not in ACTIVE or record.stop is not None:
            return
        if self._idle_action is IdleAction.REQUEUE:
            self._transitions.stop(record, StopRequested(Stop.EVICT, text))
        else:
            why = f"it {text}, and this daemon ends such jobs (--idle-action end)"
            self._transitions.stop(record, StopRequested(Stop.CANCEL, why, by_daemon=True))

    def on_newcomer_measured(self, newcomer: Newcomer) -> None:
        """Asks the policy again about the newest tenant of a GPU, now that its effect is measured."""
        policy, cluster = self._learner.policy, self._tenants.cluster
        placement = self._tenants.placed[newcomer.job].placement
        reason = judge_again(policy, placement, cluster, newcomer.crowding).reason
        if reason is not None:
            self._interference.separate(newcomer)
            self.revert(newcomer.job, f"{newcomer.text}; {reason}")

    def revert(self, job: str, why: str) -> None:
        """If that fails the job stays: only speed is lost."""
        self._ask_to_leave(job, Stop.REVERT, why)

    def reclaim(self, job: str, why: str) -> None:
        """If that fails the job stays for now: it is asked again as long as another job waits for its memory."""
        self._backoff.stopped(job)
        self._ask_to_leave(job, Stop.EVICT, why, reclaims=True)

    def _ask_to_leave(self, job: str, stop: Stop, why: str, *, reclaims: bool = False) -> None:
        """Stops a job and queues it again."""
        try:
            record = self._journal.job(job)
            if record.state in ACTIVE and record.stop is None:
                self._transitions.stop(record, StopRequested(stop, f"asked to leave its GPU: {why}"), reclaims=reclaims)
        except CotenantError as error:
            log_error(f"{job} cannot be asked to leave its GPU: {error}")

    def on_mps_crash(self, crash: Crash, jobs: tuple[str, ...]) -> None:
        """Stops the tenants of a GPU whose MPS has failed: it must be empty to recover.

        They are queued again, but for a job whose own fault ended the others: it would do so again.
        """
        for job in jobs:
            record = self._journal.job(job)
            if record.state in ACTIVE and record.stop is None:
                caused = job in crash.culprits
                why = f"its own fault ended the other MPS clients: {crash.why}" if caused else crash.why
                stop = Stop.CANCEL if caused else Stop.EVICT
                self._transitions.stop(record, StopRequested(stop, why, by_daemon=True))
