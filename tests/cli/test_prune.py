# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant prune`, and the daemon that prunes by its settings: what goes, what stays, and what is said of it."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cotenant.local.pruning import REMOVED, EndedJob, Pruner, choose, folder_sizes, remove_folder
from cotenant.wire.local import Pruned, PruneRequest
from tests.cli.command import refusal, run
from tests.local.daemon import Daemon, running_daemon, until

MIB = 1 << 20


def folder(daemon: Daemon, job: str) -> Path:
    return daemon.state / "jobs" / job


def test_files_of_ended_jobs_are_removed_and_those_of_others_never(daemon: Daemon, env: dict[str, str]) -> None:
    old, older = (daemon.ended(daemon.submit("sh", "-c", "yes | head -c 3000000").id).id for _ in range(2))
    alive = daemon.submit("sh", "-c", "yes | head -c 3000000; exec sleep 600").id
    until(lambda: daemon.job(alive).state == "running")
    waiting = daemon.submit("true", gpus=2, memory="100%").id
    planned = run("prune", "--keep-size", "1MiB", "--dry-run", env=env).stdout
    assert planned.startswith("would remove the files of 2 jobs and free 5.")
    assert all(folder(daemon, job).exists() for job in (old, older, alive))
    done = json.loads(run("prune", "--keep-size", "1MiB", "-o", "json", env=env).stdout)
    assert [job["id"] for job in done["jobs"]] == [old, older]
    assert 5 * MIB < sum(job["bytes"] for job in done["jobs"]) < 7 * MIB
    assert (folder(daemon, old).exists(), folder(daemon, older).exists()) == (False, False)
    assert folder(daemon, alive).exists()
    assert (daemon.job(alive).state, daemon.job(waiting).state) == ("running", "queued")
    again = run("prune", "--older-than", "0s", env=env).stdout
    assert again.startswith("removed the files of 0 jobs and freed 0.0 MiB; ")
    daemon.clear()


def test_a_pruned_job_is_still_listed_says_so_and_can_run_again(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.ended(daemon.submit("echo", "said").id).id
    assert "removed the files of" in run("prune", "--older-than", "0s", env=env).stdout
    assert daemon.job(job).code == 0
    done = run("logs", job, env=env)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"the output of {job} was removed" in done.stderr
    assert "its output was removed" in run("why", job, env=env).stdout
    assert run("retry", job, env=env).returncode == 0
    until(lambda: daemon.job(job).attempts == 2 and daemon.job(job).ended)
    assert run("logs", job, env=env).stdout == "said\n"
    assert run("logs", "--attempt", "1", job, env=env).returncode == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "prune: give --older-than, --keep-size or both"),
        ("--older-than 7", "--older-than 7: expected an age, for example 45m, 12h or 30d"),
        ("--keep-size much", "--keep-size: "),
    ],
)
def test_what_cannot_be_understood_is_refused(env: dict[str, str], words: str, sentence: str) -> None:
    assert refusal("prune", *words.split(), env=env).startswith(sentence)


def test_a_daemon_prunes_by_its_settings() -> None:
    with running_daemon("--keep-for", "0s") as one:
        job = one.ended(one.submit("echo", "said").id).id
        assert folder(one, job).exists(), "it prunes when it starts, and every hour"
        one.stop()
        one.up()
        until(lambda: not folder(one, job).exists())


def test_a_daemon_removes_what_the_last_one_had_begun_to_remove() -> None:
    with running_daemon() as one:
        one.stop()
        left = one.state / "jobs" / REMOVED / "j-000001"
        (left / "1").mkdir(parents=True)
        (left / "1" / "log").write_text("said")
        one.up()
        until(lambda: not left.exists())


def test_the_event_loop_goes_on_while_files_are_removed(tmp_path: Path) -> None:
    for job in ("j-1", "j-2"):
        (tmp_path / job / "1").mkdir(parents=True)
    goes_on = threading.Event()
    pruner = Pruner(
        tmp_path,
        ended=lambda: [EndedJob("j-1", 1.0), EndedJob("j-2", 2.0)],
        can_be_pruned=lambda job: job != "j-2",
        stopping=lambda: not goes_on.wait(60),
    )

    async def prune() -> Pruned:
        pruning = asyncio.create_task(pruner.prune(PruneRequest(older_than_s=0)))
        while (tmp_path / "j-1").exists():
            await asyncio.sleep(0.01)
        (tmp_path / "j-1" / "2").mkdir(parents=True)  # it runs again, while its old files are being removed
        assert not pruning.done()
        goes_on.set()
        return await pruning

    assert [job.id for job in asyncio.run(prune()).jobs] == ["j-1"]
    assert (tmp_path / "j-1" / "2").exists()
    assert (tmp_path / "j-2").exists()
    assert list((tmp_path / REMOVED).iterdir()) == []


def test_a_daemon_that_stops_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "j-1" / "1").mkdir(parents=True)

    def pruner(stopping: bool) -> Pruner:
        return Pruner(
            tmp_path,
            ended=lambda: [EndedJob("j-1", 1.0)],
            can_be_pruned=lambda job: True,
            stopping=lambda: stopping,
        )

    assert asyncio.run(pruner(stopping=True).prune(PruneRequest(older_than_s=0))).jobs == ()
    assert (tmp_path / REMOVED / "j-1" / "1").exists()
    asyncio.run(pruner(stopping=False).remove_leftovers())
    assert list((tmp_path / REMOVED).iterdir()) == []


def test_the_oldest_go_first_by_age_and_then_by_size() -> None:
    jobs = [EndedJob(f"j-{n}", ended=float(n)) for n in (3, 1, 2, 4)]
    sizes = {"j-1": 10, "j-2": 10, "j-3": 10, "j-4": 10, "running": 25}

    def chosen(older: float | None = None, keep: int | None = None) -> list[str]:
        return [job.id for job in choose(jobs, sizes, PruneRequest(older_than_s=older, keep_bytes=keep), 10.0)]

    assert chosen(older=8) == ["j-1", "j-2"]
    assert chosen(keep=45) == ["j-1", "j-2"]
    assert chosen(older=9, keep=45) == ["j-1", "j-2"]
    assert chosen(keep=0) == ["j-1", "j-2", "j-3", "j-4"]
    assert chosen(keep=65) == chosen() == []


def test_sizes_count_what_is_on_the_disk_and_follow_no_links(tmp_path: Path) -> None:
    (tmp_path / "job" / "1").mkdir(parents=True)
    (tmp_path / "job" / "1" / "log").write_bytes(b"x" * MIB)
    (tmp_path / "link").symlink_to(tmp_path / "job")
    assert folder_sizes(tmp_path).keys() == {"job"}
    assert MIB <= folder_sizes(tmp_path)["job"] < 1.1 * MIB
    assert folder_sizes(tmp_path / "missing") == {}


def test_folders_of_any_depth_are_counted_and_removed(tmp_path: Path) -> None:
    depth = sys.getrecursionlimit() + 200  # the path is longer than the kernel accepts
    code = f"import os\nfor _ in range({depth}):\n    open('file', 'w').close(); os.mkdir('ddd'); os.chdir('ddd')"
    (tmp_path / "job").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "elsewhere")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "job", check=True)
    try:
        assert folder_sizes(tmp_path)["job"] > 0
        assert remove_folder(tmp_path / "job", stopping=lambda: False)
        assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "job")], check=True)  # pytest's own removal is recursive
