# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant profile` and `profiles` as a user runs them, against a real daemon."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.wire.profile import Profiles
from tests.cli.command import environment, refusal, run
from tests.local.daemon import Daemon, running_daemon
from tests.local.test_interference import TRAIN
from tests.node.tenants import BERT


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--look", "1") as one:
        yield one


def env_of(daemon: Daemon) -> dict[str, str]:
    return environment(COTENANT_STATE=str(daemon.state))


@pytest.mark.slow
def test_a_command_is_measured_alone_stopped_and_its_profile_passed_on(daemon: Daemon, tmp_path: Path) -> None:
    env, file = env_of(daemon), tmp_path / "profiles.json"
    wishes = ("--duration", "2s", "--memory", "100MiB", "--workload", "nap", "-o", "json")
    done = run("profile", *wishes, "--", sys.executable, "-c", TRAIN, env=env)
    assert done.returncode == 0, done
    measured = json.loads(done.stdout)
    assert measured["family"] == "nap"
    assert 0.02 <= measured["step_seconds"] < 0.2
    assert measured["measured_s"] >= 2
    job = json.loads(run("jobs", "-o", "json", env=env).stdout)[-1]
    assert daemon.ended(job["id"]).outcome == "cancelled"
    assert run("profiles", "export", str(file), env=env).stdout == f"1 profile written to {file}\n"
    assert "nap" in run("profiles", "show", "nap", env=env).stdout
    assert run("profiles", "remove", "nap", env=env).returncode == 0
    assert run("profiles", "list", env=env).stdout == "no profiles\n"
    assert run("profiles", "show", "nap", env=env).returncode == 4
    assert "nap" in run("profiles", "import", str(file), env=env).stdout


def test_profiles_of_cards_that_are_not_here_are_kept_and_said_to_be_of_no_use(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    file.write_bytes(msgspec.json.encode(Profiles(profiles=(msgspec.structs.replace(BERT, pcie_mib_s=1500.0),))))
    done = run("profiles", "import", str(file), "-o", "wide", env=env_of(daemon))
    assert "bert@32" in done.stdout
    assert "1500 MiB/s" in done.stdout
    assert done.stderr == "stored, but not used on this machine, which has no GPU of type V100\n"


def test_bad_files_and_words_are_refused_in_one_line(daemon: Daemon, tmp_path: Path) -> None:
    env, file = env_of(daemon), tmp_path / "later.json"
    file.write_text('{"version": 2, "profiles": []}')
    assert refusal("profiles", "import", str(file), env=env).startswith(f"{file}: profiles of version 2")
    assert "No such file" in refusal("profiles", "import", str(tmp_path / "none"), env=env)
    assert refusal("profiles", "show", env=env) == "profiles show: expected a workload"
    assert "expected a duration" in refusal("profile", "--duration", "soon", "--", "true", env=env)
    assert (
        refusal("profile", "--gpus", "2", "--", "true", env=env) == "--gpus 2: a profile is measured on exactly 1 GPU"
    )
    latency = ("submit", "--latency", "50ms", "--", "true")
    assert "run `cotenant profile` with this command first" in refusal(*latency, env=env)
