# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The commands for jobs on one machine: submit, jobs, show, logs and retry."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from cotenant.cli import cluster_jobs
from cotenant.cli.cluster_jobs import KUBERNETES, Where, check_on, on_option, on_options
from cotenant.cli.job_files import NOT_IN_FILES, WORDS, SubmitCommand, read_jobs
from cotenant.cli.options import complete_files, job_argument, output_option, state_option
from cotenant.cli.output import aligned, emit, note, or_dash, render, write_output
from cotenant.cli.pods import ask_about_pod, is_pod, pod_details, pod_options
from cotenant.cli.request import request_of, request_options
from cotenant.client.client import Client, Job
from cotenant.client.endings import ending_of, exit_code
from cotenant.client.http import at
from cotenant.client.problems import ListedError
from cotenant.errors import CotenantError, InputError
from cotenant.wire.arrays import parse_array
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import ENDED, JobView, decode_states, described_state
from cotenant.wire.text import ago, counted, duration_text, printable

COLUMNS = (
    ("ID", lambda job: job.id, False),
    ("USER", lambda job: job.user, False),
    ("NAME", lambda job: job.name, False),
    ("STATE", lambda job: described_state(job), False),
    ("GPU", lambda job: ",".join(map(str, job.gpus)) or "-", False),
    ("BATCH", lambda job: str(job.batch or "-"), True),
    ("SPEED", lambda job: or_dash(job.speed, "{:.0%}"), True),
    ("PREDICTED", lambda job: or_dash(job.predicted, "{:.0%}"), True),
    ("MEMORY", lambda job: or_dash(job.memory_used_mib, "{} MiB"), True),
    ("CPUS", lambda job: or_dash(job.cpus, "{:g}"), True),
    ("HOST MEMORY", lambda job: or_dash(job.host_memory_mib, "{} MiB"), True),
    ("BUSY", lambda job: or_dash(job.utilisation, "{:.0f}%"), True),
    ("AGE", lambda job: ago(job.submitted), False),
    ("RAN", lambda job: "-" if job.started is None else ago(job.started, job.ended), False),
    ("WHY", lambda job: job.error or (job.reason if job.state == "queued" else None) or "", False),
    ("PLACED", lambda job: job.reason if job.gpus and job.reason else "", True),
)
SUBMIT_EPILOG = """\b
Examples:
  cotenant submit -- python train.py --epochs 3
  cotenant submit --memory 4GiB --compute 30% --name small -- python train.py
  cotenant submit --memory 2GiB:6GiB --compute 20%:60% -- python train.py
  cotenant submit --memory 4GiB --cpus 4 --host-memory 16GiB -- python train.py
  cotenant submit --after prepare,j-000007:any --time 2h -- python train.py
  cotenant submit --array 0-31%4 --memory 2GiB -- python train.py --seed {}
  cotenant submit --memory 2GiB --grid lr=0.1,0.01 seed=1-3 -- python train.py --lr {lr} --seed {seed}
  cotenant submit --notify failed:mail --notify end:./tell.sh -- python train.py
  cotenant submit --interactive --memory 4GiB --time 2h
  cotenant submit train.sh
  cotenant submit --file jobs.yaml --dry-run
  cotenant submit --gpus 2 --batch 64 --batch-range 16-512 --wait -- python train.py
  cotenant submit --on kubernetes --image team/train:1 --memory 4GiB --array 8 -- python train.py
"""
LOGS_EPILOG = """\b
Examples:
  cotenant logs -f j-000001
  cotenant logs --tail 20 --attempt 1 j-000001
"""


# Options after the first word of the command are those of the command.
@click.command(cls=SubmitCommand, epilog=SUBMIT_EPILOG, context_settings={"allow_interspersed_args": False})
@request_options
@click.option(
    "--after",
    multiple=True,
    metavar="JOB[:ok|any|failed],…",
    help="Start only after these jobs have ended: well (ok, the default), in any way, or not well. Repeatable.",
)
@click.option(
    "--retry-oom",
    is_flag=True,
    help="Queue the job again with half as much memory again each time it runs out of it, up to a whole GPU; or with "
    "more host memory, if it ran out of that.",
)
@click.option(
    "--notify",
    multiple=True,
    metavar="[start|end|ok|failed:]mail|URL|COMMAND",
    help="Send a notice at the end, or at other moments: by mail, to a web hook, or by a command. Repeatable.",
)
@click.option(
    "--interactive",
    is_flag=True,
    help="Wait until the job runs, then connect this terminal with it; without a command, your shell runs. "
    "Ctrl-] d leaves it, and `cotenant attach` returns.",
)
@click.option("--wait", is_flag=True, help="Wait until the job has ended, and exit with its exit code.")
@click.option("--image", metavar="NAME", help="In a cluster: image in which the command runs.")
@click.option(
    "--array",
    metavar="0-31%4",
    help="Submit one element for each index, or as many as this number; after %, how many may run at a time.",
)
@click.option(
    "--grid",
    multiple=True,
    metavar="lr=0.1,0.01",
    help="Submit one element for each combination of values, which are variables and replace {lr}. Repeatable.",
)
@click.option(
    "--replicas", type=click.IntRange(1, 256), help="In a cluster: number of pods that start together or not at all."
)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="jobs.yaml",
    help="Submit the jobs of a YAML file: all are accepted or none. Options of the command line have precedence.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the jobs and submit nothing; in a cluster: print the manifest and create nothing.",
)
@on_options
@output_option
@click.argument("command", nargs=-1, shell_complete=complete_files)
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    file: Path | None,
    wait: bool,
    interactive: bool,
    after: tuple[str, ...],
    array: str | None,
    grid: tuple[str, ...],
    retry_oom: bool,
    notify: tuple[str, ...],
    output: str,
    command: tuple[str, ...],
    on: str,
    dry_run: bool,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    **options: Any,
) -> None:
    """Queues a command to run on GPUs of this machine, or of a Kubernetes cluster, and prints the job ID.

    A script may have options in comment lines at its beginning, such as #COTENANT --memory 4GiB --time 2h; those of the
    command line have precedence.
    """
    check_on(on, cluster_jobs.ONLY_CLUSTER, cluster_jobs.ONLY_MACHINE)
    if interactive:
        sys.exit(_run_interactively(ctx.params))
    if (file is None) == (not command):
        raise InputError(
            "submit: give a command, for example `cotenant submit -- python train.py`, or --file jobs.yaml"
        )
    if on == KUBERNETES:
        where = Where(namespace, kubeconfig, context)
        options["array"] = parse_array(array, grid)
        view = cluster_jobs.submit(where, command, options, wait=wait, dry_run=dry_run, output=output)
        if view is not None and output != "table":
            emit(view, output, COLUMNS)
        sys.exit(0 if view is None or not wait else exit_code(view))
    client = Client()
    if file is not None:
        jobs = _submit_file(client, ctx, file, dry_run)
    else:
        request = _request(ctx.params)
        jobs = client.submit_requests([request], dry_run=True) if dry_run else [client.submit_request(request)]
    if dry_run:
        _print_dry_run(jobs, output)
        return
    if output == "table":
        click.echo("\n".join(job.id for job in jobs))
    else:
        emit([job.view for job in jobs] if file is not None else jobs[0].view, output, COLUMNS)
    if wait:
        try:
            sys.exit(next(filter(None, [exit_code(client.wait_for(job.id)) for job in jobs]), 0))
        except KeyboardInterrupt:
            for job in jobs:
                click.echo(f"{job.id} continues; `cotenant cancel {job.id}` stops it", err=True)
            raise


def _run_interactively(params: Mapping[str, Any]) -> int:
    """Runs the command, or the user's shell, in this terminal; the exit code."""
    from cotenant.cli.attach import run_interactively

    for name in ("file", "dry_run", "array", "grid"):
        if params[name]:
            raise InputError(f"--interactive runs one job at once; leave out --{name.replace('_', '-')}")
    if params["output"] != "table":
        raise InputError("--interactive: the output is that of the job; leave out --output")
    shell = "/bin/sh" if params["container"] is not None else os.environ.get("SHELL") or "/bin/sh"
    request = _request({**params, "command": params["command"] or (shell,)})
    return run_interactively(Client(), request)


def _request(params: Mapping[str, Any]) -> JobRequest:
    """The request of all options of `submit`."""
    options = {name: value for name, value in params.items() if name not in (*NOT_IN_FILES, *cluster_jobs.ONLY_CLUSTER)}
    command, grid = options.pop("command"), options.pop("grid")
    if grid and "--" in command:  # --grid lr=0.1,0.01 seed=1-3 -- python train.py
        end = command.index("--")
        grid, command = (*grid, *command[:end]), command[end + 1 :]
    array = parse_array(options.pop("array"), grid)
    return request_of(command, after=_listed(options.pop("after")), array=array, **options)


def _submit_file(client: Client, ctx: click.Context, file: Path, dry_run: bool) -> list[Job]:
    """Submits the jobs of a file: all are accepted or none."""
    jobs, requests = read_jobs(ctx.command, file), list[JobRequest]()
    for job in jobs:
        given = ctx.command.make_context("submit", list(ctx.meta[WORDS]), default_map=job.options)
        try:
            with given:
                requests.append(_request({**given.params, "command": job.command}))
        except CotenantError as error:
            raise InputError(f"{file}:{job.number}: {error}") from None
    try:
        return client.submit_requests(requests, dry_run=dry_run)
    except ListedError as error:
        error.args = (f"{file}:{jobs[error.item].number}: {error}",)
        raise


def _print_dry_run(jobs: Sequence[Job], output: str) -> None:
    """What would be submitted."""

    def draw(wide: bool) -> None:
        for job in jobs:
            words = shlex.join(job.view.request.command) if job.view.request is not None else ""
            click.echo(printable(f"{job.view.name}: {words}"))
        click.echo(f"{counted(len(jobs), 'job')} would be accepted; nothing was submitted", err=True)

    render([job.view for job in jobs], output, draw)


def _listed(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The words of lists that are separated by commas."""
    return tuple(word for text in texts for word in text.split(",") if word.strip())


@click.command(epilog="\b\nExample:\n  cotenant jobs --state queued,running -o wide\n")
@state_option("Show only jobs in these states, in the words of the table.")
@click.option(
    "--limit", type=click.IntRange(1, 20_000), default=1000, show_default=True, help="Largest number of jobs to show."
)
@click.option("--array", metavar="ARRAY", help="List the elements of this array, by its ID or name.")
@on_options
@output_option
def jobs(state: str, limit: int, array: str | None, output: str, on: str, **where: Any) -> None:
    """Lists jobs of this machine, or of a Kubernetes cluster, oldest first. An array of jobs is one row."""
    check_on(on, (), ("array",))
    if on == KUBERNETES:
        found = cluster_jobs.jobs_of(Where(**where), decode_states(state), limit)
    else:
        requests = int(output in ("json", "yaml"))
        chosen = "arrays=1" if array is None else f"array={at(array)}"
        query = f"state={at(state)}&limit={limit}&requests={requests}&{chosen}"
        found = Client().get(f"/v1/jobs?{query}", list[JobView])
    emit(found, output, COLUMNS, "no jobs")
    if len(found) == limit:
        click.echo(
            f"the output is limited to the newest {counted(limit, 'job')}; use --limit or --state to see others",
            err=True,
        )


@click.command(
    epilog="\b\nExamples:\n  cotenant show j-000001 -o yaml\n  cotenant show pod/train-0 -n team\n"
    "  cotenant show --on kubernetes train\n"
)
@job_argument()
@on_option
@pod_options
@output_option
def show(job: str, namespace: str | None, kubeconfig: Path | None, output: str, on: str) -> None:
    """Shows all details of a job: request, GPUs, limits, tuning and outcome, in a cluster also its pods; or those of
    pod/NAME of a cluster: GPUs, batch size, and the predicted and measured speed of it and its neighbours."""
    if not is_pod(job):
        check_on(on, (), ())
    if on == KUBERNETES and not is_pod(job):
        found = cluster_jobs.details(Where(namespace, kubeconfig), job)
        render(found, output, lambda wide: click.echo(describe(found, wide)))
        return
    if is_pod(job):
        answer = ask_about_pod(job, namespace, kubeconfig)
        render(answer, output, lambda wide: click.echo("\n".join(map(printable, pod_details(answer)))))
        return
    view = Client().get(f"/v1/jobs/{at(job)}", JobView)
    render(view, output, lambda wide: click.echo(describe(view, wide)))


@click.command(epilog=LOGS_EPILOG)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new output until the job has ended.")
@click.option("--tail", type=click.IntRange(0, 100_000), metavar="LINES", help="Print only the last lines.")
@click.option(
    "--attempt", type=click.IntRange(1), metavar="NUMBER", help="Print the output of this attempt. Default: the latest."
)
@on_options
@job_argument()
def logs(follow: bool, tail: int | None, attempt: int | None, job: str, on: str, **where: Any) -> None:
    """Prints the output of a job (standard output and standard error); in a cluster, that of each of its pods."""
    check_on(on, (), ("attempt",))
    if on == KUBERNETES:
        cluster_jobs.logs(Where(**where), job, write_output, note, follow=follow, tail=tail)
        return
    client = Client()
    view = client.get(f"/v1/jobs/{at(job)}", JobView)
    for line in log_notes(view, attempt):
        note(line)
    options = {"follow": int(follow), "tail": tail, "attempt": attempt}
    query = "&".join(f"{name}={value}" for name, value in options.items() if value is not None)
    for chunk in client.lines(f"/v1/jobs/{at(view.id)}/log?{query}", None if tail is not None else _note_beginning):
        write_output(chunk)


def log_notes(job: JobView, attempt: int | None) -> Iterator[str]:
    """What a reader of a log should know before its first line."""
    if job.attempts == 0 and job.state == "queued":
        yield f"{job.id} is queued and has no output yet: {job.reason or 'it waits'}"
    elif job.attempts == 0:
        yield f"{ending_of(job)}; it has no output"
    elif job.state == "queued":
        shown = attempt or job.attempts
        yield f"{job.id} is queued for attempt {job.attempts + 1}; this is the output of attempt {shown}"
    elif job.attempts > 1 and attempt is None:
        yield f"this is the output of attempt {job.attempts}; --attempt NUMBER shows that of an earlier one"


def _note_beginning(headers: Mapping[bytes, bytes]) -> None:
    missing = int(headers.get(b"cotenant-log-offset", b"0"))
    if missing:
        click.echo(f"the output begins in the middle: the first {missing:,} bytes are no longer kept", err=True)


@click.command(epilog="\b\nExamples:\n  cotenant retry j-000001\n  cotenant retry --on kubernetes train\n")
@job_argument(*ENDED)
@on_options
@output_option
def retry(job: str, output: str, on: str, **where: Any) -> None:
    """Queues a job again after it has ended, for one more attempt under the same ID or name."""
    check_on(on, (), ())
    if on == KUBERNETES:
        emit(cluster_jobs.retry(Where(**where), job), output, COLUMNS)
        return
    emit(Client().post(f"/v1/jobs/{at(job)}/retry", JobView), output, COLUMNS)


ONLY_WIDE = ("env",)
"""fields that are long and rarely needed; --output wide shows them"""


def describe(job: JobView | Mapping[str, Any], wide: bool) -> str:
    """`field  value` lines; the request and the tuning history follow, indented."""
    fields = _with_value(msgspec.to_builtins(job))
    below = {name: value for name, value in fields.items() if _is_nested(value)}
    lines = list(_lines({name: value for name, value in fields.items() if name not in below}))
    for name, value in below.items():
        lines += ["", f"{_label(name)}:"]
        inner = _trials(value) if isinstance(value, Sequence) else _lines(_with_value(value), () if wide else ONLY_WIDE)
        lines += [f"  {line}" for line in inner]
    return "\n".join(lines)


def _with_value(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ("", (), [], {})}


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and isinstance(value[0], dict))


def _lines(fields: Mapping[str, Any], hidden: Sequence[str] = ()) -> Iterator[str]:
    shown = {name: FORMATS.get(name, _text)(value) for name, value in fields.items() if name not in hidden}
    pairs = ((_label(name) if i == 0 else "", line) for name, text in shown.items() for i, line in enumerate(text))
    return iter(aligned([[name, printable(line)] for name, line in pairs]))


def _trials(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tuning history, or what is granted on each GPU, as a table."""
    names = list(dict.fromkeys(name for trial in trials for name in _with_value(trial)))
    rows = [[printable(" ".join(_text(trial.get(name, "")))) for name in names] for trial in trials]
    return iter(aligned([[name.removesuffix("_s").replace("_", " ").upper() for name in names], *rows]))


def _label(field: str) -> str:
    return field.removesuffix("_mib").removesuffix("_s").replace("_", " ")


def _text(value: object) -> list[str]:
    """Formats a value as lines of text."""
    if isinstance(value, dict):
        return [f"{name}={_number(one)}" for name, one in value.items()]
    if isinstance(value, list | tuple):
        whole = " ".join(map(str, value))
        return [whole] if all(isinstance(one, int) for one in value) else [str(one) for one in value]
    return [_number(value)]


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def _when(at: float) -> list[str]:
    return [datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")]


FORMATS: Mapping[str, Callable[[Any], list[str]]] = {
    "submitted": _when,
    "started": _when,
    "ended": _when,
    "command": lambda words: [shlex.join(words)],
    "batch_range": lambda ends: ["-".join(map(str, ends))],
    "speed": lambda share: [f"{share:.0%} of its speed alone"],
    "predicted": lambda share: [f"{share:.0%} of its speed alone"],
    "latency_s": lambda seconds: [f"{1000 * seconds:g} ms"],
    "utilisation": lambda percent: [f"{percent:.0f}%"],
    "host_memory_mib": lambda memory: [f"{memory} MiB"],
    "memory_used_mib": lambda memory: [f"{memory} MiB"],
    "grace_s": lambda seconds: [f"{seconds:g} s"],
    "time_s": lambda seconds: [duration_text(seconds)],
    "warn_s": lambda seconds: [f"{duration_text(seconds)} before the time limit"],
}
"""fields that need more than `_text` to be readable, mostly because of their unit"""
