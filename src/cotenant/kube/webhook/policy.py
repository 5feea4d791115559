# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Admission policies: the API server itself keeps assignments from being forged, also while we are not there.

CEL says here what validating.py says in Python. Each way on which annotations reach a pod is a resource of its own.
"""

from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inventory import SAID
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.install.names import Json
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.pods import MIRROR
from cotenant.kube.webhook.protecting import (
    AGENT_USER,
    NODES,
    OF_CONTAINERS,
    ONLY_THE_SCHEDULER,
    PLUGINS_OWN,
    SCHEDULER_USER,
    WAYS,
    records_of_others,
)
from cotenant.kube.webhook.queueing import queue_policy
from cotenant.kube.webhook.rules import cel, if_there, named, policy, rule_for
from cotenant.kube.webhook.visibility import visibility_policy

ASSIGNMENTS = "cotenant-assignments"
AGENTS = "cotenant-agents"
_NODE_OF_USER = "authentication.kubernetes.io/node-name"
_NOT_FOR_AGENTS = (
    *(f"metadata.{name}" for name in ("labels", "finalizers", "ownerReferences")),
    *(f"status.{name}" for name in ("conditions", "addresses", "daemonEndpoints", "nodeInfo")),
    "spec",
)
"""of a node"""
_NOW = if_there("object.metadata.annotations", "{}")
_THEN = f"oldObject != null && {if_there('oldObject.metadata.annotations', '{}')}"
_CHANGED = (
    "variables.now.filter(k, !(k in variables.then) || variables.then[k] != variables.now[k])"
    " + variables.then.filter(k, !(k in variables.now))"
)


def admission_policies(settings: KubeSettings) -> list[Json]:
    """The policies, each with what puts it into force."""
    return [*_assignments(settings), *queue_policy(), *visibility_policy(settings), *_agents()]


def _assignments(settings: KubeSettings) -> list[Json]:
    others = sorted(records_of_others(settings.codec()) - PLUGINS_OWN)
    is_placed_by_us = f"has(object.spec.schedulerName) && object.spec.schedulerName == {cel(settings.scheduler.name)}"
    variables = {
        "now": _NOW,
        "then": _THEN,
        "part": if_there("request.subResource", "''"),
        "creates": "request.operation == 'CREATE' && request.resource.resource == 'pods' && variables.part == ''",
        "binds": "request.resource.resource == 'bindings' || variables.part == 'binding'",
        "isMirror": f"variables.creates && {cel(MIRROR)} in variables.now && {cel(NODES)} in request.userInfo.groups",
        "isOurs": f"variables.binds || ({is_placed_by_us})",
        "changed": _CHANGED,
        "forged": f"variables.changed.filter(k, k == {cel(RECORD)} || k.matches({cel(OF_CONTAINERS)})"
        f" || (k == {cel(NUMBERS)} && !variables.creates) || (variables.isOurs && k in {cel(others)}))",
    }
    rule = {
        "expression": "variables.isMirror || size(variables.forged) == 0",
        "messageExpression": f"'cotenant: annotation ' + string(variables.forged[0]) + {cel(f' {ONLY_THE_SCHEDULER}')}",
        "reason": "Forbidden",
    }
    return policy(
        ASSIGNMENTS,
        {"resourceRules": [rule_for(["CREATE", "UPDATE"], WAYS)]},
        matchConditions=named({"not-the-scheduler": f"request.userInfo.username != {cel(SCHEDULER_USER)}"}),
        variables=named(variables),
        validations=[rule],
    )


def _agents() -> list[Json]:
    """An agent that was taken over can lie about the cards of its own node, and about nothing else."""
    node = cel(_NODE_OF_USER)
    own = {
        "expression": f"has(request.userInfo.extra) && {node} in request.userInfo.extra"
        f" && object.metadata.name in request.userInfo.extra[{node}]",
        "message": "cotenant: an agent writes about its own node only",
        "reason": "Forbidden",
    }
    variables = {
        "now": _NOW,
        "then": _THEN,
        "changed": _CHANGED,
        "amounts": " + ".join(_changed_amounts(part) for part in ("capacity", "allocatable")),
    }
    same = " && ".join(map(_is_same, _NOT_FOR_AGENTS))
    cards = {
        "expression": f"oldObject != null && variables.changed.all(k, k in {cel(list(SAID))})"
        f" && variables.amounts.all(k, k.contains('/')) && {same}",
        "message": "cotenant: an agent writes about the cards of its node only",
        "reason": "Forbidden",
    }
    return policy(
        AGENTS,
        {"resourceRules": [rule_for(["CREATE", "UPDATE"], ["nodes", "nodes/status"])]},
        matchConditions=named({"an-agent": f"request.userInfo.username == {cel(AGENT_USER)}"}),
        variables=named(variables),
        validations=[own, cards],
    )


def _changed_amounts(part: str) -> str:
    """CEL: the resources of which a node is said to have another amount than before."""
    now, then = (f"({if_there(f'{one}.status.{part}', '{}')})" for one in ("object", "oldObject"))
    differs = f"{now}.filter(k, !(k in {then}) || {then}[k] != {now}[k])"
    return f"(oldObject == null ? [] : {differs} + {then}.filter(k, !(k in {now})))"


def _is_same(path: str) -> str:
    """CEL: whether a field that may be missing is as it was."""
    now, then = (f"({if_there(f'{one}.{path}', 'null')})" for one in ("object", "oldObject"))
    return f"{now} == {then}"
