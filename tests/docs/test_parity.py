# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of parity follows from its table, and each row names a test that exists, or why there is none."""

import pytest

from cotenant.kube.codec.settings import DIALECTS
from tests.docs.parity import PAGE, ROOT, VERDICTS, Row, page, rows

ROWS = [row for listed in rows().values() for row in listed]


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.docs.parity"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.feature[:60])
def test_each_row_names_a_test_or_a_reason(row: Row) -> None:
    assert row.verdict in VERDICTS
    if row.verdict == "no":
        assert row.note
        assert not row.test
        return
    path, _, text = row.test.partition("::")
    place = ROOT / path
    files = sorted(place.glob("*.py")) if place.is_dir() else [place]
    assert text
    assert any(text in file.read_text() for file in files), row.test


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)
def test_every_resource_of_another_system_has_a_row(dialect: object) -> None:
    text = PAGE.read_text().replace("smlu.*", "smlu.vmemory smlu.vcore")
    names = [name for name in getattr(dialect, "resources", ()) if not name.startswith("cotenant.io/")]
    missing = [
        name for name in names if name not in text and name.partition("/")[2].removeprefix("mlu370.") not in text
    ]
    assert missing == []


def test_features_are_listed_once() -> None:
    features = [row.feature for row in ROWS]
    assert len(set(features)) == len(features)
