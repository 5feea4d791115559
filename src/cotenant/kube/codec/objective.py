# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The latency objective of a pod, as its owner writes it.

cotenant.io/latency: p99=200ms      # 99 % of its requests are answered within 200 ms
"""

import re
from collections.abc import Mapping

from cotenant.core.sharing.latency import Objective
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.kube.codec.keys import own_key
from cotenant.wire.text import printable

LATENCY = own_key("latency")
LEAST_PERCENTILE, MOST_PERCENTILE = 50, 99
SHORTEST_S, LONGEST_S = 0.001, 3600.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_OBJECTIVE = re.compile(r"p(\d{1,2})\s*=\s*(\d{1,9}(?:\.\d{1,9})?)(us|ms|s|m)", re.ASCII)


def has_objective(annotations: Mapping[str, str]) -> bool:
    """Whether a pod states an objective that can be understood."""
    try:
        return objective_of(annotations) is not None
    except InputError:
        return False


def objective_of(annotations: Mapping[str, str]) -> Objective | None:
    """The objective that a pod states, None if it states none; InputError if it cannot be understood."""
    text = annotations.get(LATENCY)
    if text is None:
        return None
    found = _OBJECTIVE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"annotation {LATENCY}: {printable(text[:40])!r}; write for example p99=200ms")
    percentile, seconds = int(found[1]), float(found[2]) * _UNITS[found[3]]
    if not LEAST_PERCENTILE <= percentile <= MOST_PERCENTILE:
        raise InputError(f"annotation {LATENCY}: p{percentile}, expected p{LEAST_PERCENTILE} to p{MOST_PERCENTILE}")
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise InputError(f"annotation {LATENCY}: {printable(text[:40])!r}, expected a time from 1ms to 60m")
    return Objective(percentile, Seconds(seconds))
