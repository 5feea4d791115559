# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that each run in a PID namespace of their own, as in containers, and an agent that has seen them or not."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from cotenant.node.company import slice_processes, with_processes
from cotenant.node.limits import change_limits
from tests.native import kit
from tests.native.shares import PERCENT

OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
"""with the host's /proc, from which the stand-in reads the host's process ID"""


def can_unshare() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*OWN_NAMESPACE, "true"], check=False).returncode == 0


def descendant(process: "subprocess.Popen[str]") -> int:
    """The host's process ID of the only child of `unshare`."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def namespaced_shares(
    places: Sequence[kit.Slice], words: Sequence[Sequence[str]], *, listed: bool, seconds: int = 20
) -> list[float]:
    """What processes in namespaces of their own get, one in each of the places; `listed`: the agent has seen them."""
    go = places[0].folder / "go"
    shared: dict[str, str | int] = {"clock": "virtual", "parties": len(places), "engine": "round-robin", "host_pids": 1}
    shared["state"] = str(places[0].folder / "state")
    with ExitStack() as stack:
        processes = []
        for place, extra in zip(places, words, strict=True):
            program = str(kit.program("share_burn"))
            command = [*OWN_NAMESPACE, program, f"wait={go}", f"seconds={seconds}", *extra]
            started = subprocess.Popen(
                command, env=place.env(**shared), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            processes.append(stack.enter_context(started))
        regions = {str(place.folder): place.usage for place in places}
        if listed:
            wait_until_mapped(processes, regions)
            found = slice_processes(map(descendant, processes), regions)
            for place in places:
                change_limits(place.limits, partial(with_processes, processes=found[str(place.folder)]))
        go.touch()
        try:
            said = [process.communicate(timeout=60) for process in processes]
        except subprocess.TimeoutExpired:
            for process in processes:
                process.kill()
            raise
    assert [complaints for _, complaints in said] == [""] * len(places)
    return [kit.values(output)["share"] / PERCENT for output, _ in said]


def wait_until_mapped(processes: Sequence["subprocess.Popen[str]"], regions: dict[str, Path]) -> None:
    for _ in range(500):
        try:
            found = slice_processes(map(descendant, processes), regions)
        except (OSError, ValueError):
            found = {}
        if sum(map(len, found.values())) == len(processes):
            return
        time.sleep(0.02)
    for process in processes:
        process.kill()
    raise AssertionError("the processes did not map their regions")
