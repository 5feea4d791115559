# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""All pages with parts that are made from the code: a function turns the text of the page into the renewed text."""

from collections.abc import Callable, Mapping

from tools.reference import api, chart, commands, comparison, dialects, metrics, parity, python, resources, settings

PAGES: Mapping[str, Callable[[str], str]] = {
    "README.md": comparison.readme,
    "docs/reference/comparison.md": comparison.page,
    "docs/reference/metrics.md": metrics.page,
    "docs/reference/parity.md": parity.page,
    "docs/reference/api.md": api.page,
    "docs/reference/dialects.md": dialects.page,
    "docs/reference/help.md": commands.page,
    "docs/reference/kube-settings.md": settings.page,
    "docs/reference/python.md": python.page,
    "docs/reference/workload-profile.md": resources.page,
    **chart.pages(),
}
