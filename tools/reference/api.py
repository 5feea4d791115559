# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all requests in docs/reference/api.md, made from the table of routes of the daemon."""

import re
from typing import Any

from cotenant.local.api import ENDPOINTS
from cotenant.local.endpoint import Endpoint
from tools.reference.marked import replaced, table


def page(text: str) -> str:
    """The page with its list renewed."""
    rows = sorted((_row(one) for one in ENDPOINTS), key=lambda row: row[0].split()[1])
    head = ("Request", "Parameters", "Body", "Answer", "Summary")
    return replaced(text, "the table of routes", table(head, rows))


def _row(one: Endpoint) -> tuple[str, ...]:
    parameters = ", ".join(f"`{name}` ({kind})" for name, kind in one.query)
    body = f"{_type(one.takes)}{'' if one.takes_always else ', optional'}" if one.takes else ""
    answer = f"{one.status} {_type(one.answers) if one.answers else 'text or stream'}"
    return f"`{one.method} {one.path}`", parameters, body, answer, one.summary


def _type(kind: Any) -> str:
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__origin__") else str(kind)
    short = re.sub(r"(?:\w+\.)+", "", name)
    return f"`{short}`"
