# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Valid things made hostile: values that programs choke on, at any place of a pod, a review or a question.

Everything follows from a seeded generator, so a case can be had again by its number.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.policy import GPU_POLICY, NODE_POLICY, POLICY
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.kube.scheduler.resize import RESIZE
from tests.kube.pods import pod_object
from tests.tables import tables_in

Json = dict[str, Any]
Place = tuple[Any, Any]
"""A list with an index, or an object with a key."""

RESOURCES = sorted(DEFAULTS.by_resource)
OF_DIALECTS = ("use_types", "avoid_types", "use_uuids", "avoid_uuids", "one_numa")
KEYS = [
    *(RECORD, NUMBERS, RESIZE, POLICY, NODE_POLICY, GPU_POLICY, own_key("0.limits"), own_key("writer")),
    own_key("latency"),
    *(own_key(wish) for wish in ("exclusive", "link", "affinity", "anti-affinity", "workload", "least-speed")),
    *sorted(
        {key for one in DEFAULTS.dialects for name in OF_DIALECTS if (key := getattr(one, name)) not in (None, "*")}
    ),
    *("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_GROUP", "kubernetes.io/config.mirror", ""),
]
DEEP = "\x01deep"
"""Placeholder for nesting that no encoder would write."""
QUANTITIES = [
    *("-1", "1e999", "1e-999", "9" * 30, "1.5", "0", "-0", "+1", "1Ki", "9223372036854775807", "9223372036854775808"),
    *("1e3", "1E", ".", "1.", "1 Gi", "\u0663", "0x10", "NaN", "inf", "1" * 5000, "3k", "100m", "16000", "4000"),
]
WORDS = [
    *(
        "",
        " ",
        "\0",
        "\n",
        "..",
        "../../x",
        "/",
        "%2e%2e",
        "a" * 300,
        "\ud800",
        "\u202e",
        "\U0001f4a3",
        "nul\0l",
        "null",
    ),
    *("true", "{}", "[]", "[" * 3000, '{"a":' * 2000, '{"version": 99}', '{"c0": {"memory": 1e999}}', "memory=9Gi"),
    *(
        "binpack/" * 30,
        "spread/binpack",
        "fgd",
        "lucid",
        "$(PATH)",
        "{{.}}",
        "';--",
        "x" * 20_000,
        '["a","a"]',
        '["b"]',
    ),
    *(
        "/etc/cotenant",
        "/run/nvidia-container-devices",
        "cotenant-limits-0",
        "Always",
        "cotenant-scheduler",
        "n1",
        "T4",
    ),
    *("NVIDIA_VISIBLE_DEVICES", "app-0", "GPU-n1-0", "uid-plain", "\x7f", "ﬀ", "İ", DEEP),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), -float("inf"), [], {}, [[]], [None], {"": None}, {"name": "a"}, [{"name": "a"}]),
]


def valid_pods() -> list[Json]:
    """Return the pods of the dialects' tables, valid or not, and some without GPUs."""
    cases = [case for _, case in tables_in(Path(__file__).parent / "dialects")]
    found = [
        pod_object(
            case["containers"],
            case.get("init", ()),
            {key: str(value) for key, value in case.get("annotations", {}).items()},
            None,
            {"schedulerName": "cotenant-scheduler"},
        )
        for case in cases
    ]
    plain = pod_object([{}], [{"sidecar": True}], {}, None, {})
    rich = pod_object([{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, {}], [], {}, None, {"priority": 5})
    for container in rich["spec"]["containers"]:
        container["env"] = [{"name": "PATH", "value": "/bin"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        container["securityContext"] = {"privileged": False}
    rich["spec"]["volumes"] = [{"name": "data", "hostPath": {"path": "/srv"}}]
    rich["metadata"]["labels"] = {"app": "x"}
    return [*found, plain, rich]


def hostile(valid: Json, chance: Random, most: int = 4) -> Json:
    """Return a copy with one or more hostile changes."""
    changed = deepcopy(valid)
    for _ in range(chance.randint(1, most)):
        chance.choice(CHANGES)(changed, chance)
    return changed


def encoded(value: object) -> bytes:
    """Encode as JSON, or nearly: with NaN and unbounded nesting."""
    said = json.dumps(value).encode()
    deep = json.dumps(DEEP).encode()
    return said.replace(deep, b"[" * 50_000 + b"]" * 50_000) if deep in said else said


def torn(body: bytes, chance: Random) -> bytes:
    """Change, remove or add bytes."""
    at = chance.randrange(len(body) + 1)
    some = bytes(chance.randrange(256) for _ in range(chance.randint(0, 4)))
    return body[:at] + some + body[at + chance.randint(0, 3) :]


def _places(value: object) -> Iterator[Place]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield value, number
            yield from _places(inner)


def _somewhere(whole: Json, chance: Random) -> Place | None:
    places = list(_places(whole))
    return chance.choice(places) if places else None


def _value(chance: Random) -> Any:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(QUANTITIES)
    if kind == 1:
        return chance.choice(WORDS)
    if kind == 2:
        return "".join(chr(chance.randrange(1, 0x3000)) for _ in range(chance.randrange(40)))
    return deepcopy(chance.choice(VALUES))


def _replace(whole: Json, chance: Random) -> None:
    if (place := _somewhere(whole, chance)) is not None:
        place[0][place[1]] = _value(chance)


def _remove(whole: Json, chance: Random) -> None:
    if (place := _somewhere(whole, chance)) is not None:
        del place[0][place[1]]


def _repeat(whole: Json, chance: Random) -> None:
    """Repeat an element, usually a container, up to thousands of times, with the same or other names."""
    lists = [inner for of, key in _places(whole) if isinstance(inner := of[key], list) and inner]
    if lists:
        chosen = chance.choice(lists)
        one, times = chance.choice(chosen), chance.choice((1, 1, 2, 100, 999, 1000, 3000))
        for number in range(times):
            copy = deepcopy(one)
            if isinstance(copy, dict) and times > 2:
                copy["name"] = f"again-{number}"
            chosen.append(copy)


def _wrap(whole: Json, chance: Random) -> None:
    if (place := _somewhere(whole, chance)) is not None:
        for _ in range(chance.choice((1, 3, 60))):
            place[0][place[1]] = [place[0][place[1]]] if chance.random() < 0.5 else {"a": place[0][place[1]]}


def _rename(whole: Json, chance: Random) -> None:
    keys = [place for place in _places(whole) if isinstance(place[0], dict)]
    if keys:
        of, key = chance.choice(keys)
        of[chance.choice([*KEYS, key.upper(), f"{key} ", chance.choice(WORDS)])] = of.pop(key)


def _annotate(whole: Json, chance: Random) -> None:
    for of, key in _places(whole):
        if key == "metadata" and isinstance(of[key], dict):
            written = of[key].setdefault("annotations", {})
            if isinstance(written, dict):
                written[chance.choice(KEYS)] = str(_value(chance))


def _ask(whole: Json, chance: Random) -> None:
    """Return other amounts, of any dialect."""
    limits = [of for of, key in _places(whole) if key in ("limits", "requests") and isinstance(of[key], dict)]
    if limits:
        chosen = chance.choice(limits)
        part = chosen.setdefault(chance.choice(("limits", "requests")), {})
        if isinstance(part, dict):
            part[chance.choice(RESOURCES)] = chance.choice([*QUANTITIES, 1, 2, 10**20, _value(chance)])


CHANGES = (_replace, _replace, _remove, _repeat, _wrap, _rename, _annotate, _annotate, _ask, _ask, _ask)
