# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of a recording: what is written is read again, and what is damaged is refused with its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import Demand, Gpu, Job, Machine, Slot, Tenant
from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.wire.decision import RecordedNode
from cotenant.wire.recording import Arrived, Begin, Decided, Ended, Follower, Line, decode_lines, encode_line

NODES = tuple(
    RecordedNode(machine=Machine(name=f"n{i}", gpus=(Gpu(uuid=f"g{i}", type="T4", memory=MiB(16384)),)))
    for i in range(2)
)
SMALL = Demand(memory=MiB(100), compute=MilliGpu(100))
JOB = Job(id="j-1", demand=SMALL, submitted=Seconds(5.0))
TENANT = Tenant("j-0", SMALL, (0,))
BEGIN = Begin(at=Seconds(1.0), engine="local", cotenant="1.0", policy="binpack", nodes=NODES)
DECIDED = Decided(at=Seconds(2.0), job=JOB, slots=(Slot("n1", (0,)),), policy="binpack")
LINES: list[Line] = [BEGIN, Arrived(at=Seconds(2.0), job=JOB, user="ada"), DECIDED]


def read(content: bytes) -> list[Line]:
    return [line for _, line in decode_lines(content.splitlines(keepends=True), "day.jsonl")]


def test_lines_are_read_as_they_were_written() -> None:
    lines = [*LINES, Ended(at=Seconds(3.0), job="j-1", outcome="finished", speed=0.7)]
    assert read(b"".join(map(encode_line, lines))) == lines


def test_the_cluster_of_each_decision_follows_from_the_lines_before() -> None:
    changed = RecordedNode(machine=NODES[1].machine, tenants=(TENANT,))
    later = Decided(
        at=Seconds(3.0), job=JOB, slots=(Slot("n1", (0,)),), policy="binpack", nodes=(changed,), gone=("n0",)
    )
    follower = Follower()
    seen = []
    for line in (*LINES, later):
        follower.apply(line)
        if isinstance(line, Decided):
            seen.append(follower.decision(line, "day.jsonl"))
    assert [one.nodes for one in seen] == [NODES, (changed,)]


def test_nodes_that_were_not_offered_are_closed() -> None:
    follower = Follower()
    follower.apply(BEGIN)
    only = Decided(at=Seconds(2.0), job=JOB, slots=(Slot("n1", (0,)),), policy="binpack", offered=("n1",))
    assert follower.decision(only, "").closed == ("n0",)


def test_a_last_line_that_was_cut_off_is_left_out() -> None:
    whole = b"".join(map(encode_line, LINES))
    for cut in (1, 10, 50):
        assert read(whole[:-cut]) == LINES[:2]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no complete line"),
        (b"hello\n", "day.jsonl:1: not a line of a recording"),
        (b"[]\n", "day.jsonl:1: not a line of a recording"),
        (
            b'{"version": 2, "type": "begin"}\n',
            "this cotenant reads 1; it was written by a newer",
        ),
        (b'{"version": 1, "type": "song"}\n', "unknown type of line; expected one of begin, job, decision, end"),
        (b'{"version": 1, "type": "end", "at": -5, "job": "j", "outcome": ""}\n', r"\$.at is -5; expected a number"),
        (b'{"version": 1, "type": "end", "at": 1, "job": "\\u0007", "outcome": ""}\n', "expected printable text"),
        (b'{"version": 1, "type": "end", "at": 1, "job": "j", "outcome": "", "x": 1}\n', "unknown field 'x'"),
        (b"\xff\xfe\n", "not a line of a recording"),
        (b"[" * 100_000 + b"\n", "not a line of a recording"),
    ],
)
def test_bad_lines_are_refused_with_their_number(content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(content)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_damage_is_an_error_or_another_recording_but_never_a_crash(place: int, damage: bytes) -> None:
    whole = b"".join(map(encode_line, LINES))
    damaged = whole[: place % len(whole)] + damage + whole[place % len(whole) + len(damage) :]
    follower = Follower()
    try:
        for line in read(damaged):
            follower.apply(line)
            if isinstance(line, Decided):
                follower.decision(line, "day.jsonl")
    except InputError:
        pass


def test_defaults_are_not_written() -> None:
    assert json.loads(encode_line(Ended(at=Seconds(1.0), job="j", outcome="failed"))) == {
        "version": 1,
        "type": "end",
        "at": 1.0,
        "job": "j",
        "outcome": "failed",
    }
