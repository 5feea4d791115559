# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Monitors and rules of the chart with the Prometheus Operator, on a real cluster without GPUs."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.kube.api.names import AGENT, NAMESPACE, SCHEDULER
from cotenant.kube.install.chart import chart_folder, merged
from tests.cluster.api import wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import Engine, chart_values, run_install
from tests.cluster.forwarding import forwarded
from tests.cluster.neighbours import monitors
from tests.cluster.neighbours.conftest import built_by, without_cotenant
from tests.metrics.prometheus import Prometheus, tool

VALUES = chart_values(devices={"simulate": "auto"})
WATCHED = {"monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}}}
PORT = 9090


@pytest.fixture(scope="module")
def watched(
    say: Callable[[str], None], programs: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A cluster with the Prometheus Operator and a Prometheus of the team, in which cotenant is installed with monitors
    and rules."""
    folder = built_by(monitors.operator, say)
    made = without_cotenant(programs, tmp_path_factory.mktemp("monitors"))
    with until_last_use("watched", made) as cluster:
        monitors.install(cluster, folder)
        monitors.create_prometheus(cluster)
        run_install(cluster, "install", merged(VALUES, WATCHED))
        engine = Engine(cluster)
        engine.wait_for_scheduler()
        engine.wait_for_agent("node1")
        yield engine


def configured(watched: Engine) -> Any:
    """The configuration that the operator writes for that Prometheus, once both monitors are in it."""
    jobs = {f"podMonitor/{NAMESPACE}/{name}/0" for name in (AGENT, SCHEDULER)}

    def look() -> Any:
        found = monitors.configuration(watched.cluster)
        return found if {one["job_name"] for one in found.get("scrape_configs", [])} == jobs else None

    return wait_for("the configuration", look)


def test_the_operator_writes_our_alerts_and_promtool_accepts_them(watched: Engine, tmp_path: Path) -> None:
    configured(watched)
    files = wait_for("the rules", lambda: monitors.rule_files(watched.cluster))
    ours = yaml.safe_load((chart_folder() / "files" / "rules.yaml").read_text())
    (text,) = files.values()
    assert alerts_of(yaml.safe_load(text)) == alerts_of(ours)
    (tmp_path / "rules.yaml").write_text(text)
    subprocess.run([tool("promtool"), "check", "rules", str(tmp_path / "rules.yaml")], check=True, capture_output=True)


def alerts_of(rules: Mapping[str, Any]) -> dict[str, str]:
    """The expressions of alerts, by name."""
    return {rule["alert"]: " ".join(rule["expr"].split()) for group in rules["groups"] for rule in group["rules"]}


def test_the_configuration_of_the_operator_scrapes_the_agent_and_the_scheduler_and_no_other_pod(
    watched: Engine, tmp_path: Path
) -> None:
    """Its rules drop the other ports of our pods, and the pods that are not ours."""
    found = configured(watched)
    for one in found["scrape_configs"]:
        (discovery,) = one.pop("kubernetes_sd_configs")
        one["static_configs"] = monitors.targets(watched.cluster, discovery)
        assert len(one["static_configs"]) > 2  # so that there is something to drop
    (tmp_path / "rules.yaml").write_text(next(iter(monitors.rule_files(watched.cluster).values())))
    found["rule_files"] = [str(tmp_path / "rules.yaml")]
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(found))
    subprocess.run([tool("promtool"), "check", "config", str(file)], check=True, capture_output=True)
    with prometheus(watched.cluster, file) as server:
        both = {f"{NAMESPACE}/{name}" for name in (AGENT, SCHEDULER)}
        wait_for("both pods to be scraped", lambda: scraped(server) == both)
        assert (server.problems(), server.healthy_targets()) == ([], 2)
        for metric in ("cotenant_gpu_memory_allocatable_bytes", "cotenant_scheduler_queue_length"):
            assert server.query(metric) != []
        wait_for("the rules to be evaluated", lambda: {rule["health"] for rule in server.rules()} == {"ok"})


def scraped(server: Prometheus) -> set[str]:
    """The jobs whose targets answer."""
    return {one["metric"]["job"] for one in server.query("up == 1")}


@contextmanager
def prometheus(cluster: Cluster, file: Path) -> Iterator[Prometheus]:
    """Debian's Prometheus with this configuration, on the node."""
    options = [
        f"--config.file={file}",
        f"--storage.tsdb.path={file.parent / 'data'}",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ]
    inside = cluster.machines[0].enter([tool("prometheus"), *options])
    with (
        open(file.parent / "log", "wb") as log,
        subprocess.Popen(inside, stdout=log, stderr=log) as process,
        forwarded(cluster.machines[0], lambda: ("127.0.0.1", PORT)) as port,
    ):
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            wait_for("Prometheus", server.is_ready)
            yield server
        finally:
            process.kill()
