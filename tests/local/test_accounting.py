# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Users share the GPUs of a machine fairly and within their limits, also after a kill of the daemon."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cotenant.core.cluster import Cluster
from cotenant.core.queueing.fair import FairSettings
from cotenant.core.queueing.limits import Limits
from cotenant.core.units import MiB, Seconds
from cotenant.errors import InputError
from cotenant.local.account_settings import NO_RULES, AccountRules, read_accounts
from cotenant.local.accounting import Accounting
from cotenant.local.engine import Engine
from cotenant.local.journal import Journal
from cotenant.local.lifecycle import JobState
from cotenant.local.owners import Owner, own_account
from cotenant.local.tenants import PlacedJob
from cotenant.wire.job_requests import JobRequest
from tests.local.engines import TWO_CARDS, engine_on, finish, in_loop, placed

ADA = Owner(4_000_001, 4_000_002, "ada", "staff")
BOB = Owner(4_000_003, 4_000_002, "bob", "staff")
WHOLE = JobRequest(command=("train",), cwd="/")
HOUR = 3600.0


@dataclass
class Time:
    """A clock of the test."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def accounting(folder: Path, clock: Time, rules: AccountRules = NO_RULES) -> Iterator[Accounting]:
    with Journal.open(folder / "journal.db") as journal:
        yield Accounting(journal, rules, 2, clock)


def run_of(owner: Owner, name: str, started: float) -> PlacedJob:
    made = placed(name, WHOLE, started=started)
    job = replace(made.placement.job, account=(owner.user,))
    return replace(made, placement=replace(made.placement, job=job))


def hours(book: Accounting, clock: Time, user: str = "ada") -> tuple[float, float]:
    """With decay, and of the week."""
    view = next(one for one in book.views() if one.account == user)
    return round(book.shares.used((user,), Seconds(clock.now)) / HOUR, 2), round(view.week_gpu_hours, 2)


CLUSTER = Cluster.of([TWO_CARDS])


def test_use_survives_a_kill_also_of_jobs_that_still_run(tmp_path: Path) -> None:
    clock = Time()
    with accounting(tmp_path, clock) as book:
        book.add(run_of(ADA, "long", clock.now), CLUSTER)
        book.add(run_of(ADA, "short", clock.now), CLUSTER)
        clock.now += HOUR
        book.end("short", clock.now)
        clock.now += HOUR
        assert hours(book, clock) == (2.99, 3.0)
    # The daemon was killed. It starts again an hour later, and the long job still runs.
    clock.now += HOUR
    with accounting(tmp_path, clock) as book:
        book.add(run_of(ADA, "long", clock.now - 3 * HOUR), CLUSTER)
        assert hours(book, clock) == (3.97, 4.0)
        clock.now += HOUR
        book.end("long", clock.now)
        assert hours(book, clock) == (4.95, 5.0)


@pytest.mark.parametrize(("ended_h", "week"), [(1.0, 1.0), (0.0, 0.0)])
def test_a_run_that_ended_while_no_daemon_ran_counts_until_its_end(tmp_path: Path, ended_h: float, week: float) -> None:
    clock = Time()
    began = clock.now
    clock.now += 50 * HOUR
    with accounting(tmp_path, clock) as book:
        book.add(run_of(ADA, "j", began), CLUSTER)
        book.end("j", began + ended_h * HOUR)
        assert hours(book, clock)[1] == week


def test_an_end_that_is_reported_twice_counts_once(tmp_path: Path) -> None:
    clock = Time()
    with accounting(tmp_path, clock) as book:
        book.add(run_of(ADA, "j", clock.now), CLUSTER)
        clock.now += HOUR
        book.end("j", None)
        book.end("j", None)
        assert hours(book, clock)[1] == 1.0


def test_a_damaged_row_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.note("use/ada", "{]")
        journal.note("use/bob", '{"version":1,"at":1.0,"used":3600.0}')
        assert [one.account for one in Accounting(journal, NO_RULES, 2).views()] == ["bob"]
    assert "the stored use of 'ada' cannot be read" in capsys.readouterr().err


def submit(engine: Engine, owner: Owner, count: int = 1, request: JobRequest = WHOLE) -> list[str]:
    return [engine.submit(request, owner).id for _ in range(count)]


def started(engine: Engine, jobs: list[str]) -> int:
    return sum(engine.queries.job(job).state == JobState.STARTING for job in jobs)


def test_a_pass_divides_the_gpus_among_users_and_why_has_the_shares(tmp_path: Path) -> None:
    async def test() -> None:
        with engine_on(tmp_path, queue="fair") as (engine, _):
            ada, bob = submit(engine, ADA, 3), submit(engine, BOB, 2)
            engine.schedule()
            assert (started(engine, ada), started(engine, bob)) == (1, 1)
            why = engine.why(ada[1])
            assert why["shares"] == "ada has 1 GPU; its fair share is 1 (weight 1)"
            assert engine.why(ada[2])["ahead"] == 2, "one of ada, one of bob"
            order = engine.queries.queue_order()
            assert (set(order[:2]), order[2]) == ({ada[1], bob[1]}, ada[2])
            assert [(one.account, one.gpus, one.queued) for one in engine.queries.accounts()] == [
                ("ada", 1.0, 2),
                ("bob", 1.0, 1),
            ]

    asyncio.run(test())


def test_shares_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        with engine_on(tmp_path, queue="fair") as (engine, _):
            submit(engine, ADA, 2)
            engine.schedule()
        with engine_on(tmp_path, queue="fair") as (engine, _):
            engine.recover()
            job = submit(engine, BOB)[0]
            assert engine.why(job)["shares"] == "bob has 0 GPUs; its fair share is 1 (weight 1)"
            assert {one.account: one.running for one in engine.queries.accounts()} == {"ada": 2, "bob": 0}

    asyncio.run(test())


def test_limits_let_jobs_wait_with_the_numbers_and_refuse_what_can_never_run(tmp_path: Path) -> None:
    async def test() -> None:
        rules = AccountRules(user_limits={"ada": Limits(gpus=1, queued=2)}, default=Limits(running=1))
        with engine_on(tmp_path, accounts=rules) as (engine, _):
            ada = submit(engine, ADA, 2)
            with pytest.raises(InputError, match="ada has 2 of at most 2 queued jobs"):
                submit(engine, ADA)
            with pytest.raises(InputError, match="ada has 0 of at most 1 GPU, and the job needs 2"):
                submit(engine, ADA, request=JobRequest(command=("train",), cwd="/", gpus=2))
            engine.schedule()
            assert started(engine, ada) == 1
            assert engine.queries.job(ada[1]).reason == "ada has 1 of at most 1 GPU, and the job needs 1"
            half = JobRequest(command=("train",), cwd="/", memory="100MiB", compute="10%")
            bob = submit(engine, BOB, 2, half)
            engine.schedule()
            assert started(engine, bob) == 1
            assert engine.queries.job(bob[1]).reason == "bob has 1 of at most 1 running job"
            assert engine.why(bob[1])["reason"] == "bob has 1 of at most 1 running job"

    asyncio.run(test())


def test_weights_and_groups_of_the_file(tmp_path: Path) -> None:
    own = own_account()
    file = tmp_path / "accounts.yaml"
    file.write_text(
        f"""
        version: 1
        half-life-days: 2
        default: {{gpus: 1}}
        groups:
          lab: {{weight: 2, gpus: 6, users: [{own.owner.user}]}}
          {own.owner.group}: {{}}
        users:
          {own.owner.user}: {{weight: 3, memory: 8GiB, running: 4, queued: 100, gpu-hours-per-week: 20.5}}
        """
    )
    rules = read_accounts(file)
    account = ("lab", own.owner.user)
    assert rules.account(own.owner.user, own.groups) == account, "the first group that has the user"
    assert rules.account("somebody", {own.owner.group}) == (own.owner.group, "somebody")
    assert rules.account("somebody", {"nothing"}) == ("others", "somebody")
    assert rules.limits(("lab",)) == Limits(gpus=6)
    assert rules.limits(account) == Limits(memory=MiB(8192), running=4, queued=100, gpu_hours=20.5)
    assert rules.limits(("others", "somebody")) == Limits(gpus=1)
    assert rules.fair.half_life == Seconds(2 * 86_400.0)
    assert dict(rules.fair.weights) == {("lab",): 2, (own.owner.group,): 1, account: 3}


def test_an_empty_file_has_no_rules(tmp_path: Path) -> None:
    file = tmp_path / "accounts.yaml"
    file.write_text("")
    assert read_accounts(file) == AccountRules(fair=FairSettings())
    assert not read_accounts(file).limited


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("users: {no-such-user: {}}", "no user 'no-such-user' on this machine"),
        ("groups: {no-such-group: {}}", "no group 'no-such-group' on this machine"),
        ("groups: {lab: {users: [no-such-user]}}", "no user 'no-such-user'"),
        ("default: {memory: much}", "memory: "),
        ("default: {gpu: 4}", "default: unknown name 'gpu'; did you mean 'gpus'?"),
        ("default: {gpus: -1}", "gpus"),
        ("groups: {others: {weight: 0}}", "weight"),
        ("version: 7", "version 7 is newer than this cotenant"),
        ("a: [", "accounts.yaml"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_fault(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "accounts.yaml"
    file.write_text(content)
    with pytest.raises(InputError, match=r"accounts\.yaml: ") as found:
        read_accounts(file)
    assert problem in str(found.value)


@in_loop
async def test_a_changed_file_of_accounts_counts_for_jobs_that_run_and_wait(tmp_path: Path) -> None:
    """Its groups, limits and weights; and nothing changes if the file is not valid."""
    path = tmp_path / "accounts.yaml"
    path.write_text("version: 1\n")
    with engine_on(tmp_path, queue="fair", accounts=read_accounts(path), accounts_file=path) as (engine, _):
        first = engine.submit(WHOLE, ADA).id
        engine.schedule()
        others = [engine.submit(WHOLE, owner).id for owner in (ADA, ADA, BOB)]
        name = own_account().owner.user
        path.write_text(f"version: 1\ngroups: {{vision: {{users: [{name}], weight: 2}}}}\ndefault: {{gpus: 1}}\n")
        views = {view.account: view for view in engine.reload_accounts()}
        assert (views["others/ada"].gpus, views["others/ada"].most_gpus) == (1.0, 1.0)
        assert engine.parts.tenants.placed[first].placement.job.account == ("others", "ada")
        assert {job.account for job in engine.parts.queue.jobs.values()} == {("others", "ada"), ("others", "bob")}
        path.write_text("version: 1\nusers: {nobody-has-this-name: {}}\n")
        with pytest.raises(InputError, match="no user 'nobody-has-this-name'"):
            engine.reload_accounts()
        engine.schedule()
        states = [engine.queries.job(job).state for job in others]
        assert states == [JobState.QUEUED, JobState.QUEUED, JobState.STARTING], "ada has reached the limit"
        assert "ada has 1 of at most 1 GPU" in (engine.queries.job(others[0]).reason or "")
        path.write_text("version: 1\n")
        engine.reload_accounts()
        finish(engine, first)
        engine.schedule()
        assert engine.queries.job(others[0]).state == JobState.STARTING
        assert [view.running for view in engine.queries.accounts() if view.account == "ada"] == [1]


@in_loop
async def test_a_daemon_without_a_file_of_accounts_reads_none(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _), pytest.raises(InputError, match="start it with --accounts"):
        engine.reload_accounts()


def test_use_is_not_forgotten_when_rules_are_replaced(tmp_path: Path) -> None:
    clock = Time()
    with accounting(tmp_path, clock) as book:
        job = run_of(ADA, "j-000001", clock.now)
        book.add(job, Cluster.of([TWO_CARDS]))
        clock.now += HOUR
        before = hours(book, clock)
        book.replace_rules(AccountRules(user_limits={"ada": Limits(gpus=1)}))
        book.add(job, Cluster.of([TWO_CARDS]))
        assert hours(book, clock) == before == (1.0, 1.0)
        clock.now += HOUR
        book.end(job.id, None)
        assert hours(book, clock)[1] == 2.0


def test_the_highest_priority_of_a_user_comes_from_the_file(tmp_path: Path) -> None:
    name = own_account().owner.user
    path = tmp_path / "accounts.yaml"
    path.write_text(f"version: 1\ndefault: {{priority: -5}}\nusers: {{{name}: {{priority: 10}}}}\n")
    rules = read_accounts(path)
    assert (rules.most_priority(name), rules.most_priority("bob"), NO_RULES.most_priority("bob")) == (10, -5, 0)
    path.write_text("version: 1\ngroups: {others: {priority: 1}}\n")
    with pytest.raises(InputError, match="priority"):
        read_accounts(path)
