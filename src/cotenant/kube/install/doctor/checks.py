# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of an installation: each is a function of the facts, and a row in `CHECKS`."""

from collections.abc import Callable, Iterator, Mapping

import yaml

from cotenant.kube.api.names import AGENT, CONFIGURATION, NAMESPACE, SCHEDULER, WEBHOOK, Json
from cotenant.kube.api.objects import moment_of
from cotenant.kube.install.configuration import KUBE_SCHEDULER, kube_scheduler, scheduler_terms_of
from cotenant.kube.install.doctor.facts import Facts
from cotenant.kube.install.doctor.node_checks import (
    check_agent_versions,
    check_claims,
    check_clocks,
    check_drivers,
    check_kubelet,
    check_plugins,
    check_runtime,
    images_of,
    tag_of,
)
from cotenant.kube.install.doctor.webhook_checks import check_webhook
from cotenant.kube.install.kinds import Key
from cotenant.wire.diagnosis import Diagnosis, Finding, diagnosis, error, warning

APPLY = "install what is missing: `cotenant kube upgrade`"
STALE_S = 60.0
"""age of the lease after which no scheduler leads; a living one renews it every few seconds"""


def check_access(facts: Facts) -> Iterator[Finding]:
    for what, why in facts.unread.items():
        yield warning(
            "access", what, f"cannot be read: {why}", "run the doctor with the rights of a cluster administrator"
        )


def check_objects(facts: Facts) -> Iterator[Finding]:
    namespace = Key("Namespace", NAMESPACE)
    if namespace in facts.objects and facts.objects[namespace] is None:
        install = "install it: `cotenant kube install`"
        yield error("objects", str(namespace), "is missing: cotenant is not installed in this cluster", install)
        return
    for key, seen in facts.objects.items():
        if seen is None:
            yield error("objects", str(key), "is missing", APPLY)
        elif key.kind == "CustomResourceDefinition" and not _is_true(seen.status, "Established"):
            yield error("objects", str(key), "is not established", "see its conditions with kubectl describe")


def check_rights(facts: Facts) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    for right, allowed in facts.rights.items():
        if not allowed:
            missing.setdefault(right.account, []).append(str(right))
    for account, rights in missing.items():
        shown = ", ".join(rights[:6]) + f" and {len(rights) - 6} more" * (len(rights) > 6)
        yield error("rights", account, f"may not {shown}", f"restore the roles and bindings: {APPLY}")


def check_settings(facts: Facts) -> Iterator[Finding]:
    about = f"ConfigMap {CONFIGURATION}"
    seen = facts.get("ConfigMap", CONFIGURATION)
    if seen is None:
        return
    if facts.settings is None:
        fix = "correct the settings file and install again"
        yield error("settings", about, f"the settings are not valid: {facts.settings_problem}", fix)
        return
    if not facts.settings.has_extender:
        return
    try:
        found = yaml.safe_load(seen.data.get(KUBE_SCHEDULER, ""))
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        yield error("settings", about, f"{KUBE_SCHEDULER} is missing or no YAML", APPLY)
        return
    yield from _scheduler_differences(about, found, kube_scheduler(scheduler_terms_of(facts.settings)))


def _scheduler_differences(about: str, found: Json, wanted: Json) -> Iterator[Finding]:
    """What kube-scheduler is configured with, compared with what the settings need."""
    extenders, ours = found.get("extenders"), wanted["extenders"][0]
    candidates = extenders if isinstance(extenders, list) else []
    own = next((one for one in candidates if isinstance(one, dict) and one.get("urlPrefix") == ours["urlPrefix"]), None)
    if own is None:
        yield error("settings", about, f"kube-scheduler has no extender at {ours['urlPrefix']}", APPLY)
        return
    for name, value in ours.items():
        if name != "managedResources" and own.get(name) != value:
            yield error("settings", about, f"extender: {name} is {own.get(name)!r}, expected {value!r}", APPLY)
    managed = own.get("managedResources")
    names = {one.get("name") for one in managed if isinstance(one, dict)} if isinstance(managed, list) else set()
    lacking = sorted(one["name"] for one in ours["managedResources"] if one["name"] not in names)
    if lacking:
        text = f"kube-scheduler does not call us for {', '.join(lacking)}"
        yield error("settings", about, text, APPLY)
    if found.get("profiles") != wanted["profiles"]:
        text = f"profiles of kube-scheduler are {found.get('profiles')!r:.200}, expected {wanted['profiles']!r}"
        yield error("settings", about, text, APPLY)


def check_programs(facts: Facts) -> Iterator[Finding]:
    for name in (SCHEDULER, WEBHOOK):
        seen = facts.get("Deployment", name)
        if seen is not None and not seen.status.get("availableReplicas"):
            wanted = seen.spec.get("replicas", 1)
            yield error("programs", f"Deployment {name}", f"0 of {wanted} pods are available", _look(name))
    agents = facts.get("DaemonSet", AGENT)
    if agents is not None:
        wanted, ready = (agents.status.get(name, 0) for name in ("desiredNumberScheduled", "numberReady"))
        if ready < wanted:
            text = f"{ready} of {wanted} agents are ready"
            yield (error if ready == 0 else warning)("programs", f"DaemonSet {AGENT}", text, _look(AGENT))
    lease = facts.get("Lease", SCHEDULER)
    if lease is not None and facts.server_time is not None:
        age = facts.server_time - moment_of(lease.spec.get("renewTime"))
        if age > STALE_S:
            text = f"was renewed {age:,.0f} s ago: no scheduler leads"
            yield error("programs", f"Lease {SCHEDULER}", text, _look(SCHEDULER))


def check_versions(facts: Facts) -> Iterator[Finding]:
    images = images_of(facts)
    if len({tag for image in images.values() if (tag := tag_of(image)) is not None}) > 1:
        listed = ", ".join(f"{name} {image}" for name, image in sorted(images.items()))
        yield warning("versions", "images", f"differ: {listed}", f"wait for the update to end, or {APPLY}")
    yield from check_agent_versions(facts)


def _look(name: str) -> str:
    return f"see `kubectl -n {NAMESPACE} describe pods -l app.kubernetes.io/name={name}` and their logs"


def _is_true(status: Mapping[str, object], kind: str) -> bool:
    conditions = status.get("conditions")
    listed = conditions if isinstance(conditions, list) else []
    return any(isinstance(one, dict) and one.get("type") == kind and one.get("status") == "True" for one in listed)


Check = Callable[[Facts], Iterator[Finding]]
CHECKS: Mapping[str, Check] = {
    "access": check_access,
    "objects": check_objects,
    "rights": check_rights,
    "settings": check_settings,
    "programs": check_programs,
    "webhook": check_webhook,
    "drivers": check_drivers,
    "kubelet": check_kubelet,
    "runtime": check_runtime,
    "plugins": check_plugins,
    "claims": check_claims,
    "versions": check_versions,
    "clocks": check_clocks,
}
"""all checks, in the order in which their findings are shown"""


def examine(facts: Facts) -> Diagnosis:
    """All findings. If cotenant is not installed, that is the only one."""
    if facts.objects.get(Key("Namespace", NAMESPACE)) is None:
        return diagnosis(CHECKS, [*check_access(facts), *check_objects(facts)])
    return diagnosis(CHECKS, (found for check in CHECKS.values() for found in check(facts)))
