# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Only the scheduler may write, change or remove an assignment, by whatever way an annotation reaches a pod, or take
away the gate of a pod that waits for its turn.

The same rules as the admission policies in policy.py and queueing.py, for clusters that know no such policies.
"""

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.objects import Gate, Metadata
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.pods import is_mirror
from cotenant.kube.webhook.protecting import (
    NODES,
    ONLY_THE_SCHEDULER,
    PLUGINS_OWN,
    SCHEDULER_USER,
    is_assignment,
    records_of_others,
)
from cotenant.kube.webhook.queueing import REFUSED, is_gate_taken
from cotenant.kube.webhook.reviewing import Request, allowed, decode_review, decode_there, refused


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()


class _Annotated(msgspec.Struct, frozen=True):
    """A pod or a binding."""

    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()


def validate(body: bytes, settings: KubeSettings, scheduler_user: str = SCHEDULER_USER) -> bytes:
    """The answer to a review of anything that can carry annotations to a pod."""
    request = decode_review(body)
    try:
        why_not = None if request.user_info.username == scheduler_user else _forged(request, settings)
    except InputError as error:
        return refused(request, 422, str(error))
    return allowed(request) if why_not is None else refused(request, 403, why_not)


def _forged(request: Request, settings: KubeSettings) -> str | None:
    """What this request would change of that which is the scheduler's."""
    new, old = _decoded(request.object), _decoded(request.old_object)
    if request.is_for("UPDATE") and is_gate_taken(old.spec.scheduling_gates, new.spec.scheduling_gates):
        return REFUSED
    creates = request.is_for("CREATE")
    now, then = new.metadata.annotations, old.metadata.annotations
    if creates and is_mirror(now) and NODES in request.user_info.groups:
        return None
    is_binding = request.resource.resource == "bindings" or request.sub_resource == "binding"
    others: frozenset[str] = frozenset()
    if is_binding or new.spec.scheduler_name == settings.scheduler.name:
        others = records_of_others(settings.codec()) - PLUGINS_OWN
    for key in sorted({*now, *then}):
        is_guarded = is_assignment(key) or key in others or (key == NUMBERS and not creates)
        if is_guarded and now.get(key) != then.get(key):
            return f"annotation {key} {ONLY_THE_SCHEDULER}"
    return None


def _decoded(raw: msgspec.Raw) -> _Annotated:
    found = decode_there(raw, _Annotated, "an object with annotations")
    return _Annotated() if found is None else found
