# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What containers get at admission: variables that kubelet fills from the pod's annotations, and a limits file.

Nothing here names a GPU: that comes with the binding. What an earlier call injected is removed first, so a pod that is
reviewed twice, or is a copy of a placed pod, ends up the same. Ours stands first in every list: other webhooks append,
and then a second review changes nothing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.annotations import RUNTIME_VARIABLES, variable_names
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.keys import container_key
from cotenant.kube.codec.paths import LIMITS, LIMITS_FOLDER
from cotenant.kube.codec.request import ContainerRequest
from cotenant.kube.codec.settings import Settings

# The API server leaves out an empty value, so it must be left out here: a second review has to change nothing.
HIDDEN: Mapping[str, Json] = {
    name: {"name": name, "value": none} if none else {"name": name} for name, none in RUNTIME_VARIABLES.items()
}
"""Hides the GPUs of each vendor, which matters because images set these variables: CUDA images to `all`."""

_VOLUME = re.compile(r"cotenant-limits-[0-9]+", re.ASCII)
_FOREIGN_RESOURCE = re.compile(r"nvidia\.com/(?:gpu(?:\..*)?|mig-.*)")
"""Resources of NVIDIA's own device plugin, unless a dialect of this cluster uses the name."""
_FILE_MODE = 0o644


def with_gpus(container: Json, one: ContainerRequest, *, by_cdi: bool = False) -> Json:
    """Return a container that reads its GPUs and limits from the annotations that the binding will add.

    With `by_cdi`, its GPUs are hidden here, and only the CDI device that the agent writes reveals them. Kubelet may
    start a container of a pod that was just deleted without that device and without the library: it has no GPU either.
    """
    dialect, gpus = one.amounts.dialect, one.amounts.container.gpus
    by_device = dialect.vendor.row.runtime_variable if by_cdi and dialect.vendor.row.cdi_kind else None
    names = [name for name in variable_names(dialect, gpus) if name != by_device]
    variables = [{"name": name, "valueFrom": {"fieldRef": _annotation(one.number, name)}} for name in names]
    changed = _with_env(container, [*(hidden for name, hidden in HIDDEN.items() if name not in names), *variables])
    mount = {"name": _volume_name(one.number), "readOnly": True, "mountPath": str(LIMITS_FOLDER)}
    changed = _with_list(changed, "volumeMounts", [mount, *_foreign_mounts(changed)])
    if one.amounts.rewritten:
        changed["resources"] = _rewritten(changed["resources"], dict(one.amounts.rewritten))
    if not one.amounts.counted or dialect.moves_count:
        changed["resources"] = _with_devices(changed["resources"], dialect, str(gpus))
    return changed


def without_gpus(container: Json, resources: Mapping[str, str | int], codec: Settings) -> Json:
    """Return a container that sees no GPU, unless NVIDIA's own device plugin gives it one."""
    is_foreign = any(
        _FOREIGN_RESOURCE.fullmatch(name) and name not in codec.by_resource and str(amount) != "0"
        for name, amount in resources.items()
    )
    changed = _with_env(container, []) if is_foreign else hide_gpus(container)
    return _with_list(changed, "volumeMounts", _foreign_mounts(changed))


def hide_gpus(container: Json) -> Json:
    """Return a container that sees no GPU, whatever its image or its author set."""
    return _with_env(container, list(HIDDEN.values()))


def with_limits(spec: Json, containers: Iterable[ContainerRequest]) -> Json:
    """Return a pod's spec with one volume per container with GPUs, so no container sees the limits of another."""
    foreign = [volume for volume in spec.get("volumes", []) if not is_our_volume(volume.get("name", ""))]
    return _with_list(spec, "volumes", [*(_volume(one.number) for one in containers), *foreign])


def is_our_volume(name: str) -> bool:
    """Return whether this is the name of a volume that `with_limits` adds."""
    return _VOLUME.fullmatch(name) is not None


def _with_env(container: Json, variables: list[Json]) -> Json:
    """Put our variables first, so that others can refer to them, and remove the author's of the same names."""
    names = {*RUNTIME_VARIABLES, *(variable["name"] for variable in variables)}
    others = [variable for variable in container.get("env", []) if variable.get("name") not in names]
    return _with_list(container, "env", [*variables, *others])


def _foreign_mounts(container: Json) -> list[Json]:
    return [mount for mount in container.get("volumeMounts", []) if not is_our_volume(mount.get("name", ""))]


def _with_list(of: Json, key: str, items: list[Any]) -> Json:
    rest = {name: value for name, value in of.items() if name != key or items}
    return {**rest, key: items} if items else rest


def _rewritten(resources: Json, amounts: Mapping[str, str | None]) -> Json:
    changed = {}
    for part in ("limits", "requests"):
        if resources.get(part):
            new = {name: _replaced(amount, amounts.get(name, amount)) for name, amount in resources[part].items()}
            changed[part] = {name: amount for name, amount in new.items() if amount is not None}
    return {**resources, **changed}


def _replaced(written: str | int, amount: str | int | None) -> str | int | None:
    """The API server writes 5000 as 5k: what is the same is left as it is."""
    if amount is None or parse_quantity(written) != parse_quantity(amount):
        return amount
    return written


def _with_devices(resources: Json, dialect: Dialect, devices: str) -> Json:
    moved = dialect.count if dialect.moves_count else None
    kept = {
        part: {k: v for k, v in (resources.get(part) or {}).items() if k != moved} for part in ("limits", "requests")
    }
    return {**resources, **{part: {**amounts, dialect.handed_out: devices} for part, amounts in kept.items()}}


def _volume(number: int) -> Json:
    items = [{"path": LIMITS, "fieldRef": _annotation(number, LIMITS)}]
    return {"name": _volume_name(number), "downwardAPI": {"items": items, "defaultMode": _FILE_MODE}}


def _volume_name(number: int) -> str:
    return f"cotenant-limits-{number}"


def _annotation(number: int, name: str) -> Json:
    # The API server would add the version; without it, the pod would look changed at the second review.
    return {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{container_key(number, name)}']"}
