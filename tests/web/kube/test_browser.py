# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of a cluster in a real browser, with TLS: sign in, look, act and sign out as a user of one namespace."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trustme
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from cotenant.kube.api.certificates import Certificates
from tests.kube.http import beside
from tests.web.browser import DESKTOP, SCREENSHOTS, picture
from tests.web.kube.test_pages import PROFILE
from tests.web.kube.world import ADMIN, ALICE, Cluster, Pages, large_cluster, shared_cluster, some_pages

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
async def over_tls(cluster: Cluster, folder: Path) -> AsyncIterator[Pages]:
    leaf = trustme.CA().issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    leaf.private_key_pem.write_to_path(str(folder / "tls.key"))
    certificates = Certificates(folder / "tls.crt", folder / "tls.key", report=print)
    async with some_pages(cluster, actions=True, certificates=certificates) as pages:
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
