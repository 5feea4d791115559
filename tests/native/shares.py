# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that take all they can get of the stand-in's GPU, alone or side by side on one virtual clock."""

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.native import kit

PERCENT = 1000
"""shares are printed in thousandths of a per cent"""


def slice_in(folder: Path, compute: int, policy: str = "always") -> kit.Slice:
    folder.mkdir(exist_ok=True)
    return kit.Slice(folder).write(compute=compute, policy=policy)


def outputs_of(processes: Sequence["subprocess.Popen[str]"]) -> list[tuple[str, str]]:
    """What each process printed, and its errors; kills all if one takes too long."""
    try:
        return [process.communicate(timeout=300) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        raise


def burn(places: Sequence[kit.Slice], *given: str, **settings: str | int) -> list[Mapping[str, int]]:
    """What each process printed, one in each of the slices, all on the GPU and the clock of the first.

    A program that prints nothing was killed. `given` are words of share_burn; "0:die=3" is for the first process only.
    """
    shared = {"clock": "virtual", "parties": len(places), "state": str(places[0].folder / "state"), **settings}
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [str(kit.program("share_burn")), *_words_for(number, given)],
                    env=place.env(**shared),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for number, place in enumerate(places)
        ]
        printed = outputs_of(processes)
    for process, (_, errors) in zip(processes, printed, strict=True):
        assert errors == "", errors
        assert process.returncode in (0, -9), process.returncode
    return [kit.values(output) for output, _ in printed]


def _words_for(number: int, given: Sequence[str]) -> list[str]:
    split = [word.split(":") for word in given]
    return [parts[-1] for parts in split if len(parts) == 1 or parts[0] == str(number)]


def share(place: kit.Slice, *given: str, **settings: str | int) -> float:
    """Per cent of the GPU's time that one process gets."""
    (found,) = burn([place], *given, **settings)
    return found["share"] / PERCENT


def steps(place: kit.Slice, *computes: int, priority: str = "high", paused: Sequence[bool] = ()) -> list[float]:
    """What a process gets while its limits change: the first ones for a second, then each of the others for two."""
    files = []
    pauses = paused or [False] * len(computes)
    for number, (compute, pause) in enumerate(zip(computes, pauses, strict=True)):
        place.write(compute=compute, policy="always", priority=priority, paused=pause)
        files.append(place.limits.rename(place.folder / f"step{number}"))
    files[0].rename(place.limits)
    done = kit.run(place, [kit.program("share_steps"), place.limits, *files[1:]], clock="virtual", parties=2)
    assert (done.returncode, done.stderr) == (0, "")
    return [value / PERCENT for value in kit.values(done.stdout).values()]


def long_share(place: kit.Slice, mode: str, nanoseconds: int, launches: int = 5) -> float:
    """Per cent of the GPU's time that launches of that length get, in the ways of native/programs/share_long.c."""
    command: list[str | Path] = [kit.program("share_long"), mode, str(nanoseconds), str(launches)]
    done = kit.run(place, command, clock="virtual", overlap=int(mode == "tiny"))
    assert (done.returncode, done.stderr) == (0, "")
    return kit.values(done.stdout)["share"] / PERCENT
