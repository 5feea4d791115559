# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The predictor's command: from a table of pairs to a file, a score and a list."""

import json
from pathlib import Path

import pytest

from tests.cli.command import refusal, run

HEADER = "gpu,job1,job2,solo1_steps_s,solo2_steps_s,norm1,norm2,oom\n"
JOBS = [("A (batch size 8)", 10), ("A (batch size 16)", 6), ("B (batch size 8)", 20), ("C", 3)]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Two types of GPU, on which a job is slower beside those that come later in the list."""
    rows = [
        f"{gpu},{one},{other},{rate},{other_rate},{0.9 - 0.1 * j:.2f},{0.9 - 0.1 * i:.2f},0"
        for gpu in ("fast", "slow")
        for i, (one, rate) in enumerate(JOBS)
        for j, (other, other_rate) in enumerate(JOBS[: i + 1])
    ]
    path = tmp_path / "pairs.csv"
    path.write_text(HEADER + "\n".join([*rows, "fast,C,D,3,3,0,0,1"]) + "\n")
    return path


def test_what_was_trained_is_shown(pairs: Path, tmp_path: Path) -> None:
    trained = tmp_path / "trained.json"
    assert run("predictor", "train", pairs, "--out", trained).returncode == 0
    shown = json.loads(run("predictor", "show", trained, "-o", "json").stdout)
    assert [(one["gpu"], one["types"], one["directions"]) for one in shown["known"]] == [
        ("fast", 4, 16),
        ("slow", 4, 16),
    ]
    assert shown["shares"]["constant"] > 0
    assert shown["least_certain"] == []  # all were measured
    table = run("predictor", "show", trained).stdout
    assert "partner_family" in table
    assert "slow" in table


def test_what_is_shipped_is_shown_without_a_file() -> None:
    shown = json.loads(run("predictor", "show", "--output", "json").stdout)
    assert shown["shares"]["constant"] == 0.337
    assert shown["known"] == []


def test_evaluation_has_a_row_for_each_type_of_gpu_and_share_of_pairs(pairs: Path) -> None:
    done = run("predictor", "evaluate", pairs, "--splits", "2", "-o", "json")
    rows = json.loads(done.stdout)
    assert [(row["gpu"], row["seen"]) for row in rows] == [
        (gpu, seen) for gpu in ("fast", "slow") for seen in (0.2, 0.4, 0.8)
    ]
    assert all(0 <= row["error"] < 0.5 and 0 <= row["covered"] <= 1 for row in rows)


def test_what_cannot_be_used_is_refused_in_one_line(pairs: Path, tmp_path: Path) -> None:
    assert refusal("predictor", "train", pairs) == "predictor train: expected --out FILE for the trained predictor"
    assert "expected a CSV file" in refusal("predictor", "evaluate")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("gpu,job1\nfast,A\n")
    assert "wrong.csv: no column job2, " in refusal("predictor", "evaluate", wrong)
    wrong.write_text(HEADER + "fast,A,B,1,1,nan,1,0\n")
    assert "wrong.csv:2: norm1 is" in refusal("predictor", "train", wrong, "--out", tmp_path / "none.json")
    wrong.write_text(HEADER + "fast,A,B,1,1,0.5,9,0\n")
    assert "A next to B on fast: speed 9 relative to alone; expected at most 1.5" in refusal(
        "predictor", "evaluate", wrong
    )
    wrong.write_text(HEADER + "fast,A,B,1,1,0.5,1,0\n")
    assert "only 1 pair on fast; expected at least 2" in refusal("predictor", "evaluate", wrong)
    assert "expected a file that `cotenant predictor train` wrote" in refusal("predictor", "show", pairs)
    later = tmp_path / "later.json"
    later.write_text('{"fast": {"version": 2}}')
    assert "version 2, this program reads version 1" in refusal("predictor", "show", later)
    assert not (tmp_path / "none.json").exists()
