# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which annotations are the scheduler's alone: everything that says, or lets a container believe, which GPUs it has."""

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
from cotenant.kube.codec.request import asked_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.install.names import AGENT, NAMESPACE, SCHEDULER

SCHEDULER_USER = f"system:serviceaccount:{NAMESPACE}:{SCHEDULER}"
AGENT_USER = f"system:serviceaccount:{NAMESPACE}:{AGENT}"
NODES = "system:nodes"
"""the group of all kubelets"""
ONLY_THE_SCHEDULER = "is for cotenant's scheduler alone: nobody else may set, change or remove it"
WAYS = ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding", "bindings")
"""on which annotations reach a pod"""
OF_CONTAINERS = rf"^{re.escape(PREFIX)}/[0-9]+[.]"
"""what containers see of an assignment, by the downward API; also in CEL, whose regular expressions are RE2's"""
PLUGINS_OWN = frozenset({"CAMBRICON_DSMLU_ASSIGNED"})
"""what the vendor's device plugin writes itself once it has made the slice"""

_OF_CONTAINERS = re.compile(OF_CONTAINERS, re.ASCII)


def is_assignment(key: str) -> bool:
    """Whether an annotation of ours says which GPUs a pod has."""
    return key == RECORD or _OF_CONTAINERS.match(key) is not None


def records_of_others(codec: Settings) -> frozenset[str]:
    """The annotations by which assignments are told to programs of other systems."""
    return frozenset(key for dialect in codec.dialects for key in _told(dialect))


@lru_cache(maxsize=64)
def _told(dialect: Dialect) -> frozenset[str]:
    codec = Settings(dialects=(dialect,))
    container = PodContainer(name="any", resources=Resources(limits={dialect.count: 1}))
    pod = Pod(metadata=Metadata(uid="any"), spec=PodSpec(containers=(container,)))
    machine = Machine(name="any", gpus=(Gpu(uuid="any", memory=MiB(1)),))
    asked = asked_of(pod, codec)
    record = record_for(pod, asked, Slot(machine.name, (0,)), machine)
    told = binding_annotations(pod, asked, record, machine, moment=0)
    return frozenset(key for key in told if not is_assignment(key))


def without_assignment(annotations: Mapping[str, str], others: frozenset[str] = frozenset()) -> dict[str, str]:
    """What is left where somebody copied a pod that had been placed: it must not fail, and must not say anything."""
    return {key: value for key, value in annotations.items() if not is_assignment(key) and key not in others}
