# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Constraints of a pod that are no amounts: GPU types, UUIDs, links, groups; in annotations of a dialect or of ours."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import TypeVar

from cotenant.core.isolation import Rung
from cotenant.core.model import ANY_PROFILE, Demand, Link
from cotenant.core.units import MilliGpu, Percent, parse_percent, parse_profile
from cotenant.errors import InputError
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.isolation import ISOLATION, wish_of
from cotenant.kube.codec.keys import own_key, qualified
from cotenant.wire.text import printable

PROFILE = own_key("mig")
"""Annotation: the profile of the MIG instances that a pod gets."""
MOST_NAMES = 64
LONGEST_NAME = 200

_LISTS = {
    "use-types": "use_types",
    "avoid-types": "avoid_types",
    "use-uuids": "use_uuids",
    "avoid-uuids": "avoid_uuids",
}
"""Lists of names: the key in our annotations, and the field of a dialect that has its own key."""
_OTHERS = ("mig", "exclusive", "one-numa", "link", "affinity", "anti-affinity", "workload", "least-speed", "isolation")

T = TypeVar("T")


def constraints_of(
    annotations: Mapping[str, str], namespace: str, dialects: Collection[Dialect], *, one_numa: bool = False
) -> Demand:
    """A Demand without amounts; InputError if an annotation cannot be understood.

    `one_numa` is for pods without an annotation about NUMA nodes.
    """
    used = tuple(dialects)
    if _keys(used).isdisjoint(annotations):  # nearly always
        return _no_constraints(used, one_numa)
    return _constraints_of(annotations, namespace, used, one_numa)


@lru_cache(maxsize=64)
def _no_constraints(dialects: tuple[Dialect, ...], one_numa: bool) -> Demand:
    return _constraints_of({}, "", dialects, one_numa)


@lru_cache(maxsize=64)
def _keys(dialects: tuple[Dialect, ...]) -> frozenset[str]:
    """All annotations that state a constraint."""
    theirs = (getattr(one, field) for one in dialects for field in (*_LISTS.values(), "one_numa", "mode"))
    return frozenset((*map(own_key, (*_LISTS, *_OTHERS)), *(key for key in theirs if key is not None)))


def _constraints_of(
    annotations: Mapping[str, str], namespace: str, dialects: Collection[Dialect], one_numa: bool
) -> Demand:
    def listed(ours: str) -> list[str]:
        keys = [own_key(ours), *(key for one in dialects if (key := getattr(one, _LISTS[ours])) is not None)]
        return list(dict.fromkeys(name for key in keys for name in _read(annotations, key, _names) or ()))

    def named(ours: str) -> str | None:
        name = _read(annotations, own_key(ours), _name)
        return None if name is None else qualified(namespace, name)

    profile = _read(annotations, PROFILE, parse_profile)
    for one in dialects:
        if one.mode is not None:
            of_mode = _read(annotations, one.mode, partial(_check_mode, one))
            profile = profile or of_mode  # the mode names no profile: any serves
    if wish_of(annotations) is Rung.MIG:
        profile = profile or ANY_PROFILE
    prefixes = tuple(one.type_prefix for one in dialects if one.type_prefix)
    numa = [own_key("one-numa"), *(one.one_numa for one in dialects if one.one_numa is not None)]
    together = [said for key in numa if (said := _read(annotations, key, _truth)) is not None]
    types = [pattern for one in dialects for pattern in one.vendor.row.types]
    return Demand(
        gpus=0,
        compute=MilliGpu(0),
        mig=profile,
        exclusive=_read(annotations, own_key("exclusive"), _truth) or False,
        use_types=_patterns(listed("use-types"), prefixes) or tuple(dict.fromkeys(types)),
        avoid_types=_patterns(listed("avoid-types"), prefixes),
        use_uuids=frozenset(listed("use-uuids")),
        avoid_uuids=frozenset(listed("avoid-uuids")),
        one_numa=any(together) if together else one_numa,
        link=_read(annotations, own_key("link"), _link),
        affinity=named("affinity"),
        anti_affinity=named("anti-affinity"),
        workload=named("workload"),
        least_speed=_read(annotations, own_key("least-speed"), _speed),
    )


def _read(annotations: Mapping[str, str], key: str, parse: Callable[[str], T]) -> T | None:
    if key not in annotations:
        return None
    try:
        return parse(annotations[key].strip())
    except ValueError as error:
        raise InputError(f"annotation {key}: {error}") from None


def _names(text: str) -> list[str]:
    names = [_name(word.strip()) for word in text.split(",") if word.strip()]
    if len(names) > MOST_NAMES:
        raise ValueError(f"{len(names)} names, expected at most {MOST_NAMES}")
    return names


def _name(text: str) -> str:
    if not 1 <= len(text) <= LONGEST_NAME or not text.isprintable():
        raise ValueError(f"{printable(text[:40])!r} is not a name of 1 to {LONGEST_NAME} characters")
    return text


def _truth(text: str) -> bool:
    words = ("false", "f", "0"), ("true", "t", "1")  # as Go parses them, and so HAMi
    for truth, spellings in enumerate(words):
        if text.lower() in spellings:
            return bool(truth)
    raise ValueError(f"{printable(text[:40])!r}, expected true or false")


def _link(text: str) -> Link:
    if text not in Link.__members__:
        raise ValueError(f"{printable(text[:40])!r}, expected one of {', '.join(Link.__members__)}")
    return Link[text]


def _speed(text: str) -> Percent:
    return parse_percent(text[:40])


def _check_mode(dialect: Dialect, text: str) -> str | None:
    """Returns the MIG profile that the mode means, if it means one."""
    if text == dialect.mig_mode:
        return ANY_PROFILE
    if text not in dialect.modes:
        raise ValueError(
            f"{printable(text[:40])!r}: cotenant limits a container by its vGPU library; remove the annotation, or"
            f" write {' or '.join(dialect.modes)}; for MPS, write {ISOLATION}: mps"
        )
    return None


def _patterns(parts: list[str], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns that find these parts anywhere in the name of a GPU type; `*` keeps its meaning.

    A dialect that puts a prefix before the names of types finds parts of the prefix, too.
    """
    found = []
    for part in parts:
        found.append(f"*{_escape(part)}*")
        for prefix in prefixes:
            if part.lower() in prefix.lower():
                found.append("*")
            elif part.lower().startswith(prefix.lower()):
                found.append(f"{_escape(part[len(prefix) :])}*")
    return tuple(found)


def _escape(part: str) -> str:
    return part.replace("[", "[[]").replace("?", "[?]")
