# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Both sides of the protocol are written apart; here they are held together, and nonsense is held off."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.job import link, messages
from cotenant.wire import agent as wire


def test_both_sides_speak_the_same_version() -> None:
    assert messages.VERSION == wire.VERSION == 1
    assert link.LONGEST == wire.LONGEST


def test_what_the_library_sends_is_what_the_agent_reads() -> None:
    hello = messages.hello(
        job="j-1", pid=7, batch=64, batch_range=(16, 512), memory_mib_per_sample=1.5, lr_rule="sqrt", floor=0.5
    )
    assert wire.decode_from_job(hello) == wire.Hello(
        v=1, job="j-1", pid=7, batch=64, min=16, max=512, memory_mib_per_sample=1.5, lr_rule="sqrt", floor=0.5
    )
    steps = messages.steps(n=3, samples=96, busy_s=0.5, wall_s=1.0, batch=32, noise=(-0.5, 2.0))
    assert wire.decode_from_job(steps) == wire.Steps(
        n=3, samples=96, busy_s=0.5, wall_s=1.0, batch=32, grad_sqr=-0.5, grad_var=2.0
    )
    assert wire.decode_from_job(messages.BYE) == wire.Bye()


def test_what_the_agent_sends_is_what_the_library_reads() -> None:
    wish = messages.action(wire.encode(wire.SetBatch(size=96, lr_scale=1.5)))
    assert isinstance(wish, messages.BatchSetting)
    assert (wish.size, wish.lr_scale) == (96, 1.5)
    pace = messages.action(wire.encode(wire.ReportEvery(every_s=0.25)))
    assert isinstance(pace, messages.ReportInterval)
    assert pace.every_s == 0.25
    assert messages.action(wire.encode(wire.Pause())) == messages.PAUSE
    assert messages.action(wire.encode(wire.Resume())) == messages.RESUME
    assert msgspec.json.decode(wire.encode(wire.Pause()), type=wire.ToJob) == wire.Pause()


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"v": None}, {"pid": 0}, {"job": ""}, {"min": 9, "max": 8}, {"batch": 4, "min": 8}, {"floor": 2}],
)
def test_another_version_or_an_impossible_hello_is_refused(change: dict[str, object]) -> None:
    good = {"v": 1, "t": "hello", "job": "j-1", "pid": 7}
    assert isinstance(wire.decode_from_job(json.dumps(good).encode()), wire.Hello)
    with pytest.raises(msgspec.MsgspecError):
        wire.decode_from_job(json.dumps(good | change).encode())


def test_a_field_of_a_later_minor_change_is_passed_over() -> None:
    assert wire.decode_from_job(b'{"t":"bye","why":"done"}') == wire.Bye()
    assert messages.action(b'{"t":"pause","why":"probe"}') == messages.PAUSE


NONSENSE = [
    b"",
    b"\x00\xff\xfe",
    b"null",
    b"[]",
    b"[" * 4000,
    b"{}",
    b'{"t":"batch"}',
    b'{"t":"batch","size":0,"lr_scale":1}',
    b'{"t":"batch","size":-5,"lr_scale":1}',
    b'{"t":"batch","size":true,"lr_scale":1}',
    b'{"t":"batch","size":"64","lr_scale":1}',
    b'{"t":"batch","size":64.0,"lr_scale":1}',
    b'{"t":"batch","size":99999999999,"lr_scale":1}',
    b'{"t":"batch","size":' + b"9" * 4000 + b',"lr_scale":1}',
    b'{"t":"batch","size":64,"lr_scale":NaN}',
    b'{"t":"batch","size":64,"lr_scale":1e999}',
    b'{"t":"batch","size":64,"lr_scale":-1}',
    b'{"t":"batch","size":64,"lr_scale":0}',
    b'{"t":"batch","size":64,"lr_scale":"1"}',
    b'{"t":"batch","size":64,"lr_scale":1,"v":2}',
    b'{"t":"report"}',
    b'{"t":"report","every_s":0}',
    b'{"t":"report","every_s":1e9}',
    b'{"t":"report","every_s":NaN}',
    b'{"t":"report","every_s":true}',
    b'{"t":["pause"]}',
    b'{"t":"stop"}',
    b'{"t":"pause","pad":"' + b"x" * 5000 + b'"}',
]


@pytest.mark.parametrize("message", NONSENSE)
def test_nonsense_of_an_agent_is_as_if_it_had_not_come(message: bytes) -> None:
    assert messages.action(message) is None


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_no_bytes_make_the_library_fail(message: bytes) -> None:
    messages.action(message)
