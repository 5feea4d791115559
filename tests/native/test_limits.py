# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The library follows its limits file as it changes, and a file that is no good changes nothing but a counter."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.core.units import MilliGpu
from cotenant.node.limits import ComputePolicy, GpuLimit, Limits, Priority, limits_text, write_read_only
from tests.native import kit
from tests.native.account import Account, account
from tests.native.kit import MIB, gpu

UNLIMITED = (1 << 64) - 1
HEAD = "cotenant-limits 2\n"
REMARK = "# a remark\n"
NO_LIMITS = (UNLIMITED, 0, 1000, False, "conserving", "high")
POLICIES = ["conserving", "always", "never"]
PRIORITIES = ["high", "low"]

Shown = tuple[int, int, int, bool, str, str]


def shown(process: Account, gpu: int = 0) -> Shown:
    """What is in force: memory, host, compute, paused, policy, priority."""
    memory, host, rest = process.ask("limits", gpu)
    return memory, host, rest >> 32, bool(rest >> 16 & 1), POLICIES[rest >> 8 & 255], PRIORITIES[rest & 255]


def put(place: kit.Slice, text: str | bytes) -> None:
    """In place of the file, whatever is in it."""
    place.limits.unlink(missing_ok=True)
    place.limits.write_bytes(text if isinstance(text, bytes) else text.encode())


def line(settings: str, uuid: str = gpu()) -> str:
    return f"{HEAD}gpu {uuid} {settings}\nend\n"


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "limits_bad"),
    "without its end": (f"{HEAD}gpu {gpu()} memory=1\n", "limits_bad"),
    "cut off in its last word": (f"{HEAD}gpu {gpu()} memory=1\nend", "limits_bad"),
    "cut off in a number": (f"{HEAD}gpu {gpu()} memory=1", "limits_bad"),
    "its first line only": ("cotenant-limits 2", "limits_bad"),
    "huge": (f"{HEAD}{REMARK * 8000}end\n", "limits_bad"),
    "of another version": ("cotenant-limits 3\nend\n", "limits_version"),
    "of a version that is no number": ("cotenant-limits two\nend\n", "limits_bad"),
    "of a version beyond all numbers": (f"cotenant-limits {'9' * 30}\nend\n", "limits_bad"),
    "something else": ("#!/bin/sh\necho end\nend\n", "limits_bad"),
    "zeros": (b"\0" * 4096, "limits_bad"),
    "zeros within": (f"{HEAD}gpu a\0b memory=1\nend\n".encode(), "limits_bad"),
    "a number that is none": (line("memory=1G"), "limits_bad"),
    "a negative number": (line("memory=-1"), "limits_bad"),
    "an empty number": (line("memory="), "limits_bad"),
    "a number too large": (line("memory=18446744073709551616"), "limits_bad"),
    "the number that means none": (line("memory=18446744073709551615"), "limits_bad"),
    "no share at all": (line("compute=0"), "limits_bad"),
    "more than the whole": (line("compute=1001"), "limits_bad"),
    "paused by half": (line("paused=2"), "limits_bad"),
    "an unknown policy": (f"{HEAD}policy sometimes\nend\n", "limits_bad"),
    "an unknown priority": (f"{HEAD}priority middle\nend\n", "limits_bad"),
    "a relative region": (f"{HEAD}region usage\nend\n", "limits_bad"),
    "an endless region": (f"{HEAD}region /{'x' * 2000}\nend\n", "limits_bad"),
    "a GPU twice": (f"{HEAD}gpu a memory=1\ngpu a memory=2\nend\n", "limits_bad"),
    "a GPU without a name": (f"{HEAD}gpu \nend\n", "limits_bad"),
    "a GPU with an endless name": (line("memory=1", uuid="x" * 48), "limits_bad"),
    "too many GPUs": (HEAD + "".join(f"gpu {n} memory=1\n" for n in range(17)) + "end\n", "limits_bad"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_from_the_start_is_a_fault_and_no_limit(what: str, place: kit.Slice) -> None:
    text, fault = BAD[what]
    put(place, text)
    with account(place) as one:
        assert shown(one) == NO_LIMITS
        assert one.faults(fault) == 1
        assert one.reserve(1)


@pytest.fixture(scope="module")
def follower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[kit.Slice, Account]]:
    """One process that lives through many files."""
    place = kit.Slice(tmp_path_factory.mktemp("followed")).write(memory=MIB)
    with account(place) as one:
        one.reserve(0)
        yield place, one


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_later_leaves_the_last_good_limits(what: str, follower: tuple[kit.Slice, Account]) -> None:
    place, one = follower
    place.write(memory=7 * MIB, compute=300)
    one.refresh()
    text, fault = BAD[what]
    before = one.faults(fault)
    put(place, text)
    for _ in range(2):  # looked at twice, counted once
        one.refresh()
        assert shown(one)[:3] == (7 * MIB, 0, 300)
        assert one.faults(fault) == before + 1


@pytest.mark.parametrize("kind", ["missing", "a folder", "a pipe"])
def test_what_is_no_file_leaves_the_last_good_limits(kind: str, place: kit.Slice) -> None:
    place.write(memory=MIB)
    with account(place) as one:
        assert one.reserve(MIB)
        place.limits.unlink()
        if kind == "a folder":
            place.limits.mkdir()
        if kind == "a pipe":
            os.mkfifo(place.limits)
        one.refresh()
        one.refresh()
        assert shown(one)[0] == MIB
        assert not one.reserve(1)
        assert one.faults("limits_missing" if kind == "missing" else "limits_bad") == 1


def test_a_granted_limit_that_cannot_be_read_allows_nothing_more(place: kit.Slice) -> None:
    """A process without free descriptors cannot open the file: its grant may have been lowered."""

    def granted(bytes_: int) -> None:
        limit = GpuLimit(kit.gpu(), bytes_, request_bytes=MIB, most_bytes=4 * MIB)
        write_read_only(place.limits, limits_text(Limits(gpus=(limit,), region=place.usage)))

    place.write()
    granted(4 * MIB)
    with account(place) as one:
        assert one.reserve(MIB)
        before = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (0, before[1]))
        granted(2 * MIB)
        assert not one.reserve(2 * MIB)
        assert not one.reserve(MIB)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, before)
        assert one.reserve(MIB)
        assert not one.reserve(MIB)
        assert one.faults("limits_missing") == 1


def test_a_file_that_comes_late_is_followed_and_its_region_used(place: kit.Slice) -> None:
    with account(place) as one:
        assert one.call("start") == 1
        assert one.faults("limits_missing") == 1
        assert one.reserve(MIB)
        place.write(memory=2 * MIB)
        one.refresh()
        assert place.use().memory_bytes == MIB
        assert one.reserve(MIB)
        assert not one.reserve(1)


def test_limits_grow_at_once_and_shrink_without_harm(place: kit.Slice) -> None:
    place.write(memory=MIB)
    with account(place) as one:
        assert one.reserve(MIB)
        assert not one.reserve(MIB)
        place.write(memory=2 * MIB)
        one.refresh()
        assert one.reserve(MIB)
        place.write(memory=MIB)
        one.refresh()
        assert one.used() == 2 * MIB
        assert not one.reserve(1)
        one.release(MIB)
        assert not one.reserve(1)
        one.release(MIB)
        assert one.reserve(MIB)


def test_a_process_without_limits_is_in_no_slice(place: kit.Slice) -> None:
    env = {name: value for name, value in os.environ.items() if name != "COTENANT_LIMITS"}
    with account(place, env=env) as one:
        assert one.call("start") == 0


def test_unknown_lines_and_words_are_passed_over(place: kit.Slice) -> None:
    place.limits.write_text(
        f"{HEAD}\n# a remark\nlater things\ngpu {gpu()} speed=high memory=5  colour compute=10 =\nend\nbehind the end\n"
    )
    with account(place) as one:
        assert shown(one)[:3] == (5, 0, 10)
        assert one.faults("limits_bad") == 0


def test_gpus_that_are_not_named_any_more_fall_back_to_the_default(place: kit.Slice) -> None:
    place.write(memory=MIB)
    with account(place) as one:
        assert shown(one, 1) == NO_LIMITS
        write_read_only(place.limits, f"{HEAD}default memory=5 compute=20\nend\n")
        one.refresh()
        assert shown(one, 0)[:3] == shown(one, 1)[:3] == (5, 0, 20)


sizes = st.none() | st.integers(0, UNLIMITED - 1)
gpu_limits = st.builds(
    GpuLimit,
    uuid=st.just(gpu()),
    memory_bytes=sizes,
    compute=st.integers(1, 1000).map(MilliGpu),
    host_bytes=st.integers(0, UNLIMITED - 1),
    paused=st.booleans(),
    request_bytes=sizes,
    most_bytes=st.integers(0, UNLIMITED - 1),
)


@given(limit=gpu_limits, policy=st.sampled_from(ComputePolicy), priority=st.sampled_from(Priority))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_library_reads_what_is_written(
    limit: GpuLimit, policy: ComputePolicy, priority: Priority, follower: tuple[kit.Slice, Account]
) -> None:
    place, one = follower
    limits = Limits(gpus=(limit,), region=place.usage, policy=policy, priority=priority)
    write_read_only(place.limits, limits_text(limits))
    one.refresh()
    memory = UNLIMITED if limit.memory_bytes is None else limit.memory_bytes
    assert shown(one) == (memory, limit.host_bytes, limit.compute, limit.paused, policy, priority)


@contextmanager
def restless(path: Path, texts: list[str]) -> Iterator[None]:
    """A file that is emptied and written again and again, a piece at a time."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            text = texts[number % len(texts)].encode()
            with open(path, "wb", buffering=0) as file:
                file.writelines(text[at : at + 512] for at in range(0, len(text), 512))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_a_file_that_changes_while_it_is_read_is_never_taken_for_a_mixture(place: kit.Slice) -> None:
    texts = [f"{HEAD}gpu {gpu()} memory={n} host={n}\n{REMARK * 2000}gpu b memory={n}\nend\n" for n in (1111, 2222)]
    place.limits.write_text(texts[0])
    with account(place) as one, restless(place.limits, texts):
        for _ in range(15):
            one.refresh()
            memory, host, *_ = shown(one)
            assert memory == host == shown(one, 1)[0]


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program whose fixed path is not the one in /etc, and that path."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes a file that belongs to root")
    folder = tmp_path_factory.mktemp("fixed")
    path = folder / "limits"
    built = kit.build("program", "base_account", f'--define=CT_FIXED_LIMITS="{path}"', out=folder)
    return built, path


@pytest.mark.parametrize(
    ("mode", "owner", "wins"), [(0o644, 0, True), (0o664, 0, False), (0o646, 0, False), (0o644, 54321, False)]
)
def test_roots_own_file_wins_over_the_environment(
    mode: int, owner: int, wins: bool, fixed: tuple[Path, Path], place: kit.Slice
) -> None:
    program, path = fixed
    path.write_text(line("memory=1"))
    path.chmod(mode)
    os.chown(path, owner, owner)
    place.write(memory=2)
    with account(place, program=program) as one:
        assert shown(one)[0] == (1 if wins else 2)
