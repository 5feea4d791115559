# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands for jobs say about a job: how it ended, what became of it, which output there is."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.cli.cancel import cancelled_text
from cotenant.local.run_log import Log
from cotenant.wire.job_views import JobView
from cotenant.wire.text import ago
from tests.cli.command import START, environment, refusal, run
from tests.local.daemon import Daemon, running_daemon, until

ONE_OF_MANY = re.compile(r"\b1 (?:of 1 )?(?:jobs|GPUs|nodes|attempts|cores|bytes|lines|processes|slots)\b")
HOG = "import mmap, time; m = mmap.mmap(-1, 40 << 24); [m.write(bytes(1 << 24)) for _ in range(40)]; time.sleep(600)"


@pytest.fixture(scope="module")
def ended(daemon: Daemon) -> dict[str, str]:
    """Jobs that ended in different ways, by the word that the table shows."""
    found = {
        "done": daemon.submit("echo", "all is well"),
        "failed (3)": daemon.submit("sh", "-c", "seq 30; echo 'no such file' >&2; exit 3"),
        "signal 11": daemon.submit("sh", "-c", "kill -SEGV $$"),
        "exec-failed": daemon.submit("/no/such/program"),
        "out-of-memory": daemon.submit("python3", "-S", "-c", HOG),
    }
    return {word: daemon.ended(job.id).id for word, job in found.items()}


def waiting_job(daemon: Daemon, **request: object) -> str:
    """A job that waits, because its GPUs are cordoned."""
    for gpu in "01":
        daemon.client.post(f"/v1/gpus/{gpu}/cordon", dict[str, object])
    return daemon.submit("echo", "at last", **request).id


@pytest.fixture(autouse=True)
def _open_gpus(daemon: Daemon) -> Iterator[None]:
    yield
    for gpu in "01":
        daemon.client.post(f"/v1/gpus/{gpu}/uncordon", dict[str, object])


# why

SENTENCES = {
    "done": "is done: it exited with code 0 after ",
    "failed (3)": "failed with exit code 3 after ",
    "signal 11": "was ended by SIGSEGV after ",
    "exec-failed": "could not be started: cannot run the command '/no/such/program': No such file",
}


@pytest.mark.slow
@pytest.mark.parametrize("word", SENTENCES)
def test_why_says_how_a_job_ended(env: dict[str, str], ended: dict[str, str], word: str) -> None:
    first, *rest = run("why", ended[word], env=env).stdout.splitlines()
    assert first.startswith(f"{ended[word]} {SENTENCES[word]}")
    assert ("runs it again" in first) is (word != "done")
    assert rest


def test_why_shows_the_last_lines_of_the_output_of_an_ended_job(env: dict[str, str], ended: dict[str, str]) -> None:
    lines = run("why", ended["failed (3)"], env=env).stdout.splitlines()
    assert lines[2:] == [f"  {line}" for line in (*map(str, range(22, 31)), "no such file")]
    assert run("why", ended["signal 11"], env=env).stdout.splitlines()[1:] == ["it wrote no output"]
    answer = json.loads(run("why", ended["failed (3)"], "-o", "json", env=env).stdout)
    assert (answer["end"]["code"], answer["end"]["output"][-1]) == (3, "no such file")


# cancel


def test_cancel_says_that_a_queued_job_left_the_queue(daemon: Daemon, env: dict[str, str]) -> None:
    job = waiting_job(daemon)
    assert run("cancel", job, env=env).stdout == f"{job} was removed from the queue; it had not started\n"


def test_cancel_waits_for_the_end_and_says_whether_the_job_was_killed(daemon: Daemon, env: dict[str, str]) -> None:
    polite, stubborn = (
        daemon.submit("sh", "-c", f"trap '{action}' TERM; echo set; while :; do sleep 0.05; done", grace_s=0.5).id
        for action in ("exit 0", "")
    )
    until(lambda: all(b"".join(daemon.client.lines(f"/v1/jobs/{job}/log")) for job in (polite, stubborn)))
    assert re.fullmatch(rf"{polite} was cancelled after [\d.]+ s\n", run("cancel", polite, env=env).stdout)
    assert run("cancel", stubborn, env=env).stdout.endswith(": did not end within 0.5 s of SIGTERM: killed\n")
    assert daemon.job(stubborn).state == "cancelled"


def test_cancel_without_waiting_says_what_follows(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.submit("sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.05; done", grace_s=2).id
    until(lambda: b"".join(daemon.client.lines(f"/v1/jobs/{job}/log")))
    said = run("cancel", "--no-wait", job, env=env).stdout
    assert said == f"{job} was sent SIGTERM and has not ended yet; SIGKILL follows after 2 s\n"
    assert json.loads(run("cancel", job, "-o", "json", env=env).stdout)["state"] == "cancelled"


def test_several_jobs_are_cancelled_at_once_with_a_line_for_each(daemon: Daemon, env: dict[str, str]) -> None:
    running = daemon.submit("sleep", "600").id
    until(lambda: daemon.job(running).state == "running")
    queued = waiting_job(daemon)
    done = run("cancel", queued, "j-999999", running, queued, env=env)
    first, second = done.stdout.splitlines()
    assert first == f"{queued} was removed from the queue; it had not started"
    assert second.startswith(f"{running} was cancelled after ")
    assert done.stderr == "cotenant: no job 'j-999999' here; `cotenant jobs` lists them\n"
    assert done.returncode == 4
    again = run("cancel", queued, "j-999999", env=env)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.splitlines()[0] == f"cotenant: {queued} has already ended (cancelled)"


def test_jobs_are_selected_by_their_state(daemon: Daemon, env: dict[str, str]) -> None:
    running = daemon.submit("sleep", "600").id
    until(lambda: daemon.job(running).state == "running")
    first, second = waiting_job(daemon), waiting_job(daemon)
    done = run("cancel", "--state", "queued", env=env)
    removed = "was removed from the queue; it had not started"
    assert done.stdout.splitlines() == [f"{second} {removed}", f"{first} {removed}"]
    assert daemon.job(running).state == "running"
    left = json.loads(run("cancel", "--all", "-o", "json", env=env).stdout)
    assert [(job["id"], job["state"]) for job in left] == [(running, "cancelled")]
    assert run("cancel", "--all", "-o", "json", env=env).stdout == "[]\n"


@pytest.mark.parametrize("words", [(), ("j-000001", "--all"), ("--state", "failed")])
def test_a_selection_without_jobs_to_cancel_is_refused(env: dict[str, str], words: tuple[str, ...]) -> None:
    assert "expected some of queued" in (line := refusal("cancel", *words, env=env)) or "--all or --state" in line


@pytest.mark.slow
@pytest.mark.parametrize("end", ["daemon", "interrupt"])
def test_cancel_says_what_it_knows_if_it_cannot_wait_for_the_end(tmp_path: Path, end: str) -> None:
    with running_daemon() as one:
        script = f"trap 'touch {tmp_path}/asked' TERM; echo set; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        quick, stubborn = one.submit("sleep", "600").id, one.submit("sh", "-c", script, grace_s=300).id
        until(lambda: one.job(quick).state == "running" and b"".join(one.client.lines(f"/v1/jobs/{stubborn}/log")))
        queued = waiting_job(one)
        command = [*START, "cancel", quick, queued, stubborn]
        with subprocess.Popen(
            command,
            env=environment(COTENANT_STATE=str(one.state)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting:
            until(lambda: (tmp_path / "asked").exists() and one.job(queued).ended and one.job(quick).ended)
            if end == "daemon":
                one.kill()
            else:
                waiting.send_signal(signal.SIGINT)
            printed, said = waiting.communicate(timeout=300)
        (tmp_path / "go").touch()
        if end == "daemon":
            one.up()
    first, second, third = printed.splitlines()
    assert first.startswith((f"{quick} was cancelled after ", f"{quick} was sent SIGTERM"))  # it may not know yet
    assert second == f"{queued} was removed from the queue; it had not started"
    assert third == f"{stubborn} was sent SIGTERM and has not ended yet; SIGKILL follows after 300 s"
    assert waiting.returncode == (3 if end == "daemon" else 130)
    assert said.startswith("cotenant: " if end == "daemon" else "\ncotenant: interrupted")


def test_cancelled_jobs_are_a_list_for_programs_if_several_were_named(daemon: Daemon, env: dict[str, str]) -> None:
    first, second = waiting_job(daemon), waiting_job(daemon)
    done = run("cancel", first, second, "-o", "json", env=env)
    assert [job["id"] for job in json.loads(done.stdout)] == [first, second]
    none = run("cancel", first, second, "-o", "json", env=env)
    assert (none.returncode, json.loads(none.stdout), len(none.stderr.splitlines())) == (2, [], 2)


def test_a_job_that_ended_by_itself_is_not_called_cancelled() -> None:
    job = JobView(id="j-1", name="a", state="finished", outcome="exited", code=0, submitted=0.0, started=1.0, ended=3.0)
    assert cancelled_text(job, 10) == "j-1 is done: it exited with code 0 after 2.0 s; it was not cancelled"


# jobs


def test_the_words_of_the_table_are_accepted_as_states(env: dict[str, str], ended: dict[str, str]) -> None:
    def found(words: str) -> set[str]:
        return {job["id"] for job in json.loads(run("jobs", "--state", words, "-o", "json", env=env).stdout)}

    for word, job in ended.items():
        assert found(word) & set(ended.values()) == {job}
        assert found(re.sub(r" \(?\d+\)?", "", word)) & set(ended.values()) == {job}
    assert found("failed (4), signal 9") & set(ended.values()) == set()
    assert found("finished") >= set(ended.values())
    shown = run("jobs", "--state", "failed", env=env).stdout
    assert "failed (3)" in shown
    assert "done" not in shown


def test_a_list_for_programs_has_the_requests_without_environments(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.ended(daemon.submit("true", name="asked", priority=3, env={"SECRET": "s3cret"}).id).id
    printed = run("jobs", "-o", "json", env=env).stdout
    (found,) = (one for one in json.loads(printed) if one["id"] == job)
    assert (found["request"]["command"], found["request"]["priority"]) == (["true"], 3)
    assert "s3cret" not in printed
    assert "SECRET" not in printed


@pytest.mark.parametrize("name", ["j-000123", "j-1"])
def test_names_that_look_like_ids_are_refused(env: dict[str, str], name: str) -> None:
    line = refusal("submit", "--name", name, "--memory", "10MiB", "--", "true", env=env)
    assert line == f"--name {name}: this is the form of a job ID; choose another name"


# logs


@pytest.fixture(scope="module")
def tried_twice(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    mark = tmp_path_factory.mktemp("tried") / "mark"
    code = f"if test -e {mark}; then echo second; else touch {mark}; seq 5; echo first; exit 1; fi"
    return daemon.ended(daemon.submit("sh", "-c", code, retries=1).id).id


def test_logs_show_earlier_attempts_and_the_last_lines(env: dict[str, str], tried_twice: str) -> None:
    latest = run("logs", tried_twice, env=env)
    assert latest.stdout == "second\n"
    assert latest.stderr == "this is the output of attempt 2; --attempt NUMBER shows that of an earlier one\n"
    first = run("logs", "--attempt", "1", tried_twice, env=env)
    assert (first.stdout, first.stderr) == ("1\n2\n3\n4\n5\nfirst\n", "")
    assert run("logs", "--attempt", "1", "--tail", "2", tried_twice, env=env).stdout == "5\nfirst\n"
    assert run("logs", "--attempt", "1", "--tail", "99", tried_twice, env=env).stdout == first.stdout
    assert run("logs", "--attempt", "1", "--tail", "0", tried_twice, env=env).stdout == ""
    assert "attempt=3: expected a whole number from 1 to 2" in refusal("logs", "--attempt", "3", tried_twice, env=env)


def test_the_end_of_a_followed_attempt_is_the_end_of_its_log(env: dict[str, str], tried_twice: str) -> None:
    assert run("logs", "-f", "--attempt", "1", tried_twice, env=env).stdout.endswith("first\n")


def test_logs_say_that_a_queued_job_waits(daemon: Daemon, env: dict[str, str]) -> None:
    job = waiting_job(daemon)
    done = run("logs", job, env=env)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{job} is queued and has no output yet: ")
    assert "cordoned" in done.stderr
    run("cancel", job, env=env)
    assert "was cancelled before it started; it has no output" in run("logs", job, env=env).stderr


def test_logs_say_that_they_begin_in_the_middle(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.ended(daemon.submit("true").id).id
    log = Log(str(daemon.state / "jobs" / job / "1" / "log"), 100, 2)
    for number in range(60):
        log.write(b"line %04d\n" % number)
    done = run("logs", job, env=env)
    assert done.stdout.splitlines()[0] == "line 0040"
    assert done.stderr == "the output begins in the middle: the first 400 bytes are no longer kept\n"
    tail = run("logs", "--tail", "15", job, env=env)
    assert (tail.stdout.splitlines()[0], tail.stderr) == ("line 0045", "")
    assert run("logs", "--tail", "50", job, env=env).stdout == done.stdout


def test_a_reader_that_closes_the_pipe_ends_the_command_with_141(daemon: Daemon, env: dict[str, str]) -> None:
    job = daemon.ended(daemon.submit("seq", "300000").id).id
    for words in (("logs", job), ("show", job), ("jobs", "-o", "json")):
        with subprocess.Popen(
            [*START, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        ) as command:
            assert command.stdout is not None
            assert command.stderr is not None
            command.stdout.close()
            assert (command.wait(60), command.stderr.read()) == (141, b""), words


# up


def test_up_while_a_daemon_is_up_says_so(daemon: Daemon, env: dict[str, str]) -> None:
    pid = daemon.client.get("/v1/status", dict[str, object])["pid"]
    again = run("up", "--detach", env=env)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith(f"cotenant is already up (pid {pid}): ")
    other = run("up", "--detach", "--policy", "binpack", env=env)
    assert other.returncode == 0
    assert "the options of this command have no effect on it" in other.stderr
    assert "unknown policy 'nope'" in refusal("up", "--detach", "--policy", "nope", env=env)


# Words and units


@pytest.mark.slow
def test_one_thing_is_singular_everywhere(tmp_path: Path) -> None:
    env = environment(COTENANT_STATE=str(tmp_path))
    try:
        said = [run("up", "--detach", "--simulate", "1", "--gpu-memory", "1GiB", env=env).stdout]
        job = run("submit", "--memory", "10MiB", "--", "sleep", "600", env=env).stdout.strip()
        until(lambda: json.loads(run("show", job, "-o", "json", env=env).stdout)["state"] == "running")
        waiting = run("submit", "--", "sleep", "600", env=env).stdout.strip()
        for words in ("why {}", "show {}", "logs {}", "jobs -o wide", "top --once", "gpus", "status -o wide"):
            for name in (job, waiting):
                done = run(*words.format(name).split(), env=env)
                said += [done.stdout, done.stderr]
        said += [run("cancel", name, env=env).stdout for name in (waiting, job)]
    finally:
        said.append(run("down", "--wait", env=env).stdout)
    assert [text for text in said if ONE_OF_MANY.search(text)] == []
    assert "1 of 1 GPU fits" in "".join(said)


def test_a_column_of_durations_has_one_form() -> None:
    seconds = (0, 45, 121, 7_384, 172_801)
    assert [ago(0, end) for end in seconds] == ["00:00:00", "00:00:45", "00:02:01", "02:03:04", "2-00:00:01"]
    assert ago(None) == "-"
