# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant decisions`: downloads what the daemon or the scheduler of a cluster decided, one line of JSON each."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.cluster_jobs import KUBERNETES, on_option
from cotenant.cli.options import age_option
from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EPILOG = """\b
Examples:
  cotenant decisions --file day.jsonl
  cotenant decisions --since 2h | head
  cotenant why --decision day.jsonl j-000017
  cotenant simulate --trace recorded:day.jsonl --mode timed --policy least-loaded,cotenant
"""


@click.command(epilog=EPILOG)
@age_option("--since", "Leave out parts that ended longer ago than this. Default: everything that is kept.")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file. Default: print.")
@on_option
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="For a cluster: its kubeconfig.")
def decisions(since: float | None, file: Path | None, on: str, kubeconfig: Path | None) -> None:
    """Downloads the recorded decisions: jobs that came, their placements, and how they ended.

    `cotenant why --decision` replays them, and `cotenant simulate --trace recorded:FILE` replays the jobs under other
    policies. The recording has names of jobs, but neither commands nor environments.
    """
    begin = 0 if since is None else int(time.time() - since)
    chunks = download(begin, on, kubeconfig)
    if file is None:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    else:
        write_file(chunks, file)


def download(begin: int, on: str, kubeconfig: Path | None) -> "Iterator[bytes]":
    """The recorded lines, in pieces, of the parts that reach beyond a time in seconds since 1970."""
    if on == KUBERNETES:
        import asyncio

        from cotenant.kube.api.access import find_access
        from cotenant.kube.scheduler.gathering import gather_decisions

        found = asyncio.run(gather_decisions(find_access(os.environ, kubeconfig), begin))
        for text in found.missing:
            click.echo(f"cotenant: its decisions are missing: {text}", err=True)
        yield from found.lines
        return
    from cotenant.client.client import Client

    yield from Client().lines(f"/v1/decisions?since={begin}")


def write_file(chunks: "Iterable[bytes]", file: Path) -> None:
    """Writes a new file beside the old one and then replaces it, so that none is cut off."""
    part = file.with_name(f".{file.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as opened:
            for chunk in chunks:
                opened.write(chunk)
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        full = " (is the disk full?)" if error.errno == 28 else ""
        raise CotenantError(f"{file}: cannot be written: {error.strerror}{full}") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    size = file.stat().st_size
    if not size:
        raise InputError(f"nothing was recorded in that time, so {file} is empty")
    click.echo(f"wrote {size:,} bytes to {file}")
