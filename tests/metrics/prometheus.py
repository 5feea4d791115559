# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes pages of a test, and answers queries."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

T = TypeVar("T")
LONG_S = 60.0
VARIABLES = re.compile(r"\$\{?(node_name|node|namespace|tenant)\}?")
LABELS = re.compile(r"label_values\((.+), (\w+)\)")


def tool(name: str) -> str:
    """The path of a program; skips the test if there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs the tool {name}")
    return found


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query, with the variables of dashboards replaced; fails if it is refused.

        `label_values(…)` of Grafana is answered by the values of the label.
        """
        text = VARIABLES.sub(".*", expression).replace("$__rate_interval", "1m")
        labels = LABELS.fullmatch(text)
        answer = self._ask("/api/v1/query", {"query": labels.group(1) if labels else text})
        found = answer["data"]["result"]
        if labels is None:
            return list(found)
        return [one for one in found if one["metric"].get(labels.group(2))]

    def healthy_targets(self) -> int:
        targets = self._ask("/api/v1/targets", {"state": "active"})["data"]["activeTargets"]
        return sum(target["health"] == "up" for target in targets)

    def problems(self) -> list[str]:
        targets = self._ask("/api/v1/targets", {"state": "active"})["data"]["activeTargets"]
        return [f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["health"] != "up"]

    def rules(self) -> list[dict[str, Any]]:
        groups = self._ask("/api/v1/rules", {})["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _ask(self, path: str, query: Mapping[str, str]) -> Any:
        try:
            with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None


def wait_for(what: str, look: Callable[[], T]) -> T:
    """What `look` returns as soon as it is true."""
    until = time.monotonic() + LONG_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, f"waited {LONG_S:g} s for {what}"
        time.sleep(0.2)


@contextmanager
def prometheus_of(folder: Path, jobs: Sequence[Mapping[str, Any]], rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """A Prometheus with these scrape configurations, ready when all targets were scraped."""
    program = tool("prometheus")
    config = folder / "prometheus.yaml"
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config.write_text(
        yaml.safe_dump({"global": every, "rule_files": list(map(str, rules)), "scrape_configs": list(jobs)})
    )
    port = free_port()
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with open(folder / "prometheus.log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            wait_for("Prometheus", server.is_ready)
            targets = sum(len(one["targets"]) for job in jobs for one in job["static_configs"])
            wait_for("all targets to be scraped", lambda: server.healthy_targets() == targets)
            yield server
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
