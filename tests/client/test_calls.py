# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that are called as jobs: results and exceptions come back, and nothing is unpickled that others wrote."""

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import cotenant
from cotenant.client import calls, run_call
from tests.client import functions
from tests.local.daemon import SOURCE, Daemon


def executor(**more: object) -> cotenant.Executor:
    return cotenant.Executor(memory="100MiB", **more)  # type: ignore[arg-type]


def test_map_returns_the_results_in_order_and_leaves_no_file(daemon: Daemon) -> None:
    assert cotenant.map(functions.double, range(5), at_most=2, memory="100MiB") == [0, 2, 4, 6, 8]
    assert cotenant.map(functions.double, [], memory="100MiB") == []
    assert list((daemon.state / "own/cotenant/calls").iterdir()) == []


def test_an_exception_comes_back_with_its_traceback() -> None:
    made = executor().submit_all(functions.divide, [2, 0])
    assert made[0].result() == 0.5
    with pytest.raises(ZeroDivisionError) as raised:
        made[1].result()
    assert "in divide" in raised.value.__notes__[0]
    assert made[1].done()


def test_one_call_has_arguments_and_a_log() -> None:
    with executor(env={"COLOUR": "blue"}, name="sum") as made:
        call = made.submit(functions.add, 1, two=2)
    assert call.result(60) == (3, "blue")
    assert cotenant.Client().job("sum").view.id == call.job.partition("_")[0]
    other = made.submit(functions.double, 7)
    other.result()
    assert other.log() == "doubling 7\n"
    calls.remove(other)


@pytest.mark.parametrize(
    ("function", "argument", "kind", "text"),
    [
        (functions.unsendable, 0, cotenant.CallFailedError, "Unsendable: 1 and 2"),
        (functions.open_file, 0, cotenant.CallFailedError, "its result cannot be pickled"),
        (functions.leave, 3, cotenant.JobFailedError, "failed with exit code 3"),
        (functions.leave, 0, cotenant.JobFailedError, "wrote no result"),
    ],
)
def test_a_call_without_a_result_says_why(function: object, argument: int, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        executor().submit(function, argument).result()  # type: ignore[arg-type]


def test_a_cancelled_call_says_so() -> None:
    call = executor().submit(functions.sleep, 100)
    with pytest.raises(TimeoutError):
        call.result(0.1)
    assert not call.done()
    call.cancel()
    with pytest.raises(cotenant.JobFailedError, match="was cancelled"):
        call.result()


def test_map_that_fails_cancels_the_other_calls() -> None:
    with pytest.raises(ZeroDivisionError):
        cotenant.map(functions.divide, [0, 1], memory="100MiB", name="failing")
    made = executor(name="left").map(functions.sleep, [0, 100])
    assert next(made) == 0
    made.close()  # type: ignore[attr-defined]
    array = cotenant.Client().job("left")
    array.wait()
    assert [one.view.state for one in array.elements()] == ["finished", "cancelled"]


def test_a_function_of_the_main_program_is_found_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import cotenant\n"
        "class Point:\n    def __init__(self, x): self.x = x\n"
        "def move(x): return Point(x + 1)\n"
        "if __name__ == '__main__':\n"
        "    print([one.x for one in cotenant.map(move, [1, 2], memory='100MiB')])\n"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[2, 3]\n", "")


@pytest.mark.skipif(calls._has_cloudpickle(), reason="cloudpickle is installed and sends lambdas")
def test_what_cannot_be_sent_is_refused_before_anything_is_submitted(daemon: Daemon) -> None:
    before = len(cotenant.Client().jobs())
    with pytest.raises(cotenant.CotenantError, match="install cloudpickle"):
        cotenant.map(lambda x: x, [1], memory="100MiB")
    with pytest.raises(cotenant.CotenantError, match="arguments of call 1 cannot be pickled"):
        executor().submit_all(functions.double, [1, lambda: 2])  # type: ignore[arg-type]
    with pytest.raises(cotenant.CotenantError, match="at most 10,000 calls"):
        executor().submit_all(functions.double, range(10_001))
    with pytest.raises(cotenant.CotenantError, match="at_most"):
        executor(array=3)
    with pytest.raises(cotenant.CotenantError, match="after %"):
        executor(at_most=0).submit(functions.double, 1)
    assert len(cotenant.Client().jobs()) == before


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(cotenant.CotenantError, match="other users can write to this folder"):
        executor(folder=tmp_path).submit(functions.double, 1)


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def result_of_trap(folder: Path, trap: Path) -> Path:
    path = folder / "result-0"
    path.write_bytes(pickle.dumps(("ok", Trap(trap), "")))
    return path


def test_a_result_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job that the journal knows to be done could have an empty result after a power failure."""
    synced = list[tuple[bool, int]]()
    sync = os.fsync

    def noted(handle: int) -> None:
        seen = os.fstat(handle)
        synced.append((stat.S_ISREG(seen.st_mode), seen.st_size if not (tmp_path / "result-0").exists() else -1))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    run_call.write_new(str(tmp_path / "result-0"), b"12345", durably=True)
    assert (tmp_path / "result-0").read_bytes() == b"12345"
    assert synced == [(True, 5), (False, -1)]  # the file, and after its renaming the folder


@pytest.mark.parametrize("way", ["writable", "link", "hard link", "fifo"])
def test_a_result_that_another_user_can_have_written_is_not_unpickled(way: str, tmp_path: Path) -> None:
    call = executor().submit(functions.double, 1)
    assert call.result() == 2
    path, trap = result_of_trap(call._group.folder, tmp_path / "trap"), tmp_path / "trap"
    path.chmod(0o622 if way == "writable" else 0o600)
    if way == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    if way == "hard link":
        os.link(path, tmp_path / "elsewhere")
    if way == "fifo":
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(cotenant.CotenantError, match="is not read"):
        call.result()
    assert not trap.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_a_result_of_another_user_is_not_unpickled(tmp_path: Path) -> None:
    call = executor().submit(functions.double, 1)
    call.result()
    os.chown(result_of_trap(call._group.folder, tmp_path / "trap"), 12345, 12345)
    with pytest.raises(cotenant.CotenantError, match="belongs to another user"):
        call.result()
    assert not (tmp_path / "trap").exists()


def test_a_job_unpickles_no_function_that_others_can_have_written(tmp_path: Path) -> None:
    (tmp_path / "item-0").write_bytes(pickle.dumps(((), {})))
    (tmp_path / "item-0").chmod(0o600)
    (tmp_path / "function").write_bytes(pickle.dumps(Trap(tmp_path / "trap")))
    (tmp_path / "function").chmod(0o666)
    assert run_call.run(str(tmp_path), 0) == 1
    assert not (tmp_path / "trap").exists()
    word, error, _ = pickle.loads((tmp_path / "result-0").read_bytes())
    assert word == "error"
    assert "can be written to by other users" in str(error)
