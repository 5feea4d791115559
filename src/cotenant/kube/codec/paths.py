# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where things are inside a container with GPUs, and on its node. Nobody else may mount anything there."""

from pathlib import Path

LIMITS_FOLDER = Path("/etc/cotenant")
"""a downward-API volume with the container's limits; the first place where the vGPU library looks"""
LIMITS = "limits"
"""the file in it"""
AGENT_FOLDER = Path("/run/cotenant")
AGENT_SOCKET = AGENT_FOLDER / "agent.sock"
SLICE_FOLDER = Path("/run/cotenant-slice")
"""with one file, the container's own, where its processes write down what they use"""
REGION = SLICE_FOLDER / "usage"
LIBRARY_FOLDER = Path("/usr/local/lib/cotenant")
PRELOAD_FILE = Path("/etc/ld.so.preload")
HOST_LASTING = Path("/var/lib/cotenant")
"""of a node's agent: outlives a restart of the machine, as containers do that are told of it"""
HOST_PASSING = Path("/run/cotenant-node")
"""of a node's agent: does not, what running processes use"""
GUARDED = (LIMITS_FOLDER, AGENT_FOLDER, SLICE_FOLDER, LIBRARY_FOLDER, PRELOAD_FILE)
