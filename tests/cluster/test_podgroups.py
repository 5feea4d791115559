# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""PodGroups of Kubernetes 1.36 and later on a real cluster: their pods are a gang."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import wait_for
from tests.cluster.binaries import KUBERNETES, Binaries
from tests.cluster.engine import Engine, running_engine
from tests.cluster.examples import EXAMPLES, apply_text
from tests.cluster.test_gangs import LARGE, assert_apart, node_of
from tests.cluster.test_waiting import why

MINOR = int(KUBERNETES.split(".")[1])
WRITTEN = "scheduling.k8s.io/v1alpha2"
"""the version of the example, that of Kubernetes 1.36"""
API = WRITTEN if MINOR == 36 else "scheduling.k8s.io/v1beta1"
SERVER = ("--feature-gates=GenericWorkload=true", f"--runtime-config={API}=true")


@pytest.fixture
def grouped(programs: Binaries, tmp_path: Path) -> Iterator[Engine]:
    """A cluster whose API server has PodGroups."""
    if MINOR < 36:
        pytest.skip("needs Kubernetes 1.36: make test-kubernetes VERSION=1.36.3")
    with running_engine(tmp_path, programs, server=SERVER) as engine:
        yield engine


def test_the_pods_of_a_podgroup_start_together_and_wait_for_it(grouped: Engine) -> None:
    grouped.create("fills", LARGE)
    grouped.started("fills")
    grouped.create("early", LARGE, schedulingGroup={"podGroupName": "later"})
    wait_for("a word", lambda: "its PodGroup later does not exist" in why(grouped, "early"))
    example = (EXAMPLES / "neighbours" / "podgroup.yaml").read_text()
    assert WRITTEN in example
    example = example.replace(WRITTEN, API)
    apply_text(grouped, example)
    wait_for("a word", lambda: "gang" in why(grouped, "pair-0"))
    assert [node_of(grouped, name) for name in ("pair-0", "pair-1")] == [None, None], "one of them would fit"
    grouped.delete("fills")
    assert_apart(*(grouped.started(name) for name in ("pair-0", "pair-1")))
    for name in ("pair-0", "pair-1"):
        grouped.delete(name)
    text = example.split("---")[1].replace("{name: pair}", "{name: later}").replace("gang: {minCount: 2}", "basic: {}")
    grouped.cluster.kubectl("apply", "--filename=-", feed=text)
    grouped.started("early")
