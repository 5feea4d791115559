# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What containers get at admission: variables that kubelet will fill from the pod's annotations, and a limits file.

Nothing of it says which GPUs: that comes with the binding. Whatever of it is there already is taken out first, so a pod
that comes by twice, or was copied from one that had been placed, ends up the same. Ours is first in every list: others
add behind it, and then there is nothing to change when the pod comes by again.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cotenant.kube.codec.annotations import variable_names
from cotenant.kube.codec.keys import container_key
from cotenant.kube.codec.paths import LIMITS, LIMITS_FOLDER
from cotenant.kube.codec.request import ContainerRequest
from cotenant.kube.codec.settings import Settings
from cotenant.kube.webhook.reviewing import Json

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID: Json = {"name": VISIBLE, "value": "void"}
"""CUDA images carry `all`"""

_VOLUME = re.compile(r"cotenant-limits-[0-9]+", re.ASCII)
_ELSEWHERE = re.compile(r"nvidia\.com/(?:gpu(?:\..*)?|mig-.*)")
"""cards that NVIDIA's own plugin hands out, where these words are not ours"""
_FILE_MODE = 0o644


def with_gpus(container: Json, one: ContainerRequest) -> Json:
    """A container that will be told which GPUs it has."""
    dialect, gpus = one.amounts.dialect, one.amounts.asked.gpus
    names = variable_names(dialect, gpus)
    told = [{"name": name, "valueFrom": {"fieldRef": _annotation(one.number, name)}} for name in names]
    changed = _with_env(container, told if VISIBLE in names else [VOID, *told])
    mount = {"name": _volume_name(one.number), "readOnly": True, "mountPath": str(LIMITS_FOLDER)}
    changed = _with_list(changed, "volumeMounts", [mount, *_foreign_mounts(changed)])
    if not one.amounts.counted:
        changed["resources"] = _counted(container["resources"], dialect.count, str(gpus))
    return changed


def without_gpus(container: Json, asked: Mapping[str, str | int], codec: Settings) -> Json:
    """A container that will see none, unless another plugin hands them out."""
    elsewhere = any(
        _ELSEWHERE.fullmatch(name) and name not in codec.by_resource and str(amount) != "0"
        for name, amount in asked.items()
    )
    changed = _with_env(container, []) if elsewhere else void(container)
    return _with_list(changed, "volumeMounts", _foreign_mounts(changed))


def void(container: Json) -> Json:
    """A container that sees no GPU, whatever its image or its author set."""
    return _with_env(container, [VOID])


def with_limits(spec: Json, asking: Iterable[ContainerRequest]) -> Json:
    """A pod's spec with one volume for each container with GPUs: no container sees the limits of another."""
    foreign = [volume for volume in spec.get("volumes", []) if not is_our_volume(volume.get("name", ""))]
    return _with_list(spec, "volumes", [*(_volume(one.number) for one in asking), *foreign])


def is_our_volume(name: str) -> bool:
    """Whether it is one of those that are put in here."""
    return _VOLUME.fullmatch(name) is not None


def _with_env(container: Json, ours: list[Json]) -> Json:
    """Ours first, where others may refer to it; what the author set of the same names is gone."""
    names = {VISIBLE, *(variable["name"] for variable in ours)}
    others = [variable for variable in container.get("env", []) if variable.get("name") not in names]
    return _with_list(container, "env", [*ours, *others])


def _foreign_mounts(container: Json) -> list[Json]:
    return [mount for mount in container.get("volumeMounts", []) if not is_our_volume(mount.get("name", ""))]


def _with_list(of: Json, key: str, items: list[Any]) -> Json:
    rest = {name: value for name, value in of.items() if name != key or items}
    return {**rest, key: items} if items else rest


def _counted(resources: Json, name: str, count: str) -> Json:
    both = {part: {**resources.get(part, {}), name: count} for part in ("limits", "requests")}
    return {**resources, **both}


def _volume(number: int) -> Json:
    items = [{"path": LIMITS, "fieldRef": _annotation(number, LIMITS)}]
    return {"name": _volume_name(number), "downwardAPI": {"items": items, "defaultMode": _FILE_MODE}}


def _volume_name(number: int) -> str:
    return f"cotenant-limits-{number}"


def _annotation(number: int, name: str) -> Json:
    # The version is what the API server would add; without it, a pod would look changed when it comes by again.
    return {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{container_key(number, name)}']"}
