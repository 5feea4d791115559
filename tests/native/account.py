# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A process with the base of the library in it and no driver (native/programs/base_account.c), told what to call."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cotenant.node.region import FAULTS
from tests.native import kit

MEMORY, HOST = 0, 1
"""which account of a GPU"""


class Account:
    """The calling end."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def ask(self, *words: str | int) -> tuple[int, int, int]:
        """Makes a call; the program's source lists them."""
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.listen()

    def listen(self) -> tuple[int, int, int]:
        """The next answer."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the program ended"
        first, second, third = map(int, line.split())
        return first, second, third

    def call(self, *words: str | int) -> int:
        """Makes a call; its first number."""
        return self.ask(*words)[0]

    def reserve(self, size: int, *, gpu: int = 0, of: int = MEMORY) -> bool:
        return bool(self.call("reserve", gpu, of, size))

    def release(self, size: int, *, gpu: int = 0, of: int = MEMORY) -> None:
        self.call("release", gpu, of, size)

    def used(self, *, gpu: int = 0, of: int = MEMORY) -> int:
        """What the slice uses, as this process sees it."""
        return self.call("used", gpu, of)

    def refresh(self) -> None:
        """Lets the next look at the limits and the region happen."""
        assert self.call("refresh") == 1, "errno was changed"

    def faults(self, name: str) -> int:
        """How often this fault was counted by this process."""
        return self.call("faults", FAULTS.index(name))

    @property
    def is_private(self) -> bool:
        """Whether it keeps its account to itself, because the region cannot be used."""
        return bool(self.call("private"))


def environment(place: kit.Slice) -> dict[str, str]:
    """Of a process that has the library's base in it: nothing is preloaded."""
    return os.environ | {"COTENANT_LIMITS": str(place.limits)}


@contextmanager
def account(
    place: kit.Slice, *, program: Path | None = None, before: Sequence[str] = (), env: dict[str, str] | None = None
) -> Iterator[Account]:
    """A process in the slice, which is gone afterwards; `before` is the start of its command line."""
    argv = [*before, str(program or kit.program("base_account", linked=False))]
    with subprocess.Popen(
        argv, env=env or environment(place), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            made = Account(process)
            made.call("start")
            yield made
        finally:
            process.kill()


def crowd(
    place: kit.Slice, *words: str | int, sanitize: str | None = None, before: Sequence[str] = ()
) -> dict[str, int]:
    """What native/programs/base_crowd.c says of many processes at once."""
    program = kit.program("base_crowd", linked=False, sanitize=sanitize)
    done = subprocess.run(
        [*before, program, *map(str, words)],
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return kit.values(done.stdout)
