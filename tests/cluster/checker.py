# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Checks observations of a cluster without the product: which pods are on which card, and which cards they see.

It receives every change of a pod, the processes on the nodes, the reports of containers about what they see, the
devices that kubelet lists and what agents publish (`observing.py` observes). Everything that must not happen is
collected in `violations`, with the history that led to it. It has neither a clock nor a cluster, so that tests can
give it wrong observations.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.cluster.counting import (
    ALL_COMPUTE,
    ENDED,
    Capacity,
    Cards,
    Given,
    Json,
    Share,
    fits,
    given_to,
    has_claims,
    holds,
    overbooked,
    requests_of,
    wants_cards_alone,
    wants_mps,
)

INVENTORY, ORPHANS = "cotenant.io/inventory", "cotenant.io/orphans"
HISTORY = 6000
SHOWN = 60
"""lines of it that are shown with each violation"""
BLIND_S = 5.0
"""within which the API server must show that the pod of a container without its cards is deleted"""
OOM = 2
"""CUDA's answer if the memory is used up"""
LASTING_S = 60.0
"""kubelet's list and the API server's may differ for less: each learns of a pod at its own time, and a kubelet that has
restarted tells that it rejected a pod only when the API server is back"""


class Process(NamedTuple):
    """A living process of a tenant, as the kernel shows it."""

    pid: int
    began: int
    pod: str
    container: str
    visible: str
    """NVIDIA_VISIBLE_DEVICES"""
    memory: tuple[int, ...]
    """its limit in MiB on each card, by its variables"""
    compute: int
    """thousandths of each; 0: it has no limit"""
    mps: bool = False
    """whether it is a client of MPS, by its variables"""


class Gone(NamedTuple):
    """A pod that the API server no longer has."""

    version: int
    name: str


class Listed(NamedTuple):
    """Devices of a container, as kubelet lists them."""

    pod: str
    container: str
    devices: frozenset[str]


class Checker:
    """A state machine: observations in, violations out."""

    def __init__(self, cards: Cards, clock: Callable[[], float]) -> None:
        self.violations: list[str] = []
        self.pods: dict[str, Json] = {}
        """as the API server has them, by UID"""
        self.given: dict[str, Given] = {}
        """what each pod was given, by UID, also of pods that are gone"""
        self.counts: dict[str, int] = {}
        """how often each thing was observed: a checker without observations proves nothing"""
        self._cards, self._clock = cards, clock
        self._gone: dict[str, Gone] = {}
        self._history: deque[str] = deque(maxlen=HISTORY)
        self._early: dict[tuple[str, str, str], str] = {}
        self._blind: dict[tuple[str, str], float] = {}
        self._differing: dict[tuple[str, str, int], float] = {}
        self._twice: set[str] = set()
        self._wrongs: set[str] = set()
        self._begun = clock()

    def note(self, text: str) -> None:
        """Something that happened, for the history."""
        self._history.append(f"{self._clock() - self._begun:7.2f} {text}")

    def history(self, lines: int = HISTORY) -> str:
        return "\n".join(list(self._history)[-lines:])

    def wrong(self, text: str) -> None:
        """Adds a violation once: it may be observed again and again."""
        if text not in self._wrongs:
            self._wrongs.add(text)
            self.note(f"VIOLATION {text}")
            self.violations.append(f"{text}\n{self.history(SHOWN)}")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # The API server

    def pod(self, event: str, pod: Json) -> None:
        """A change, as a watch shows it: ADDED, MODIFIED or DELETED."""
        self._keep(event, pod)
        self._judge(pod)

    def _keep(self, event: str, pod: Json) -> None:
        self._count("pod changes")
        uid, before = pod["metadata"]["uid"], self.pods.get(pod["metadata"]["uid"])
        now = _in_words(event, pod)
        if before is None or event == "DELETED" or _in_words(event, before) != now:
            self.note(now)
        if event == "DELETED":
            self.pods.pop(uid, None)
            self._gone[uid] = Gone(int(pod["metadata"]["resourceVersion"]), pod["metadata"]["name"])
        else:
            self.pods[uid] = pod

    def _judge(self, pod: Json) -> None:
        self._check_given(pod)
        self._judge_blind()
        self._explain(pod["metadata"]["uid"])
        if node := pod["spec"].get("nodeName"):
            self._check_node(node, self.pods.values(), [], "by the API server's pods")

    def all_pods(self, version: int, pods: Iterable[Json]) -> None:
        """All pods that exist, after changes were missed."""
        there = {pod["metadata"]["uid"]: pod for pod in pods}
        self.note(f"all pods are listed again, at {version}")
        for lost in [pod for uid, pod in self.pods.items() if uid not in there]:
            self._keep("DELETED", {**lost, "metadata": {**lost["metadata"], "resourceVersion": str(version)}})
        for pod in there.values():
            self._keep("MODIFIED", pod)
        for pod in there.values():  # only now: a missed change of one may have freed what another has
            self._judge(pod)

    def _check_given(self, pod: Json) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName", "")
        if has_claims(pod) and not node:  # its assignment may still be taken back
            return
        try:
            given = given_to(pod)
        except ValueError as error:
            self.wrong(f"pod {name}: its assignment cannot be read: {error}")
            return
        if given is None:
            if (node and requests_of(pod)) or uid in self.given:
                self.wrong(f"pod {name}: it is on node {node or 'none'} without an assignment")
            return
        before = self.given.setdefault(uid, given)
        if before != given:
            self.wrong(f"pod {name}: its assignment was changed from {before} to {given}")
        if (given.pod, given.node) != (uid, node):
            self.wrong(f"pod {name}, {uid} on node {node}: its assignment is of {given.pod} on {given.node}")
        elif before == given and (wrong := _not_as_requested(pod, given, self._cards.get(node, {}))):
            self.wrong(f"pod {name}: {wrong}")

    def _check_node(self, node: str, pods: Iterable[Json], more: Sequence[Given], how: str) -> None:
        self._count(f"sums {how}")
        here = [pod for pod in pods if pod["spec"].get("nodeName") == node and holds(pod)]
        holders = [self.given[pod["metadata"]["uid"]] for pod in here if pod["metadata"]["uid"] in self.given]
        for wrong in overbooked(self._cards.get(node, {}), [*holders, *more]):
            names = sorted(pod["metadata"]["name"] for pod in here)
            self.wrong(f"node {node}, {how}: {wrong}; on the node: {names}, beside {[one.pod for one in more]}")

    # Containers

    def report(self, uid: str, container: str, seen: Json) -> None:
        """What a container reports about itself."""
        self._count("container reports")
        given = self.given.get(uid)
        if given is None:
            self._early[uid, container, "report"] = json.dumps(seen)
            return
        shares = [share for part in given.parts if part.name == container for share in part.shares]
        cards = [share.card for share in shares]
        if cards and not seen["gpus"] and not seen["preloaded"]:
            self._see_nothing(uid, container)
            return
        limits = [line.split()[1:3] for line in (seen["limits"] or "").splitlines() if line.startswith("gpu ")]
        facts = {
            "cards": (seen["gpus"], cards),
            "variable": (seen["variables"].get("NVIDIA_VISIBLE_DEVICES"), ",".join(cards) or "void"),
            "limits": (limits, [[share.card, f"memory={share.memory << 20}"] for share in shares]),
            "sizes": (seen.get("totals", []), [share.memory for share in shares]),
            "NVML": ([one["nvml"][0] for one in seen.get("rooms", [])], [share.memory for share in shares]),
            "memory it could have": (self._rooms(seen, shares), [share.memory for share in shares]),
            "isolation": (
                seen["variables"].get("COTENANT_ISOLATION"),
                ("mps" if shares[0].mps else "preload") if shares else None,
            ),
            "pipe of MPS": ("CUDA_MPS_PIPE_DIRECTORY" in seen["variables"], any(share.mps for share in shares)),
            "library": (bool(seen["preloaded"]), bool(shares)),
        }
        for what, (is_so, should_be) in facts.items():
            if is_so != should_be:
                self.wrong(f"{self._name(uid)}/{container} sees {what} {is_so}, was given {should_be}")

    def _rooms(self, seen: Json, shares: Sequence[Share]) -> list[int]:
        """What a container could allocate on each GPU. A client of MPS whose server was killed meanwhile can allocate
        less: CUDA then refuses one more MiB for another reason than that the memory is used up."""
        found = [one["room"] for one in seen.get("rooms", [])]
        for index, share in enumerate(shares[: len(found)]):
            if share.mps and found[index] < share.memory and seen["rooms"][index].get("beyond") not in (None, OOM):
                self._count("clients that lost their MPS server")
                found[index] = share.memory
        return found

    def living(
        self, node: str, processes: Sequence[Process], pods: Sequence[Json] | None = None, orphans: str | None = None
    ) -> None:
        """Tenants' processes that lived before and after `pods` and the node's annotation were read."""
        self._count("looks at processes")
        for one in processes:
            self._check_visible(one.pod, one.container, one.visible)
        self._check_living(node, processes)
        if pods is not None:
            there = {pod["metadata"]["uid"]: pod for pod in pods}
            left = {
                one.pod
                for one in processes
                if one.pod in self.given
                and not (holds(there[one.pod]) if one.pod in there else one.pod not in self._gone)
            }
            self._check_node(node, pods, [self.given[uid] for uid in sorted(left)], "with processes that outlive pods")
        if orphans is not None:
            self._check_orphans(node, {one.pod for one in processes}, json.loads(orphans))

    def _check_living(self, node: str, processes: Sequence[Process]) -> None:
        """Sums over the limits of processes, whatever the API server has."""
        containers = {(one.pod, one.container): one for one in processes if one.visible != "void"}
        for card, capacity in self._cards.get(node, {}).items():
            here = [one for one in containers.values() if card in one.visible.split(",")]
            memory = sum(one.memory[one.visible.split(",").index(card)] for one in here)
            compute = sum(one.compute for one in here)
            words = ", ".join(sorted(f"{self._name(one.pod)}/{one.container}" for one in here))
            if memory > capacity.memory or compute > ALL_COMPUTE or len(here) > capacity.slots:
                self.wrong(f"{card} on {node}: {memory} MiB, {compute} compute, {len(here)} slots in use by {words}")
            if len({one.mps for one in here}) > 1:
                self.wrong(f"{card} on {node}: clients of MPS and others, in use by {words}")
            alone = {one.pod for one in here if one.pod in self.given and self.given[one.pod].alone}
            if alone and len({one.pod for one in here}) > 1:
                self.wrong(f"{card} on {node}: one pod should have it alone, in use by {words}")

    def _check_visible(self, uid: str, container: str, visible: str) -> None:
        given = self.given.get(uid)
        if given is None:
            self._early[uid, container, "visible"] = visible
        elif visible != (should_be := ",".join(given.cards_of(container)) or "void"):
            if visible == "void":
                self._see_nothing(uid, container)
            else:
                self.wrong(f"{self._name(uid)}/{container} sees {visible}, was given {should_be}")

    def _see_nothing(self, uid: str, container: str) -> None:
        """A container sees no card though its pod was given one: harmless, and right only if the pod is deleted.

        Kubelet forgets the devices of a pod that is deleted by force while it starts, and starts it all the same.
        """
        if (uid, container) not in self._blind:
            self._count("containers without their cards")
            self.note(f"{self._name(uid)}/{container} sees no card")
            self._blind[uid, container] = self._clock()
        self._judge_blind()

    def _judge_blind(self) -> None:
        for (uid, container), since in self._blind.items():
            if uid in self.pods and self._clock() - since > BLIND_S:
                self.wrong(f"{self._name(uid)}/{container} sees no card, and its pod is not deleted")

    def _explain(self, uid: str) -> None:
        """Judges what was observed of a pod before the API server showed it."""
        if uid in self.given:
            for key in [key for key in self._early if key[0] == uid]:
                seen = self._early.pop(key)
                if key[2] == "report":
                    self.report(uid, key[1], json.loads(seen))
                else:
                    self._check_visible(uid, key[1], seen)

    # Kubelet and the agents

    def devices(self, node: str, listed: Sequence[Listed], earlier: Mapping[str, Json]) -> None:
        """All that kubelet lists; `earlier` are the pods as they were before the list was requested."""
        self._count("lists of devices")
        holders: dict[str, list[str]] = {}
        for one in listed:
            for device in one.devices:
                holders.setdefault(device, []).append(f"{one.pod}/{one.container}")
                card, _, number = device.partition("::")
                capacity = self._cards.get(node, {}).get(card)
                if capacity is None or not number.isdecimal() or int(number) >= capacity.slots:
                    self.wrong(f"{one.pod}/{one.container}: kubelet of {node} gave it {device}, which does not exist")
        # If its list is requested while it gives a device to a container, kubelet loses the device and gives it to
        # another one, too. A container may use what its assignment says, whatever its devices are: it is only noted.
        twice = {f"{device} of {node} given to {sorted(who)}" for device, who in holders.items() if len(who) > 1}
        for device in twice - self._twice:
            self._count("devices given twice")
            self.note(f"by kubelet: device {device}")
        self._twice |= twice
        self._check_counts(node, listed, earlier)

    def _check_counts(self, node: str, listed: Sequence[Listed], earlier: Mapping[str, Json]) -> None:
        have = {(one.pod, one.container): len(one.devices) for one in listed}
        now, differing = self._clock(), dict[tuple[str, str, int], float]()
        for uid, pod in self.pods.items():
            given = self.given.get(uid)
            if has_claims(pod):
                continue
            if given is None or given.node != node or not (_runs(pod) and uid in earlier and _runs(earlier[uid])):
                continue
            for part in given.parts:
                count = have.get((pod["metadata"]["name"], part.name), 0)
                if part.kind != "init" and count != len(part.shares):
                    key = (uid, part.name, count)
                    differing[key] = self._differing.get(key, now)
                    if now - differing[key] > LASTING_S:
                        self.wrong(f"{self._name(uid)}/{part.name}: {count} devices by kubelet, given {part.shares}")
        kept = {key: since for key, since in self._differing.items() if self._on(key[0]) != node}
        self._differing = kept | differing

    @property
    def differing(self) -> list[str]:
        """Containers whose devices by kubelet differ from their assignment, so far."""
        return [f"{self._name(uid)}/{container}: {count} devices" for uid, container, count in self._differing]

    def node(self, node: Json) -> None:
        """What an agent has published of its node."""
        name, text = node["metadata"]["name"], node["metadata"].get("annotations", {}).get(INVENTORY)
        if text is None or name not in self._cards:
            return
        self._count("inventories")
        cards = {card["uuid"]: Capacity(card["memory"], card["slots"]) for card in json.loads(text)["cards"]}
        if cards != dict(self._cards[name]):
            self.wrong(f"the agent of {name} reports {cards}, there are {dict(self._cards[name])}")

    def _check_orphans(self, node: str, living: set[str], claim: Json) -> None:
        """An agent must list each pod that was deleted by the version that it has seen, and has processes."""
        self._count("claims of agents")
        held = {one["pod"] for one in claim["held"]}
        for uid in sorted(living - held):
            gone = self._gone.get(uid)
            if gone is not None and gone.version <= int(claim["seen"]):
                self.wrong(f"the agent of {node} claims at {claim['seen']} that {gone.name} has ended, and it lives")

    # The end

    def never_explained(self) -> list[str]:
        """Containers that were observed and belong to no pod that was given anything."""
        return [f"pod {uid}, {container}: {seen}" for (uid, container, _), seen in self._early.items()]

    def could_run(self) -> list[str]:
        """Pods that wait although they would fit."""
        waiting = [pod for pod in self.pods.values() if not pod["spec"].get("nodeName") and requests_of(pod)]
        found = []
        for node, capacities in self._cards.items():
            here = [pod["metadata"]["uid"] for pod in self.pods.values() if holds(pod)]
            holders = [self.given[uid] for uid in here if uid in self.given and self.given[uid].node == node]
            found += [f"{pod['metadata']['name']} on {node}" for pod in waiting if fits(pod, capacities, holders)]
        return found

    def _name(self, uid: str) -> str:
        pod = self.pods.get(uid)
        if pod is not None:
            return str(pod["metadata"]["name"])
        return self._gone[uid].name if uid in self._gone else uid

    def _on(self, uid: str) -> str:
        return self.given[uid].node if uid in self.given else ""


def _not_as_requested(pod: Json, given: Given, capacities: Mapping[str, Capacity]) -> str | None:
    """What is wrong with an assignment, by what the pod requests."""
    requests = requests_of(pod)
    if [(name, kind) for name, kind, _ in requests] != [(part.name, part.kind) for part in given.parts]:
        return f"requested are {requests}, given {given.parts}"
    if given.alone != wants_cards_alone(pod):
        return f"alone on its cards: {given.alone}"
    for (name, _, request), part in zip(requests, given.parts, strict=True):
        cards = {share.card for share in part.shares}
        if len(part.shares) != request.cards or len(cards) != request.cards:
            return f"{name} requested {request.cards} cards and was given {part.shares}"
        if not cards <= capacities.keys():
            return f"{name} was given {sorted(cards - capacities.keys())}, which its node does not have"
        for share in part.shares:
            if share.mps != wants_mps(pod):
                return f"{name} was given {share}, and its wish for MPS is {wants_mps(pod)}"
            if (share.memory, share.compute) != request.on(capacities[share.card]):
                return f"{name} requested {request}, was given {share}"
    return None


def _runs(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _in_words(event: str, pod: Json) -> str:
    metadata, status = pod["metadata"], pod.get("status", {})
    try:
        given = given_to(pod)
    except ValueError:
        given = None
    words = [event, metadata["name"], metadata["uid"], status.get("phase", "")]
    words += ["deleting"] if "deletionTimestamp" in metadata else []
    words += [f"on {pod['spec']['nodeName']}"] if "nodeName" in pod["spec"] else []
    words += [status["reason"]] if status.get("phase") in ENDED and "reason" in status else []
    if given is not None:
        words += [f"{part.name}={share.card[-2:]}:{share.memory}" for part in given.parts for share in part.shares]
    return " ".join(words)
