# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of jobs: what their elements are, that they are accepted together, and that their bound holds."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from cotenant.errors import InputError
from cotenant.local.engine import Engine
from cotenant.local.lifecycle import JobState
from cotenant.wire.arrays import MOST_ELEMENTS, Array, index_of, item_of, parse_array, size_of, values_of
from cotenant.wire.job_checks import decode_request
from cotenant.wire.job_requests import JobRequest, element_of, workload_name
from cotenant.wire.job_views import JobView
from tests.local.engines import engine_on, finish, in_loop, with_engine


def request(array: Array | None, *words: str, **more: object) -> JobRequest:
    fields = {"memory": "100MiB", "name": "sweep", **more}
    return JobRequest(command=("train", *words), cwd="/", array=array, **fields)  # type: ignore[arg-type]


def submit(engine: Engine, text: str, **more: object) -> JobView:
    return engine.submit(request(parse_array(text), "{}", **more))


def states(engine: Engine, array: str = "a-000001") -> dict[str, int]:
    engine.schedule()
    return engine.queries.job(array).elements


# Elements


@pytest.mark.parametrize(
    ("text", "indexes", "bound"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("4", [0, 1, 2, 3], None),
        ("7,1-3%2", [1, 2, 3, 7], 2),
        ("0-100:50", [0, 50, 100], None),
        ("5-5", [5], None),
        ("1-3,2-4", [1, 2, 3, 4], None),
    ],
)
def test_indexes_are_lists_of_ranges(text: str, indexes: list[int], bound: int | None) -> None:
    array = parse_array(text)
    assert array is not None
    assert [index_of(array, item) for item in range(size_of(array))] == indexes
    assert array.at_most == bound


def test_a_grid_has_every_combination_once() -> None:
    array = parse_array("%2", ("lr=0.1,0.01", "seed=1-3"))
    assert array is not None
    found = [values_of(array, item) for item in range(size_of(array))]
    assert found[:4] == [
        {"lr": "0.1", "seed": "1"},
        {"lr": "0.1", "seed": "2"},
        {"lr": "0.1", "seed": "3"},
        {"lr": "0.01", "seed": "1"},
    ]
    assert (len(found), len({tuple(one.items()) for one in found}), array.at_most) == (6, 6, 2)


def test_words_are_filled_one_by_one_and_other_braces_stay() -> None:
    array = parse_array(None, ("lr=$(reboot),a b", "n=1"))
    whole = request(array, "--lr={lr}", "{}", '{"lr": {}}', "{other}", "{ lr }", env={"lr": "old", "KEPT": "1"})
    first, second = element_of(whole, 0), element_of(whole, 1)
    assert first.command == ("train", "--lr=$(reboot)", "0", '{"lr": 0}', "{other}", "{ lr }")
    assert second.command[1] == "--lr=a b"
    assert second.env == {"lr": "a b", "n": "1", "KEPT": "1", "COTENANT_ARRAY_INDEX": "1"}
    assert workload_name(first) == workload_name(second)
    assert first.array is None


@pytest.mark.parametrize(
    ("text", "grid", "sentence"),
    [
        ("0-999999", (), "--array 0-999999: has 1,000,000 elements; an array has at most 10,000"),
        ("1000000", (), "--array 0-999999: has 1,000,000 elements"),
        (None, ("a=1-1000", "b=1-1000"), "--grid: has 1,000,000 combinations; an array has at most 10,000 elements"),
        (None, ("a=1-99999",), "has 99,999 elements"),
        ("3-1", (), "expected indexes such as 0-31"),
        ("0", (), "expected indexes such as 0-31"),
        ("0-9999999999", (), "expected indexes such as 0-31"),
        ("1-2:0", (), "expected indexes such as 0-31"),
        ("%4", (), "expected indexes such as 0-31"),
        ("0-3%0", (), "expected a number from 1 to 10,000 after %"),
        ("0-3", ("lr=1",), "either indexes (--array 0-31) or values"),
        (None, ("lr",), "--grid lr: expected a name and values"),
        (None, ("COTENANT_RUN=1",), "without COTENANT_"),
    ],
)
def test_what_is_no_array_is_refused(text: str | None, grid: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_array(text, grid)
    assert sentence in str(refused.value)


def test_the_daemon_checks_arrays_itself() -> None:
    with pytest.raises(InputError, match="at most 10,000"):
        decode_request(b'{"command": ["x"], "cwd": "/", "array": {"indexes": "0-10000"}}')


@given(some.lists(some.tuples(some.integers(0, 99), some.integers(0, 20)), min_size=1, max_size=5))
def test_each_index_leads_back_to_its_element(parts: list[tuple[int, int]]) -> None:
    array = Array(indexes=",".join(f"{low}-{low + more}" for low, more in parts))
    expected = sorted({index for low, more in parts for index in range(low, low + more + 1)})
    assert [item_of(array, index) for index in expected] == list(range(size_of(array)))
    assert item_of(array, 1000) is None


# In the daemon


@with_engine
def test_an_array_is_one_row_and_its_elements_are_jobs(engine: Engine) -> None:
    array = submit(engine, "3-5")
    assert (array.id, array.name, array.state, array.elements) == ("a-000001", "sweep", "queued", {"queued": 3})
    single = engine.submit(request(None, name="single")).id
    assert [job.id for job in engine.queries.jobs_and_arrays((), 10)] == ["a-000001", single]
    elements = engine.queries.elements("sweep", (), 10)
    assert [(job.name, job.index, job.array) for job in elements] == [
        (f"sweep[{index}]", index, "a-000001") for index in (3, 4, 5)
    ]
    found = engine.queries.job("a-000001_4")
    assert found.request is not None
    assert found.request.command == ("train", "4")
    with pytest.raises(InputError, match="sweep is an array: name one of its elements, such as a-000001_0"):
        engine.retry("sweep")


@with_engine
def test_an_array_ends_with_its_last_element(engine: Engine) -> None:
    submit(engine, "0-2")
    engine.schedule()
    finish(engine, "a-000001_0")
    finish(engine, "a-000001_1", code=4)
    assert engine.queries.job("sweep").state == "running"
    finish(engine, "a-000001_2")
    ended = engine.queries.job("sweep")
    assert (ended.state, ended.outcome, ended.code, ended.elements) == (
        "finished", "exited", 1, {"done": 2, "failed": 1},
    )  # fmt: skip
    assert ended.error == "1 of 3 elements did not end well"
    assert [job.id for job in engine.queries.jobs_and_arrays(("failed",), 10)] == ["a-000001"]
    assert engine.queries.jobs_and_arrays(("lost",), 10) == []


@in_loop
async def test_the_bound_of_an_array_holds_across_restarts(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, _):
        submit(engine, "0-9%2")
        assert states(engine) == {"starting": 2, "queued": 8}
        waiting = engine.queries.job("a-000001_5")
        assert waiting.reason == "only 2 elements of its array may run at a time"
        assert engine.why("a-000001_5")["outside"]
    with engine_on(tmp_path) as (engine, _):
        engine.recover()
        for ended in range(9):
            assert states(engine) == {
                state: count
                for state, count in (("starting", min(2, 10 - ended)), ("queued", max(0, 8 - ended)), ("done", ended))
                if count
            }
            finish(engine, f"a-000001_{ended}")
        assert states(engine) == {"starting": 1, "done": 9}


@with_engine
def test_a_held_element_lets_another_one_run(engine: Engine) -> None:
    submit(engine, "0-3%1")
    engine.hold("a-000001_0")
    assert states(engine) == {"starting": 1, "queued": 3}
    engine.release("a-000001_0")
    finish(engine, "a-000001_1")
    assert states(engine) == {"starting": 1, "queued": 2, "done": 1}
    for index in (2, 3, 0):
        running = [job.index for job in engine.queries.elements("sweep", ("starting",), 10)]
        assert running == [index]
        finish(engine, f"a-000001_{index}")
        engine.schedule()


@with_engine
def test_an_array_is_held_released_and_cancelled_as_a_whole(engine: Engine) -> None:
    submit(engine, "0-4%2")
    engine.schedule()
    engine.hold("sweep")
    finish(engine, "a-000001_0")
    assert states(engine) == {"starting": 1, "queued": 3, "done": 1}
    engine.release("sweep")
    assert states(engine) == {"starting": 2, "queued": 2, "done": 1}
    engine.cancel("sweep")
    assert states(engine) == {"starting": 2, "done": 1, "cancelled": 2}
    assert engine.queries.queue_order() == []
    assert all(engine.queries.find(f"a-000001_{index}").stop == "cancel" for index in (1, 2))


@with_engine
def test_a_job_waits_for_all_elements_of_an_array(engine: Engine) -> None:
    submit(engine, "0-1")
    after = engine.submit(request(None, name="after", after=("sweep",))).id
    never = submit(engine, "0-2", name="never", after=("sweep:failed",)).id
    engine.schedule()
    finish(engine, "a-000001_0")
    engine.schedule()
    assert engine.queries.job(after).state == JobState.QUEUED
    finish(engine, "a-000001_1")
    engine.schedule()
    assert engine.queries.job(after).state == JobState.STARTING
    assert engine.queries.job(never).elements == {"cancelled": 3}


@in_loop
async def test_the_largest_array_is_stored_once_and_found_again(tmp_path: Path) -> None:
    with engine_on(tmp_path) as (engine, journal):
        submit(engine, f"0-{MOST_ELEMENTS - 1}%1", env={"BIG": "x" * 10_000})
        assert sum(states(engine).values()) == MOST_ELEMENTS
        assert (tmp_path / "journal.db-wal").stat().st_size + (tmp_path / "journal.db").stat().st_size < 16 << 20
        assert Counter(job.item for job in journal.elements(1)) == Counter(range(MOST_ELEMENTS))
