# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The limits file of a slice, which the vGPU library reads; native/lib/limits.h defines the format.

A tenant can read it and cannot change it. It is replaced as a whole, so limits can change while jobs run.
"""

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import WHOLE_GPU, MilliGpu
from cotenant.errors import InputError

FIXED = Path("/etc/cotenant/limits")
"""the limits file of containers"""
VARIABLE = "COTENANT_LIMITS"
"""the variable that names another one"""
FIRST_LINE = "cotenant-limits 2"
MOST_BYTES = 65536
MOST_GPUS = 16
LONGEST_UUID = 47
_UUID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9/:._-]{{0,{LONGEST_UUID - 1}}}", re.ASCII)
_MOST = (1 << 64) - 2
"""bytes; the next larger number means "no limit" in the library"""


class ComputePolicy(StrEnum):
    """When the compute share is enforced."""

    CONSERVING = "conserving"
    """only while other processes use the GPU"""
    ALWAYS = "always"
    NEVER = "never"


class Priority(StrEnum):
    """The class of a slice: while a slice of the higher class works on a GPU, those of the lower class wait."""

    HIGH = "high"
    LOW = "low"


class GpuLimit(NamedTuple):
    """What a slice may use of one GPU."""

    uuid: str
    memory_bytes: int | None
    """None: no limit"""
    compute: MilliGpu = WHOLE_GPU
    """1 to 1000; 1000 is no limit"""
    host_bytes: int = 0
    """budget of host memory for allocations beyond `memory_bytes`"""
    paused: bool = False
    """launches wait"""
    request_bytes: int | None = None
    """what is guaranteed, if `memory_bytes` is granted anew while the slice runs; None: it is fixed"""
    most_bytes: int = 0
    """what `memory_bytes` could be raised to at present, if more is wanted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the processes of one slice may use together."""

    gpus: tuple[GpuLimit, ...] = ()
    others: GpuLimit | None = None
    """for every GPU that `gpus` does not name; its UUID is ignored. None: no limit there"""
    region: Path | None = None
    """usage region, in which the processes record their use"""
    policy: ComputePolicy = ComputePolicy.CONSERVING
    priority: Priority = Priority.HIGH
    overhead: bool = True
    """memory that the driver takes beyond what programs allocate (contexts, modules) counts against the limits"""
    processes: Path | None = None
    """the list of the slice's processes (`company.py`); None: which they are is unknown"""
    grants: Path | None = None
    """a file of this format with what is granted at present, if that is not in the limits file itself"""


def limits_text(limits: Limits) -> str:
    """The content of the limits file; raises InputError if the format cannot express the limits."""
    if len(limits.gpus) > MOST_GPUS:
        raise InputError(f"a slice of {len(limits.gpus)} GPUs: expected at most {MOST_GPUS}")
    lines = [FIRST_LINE]
    if limits.region is not None:
        lines.append(f"region {_path(limits.region)}")
    if limits.processes is not None:
        lines.append(f"processes {_path(limits.processes)}")
    if limits.grants is not None:
        lines.append(f"grants {_path(limits.grants)}")
    lines += [f"policy {limits.policy}", f"priority {limits.priority}"]
    if not limits.overhead:
        lines.append("overhead ignored")
    if limits.others is not None:
        lines.append(f"default {_amounts(limits.others)}")
    lines += [f"gpu {_uuid(limit.uuid)} {_amounts(limit)}" for limit in limits.gpus]
    return "\n".join([*lines, "end\n"])


def parse_limits(text: str) -> Limits:
    """Parses as the library does: ignores unknown words and lines; raises InputError if the text is not valid."""
    first, *lines = text.split("\n")
    if first != FIRST_LINE:
        raise InputError(f"not limits: begins with {first[:40]!r}, expected {FIRST_LINE!r}")
    if "end" not in lines:
        raise InputError("not limits: the line `end` is missing, so it may be truncated")
    region, processes, grants, others, gpus, overhead = None, None, None, None, [], True
    policy, priority = ComputePolicy.CONSERVING, Priority.HIGH
    for line in lines[: lines.index("end")]:
        kind, _, rest = line.partition(" ")
        try:
            match kind:
                case "region":
                    region = Path(rest)
                case "policy":
                    policy = ComputePolicy(rest)
                case "priority":
                    priority = Priority(rest)
                case "overhead":
                    if rest not in ("counted", "ignored"):
                        raise ValueError(rest)
                    overhead = rest == "counted"
                case "processes":
                    processes = Path(rest)
                case "grants":
                    grants = Path(rest)
                case "default":
                    others = _limit("", rest)
                case "gpu":
                    uuid, _, amounts = rest.partition(" ")
                    gpus.append(_limit(_uuid(uuid), amounts))
        except ValueError:
            raise InputError(f"not limits: {line[:80]!r} is not valid") from None
    return Limits(
        gpus=tuple(gpus),
        others=others,
        region=region,
        policy=policy,
        priority=priority,
        overhead=overhead,
        processes=processes,
        grants=grants,
    )


def write_read_only(path: Path, text: str) -> None:
    """Writes a file atomically; it is read-only for every user from its first moment."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, 0o444)  # independent of the umask: the job may run as another user
        file.write(text)
    os.replace(fresh, path)  # not synced: after a crash of the machine no process is left to limit


def applying_file(env: Mapping[str, str], fixed: Path = FIXED) -> Path | None:
    """The limits file of the slice that a process with this environment is in, as native/lib/start.c chooses it."""
    named = env.get(VARIABLE)
    try:
        found = fixed.stat()
    except OSError:
        return Path(named) if named else None
    only_root_writes = found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISREG(found.st_mode) and only_root_writes:
        return fixed
    return Path(named) if named else None


def read_limits(path: Path) -> Limits:
    """Reads a limits file; raises OSError or InputError if it cannot be read."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: not limits: larger than {MOST_BYTES} bytes")
    return parse_limits(content.decode(errors="replace"))


def change_limits(
    path: Path, change: Callable[[Limits], Limits], *, wait: bool = True, lock: Path | None = None
) -> Limits:
    """Changes the limits of a running slice under its lock, and returns the new ones.

    The lock is that of a folder, the one of the file unless `lock` names another. Without `wait`, raises
    BlockingIOError if it is taken. A tenant that can open the folder can hold the lock for as long as it likes, so a
    caller that manages several slices must not wait.
    """
    with _locked(lock or path.parent, wait):
        before = read_limits(path)
        after = change(before)
        if after != before:
            write_read_only(path, limits_text(after))
    return after


@contextlib.contextmanager
def _locked(folder: Path, wait: bool) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _amounts(limit: GpuLimit) -> str:
    memory = "none" if limit.memory_bytes is None else _bytes(limit.memory_bytes)
    if not 1 <= limit.compute <= WHOLE_GPU:
        raise InputError(f"compute of {limit.compute} thousandths of a GPU: expected 1 to {WHOLE_GPU}")
    granted = ""
    if limit.request_bytes is not None:
        granted = f" request={_bytes(limit.request_bytes)} most={_bytes(limit.most_bytes)}"
    rest = f"host={_bytes(limit.host_bytes)} compute={limit.compute} paused={int(limit.paused)}"
    return f"memory={memory}{granted} {rest}"


def _bytes(amount: int) -> int:
    if not 0 <= amount <= _MOST:
        raise InputError(f"memory of {amount} bytes: expected 0 to {_MOST}")
    return amount


def _limit(uuid: str, amounts: str) -> GpuLimit:
    words = dict(word.partition("=")[::2] for word in amounts.split(" "))
    memory = words.get("memory", "none")
    return GpuLimit(
        uuid=uuid,
        memory_bytes=None if memory == "none" else int(memory),
        compute=MilliGpu(int(words.get("compute", WHOLE_GPU))),
        host_bytes=int(words.get("host", 0)),
        paused=words.get("paused", "0") == "1",
        request_bytes=int(words["request"]) if "request" in words else None,
        most_bytes=int(words.get("most", 0)),
    )


def _uuid(uuid: str) -> str:
    if not _UUID.fullmatch(uuid):
        raise InputError(f"GPU {uuid[:60]!r}: expected a UUID of up to {LONGEST_UUID} letters, digits and -/:._")
    return uuid


def _path(path: Path) -> str:
    text = str(path)
    if not path.is_absolute() or "\n" in text or len(os.fsencode(text)) >= 1024:
        raise InputError(f"{text[:80]}: expected an absolute path of fewer than 1,024 bytes in one line")
    return text
