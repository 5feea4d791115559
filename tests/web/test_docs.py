# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every page and every action is documented."""

import re
from pathlib import Path

from cotenant.web.local import VERBS
from cotenant.web.pages import PAGES
from cotenant.web.site import NAVIGATION

TEXT = (Path(__file__).parents[2] / "docs" / "howto" / "pages.md").read_text()


def test_every_page_has_a_section() -> None:
    titles = set(re.findall(r"^## (.*)$", TEXT, re.MULTILINE))
    assert {page.title for page in PAGES if page.title is not None} <= titles


def test_every_entry_of_the_navigation_is_a_page() -> None:
    assert {path for path, _ in NAVIGATION} <= {page.path for page in PAGES if page.title is not None}


def test_every_action_is_documented() -> None:
    actions = TEXT.partition("## Actions\n")[2].partition("\n## ")[0]
    assert {verb for verb in VERBS if verb in actions} == VERBS
