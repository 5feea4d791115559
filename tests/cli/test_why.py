# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant why` as a user runs it: recorded decisions replayed with every node's score or reason."""

import json
from pathlib import Path

import pytest

from cotenant.cli.why import answer_lines
from tests.cli.command import refusal, run

POLICIES = ["fgd", "random", "spread/binpack", "topology+numa", "fragmentation@online"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decisions of several policies about a job in the busiest hours of the demo."""
    out = tmp_path_factory.mktemp("recorded")
    words = ("simulate", "--policy", ",".join(POLICIES), "--mode", "timed", "--record", "demo-0300", "--limit", "310")
    done = run(*words, "--out", out, timeout=120)
    assert done.returncode == 0
    return out


def decisions_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("decision-*.json"))


def decisions(folder: Path) -> list[Path]:
    found = decisions_in(folder)
    assert len(found) == len(POLICIES)
    return found


def some(folder: Path, policy: str = "fgd") -> Path:
    return next(path for path in decisions(folder) if json.loads(path.read_text())["policy"] == policy)


def edited(folder: Path, tmp_path: Path, old: str, new: str) -> Path:
    content = some(folder).read_text()
    assert old in content
    (tmp_path / "edited.json").write_text(content.replace(old, new))
    return tmp_path / "edited.json"


@pytest.mark.slow
def test_replay_of_each_policy_says_what_was_recorded(folder: Path) -> None:
    seen = set()
    for path in decisions(folder):
        document = json.loads(path.read_text())
        if document["policy"] in seen:
            continue
        seen.add(document["policy"])
        done = run("why", "--decision", path, "--output", "json")
        assert done.returncode == 0, done
        answer = json.loads(done.stdout)
        assert answer["as_recorded"] is True
        assert answer["job"] == document["job"]["id"]
        assert answer["policy"] == document["policy"]
        if document["policy"] != "random":
            assert answer["slots"] == document["slots"]
        nodes = {node["machine"]["name"] for node in document["nodes"]}
        assert {fit["node"] for fit in answer["fits"]} | set(answer["reasons"]) == nodes
    assert seen == {policy.removesuffix("@online") for policy in POLICIES}


@pytest.mark.slow
def test_table_shows_scores_and_reasons(folder: Path) -> None:
    path = some(folder)
    document = json.loads(path.read_text())
    printed = run("why", "--decision", path, "--most", "1").stdout
    assert printed.startswith(f"{document['job']['id']} under fgd: {document['slots'][0]['node']} GPU ")
    assert "score" in printed
    assert "more nodes that fit" in printed
    wide = run("why", "--decision", path, "--most", "1", "-o", "wide").stdout
    assert "more nodes that fit" not in wide
    assert len(wide) > len(printed)


def test_job_that_fitted_nowhere_has_a_reason_for_every_node(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id\na\nb\nc\n")
    words = ("simulate", "--trace", "jobs.csv", "--nodes", "2x1", "--policy", "fgd", "--load", "1.5")
    run(*words, "--record", "a,b,c", "--out", "out", cwd=tmp_path)
    (path,) = (path for path in decisions_in(tmp_path / "out") if not json.loads(path.read_text())["slots"])
    answer = json.loads(run("why", "--decision", path, "-o", "json").stdout)
    assert answer["fits"] == answer["slots"] == []
    assert [reason["available"] for reason in answer["reasons"].values()] == [0, 0]
    assert "fits nowhere" in run("why", "--decision", path).stdout


def test_edited_decision_is_detected(folder: Path, tmp_path: Path) -> None:
    node = json.loads(some(folder).read_text())["slots"][0]["node"]
    path = edited(folder, tmp_path, '"slots": [', '"slots": [{"node": "elsewhere", "gpus": [0]},')
    done = run("why", "--decision", path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "the replay differs from what was recorded" in line
    assert line.endswith("was the file edited?")
    assert node in line


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"version": 1', '"version": 7', "not a recorded decision of version 1 (its version is 7)"),
        ('"policy": "fgd"', '"policy": "nope"', "unknown policy 'nope'; there are: "),
        ('"policy": "fgd"', '"policy": "fgd", "colour": 1', "unknown field 'colour'"),
        ('"slots": [', '"slots": ', "not a recorded decision: "),
    ],
)
def test_broken_decision_is_refused_in_one_line(
    folder: Path, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    line = refusal("why", "--decision", edited(folder, tmp_path, old, new))
    assert line.startswith(f"{tmp_path}/edited.json: ")
    assert expected in line


def test_decision_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    assert refusal("why", "--decision", "no.json", cwd=tmp_path) == (
        "no.json: cannot be read (No such file or directory); expected a recorded decision"
    )
    assert "Is a directory" in refusal("why", "--decision", tmp_path)
    assert refusal("why", "--decision", "/dev/null").startswith("/dev/null: not a recorded decision")


def test_decision_is_needed() -> None:
    done = run("why")
    assert done.returncode == 2
    assert "--decision" in done.stderr


def test_job_beside_a_file_of_one_decision_is_refused_with_what_to_write(folder: Path) -> None:
    one = next(folder.glob("decision-*.json"))
    assert refusal("why", "--decision", one, "two.json") == (
        f"two.json: --decision {one} has one decision and takes no job or pod; write `cotenant why --decision FILE` "
        "for each file, or `cotenant why JOB` without --decision"
    )


def test_neighbours_are_listed_with_predicted_and_measured_speed() -> None:
    company = [
        {"job": "j-1", "workload": "bert@32", "predicted": 0.58, "measured": 0.8},
        {"job": "j-2", "workload": "lstm", "predicted": 0.58, "measured": None},
    ]
    placed = {"job": "j-1", "state": "running", "policy": "cotenant", "placed_on": [0], "reason": "best score 0"}
    assert answer_lines(placed | {"company": company, "fits": [], "reasons": {}, "ahead": 0}, wide=False)[2:] == [
        "j-1 (bert@32): predicted 58%, measured 80% of its speed alone",
        "j-2 (lstm): predicted 58%, measured - of its speed alone",
    ]
    alone = answer_lines(placed | {"company": company[:1], "fits": [], "reasons": {}, "ahead": 0}, wide=False)
    assert "predicted" not in " ".join(alone), "alone there is nothing to predict"


def test_limits_that_nothing_enforces_are_said() -> None:
    placed = {"job": "j-1", "state": "running", "policy": "cotenant", "placed_on": [0], "reason": "best score 0"}
    lines = answer_lines(placed | {"notes": ["nothing holds"], "fits": [], "reasons": {}, "ahead": 0}, wide=False)
    assert lines[2:] == ["note: nothing holds"]
