# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The terminals of interactive jobs, as the daemon sees them: where their sockets are. Their supervisors hold them
([terminal.py](terminal.py))."""

import os
from pathlib import Path

from cotenant.local import terminal
from cotenant.local.config import Resources
from cotenant.local.run_files import Spec
from cotenant.wire.job_requests import JobRequest


def terminal_path(resources: Resources, folder: Path, job: str) -> Path:
    """The socket of a run, whose folder is `folder`. Users cannot enter the state folder of a daemon for all users."""
    return folder / "terminal" if resources.runtime is None else resources.runtime / "terminals" / job


def with_terminal(spec: Spec, request: JobRequest, socket: Path) -> Spec:
    """The specification of a run with a terminal, if it was requested."""
    size = request.terminal
    if size is None:
        return spec
    settings = {"program": os.path.abspath(terminal.__file__), "socket": os.path.abspath(socket)}
    return spec._replace(
        terminal={**settings, "rows": size.rows, "columns": size.columns}, env={"TERM": "xterm", **spec.env}
    )
