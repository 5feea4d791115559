# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant simulate` as a user runs it: what it writes, what it refuses, and how it ends when it is stopped."""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.command import START, environment, refusal, run, wait_until

REPORT = ["report.html", "results.json", "series.csv", "summary.csv"]
SMALL = ("simulate", "--trace", "jobs.csv", "--nodes", "2x2", "--policy", "binpack,fgd")
HEADER = "id,submitted_s,duration_s,gpus\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a trace of 40 jobs in it."""
    rows = (f"job-{i:02},{3 * i},{10 + i % 5},{1 + i % 2}\n" for i in range(40))
    (tmp_path / "jobs.csv").write_text(HEADER + "".join(rows))
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What it prints and writes


@pytest.mark.parametrize("words", [("--help",), ("simulate", "--help"), ("why", "-h")])
def test_help_is_on_standard_output_with_an_example(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: cotenant ")
    if len(words) > 1:
        assert "Example" in done.stdout
        assert f"  cotenant {words[0]} --" in done.stdout


def test_version_is_told() -> None:
    assert run("--version").stdout.startswith("cotenant, version ")


def test_json_on_standard_output_is_what_results_json_holds(here: Path) -> None:
    done = run(*SMALL, "--output", "json", "--out", "out", cwd=here)
    printed = json.loads(done.stdout)
    assert printed == json.loads((here / "out" / "results.json").read_text())
    assert [(one["policy"], one["seed"]) for one in printed["runs"]] == [("binpack", 42), ("fgd", 42)]
    assert printed["complete"] is True
    assert printed["command"] == "cotenant " + " ".join([*SMALL, "--output", "json", "--out", "out"])
    assert done.stderr == ""


def test_yaml_says_what_json_says(here: Path) -> None:
    words = (*SMALL, "--seeds", "1")
    assert {**yaml.safe_load(run(*words, "-o", "yaml", cwd=here).stdout), "command": ""} == {
        **json.loads(run(*words, "-o", "json", cwd=here).stdout),
        "command": "",
    }


def test_wide_has_a_row_for_every_run_with_every_number(here: Path) -> None:
    heading, *rows = run(*SMALL, "--seeds", "1-2", "-o", "wide", cwd=here).stdout.splitlines()
    assert heading.split()[:2] == ["POLICY", "SEED"]
    assert {"ALLOCATED", "PLACED", "REJECTED"} <= set(heading.split())
    assert [row.split()[:2] for row in rows] == [["binpack", "1"], ["binpack", "2"], ["fgd", "1"], ["fgd", "2"]]


@pytest.mark.parametrize("mode", ["fill", "timed"])
@pytest.mark.parametrize("columns", ["60", "200"])
def test_table_fits_the_terminal_it_is_piped_from(here: Path, mode: str, columns: str) -> None:
    done = run(*SMALL, "--mode", mode, "--seeds", "1-2", cwd=here, env=environment(COLUMNS=columns))
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert "binpack" in done.stdout
    assert "\x1b" not in done.stdout


def test_out_gets_the_report_and_the_recorded_decisions(here: Path) -> None:
    done = run(*SMALL, "--mode", "timed", "--record", "job-03, job-07", "--out", "a/b/out", cwd=here)
    assert done.returncode == 0
    decisions = [f"decision-{policy}-42-job_{job}.json" for policy in ("binpack", "fgd") for job in ("03", "07")]
    written = names(here / "a/b/out")
    assert {*decisions, *REPORT} <= set(written)
    assert all(
        name in REPORT or re.fullmatch(r"decision-(binpack|fgd)-42-job_0[37](-\d+)?.json", name) for name in written
    )


def test_each_decision_about_a_job_has_a_file_of_its_own(tmp_path: Path) -> None:
    long = "\N{GREEK SMALL LETTER ALPHA}" * 250
    (tmp_path / "jobs.csv").write_text(f"id,duration_s\na/b,1\na_b,1\n{long},1\n")
    words = ("simulate", "--trace", "jobs.csv", "--nodes", "1x1", "--mode", "timed", "--policy", "binpack")
    assert run(*words, "--record", f"a/b,a_b,{long}", "--out", "out", cwd=tmp_path).returncode == 0
    found = [json.loads(path.read_text())["job"]["id"] for path in (tmp_path / "out").glob("decision-*.json")]
    assert sorted(set(found)) == ["a/b", "a_b", long]
    assert len(found) == 5  # two of them had to wait, which is a decision too


def test_job_to_record_that_never_came_is_named(here: Path) -> None:
    done = run(*SMALL, "--record", "nobody", "--out", "out", cwd=here)
    assert done.returncode == 0
    assert done.stderr == "no decision was recorded about nobody\n"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fill", "timed"])
def test_same_command_gives_the_same_bytes_in_every_process(here: Path, mode: str) -> None:
    words = (*SMALL, "--policy", "random,fragmentation,fgd@online", "--mode", mode, "--seeds", "1-2", "--out", "out")
    found = []
    for place, hash_seed in (("one", "0"), ("two", "12345")):
        (here / place).mkdir()
        (here / place / "jobs.csv").write_bytes((here / "jobs.csv").read_bytes())
        words_there = (*words, "--record", "job-05")
        assert run(*words_there, cwd=here / place, env=environment(PYTHONHASHSEED=hash_seed)).returncode == 0
        out = here / place / "out"
        found.append({name: (out / name).read_bytes() for name in names(out)})
    assert found[0] == found[1]


@pytest.mark.slow
def test_number_of_processes_changes_nothing(here: Path) -> None:
    words = (
        *SMALL,
        "--mode",
        "timed",
        "--queue",
        "las",
        "--round",
        "5",
        "--restart",
        "1",
        "--seeds",
        "1-3",
        "-o",
        "json",
    )
    one, two = (json.loads(run(*words, "--processes", number, cwd=here).stdout) for number in ("1", "2"))
    assert one.pop("command") != two.pop("command")
    assert one == two


def test_fair_order_lets_a_user_start_before_the_second_job_of_another(tmp_path: Path) -> None:
    rows = ["a1,0,100,alice", "a2,0,100,alice", "b1,1,10,bob"]
    (tmp_path / "jobs.csv").write_text("\n".join(["id,submitted_s,duration_s,user", *rows]))

    def mean_wait(*options: str) -> float:
        command = ("simulate", "--trace", "jobs.csv", "--nodes", "1x1", "--mode", "timed", "--policy", "binpack")
        printed = json.loads(run(*command, "--seeds", "1", "-o", "json", *options, cwd=tmp_path).stdout)
        return float(printed["runs"][0]["summary"]["mean_wait"])

    assert mean_wait("--queue", "fifo") == pytest.approx((0 + 100 + 199) / 3)
    assert mean_wait("--queue", "fair") == pytest.approx((0 + 99 + 110) / 3)


def test_second_report_replaces_the_first(here: Path) -> None:
    run(*SMALL, "--seeds", "1-3", "--out", "out", cwd=here)
    run(*SMALL, "--seeds", "9", "--out", "out", cwd=here)
    assert names(here / "out") == REPORT
    assert {one["seed"] for one in json.loads((here / "out/results.json").read_text())["runs"]} == {9}


def test_trace_in_which_nothing_fits_still_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id,gpus,duration_s\nhuge,9,5\n")
    done = run(*SMALL, "--mode", "timed", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert names(tmp_path / "out") == REPORT


# What it refuses: one line, exit code 2, nothing written

BAD_FILES = {
    "a cell too few": (HEADER + "a,0,1,1\nb,0,1\n", ("jobs.csv:3", "3 cells; expected 4")),
    "unknown column": ("id,colour\na,red\n", ("jobs.csv:1", "unknown column 'colour'; expected some of id,")),
    "negative number": (HEADER + "a,0,-1,1\n", ("jobs.csv:2", "duration_s is '-1'; expected a number from 0")),
    "not a number": (HEADER + "a,nan,1,1\n", ("jobs.csv:2", "submitted_s is 'nan'; expected a number")),
    "endless": (HEADER + "a,0,inf,1\n", ("jobs.csv:2", "duration_s is 'inf'; expected a number")),
    "absurd number": (
        HEADER + "a,0,1,99999999999999999999\n",
        ("jobs.csv:2", "expected a whole number from 0 to 1024"),
    ),
    "no rows": (HEADER, ("jobs.csv", "no jobs; expected at least 1 row")),
    "nothing": ("", ("jobs.csv", "is empty; expected a header")),
    "some other file": ("a,b\n1,2\n", ("jobs.csv:1", "unknown format with columns 'a,b'; expected")),
    "twice the same job": (HEADER + "a,0,1,1\na,0,1,1\n", ("jobs.csv:3", "'a' is already on line 2")),
}


@pytest.mark.parametrize("mode", ["fill", "timed"])
@pytest.mark.parametrize("bad", BAD_FILES)
def test_bad_trace_is_refused_with_file_row_and_what_was_expected(tmp_path: Path, bad: str, mode: str) -> None:
    content, expected = BAD_FILES[bad]
    (tmp_path / "jobs.csv").write_text(content)
    line = refusal(*SMALL, "--mode", mode, "--out", "out", cwd=tmp_path)
    assert line.startswith(expected[0])
    assert expected[1] in line
    assert names(tmp_path) == ["jobs.csv"]


@pytest.mark.parametrize("mode", ["fill", "timed"])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_bad_row_far_down_is_refused_like_one_at_the_top(tmp_path: Path, mode: str, processes: str) -> None:
    rows = [f"job-{i},{i},1,1\n" for i in range(5000)]
    rows[4000] = "job-4000,4000,soon,1\n"
    (tmp_path / "jobs.csv").write_text(HEADER + "".join(rows))
    words = (*SMALL, "--mode", mode, "--seeds", "1-2", "--processes", processes, "--out", "out")
    assert refusal(*words, cwd=tmp_path).startswith("jobs.csv:4002: duration_s is 'soon'; expected a number")
    assert names(tmp_path) == ["jobs.csv"]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_job_without_duration_is_refused_in_timed_mode(tmp_path: Path, processes: str) -> None:
    (tmp_path / "jobs.csv").write_text(HEADER + "a,0,5,1\nb,1,,1\n")
    words = (*SMALL, "--mode", "timed", "--processes", processes, "--out", "out")
    assert refusal(*words, cwd=tmp_path) == (
        "trace jobs.csv: job 2 (b) has no duration, which timed mode needs; add it, or use --mode fill"
    )
    assert names(tmp_path) == ["jobs.csv"]


BAD_WORDS = {
    "missing trace": ("--trace no.csv", "no.csv: cannot be read (No such file or directory); expected a file"),
    "unknown trace": ("--trace nope", "unknown trace 'nope'; expected a CSV file or one of demo,"),
    "public trace without data": ("--trace openb", "set COTENANT_DATA"),
    "unknown policy": ("--policy binpack,nope", "unknown policy 'nope'; there are: "),
    "unknown part of a policy": ("--policy binpack/nope", "unknown policy 'nope'; there are: "),
    "no policy": ("--policy ,", "--policy is empty; expected some of "),
    "seed that is a word": ("--seeds x", "--seeds x: expected integers and ranges"),
    "falling seeds": ("--seeds 9-3", "expected ascending ranges"),
    "too many seeds": ("--seeds 1-99999999", "expected ascending ranges, and at most 10,000"),
    "endless seed": (f"--seeds {'9' * 5000}", "expected integers"),
    "unknown estimates": (
        "--mode timed --estimates perhaps",
        "--estimates perhaps: expected none, oracle, or noisy:SIGMA",
    ),
    "absurd estimates": ("--mode timed --estimates noisy:nan", "--estimates noisy:nan: expected"),
    "order without estimates": ("--mode timed --queue sjf", "queue order sjf needs duration estimates"),
    "no number for load": ("--load nan", "--load nan: expected a finite number"),
    "no number for compress": ("--mode timed --compress nan", "--compress nan: expected a finite number"),
    "no number for rounds": ("--mode timed --queue las --round nan", "nan: expected a finite number"),
    "no number for restart": ("--mode timed --queue las --restart nan", "--restart nan: expected a finite number"),
    "work lost faster than done": ("--mode timed --queue las --round 5", "--restart must be shorter than --round"),
    "weight that is none": (
        "--mode timed --queue fair --weights a=-1",
        "--weights a=-1: expected a name and",
    ),
    "record without out": ("--record job-01", "--record needs --out"),
    "absurd cluster": ("--nodes 999999999x999999999", "expected a whole number from 1 to 100000"),
    "cluster that is none": ("--nodes nope", "unknown cluster 'nope'; expected demo, openb, NODESxGPUS"),
    "cluster without GPUs": ("--nodes 4x0", "cluster 4x0 has no GPUs; expected at least 1"),
    "missing cluster": ("--nodes no.yaml", "no.yaml: cannot be read"),
    "published order of another trace": ("--order published", "--order published needs an openb trace"),
}


@pytest.mark.parametrize("bad", BAD_WORDS)
def test_bad_option_is_refused_with_what_was_expected(here: Path, bad: str) -> None:
    words, expected = BAD_WORDS[bad]
    assert expected in refusal(*SMALL, *words.split(), cwd=here)
    assert names(here) == ["jobs.csv"]


@pytest.mark.parametrize(
    "words", ["--queue nope", "--mode nope", "--load 0", "--limit 0", "--processes 0", "--nope", "-o x"]
)
def test_word_the_parser_does_not_know_is_refused(here: Path, words: str) -> None:
    assert refusal(*SMALL, *words.split(), cwd=here).endswith(" See cotenant simulate --help")
    assert names(here) == ["jobs.csv"]


def test_trace_without_durations_is_refused_in_timed_mode(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id\na\n")
    line = refusal(*SMALL, "--mode", "timed", cwd=tmp_path)
    assert line == "trace jobs.csv: job 1 (a) has no duration, which timed mode needs; add it, or use --mode fill"


def test_out_that_is_no_folder_is_refused_before_anything_runs(here: Path) -> None:
    before = (here / "jobs.csv").read_bytes()
    assert refusal(*SMALL, "--out", "jobs.csv/below", cwd=here) == "--out jobs.csv/below: jobs.csv is not a folder"
    done = run(*SMALL, "--out", "jobs.csv", cwd=here)
    assert done.returncode == 2
    assert (here / "jobs.csv").read_bytes() == before


def test_out_that_cannot_be_made_is_one_line(here: Path) -> None:
    done = run(*SMALL, "--out", "/proc/nowhere/out", cwd=here)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert "/proc/nowhere/out" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_out_without_permission_is_refused_before_anything_runs(here: Path) -> None:
    (here / "closed").mkdir(mode=0o500)
    assert "cannot be written to" in refusal(*SMALL, "--out", "closed/out", cwd=here)


def test_published_order_needs_the_whole_trace(data: Path) -> None:
    words = ("simulate", "--trace", "openb:default", "--order", "published", "--policy", "bestfit", "--limit", "10")
    assert "remove --limit" in refusal(*words, env=environment(COTENANT_DATA=str(data)))


# Odd surroundings

PRINTED = {"table": SMALL, "json": (*SMALL, "-o", "json"), "help": ("simulate", "--help")}


@pytest.mark.parametrize(
    "changes",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"COLUMNS": "1"},
        {"TERM": "dumb"},
        {"COLUMNS": "many", "LINES": "-1"},
    ],
    ids=str,
)
def test_table_is_printed_in_any_locale_and_terminal(here: Path, changes: dict[str, str]) -> None:
    done = run(*SMALL, "--seeds", "1-2", cwd=here, env=environment(**changes))
    assert done.returncode == 0
    assert done.stdout


def test_home_is_not_needed(here: Path) -> None:
    env = {name: value for name, value in environment().items() if name != "HOME"}
    assert run(*SMALL, "--out", "out", cwd=here, env=env).returncode == 0


def test_current_folder_is_not_written_to(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("elsewhere")
    here.chmod(0o500)
    assert run(*SMALL, "--out", out, cwd=here).returncode == 0
    here.chmod(0o700)
    assert names(here) == ["jobs.csv"]
    assert names(out) == REPORT


def test_file_name_that_is_no_text_is_reported_all_the_same(here: Path) -> None:
    odd = os.fsdecode(b"odd\xff\n.csv")
    (here / "jobs.csv").rename(here / odd)
    words = ("simulate", "--trace", odd, "--nodes", "2x2", "--policy", "binpack")
    assert json.loads(run(*words, "-o", "json", "--out", "out", cwd=here).stdout)["runs"]
    assert run(*words, cwd=here).returncode == 0
    (here / odd).unlink()
    assert refusal(*words, cwd=here).startswith("odd\\udcff\\n.csv: cannot be read")


@pytest.mark.parametrize("words", PRINTED.values(), ids=PRINTED)
def test_reader_that_has_gone_is_no_failure_to_talk_about(here: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*START, *words], cwd=here, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode != 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
@pytest.mark.parametrize("words", PRINTED.values(), ids=PRINTED)
def test_full_disk_behind_the_output_is_one_line(here: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*START, *words], cwd=here, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_missing_streams_do_not_change_the_outcome(here: Path, closed: str) -> None:
    for words, code in ((SMALL, 0), (("simulate", "--trace", "no.csv"), 2)):
        script = f'exec "$@" {closed}'
        done = subprocess.run(["sh", "-c", script, "sh", *START, *words], cwd=here, env=environment(), check=False)
        assert done.returncode == code


def test_progress_is_shown_to_a_person_and_not_to_a_file(here: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*START, *SMALL, "-o", "json"],
        cwd=here,
        env=environment(TERM="xterm", COLUMNS="100"),
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as command:
        os.close(theirs)
        printed, _ = command.communicate(timeout=300)
    said = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert json.loads(printed)["complete"]
    assert b"simulating" in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side has closed
        return b""


# Being stopped

Command = subprocess.Popen[str]
# One seed takes a moment, thousands take minutes: some are finished when the signal comes, most are not.
LONG = (*SMALL, "--seeds", "1-5000", "--processes", "2", "--out", "out")


@pytest.fixture
def running(here: Path) -> Iterator[Command]:
    """A long simulation with two workers, under way, in a process group of its own."""
    command = subprocess.Popen(
        [*START, *LONG],
        cwd=here,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(workers(command.pid)) == 2 and all(map(has_worked, workers(command.pid))))
        yield command
    finally:
        for left in (*workers(command.pid), command.pid):
            try:
                os.kill(left, signal.SIGKILL)
            except ProcessLookupError:
                continue
        command.communicate()


def stat(pid: int) -> list[str]:
    """The fields of a process after its name (proc(5)); none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def workers(pid: int) -> list[int]:
    """The children of a process, and whoever else is in its session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat(int(path.name))
        if len(fields) > 3 and int(fields[3]) == pid != int(path.name) and fields[0] not in "ZX":
            found.append(int(path.name))
    return found


def has_worked(pid: int) -> bool:
    """Whether it has used half a second of CPU: enough for some small runs."""
    fields = stat(pid)
    return bool(fields) and int(fields[11]) >= os.sysconf("SC_CLK_TCK") // 2


def finished_runs(folder: Path) -> int:
    assert names(folder) == REPORT
    results = json.loads((folder / "results.json").read_text())
    assert results["complete"] is False
    return len(results["runs"])


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [True, False], ids=["Ctrl-C in a terminal", "signal to the parent"])
def test_interrupt_keeps_what_was_finished(running: Command, tmp_path: Path, whole_group: bool) -> None:
    there = workers(running.pid)
    (os.killpg if whole_group else os.kill)(running.pid, signal.SIGINT)
    printed, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "cotenant: interrupted"
    assert f"incomplete: only {finished_runs(tmp_path / 'out'):,} runs finished" in said
    assert "Incomplete" in printed
    wait_until(lambda: not any(map(alive, there)))


@pytest.mark.slow
def test_second_interrupt_changes_nothing(running: Command, here: Path) -> None:
    os.killpg(running.pid, signal.SIGINT)
    wait_until(lambda: (here / "out" / "summary.csv").exists() and names(here / "out") == REPORT)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert finished_runs(here / "out") > 0


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_workers_end_with_their_parent(running: Command, tmp_path: Path, ending: signal.Signals) -> None:
    there = workers(running.pid)
    running.send_signal(ending)
    _, said = running.communicate(timeout=300)
    assert running.returncode != 0
    assert said == ""
    wait_until(lambda: not any(map(alive, there)))
    assert names(tmp_path) == ["jobs.csv"]


@pytest.mark.slow
def test_worker_that_is_killed_ends_the_simulation_in_one_line(running: Command, tmp_path: Path) -> None:
    there = workers(running.pid)
    os.kill(there[0], signal.SIGKILL)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 1
    assert said.splitlines()[-1].startswith("cotenant: a worker process was killed")
    assert "Traceback" not in said
    assert finished_runs(tmp_path / "out") > 0
    wait_until(lambda: not any(map(alive, there)))


def test_interrupt_before_the_first_run_has_finished_writes_nothing(tmp_path: Path) -> None:
    rows = "".join(f"j{i},{i},100000,1\n" for i in range(100_000))
    (tmp_path / "jobs.csv").write_text(HEADER + rows)
    words = (*SMALL, "--mode", "timed", "--processes", "1", "--out", "out")
    with subprocess.Popen(
        [*START, *words], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as command:
        wait_until(lambda: has_worked(command.pid))
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=300)
    assert command.returncode == 130
    assert "Traceback" not in said
    assert names(tmp_path) == ["jobs.csv"]
