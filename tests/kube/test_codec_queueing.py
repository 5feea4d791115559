# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What pods say about their turn, and what is refused of it."""

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, SchedulingGroup
from cotenant.kube.codec.queueing import (
    ATTAINED,
    ESTIMATE,
    GANG,
    GANG_SIZE,
    GROUP,
    GROUP_SIZE,
    Gang,
    attained_of,
    estimate_of,
    gang_of,
)
from tests.kube.pods import pod


def labelled(**labels: str) -> Pod:
    plain = pod()
    return msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels=labels))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), (" 2h ", 7200), ("0.5d", 43_200), ("1d2h3m4s", 93_784)]
)
def test_an_estimate_is_read_in_days_hours_minutes_and_seconds(text: str, seconds: float) -> None:
    assert estimate_of(pod(annotations={ESTIMATE: text})) == seconds


@pytest.mark.parametrize("text", ["", "soon", "90", "-1h", "1m1h", "0s", "١h", "999999999d", "1e3s", "h"])
def test_what_is_no_time_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(InputError, match=ESTIMATE):
        estimate_of(pod(annotations={ESTIMATE: text}))


def test_what_a_job_has_had_is_a_time_that_may_be_none() -> None:
    assert attained_of(pod()) == 0.0
    assert attained_of(pod(annotations={ATTAINED: "0s"})) == 0.0
    assert attained_of(pod(annotations={ATTAINED: "1h"})) == 3600.0
    with pytest.raises(InputError, match=ATTAINED):
        attained_of(pod(annotations={ATTAINED: "half"}))


def test_a_gang_is_one_of_its_namespace_in_our_words_or_in_those_of_coscheduling() -> None:
    assert gang_of(pod()) is None
    assert estimate_of(pod()) is None
    assert gang_of(pod(annotations={GANG: "train", GANG_SIZE: "4"})) == Gang("team", "train", 4)
    assert gang_of(labelled(**{GROUP: "train", GROUP_SIZE: "2"})) == Gang("team", "train", 2)


def test_a_podgroup_is_a_gang_whose_size_stands_elsewhere_and_our_words_come_first() -> None:
    group = SchedulingGroup(pod_group_name="train")

    def grouped(plain: Pod) -> Pod:
        return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, scheduling_group=group))

    assert gang_of(grouped(pod())) == Gang("team", "podgroup/train", 1, "train")
    assert gang_of(grouped(pod(annotations={GANG: "ours", GANG_SIZE: "4"}))) == Gang("team", "ours", 4)


@pytest.mark.parametrize(
    "annotations",
    [
        {GANG: "train"},
        {GANG_SIZE: "2"},
        {GANG: "", GANG_SIZE: "2"},
        {GANG: "a\nb", GANG_SIZE: "2"},
        *({GANG: "train", GANG_SIZE: size} for size in ("0", "257", "-1", "two", "", "٣", "9" * 5000)),
    ],
)
def test_half_a_gang_and_nonsense_are_refused(annotations: dict[str, str]) -> None:
    with pytest.raises(InputError, match=GANG):
        gang_of(pod(annotations=annotations))
