# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of a cluster in a real browser, with TLS: sign in, look, act and sign out as a user of one namespace."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from cotenant.history.quantities import QUEUE, Entity, Sample
from cotenant.history.store import History
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.settings import KubeSettings, MetricsPart
from tests.kube.control_plane import until
from tests.kube.http import beside
from tests.web.browser import DESKTOP, SCREENSHOTS, picture
from tests.web.kube.test_agents import add_agent, an_agent
from tests.web.kube.test_pages import PROFILE
from tests.web.kube.world import ADMIN, ALICE, Cluster, Pages, large_cluster, shared_cluster, some_pages

pytestmark = pytest.mark.slow

PAGES = {
    "overview": "/",
    "queue": "/queue",
    "node": "/nodes/n1",
    "pod": "/jobs/a/train",
    "waiting-pod": "/jobs/a/large",
    "whatif": "/whatif?memory=2000&group=a",
}
HOSTILE = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


@asynccontextmanager
async def over_tls(cluster: Cluster, folder: Path, **about: Any) -> AsyncIterator[Pages]:
    leaf = trustme.CA().issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    certificates = Certificates(folder / "tls.crt", folder / "tls.key", report=print)
    async with some_pages(cluster, actions=True, certificates=certificates, **about) as pages:
        yield pages


def sign_in(page: Page, url: str, token: str) -> None:
    page.goto(url)
    page.fill("input[name=token]", token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/")
    page.wait_for_selector(".status.good")


def busy_cluster() -> Cluster:
    cluster = shared_cluster()
    hostile = {"cotenant.io/workload": "bert", "cotenant.io/affinity": HOSTILE}
    cluster.add_pod("a", "train", "n1", 0, annotations=hostile, labels={"label": HOSTILE})
    cluster.output = f"{HOSTILE}\n".encode() * 20
    cluster.profiles.merge("n1.0", PROFILE)
    return cluster


def test_a_user_signs_in_looks_acts_and_signs_out(browser: Browser, tmp_path: Path) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    cluster = busy_cluster()
    with beside(over_tls(cluster, tmp_path)) as pages:
        url = f"https://localhost:{pages.port}"
        context = browser.new_context(**DESKTOP, ignore_https_errors=True)
        try:
            page, complaints = context.new_page(), list[str]()
            page.on("console", lambda one: complaints.append(one.text) if one.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            sign_in(page, url, ALICE)
            for name, path in PAGES.items():
                page.goto(url + path)
                if page.locator("body[data-live]").count():
                    page.wait_for_selector(".status.good")
                picture(page, f"cluster-{name}")
                assert "secret" not in page.content()
                serious = [
                    one["id"]
                    for one in Axe().run(page).response["violations"]
                    if one["impact"] in ("serious", "critical")
                ]
                assert serious == [], name
                assert page.evaluate("window.harmed") is None
            page.goto(f"{url}/queue")
            page.get_by_role("button", name="Cancel").first.click()
            page.get_by_role("button", name="Yes").click()
            expect(page.locator("#toast")).to_contain_text("a/large is being deleted")
            expect(page.get_by_role("link", name="large")).to_have_count(0)
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url(f"{url}/signin")
            page.goto(url)
            assert page.url == f"{url}/signin"
            assert complaints == []
        finally:
            context.close()
    assert ("a", "large") not in cluster.pods


@asynccontextmanager
async def watched_cluster(folder: Path) -> AsyncIterator[Pages]:
    """The pages of a cluster with a slowed pod, an idle GPU, a pod that waits, and a recorded hour."""
    cluster, now = busy_cluster(), time.time()
    cluster.add_pod("b", "hidden-job", "n2", 1, memory=12_000)
    add_agent(cluster, "n2", "127.0.0.1")
    values = {"gpus": 4, "gpus_occupied": 2, "gpus_shared": 1, "gpus_of_tenants": 3, "running": 3, "waiting": 2}
    with History.open(None) as history:
        for ago in range(4140, 600, -60):  # the last sample counts for two minutes, so an hour in all
            own = {name: values[name] / 2 for name in ("gpus_occupied", "gpus_of_tenants", "running", "waiting")}
            queues: dict[str, Mapping[str, float]] = {"all": values, "namespace a": own, "namespace b": own}
            history.record(now - ago, [Sample(Entity(QUEUE, name), found) for name, found in queues.items()])
        async with an_agent('cotenant_gpu_utilization_ratio{node="n2",gpu="GPU-n2-1"} 0.01') as port:
            settings = KubeSettings(metrics=MetricsPart(port=port))
            async with over_tls(cluster, folder, history=history, settings=settings) as pages:
                await until(lambda: pages.parts.watch.agents.readings)
                yield pages


def test_the_pages_alone_answer_who_slows_whom_why_a_pod_waits_what_is_wasted_and_what_a_day_cost(
    browser: Browser, tmp_path: Path
) -> None:
    """As a new user would look: the overview, one click on the pod that waits, and one on the history."""
    with beside(watched_cluster(tmp_path)) as pages:
        context = browser.new_context(**DESKTOP, ignore_https_errors=True)
        try:
            page = context.new_page()
            sign_in(page, f"https://localhost:{pages.port}", ADMIN)
            slowed = "train runs at 0.61× of its speed alone on n1 GPU 0, beside secret-job"
            expect(page.locator(".insights .slow")).to_contain_text(slowed)
            wasted = "n2 GPU 1 is 1 % busy, but 75 % of it is promised to hidden-job"
            expect(page.locator(".insights .wasted")).to_contain_text(wasted)
            picture(page, "answers-overview")
            page.get_by_role("link", name="large", exact=True).click()
            why = page.locator("[data-key=why]")
            expect(why).to_contain_text("needs 99000 MiB on one GPU; the freest has 16000 MiB free")
            expect(why).to_contain_text("What would let it start")
            page.get_by_role("link", name="History").click()
            cost = page.locator(".insights")
            expect(cost).to_contain_text("The last day cost 2.00 GPU-hours for the pods of 2 namespaces")
            expect(page.locator(".totals")).to_contain_text("2.00 of 4.00")
            expect(page.get_by_role("row", name="a 1.00 1.50 1.5")).to_have_count(1)
            picture(page, "answers-history")
        finally:
            context.close()


def test_a_large_cluster_is_shown_at_once(browser: Browser, tmp_path: Path) -> None:
    with beside(over_tls(large_cluster(), tmp_path)) as pages:
        url = f"https://localhost:{pages.port}"
        context = browser.new_context(**DESKTOP, ignore_https_errors=True)
        try:
            page = context.new_page()
            sign_in(page, url, ADMIN)
            began = time.monotonic()
            page.goto(url)
            expect(page.locator("a.small")).to_have_count(512)
            took = time.monotonic() - began
            page.screenshot(path=SCREENSHOTS / "cluster-large.png")
            print(f"512 GPUs with 2,000 pods were shown after {took:.2f} s")
            assert took < 20
        finally:
            context.close()
