# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the code blocks of a page word for word, in one shell, and compares what they print with what the page shows.

Blocks of the language `sh` are run in the order of the page. A block of the language `text` that follows one shows its
output: each shown line must be printed, in this order, with other lines in between. `…` stands for any characters, and
the number of spaces between words does not matter. No command may fail.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPT, OUTPUT = "sh", "text"
MARK = "@@ end of block"
LONGEST_S = 300


class Step(NamedTuple):
    """A block of commands, and the lines that it prints according to the page."""

    commands: str
    shown: tuple[str, ...]


def steps(page: Path) -> list[Step]:
    """The blocks of a page that can be run. An output block without commands before it is an error."""
    found: list[Step] = []
    blocks = BLOCK.findall(page.read_text())
    for number, (language, content) in enumerate(blocks):
        if language == SCRIPT:
            found.append(Step(content, ()))
        elif language == OUTPUT:
            before = blocks[number - 1][0] if number else ""
            assert before == SCRIPT, f"no commands before:\n{content}"
            found[-1] = found[-1]._replace(shown=tuple(line for line in content.splitlines() if line.strip()))
    return found


def script(blocks: list[Step]) -> str:
    """One script of all blocks, which stops at the first command that fails and marks the end of each block."""
    return "set -eE\n" + "".join(f"{step.commands}\necho '{MARK}'\n" for step in blocks)


def follow(page: Path, env: Mapping[str, str], *, prefix: tuple[str, ...] = ()) -> None:
    """Does what a page says. `prefix` is a command that runs the shell."""
    blocks = steps(page)
    assert blocks
    done = subprocess.run(
        [*prefix, "bash", "-c", script(blocks)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
    )
    printed = done.stdout.split(f"{MARK}\n")
    for step, output in zip(blocks, printed, strict=False):
        missing = first_missing(step.shown, output)
        assert missing is None, f"{page.name} shows {missing!r} for\n{step.commands}\nwhich printed\n{output}"
    failed = blocks[len(printed) - 1].commands if len(printed) <= len(blocks) else ""
    assert done.returncode == 0, f"{page.name}: exit code {done.returncode} of\n{failed}\n{printed[-1]}"


def first_missing(shown: tuple[str, ...], output: str) -> str | None:
    """The first shown line that is not printed after the lines before it; None if all are."""
    lines = iter(output.splitlines())
    for line in shown:
        pattern = re.compile(r".*?".join(re.escape(part) for part in " ".join(line.split()).split("…")))
        if not any(pattern.fullmatch(" ".join(printed.split())) for printed in lines):
            return line
    return None


@contextmanager
def home() -> Iterator[dict[str, str]]:
    """The environment of a user who has nothing of ours yet: an empty home, and no state of any daemon."""
    folder = Path(tempfile.mkdtemp(prefix="ct"))  # a socket's path must be short
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PIP_CONFIG_FILE")}
    try:
        yield {**kept, "HOME": str(folder), "TMPDIR": str(folder), "COTENANT_RUNTIME": str(folder / "run")}
    finally:
        for process in _started_with(f"HOME={folder}"):  # a page that was not followed to its end leaves its daemon
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _started_with(variable: str) -> list[int]:
    """Every process that has this variable."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
