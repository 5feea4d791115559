# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent of a node says about itself, for `cotenant doctor`; no decision depends on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.kube.codec.keys import own_key

REPORT = own_key("agent")
"""Annotation of a node: the version of its agent, the driver, and why the agent has no GPUs."""
MOST_BYTES = 4096
LONGEST = 500
NVIDIA_VERSION = Path("driver/nvidia/version")
"""below /proc"""

Text = Annotated[str, Meta(max_length=LONGEST)]


class AgentReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The annotation. Unknown fields are ignored: a later agent may add some."""

    version: Text
    """Of cotenant."""
    driver: Text | None = None
    """Version of the NVIDIA driver; None: not known."""
    problem: Text | None = None
    """Why the agent has found no GPUs; None: it has found them."""
    claims: Text | None = None
    """What is wrong with ResourceClaims on the node; None: nothing, or they are not enabled."""


def report_for(version: str, driver: str | None, problem: str | None = None, claims: str | None = None) -> str:
    """Return the text of the annotation."""
    problem, claims = problem and problem[:LONGEST], claims and claims[:LONGEST]
    about = AgentReport(version=version, driver=driver, problem=problem, claims=claims)
    return msgspec.json.encode(about).decode()


def report_of(annotations: Mapping[str, str]) -> AgentReport | None:
    """Return what an agent reported; None if it reported nothing that can be read."""
    text = annotations.get(REPORT, "")
    if not text or len(text) > MOST_BYTES:
        return None
    try:
        return msgspec.json.decode(text, type=AgentReport)
    except msgspec.MsgspecError:
        return None


def nvidia_driver(proc: Path = Path("/proc")) -> str | None:
    """Return the version of the NVIDIA driver that the kernel has loaded; None if there is none."""
    try:
        with open(proc / NVIDIA_VERSION, encoding="utf-8", errors="replace") as file:
            words = file.readline(LONGEST).split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)
