# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pages that promise something name the test that shows it: every test that a page links to exists, and no row of a
table of promises is without one."""

import re
from pathlib import Path

import pytest

from tests.docs.test_house import PAGES, ROOT, named
from tests.docs.test_parity import names_in

TEST = re.compile(r"\]\(([^)#\s]*tests/[^)#\s]+\.(?:py|yaml))#([^)\s]+)\)")
THREATS = ROOT / "docs/explanation/threat-model.md"
BOUNDARIES = {
    "A tenant in a container",
    "A user of a namespace",
    "A node",
    "The network",
    "Users of one machine",
    "The supply chain",
}


def links_to_tests(page: Path, text: str | None = None) -> list[tuple[Path, str]]:
    """The tests that a page, or a text of it, links to: file and name."""
    links = TEST.findall(page.read_text() if text is None else text)
    return [((page.parent / path).resolve(), name) for path, name in links]


def sections(page: Path) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of all tables that have this header."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        first, _, *lines = table.splitlines()
        if first == head:
            found += [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if TEST.search(page.read_text())], ids=named)
def test_every_test_that_a_page_links_to_exists(page: Path) -> None:
    links = links_to_tests(page)
    assert [f"{named(path)}#{name}" for path, name in links if not path.exists() or name not in names_in(path)] == []


def test_every_boundary_of_the_threat_model_has_a_section_with_promises() -> None:
    found = sections(THREATS)
    assert {*found} >= BOUNDARIES
    assert [name for name in BOUNDARIES if not links_to_tests(THREATS, found[name])] == []


@pytest.mark.parametrize("boundary", sorted(BOUNDARIES))
def test_each_promise_of_the_threat_model_has_a_test_and_each_gap_says_so(boundary: str) -> None:
    listed = rows(sections(THREATS)[boundary], "| Attack | Promise | Test |")
    assert listed
    for attack, promise, shown in listed:
        assert bool(links_to_tests(THREATS, shown)) != promise.startswith("not promised"), attack


COMPATIBILITY = ROOT / "docs/reference/compatibility.md"
REQUIREMENTS = {
    "driver_runtime_management", "gpu_sharing", "virtualized_accelerator", "ai_inference", "advanced_inference_ingress",
    "high_performance_networking", "disaggregated_inference", "gang_scheduling", "cluster_autoscaling",
    "pod_autoscaling", "accelerator_metrics", "ai_service_metrics", "secure_accelerator_access", "workload_sandboxing",
    "robust_controller",
}  # fmt: skip
"""of the CNCF's list for AI conformance, version 1.37"""


def test_every_requirement_of_the_conformance_list_has_an_answer_and_each_claim_is_shown() -> None:
    listed = rows(COMPATIBILITY.read_text(), "| Requirement | Level | Here | Shown by |")
    assert {found[1] for row in listed if (found := re.match(r"`(\w+)`", row[0]))} >= REQUIREMENTS
    for requirement, level, here, shown in listed:
        assert level.startswith(("MUST", "SHOULD")), requirement
        assert here.startswith(("works", "in part", "not there", "not ours")), requirement
        assert not here.startswith(("works", "in part")) or "](" in shown, requirement


FAQ = ROOT / "docs/howto/faq.md"
QUESTIONS = dict(zip(*[iter(re.split(r"^### (.*)\n", FAQ.read_text(), flags=re.MULTILINE)[1:])] * 2, strict=True))


def test_there_are_questions() -> None:
    assert len(QUESTIONS) >= 30


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_names_where_it_was_asked_and_its_answer_what_shows_it(question: str) -> None:
    asked, _, answer = QUESTIONS[question].strip().partition("\n\n")
    assert re.match(r"Asked in (?:\[[\w-]+#\d+\]\(https://github\.com/[\w.-]+/[\w.-]+/issues/\d+\)(?:, )?)+\.$", asked)
    assert "](" in answer or "make bench ONLY=" in answer
