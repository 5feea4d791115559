# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The test cluster itself, and what Kubernetes promises that cotenant stands on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cotenant
from tests.cluster.api import wait_for
from tests.cluster.binaries import KUBERNETES, Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.engine import Engine
from tests.cluster.init import MACHINE_WIDE
from tests.cluster.machine import CGROUP_PREFIX, CGROUPS, remove_cgroups
from tests.cluster.pods import container, create_pod, ended
from tests.cluster.test_serving import refused
from tests.native.kit import ROOT

PODS = "/api/v1/namespaces/default/pods"
ASSIGNMENT = "cotenant.example/assignment"


def test_a_cluster_of_the_version_asked_for_comes_up(cluster: Cluster) -> None:
    assert cluster.get("/version")["gitVersion"] == f"v{KUBERNETES}"
    assert "node/node1" in cluster.kubectl("get", "nodes", "--output=name").split()


def test_a_pod_with_our_package_runs_and_ends(cluster: Cluster) -> None:
    create_pod(cluster, "hello", container("main", "import cotenant, numpy; print(cotenant.__version__)"))
    assert ended(cluster, "hello")["spec"]["nodeName"] == "node1"
    assert cluster.text(f"{PODS}/hello/log").strip() == cotenant.__version__


def test_a_pod_of_a_second_node_reaches_the_server_by_its_service(cluster: Cluster) -> None:
    second = cluster.add_node()
    code = (
        "import ssl, urllib.request;"
        "own = '/var/run/secrets/kubernetes.io/serviceaccount/';"
        "trust = ssl.create_default_context(cafile=own + 'ca.crt');"
        "print(urllib.request.urlopen('https://10.96.0.1/version', context=trust, timeout=20).read().decode())"
    )
    create_pod(cluster, "far", container("main", code), nodeSelector={"kubernetes.io/hostname": second})
    assert ended(cluster, "far")["spec"]["nodeName"] == second
    assert json.loads(cluster.text(f"{PODS}/far/log"))["gitVersion"] == f"v{KUBERNETES}"


def test_fake_nodes_are_listed_and_get_pods(cluster: Cluster) -> None:
    names = [f"fake-{number:02}" for number in range(20)]
    cluster.add_fake_nodes(names, {"example.com/gpu": "8"})
    listed = cluster.get("/api/v1/nodes?labelSelector=fake")["items"]
    assert [node["metadata"]["name"] for node in listed] == names
    create_pod(cluster, "big", container("main", "", {"example.com/gpu": "8"}), nodeSelector={"fake": "true"})
    assert wait_for("a node for the pod", lambda: cluster.get(f"{PODS}/big")["spec"].get("nodeName")) in names


@pytest.fixture
def bound(cluster: Cluster) -> Iterator[str]:
    """The version, before its binding, of a pod that shows the binding's annotation by a volume and a variable."""
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{ASSIGNMENT}']"}}
    create_pod(
        cluster,
        "bound",
        container(
            "main",
            "import os; print(os.environ['ASSIGNMENT'], open('/limits/assignment').read())",
            env=[{"name": "ASSIGNMENT", "valueFrom": source}],
            volumeMounts=[{"name": "limits", "mountPath": "/limits", "readOnly": True}],
        ),
        schedulerName="nobody",
        volumes=[{"name": "limits", "downwardAPI": {"items": [{"path": "assignment", **source}]}}],
    )
    before = cluster.get(f"{PODS}/bound")
    target = {"apiVersion": "v1", "kind": "Node", "name": "node1"}
    metadata = {"name": "bound", "annotations": {ASSIGNMENT: "gpu-3"}}
    cluster.post(f"{PODS}/bound/binding", {"metadata": metadata, "target": target})
    yield before["metadata"]["resourceVersion"]
    cluster.delete(f"{PODS}/bound?gracePeriodSeconds=0")


def test_annotations_of_a_binding_and_the_node_reach_the_pod_in_one_write(cluster: Cluster, bound: str) -> None:
    watch = f"watch=1&fieldSelector=metadata.name%3Dbound&resourceVersion={bound}&timeoutSeconds=1"
    events = [json.loads(line) for line in cluster.text(f"{PODS}?{watch}").splitlines()]
    first = events[0]["object"]
    assert first["spec"]["nodeName"] == "node1"
    assert first["metadata"]["annotations"][ASSIGNMENT] == "gpu-3"


def test_a_container_sees_the_annotations_of_its_binding_from_the_start(cluster: Cluster, bound: str) -> None:
    ended(cluster, "bound")
    assert cluster.text(f"{PODS}/bound/log").split() == ["gpu-3", "gpu-3"]


# Runs in a process of its own: starts a cluster, tells where, and ends it when it is spoken to.
OWNER = """
import json, sys
from pathlib import Path
from tests.cluster.binaries import binaries
from tests.cluster.cluster import running
with running(Path(sys.argv[1]), binaries(print), images=()) as cluster:
    print(json.dumps([machine.pid for machine in cluster.machines]), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("way", ["ended", "killed"])
def test_nothing_of_a_cluster_is_left(programs: Binaries, tmp_path: Path, way: str) -> None:
    settings = kernel_settings()
    mounts = Path("/proc/self/mountinfo").read_text()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        (first,) = json.loads(owner.stdout.readline())
        spaces = {kind: os.readlink(f"/proc/{first}/ns/{kind}") for kind in ("mnt", "net", "pid")}
        assert len(processes_in(spaces)) > 6
        assert list(CGROUPS.rglob(f"{CGROUP_PREFIX}{first}"))
        copy = tmp_path / "node1" / "sysctl" / "vm" / "overcommit_memory"
        assert copy.read_text().strip() == "1", "kubelet has not set what it sets on a machine"
        if way == "killed":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.communicate("\n")
    wait_for("the end of what it owned", lambda: not processes_in(spaces))  # killed, yet not at once gone
    if way == "killed":
        remove_cgroups()  # as the next cluster does
    assert not list(CGROUPS.rglob(f"{CGROUP_PREFIX}{first}"))
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert kernel_settings() == settings


def kernel_settings() -> list[str]:
    """What kubelet sets for a whole machine."""
    return [file.read_text() for name in MACHINE_WIDE if (file := Path("/proc/sys") / name).exists()]


def processes_in(spaces: dict[str, str]) -> list[int]:
    """The processes that are in one of the namespaces."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(process / "ns" / kind) == space for kind, space in spaces.items()):
                found.append(int(process.name))
        except OSError:
            continue  # it has just ended
    return found


def test_a_demo_is_refused_on_a_cluster_without_shared_gpus(cluster: Cluster) -> None:
    code, line = refused(Engine(cluster), "kube", "demo", "--image", "team/workloads:1")
    assert (code, line) == (
        1,
        "cotenant: the cluster has no GPU that an agent of cotenant has published; `cotenant kube install` installs it",
    )
    assert not [one for one in cluster.get("/api/v1/namespaces")["items"] if "demo" in one["metadata"]["name"]]


def test_a_wait_ends_with_the_first_true_value() -> None:
    values: Iterator[object] = iter([None, False, [], 0, "found", "later"])
    assert wait_for("something", lambda: next(values)) == "found"
    with pytest.raises(TimeoutError, match="waited 0 s for what never is: nothing yet"):
        wait_for("what never is", list[str], 0.0)
