# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of annotations and names of resources: their syntax, ours, and how much a pod may carry.

The API server does not check the annotations of a Binding. What it would have refused can then never be changed again,
not even by kubelet, which could no longer write the pod's status.
"""

import re
from collections.abc import Mapping

from cotenant.errors import InputError
from cotenant.wire.text import printable

PREFIX = "cotenant.io"
MOST_BYTES = 256 * 1024
"""of all annotations of an object together, keys and values"""

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


def is_key(text: str) -> bool:
    """Whether Kubernetes takes it as a qualified name: `name` or `domain/name`."""
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > 253 or not _DOMAIN.fullmatch(domain.lower())):
        return False
    return _NAME.fullmatch(name) is not None


def own_key(name: str) -> str:
    """An annotation of ours."""
    return f"{PREFIX}/{name}"


def container_key(number: int, name: str) -> str:
    """An annotation of ours that is about one container; its number, since a container's name may be too long."""
    return own_key(f"{number}.{name}")


def checked_annotations(new: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """The new annotations, where a pod that has others may carry them; InputError where not."""
    for key in new:
        if not is_key(key):
            raise InputError(f"annotation {printable(key[:80])!r}: not a key that Kubernetes takes")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in {**present, **new}.items())
    if size > MOST_BYTES:
        raise InputError(f"the pod's annotations would have {size} bytes, Kubernetes takes {MOST_BYTES}; remove some")
    return dict(new)
