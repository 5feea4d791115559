# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes an agent, a scheduler and a daemon: dashboards and alerts find what they query."""

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from cotenant.kube.api.metrics import metrics_route
from cotenant.kube.api.server import Listener, application, listen, serve_all
from cotenant.kube.settings import KubeSettings
from cotenant.local import api
from cotenant.local.identity import Callers
from cotenant.local.tokens import TokenAccess
from cotenant.metrics.hami import HAMI_GPU, HAMI_POD
from cotenant.metrics.table import GPU, METRICS, TENANT, TENANT_GPU, Type
from cotenant.wire.job_requests import JobRequest
from tests.kube.agent_node.test_metrics import Node
from tests.kube.control_plane import a_control_plane, until
from tests.local.engines import engine_on
from tests.metrics.nodes import gpu, tenant
from tests.metrics.prometheus import Prometheus, prometheus_of, tool, wait_for

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
HAMI = yaml.safe_load((Path(__file__).parent / "hami_queries.yaml").read_text())
TOKEN = "a-token-of-some-length"
ALERTS = {
    "CotenantGpuFullButIdle",
    "CotenantTenantAtMemoryLimit",
    "CotenantSlowdownAboveObjective",
    "CotenantLatencyAboveObjective",
    "CotenantMemoryDrift",
    "CotenantAgentMissing",
    "CotenantQueueAge",
    "CotenantLeaseLost",
}


def expressions(path: Path) -> list[tuple[str, str]]:
    """All queries of a dashboard with the title of their panel, those of its variables included."""
    board = json.loads(path.read_text())
    found = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [one for one in board["templating"]["list"] if one["type"] == "query"]
    return found + [(f"variable {one['name']}", one["query"]["query"]) for one in variables]


class Pages:
    """Three programs of which each serves its page on a port of loopback; they run in a thread of their own."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self._ready, self._loop, self._stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._error: BaseException | None = None

    @contextmanager
    def serving(self) -> Iterator["Pages"]:
        self._thread.start()
        try:
            assert self._ready.wait(60)
            if self._error is not None:
                raise self._error
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            self._loop.close()

    async def _serve(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                with ExitStack() as files:
                    await self._run(stack, files)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ready.set()

    async def _run(self, stack: AsyncExitStack, files: ExitStack) -> None:
        plane = await stack.enter_async_context(a_control_plane(KubeSettings()))
        plane.add_node("n1")
        for name in ("a", "b", "c"):
            plane.add_pod(name)
        await until(lambda: plane.scheduler.state.vendors and len(plane.scheduler.state.waiting) == 3)
        for name in ("a", "b", "c"):
            await plane.place(name, "n1")
        node = Node(Path(files.enter_context(TemporaryDirectory(dir="/dev/shm"))), files, hami=True)
        engine, _ = files.enter_context(engine_on(Path(files.enter_context(TemporaryDirectory()))))
        engine.submit(JobRequest(command=("sleep", "9"), cwd="/", memory="500MiB", batch=32))
        engine.schedule()
        pages = {
            "agent": application(metrics_route(node.metrics.page), node.errors),
            "scheduler": application(plane.scheduler.for_operators(), node.errors),
            "daemon": api.application(engine, TokenAccess(engine.tokens, Callers(), TOKEN).identify),
        }
        listeners = [Listener(listen("127.0.0.1", 0), page) for page in pages.values()]
        self.ports = {name: one.bound.getsockname()[1] for name, one in zip(pages, listeners, strict=True)}
        self._ready.set()
        await serve_all(listeners, self._stop)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "token").write_text(TOKEN)
    with Pages().serving() as pages:
        targets = {name: [{"targets": [f"127.0.0.1:{port}"]}] for name, port in pages.ports.items()}
        jobs: list[dict[str, Any]] = [
            {"job_name": name, "honor_labels": True, "static_configs": static} for name, static in targets.items()
        ]
        jobs[-1]["authorization"] = {"credentials_file": str(folder / "token")}
        with prometheus_of(folder, jobs, [RULES]) as server:
            # Rates need two scrapes, and a page is computed once in a second.
            wait_for("rates", lambda: server.query("rate(cotenant_metrics_pages_total[1m]) > 0"))
            yield server


@pytest.mark.slow
@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_finds_data(prometheus: Prometheus, path: Path) -> None:
    for title, expression in expressions(path):
        assert wait_for(f"{title}: {expression}", partial(prometheus.query, expression))


@pytest.mark.slow
@pytest.mark.parametrize("source", HAMI)
def test_every_query_of_hamis_dashboards_finds_data(prometheus: Prometheus, source: str) -> None:
    for expression in HAMI[source]:
        found = prometheus.query(expression)
        assert found, expression
        assert all(one["value"][1] != "NaN" for one in found), expression


@pytest.mark.slow
def test_every_alert_is_evaluated_and_none_of_them_fires_for_nothing(prometheus: Prometheus) -> None:
    rules = wait_for("the first evaluation", lambda: _evaluated(prometheus))
    assert {rule["name"] for rule in rules} == ALERTS
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    for rule in rules:
        prometheus.query(rule["query"])
    firing = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    assert firing <= {"CotenantTenantAtMemoryLimit"}, "the pod of the test was refused two allocations"


def _evaluated(prometheus: Prometheus) -> list[dict[str, Any]]:
    rules = prometheus.rules()
    return rules if all(rule["health"] != "unknown" for rule in rules) else []


def test_what_is_scraped_are_the_metrics_of_the_table(prometheus: Prometheus) -> None:
    found = {one["metric"]["__name__"] for one in prometheus.query('{job=~"agent|scheduler|daemon"}')}
    found -= {name for name in found if name.startswith(("scrape_", "up"))}
    rows = (*METRICS, *HAMI_GPU, *HAMI_POD)
    known = {row.name for row in rows if row.type is not Type.HISTOGRAM}
    known |= {f"{row.name}{end}" for row in rows if row.type is Type.HISTOGRAM for end in ("_bucket", "_sum", "_count")}
    assert found == known


def test_promtool_accepts_the_rules_and_the_alerts_fire_when_they_should() -> None:
    promtool = tool("promtool")
    subprocess.run([promtool, "check", "rules", "--lint-fatal", str(RULES)], check=True, capture_output=True)
    tested = subprocess.run(
        [promtool, "test", "rules", str(Path(__file__).parent / "rules_test.yaml")], capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    cases = (Path(__file__).parent / "rules_test.yaml").read_text()
    assert {name for name in ALERTS if re.search(rf'labels: .*alertname="{name}"', cases)} == ALERTS


def test_dashboards_are_complete_and_name_only_known_metrics() -> None:
    assert [path.stem for path in DASHBOARDS] == ["cluster", "node", "tenant", "tuning"]
    known = {row.name for row in METRICS}
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        assert board["uid"] == f"cotenant-{path.stem}"
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        assert len(set(places)) == len(places)
        for title, expression in expressions(path):
            named = set(re.findall(r"\bcotenant_\w+", expression))
            assert {re.sub(r"_bucket$", "", name) for name in named} <= known, title


def test_sums_leave_out_values_that_are_not_known() -> None:
    unknown = {row.name for row in GPU if row.value is not None and row.value(gpu(0)) is None}
    blank = tenant("new")
    unknown |= {row.name for row in TENANT if row.value is not None and row.value(blank) is None}
    unknown |= {row.name for row in TENANT_GPU if row.value is not None and row.value(blank.gpus[0]) is None}
    assert "cotenant_gpu_memory_used_bytes" in unknown
    summed = 0
    for path in DASHBOARDS:
        for title, expression in expressions(path):
            if re.match(r"(sum|avg|topk)\b", expression) and unknown & set(re.findall(r"\bcotenant_\w+", expression)):
                summed += 1
                assert ">= 0" in expression, f"{title}: one NaN makes the sum NaN"
    assert summed


def test_every_metric_of_tenants_and_gpus_is_on_a_dashboard() -> None:
    shown = " ".join(expression for path in DASHBOARDS for _, expression in expressions(path))
    rows = [row for row in METRICS if row.name.startswith(("cotenant_gpu_", "cotenant_tenant_", "cotenant_scheduler_"))]
    absent = {row.name for row in rows if not re.search(rf"\b{row.name}(_bucket)?\b", shown)}
    rest = {"cotenant_gpu_compute_allocatable_ratio"}  # what the ratio of the assigned compute could be at most
    rest |= {"cotenant_scheduler_holds", "cotenant_scheduler_nodes", "cotenant_scheduler_terms_total"}
    rest |= {"cotenant_scheduler_errors_total"}
    assert absent == rest
