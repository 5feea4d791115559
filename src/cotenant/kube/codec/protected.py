# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The annotations that only the scheduler may write: they say, or make a container believe, which GPUs it has."""

import re
from collections.abc import Mapping
from functools import lru_cache

from cotenant.core.model import Gpu, Machine, Slot
from cotenant.core.units import MiB
from cotenant.kube.api.objects import Metadata, Pod, PodContainer, PodSpec, Resources
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import RECORD, record_for
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.keys import PREFIX
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import Settings
from cotenant.node.devices.vendors import REAL

CONTAINER_KEYS = rf"^{re.escape(PREFIX)}/[0-9]+[.]"
"""Regular expression of the annotations that containers read through the downward API. The admission policies use it
too, so it must mean the same in RE2, the syntax of CEL."""

RUNTIME_VARIABLES: Mapping[str, str] = {
    row.runtime_variable: row.runtime_none or "" for row in (vendor.row for vendor in REAL) if row.runtime_variable
}
"""Environment variables from which the container runtimes of the vendors read the GPUs of a container, each with the
value that means none. An image can set them too, so a container without GPUs must be given that value."""

_CONTAINER_KEYS = re.compile(CONTAINER_KEYS, re.ASCII)


def is_assignment(key: str) -> bool:
    """Return whether this annotation of ours says which GPUs a pod has."""
    return key == RECORD or _CONTAINER_KEYS.match(key) is not None


def foreign_records(codec: Settings) -> frozenset[str]:
    """Return the annotations by which programs of other systems read an assignment, for all dialects of a cluster."""
    return frozenset(key for dialect in codec.dialects for key in _foreign_records(dialect))


@lru_cache(maxsize=64)
def _foreign_records(dialect: Dialect) -> frozenset[str]:
    # Encoding the assignment of a sample pod yields the keys, so a dialect cannot write one that is missing here.
    codec = Settings(dialects=(dialect,))
    container = PodContainer(name="any", resources=Resources(limits={dialect.count: 1}))
    pod = Pod(metadata=Metadata(uid="any"), spec=PodSpec(containers=(container,)))
    machine = Machine(name="any", gpus=(Gpu(uuid="any", memory=MiB(1)),))
    request = request_of(pod, codec)
    record = record_for(pod, request, Slot(machine.name, (0,)), machine)
    annotations = binding_annotations(pod, request, record, machine, moment=0)
    return frozenset(key for key in annotations if not is_assignment(key))


def without_assignment(annotations: Mapping[str, str], foreign: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the annotations without an assignment, so that a copy of a placed pod is admitted as a new pod."""
    return {key: value for key, value in annotations.items() if not is_assignment(key) and key not in foreign}
