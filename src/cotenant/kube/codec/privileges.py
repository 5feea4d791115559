# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which containers cannot share a GPU, because they could reach all GPUs of their node anyway."""

from collections.abc import Iterable

from cotenant.errors import InputError
from cotenant.wire.text import printable

POWERFUL = frozenset(
    {
        "ALL",
        "SYS_ADMIN",  # changes the devices that its cgroup allows, and mounts
        "BPF",  # replaces the program that decides about devices, and changes what the kernel does
        "PERFMON",  # observes the work of others, on GPUs too, and the kernel's memory
        "SYS_MODULE",  # loads kernel code
        "SYS_RAWIO",  # writes to the host's memory and ports
        "SYS_BOOT",  # loads another kernel
        "DAC_READ_SEARCH",  # opens every file of the host by its handle
        "LINUX_IMMUTABLE",  # keeps the agent from replacing or truncating its usage region
        "MAC_ADMIN",  # changes the security policy of the host
        "MAC_OVERRIDE",
    }
)
"""Capabilities with which a container can allow itself devices, or change its node in another way."""
POWERFUL_ON_HOST = POWERFUL | {"SYS_PTRACE"}
"""The same if the container sees the processes of its node: it can take over those that may do more."""


def check_privileges(container: str, *, privileged: bool, capabilities: Iterable[str], host_pid: bool) -> None:
    """InputError if a container that shares a GPU could reach all the others."""
    name, powerful = printable(container[:80]), POWERFUL_ON_HOST if host_pid else POWERFUL
    if privileged:
        raise InputError(
            f"container {name}: a privileged container reaches every GPU of its node, so it"
            " cannot share one; remove securityContext.privileged, or request whole GPUs"
        )
    for one in capabilities:
        if one.upper().removeprefix("CAP_") in powerful:  # as container runtimes read it
            raise InputError(
                f"container {name}: with capability {printable(one[:80])} a container reaches every GPU of"
                " its node, so it cannot share one; remove it from securityContext.capabilities.add, or request whole"
                " GPUs"
            )
