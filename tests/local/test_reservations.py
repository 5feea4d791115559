# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Users reserve GPUs of a machine: the GPUs are theirs in time, no job is stopped for it, and a kill loses nothing."""

import time
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.local.account_settings import AccountRules, ReservationLimits
from cotenant.local.engine import Engine
from cotenant.local.identity import Caller
from cotenant.local.lifecycle import JobState
from cotenant.local.owners import Owner, own_account
from cotenant.local.refusals import ForbiddenError, UnknownError
from cotenant.local.reservations import PREFIX, Reservations
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.reservations import ReservationRequest
from tests.local.engines import engine_on, finish, in_loop

HOUR = 3600.0
ADA = Owner(4_000_001, 4_000_002, "ada", "staff")
BOB = Owner(4_000_003, 4_000_002, "bob", "staff")
BOBS = Caller(owner=BOB, groups=frozenset({"staff"}))
ROOT = Caller(owner=own_account().owner, groups=own_account().groups, administrator=True, superuser=True)
RESERVING = AccountRules(default_reservations=ReservationLimits(2))
"""with which all users may reserve"""


def submit(engine: Engine, owner: Owner, **fields: object) -> JobView:
    return engine.submit(JobRequest(command=("train",), cwd="/", **fields), owner)  # type: ignore[arg-type]


def state(engine: Engine, job: JobView) -> str:
    engine.schedule()
    return engine.queries.job(job.id).state


def later(hours: float = 1.0, **fields: object) -> ReservationRequest:
    return ReservationRequest(start=time.time() + hours * HOUR, length_s=HOUR, **fields)  # type: ignore[arg-type]


@in_loop
async def test_a_reserved_gpu_takes_only_jobs_that_end_in_time(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        made = engine.reserve(later(gpus=2), BOBS)
        assert (made.user, made.owner, made.gpus, made.state) == ("bob", "bob", (0, 1), "pending")
        endless, short = submit(engine, ADA), submit(engine, ADA, time_s=600.0)
        own = submit(engine, BOB)
        engine.schedule()
        states = [engine.queries.job(job.id).state for job in (endless, short, own)]
        assert states == [JobState.QUEUED, JobState.STARTING, JobState.STARTING]
        reason = engine.queries.job(endless.id).reason or ""
        assert "GPUs 0 1 are reserved for bob from" in reason
        assert f"({made.id}), and this job has no time limit" in reason
        assert "reserved for bob from" in engine.why(endless.id)["reason"]
        assert [one.id for gpu in engine.queries.gpus() for one in gpu.reservations] == [made.id, made.id]
        engine.cancel_reservation(made.id)
        finish(engine, short.id)
        assert state(engine, endless) == JobState.STARTING


@in_loop
async def test_a_reservation_survives_a_kill_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        first = engine.reserve(later(gpus=1), BOBS)
        engine.cancel_reservation(first.id)
        second = engine.reserve(later(on=("1",)), BOBS)
        assert second.id > first.id
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        engine.recover()
        assert engine.queries.reservations() == [second]
        jobs = [submit(engine, ADA), submit(engine, ADA)]
        engine.schedule()
        assert [engine.queries.job(job.id).gpus for job in jobs] == [(0,), ()]


@in_loop
async def test_jobs_without_a_time_limit_are_spared_or_make_it_impossible(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        endless = submit(engine, ADA)
        engine.schedule()
        assert engine.queries.job(endless.id).gpus == (0,)
        with pytest.raises(InputError, match=rf"1 GPU of 2 can be reserved then, not 2: {endless.id} on GPU 0 has no"):
            engine.reserve(later(gpus=2), BOBS)
        with pytest.raises(InputError, match=f"{endless.id} on GPU 0 has no time limit; reserve other GPUs"):
            engine.reserve(later(on=("0",)), BOBS)
        assert engine.reserve(later(gpus=1), BOBS).gpus == (1,), "the other GPU"
        evicting = later(on=("0",), evict=True)
        with pytest.raises(ForbiddenError, match="--evict"):
            engine.reserve(evicting, BOBS)
        made = engine.reserve(evicting, ROOT)
        assert f"{endless.id} is stopped and queued again" in made.notes[0]


@in_loop
async def test_a_job_with_a_time_limit_is_named_with_its_end(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        jobs = [submit(engine, ADA, time_s=600.0), submit(engine, ADA, time_s=1.5 * HOUR)]
        engine.schedule()
        with pytest.raises(InputError, match=f"{jobs[1].id} on GPU 1 may run until"):
            engine.reserve(later(gpus=2), BOBS)
        made = engine.reserve(later(), BOBS)
        assert made.gpus == (0,)
        assert f"{jobs[0].id} runs there now, and its time limit ends it by" in made.notes[0]


@in_loop
async def test_jobs_are_evicted_at_the_start_only_if_that_was_wished(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        job = submit(engine, ADA)
        engine.schedule()
        engine.reserve(ReservationRequest(length_s=HOUR, on=("0",), user=own_account().owner.user, evict=True), ROOT)
        engine.schedule()
        found = engine.queries.find(job.id)
        assert found.stop == "evict"
        assert "has reserved its GPU until" in (found.reason or "")
        finish(engine, job.id, outcome="cancelled")
        assert state(engine, job) == JobState.STARTING
        assert engine.queries.job(job.id).gpus == (1,)


@in_loop
async def test_a_job_for_a_reservation_waits_for_it(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        made = engine.reserve(later(on=("1",)), BOBS)
        job = submit(engine, BOB, reservation=made.id)
        assert state(engine, job) == JobState.QUEUED
        assert f"its reservation {made.id} starts at" in (engine.queries.job(job.id).reason or "")
        with pytest.raises(InputError, match="it is for bob"):
            submit(engine, ADA, reservation=made.id)
        with pytest.raises(InputError, match="it has 1 GPU, the job needs 2"):
            submit(engine, BOB, reservation=made.id, gpus=2)
        with pytest.raises(UnknownError, match="no reservation 'r-000099'"):
            submit(engine, BOB, reservation="r-000099")
        engine.cancel_reservation(made.id)
        assert state(engine, job) == JobState.STARTING, "it waits as others"


@in_loop
async def test_bad_reservations_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        for request, words in (
            (ReservationRequest(start=time.time() - HOUR, length_s=HOUR), "is in the past"),
            (ReservationRequest(length_s=0.0), "at least 60 s"),
            (later(24 * 400), "within a year"),
            (later(gpus=3), "2 GPUs of 2 can be reserved then, not 3"),
            (later(on=("7",)), "no such GPU"),
            (later(user="nobody-has-this-name"), "no user"),
            (later(group="nobody-has-this-group"), "no group"),
            (later(user="a", group="b"), "not both"),
        ):
            with pytest.raises(InputError, match=words):
                engine.reserve(request, ROOT)
        engine.reserve(later(on=("0",)), ROOT)
        with pytest.raises(InputError, match=r"GPU 0 is reserved for .* from .* to .* \(r-000001\)"):
            engine.reserve(later(1.5, on=("0",)), ROOT)


@in_loop
async def test_users_reserve_within_their_limits_and_for_themselves(tmp_path: Path) -> None:
    rules = AccountRules(reservations={"bob": ReservationLimits(1, 2.0, 1.0)})
    with engine_on(tmp_path, accounts=rules) as (engine, _):
        for request, words in (
            (ReservationRequest(length_s=3 * HOUR), "at most 2 h"),
            (later(gpus=2), "at most 1 GPUs"),
            (later(24 * 8), "at most 7 days ahead"),
            (later(user="root"), "only administrators reserve GPUs for others"),
            (later(group="root"), "not in the group root"),
        ):
            with pytest.raises(ForbiddenError, match=words):
                engine.reserve(request, BOBS)
        engine.reserve(later(), BOBS)
        with pytest.raises(ForbiddenError, match="has 1 of at most 1 reservation"):
            engine.reserve(later(5), BOBS)
        assert engine.reserve(ReservationRequest(start=time.time() + 9 * HOUR, length_s=99 * HOUR), ROOT).id


@in_loop
async def test_users_reserve_nothing_unless_the_accounts_file_allows_it(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        with pytest.raises(ForbiddenError, match="bob may not reserve GPUs: no `reservations` in the accounts file"):
            engine.reserve(later(), BOBS)
        assert engine.reserve(later(), ROOT).gpus


@in_loop
async def test_a_reservation_of_a_group_is_for_its_members(tmp_path: Path) -> None:
    mine = own_account()
    with engine_on(tmp_path, accounts=RESERVING) as (engine, _):
        engine.reserve(later(gpus=2, group=mine.owner.group), ROOT)
        own, other = submit(engine, mine.owner), submit(engine, ADA)
        engine.schedule()
        states = [engine.queries.job(job.id).state for job in (own, other)]
        assert states == [JobState.STARTING, JobState.QUEUED]
        assert f"reserved for group {mine.owner.group} from" in (engine.queries.job(other.id).reason or "")


@in_loop
async def test_reservations_end_and_one_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    with engine_on(tmp_path, accounts=RESERVING) as (engine, journal):
        made = engine.reserve(ReservationRequest(length_s=60.0), BOBS)
        journal.remember(f"{PREFIX}r-000077", "{")
        now = [time.time()]
        read = Reservations(journal, lambda: now[0])
        assert [one.id for one in read.views(engine.parts.devices.machine)] == [made.id]
        assert read.next_change() == made.end
        now[0] += 61
        assert read.views(engine.parts.devices.machine) == []
        assert read.next_change() is None
        read.expire()
        assert journal.recall(PREFIX + made.id) is None
