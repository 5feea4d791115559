# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor of one machine: each fault is found with a fix, on folders of the test's own."""

import json
import os
from pathlib import Path

import pytest

from cotenant.local import doctor
from cotenant.local.doctor import CHECKS, Place, diagnose
from cotenant.wire.diagnosis import Severity
from tests.cli.command import run


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine without a fault, as far as folders show it."""
    for name in ("proc", "dev", "cgroup", "systemd", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return Place(
        state=tmp_path / "state",
        proc=tmp_path / "proc",
        devices=tmp_path / "dev",
        cgroups=tmp_path / "cgroup",
        systemd=tmp_path / "systemd",
    )


def found(place: Place, *checks: str) -> list[str]:
    return [one.text for one in diagnose(place).findings if one.check in checks]


def test_folders_without_a_fault_have_no_finding(place: Place) -> None:
    assert found(place, "permissions", "cgroups", "disk", "systemd", "schedulers") == []


def test_other_schedulers_are_found_by_their_processes(place: Place) -> None:
    (place.proc / "17").mkdir()
    (place.proc / "17" / "comm").write_text("slurmd\n")
    (place.proc / "18").mkdir()
    assert found(place, "schedulers") == ["Slurm runs here and may give out the same GPUs"]


def test_another_daemon_is_found_and_the_own_one_is_not(place: Place) -> None:
    (place.state / "journal.db.lock").write_text("17")
    for pid, words in (("17", "python -m cotenant up"), ("18", "/usr/bin/cotenant up --web 0"), ("19", "vi cotenant")):
        (place.proc / pid).mkdir()
        (place.proc / pid / "cmdline").write_text(words.replace(" ", "\0"))
    (finding,) = (one for one in diagnose(place).findings if one.check == "schedulers")
    assert finding.text == "is another cotenant daemon, which gives out the same GPUs"
    assert finding.about == "process 18"
    (place.proc / "17" / "cmdline").unlink()
    assert found(place, "schedulers") == [], "a single daemon is nothing to report, whoever started it"


def test_control_groups_and_systemd(place: Place) -> None:
    (place.cgroups / "cgroup.controllers").write_text("cpu\n")
    place.systemd.rmdir()
    assert found(place, "cgroups", "systemd") == [
        "has no controllers memory, pids",
        "does not run: nothing restarts the daemon after a boot",
    ]
    (place.cgroups / "cgroup.controllers").unlink()
    assert found(place, "cgroups") == ["control groups of version 2 are not mounted"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_device_files_that_may_not_be_opened(place: Place) -> None:
    (place.devices / "nvidia0").touch(mode=0)
    assert found(place, "permissions") == ["this user may not open it for reading and writing"]


def test_a_full_disk_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 60)
    (one,) = [one for one in diagnose(place).findings if one.check == "disk"]
    assert one.severity is Severity.ERROR
    assert "cotenant prune" in one.fix


def test_the_command_says_what_it_checked_and_exits_with_the_worst(tmp_path: Path) -> None:
    done = run("doctor", "-o", "json")
    answer = json.loads(done.stdout)
    assert answer["checked"] == list(CHECKS)
    severities = {one["severity"] for one in answer["findings"]}
    assert done.returncode == (7 if "error" in severities else 6 if severities else 0)
    text = run("doctor")
    assert text.returncode == done.returncode
    assert ("  fix: " in text.stdout) == bool(severities)
