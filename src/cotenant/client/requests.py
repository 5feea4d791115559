# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the request of a job from the options of a command, or of a Python program."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from cotenant.errors import InputError
from cotenant.wire.arrays import Array, check_array, parse_array
from cotenant.wire.job_requests import JobRequest

if TYPE_CHECKING:
    from cotenant.client.client import Job

DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")
OF_THE_USER = ("COTENANT_STATE", "COTENANT_CACHE", "COTENANT_DATA")
"""our variables that jobs get like any other; the rest describe one job, or are secrets of the command line"""

Duration = str | float | timedelta
"""`"45m"`, `"2h"`, a number of seconds, or a timedelta"""


class JobOptions(TypedDict, total=False):
    """What a job requests, besides its command. Each has the meaning of the option of `cotenant submit`."""

    name: str
    """usable instead of the ID"""
    gpus: int
    """number of GPUs; by default 1"""
    memory: str
    """on each GPU: `4GiB`, `50%`, a request and a limit (`2GiB:6GiB`), or `auto`; by default all of it"""
    compute: str
    """share of each GPU: `30%`, or a request and a limit (`20%:60%`)"""
    mig: str
    """profile of the MIG instances, such as `1g.10gb`"""
    container: str
    """image in which the command runs; only the variables of `env` are passed on"""
    volumes: Sequence[str]
    """folders that the container has besides `cwd`: `/data`, `/data:/inside` or `/data:/inside:ro`"""
    cpus: float
    """of the machine, which the job is limited to"""
    host_memory: str
    """memory of the machine, such as `16GiB`, which the job is limited to"""
    types: Sequence[str]
    """acceptable GPU types"""
    isolation: str
    """what holds the job to its limits on NVIDIA GPUs"""
    exclusive: bool
    """share the GPUs with no other job"""
    priority: int
    """a higher number starts first"""
    estimate: Duration
    """expected run time"""
    time: Duration
    """longest time of one run"""
    warn: Duration
    """before the end of `time`, when its first process gets SIGUSR1"""
    grace: Duration
    """between SIGTERM and SIGKILL; by default 10 s"""
    retries: int
    """if the job fails"""
    retry_oom: bool
    """queue it again with more memory when it runs out of it"""
    after: "str | Job | Sequence[str | Job]"
    """jobs that it waits for, each as a job or a text such as `j-000001:any`"""
    interactive: bool
    """give it a terminal, to which `Job.attach` connects"""
    notify: str | Sequence[str]
    """notices to send, such as `failed:mail`, `end:https://example.org/hook` or `start,end:./tell.sh`"""
    array: str | int
    """one element for each index: `"0-31%4"`, or the number of elements"""
    grid: Mapping[str, Sequence[object]]
    """one element for each combination of values"""
    env: Mapping[str, str]
    """variables in addition to those of this process"""
    inherit_env: bool
    """pass the environment of this process on; by default true"""
    cwd: str | Path
    """working directory; by default the current one"""
    batch: int
    """initial batch size"""
    batch_range: tuple[int, int]
    """smallest and largest batch size that tuning may choose"""
    tune: bool
    """whether its batch size may be changed; by default true"""
    floor: float
    """lowest speed that tuning may cause"""
    reservation: str
    """ID of the reservation in which it runs"""
    workload: str
    """name under which speeds are profiled and predicted"""
    latency: Duration
    """target for the time of one step"""
    revert: bool
    """whether it may be stopped and queued again if it slows its neighbours; by default true"""


DURATIONS = ("estimate", "time", "warn", "grace", "latency")
"""options whose field in a request counts seconds, and ends in `_s`"""


def make_request(command: Sequence[str], options: "JobOptions | Mapping[str, Any]") -> JobRequest:
    """The request of a command with these options; those that are None count as left out. InputError says what is
    expected instead of a value."""
    if isinstance(command, str):
        raise InputError("the command is one text: pass a list of words, for example from shlex.split()")
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in fields.keys() - JobOptions.__annotations__.keys():
        raise InputError(f"unknown option {name!r}{nearest(name, JobOptions.__annotations__)}")
    fields |= {f"{name}_s": seconds_of(name, fields.pop(name)) for name in DURATIONS if name in fields}
    inherits = fields.pop("inherit_env", True) and "container" not in fields
    inherited = inherited_environment() if inherits else {}
    fields["env"] = {**inherited, **fields.get("env", {})}
    fields["cwd"] = str(Path(fields.get("cwd", "")).resolve())
    if "after" in fields:
        fields["after"] = _names(fields["after"])
    fields |= {name: tuple(map(_absolute, fields[name])) for name in ("volumes",) if name in fields}
    if isinstance(fields.get("notify"), str):
        fields["notify"] = (fields["notify"],)
    if fields.pop("interactive", False):
        fields["terminal"] = own_size()
    array = _array(fields.pop("array", None), fields.pop("grid", None))
    fields |= {name: tuple(fields[name]) for name in ("types", "batch_range", "notify") if name in fields}
    try:
        made = msgspec.convert({**fields, "command": tuple(map(os.fspath, command))}, JobRequest)
    except (msgspec.ValidationError, TypeError) as error:
        problem, _, field = str(error).replace("`", "").partition(" - at ")
        raise InputError(f"{field.removeprefix('$.') + ': ' if field else ''}{problem}") from None
    return msgspec.structs.replace(made, array=array)


def own_size() -> dict[str, int]:
    """The size of the terminal of this process; the usual one if it has none."""
    for fd in (0, 1, 2):
        with suppress(OSError):
            columns, rows = os.get_terminal_size(fd)
            if rows and columns:
                return {"rows": rows, "columns": columns}
    return {"rows": 24, "columns": 80}


def _absolute(volume: str) -> str:
    """The volume with the absolute path of its folder."""
    folder, colon, rest = volume.partition(":")
    return f"{Path(folder).expanduser().resolve()}{colon}{rest}"


def nearest(name: str, known: "Mapping[str, Any] | Sequence[str]") -> str:
    """`; did you mean "memory"?` if a name resembles a known one, else the known ones."""
    from difflib import get_close_matches

    found = get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else f"; expected some of {', '.join(sorted(known))}"


def parse_seconds(text: str) -> float:
    """Converts `50ms`, `45m` or `2h` into seconds; 0 for any other text."""
    match = DURATION.fullmatch(text.strip())
    return float(match[1]) * UNITS[match[2]] if match else 0.0


def seconds_of(option: str, value: Duration) -> float:
    """A duration in seconds; InputError if it is none."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        if (seconds := parse_seconds(value)) == 0:
            raise InputError(f"{option}={value[:40]!r}: expected a time such as 90s, 45m, 2h or 3d")
        return seconds
    return float(value)


def inherited_environment() -> dict[str, str]:
    """The variables of this process that a job gets."""
    return {name: value for name, value in os.environ.items() if _is_passed(name, value)}


def environment(options: Sequence[str], none: bool = False) -> dict[str, str]:
    """The environment of a job: the caller's, unless `none` is set, and the variables of --env."""
    found = {} if none else inherited_environment()
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            if name not in os.environ:
                raise InputError(
                    f"--env {name}: the variable is not set in this shell; give a value with --env {name}=VALUE"
                )
            value = os.environ[name]
        found[name] = value
    return found


def _is_passed(name: str, value: str) -> bool:
    """Not what describes this shell, nor what another job got from us, nor what JSON cannot carry."""
    if not VARIABLE.fullmatch(name) or name in OF_THE_SHELL:
        return False
    if name.startswith("COTENANT_") and name not in OF_THE_USER:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(after: "str | Job | Sequence[str | Job]") -> tuple[str, ...]:
    """Each job of `after` as a text; a text may name several jobs, separated by commas."""
    listed = [after] if isinstance(after, str) or hasattr(after, "id") else after
    texts = (one if isinstance(one, str) else one.id for one in listed)
    return tuple(word for text in texts for word in text.split(",") if word.strip())


def _array(indexes: "str | int | Array | None", grid: Mapping[str, Sequence[object]] | None) -> Array | None:
    if isinstance(indexes, Array):
        return indexes
    text = None if indexes is None else str(indexes)
    if not grid:
        return parse_array(text)
    made = parse_array(text, tuple(f"{name}=0" for name in grid))
    values = {name: tuple(map(str, listed)) for name, listed in grid.items()}
    if made is None:
        return None
    made = msgspec.structs.replace(made, grid=values)
    check_array(made)
    return made
