# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of dialects names every resource, annotation and variable, and its examples are what the code does."""

import re
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.kube.codec.annotations import variable_names
from cotenant.kube.codec.assignment import decode_record
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DIALECTS
from tests.kube.pods import pod

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "dialects.md").read_text()
PAGE, _, _ = TEXT.partition("## Every name of every dialect")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)
def test_every_word_of_a_dialect_is_explained(dialect: Dialect) -> None:
    wishes = (
        *(dialect.use_types, dialect.avoid_types, dialect.use_uuids, dialect.avoid_uuids, dialect.one_numa),
        *(dialect.mode, dialect.divided_by),
    )
    words = [dialect.name, *dialect.resources, *filter(None, wishes), *variable_names(dialect, 1)]
    assert [word for word in words if f"`{word}" not in PAGE] == []


def test_the_record_that_is_shown_can_be_read() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert [held.number for held in decode_record(example).containers] == [0, 2]


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpumem-percentage": 101},
        {"nvidia.com/gpu": 0, "nvidia.com/gpumem": 1},
        {"aliyun.com/gpu-mem": 1, "cotenant.io/gpushare-mib": 1},
        {"nvidia.com/gpu": 1, "aliyun.com/gpu-mem": 1},
        {"nvidia.com/gpu": "0.5"},
        {"nvidia.com/gpumem": "1Gi"},
    ],
)
def test_the_sentences_that_are_shown_are_those_that_are_said(limits: dict[str, str | int]) -> None:
    with pytest.raises(InputError) as refusal:
        request_of(pod(limits))
    assert f"`{str(refusal.value).replace('app-0', 'a')}`" in PAGE
