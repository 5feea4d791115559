# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The gate of pods that wait for their turn: who gets it at creation, and that nobody but the scheduler takes it away.

Kubernetes lets everybody remove a gate who may change the pod, and nobody add one later.
"""

from collections.abc import Iterable

from cotenant.kube.api.objects import Gate, Pod
from cotenant.kube.codec.queueing import GATE, attained_of, estimate_of, gang_of, is_gated
from cotenant.kube.codec.request import Asked
from cotenant.kube.install.names import Json
from cotenant.kube.settings import QueuePart
from cotenant.kube.webhook.protecting import ONLY_THE_SCHEDULER, SCHEDULER_USER
from cotenant.kube.webhook.rules import cel, named, policy, rule_for

QUEUE = "cotenant-queue"
REFUSED = f"scheduling gate {GATE} {ONLY_THE_SCHEDULER}"

_GATES = "schedulingGates"


def with_gate(spec: Json, pod: Pod, asked: Asked, namespace: str, queue: QueuePart) -> Json:
    """A pod's spec with our gate, where it is to wait, and without it where not; InputError where the pod says about
    its turn what is not understood."""
    if asked.containers:
        estimate_of(pod), attained_of(pod)
    waits = bool(asked.containers) and (gang_of(pod) is not None or queue.takes(namespace, pod.metadata.labels))
    there = spec.get(_GATES) or []
    gates = [gate for gate in there if gate.get("name") != GATE or waits]
    if waits and not any(gate.get("name") == GATE for gate in gates):
        gates.append({"name": GATE})
    if gates == there:
        return spec
    rest = {key: value for key, value in spec.items() if key != _GATES}
    return {**rest, _GATES: gates} if gates else rest


def is_gate_taken(old: Iterable[Gate], new: Iterable[Gate]) -> bool:
    """Whether a change of a pod removes our gate."""
    return is_gated(old) and not is_gated(new)


def queue_policy() -> list[Json]:
    """The same in CEL, also while we are not there; and what puts it into force."""
    then, now = (
        f"has({pod}.spec.{_GATES}) && {pod}.spec.{_GATES}.exists(g, g.name == {cel(GATE)})"
        for pod in ("oldObject", "object")
    )
    rule = {"expression": f"!({then}) || ({now})", "message": f"cotenant: {REFUSED}", "reason": "Forbidden"}
    return policy(
        QUEUE,
        {"resourceRules": [rule_for(["UPDATE"], ["pods"])]},
        matchConditions=named({"not-the-scheduler": f"request.userInfo.username != {cel(SCHEDULER_USER)}"}),
        validations=[rule],
    )
