# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which slots kubelet had better take: those of the GPUs that the pod it asks for was given, as far as can be guessed.

A wrong guess does no harm, since a slot carries no meaning; a right one lets kubelet align cores and memory with the
GPUs, and makes its list of devices readable.
"""

from collections.abc import Iterable, Sequence

from cotenant.errors import InputError
from cotenant.kube.agent.allocating import card_of
from cotenant.kube.codec.record import record_of
from cotenant.kube.objects import Pod


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
    rest = sorted(set(available) - set(chosen), key=_by_card_and_number)
    while len(chosen) < size and rest:
        used = [card_of(device) for device in chosen]
        best = min(rest, key=lambda device: (used.count(card_of(device)), card_of(device) not in wanted))
        chosen.append(best)
        rest.remove(best)
    return chosen


def _by_card_and_number(device: str) -> tuple[str, int, str]:
    number = device.rpartition("::")[2]
    return card_of(device), int(number) if number.isdecimal() else 0, device
