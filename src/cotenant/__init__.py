# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Many deep-learning jobs on shared GPUs: one placement brain for a machine, a cluster and a simulator.

Python programs submit jobs with `cotenant.submit(...)`, and call functions as jobs with `cotenant.map(...)`. The names
are loaded when they are first used, so that `import cotenant` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from cotenant.client.asynchronous import AsyncClient as AsyncClient
    from cotenant.client.asynchronous import AsyncJob as AsyncJob
    from cotenant.client.calls import Call as Call
    from cotenant.client.calls import CallFailedError as CallFailedError
    from cotenant.client.calls import Executor as Executor
    from cotenant.client.calls import map as map  # noqa: A004 - a public name
    from cotenant.client.client import Client as Client
    from cotenant.client.client import Job as Job
    from cotenant.client.problems import JobFailedError as JobFailedError
    from cotenant.client.problems import NeverFitsError as NeverFitsError
    from cotenant.client.problems import NoDaemonError as NoDaemonError
    from cotenant.client.problems import NotFoundError as NotFoundError
    from cotenant.client.problems import RefusedByDaemonError as RefusedByDaemonError
    from cotenant.client.requests import JobOptions as JobOptions
    from cotenant.errors import CotenantError as CotenantError

try:
    import cotenant._version as _built  # type: ignore[import-not-found, unused-ignore]

    __version__: str = _built.VERSION
except ModuleNotFoundError:  # a copy of the sources that no build has seen
    __version__ = "0.0.0"

_PLACES = {
    "AsyncClient": "asynchronous",
    "AsyncJob": "asynchronous",
    "Call": "calls",
    "CallFailedError": "calls",
    "Client": "client",
    "Executor": "calls",
    "Job": "client",
    "JobFailedError": "problems",
    "JobOptions": "requests",
    "NeverFitsError": "problems",
    "NoDaemonError": "problems",
    "NotFoundError": "problems",
    "RefusedByDaemonError": "problems",
    "map": "calls",
}
"""public names, and the module of `cotenant.client` that defines each"""


def submit(command: "Sequence[str]", **options: "Unpack[JobOptions]") -> "Job":
    """Submits a command to the daemon that the commands would use; `Client.submit` says more."""
    from cotenant.client.client import Client

    return Client().submit(command, **options)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "CotenantError":
        return import_module("cotenant.errors").CotenantError
    if name in _PLACES:
        return getattr(import_module(f"cotenant.client.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'cotenant' has no attribute {name!r}")
