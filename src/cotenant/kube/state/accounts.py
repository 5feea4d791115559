# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One account per pod: the one state that the pod is in, and the pure step from that state to the next.

docs/explanation/pod-states.md draws the states. Which GPUs are in use follows from the accounts alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import older
from cotenant.kube.state.allocation import Allocation

# States.


@dataclass(frozen=True, slots=True)
class Inactive:
    """The pod neither waits nor uses a GPU: it is unknown, not ours, without GPUs, ended, or gone."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pod is to be placed, and no slot is held for it."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Held:
    """A slot is held for the pod until some time."""

    allocation: Allocation
    until: float
    """seconds of the scheduler's steady clock"""
    reserved: bool
    """whether the slot may not fit yet because its victims are still to end"""
    pod: Pod | None
    """None if the watch has not shown that the pod waits, or shows that it no longer does"""


@dataclass(frozen=True, slots=True)
class Binding:
    """The bind of the pod is being written. Only its outcome ends this state; time does not."""

    allocation: Allocation
    pod: Pod | None
    deleted_at: str | None = None
    """resource version at which the pod was deleted meanwhile"""


@dataclass(frozen=True, slots=True)
class Bound:
    """The API server accepted the pod's assignment."""

    allocation: Allocation
    recorded: Allocation | None
    """what the watch last showed; None if it has not shown the bound pod yet"""


@dataclass(frozen=True, slots=True)
class Resizing:
    """A new assignment of a bound pod is being written. The larger of both counts until the outcome is known."""

    allocation: Allocation
    bound: Bound


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The pod is bound with an assignment that cannot be read, so its node accepts no new pods."""

    node: str
    error: str


@dataclass(frozen=True, slots=True)
class Lingering:
    """The pod is gone from the API server, and its containers may still run: its node's agent has yet to report."""

    node: str
    version: str
    """resource version of the deletion"""
    allocation: Allocation | None
    """None if its assignment could not be read"""
    error: str | None = None
    """the error of the assignment, which still closes the node"""


State = Inactive | Waiting | Held | Binding | Bound | Resizing | Unreadable | Lingering

# Events of the API server's pods.


@dataclass(frozen=True, slots=True)
class PodWaits:
    """The pod is to be placed by this scheduler; `pod` is its newest version."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodWithdrawn:
    """The scheduler removed the assignment of a pod that was not on its node yet; the pod is to be placed again."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodIdles:
    """The pod does not wait, and nothing about its assignment has changed."""


@dataclass(frozen=True, slots=True)
class PodRecorded:
    """The pod is bound with this assignment."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class PodUnrecorded:
    """The pod is bound without an assignment."""


@dataclass(frozen=True, slots=True)
class PodUnreadable:
    """The pod is bound with an assignment that cannot be read."""

    node: str
    error: str


@dataclass(frozen=True, slots=True)
class PodEnded:
    """The pod succeeded or failed."""


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod was deleted."""

    version: str
    """resource version of the deletion"""
    stopped: bool
    """whether all its containers had ended before"""


# Events of the scheduler itself.


@dataclass(frozen=True, slots=True)
class Hold:
    """The scheduler holds a slot for the pod, instead of the one it held before."""

    allocation: Allocation
    until: float
    reserved: bool


@dataclass(frozen=True, slots=True)
class BeginBinding:
    """The scheduler writes the pod's bind."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class BeginResize:
    """The scheduler writes a new assignment of a bound pod; the allocation is the larger of both."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Release:
    """The scheduler gives up what it held: the write failed, the hold expired, or the slot is not wanted."""


@dataclass(frozen=True, slots=True)
class Assume:
    """The API server accepted what was held. It counts from now on, also before the watch shows it."""


# Events of the node.


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The agent of a node reported which deleted pods it still sees running."""

    node: str
    seen: str
    """resource version of pods up to which the report is complete; empty if the report cannot be read"""
    allocation: Allocation | None
    """what this pod still uses there; None if it does not run"""


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The node was deleted, with everything that ran there."""

    node: str


PodEvent = PodWaits | PodWithdrawn | PodIdles | PodRecorded | PodUnrecorded | PodUnreadable | PodEnded | PodGone
OwnEvent = Hold | BeginBinding | BeginResize | Release | Assume
Event = PodEvent | OwnEvent | AgentReport | NodeGone

INACTIVE = Inactive()
_WAITING, _ALLOCATED = (Waiting, Held, Binding), (Held, Binding, Bound, Resizing, Lingering)
"""states with a pod that waits, and states with an allocation"""


@dataclass(frozen=True, slots=True)
class Account:
    """What is known about one pod: its state, and on which nodes agents see its processes though it is gone."""

    state: State = INACTIVE
    sightings: Mapping[str, Allocation] = field(default_factory=dict)
    """by node. An agent may learn of a deletion before the scheduler does, so any state can have some"""

    @property
    def is_empty(self) -> bool:
        """Whether the account can be dropped."""
        return self.state is INACTIVE and not self.sightings

    @property
    def is_orphan(self) -> bool:
        """Whether processes of the pod run on a node though the pod is gone."""
        return self.state is INACTIVE and bool(self.sightings)

    @property
    def pod(self) -> Pod | None:
        """The pod if it waits to be placed."""
        return self.state.pod if isinstance(self.state, _WAITING) else None

    @property
    def held(self) -> Allocation | None:
        """What the scheduler holds for the pod."""
        return self.state.allocation if isinstance(self.state, Held | Binding | Resizing) else None

    @property
    def bound(self) -> Allocation | None:
        """What the API server has accepted for the pod; during a resize, what it had before."""
        if isinstance(self.state, Resizing):
            return self.state.bound.allocation
        return self.state.allocation if isinstance(self.state, Bound) else None

    @property
    def node(self) -> str | None:
        """The node that the pod is bound to or is being bound to. It can go to no other node."""
        return self.state.allocation.node if isinstance(self.state, Binding | Bound | Resizing) else None

    @property
    def closes(self) -> tuple[str, str] | None:
        """The node that accepts no new pods because of this pod, and why."""
        match self.state:
            case Unreadable(node, error):
                return node, error
            case Lingering(node=node, error=str(error)):
                return node, error
        return None

    @property
    def nodes(self) -> list[str]:
        """All nodes on which the pod uses something."""
        own = _allocation(self.state)
        if not self.sightings:
            return [] if own is None else [own.node]
        return list(dict.fromkeys((*(() if own is None else (own.node,)), *self.sightings)))

    def allocation_on(self, node: str) -> Allocation | None:
        """What the pod uses of a node: what the scheduler decided, else what its agent sees."""
        own = _allocation(self.state)
        return own if own is not None and own.node == node else self.sightings.get(node)


# The invariants of a step:
# - A pod that may run is never without an allocation (or, if that cannot be read, without a closed node). It leaves
#   Bound, Resizing, Unreadable and Lingering only if the API server says that it ended, or its node's agent has
#   reported on its deletion, or the node is gone.
# - While a write is under way (Binding, Resizing), everything it may make true counts. Only `Assume`, `Release` or the
#   watch ends it, never the clock; `Hold` is ignored.
# - What the watch shows wins over what the scheduler assumed, unless the watch repeats what it showed before the write.
# An event that does not concern a state leaves the account as it is, the very same object.
def step(account: Account, event: Event) -> Account:
    """The account after an event."""
    match event:
        case AgentReport(node, seen, allocation):
            ended = _lingers_on(account.state, node) and _has_seen(seen, account.state)
            return _with(account, INACTIVE if ended else account.state, _sightings(account, node, allocation))
        case NodeGone(node):
            ended = _lingers_on(account.state, node)
            return _with(account, INACTIVE if ended else account.state, _sightings(account, node, None))
        case Hold() | BeginBinding() | BeginResize() | Release() | Assume():
            return _with(account, _after_own_act(account.state, event), account.sightings)
        case _:
            return _with(account, _after_pod_event(account.state, event), account.sightings)


def _after_pod_event(state: State, event: PodEvent) -> State:
    """The API server's side: what became of the pod."""
    match event, state:
        case PodWaits(pod), Inactive() | Waiting():
            return Waiting(pod)
        case PodWaits(pod), Held() | Binding():
            return replace(state, pod=pod)
        case PodWithdrawn(pod), Lingering():
            return state
        case PodWithdrawn(pod), _:
            return Waiting(pod)
        case PodIdles(), Waiting():
            return INACTIVE
        case PodIdles(), Held() | Binding():
            return replace(state, pod=None)
        case PodRecorded(new), Resizing(_, bound) if _repeats(bound, new):
            return replace(state, bound=_recorded(bound, new))
        case PodRecorded(new), Bound() if _repeats(state, new):
            return _recorded(state, new)
        case PodRecorded(new), _:
            return Bound(new, new)
        # An assignment cannot be removed from a bound pod, so what the watch showed is half a pod.
        case PodUnrecorded(), Bound(recorded=Allocation()) | Resizing(bound=Bound(recorded=Allocation())) | Lingering():
            return state
        case PodUnrecorded(), _:
            return INACTIVE
        case PodUnreadable(node, error), _:
            return Unreadable(node, error)
        case ((PodEnded() | PodGone()), Lingering()):
            return state
        case PodGone(version), Binding():
            return replace(state, pod=None, deleted_at=version)
        # During a resize it is unknown which assignment the containers saw, so the larger one lingers.
        case PodGone(version, False), Bound(allocation) | Resizing(allocation):
            return Lingering(allocation.node, version, allocation)
        case PodGone(version, False), Unreadable(node, error):
            return Lingering(node, version, None, error)
        case ((PodEnded() | PodGone()), _):
            return INACTIVE
    return state


def _after_own_act(state: State, event: OwnEvent) -> State:
    """The scheduler's side: what it holds, writes and learns of its writes."""
    match event, state:
        case Hold(allocation, until, reserved), Inactive() | Waiting() | Held():
            return Held(allocation, until, reserved, _pod(state))
        case BeginBinding(allocation), Inactive() | Waiting() | Held():
            return Binding(allocation, _pod(state))
        case BeginResize(allocation), Bound():
            return Resizing(allocation, state)
        case Release(), Held(pod=pod) | Binding(pod=pod):
            return INACTIVE if pod is None else Waiting(pod)
        case Release(), Resizing(_, bound):
            return bound
        case Assume(), Binding(allocation, _, str(version)):
            return Lingering(allocation.node, version, allocation)
        case Assume(), Held(allocation) | Binding(allocation):
            return Bound(allocation, None)
        case Assume(), Resizing(allocation, bound):
            return Bound(allocation, bound.recorded)
    return state


def _with(account: Account, state: State, sightings: Mapping[str, Allocation]) -> Account:
    if state is account.state and sightings is account.sightings:
        return account
    return Account(state, sightings)


def _pod(state: Inactive | Waiting | Held) -> Pod | None:
    return None if isinstance(state, Inactive) else state.pod


def _repeats(bound: Bound, new: Allocation) -> bool:
    return bound.recorded is not None and bound.recorded.record == new.record


def _recorded(bound: Bound, new: Allocation) -> Bound:
    """The same record, perhaps with other constraints; what was assumed since still counts."""
    return Bound(new if bound.allocation is bound.recorded else bound.allocation, new)


def _allocation(state: State) -> Allocation | None:
    return state.allocation if isinstance(state, _ALLOCATED) else None


def _lingers_on(state: State, node: str) -> bool:
    return isinstance(state, Lingering) and state.node == node


def _has_seen(seen: str, state: State) -> bool:
    """Whether an agent that has seen so much knows of the deletion; unknown for versions that are no numbers."""
    assert isinstance(state, Lingering)
    return seen.isdecimal() and state.version.isdecimal() and not older(seen, state.version)


def _sightings(account: Account, node: str, allocation: Allocation | None) -> Mapping[str, Allocation]:
    if allocation is None and node not in account.sightings:
        return account.sightings
    others = {name: seen for name, seen in account.sightings.items() if name != node}
    return others if allocation is None else {**others, node: allocation}
