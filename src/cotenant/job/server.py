# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a server that knows nothing of cotenant, and reports the latencies that it shows to Prometheus.

    python3 -m cotenant.job.server --metrics URL --histogram vllm:time_to_first_token_seconds -- vllm serve MODEL

A bucket of the histogram says only between which bounds its requests were: they are spread evenly over it, as in
Prometheus' histogram_quantile.

The server replaces this process, so that it gets all signals; a child reads its metrics every second and sends them to
the agent of the node, until the server ends. The address must be of this machine: nothing else is the server's own.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from itertools import pairwise

from cotenant.job import messages
from cotenant.job.session import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cotenant.job.session import Session

EVERY_S = 1.0
ANSWER_S = 5.0
LARGEST_ANSWER = 8 << 20
"""bytes of metrics that are read"""
COARSE = 1.5
"""a factor between two bounds; the log names the bounds that are further apart"""
GOLDEN = (math.sqrt(5) - 1) / 2
"""the multiples of it are spread evenly between whole numbers, however many there are"""
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
    reporter, said = Reporter(connect(), histogram), False
    while os.getppid() == server:
        time.sleep(EVERY_S)
        try:
            text = _read(url)
            if text is not None:
                reporter.look(text)
        except Exception as error:  # noqa: BLE001 -- whatever the server answered, its next answer is read
            if not said:
                said = True
                _say(f"an answer of {url} cannot be read: {type(error).__name__}: {error}"[:500])


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
            if 0 <= count < math.inf and not math.isnan(at):
                found[at] = found.get(at, 0.0) + count
    return found


class Reporter:
    """Reports the requests between two looks at a histogram."""

    def __init__(self, session: Session, histogram: str) -> None:
        self._session, self._histogram = session, histogram
        self._before: Mapping[float, float] | None = None
        self._reported = 0
        """spreads of requests over a bucket"""
        self._said = False

    def look(self, text: str) -> None:
        """Takes in the metrics of now; a server that restarted has fewer requests, which are not reported."""
        now = counts_in(text, self._histogram)
        before, self._before = self._before, now
        if not self._said and now:
            self._said = True
            self._warn(sorted(now))
        if before is None:
            return
        lower, seen = 0.0, 0.0
        for bound in sorted(now):
            new = now[bound] - before.get(bound, 0.0)
            count = int(new - seen)
            if count >= 1 and bound > 0:
                self._report(lower, bound, count)
            seen, lower = max(seen, new), max(lower, bound)

    def _report(self, lower: float, upper: float, count: int) -> None:
        if math.isinf(upper):  # at least as slow as the largest bound, so no objective below it is held
            if lower > 0:
                self._session.answered(seconds=2 * lower, requests=count)
            return
        # Where the first one is differs from look to look: single requests would all be in the middle otherwise.
        self._reported += 1
        for latency, requests in spread(lower, upper, count, self._reported * GOLDEN % 1.0):
            self._session.answered(seconds=latency, requests=requests)

    def _warn(self, bounds: Sequence[float]) -> None:
        pairs = [(low, high) for low, high in pairwise(bounds) if low > 0 and COARSE * low < high < math.inf]
        if pairs:
            text = ", ".join(f"{low:g} and {high:g}" for low, high in pairs)
            _say(
                f"{self._histogram} does not tell latencies apart between {text} s: an objective in between is judged "
                "by an estimate; one of these bounds is judged exactly"
            )


def spread(lower: float, upper: float, count: int, first: float) -> Iterator[tuple[float, int]]:
    """Latencies of so many requests at equal distances between two bounds, each with the number of those in its bucket.

    `first`: where the first one is, as a part of the distance, 0 to 1.
    """
    before, last = 0, messages.bucket_of(upper)
    # None is in the bucket of the lower bound, so that an objective that is this bound is judged exactly.
    first_bucket = min(last, messages.bucket_of(lower) + 1) if lower > 0 else 0
    for bucket in range(first_bucket, last + 1):
        latency = min(upper, messages.FIRST_BOUND_S * 2.0 ** (bucket / messages.BOUNDS_PER_DOUBLING))
        below = math.ceil(count * (latency - lower) / (upper - lower) - first) if latency < upper else count
        if below > before:
            yield latency, below - before
            before = below


def _read(url: str) -> str | None:
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_S) as answer:
            return str(answer.read(LARGEST_ANSWER).decode(errors="replace"))
    except (URLError, OSError):  # it has not started yet
        return None


def _say(text: str) -> None:
    print(f"cotenant: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
