# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant conformance` over the stand-in driver: promises that are kept, and that are not."""

import ctypes.util
import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.conformance.bench import FULL, QUICK
from cotenant.conformance.kernels import FAULT, NOTHING, SPIN, ptx_for
from cotenant.conformance.report import Report, Way
from cotenant.conformance.running import Client, ClientError
from cotenant.conformance.suite import ALL, checks_for
from cotenant.node.containment import find_containment
from cotenant.node.shares import Means
from tests.cli.command import START, environment, refusal, run, wait_until
from tests.native import kit
from tests.node.mps_kit import processes_in

MEMORY = [one.name for one in ALL if one.name.startswith("memory-")]


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """No driver answers."""
    return environment(COTENANT_RUNTIME=str(tmp_path / "run"), COTENANT_LIBRARY=str(kit.library()))


@pytest.fixture
def env(plain: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """One GPU of the stand-in, of 4 GiB."""
    return plain | {
        "LD_LIBRARY_PATH": str(kit.standin()),
        "STANDIN_STATE": str(tmp_path / "state"),
        "STANDIN_MEMORY_MIB": "4096",
        "STANDIN_BACKING": "none",
    }


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--check", name)]


def rows_of(output: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["check"], row["rung"]): row for row in json.loads(output)["rows"]}


@pytest.mark.slow
def test_limits_of_memory_hold_and_the_report_says_that_it_was_no_gpu(env: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("conformance", "--quick", *only(*MEMORY), "--report", report, "-o", "json", env=env, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of(done.stdout)
    by_mps = {
        (one.name, str(way)) for one in ALL if one.name in MEMORY for way in (Way.MPS, Way.DRIVER) if way in one.ways
    }
    assert set(rows) == {(name, rung) for name in MEMORY for rung in ("preload", "strict")} | by_mps
    for (name, rung), row in rows.items():
        if rung in ("mps", "driver"):
            assert (row["result"], row["note"]) == ("skipped", "nvidia-cuda-mps-control is not installed")
            continue
        assert row["result"] == ("measured" if name in ("memory-refusal", "memory-resize") else "passed"), row
        assert row["device"] == "stand-in (Stand-in GPU)", (name, rung)
    assert rows["memory-limit", "preload"]["value"] == 100
    assert rows["memory-limit", "preload"]["metric"] == "IS-001 memory limit accuracy"
    assert rows["memory-shown", "strict"]["value"] == 1024
    written = Report(**json.loads(report.read_text()))
    assert (written.format, len(written.rows)) == (1, len(rows))


@pytest.mark.slow
def test_a_library_that_holds_nothing_fails(env: dict[str, str]) -> None:
    """Another library in its place."""
    found = ctypes.util.find_library("m")
    env["COTENANT_LIBRARY"] = str(next(Path("/").glob(f"lib*/**/{found}")))
    done = run("conformance", "--quick", *only("memory-limit"), "--rung", "preload", env=env, timeout=120)
    assert done.returncode == 1
    assert re.search(r"memory-limit +preload +failed +400 %", done.stdout)
    assert done.stderr.splitlines()[-1] == "cotenant: 1 promise not kept, in 1 row; the notes say more"
    assert "no figure is that of a GPU" in done.stderr


@pytest.mark.slow
def test_shares_and_neighbours_are_measured(env: dict[str, str]) -> None:
    """How well a share is held depends on the load of this machine: only the form is tested here."""
    names = ("compute-30", "compute-fairness", "compute-neighbour", "throughput", "killed-neighbour", "launch-cost")
    done = run("conformance", "--quick", *only(*names), "--rung", "preload", "-o", "json", env=env, timeout=120)
    rows = rows_of(done.stdout)
    assert {name for name, _ in rows} == set(names)
    assert rows["compute-30", "preload"]["value"] > 0
    assert 0 < rows["compute-fairness", "preload"]["value"] <= 1
    assert rows["killed-neighbour", "preload"]["result"] == "passed"
    assert rows["launch-cost", "preload"]["result"] == "measured"


def test_what_the_stand_in_cannot_show_is_skipped_and_never_passed(env: dict[str, str]) -> None:
    done = run("conformance", "--quick", *only("faulty-neighbour", "framework-jax"), "--rung", "preload", env=env)
    assert done.returncode == 0
    assert done.stdout.count("skipped") == done.stdout.count("the stand-in cannot show it") == 2


def test_in_a_slice_nothing_is_measured(env: dict[str, str]) -> None:
    done = run("run", "--memory", "1GiB", "--", *START, "conformance", env=env)
    assert done.returncode == 1
    assert "this shell is in a slice already" in done.stderr


def test_a_client_that_hangs_is_a_failed_check() -> None:
    hangs = ["sh", "-c", "echo starting >&2; sleep 60"]
    with Client(hangs, "GPU-0", 0.5) as client, pytest.raises(ClientError, match="exit code -9: starting"):
        client.wait_until_ready()
    with Client(["sleep", "60"], "GPU-0", 1) as client, pytest.raises(ClientError, match="did not end within 1 s"):
        client.result()
    with Client(["echo", "7"], "GPU-0", 60) as client, pytest.raises(ClientError, match="exit code 0"):
        client.result()


def test_a_client_that_fails_is_a_failed_check(env: dict[str, str]) -> None:
    env["STANDIN_FAULTS"] = "cuMemAlloc_v2=999"
    done = run("conformance", "--quick", *only("memory-limit"), "--rung", "preload", env=env)
    assert done.returncode == 1
    assert "cuMemAlloc: error 999" in done.stdout


def test_without_a_driver_it_says_what_it_needs(plain: dict[str, str]) -> None:
    done = run("conformance", env=plain)
    assert (done.returncode, done.stderr) == (1, "cotenant: no NVIDIA driver answers; the suite needs a GPU\n")


def test_wrong_options_are_refused(env: dict[str, str]) -> None:
    assert "--gpu 7: no such GPU; this machine has 1 GPU" in refusal("conformance", "--gpu", "7", env=env)
    assert "--check memory: no such check; `cotenant conformance --list`" in refusal("conformance", "--check", "memory")
    said = refusal("conformance", "--report", "/no/such/file", env=env)
    assert said == "--report /no/such/file: cannot be written: No such file or directory"


def test_checks_are_listed_without_a_gpu(plain: dict[str, str]) -> None:
    listed = run("conformance", "--list", env=plain).stdout
    assert all(one.name in listed for one in ALL)
    assert "IS-003 SM utilization accuracy" in listed


def test_interrupted_it_ends_its_clients(env: dict[str, str]) -> None:
    command = [*START, "conformance", *only("compute-neighbour")]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as suite:
        wait_until(lambda: bool(clients_of(env)))
        suite.send_signal(signal.SIGINT)
        suite.communicate(timeout=300)
    assert suite.returncode == 130
    wait_until(lambda: not clients_of(env))


def clients_of(env: dict[str, str]) -> list[int]:
    """The clients that use this stand-in."""
    mark, found = f"STANDIN_STATE={env['STANDIN_STATE']}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_client = b"cotenant.conformance.client" in (entry / "cmdline").read_bytes()
            if is_client and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_quick_run_has_fewer_checks_unless_they_are_named() -> None:
    assert {one.name for one in checks_for(FULL)} - {one.name for one in checks_for(QUICK)} == {
        "compute-10",
        "compute-50",
        "compute-80",
        "mps-clients",
        "framework-torch",
        "framework-jax",
        "framework-tensorflow",
        "framework-vllm",
    }
    assert [one.name for one in checks_for(QUICK, ["compute-10"])] == ["compute-10"]


@pytest.mark.parametrize(("capability", "target"), [((6, 1), b"sm_50"), ((7, 0), b"sm_50"), ((9, 0), b"sm_75")])
def test_the_kernels_are_source_for_the_oldest_gpu_of_a_driver(capability: tuple[int, int], target: bytes) -> None:
    source = ptx_for(capability)
    assert b".target " + target in source
    assert source.endswith(b"\0")
    assert all(b".entry " + name + b"(" in source for name in (SPIN, NOTHING, FAULT))


@pytest.fixture
def under_mps(env: dict[str, str]) -> Iterator[dict[str, str]]:
    """MPS is installed; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="c"))  # the path of a socket must be short
    yield env | {"PATH": f"{kit.mps()}:{env.get('PATH', '')}", "TMPDIR": str(folder)}
    assert processes_in(folder) == []
    folder.rmdir()


@pytest.mark.slow
def test_mps_is_measured_where_it_is_installed(under_mps: dict[str, str]) -> None:
    """Capacity, memory and threads; how well a share is held depends on the load of this machine."""
    env = under_mps | {"STANDIN_MPS_CLIENTS": "9"}
    names = (
        "memory-limit",
        "memory-neighbours",
        "compute-30",
        "launch-cost",
        "mps-clients",
        "mps-memory",
        "mps-threads",
    )
    done = run("conformance", "--quick", *only(*names), "--rung", "mps", "-o", "json", env=env, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of(done.stdout)
    assert set(rows) == {(name, "mps") for name in names}
    assert {row["device"] for row in rows.values()} == {"stand-in (Stand-in GPU)"}
    assert rows["memory-limit", "mps"]["value"] == 100
    assert (rows["mps-clients", "mps"]["value"], rows["mps-memory", "mps"]["value"]) == (9, 8)
    assert rows["mps-clients", "mps"]["note"] == "client 10 was refused: cuInit: error 808"
    assert "8 with 12 %" in rows["mps-threads", "mps"]["note"]
    assert 20 < rows["compute-30", "mps"]["value"] < 40


def test_limits_of_the_driver_hold_all_processes_of_a_slice_together(under_mps: dict[str, str]) -> None:
    groups = find_containment("conformance", means=(Means.CGROUP_V2,)).folder
    if groups is None:
        pytest.skip("needs cgroup v2 and root")
    words = ("--quick", *only(*MEMORY), "--rung", "driver", "-o", "json")
    done = run("conformance", *words, env=under_mps | {"STANDIN_DRIVER": "13040"}, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of(done.stdout)
    assert {name: row["result"] for (name, _), row in rows.items()} == {
        "memory-limit": "passed",
        "memory-refusal": "measured",
        "memory-crowd": "passed",
        "memory-neighbours": "passed",
        "memory-after-kill": "passed",
        "memory-resize": "measured",
    }
    assert rows["memory-crowd", "driver"]["value"] == 100
    owners = {path.name.split(".")[0].removeprefix("conformance-") for path in groups.glob("conformance-*.*")}
    assert [pid for pid in owners if not Path("/proc", pid).exists()] == []


def test_a_driver_without_such_limits_is_said_and_not_measured(under_mps: dict[str, str]) -> None:
    done = run("conformance", *only("memory-limit"), "--rung", "driver", "-o", "json", env=under_mps)
    (row,) = rows_of(done.stdout).values()
    assert (done.returncode, row["result"]) == (0, "skipped")
    assert "nvmlDeviceSetMemoryLimits_v1" in row["note"] or "cgroup" in row["note"]


def test_a_mig_instance_can_be_measured(env: dict[str, str]) -> None:
    env = env | {"STANDIN_MIG": "1g.5gb/3g.20gb", "STANDIN_MEMORY_MIB": "40960", "STANDIN_NAMES": "A100-40GB"}
    words = ("--gpu", "MIG-00000000-0000-0000-0002-000000000001", "--rung", "preload", "-o", "json")
    done = run("conformance", "--quick", *only("memory-limit"), *words, env=env, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = rows_of(done.stdout).values()
    assert (row["device"], row["result"]) == ("stand-in (A100-40GB MIG 3g.20gb)", "passed")
