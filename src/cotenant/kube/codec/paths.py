# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Paths inside a container with GPUs, and on its node. Pods may mount nothing at the guarded ones."""

from pathlib import Path

from cotenant.node.limits import FIXED

LIMITS_FOLDER = FIXED.parent
"""A downward API volume with the limits of the container; the vGPU library looks here first."""
LIMITS = FIXED.name
"""Name of the file in it."""
AGENT_FOLDER = Path("/run/cotenant")
AGENT_SOCKET = AGENT_FOLDER / "agent.sock"
SLICE_FOLDER = Path("/run/cotenant-slice")
"""Holds one file, the usage region of the container."""
REGION = SLICE_FOLDER / "usage"
PROCESSES_FOLDER = Path("/run/cotenant-processes")
"""Holds files that the agent replaces while the container runs. The folder itself is the mount point: root in
a container cannot rename one, and could rename a folder above it."""
PROCESSES = PROCESSES_FOLDER / "list"
GRANTS = PROCESSES_FOLDER / "grants"
"""What is granted to the container at present, if its limits are above its requests."""
LIBRARY_FOLDER = Path("/usr/local/lib/cotenant")
JOB_FOLDER = Path("/usr/local/share/cotenant")
"""Holds the job library, for PYTHONPATH: the image need not have it."""
PRELOAD_FILE = Path("/etc/ld.so.preload")
HOST_LASTING = Path("/var/lib/cotenant")
"""Of the agent: outlives a restart of the machine, as do the containers that have files of it mounted."""
HOST_PASSING = Path("/run/cotenant-node")
"""Of the agent: does not outlive a restart; it holds what running processes use."""
DEVICE_LIST = "nvidia-container-devices"
"""NVIDIA's container runtime can be configured to read mounts whose path begins with /var/run/ and this as names of
GPUs, also without a slash in between: `/var/run/nvidia-container-devicesall` names all of them."""
GUARDED = (LIMITS_FOLDER, AGENT_FOLDER, SLICE_FOLDER, PROCESSES_FOLDER, LIBRARY_FOLDER, JOB_FOLDER, PRELOAD_FILE)
