# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with claims on a node is written there while it is wrong, each change once."""

import json
from typing import Any
from unittest.mock import Mock

from cotenant.core.model import Gpu, Machine
from cotenant.kube.agent.claim_reporting import ClaimReporting, PublishedGpus
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.reflector import Pace
from cotenant.kube.codec.agent_report import REPORT
from cotenant.node.devices.vendors import Vendor


def reporting(written: list[Any], lines: list[str], **node: Any) -> ClaimReporting:
    own = Mock(want=written.append, uid="node-uid", annotations={}, **node)
    own.name = "n1"
    gpus = PublishedGpus(
        vendor=Vendor.NVIDIA,
        driver="550.1",
        machine=lambda: Machine(name="n1", gpus=(Gpu(uuid="GPU-a"), Gpu(uuid="GPU-b"))),
        absent=frozenset,
    )
    return ClaimReporting(Mock(), own, gpus, ErrorLog(lines.append), say=print, pace=Pace(), least_s=1.0)


def test_each_change_of_what_is_wrong_is_written_once() -> None:
    written, lines = list[Any](), list[str]()
    claims = reporting(written, lines)
    claims.report(None)
    assert not written
    for problem in ("kubelet is too old", "kubelet is too old", None):
        claims._note_other_drivers("driver x publishes GPU-a too")
        claims.report(problem)
    claims._note_other_drivers(None)
    claims.report(None)
    told = [json.loads(one[REPORT]).get("claims") for one in written]
    assert told == ["kubelet is too old; driver x publishes GPU-a too", "driver x publishes GPU-a too", None]
    assert lines == ["claims: kubelet is too old; driver x publishes GPU-a too"], "the log has a pause"
