# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor of one machine: each fault is found with a fix, on folders of the test's own."""

import json
import os
import pwd
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant import __version__
from cotenant.client.addresses import state_folder
from cotenant.client.problems import NoDaemonError
from cotenant.errors import DeviceError, InputError
from cotenant.local import doctor, service
from cotenant.local.doctor import CHECKS, Place, diagnose
from cotenant.local.state_folder import SYSTEM_STATE
from cotenant.node.devices.backend import Backend, NoDriverError
from cotenant.node.devices.simulated import SimulatedBackend
from cotenant.wire.diagnosis import Severity
from tests.cli.command import run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A machine without a fault, as far as folders show it; its systemctl answers from files."""
    for name in ("proc", "dev", "cgroup", "systemd", "state", "bin", "run", "config", "root"):
        (tmp_path / name).mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    program = tmp_path / "bin" / "systemctl"
    version = '[ "$1" != --version ] || { echo "systemd 252 (252.39)"; exit; }'
    words = f"for word; do [ ! -f {tmp_path}/$word ] || cat {tmp_path}/$word; done"
    program.write_text(f"#!/bin/sh\n{version}\n{words}\n")
    program.chmod(0o755)
    for name, state in (("ActiveState", "active"), ("UnitFileState", "enabled")):
        (tmp_path / name).write_text(state)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(service, "check_readable", lambda: None)
    return Place(
        state=tmp_path / "state",
        runtime=tmp_path / "run",
        config=tmp_path / "config",
        proc=tmp_path / "proc",
        devices=tmp_path / "dev",
        cgroups=tmp_path / "cgroup",
        systemd=tmp_path / "systemd",
        shared_memory=tmp_path,
        root=tmp_path / "root",
    )


def found(place: Place, *checks: str) -> list[str]:
    return [one.text for one in diagnose(place).findings if one.check in checks]


def test_folders_without_a_fault_have_no_finding(place: Place) -> None:
    assert found(place, "permissions", "cgroups", "limits", "disk", "systemd", "daemon", "schedulers") == []


def test_other_schedulers_are_found_by_their_processes(place: Place) -> None:
    (place.proc / "17").mkdir()
    (place.proc / "17" / "comm").write_text("slurmd\n")
    (place.proc / "18").mkdir()
    assert found(place, "schedulers") == ["Slurm runs here and may give out the same GPUs"]


def test_another_daemon_is_found_and_the_own_one_is_not(place: Place) -> None:
    assert place.state is not None
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
    assert found(place, "cgroups") == ["no control groups are mounted, which limit jobs"]
    for name in ("cpu", "memory", "pids"):
        (place.cgroups / name).mkdir()
    assert found(place, "cgroups") == [], "version 1 limits jobs, too"


def test_device_files_that_may_not_be_opened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.devices / "nvidia0").touch(mode=0o600)
    assert found(place, "permissions") == []
    (place.runtime / "cotenant.sock").touch(mode=0o666)
    assert found(place, "permissions") == ["not all users may open it, so jobs of some may fail"]
    (place.devices / "nvidia0").chmod(0o666)
    assert found(place, "permissions") == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert found(place, "permissions") == [
        "this user may not open it for reading and writing",
        "this user may not open the socket of the daemon",
    ]


def test_a_program_that_users_of_the_service_cannot_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise InputError("/private/bin/python: only root can use it: install it elsewhere")

    monkeypatch.setattr(service, "check_readable", refuse)
    assert found(place, "permissions") == [], "a daemon of one user needs no other readers"
    service.install(service.system_service(place.root))
    (one,) = [one for one in diagnose(place).findings if one.check == "permissions"]
    assert (one.about, one.text, one.fix) == ("/private/bin/python", "only root can use it", "install it elsewhere")


def test_a_driver_that_is_missing_is_a_warning_and_one_that_fails_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(error: Exception) -> Callable[[], Backend]:
        def find() -> Backend:
            raise error

        return find

    monkeypatch.setattr(doctor, "find_gpus", raising(NoDriverError("no driver is installed")))
    (one,) = [one for one in diagnose(place).findings if one.check == "drivers"]
    assert (one.severity, one.text) == (Severity.WARNING, "no driver is installed")
    monkeypatch.setattr(doctor, "find_gpus", raising(DeviceError("Driver/library version mismatch")))
    (one,) = [one for one in diagnose(place).findings if one.check == "drivers"]
    assert one.severity is Severity.ERROR
    assert "load the kernel module of the installed driver again" in one.fix


def test_an_unhealthy_gpu_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimulatedBackend(1)
    monkeypatch.setattr(backend, "faults", lambda: {"GPU-7": "Xid 79"}, raising=True)
    monkeypatch.setattr(doctor, "find_gpus", lambda: backend)
    (one,) = [one for one in diagnose(place).findings if one.check == "drivers"]
    assert (one.severity, one.about, one.text) == (Severity.ERROR, "GPU GPU-7", "is unhealthy: Xid 79")


def test_limits_that_are_low(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    monkeypatch.setattr(doctor, "find_library", lambda: None)
    monkeypatch.setattr(doctor, "LEAST_SHARED", 1 << 60)
    texts = found(place, "limits")
    assert [text.partition(" ")[0] for text in texts] == ["has", "at", "is"]
    assert "at most 1024; 4096 are needed for many jobs" in texts
    monkeypatch.setattr(doctor, "LEAST_SHARED", 1)
    assert any("has 0 MiB" in text for text in found(replace(place, shared_memory=place.root / "none"), "limits"))


@pytest.mark.parametrize(("status", "count"), [(0, 0), (doctor.UNSYNCHRONISED, 1), (None, 0)])
def test_a_clock_that_is_not_synchronised(
    place: Place, monkeypatch: pytest.MonkeyPatch, status: int | None, count: int
) -> None:
    monkeypatch.setattr(doctor, "_clock_status", lambda: status)
    assert len(found(place, "clock")) == count


def test_a_full_disk_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 60)
    monkeypatch.setattr(doctor, "LEAST_FREE_FILES", 1 << 60)
    of_bytes, of_files = [one for one in diagnose(place).findings if one.check == "disk"]
    assert of_bytes.severity is of_files.severity is Severity.ERROR
    assert "MiB free" in of_bytes.text
    assert "files" in of_files.text
    assert "cotenant prune" in of_bytes.fix
    assert found(replace(place, state=None), "disk") == [], "the disk of the daemon for all users"


def test_a_state_folder_that_cannot_be_written_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "this user may not write there" in found(place, "disk")


def test_a_service_that_is_of_another_version_stopped_or_disabled(place: Place, tmp_path: Path) -> None:
    old = "version 252 cannot delegate control groups to jobs: their CPUs are counted and not enforced"
    units = service.system_service(place.root)
    service.install(units)
    assert found(place, "systemd") == [old]
    next(iter(units.contents)).write_text("[Service]\n")
    (tmp_path / "ActiveState").write_text("failed")
    (tmp_path / "UnitFileState").write_text("disabled")
    assert set(found(place, "systemd")) == {
        old,
        "is not as this version writes it: differs from this version",
        "has failed, and systemd does not start it again",
        "does not start with the machine",
    }
    (tmp_path / "ActiveState").write_text("inactive")
    assert "is stopped" in found(place, "systemd")
    (place.cgroups / "cgroup.controllers").unlink()
    assert old not in found(place, "systemd")


def test_a_daemon_of_one_user_that_ends_at_logout(place: Place) -> None:
    service.install(service.user_service(place.config))
    assert found(place, "systemd") == [
        "the daemon of this user ends with the last session of the user, and so do its jobs"
    ]
    lingering = place.root / "var/lib/systemd/linger" / pwd.getpwuid(os.geteuid()).pw_name
    lingering.parent.mkdir(parents=True)
    lingering.touch()
    assert found(place, "systemd") == []


def test_a_daemon_of_another_version_or_without_an_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.state is not None
    (place.state / "cotenant.sock").touch()
    answers = {"version": "0.0.1"}

    class Answering:
        def __init__(self, at: Path, timeout_s: float) -> None:
            self.at = at

        def get(self, path: str, kind: type) -> dict[str, str]:
            if self.at == place.socket:
                raise NoDaemonError("no daemon is running")
            return answers

    monkeypatch.setattr(doctor, "Client", Answering)
    assert found(place, "daemon") == [f"the daemon has version 0.0.1, this command {__version__}"]
    answers["version"] = __version__
    assert found(place, "daemon") == []
    (place.runtime / "cotenant.sock").touch()
    assert found(place, "daemon") == ["no answer: no daemon is running"]


def test_a_daemon_that_systemd_has_stopped_is_not_asked(place: Place, tmp_path: Path) -> None:
    """It would be started to answer, and the doctor changes nothing."""
    service.install(service.system_service(place.root))
    (place.runtime / "cotenant.sock").touch()
    assert len(found(place, "daemon")) == 1
    (tmp_path / "ActiveState").write_text("inactive")
    assert found(place, "daemon") == []


def test_which_state_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path))
    monkeypatch.delenv("COTENANT_STATE", raising=False)
    assert doctor.this_place().state == state_folder()
    (tmp_path / "cotenant.sock").touch()
    for uid, state in ((0, SYSTEM_STATE), (1000, None)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert doctor.this_place().state == state


def test_every_finding_has_a_fix(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.systemd.rmdir()
    (place.cgroups / "cgroup.controllers").unlink()
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 60)
    findings = diagnose(place).findings
    assert len(findings) > 2
    assert [one for one in findings if not one.fix] == []


def test_the_command_says_what_it_checked_and_exits_with_the_worst(tmp_path: Path) -> None:
    done = run("doctor", "-o", "json")
    answer = json.loads(done.stdout)
    assert answer["checked"] == list(CHECKS)
    severities = {one["severity"] for one in answer["findings"]}
    assert done.returncode == (7 if "error" in severities else 6 if severities else 0)
    text = run("doctor")
    assert text.returncode == done.returncode
    assert ("  fix: " in text.stdout) == bool(severities)
