# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A folder that looks like /proc."""

import os
from pathlib import Path


def add_process(proc: Path, pid: int, cgroup: str, *, state: str = "S", threads: int = 1, name: str = "python") -> None:
    """A process in this cgroup; `cgroup` is the file's whole content."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(f"{cgroup}\n")
    numbers = [1, pid, pid, 0, -1, 4194304, 0, 0, 0, 0, 5, 5, 0, 0, 20, 0, threads, 0, 12345, 0, 0]
    (folder / "stat").write_text(f"{pid} ({name}) {state} {' '.join(map(str, numbers))}\n")


def set_mount(proc: Path, pid: int, source: Path, *, end: str = "", device: int | None = None) -> None:
    """The process has this folder mounted for the list of its slice, and something else elsewhere."""
    number = source.stat().st_dev if device is None else device
    on = f"{os.major(number)}:{os.minor(number)}"
    lines = [
        f"100 99 {on} /somewhere / rw,relatime master:1 - overlay overlay rw",
        f"101 100 {on} {source}{end} /run/cotenant-processes ro,relatime - tmpfs tmpfs rw,size=1k",
    ]
    (proc / str(pid) / "mountinfo").write_text("\n".join([*lines, ""]))


def end_process(proc: Path, pid: int) -> None:
    for name in ("cgroup", "stat"):
        (proc / str(pid) / name).unlink()
    (proc / str(pid)).rmdir()
