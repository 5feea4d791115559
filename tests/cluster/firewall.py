# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The network policies of the chart, enforced by nftables in the network of each pod.

The network of the test clusters enforces none, so this module does what a network plugin would. It knows what the chart
uses and refuses everything else, so that a policy is never enforced in part.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cotenant.kube.api.names import AGENT, NAMESPACE, SCHEDULER, WEB, WEBHOOK
from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine

LISTENS = "0A"
"""state of a socket in /proc/net/tcp"""
PROGRAMS = {
    SCHEDULER: "kube scheduler --settings",
    WEBHOOK: "kube webhook --settings",
    AGENT: "kube agent --settings",
    WEB: "kube web --settings",
}
"""words of the command line by which a process of each pod is found"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
    print("connected")
except ConnectionRefusedError:
    print("refused")
except TimeoutError:
    print("dropped")
"""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the policies let a pod do; None is everything."""

    ports: frozenset[int] | None
    """that others can connect to"""
    connects: bool
    """whether it can connect to others"""


def allowed(policies: Iterable[Json], labels: Mapping[str, str]) -> Allowed:
    """What the policies allow a pod with these labels; those that select it add up."""
    chosen = [one["spec"] for one in policies if _selects(one["spec"]["podSelector"], labels)]
    rules = [rule for spec in chosen for rule in spec.get("ingress", [])]
    unknown = [spec for spec in chosen if spec.keys() - {"podSelector", "policyTypes", "ingress"}]
    unknown += [rule for rule in rules if rule.keys() != {"ports"}]
    ports = [port for rule in rules for port in rule["ports"]]
    unknown += [port for port in ports if port.keys() != {"protocol", "port"} or port["protocol"] != "TCP"]
    assert unknown == [], f"not known here: {unknown}"
    is_open = not any("Ingress" in spec["policyTypes"] for spec in chosen)
    connects = not any("Egress" in spec["policyTypes"] for spec in chosen)
    return Allowed(None if is_open else frozenset(port["port"] for port in ports), connects)


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}, f"not known here: {selector}"
    listed = selector.get("matchExpressions", [])
    assert {one["operator"] for one in listed} <= {"In"}, f"not known here: {listed}"
    named = selector.get("matchLabels", {}).items() <= labels.items()
    return named and all(labels.get(one["key"]) in one["values"] for one in listed)


def policies(cluster: Cluster) -> list[Json]:
    """All network policies of our namespace."""
    return list(cluster.get(f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies")["items"])


def ports_that_listen(machine: Machine, pid: int) -> frozenset[int]:
    """The TCP ports that processes of a network offer to other networks."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in (machine.inside("/proc") / str(pid) / "net" / name).read_text().splitlines()[1:]
    ]
    offered = [line[1].split(":") for line in lines if line[3] == LISTENS]
    return frozenset(int(port, 16) for address, port in offered if not _is_loopback(address))


def _is_loopback(address: str) -> bool:
    """Whether an address of /proc/net is of the loopback: its parts are in the order of this machine's bytes."""
    return address.endswith("0100007F") or address == "00000000000000000000000001000000"


def enforce(machine: Machine, pid: int, what: Allowed) -> None:
    """Lets the network of a process have these connections only."""
    usual = "ct state established,related accept;"
    chains = []
    if what.ports is not None:
        ports = f"tcp dport {{ {', '.join(map(str, sorted(what.ports)))} }} accept;" if what.ports else ""
        chains.append(f"chain in {{ type filter hook input priority 0; policy drop; iif lo accept; {usual} {ports} }}")
    if not what.connects:
        chains.append(f"chain out {{ type filter hook output priority 0; policy drop; oif lo accept; {usual} }}")
    machine.run(*_in_network(pid), "nft", "-f", "-", feed="table inet policies {\n" + "\n".join(chains) + "\n}\n")


def tried(machine: Machine, address: str, port: int, pid: int | None = None) -> str:
    """What becomes of a connection from a machine, or from the network of a process: connected, refused or dropped."""
    place = () if pid is None else _in_network(pid)
    return machine.run(*place, sys.executable, "-c", CONNECT, address, str(port)).strip()


def _in_network(pid: int) -> Sequence[str]:
    return ("nsenter", "-t", str(pid), "-n")
