# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A dialect is one way in which pods request GPUs: names of resources with their units, annotations, and the
variables that its programs expect.

To add one, write it in a file of its own, add it to `DIALECTS` in settings.py and its name to the row of its vendor. A
`Dialect` needs a name, the resource that counts GPUs, and a function that returns the variables of a container.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cotenant.core.model import Gpus
from cotenant.core.units import MiB
from cotenant.node.devices.vendors import ROWS, Enforcement, Vendor
from cotenant.node.launch import Launch

GIB = MiB(1024)


VENDORS = {name: vendor for vendor, row in ROWS.items() for name in row.dialects}
"""The vendor of each dialect, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAssignment:
    """The GPUs and amounts of one container, which a dialect translates into variables and annotations."""

    launch: Launch
    """How the one-machine engine would start a process on the same GPUs. `launch.env` has its variables by name, such
    as NVIDIA_VISIBLE_DEVICES; `node.variables` lists them. `launch.grants` has the amounts on each GPU."""
    gpus: Gpus
    """Indices on the node."""
    pod_memory: MiB
    """Of all containers of the pod that stay, together."""
    low: bool
    """Whether it is of the lower priority class: it waits while others work on its GPU."""
    unit: MiB
    """Unit in which its author states memory."""
    number: int
    """Its place among all containers of the pod, init containers first."""
    node: str
    app: int | None = None
    """Its position among the pod's app containers; None: it is an init container or a sidecar."""


Variables = Callable[["Dialect", ContainerAssignment], Mapping[str, str]]
Annotations = Callable[["Dialect", Sequence[ContainerAssignment], int], Mapping[str, str]]
"""Takes all containers of a pod that use the dialect, and the time in nanoseconds since 1970."""


def nothing(dialect: "Dialect", assignments: Sequence[ContainerAssignment], moment: int) -> Mapping[str, str]:
    """No annotations at all."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One way to request GPUs. All amounts are on each GPU; what has no name cannot be requested."""

    name: str
    """As in the row of its vendor."""
    count: str
    """Resource: number of GPUs."""
    slots: str | None = None
    """Resource of ours of which kubelet hands out devices; the webhook adds one for each GPU. `count` then says how
    many GPUs a node has. None: kubelet hands out devices of `count`."""
    memory: str | None = None
    memory_unit: MiB = MiB(1)
    memory_percent: str | None = None
    compute: str | None = None
    """Resource: percent of a GPU's compute."""
    priority: str | None = None
    """Resource: 0 is high, 1 and more are low."""
    memory_mib: str | None = None
    """Resource of ours: memory in MiB. The webhook moves an amount there whose unit is not that of the dialect."""
    divided_by: str | None = None
    """Label of the pod: number of GPUs among which the amounts of a container are divided."""
    alone: bool = False
    """Whether all of a GPU's compute means a GPU that no other tenant uses, whatever memory is requested."""
    one_share: bool = False
    """Whether a pod can get a share of one GPU only, because its programs can use one only."""
    env_share: bool = False
    """Whether a number of GPUs alone means shares of them without an amount, as many on a GPU as it has share slots."""
    enforces: Enforcement | None = None
    """What enforces the limits of pods that use this dialect; None: what the row of the vendor says."""
    use_types: str | None = None
    """Annotations: parts of the names of GPU types, or UUIDs."""
    avoid_types: str | None = None
    use_uuids: str | None = None
    avoid_uuids: str | None = None
    one_numa: str | None = None
    type_prefix: str = ""
    """What the dialect puts before the name that the driver gives to a GPU type."""
    mode: str | None = None
    """Annotation: how a GPU is divided."""
    modes: tuple[str, ...] = ()
    """Values of `mode` that mean the limits that we enforce; others are refused."""
    mig_mode: str | None = None
    """The value of `mode` that means a MIG instance."""
    other_names: tuple[tuple[str, str], ...] = ()
    """Pairs of a field of this class that names a resource, and another name of that resource."""
    policy: str | None = None
    """Placement policy of pods that name none; None: that of the cluster."""
    workload_policy: str | None = None
    """The same for pods that name their workload."""
    low: bool = False
    """Whether a container that states no priority is of the lower class."""
    variables: Variables
    """Returns the variables of one container, by name. Their names must depend on the number of GPUs only, since the
    webhook declares them before GPUs are chosen."""
    annotations: Annotations = nothing
    """Of the pod, for other programs that look for them."""

    @property
    def vendor(self) -> Vendor:
        """Whose GPUs it requests; a pod runs on those of one vendor."""
        return VENDORS[self.name]

    @property
    def unenforced(self) -> str | None:
        """One sentence on the limits that nothing enforces; None: all are enforced."""
        return self.vendor.row.unenforced(self.enforces)

    @property
    def handed_out(self) -> str:
        """The resource of which kubelet hands out devices."""
        return self.slots or self.count

    @property
    def moves_count(self) -> bool:
        """Whether the webhook replaces a number of GPUs by devices of `slots`: kubelet would compare the sum of all
        shares with the number of GPUs."""
        return self.slots is not None and self.memory is not None

    @property
    def resources(self) -> tuple[str, ...]:
        names = (self.count, self.memory, self.memory_percent, self.compute, self.priority, self.memory_mib, self.slots)
        return (*(name for name in names if name is not None), *(other for _, other in self.other_names))


def in_units(memory: MiB, unit: MiB) -> int:
    """Rounded down, so that no tenant is promised more than there is, but never to zero."""
    return max(1, memory // unit) if memory else 0
