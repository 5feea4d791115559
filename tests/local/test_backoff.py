# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job that is stopped for others again and again stays out of the queue for longer and longer."""

from cotenant.local.backoff import FIRST_S, LONGEST_S, Backoff


def stop(backoff: Backoff, job: str = "j") -> float:
    backoff.stopped(job)
    backoff.stopped(job)  # it was asked again, since it had not left yet
    return backoff.begin(job)


def test_pauses_double_up_to_a_bound() -> None:
    backoff = Backoff()
    assert [stop(backoff) for _ in range(5)] == [0, FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert max(stop(backoff) for _ in range(100)) == LONGEST_S


def test_a_job_that_ended_otherwise_does_not_wait() -> None:
    backoff = Backoff()
    stop(backoff)
    stop(backoff)
    assert backoff.begin("j") == 0.0
    assert stop(backoff, "another") == 0.0


def test_a_waiting_job_says_why_until_it_is_queued_or_gone() -> None:
    backoff = Backoff()
    stop(backoff)
    assert not backoff.end("j")
    stop(backoff)
    assert backoff.waiting["j"].startswith("waits 5 s: it was stopped 2 times because others needed memory")
    assert backoff.end("j")
    assert not backoff.end("j")
    backoff.forget("j")
    assert stop(backoff) == 0.0
