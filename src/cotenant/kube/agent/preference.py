# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which slots kubelet had better take: those of the GPUs that the pod it asks for was given, as far as can be guessed.

A wrong guess does no harm, since a slot carries no meaning; a right one lets kubelet align cores and memory with the
GPUs, and makes its list of devices readable.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from cotenant.errors import InputError
from cotenant.kube.agent.allocating import card_of
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import record_of


def guess(pods: Iterable[Pod], size: int) -> tuple[str, ...]:
    """The GPUs of the oldest container of so many that waits to be started; kubelet too takes the oldest pod first."""
    waiting = [pod for pod in pods if pod.status.phase in ("", "Pending") and not pod.status.container_statuses]
    for pod in sorted(waiting, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
        try:
            record = record_of(pod)
        except InputError:
            continue
        for held in () if record is None else record.containers:
            if len(held.gpus) == size:
                return tuple(share.gpu for share in held.gpus)
    return ()


def prefer(available: Sequence[str], must: Sequence[str], size: int, wanted: Sequence[str]) -> list[str]:
    """So many slots: those that must be, then of the wanted GPUs, then of others; each GPU once as long as it goes."""
    chosen = list(dict.fromkeys(must))
    used = Counter(map(card_of, chosen))
    rest = {device: _card_and_number(device) for device in set(available) - set(chosen)}

    def badness(device: str) -> tuple[int, bool, str, int, str]:
        card, number = rest[device]
        return used[card], card not in wanted, card, number, device

    while len(chosen) < size and rest:
        best = min(rest, key=badness)
        chosen.append(best)
        used[rest.pop(best)[0]] += 1
    return chosen


def _card_and_number(device: str) -> tuple[str, int]:
    card, _, number = device.rpartition("::")
    return card, int(number) if number.isdecimal() else 0
