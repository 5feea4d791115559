# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A real Chromium, without sight and without a network of its own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.web.fake import Served

CHROMIUM = shutil.which("chromium")
MISSING = "needs the tool chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}
DARK: dict[str, Any] = {**DESKTOP, "color_scheme": "dark"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def signed_in(
    browser: Browser, served: Served, *, act: bool = False, **options: Any
) -> Iterator[tuple[Page, list[str]]]:
    """A page behind the sign-in, and what its console complains of."""
    context = browser.new_context(**{**DESKTOP, **options})
    page, complaints = context.new_page(), list[str]()

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(served.link(act=act))
        page.wait_for_url(f"{served.url}/")
        page.wait_for_selector(".status.good")
        yield page, complaints
    finally:
        context.close()


def picture(page: Page, name: str) -> None:
    """Keeps a picture of the whole page. The browser draws only rows that are visible, so all of them must be."""
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": page.evaluate("document.documentElement.scrollHeight")})
    page.wait_for_timeout(100)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
    page.set_viewport_size(size)


def open_page(page: Page, served: Served, path: str) -> None:
    """Opens a page, and waits until it is live if it can be."""
    page.goto(served.url + path)
    if page.locator("body[data-live]").count():
        page.wait_for_selector(".status.good")
    for box in page.locator(".chart:visible").all():
        box.locator("canvas, p").first.wait_for()
