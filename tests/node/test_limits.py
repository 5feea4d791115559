# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The limits of a slice as a file: what is written is what is meant, whole or not at all."""

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.units import MilliGpu
from cotenant.errors import InputError
from cotenant.node.limits import (
    ComputePolicy,
    GpuLimit,
    Limits,
    Priority,
    change_limits,
    limits_text,
    parse_limits,
    read_limits,
    write_read_only,
)

SMALL = Limits(
    gpus=(GpuLimit("GPU-8f", 2 << 30, MilliGpu(300)),),
    others=GpuLimit("", 0),
    region=Path("/run/slices/abc/usage"),
    policy=ComputePolicy.ALWAYS,
    priority=Priority.LOW,
)
AMOUNTS = st.integers(0, (1 << 64) - 2)
FIXED = st.builds(
    GpuLimit,
    st.from_regex(r"GPU-[0-9a-f-]{1,40}", fullmatch=True),
    st.none() | AMOUNTS,
    st.integers(1, 1000).map(MilliGpu),
    AMOUNTS,
    st.booleans(),
    st.none(),
    st.just(0),
)
GRANTED = st.tuples(FIXED, AMOUNTS, AMOUNTS).map(lambda one: one[0]._replace(request_bytes=one[1], most_bytes=one[2]))
LIMIT = FIXED | GRANTED


def test_the_text_is_what_the_library_reads() -> None:
    assert limits_text(SMALL) == (
        "cotenant-limits 2\n"
        "region /run/slices/abc/usage\n"
        "policy always\n"
        "priority low\n"
        "default memory=0 host=0 compute=1000 paused=0\n"
        "gpu GPU-8f memory=2147483648 host=0 compute=300 paused=0\n"
        "end\n"
    )
    granted = GpuLimit("GPU-8f", 1 << 30, request_bytes=2 << 30, most_bytes=3 << 30)
    assert (
        "\ngpu GPU-8f memory=1073741824 request=2147483648 most=3221225472 host=0 compute=1000 paused=0\n"
        in limits_text(Limits(gpus=(granted,)))
    )
    assert "memory=none" in limits_text(Limits(gpus=(GpuLimit("GPU-8f", None),)))


@given(
    st.builds(
        Limits,
        gpus=st.lists(LIMIT, max_size=16).map(tuple),
        others=st.none() | LIMIT.map(lambda limit: limit._replace(uuid="")),
        region=st.sampled_from([None, Path("/run/a b/usage")]),
        policy=st.sampled_from(ComputePolicy),
        priority=st.sampled_from(Priority),
    )
)
def test_limits_come_back_as_they_were_written(limits: Limits) -> None:
    assert parse_limits(limits_text(limits)) == limits


def test_what_a_later_writer_adds_is_passed_over() -> None:
    text = limits_text(SMALL).replace("paused=0", "paused=0 colour=red").replace("end", "weather fine\nend")
    assert parse_limits(text) == SMALL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with ''"),
        ("cotenant-limits 3\nend\n", "expected 'cotenant-limits 2'"),
        ("cotenant-limits 2\npolicy always\n", "truncated"),
        ("cotenant-limits 2\npolicy sometimes\nend\n", "'policy sometimes' is not valid"),
        ("cotenant-limits 2\ngpu GPU-8f memory=much\nend\n", "is not valid"),
        ("cotenant-limits 2\ngpu G\x00PU memory=1\nend\n", "expected a UUID"),
    ],
)
def test_what_is_no_limits_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_limits(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        Limits(gpus=(GpuLimit("two words", 1),)),
        Limits(gpus=(GpuLimit("GPU-8f", -1),)),
        Limits(gpus=(GpuLimit("GPU-8f", 1 << 64),)),
        Limits(gpus=(GpuLimit("GPU-8f", 1, MilliGpu(0)),)),
        Limits(gpus=tuple(GpuLimit(f"GPU-{i}", 1) for i in range(17))),
        Limits(region=Path("not/absolute")),
        Limits(region=Path("/two\nlines")),
    ],
)
def test_what_the_file_cannot_say_is_not_written(wrong: Limits) -> None:
    with pytest.raises(InputError):
        limits_text(wrong)


def test_the_file_is_read_only_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    for memory in (1, 2):  # the second time over a file that is read-only
        write_read_only(path, limits_text(replace(SMALL, gpus=(GpuLimit("GPU-8f", memory),))))
    assert read_limits(path).gpus[0].memory_bytes == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert [entry.name for entry in tmp_path.iterdir()] == ["limits"]


def test_what_a_crash_left_does_not_stop_the_next_limits_file(tmp_path: Path) -> None:
    (tmp_path / "limits.new").write_text("half")
    write_read_only(tmp_path / "limits", "whole")
    assert (tmp_path / "limits").read_text() == "whole"


def test_a_huge_file_is_refused_and_not_read_through(tmp_path: Path) -> None:
    os.truncate(os.open(tmp_path / "limits", os.O_CREAT | os.O_WRONLY), 1 << 40)
    with pytest.raises(InputError, match="larger than 65536 bytes"):
        read_limits(tmp_path / "limits")


def test_limits_grow_and_shrink_and_no_change_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    write_read_only(path, limits_text(SMALL))

    def grow(limits: Limits) -> Limits:
        (only,) = limits.gpus
        return replace(limits, gpus=(only._replace(host_bytes=only.host_bytes + 1),))

    def often() -> None:
        for _ in range(25):
            change_limits(path, grow)

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_limits(path).gpus[0].host_bytes == 100
