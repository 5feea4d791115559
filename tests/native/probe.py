# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A process in a slice that makes the driver calls that a test sends it (native/programs/memory_probe.c)."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.native import kit

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY"""
DEVICE, HOST = 1, 2
"""CU_MEM_LOCATION_TYPE_DEVICE and _HOST"""


class Answer(NamedTuple):
    """A call's result, and the numbers that it gave."""

    result: int
    first: int
    second: int
    third: int


class Probe:
    """The calling end. What the driver hands out is kept in numbered places of the process, which calls name."""

    def __init__(self, process: "subprocess.Popen[str]", place: kit.Slice) -> None:
        self.process = process
        self.place = place

    def call(self, name: str, *numbers: int) -> Answer:
        """Makes a call; the program's source lists them."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(" ".join([name, *map(str, numbers)]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        assert len(answer) == len(Answer._fields), f"{name} {numbers}: the program ended"
        return Answer(*map(int, answer))

    def ok(self, name: str, *numbers: int) -> int:
        """Makes a call that must work; its first number."""
        answer = self.call(name, *numbers)
        assert answer.result == 0, f"{name} {numbers}: {answer.result}"
        return answer.first

    def refused(self, name: str, *numbers: int) -> bool:
        """Whether a call is answered with out of memory, exactly, and counted as that once."""
        before = self.place.use().refused
        result = self.call(name, *numbers).result
        return result == OUT_OF_MEMORY and self.place.use().refused == before + 1

    def booked(self, number: int = 0) -> int:
        """Bytes of a GPU that the slice is charged with."""
        return self.place.use(number).memory_bytes

    def taken(self, number: int = 0) -> int:
        """Bytes that the driver has given on a GPU, to anyone."""
        return self.ok("taken", number)


@contextmanager
def probe(
    place: kit.Slice, *, context: bool = True, before: Sequence[str] = (), cuda: int = 12, **settings: str | int
) -> Iterator[Probe]:
    """A process in the slice, with the primary context of GPU 0 current unless told otherwise; ended afterwards.

    `before` is the start of its command line; `cuda` is the version of the driver.
    """
    driver = {"LD_LIBRARY_PATH": str(kit.standin(cuda)), "STANDIN_DRIVER": f"{cuda}000"} if cuda != 12 else {}
    with subprocess.Popen(
        [*before, str(kit.program("memory_probe"))],
        env=place.env(**{"backing": "none", **settings}) | driver,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            caller = Probe(process, place)
            if context:
                caller.ok("init")
                caller.ok("retain", CONTEXT, 0)
                caller.ok("current", CONTEXT)
            yield caller
        finally:
            process.kill()


CONTEXT = 8000
"""the place of the primary context"""
NO_STREAM = 8001
"""a place that nothing is put in: the default stream"""
