# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs from Python, sync and async, with a real daemon."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import cotenant
from cotenant.client.requests import DURATIONS, JobOptions, make_request
from cotenant.wire.job_requests import JobRequest
from tests.local.daemon import Daemon, running_daemon


def test_a_job_is_submitted_waited_for_and_its_output_read(tmp_path: Path) -> None:
    job = cotenant.submit(["sh", "-c", "pwd; echo $COLOUR"], memory="100MiB", cwd=tmp_path, env={"COLOUR": "blue"})
    assert job.wait().code == 0
    assert job.output() == f"{tmp_path}\nblue\n"
    assert job.state == "finished"
    assert cotenant.Client().job(job.id).view.name == "sh"


def test_a_job_that_fails_is_an_error_only_if_asked() -> None:
    job = cotenant.submit(["sh", "-c", "exit 3"], memory="100MiB")
    assert job.wait().code == 3
    with pytest.raises(cotenant.JobFailedError, match=f"{job.id} failed with exit code 3"):
        job.wait(check=True)


def test_waiting_ends_in_time() -> None:
    job = cotenant.submit(["sleep", "100"], memory="100MiB")
    with pytest.raises(TimeoutError, match=f"{job.id} is .*: it has not ended in time"):
        job.wait(0.1)
    job.cancel()
    assert job.wait().state == "cancelled"


def test_hold_release_and_retry() -> None:
    first = cotenant.submit(["true"], memory="100%", gpus=2)
    job = cotenant.submit(["true"], memory="100%", gpus=2, after=first, name="second")
    assert job.hold().held
    assert job.release().held is False
    assert job.wait().attempts == 1
    job.retry()
    assert job.wait().attempts == 2


def test_an_array_has_elements() -> None:
    array = cotenant.submit(["sh", "-c", "echo {} $COTENANT_ARRAY_INDEX"], array=3, memory="100MiB")
    assert array.wait(check=True).elements == {"done": 3}
    assert [one.output() for one in array.elements()] == ["0 0\n", "1 1\n", "2 2\n"]
    grid = cotenant.submit(["echo", "{lr}-{seed}"], grid={"lr": [0.1, 0.01], "seed": range(2)}, memory="100MiB")
    grid.wait()
    assert [one.output() for one in grid.elements()] == ["0.1-0\n", "0.1-1\n", "0.01-0\n", "0.01-1\n"]


def test_output_is_followed_while_it_is_written() -> None:
    job = cotenant.submit(["sh", "-c", "echo one; sleep 0.5; echo two"], memory="100MiB")
    assert b"".join(job.log(follow=True)) == b"one\ntwo\n"
    assert b"".join(job.log(tail=1)) == b"two\n"


def test_jobs_are_listed_by_state() -> None:
    job = cotenant.submit(["true"], memory="100MiB")
    job.wait()
    assert job.id in [one.id for one in cotenant.Client().jobs("done", mine=True)]
    with pytest.raises(cotenant.CotenantError, match="unknown state"):
        cotenant.Client().jobs("sleepy")


def test_the_async_client_does_the_same() -> None:
    async def work() -> None:
        client = cotenant.AsyncClient()
        jobs = [await client.submit(["sh", "-c", f"echo {n}; exit {n}"], memory="100MiB") for n in range(3)]
        ends = await asyncio.gather(*(job.wait() for job in jobs))
        assert [end.code for end in ends] == [0, 1, 2]
        assert await jobs[1].output() == "1\n"
        with pytest.raises(cotenant.JobFailedError):
            await jobs[2].wait(check=True)
        slow = await client.submit(["sh", "-c", "echo one; sleep 0.5; echo two"], memory="100MiB")
        assert b"".join([piece async for piece in slow.log(follow=True)]) == b"one\ntwo\n"
        assert [piece async for piece in slow.log(tail=1)] == [b"two\n"]
        held = await client.submit(["true"], memory="100MiB", gpus=2)
        await held.cancel() if (await held.refresh()).state == "queued" else None
        array = await client.submit(["true"], memory="100MiB", array=2)
        await array.wait()
        assert len(await array.elements()) == 2
        assert slow.id in [job.id for job in await client.jobs("done")]
        assert (await client.job(slow.id)).view.state == "finished"

    asyncio.run(work())


def test_an_async_wait_can_be_cancelled() -> None:
    async def work() -> None:
        job = await cotenant.AsyncClient().submit(["sleep", "100"], memory="100MiB")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.wait(), 0.1)
        with pytest.raises(TimeoutError):
            await job.wait(0.1)
        await job.cancel()
        assert (await job.wait()).state == "cancelled"

    asyncio.run(work())


def test_over_tcp_a_token_is_needed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough")
    token.chmod(0o600)
    with running_daemon("--listen", "0", "--token-file", str(token)) as daemon:
        url = f"http://127.0.0.1:{daemon.port}"
        client = cotenant.Client(url=url, token="a-token-that-is-long-enough")
        assert client.submit(["true"], memory="100MiB", cwd="/").wait().code == 0
        with pytest.raises(cotenant.RefusedByDaemonError, match=r"the token is not valid: .* `cotenant token create`"):
            cotenant.Client(url=url, token="another-token-of-that-length").jobs()
        with pytest.raises(cotenant.CotenantError, match="COTENANT_TOKEN_FILE"):
            cotenant.Client(url=url).jobs()
    with pytest.raises(cotenant.CotenantError, match="expected http"):
        cotenant.Client(url="ftp://x", token="t").jobs()


def test_errors_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(cotenant.NeverFitsError, match="this can never run here"):
        cotenant.submit(["true"], gpus=100)
    with pytest.raises(cotenant.CotenantError, match="pass a list of words"):
        cotenant.submit("echo hello")
    with pytest.raises(cotenant.CotenantError, match="unknown option 'memroy'; did you mean 'memory'"):
        cotenant.submit(["true"], memroy="1GiB")  # type: ignore[call-arg]
    with pytest.raises(cotenant.CotenantError, match="gpus: Expected int"):
        cotenant.submit(["true"], gpus="many")  # type: ignore[arg-type]
    with pytest.raises(cotenant.CotenantError, match="time='soon': expected a time such as"):
        cotenant.submit(["true"], time="soon")
    with pytest.raises(cotenant.NotFoundError):
        cotenant.Client().job("j-999999")
    with pytest.raises(cotenant.NoDaemonError):
        cotenant.Client(at=tmp_path / "none.sock").jobs()


@pytest.mark.parametrize("value", ["90m", 5400, timedelta(hours=1.5)])
def test_a_duration_is_text_seconds_or_a_timedelta(value: str | float | timedelta) -> None:
    assert make_request(["true"], {"time": value}).time_s == 5400.0


def test_every_field_of_a_request_can_be_set_from_python() -> None:
    """`memory_why` is what the daemon says; `inherit_env` and `grid` become `env` and `array`, and `interactive`
    becomes the size of a `terminal`."""
    fields = {
        name.removesuffix("_s") if name.removesuffix("_s") in DURATIONS else name
        for name in JobRequest.__struct_fields__
    }
    options = JobOptions.__annotations__.keys() - {"inherit_env", "grid", "interactive"}
    assert fields - {"command", "memory_why", "terminal"} == options


def test_importing_cotenant_loads_no_client() -> None:
    code = "import sys, cotenant; print([name for name in sys.modules if name.startswith(('cotenant.', 'msgspec'))])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(eval(found)) <= {"cotenant._version"}


def test_every_public_name_exists() -> None:
    for name in (*cotenant._PLACES, "map", "submit", "CotenantError"):
        assert getattr(cotenant, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cotenant.nothing


def test_the_daemon_of_the_state_folder_is_found(daemon: Daemon) -> None:
    assert cotenant.Client(at=daemon.state / "cotenant.sock").get("/v1/status", dict)["pid"]
