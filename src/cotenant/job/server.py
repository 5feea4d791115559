# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a server that knows nothing of cotenant, and reports the latencies that it shows to Prometheus.

    python3 -m cotenant.job.server --metrics URL --histogram vllm:time_to_first_token_seconds -- vllm serve MODEL

The server replaces this process, so that it gets all signals; a child reads its metrics every second and sends them to
the agent of the node, until the server ends. The address must be of this machine: nothing else is the server's own.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time

from cotenant.job.session import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cotenant.job.session import Session

EVERY_S = 1.0
ANSWER_S = 5.0
LARGEST_ANSWER = 8 << 20
"""bytes of metrics that are read"""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
USAGE = "usage: python3 -m cotenant.job.server --metrics URL --histogram NAME -- COMMAND..."
_LINE = re.compile(r"(?P<name>[^{\s]+)_bucket\{(?P<labels>.*)\}\s+(?P<value>\S+)")
_BOUND = re.compile(r'(?:^|,)\s*le="(?P<bound>[^"]+)"')


def main(words: Sequence[str]) -> None:
    url, histogram, command = parse(words)
    if os.environ.get("COTENANT_AGENT"):
        server = os.getpid()
        if os.fork() == 0:
            try:
                follow(url, histogram, server)
            finally:
                os._exit(0)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.exit(f"cotenant: {command[0]} cannot be started: {error.strerror}")


def parse(words: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """The address of the metrics, the name of the histogram, and the command; exits if they are not valid."""
    before, dashes, command = list(words), "--" in words, list[str]()
    if dashes:
        split = before.index("--")
        before, command = before[:split], before[split + 1 :]
    options = dict(zip(before[::2], before[1::2], strict=False))
    if set(options) != {"--metrics", "--histogram"} or len(before) != 4 or not command:
        sys.exit(USAGE)
    url = options["--metrics"]
    host = re.fullmatch(r"http://(\[[^]]+\]|[^/:@]+)(?::\d{1,5})?(?:/[^\s@]*)?", url)
    if host is None or host.group(1) not in LOOPBACK:
        sys.exit(f"cotenant: --metrics {url[:200]}: expected http://127.0.0.1:PORT/PATH, the server itself")
    return url, options["--histogram"], command


def follow(url: str, histogram: str, server: int) -> None:
    """Reports until the server ends; a server that does not answer yet is asked again."""
    session, before = connect(), None
    while os.getppid() == server:
        time.sleep(EVERY_S)
        text = _read(url)
        if text is not None:
            now = counts_in(text, histogram)
            if before is not None:
                report(session, before, now)
            before = now


def counts_in(text: str, histogram: str) -> dict[float, float]:
    """How many requests took at most each bound, in seconds, over all labels of the histogram."""
    found: dict[float, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        bound = None if match is None or match["name"] != histogram else _BOUND.search(match["labels"])
        if match is not None and bound is not None:
            try:
                at, count = float(bound["bound"]), float(match["value"])
            except ValueError:
                continue
            if count >= 0:
                found[at] = found.get(at, 0.0) + count
    return found


def report(session: Session, before: Mapping[float, float], now: Mapping[float, float]) -> None:
    """Reports the requests between two looks, each with the bound of its bucket; a server that restarted has fewer."""
    lower, seen = 0.0, 0.0
    for bound in sorted(now):
        new = now[bound] - before.get(bound, 0.0)
        count = new - seen
        latency = bound if math.isfinite(bound) else 2 * lower
        if count >= 1 and latency > 0:
            session.answered(seconds=latency, requests=int(count))
        seen, lower = max(seen, new), latency


def _read(url: str) -> str | None:
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_S) as answer:
            return str(answer.read(LARGEST_ANSWER).decode(errors="replace"))
    except (URLError, OSError, ValueError):
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
