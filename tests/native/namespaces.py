# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that each run in a PID namespace of their own, as in containers, and an agent that has seen them or not."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cotenant.node.company import UNKNOWN_SPACE, SliceProcess, identify, write_list
from tests.native import kit
from tests.native.shares import PERCENT, outputs_of

OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
"""with the host's /proc, from which the stand-in reads the host's process ID"""


def can_unshare() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*OWN_NAMESPACE, "true"], check=False).returncode == 0


def descendant(process: "subprocess.Popen[str]") -> int:
    """The host's process ID of the only child of `unshare`."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def namespaced_shares(
    places: Sequence[kit.Slice],
    words: Sequence[Sequence[str]],
    *,
    listed: bool,
    knows_spaces: bool = True,
    forged: bool = False,
    seconds: int = 20,
) -> list[float]:
    """What processes in namespaces of their own get, one in each of the places.

    `listed`: the agent has seen them; `knows_spaces`: it may know the namespaces of other users' processes.
    `forged`: each slice has a list of all of them that others than its owner can write.
    """
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
        if listed:
            found = [found_by_agent(process, knows_spaces) for process in processes]
            for place in places:
                own = (one for one, where in zip(found, places, strict=True) if forged or where == place)
                write_list(place.processes, own)
                place.processes.chmod(0o666 if forged else 0o444)
        go.touch()
        printed = outputs_of(processes)
    assert [errors for _, errors in printed] == [""] * len(places)
    return [kit.values(output)["share"] / PERCENT for output, _ in printed]


def found_by_agent(process: "subprocess.Popen[str]", knows_spaces: bool) -> SliceProcess:
    """What an agent writes of the only child of `unshare`."""
    for _ in range(500):
        with contextlib.suppress(OSError, ValueError):  # it has not forked yet
            found = identify(descendant(process))
            if found is not None:
                return found if knows_spaces else found._replace(pid_space=UNKNOWN_SPACE)
        time.sleep(0.02)
    process.kill()
    raise AssertionError("unshare started no process")
