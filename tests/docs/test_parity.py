# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Each row of the page of parity names a test that exists, or why there is none."""

import ast
import re
from pathlib import Path

import pytest

from cotenant.kube.codec.cambricon import CAMBRICON, CAMBRICON_SMLU
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.gpushare import GPUSHARE, IADEEP
from cotenant.kube.codec.keys import PREFIX
from cotenant.kube.codec.topology import TOPOLOGY
from cotenant.kube.codec.vgpu import VGPU
from tests.docs.test_commands import COMMANDS, command_of, options_of
from tests.tables import tables_of
from tools.reference.chart import reference
from tools.reference.parity import ROOT, VERDICTS, Row, rows

ROWS = [row for listed in rows().values() for row in listed]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.feature[:60])
def test_each_row_names_a_test_or_a_reason(row: Row) -> None:
    assert row.verdict in VERDICTS
    if row.verdict == "no":
        assert row.note
        assert not row.test
        return
    path, _, name = row.test.partition("::")
    assert name in names_in(ROOT / path), row.test


def names_in(file: Path) -> list[str]:
    """The tests of a file: functions that pytest collects, or the cases of a YAML table."""
    if file.suffix == ".yaml":
        return [case["name"] for case in tables_of(file)]
    functions = [
        one.name for one in ast.parse(file.read_text()).body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [name for name in functions if file.name.startswith("test_") and name.startswith("test_")]


def test_a_text_that_merely_occurs_in_a_file_is_no_test() -> None:
    known = names_in(ROOT / "tests/kube/test_isolation.py")
    assert "test_limits_of_a_placed_pod" in known
    assert not {"OPTIONAL", "limits", "def test_limits_of_a_placed_pod"} & {*known}
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in names_in(ROOT / "tests/kube/dialects/vgpu.yaml")


@pytest.mark.parametrize(
    "dialect", [VGPU, GPUSHARE, TOPOLOGY, IADEEP, CAMBRICON, CAMBRICON_SMLU], ids=lambda one: one.name
)
def test_every_resource_of_these_systems_has_a_row(dialect: Dialect) -> None:
    text = (ROOT / "docs/reference/parity.md").read_text()
    names = [name for name in dialect.resources if not name.startswith(f"{PREFIX}/")]
    assert [name for name in names if re.sub(r"^cambricon.com/(mlu370[.])?", "", name) not in text] == []


def test_options_and_values_that_a_row_names_exist() -> None:
    options = {name for one in COMMANDS for option in options_of(command_of(one)) for name in option.opts}
    values = set(re.findall(r"^\| `([^`]+)`", reference(), re.MULTILINE))
    unknown = []
    for row in ROWS:
        unknown += [name for name in re.findall(r"`(--[a-z-]+)", row.note) if name not in options]
        for named in re.findall(r"\bvalues? ((?:`[^`]+`(?:, | and )?)+)", row.note):
            chosen = (name.partition("=")[0].removesuffix(".*") for name in re.findall(r"`([^`]+)`", named))
            unknown += [name for name in chosen if name not in values]
    assert unknown == []


def test_features_are_listed_once() -> None:
    features = [row.feature for row in ROWS]
    assert len(set(features)) == len(features)
