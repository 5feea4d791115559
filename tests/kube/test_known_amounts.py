# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The amounts of containers are remembered, and what is remembered is what would be read."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import ContainerKind
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.codec.amounts import Amounts, amounts_of
from cotenant.kube.codec.settings import DEFAULTS, Settings

LABEL = next(one.divided_by for one in DEFAULTS.dialects if one.divided_by is not None)
READ = st.tuples(
    st.dictionaries(st.sampled_from(sorted(DEFAULTS.by_resource)), st.sampled_from(["1", 2, "4k", "0"]), max_size=3),
    st.sampled_from(ContainerKind),
    st.sampled_from([{}, {LABEL: "2"}, {LABEL: "4", "app": "x"}, {"app": "x"}]),
    st.sampled_from([None, MiB(100)]),
)
MANY = Settings()
"""used for all examples, so that most of them are known"""


def read(settings: Settings, what: tuple[dict[str, str | int], ContainerKind, dict[str, str], MiB | None]) -> object:
    resources, kind, labels, measured = what
    try:
        return amounts_of(resources, kind, settings, labels, measured)
    except InputError as error:
        return str(error)


@given(st.lists(READ, min_size=1, max_size=20))
def test_what_is_remembered_is_what_would_be_read(calls: list[tuple[object, ...]]) -> None:
    for one in calls:
        assert read(MANY, one) == read(replace(DEFAULTS), one)  # type: ignore[arg-type]


def test_the_same_request_is_read_once() -> None:
    settings = Settings()
    first = amounts_of({"nvidia.com/gpumem": "3"}, ContainerKind.APP, settings)
    assert isinstance(first, Amounts)
    assert amounts_of({"nvidia.com/gpumem": "3"}, ContainerKind.APP, settings) is first
    assert amounts_of({"nvidia.com/gpumem": "3"}, ContainerKind.INIT, settings) != first


def test_little_is_remembered() -> None:
    settings = Settings()
    for number in range(10_000):
        amounts_of({"nvidia.com/gpumem": number + 1}, ContainerKind.APP, settings)
    amounts_of({"nvidia.com/gpumem": "0" * 30 + "7"}, ContainerKind.APP, settings)
    junk = {f"example.com/{'x' * 50}-{number}": 1 for number in range(100)}
    amounts_of({"nvidia.com/gpumem": 7, **junk}, ContainerKind.APP, settings)
    amounts_of({"nvidia.com/gpumem": 8}, ContainerKind.APP, settings, {LABEL: "0" * 500 + "2"})
    assert 0 < len(settings.known_amounts) <= 4096
    assert all(len(str(key)) < 400 for key in settings.known_amounts)


class ForgottenAtOnce(dict[Any, Any]):
    """As if another thread cleared the table after each access."""

    def __setitem__(self, key: object, value: object) -> None:
        self.clear()


def test_another_thread_may_forget_at_any_time() -> None:
    settings = Settings()
    object.__setattr__(settings, "known_amounts", ForgottenAtOnce())
    for _ in range(2):
        assert amounts_of({"nvidia.com/gpumem": "3"}, ContainerKind.APP, settings) is not None
