# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of metrics names every metric of the agent with its type, and no other."""

import re
from pathlib import Path

from cotenant.kube.agent.metrics import metrics_text
from tests.kube.pods import NODE

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()


def test_every_metric_is_documented_and_no_other() -> None:
    written = re.findall(r"^# TYPE (\w+) (\w+)$", metrics_text(NODE, 0, {}), re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE) == written
