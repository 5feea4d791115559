# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of the table keep to Prometheus' conventions for names, units and labels."""

import re

import pytest

from cotenant.metrics.hami import HAMI_GPU, HAMI_POD
from cotenant.metrics.table import COUNTED, METRICS, Counted, Measured, Metric, Type

UNITS = ("_bytes", "_seconds", "_ratio", "_celsius", "_watts", "_info", "_total")
COUNTS = re.compile(
    r"_(healthy|cordoned|slots|tenants|processes|paused|size|default|state|pods|omitted|length|holds|leader|nodes)$"
)


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.name)
def test_a_row_has_a_base_unit_a_help_and_labels_of_its_own(row: Metric) -> None:
    assert re.fullmatch(r"cotenant_[a-z][a-z0-9_]*", row.name)
    assert (row.type is Type.COUNTER) == row.name.endswith("_total")
    assert row.name.endswith(UNITS) or COUNTS.search(row.name), "a unit, or a number of things"
    assert row.help[0].isupper() or row.help[0].isdigit()
    assert row.help.endswith(".")
    assert len(set(row.labels)) == len(row.labels)
    assert not {"namespace", "pod", "instance", "job", "le"} & set(row.labels), "Prometheus sets these"
    if isinstance(row, Measured):
        assert (row.value is None) != (row.values is None)
        assert row.labels[len(row.labels) - len(row.more) :] == row.more
    if isinstance(row, Counted):
        assert row.parts
        assert bool(row.buckets) == (row.type is Type.HISTOGRAM)
        assert all(len(labels) == len(row.labels) for labels in row.start)


def test_names_are_unique_also_beside_those_of_hami() -> None:
    names = [row.name for row in (*METRICS, *HAMI_GPU, *HAMI_POD)]
    assert len(set(names)) == len(names)
    assert set(COUNTED) < set(METRICS)
