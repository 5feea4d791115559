# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The observer goes on looking whatever an API server answers that is just being started. Needs no cluster."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cluster.api import ask
from tests.cluster.checker import Checker
from tests.cluster.cluster import Cluster
from tests.cluster.observing import Observer


@contextmanager
def a_server(door: Path, watches: list[int]) -> Iterator[list[str]]:
    """Has no pods, and answers one watch after the other with these; what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status = watches.pop(0) if "watch=1" in self.path and watches else 200
            body: dict[str, Any] = {"kind": "Status", "message": "not now"} if status != 200 else {"items": []}
            content = b"" if status == 200 and "watch=1" in self.path else json.dumps(_with_version(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def address_string(self) -> str:
            return "somebody"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name
            pass

    with UnixStreamServer(str(door), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def _with_version(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {"resourceVersion": "7"}}


@pytest.mark.parametrize(("status", "lists"), [(429, 1), (500, 1), (410, 2)])
def test_a_watch_that_is_refused_is_begun_again_and_all_pods_are_listed_where_history_is_lost(
    status: int, lists: int
) -> None:
    with TemporaryDirectory() as folder, a_server(door := Path(folder) / "door", [status, 200]) as asked:
        stand_in = SimpleNamespace(door=door, machines=[], get=lambda path: json.loads(ask(door, "GET", path)))
        checker = Checker({}, time.monotonic)
        observer = Observer(cast("Cluster", stand_in), checker)
        for _ in range(3):
            observer._follow()
        assert f"RefusedError('{status}: " in checker.history()
        assert [("watch=1" in path) for path in asked].count(False) == lists
        assert len(asked) == 3 + lists
