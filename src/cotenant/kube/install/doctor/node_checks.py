# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the nodes: drivers, kubelet, container runtime, device plugins of other systems, versions and clocks."""

import re
from collections.abc import Iterator, Mapping

from cotenant.errors import InputError
from cotenant.kube.api.names import AGENT, SCHEDULER, WEBHOOK
from cotenant.kube.api.objects import Node, moment_of
from cotenant.kube.codec.agent_report import report_of
from cotenant.kube.codec.inventory import AWAY, INVENTORY, OWN_TOTALS, machine_of
from cotenant.kube.install.doctor.facts import Facts
from cotenant.kube.install.kinds import Seen
from cotenant.kube.settings import KubeSettings
from cotenant.wire.diagnosis import Finding, error, warning

OLDEST_CONTAINERD = (1, 6)
AHEAD_S, BEHIND_S = 5.0, 60.0
"""A lease of a node is renewed every 10 s and never in the future, so its time bounds the clock of the node."""
OWN_CLOCK_S = 30.0
FOREIGN_RESOURCES = {
    "nvidia.com/gpu": "NVIDIA's device plugin",
    "nvidia.com/gpu.shared": "NVIDIA's device plugin",
    "nvidia.com/gpumem": "HAMi",
    "nvidia.com/gpucores": "HAMi",
    "aliyun.com/gpu-mem": "Aliyun's gpushare",
    "aliyun.com/gpu-count": "Aliyun's gpushare",
    "volcano.sh/vgpu-number": "Volcano's vGPU plugin",
    "volcano.sh/vgpu-memory": "Volcano's vGPU plugin",
    "amd.com/gpu": "AMD's device plugin",
}
"""resource of a node -> the system whose device plugin reports it, if it is not ours"""
REMOVE = "remove the other plugin from nodes with an agent; `docs/howto/switch.md` moves a cluster node by node"


def check_drivers(facts: Facts) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for node in facts.nodes:
        report, name = report_of(node.metadata.annotations), node.metadata.name
        if report is None:
            continue
        if report.problem is not None:
            fix = "install the driver, or leave the node out with `cotenant kube install --nodes`"
            yield (error if INVENTORY in node.metadata.annotations else warning)(
                "drivers", f"node {name}", f"its agent finds no GPUs: {report.problem}", fix
            )
        elif report.driver is not None:
            versions.setdefault(report.driver, []).append(name)
    if len(versions) > 1:
        listed = "; ".join(f"{version}: {_names(names)}" for version, names in sorted(versions.items()))
        yield warning("drivers", "nodes", f"NVIDIA drivers differ ({listed})", "use one driver version on all nodes")


def check_claims(facts: Facts) -> Iterator[Finding]:
    """What agents report about ResourceClaims."""
    for node in _with_agents(facts):
        report = report_of(node.metadata.annotations)
        if report is not None and report.claims is not None:
            fix = "see docs/howto/claims.md, or keep pods with claims off the node"
            yield error("claims", f"node {node.metadata.name}", report.claims, fix)


def check_kubelet(facts: Facts) -> Iterator[Finding]:
    for node in facts.nodes:
        about, annotations = f"node {node.metadata.name}", node.metadata.annotations
        away = annotations.get(AWAY)
        if away:
            fix = "see the log of its agent; the folder /var/lib/kubelet/device-plugins must be kubelet's own"
            yield error("kubelet", about, f"kubelet cannot start pods with GPUs there: {away[:200]}", fix)
        if INVENTORY not in annotations:
            continue
        try:
            machine = machine_of(Node(metadata=node.metadata))
        except InputError as problem:
            yield error("kubelet", about, f"its inventory cannot be read: {problem}", "update its agent")
            continue
        ill = [gpu.uuid for gpu in machine[0].gpus if not gpu.healthy] if machine is not None else []
        if ill:
            yield warning("kubelet", about, f"unhealthy GPUs: {_names(ill)}", "see nvidia-smi and the log of its agent")


def check_runtime(facts: Facts) -> Iterator[Finding]:
    for node in _with_agents(facts):
        name, _, version = str(node.status.get("nodeInfo", {}).get("containerRuntimeVersion", "")).partition("://")
        found = re.match(r"v?(\d+)\.(\d+)", version)
        if name == "containerd" and found and (int(found[1]), int(found[2])) < OLDEST_CONTAINERD:
            text = f"containerd {version} is older than {'.'.join(map(str, OLDEST_CONTAINERD))}"
            yield warning("runtime", f"node {node.metadata.name}", text, "update containerd")
        if name == "docker":
            text = "its container runtime is dockershim, which has no CDI"
            yield warning("runtime", f"node {node.metadata.name}", text, "use containerd or CRI-O")


def check_plugins(facts: Facts) -> Iterator[Finding]:
    ours = {node.metadata.name for node in _with_agents(facts)}
    reported = set()
    for plugin in facts.plugins:
        both = sorted(ours & plugin.nodes)
        reported.update(both)
        if both:
            text = f"{plugin.system} ({plugin.name}) hands out the same GPUs on {_names(both)}"
            yield error("plugins", plugin.name, text, REMOVE)
    for node in _with_agents(facts):
        foreign = _foreign_resources(node, facts.settings)
        if foreign and node.metadata.name not in reported:
            listed = ", ".join(f"{name} of {system}" for name, system in sorted(foreign.items()))
            yield error("plugins", f"node {node.metadata.name}", f"also has {listed}", REMOVE)


def _foreign_resources(node: Seen, settings: KubeSettings | None) -> Mapping[str, str]:
    """Resources of a node that only the device plugin of another system reports."""
    codec = (settings or KubeSettings()).codec()
    totals = node.metadata.annotations.get(OWN_TOTALS, "").split(",")
    own = {*codec.by_resource, *totals, *(dialect.handed_out for dialect in codec.dialects)}
    capacity = node.status.get("capacity", {})
    return {
        name: FOREIGN_RESOURCES[name]
        for name, amount in capacity.items()
        if name in FOREIGN_RESOURCES and name not in own and str(amount) != "0"
    }


def images_of(facts: Facts) -> dict[str, str]:
    """The image of each program of ours."""
    found: dict[str, str] = {}
    for kind, name in (("Deployment", SCHEDULER), ("Deployment", WEBHOOK), ("DaemonSet", AGENT)):
        seen = facts.get(kind, name)
        containers = [] if seen is None else seen.spec.get("template", {}).get("spec", {}).get("containers", [])
        images = [str(one["image"]) for one in containers if one.get("name") != "kube-scheduler"]
        if images:
            found[name] = images[0]
    return found


def tag_of(image: str) -> str | None:
    """The tag of an image; None if it is named by its digest, which says nothing about the version."""
    return None if "@" in image else image.rpartition("/")[2].partition(":")[2]


def check_agent_versions(facts: Facts) -> Iterator[Finding]:
    """Agents of another version than the doctor, which should be that of the installation."""
    versions: dict[str, list[str]] = {}
    for node in _with_agents(facts):
        report = report_of(node.metadata.annotations)
        versions.setdefault("unknown" if report is None else report.version, []).append(node.metadata.name)
    for version, names in sorted(versions.items()):
        if version != facts.version:
            text = f"agents of version {version} on {_names(names)}; this is {facts.version}"
            restart = "kubectl -n cotenant-system rollout restart daemonset cotenant-agent"
            fix = f"update the agents, for instance by `{restart}`, or this command"
            yield warning("versions", "agents", text, fix)


def check_clocks(facts: Facts) -> Iterator[Finding]:
    server = facts.server_time
    if server is None:
        return
    fix = "synchronise the clocks, for instance with chrony: leases, tokens and certificates depend on them"
    if abs(server - facts.own_time) > OWN_CLOCK_S:
        text = f"differs by {facts.own_time - server:+,.0f} s from the API server's"
        yield warning("clocks", "clock of this machine", text, fix)
    for node in _with_agents(facts):
        name = node.metadata.name
        lease = facts.node_leases.get(name)
        renewed = moment_of(None if lease is None else lease.spec.get("renewTime"))
        if not renewed or not _is_ready(node):
            continue
        ahead = renewed - server
        if ahead > AHEAD_S or ahead < -BEHIND_S:
            text = f"its clock differs by about {ahead:+,.0f} s from the API server's"
            yield error("clocks", f"node {name}", text, fix)


def _with_agents(facts: Facts) -> list[Seen]:
    return [node for node in facts.nodes if INVENTORY in node.metadata.annotations]


def _is_ready(node: Seen) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in node.status.get("conditions", ()))


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + f" and {len(names) - 5} more" * (len(names) > 5)
