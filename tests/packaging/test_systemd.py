# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The units of systemd: systemd itself accepts them, they are hardened, and a stopped daemon leaves its jobs alone."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.native import kit as native
from tests.packaging import kit

UNITS = ("user", "system")
UNKNOWN_BEFORE_254 = "Unknown key 'DelegateSubgroup'"


def text_of(kind: str, name: str = "cotenant.service") -> str:
    return files("cotenant.local").joinpath("systemd", kind, name).read_text()


def installed_unit(kind: str, folder: Path) -> Path:
    """A copy of the unit whose command is a program of this machine."""
    unit = folder / "cotenant.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={native.tool('true')}", text_of(kind), flags=re.MULTILINE))
    if kind == "system":
        (folder / "cotenant.socket").write_text(text_of(kind, "cotenant.socket"))
    return unit


@pytest.mark.parametrize("kind", UNITS)
def test_systemd_finds_no_fault_in_a_unit(kind: str, tmp_path: Path) -> None:
    analyze = native.tool("systemd-analyze")
    unit = installed_unit(kind, tmp_path)
    mode = ["--user"] if kind == "user" else []
    done = kit.run([analyze, *mode, "verify", "--man=no", unit], env=kit.plain(XDG_RUNTIME_DIR=str(tmp_path)))
    lines = (done.stderr + done.stdout).splitlines()
    assert not [line for line in lines if "cotenant." in line and UNKNOWN_BEFORE_254 not in line]


def test_the_unit_of_the_machine_is_hardened(tmp_path: Path) -> None:
    """As far as a daemon can be that becomes any user: root with a few capabilities. The scale ends at 100."""
    unit = installed_unit("system", tmp_path)
    kit.run([native.tool("systemd-analyze"), "security", "--offline=true", "--threshold=50", "--no-pager", unit])


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_that_stops_leaves_jobs_and_gpus_alone(kind: str) -> None:
    text = text_of(kind)
    assert "KillMode=process" in text
    assert not re.search(r"^(PrivateDevices|ProtectClock|DevicePolicy|MemoryDenyWriteExecute)=", text, re.MULTILINE)


@pytest.mark.slow
def test_an_installed_wheel_has_the_units(base: kit.Installed) -> None:
    found = base.folder.rglob("local/systemd/*/cotenant.service")
    assert {unit.parent.name for unit in found} == set(UNITS)
    more = {path.name for path in base.folder.rglob("local/systemd/system/*")}
    assert more == {"cotenant.service", "cotenant.socket", "tmpfiles.conf", "sysusers.conf"}
