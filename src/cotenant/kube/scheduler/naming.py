# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods an event or an answer about a pod may name.

Everybody who may read the events of a namespace reads them, and such users need not know what runs in other namespaces.
So texts about a pod name pods of its own namespace only, and of all others they say how many there are.
"""

from collections.abc import Sequence

PodName = tuple[str, str]
"""namespace and name"""


def visible_to(namespace: str, pods: Sequence[PodName | None]) -> tuple[list[str], list[str]]:
    """The names, without the namespace, of those pods that are of this namespace; and how many others there are, in
    words, if there are any. None is a pod that is gone."""
    own = [one[1] for one in pods if one is not None and one[0] == namespace]
    others = len(pods) - len(own)
    if not others:
        return own, []
    return own, ["1 pod of another namespace" if others == 1 else f"{others} pods of other namespaces"]
