# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant prune`, and the daemon that prunes by its settings: what goes, what stays, and what is said of it."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.errors import CotenantError
from cotenant.local.pruning import REMOVED, EndedJob, Pruner, choose, folder_sizes, remove_folder
from cotenant.wire.pruning import Pruned, PruneRequest
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


@pytest.mark.slow
def test_a_daemon_prunes_by_its_settings() -> None:
    with running_daemon("--keep-for", "0s") as one:
        job = one.ended(one.submit("echo", "said").id).id
        assert folder(one, job).exists(), "it prunes when it starts, and every hour"
        one.stop()
        one.up()
        until(lambda: not folder(one, job).exists())


@pytest.mark.slow
def test_a_daemon_removes_what_the_last_one_had_begun_to_remove() -> None:
    with running_daemon() as one:
        kept = one.ended(one.submit("echo", "said").id).id
        one.stop()
        left = one.state / "jobs" / REMOVED / "j-000001"
        (left / "1").mkdir(parents=True)
        (left / "1" / "log").write_text("said")
        one.up()
        until(lambda: not left.exists())
        assert b"".join(one.client.lines(f"/v1/jobs/{kept}/log")) == b"said\n", "nobody asked for this to be removed"


def test_the_event_loop_goes_on_while_files_are_removed(tmp_path: Path) -> None:
    for job in ("j-1", "j-2"):
        (tmp_path / job / "1").mkdir(parents=True)
    goes_on = threading.Event()
    pruner = Pruner(
        tmp_path,
        ended=lambda: [EndedJob("j-1", 1.0), EndedJob("j-2", 2.0)],
        can_be_pruned=lambda job: job != "j-2",
        stopping=lambda: (tmp_path / REMOVED).exists() and not goes_on.wait(60),
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


def pruner_of_one(folder: Path, stopping: Callable[[], bool]) -> Pruner:
    return Pruner(folder, ended=lambda: [EndedJob("j-1", 1.0)], can_be_pruned=lambda job: True, stopping=stopping)


def test_a_daemon_that_stops_leaves_the_rest_to_the_next_even_if_the_job_ran_again(tmp_path: Path) -> None:
    for attempt in ("1", "2"):
        (tmp_path / "j-1" / attempt).mkdir(parents=True)
        pruner = pruner_of_one(tmp_path, lambda: not (tmp_path / "j-1").exists())  # it stops after the rename
        assert asyncio.run(pruner.prune(PruneRequest(older_than_s=0))).jobs == ()
    assert sorted(path.name for path in tmp_path.glob(f"{REMOVED}/*/*")) == ["1", "2"]
    asyncio.run(pruner_of_one(tmp_path, lambda: False).remove_leftovers())
    assert list((tmp_path / REMOVED).iterdir()) == []


def test_a_daemon_that_stops_while_it_counts_chooses_nothing_by_incomplete_sizes(tmp_path: Path) -> None:
    (tmp_path / "j-1" / "1").mkdir(parents=True)
    with pytest.raises(CotenantError, match="the daemon stops, so nothing was removed"):
        asyncio.run(pruner_of_one(tmp_path, lambda: True).prune(PruneRequest(older_than_s=0)))
    assert (tmp_path / "j-1" / "1").exists()


def test_a_stop_ends_counting_and_removing_within_one_large_folder(tmp_path: Path) -> None:
    files = tmp_path / "job" / "1"
    files.mkdir(parents=True)
    for number in range(100):
        (files / str(number)).write_bytes(b"x" * 8192)
    whole = folder_sizes(tmp_path, stopping=lambda: False)["job"]
    questions = iter([False] * 50)
    assert folder_sizes(tmp_path, stopping=lambda: next(questions, True))["job"] < whole * 0.6
    questions = iter([False] * 10)
    assert not remove_folder(tmp_path / "job", stopping=lambda: next(questions, True))
    assert len(list(files.iterdir())) == 91  # one of the ten questions was about the folder


def test_what_is_being_removed_already_makes_no_other_job_go(tmp_path: Path) -> None:
    for name in ("j-1", f"{REMOVED}/j-2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "log").write_bytes(b"x" * MIB)
    request = PruneRequest(keep_bytes=int(1.5 * MIB), dry_run=True)
    planned = asyncio.run(pruner_of_one(tmp_path, lambda: False).prune(request))
    assert planned.jobs == ()
    assert planned.kept_bytes >= 2 * MIB


def test_a_daemon_that_cannot_list_what_was_left_to_remove_serves_on() -> None:
    with running_daemon() as one:
        one.stop()
        (one.state / "jobs").mkdir(exist_ok=True)
        (one.state / "jobs" / REMOVED).touch()
        one.up()
        until(lambda: "what was left to remove cannot be listed" in (one.state / "daemon.log").read_text())
        assert one.ended(one.submit("true").id).code == 0


@contextmanager
def without_rights_of_root() -> Iterator[Path]:
    """A folder of a user who is not root, as that user."""
    with tempfile.TemporaryDirectory() as parent:
        mine = Path(parent) / "mine"
        mine.mkdir()
        if os.geteuid() != 0:
            yield mine
            return
        Path(parent).chmod(0o711)
        os.chown(mine, 65534, -1)
        os.seteuid(65534)
        try:
            yield mine
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("mode", [0o555, 0o000, 0o100])
def test_folders_whose_mode_forbids_it_are_removed_by_their_owner(mode: int) -> None:
    with without_rights_of_root() as mine:
        inner = mine / "j-1" / "1" / "cache" / "module"
        (inner / "empty").mkdir(parents=True)
        (inner / "file").touch()
        (mine / "elsewhere").mkdir(mode=0o500)
        (inner / "link").symlink_to(mine / "elsewhere")
        for folder in (inner / "empty", inner, inner.parent, mine / "j-1"):
            folder.chmod(mode)
        done = asyncio.run(pruner_of_one(mine, lambda: False).prune(PruneRequest(older_than_s=0)))
        assert [job.id for job in done.jobs] == ["j-1"]
        assert sorted(path.name for path in mine.iterdir()) == [REMOVED, "elsewhere"]
        assert list((mine / REMOVED).iterdir()) == []
        assert (mine / "elsewhere").stat().st_mode & 0o777 == 0o500


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
    sizes = folder_sizes(tmp_path, stopping=lambda: False)
    assert sizes.keys() == {"job"}
    assert MIB <= sizes["job"] < 1.1 * MIB
    assert folder_sizes(tmp_path / "missing", stopping=lambda: False) == {}


def test_folders_of_any_depth_are_counted_and_removed(tmp_path: Path) -> None:
    depth = sys.getrecursionlimit() + 200  # the path is longer than the kernel accepts
    code = f"import os\nfor _ in range({depth}):\n    open('file', 'w').close(); os.mkdir('ddd'); os.chdir('ddd')"
    (tmp_path / "job").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "elsewhere")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "job", check=True)
    try:
        assert folder_sizes(tmp_path, stopping=lambda: False)["job"] > 0
        assert remove_folder(tmp_path / "job", stopping=lambda: False)
        assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "job")], check=True)  # pytest's own removal is recursive
