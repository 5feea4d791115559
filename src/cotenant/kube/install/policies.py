# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Admission policies: the API server itself enforces who may write what, also while the webhook does not answer.

A policy is CEL, evaluated inside the API server, and sees the writes of every user. It replaces no check of the
webhook: the webhook prepares and rejects pods at their creation, the policies keep what it and the scheduler wrote.

Each policy costs every write that it matches. The API server converts the old and the new object to evaluate the match
conditions, and three times more if these are true: for the validations, for the messages and for audit annotations. So
the match conditions are false for every write that the validations accept as it is, such as the reports of kubelets.
"""

from dataclasses import replace

from cotenant.kube.api.names import AGENT_USER, SCHEDULER_USER, Json
from cotenant.kube.api.objects import EPHEMERAL_CONTAINERS, MIRROR
from cotenant.kube.codec.annotations import CONTAINER_KEYS, RUNTIME_VARIABLES, foreign_records
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inherited import INHERITED
from cotenant.kube.codec.inventory import SAID
from cotenant.kube.codec.moved import AMOUNTS
from cotenant.kube.codec.paths import DEVICE_LIST
from cotenant.kube.codec.profiles import GROUP, PLURAL
from cotenant.kube.codec.queueing import GATE, HOLD, NOT_HELD
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.codec.settings import DIALECTS, Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.install.admission import (
    NOT_MIRROR,
    Terms,
    cel,
    named_expressions,
    optional,
    policy_with_binding,
    requests_gpus,
    rule_for,
)
from cotenant.kube.settings import RECORDS

ASSIGNMENTS = "cotenant-assignments"
QUEUE = "cotenant-queue"
VISIBILITY = "cotenant-visibility"
AGENTS = "cotenant-agents"
PROFILES = "cotenant-profiles"
INHERITANCE = "cotenant-inheritance"

ANNOTATION_PATHS = ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding", "bindings")
"""Every resource through which an annotation can reach a pod."""
KUBELETS = "system:nodes"
"""The group of all kubelets."""
ONLY_THE_SCHEDULER = "may be set, changed or removed only by cotenant's scheduler"
ONLY_BEFORE = "of another system may not be written on pods with GPUs; remove it, and let cotenant place the pod"
WRITTEN_BY_PLUGINS = frozenset({"CAMBRICON_DSMLU_ASSIGNED"})
"""Annotations that a vendor's device plugin changes itself after it has made the slice."""

_NODE_OF_USER = "authentication.kubernetes.io/node-name"
_NOT_FOR_AGENTS = (
    *(f"metadata.{name}" for name in ("labels", "finalizers", "ownerReferences")),
    *(
        f"status.{name}"
        for name in (
            *("phase", "conditions", "addresses", "daemonEndpoints", "nodeInfo", "images", "volumesInUse"),
            *("volumesAttached", "config", "runtimeHandlers", "features", "declaredFeatures"),
        )
    ),
    "spec",
)
"""Fields of a node that an agent must not change: all but annotations and amounts, which have rules of their own."""
_NEW = optional("object.metadata.annotations", "{}")
_OLD = f"oldObject != null && {optional('oldObject.metadata.annotations', '{}')}"
_CHANGED = (
    "variables.now.filter(k, !(k in variables.then) || variables.then[k] != variables.now[k])"
    " + variables.then.filter(k, !(k in variables.now))"
)
_IS_SCHEDULER = f"request.userInfo.username == {cel(SCHEDULER_USER)}"
_OTHERS_CHANGE = f"!({_IS_SCHEDULER}) && ({_NEW}) != ({_OLD})"
"""Whether another user than the scheduler writes annotations; a kubelet that reports a status does not."""
_AN_AGENT = named_expressions({"an-agent": f"request.userInfo.username == {cel(AGENT_USER)}"})
_GATES = "schedulingGates"
_VARIABLES = sorted(RUNTIME_VARIABLES)
_OUR_FIELD = rf"^metadata[.]annotations\['{CONTAINER_KEYS.removeprefix('^')}({'|'.join(_VARIABLES)})'\]$"
_RECORDING = (*DIALECTS, *(replace(VGPU, name=VGPU.name, annotations=one) for one in RECORDS.values()))
_FOREIGN = sorted(
    frozenset().union(*(foreign_records(Settings(dialects=(one,))) for one in _RECORDING)) - WRITTEN_BY_PLUGINS
)
"""Annotations by which programs of other systems read an assignment, in any dialect: whether a cluster uses the dialect
makes no difference, because no user needs to write them on a pod that we place."""
_SEES_NONE = "!has(e.valueFrom) && (!has(e.value) || e.value in ['void', 'none', ''])"
_SEES_ITS_ASSIGNMENT = (
    f"has(e.valueFrom) && has(e.valueFrom.fieldRef) && e.valueFrom.fieldRef.fieldPath.matches({cel(_OUR_FIELD)})"
)


def admission_policies(terms: Terms) -> list[Json]:
    """Return all policies, each followed by its binding."""
    of_pods = (*_assignments(terms), *_inheritance(terms), *_queue(), *_visibility(terms))
    return [*of_pods, *_agents(), *_profiles()]


def _assignments(terms: Terms) -> list[Json]:
    """Only the scheduler writes assignments, by whatever way an annotation reaches a pod."""
    is_placed_by_us = f"has(object.spec.schedulerName) && object.spec.schedulerName == {terms.scheduler}"
    variables = {
        "now": _NEW,
        "then": _OLD,
        "part": optional("request.subResource", "''"),
        "creates": "request.operation == 'CREATE' && request.resource.resource == 'pods' && variables.part == ''",
        "binds": "request.resource.resource == 'bindings' || variables.part == 'binding'",
        "isMirror": f"variables.creates && {cel(MIRROR)} in variables.now"
        f" && {cel(KUBELETS)} in request.userInfo.groups",
        "isOurs": f"variables.binds || ({is_placed_by_us})",
        "changed": _CHANGED,
        "forged": f"variables.changed.filter(k, k == {cel(RECORD)} || k.matches({cel(CONTAINER_KEYS)})"
        f" || ((k == {cel(NUMBERS)} || k == {cel(AMOUNTS)}) && !variables.creates)"
        f" || (variables.isOurs && k in {cel(_FOREIGN)}))",
    }
    return policy_with_binding(
        ASSIGNMENTS,
        {"resourceRules": [rule_for(["CREATE", "UPDATE"], ANNOTATION_PATHS)]},
        matchConditions=named_expressions({"others-change-annotations": _OTHERS_CHANGE}),
        variables=named_expressions(variables),
        validations=[_refuses_forged(ONLY_THE_SCHEDULER, unless="variables.isMirror")],
    )


def _inheritance(terms: Terms) -> list[Json]:
    """No user may write the assignments of other systems on pods with GPUs: such a pod would count on any GPU, without
    queue and quota. Those from before the installation stay as they are."""
    variables = {
        "now": _NEW,
        "then": _OLD,
        "changed": _CHANGED,
        "forged": f"variables.changed.filter(k, k in {cel(sorted(INHERITED))})",
    }
    paths = [path for path in ANNOTATION_PATHS if "binding" not in path]  # for bindings, `_assignments` has this rule
    return policy_with_binding(
        INHERITANCE,
        {
            "resourceRules": [rule_for(["CREATE", "UPDATE"], paths)],
            "namespaceSelector": {"matchExpressions": terms.namespaces},
        },
        matchConditions=named_expressions(
            {"others-change-annotations-of-pods-with-gpus": f"{_OTHERS_CHANGE} && ({requests_gpus(terms)})"}
        ),
        variables=named_expressions(variables),
        validations=[_refuses_forged(ONLY_BEFORE)],
    )


def _refuses_forged(why: str, unless: str = "false") -> Json:
    """Refuse a write if `variables.forged` has an annotation."""
    return {
        "expression": f"{unless} || size(variables.forged) == 0",
        "messageExpression": f"'cotenant: annotation ' + string(variables.forged[0]) + {cel(f' {why}')}",
        "reason": "Forbidden",
    }


def _queue() -> list[Json]:
    """Only the scheduler removes our scheduling gate, and not while the pod is held. Kubernetes alone lets every user
    remove it who may update the pod, and a hold could come too late for the scheduler to see it."""
    old, new = (
        f"has({pod}.spec.{_GATES}) && {pod}.spec.{_GATES}.exists(g, g.name == {cel(GATE)})"
        for pod in ("oldObject", "object")
    )
    annotations = "object.metadata.annotations"
    hold = f"has({annotations}) && {cel(HOLD)} in {annotations} && {annotations}[{cel(HOLD)}] != '{NOT_HELD}'"
    wrongly = f"({old}) && !({new}) && (!({_IS_SCHEDULER}) || ({hold}))"
    return policy_with_binding(
        QUEUE,
        {"resourceRules": [rule_for(["UPDATE"], ["pods"])]},
        matchConditions=named_expressions({"removes-the-gate-wrongly": wrongly}),
        validations=[
            {
                "expression": _IS_SCHEDULER,
                "message": f"cotenant: scheduling gate {GATE} {ONLY_THE_SCHEDULER}",
                "reason": "Forbidden",
            },
            {
                "expression": f"!({hold})",
                "message": f"cotenant: scheduling gate {GATE} stays while the annotation {HOLD} holds the pod",
                "reason": "Forbidden",
            },
        ],
    )


def _visibility(terms: Terms) -> list[Json]:
    """Pods that the webhook did not prepare must not name GPUs themselves.

    CEL cannot read the variables of an image or a ConfigMap. So a pod that skips the webhook by its own label, which
    every user can set, must set the variables to none itself; otherwise it could mimic a prepared pod without limits.
    """
    debug, old_debug = "object.spec.ephemeralContainers", "oldObject.spec.ephemeralContainers"
    variables = {
        "debugged": f"oldObject != null && {optional(old_debug, '[]')}",
        "debugs": optional(debug, "[]"),
        "init": optional("object.spec.initContainers", "[]"),
        "fresh": "request.operation == 'CREATE' ? object.spec.containers + variables.init"
        " : variables.debugs.filter(c, !variables.debugged.exists(o, o.name == c.name))",
        "skips": terms.skips,
    }
    is_visible = f"e.name in {cel(_VARIABLES)}"
    names = ", ".join(_VARIABLES)
    names_no_gpu = {
        "expression": f"variables.fresh.all(c, !has(c.env) || c.env.all(e, !({is_visible}) || ({_SEES_NONE})"
        f" || ({_SEES_ITS_ASSIGNMENT})))",
        "message": f"cotenant: a pod must not set {names}: remove the variable, and request GPUs under resources",
        "reason": "Forbidden",
    }
    sets_void = {
        "expression": f"!variables.skips || variables.fresh.all(c, has(c.env)"
        f" && {cel(_VARIABLES)}.all(v, c.env.exists(e, e.name == v))"
        f" && c.env.all(e, !({is_visible}) || ({_SEES_NONE})))",
        "message": f"cotenant: a pod that skips the webhook by its own label must set {names} to none in every"
        " container; label the namespace instead to skip the webhook without this condition",
        "reason": "Forbidden",
    }
    mounts_no_list = {
        "expression": "variables.fresh.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m,"
        f" !m.mountPath.contains({cel(DEVICE_LIST)})))",
        "message": f"cotenant: a mount at a path with {DEVICE_LIST} could name GPUs to NVIDIA's container runtime;"
        " choose another path, and request GPUs under resources",
        "reason": "Forbidden",
    }
    rules = [rule_for(["CREATE"], ["pods"]), rule_for(["UPDATE"], [f"pods/{EPHEMERAL_CONTAINERS}"])]
    return policy_with_binding(
        VISIBILITY,
        {"resourceRules": rules, "namespaceSelector": {"matchExpressions": terms.namespaces}},
        matchConditions=named_expressions({"no-mirror": NOT_MIRROR}),
        variables=named_expressions(variables),
        validations=[names_no_gpu, sets_void, mounts_no_list],
    )


def _agents() -> list[Json]:
    """A compromised agent can lie about the GPUs of its own node, and about nothing else."""
    own_node = {
        "expression": is_own_node("object.metadata.name"),
        "message": "cotenant: an agent may write to its own node only",
        "reason": "Forbidden",
    }
    variables = {
        "now": _NEW,
        "then": _OLD,
        "changed": _CHANGED,
        "amounts": " + ".join(_changed_amounts(part) for part in ("capacity", "allocatable")),
    }
    unchanged = " && ".join(map(_is_unchanged, _NOT_FOR_AGENTS))
    only_gpus = {
        "expression": f"oldObject != null && variables.changed.all(k, k in {cel(list(SAID))})"
        f" && variables.amounts.all(k, k.contains('/')) && {unchanged}",
        "message": "cotenant: an agent may write only the annotations about its node's GPUs and the totals of"
        " extended resources",
        "reason": "Forbidden",
    }
    return policy_with_binding(
        AGENTS,
        {"resourceRules": [rule_for(["CREATE", "UPDATE"], ["nodes", "nodes/status"])]},
        matchConditions=_AN_AGENT,
        variables=named_expressions(variables),
        validations=[own_node, only_gpus],
    )


def _profiles() -> list[Json]:
    """A compromised agent can lie about what it measured on its own node; the scheduler bounds what that changes."""
    owner = "object.metadata.ownerReferences"
    own_profiles = {
        "expression": f"(object == null || ({is_own_node('object.spec.node')}))"
        f" && (oldObject == null || ({is_own_node('oldObject.spec.node')}))",
        "message": "cotenant: an agent may write the profiles of its own node only",
        "reason": "Forbidden",
    }
    # An owner reference decides when an object is deleted, and one to a foreign object would say that it is in use.
    owned_by_node = {
        "expression": f"object == null || (has({owner}) && size({owner}) == 1 && {owner}[0].kind == 'Node'"
        f" && {owner}[0].name == object.spec.node && (!has(object.metadata.finalizers)"
        " || size(object.metadata.finalizers) == 0))",
        "message": "cotenant: the node of a profile must be its only owner, and it must have no finalizer",
        "reason": "Forbidden",
    }
    return policy_with_binding(
        PROFILES,
        {"resourceRules": [rule_for(["CREATE", "UPDATE", "DELETE"], [PLURAL], group=GROUP, version="*")]},
        matchConditions=_AN_AGENT,
        validations=[own_profiles, owned_by_node],
    )


def is_own_node(name: str) -> str:
    """CEL: whether this is the node on which the agent that sends the request runs."""
    node = cel(_NODE_OF_USER)
    extra = "request.userInfo.extra"
    return f"has({extra}) && {node} in {extra} && {name} in {extra}[{node}]"


def _changed_amounts(part: str) -> str:
    """CEL: the resources whose amount on the node differs from before."""
    new, old = (f"({optional(f'{one}.status.{part}', '{}')})" for one in ("object", "oldObject"))
    differs = f"{new}.filter(k, !(k in {old}) || {old}[k] != {new}[k])"
    return f"(oldObject == null ? [] : {differs} + {old}.filter(k, !(k in {new})))"


def _is_unchanged(path: str) -> str:
    """CEL: whether an optional field is as it was."""
    new, old = (f"({optional(f'{one}.{path}', 'null')})" for one in ("object", "oldObject"))
    return f"{new} == {old}"
