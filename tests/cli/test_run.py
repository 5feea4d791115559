# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant run` and `cotenant slices`: any command on a slice, over the stand-in driver where one is needed."""

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cotenant.node.limits import ComputePolicy, GpuLimit, Limits, Priority, parse_limits
from tests.cli.command import START, environment, refusal, run
from tests.native import kit

SHOW_LIMITS = ["sh", "-c", 'cat "$COTENANT_LIMITS"; echo "visible ${CUDA_VISIBLE_DEVICES-all}"']


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """No driver answers."""
    library = kit.library()
    return environment(COTENANT_RUNTIME=str(tmp_path / "run"), COTENANT_LIBRARY=str(library))


@pytest.fixture
def env(plain: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Two GPUs of the stand-in."""
    return plain | {
        "LD_LIBRARY_PATH": str(kit.standin()),
        "STANDIN_STATE": str(tmp_path / "state"),
        "STANDIN_DEVICES": "2",
    }


def left(env: dict[str, str]) -> list[str]:
    """Slices that are still there."""
    return [entry.name for entry in (Path(env["COTENANT_RUNTIME"]) / "slices").iterdir() if entry.is_dir()]


def limits_seen(output: str) -> tuple[Limits, str]:
    text, _, visible = output.rpartition("visible ")
    return parse_limits(text), visible.strip()


# the command


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -2 $$", 130)])
def test_it_exits_as_the_command_does(plain: dict[str, str], script: str, code: int) -> None:
    done = run("run", "--", "sh", "-c", script, env=plain)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert left(plain) == []


def test_options_after_the_command_are_the_commands(plain: dict[str, str]) -> None:
    assert run("run", "--memory", "1GiB", "echo", "--memory", "-o", env=plain).stdout == "--memory -o\n"


@pytest.mark.parametrize(("command", "code"), [("/no/such/command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_run_is_said_in_one_line(plain: dict[str, str], command: str, code: int) -> None:
    done = run("run", "--", command, env=plain)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(f"cotenant: {command}: cannot be executed: ")
    assert left(plain) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(plain: dict[str, str], number: signal.Signals) -> None:
    script = f"trap 'exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.02; done"
    with subprocess.Popen([*START, "run", "--", "sh", "-c", script], env=plain, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(30) == 9
    assert left(plain) == []


def test_ctrl_c_at_a_terminal_reaches_the_command_once(plain: dict[str, str], tmp_path: Path) -> None:
    script = "trap 'echo once >> caught' INT; echo ready; while [ ! -s caught ]; do sleep 0.02; done; sleep 0.3; exit 4"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe(START[0], [*START, "run", "--", "sh", "-c", script], plain)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 4
    assert (tmp_path / "caught").read_text() == "once\n"


def test_a_terminal_that_is_closed_ends_the_command(plain: dict[str, str], tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:  # the first process of its terminal, as in a window of its own
        os.chdir(tmp_path)
        script = "trap 'exit 4' HUP; echo ready; while :; do sleep 0.02; done"
        os.execvpe(START[0], [*START, "run", "--", "sh", "-c", script], plain)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1024)
    os.close(terminal)
    ended = status = 0
    for _ in range(500):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGTERM)
    assert (ended, os.waitstatus_to_exitcode(status)) == (child, 4)


def test_the_command_has_the_usual_dispositions(plain: dict[str, str]) -> None:
    command = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"]
    plainly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    inside = run("run", "--", *command, env=plain).stdout
    # What Python ignores and what we block is restored; the C library's own signals, from 32 on, are not ours, and
    # what the runner of these tests ignores is heeded by the command under test.
    ours = (1 << 31) - 1 & ~(1 << signal.SIGHUP - 1) & ~(1 << signal.SIGINT - 1)
    assert [int(mask, 16) & ours for mask in inside.split()[1::2]] == [
        int(mask, 16) & ours for mask in plainly.split()[1::2]
    ]


def until_swept(plain: dict[str, str]) -> None:
    """Runs commands, each of which removes the slices of processes that have ended, until no slice is left."""
    for _ in range(100):
        run("run", "--", "true", env=plain)
        if left(plain) == []:
            return
    pytest.fail(f"left: {left(plain)}")


def test_what_it_leaves_running_keeps_the_slice(plain: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wait")
    done = run("run", "--", "sh", "-c", "cat wait >/dev/null 2>&1 &", env=plain, cwd=tmp_path)
    assert done.returncode == 0
    assert len(left(plain)) == 1
    run("run", "--", "true", env=plain)
    assert len(left(plain)) == 1  # nor does another command sweep it away
    (tmp_path / "wait").write_text("")
    until_swept(plain)


def test_who_has_closed_everything_and_begins_later_keeps_the_slice(plain: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wait")
    leave = """import os
os.closerange(0, 999)
for _ in range(3): os.open("/dev/null", os.O_RDWR)
if os.fork() == 0: open("wait").read()"""
    assert run("run", "--", sys.executable, "-c", leave, env=plain, cwd=tmp_path).returncode == 0
    assert len(left(plain)) == 1
    (tmp_path / "wait").write_text("")
    until_swept(plain)


# limits


def test_every_gpu_gets_the_limits(env: dict[str, str]) -> None:
    options = [
        "--memory",
        "2GiB",
        "--host-memory",
        "1GiB",
        "--compute",
        "30%",
        "--policy",
        "always",
        "--overhead",
        "ignored",
        "--priority",
        "low",
    ]
    done = run("run", *options, "--", *SHOW_LIMITS, env=env)
    limits, visible = limits_seen(done.stdout)
    each = GpuLimit("", 2 << 30, limits.gpus[0].compute, 1 << 30)
    assert limits.gpus == (each._replace(uuid=kit.gpu(1)), each._replace(uuid=kit.gpu(2)))
    assert (limits.others, limits.policy, limits.priority) == (each, ComputePolicy.ALWAYS, Priority.LOW)
    assert not limits.overhead
    assert limits.gpus[0].compute == 300
    assert visible == "all"


@pytest.mark.parametrize("named", ["1", kit.gpu(2)])
def test_a_gpu_that_is_named_is_the_only_one(env: dict[str, str], named: str) -> None:
    limits, visible = limits_seen(run("run", "--gpu", named, "--", *SHOW_LIMITS, env=env).stdout)
    assert limits.gpus == (GpuLimit(kit.gpu(2), None),)
    assert limits.others == GpuLimit("", 0)  # nothing on the other, should the command reach for it
    assert visible == kit.gpu(2)


def test_without_a_driver_limits_hold_for_whatever_gpu_is_found(plain: dict[str, str]) -> None:
    limits, _ = limits_seen(run("run", "--memory", "1GiB", "--", *SHOW_LIMITS, env=plain).stdout)
    assert (limits.gpus, limits.others) == ((), GpuLimit("", 1 << 30))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "2"], "--memory 2: the unit is missing; expected for example 2GiB or 2048MiB"),
        (["--memory", "much"], "--memory: 'much' is not an amount of memory"),
        (["--host-memory", "1GiB"], "--host-memory needs --memory: it holds the allocations beyond that limit"),
        (["--compute", "0%"], "--compute 0%: expected 1% to 100%"),
        (["--compute", "lots"], "--compute: 'lots' is not a percentage"),
        (["--gpu", "7"], "--gpu 7: no such GPU; this machine has 2 GPUs"),
        (["--policy", "mostly"], "Invalid value for '--policy'"),
    ],
)
def test_input_that_cannot_be_used_is_refused(env: dict[str, str], options: list[str], said: str) -> None:
    assert said in refusal("run", *options, "--", "true", env=env)


def test_a_number_needs_a_driver_that_counts(plain: dict[str, str]) -> None:
    assert refusal("run", "--gpu", "0", "--", "true", env=plain).endswith(
        "no NVIDIA driver answers, so a GPU must be given by its UUID"
    )


def test_a_package_without_the_library_says_so(plain: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cotenant").symlink_to(Path(__file__).parents[2] / "src" / "cotenant")
    bare = tmp_path / "bare" / "cotenant"
    bare.mkdir(parents=True)
    for entry in (tmp_path / "cotenant").iterdir():
        if entry.name != "_native":
            (bare / entry.name).symlink_to(entry.resolve())
    done = run("run", "--", "true", env={**plain, "COTENANT_LIBRARY": "", "PYTHONPATH": str(bare.parent)})
    assert done.returncode == 1
    assert "built without a C compiler" in done.stderr


# over the stand-in driver


def probe(env: dict[str, str], *options: str, mib: int, milliseconds: int = 0) -> tuple[dict[str, int], Any]:
    """What the probe saw, and the summary."""
    command = [str(kit.program("run_probe")), str(mib), str(milliseconds)]
    done = run("run", "--summary", "-o", "json", *options, "--", *command, env=env)
    assert done.returncode == 0, done
    return kit.values(done.stdout), json.loads(done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_command_that_root_starts_may_become_another_user(plain: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copytree(kit.standin(), place / "driver").chmod(0o755)
        program = shutil.copy(kit.program("run_probe"), place / "probe")
        env = plain | {"LD_LIBRARY_PATH": str(place / "driver"), "COTENANT_RUNTIME": str(place / "run")}
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        options = ["--gpu", "GPU-00000000-0000-0000-0000-000000000001", "--memory", "512MiB", "--summary", "-o", "json"]
        done = run("run", *options, "--", *nobody, program, "600", "0", env=env)
        assert kit.values(done.stdout)["allocated"] == 2
        summary = json.loads(done.stderr)
        assert (summary["gpus"][0]["refused"], summary["faults"]) == (1, {})
        assert stat.S_IMODE((place / "run" / "slices").stat().st_mode) == 0o711, "names are not for everyone to read"


def test_a_command_sees_its_slice_and_is_held_to_it(env: dict[str, str]) -> None:
    seen, summary = probe(env, "--gpu", "0", "--memory", "512MiB", mib=100, milliseconds=20)
    assert (seen["total"], seen["free"], seen["allocated"]) == (512, 512, 0)
    (gpu,) = summary["gpus"]
    assert (gpu["peak_bytes"], gpu["refused"], gpu["launches"]) == (100 << 20, 0, seen["launches"])
    assert (summary["faults"], summary["processes"]) == ({}, 0)
    seen, summary = probe(env, "--gpu", "0", "--memory", "512MiB", mib=600)
    assert (seen["allocated"], summary["gpus"][0]["refused"]) == (2, 1)


def test_what_exceeds_the_slice_goes_to_host_memory(env: dict[str, str]) -> None:
    seen, summary = probe(env, "--memory", "64MiB", "--host-memory", "128MiB", mib=100)
    assert (seen["allocated"], summary["gpus"][0]["peak_bytes"]) == (0, 100 << 20)


def test_slices_lists_what_is_in_use_and_a_lower_class_waits(env: dict[str, str]) -> None:
    def started(*options: str, milliseconds: int) -> "subprocess.Popen[str]":
        command = [str(kit.program("run_probe")), "100", str(milliseconds), "stay"]
        words = [*START, "run", "--memory", "1GiB", *options, "--", *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    low = started("--priority", "low", "--summary", "-o", "json", milliseconds=2000)
    assert low.stdout is not None
    assert [low.stdout.readline().split()[0] for _ in range(3)] == ["total", "free", "allocated"]
    high = started(milliseconds=800)
    high.communicate("", timeout=300)
    assert low.stdout.readline().startswith("launches")  # it went on afterwards
    views = json.loads(run("slices", "-o", "json", env=env).stdout)
    table = run("slices", "-o", "wide", env=env).stdout
    _, summary = low.communicate("", timeout=300)
    (view,) = views
    assert (view["priority"], view["processes"], view["gpus"][0]["memory_bytes"]) == ("low", 1, 100 << 20)
    assert (view["gpus"][0]["nvml_bytes"], view["gpus"][0]["drift_bytes"]) == (100 << 20, 0)
    assert "100 of 1024 MiB" in table
    assert json.loads(summary)["gpus"][0]["waited_s"] > 0.2  # the higher class worked for much longer
    assert run("slices", env=env).stdout == "no slices\n"


def test_a_strict_slice_holds_a_program_that_dodges_the_preload(env: dict[str, str]) -> None:
    program = [str(kit.program("run_probe")), "600", "0"]
    dodged = run("run", "--memory", "512MiB", "--", "env", "-u", "LD_PRELOAD", *program, env=env)
    assert kit.values(dodged.stdout)["allocated"] == 0  # as the docs say
    held = run("run", "--strict", "--memory", "512MiB", "--", "env", "-u", "LD_PRELOAD", *program, env=env)
    assert (kit.values(held.stdout)["allocated"], kit.values(held.stdout)["total"]) == (2, 512)
