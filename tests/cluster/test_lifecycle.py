# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The life of an installation on a real cluster: it takes over the nodes of other systems one by one, is upgraded and
rolled back by helm while pods run, and leaves.

The other systems are stand-ins (`other_systems.py`): HAMi on one node, gpushare on the other, later NVIDIA's
time-slicing. The steps are those of `docs/howto/switch.md`. No release of the chart is older than this one, so the
previous release is the same chart with another version, other values and another vGPU library.
"""

import contextlib
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cotenant.kube.api.names import AGENT, NAMESPACE
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inventory import INVENTORY
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.install.chart import RELEASE, chart_folder
from tests.cluster import other_plugin, other_systems, pods
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.cluster import Cluster, running
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import COUNT, V100, Engine, chart_values, gpus_of, run_install
from tests.cluster.gpus import uuid
from tests.cluster.images import AGENT as AGENT_IMAGE
from tests.cluster.images import LATER_AGENT, kube_scheduler_image, later_agent_image, our_images, pause_image
from tests.cluster.machine import Machine
from tests.cluster.other_systems import GPUSHARE, HAMI, TIME_SLICING
from tests.cluster.pods import path_of
from tests.cluster.tenant import REPEATS, SEES, STAYS

OLD_WEBHOOK = "hami-webhook"
SYSTEMS = {"node1": GPUSHARE, "node2": HAMI}
OLD = {"node1": 20 * 1024, "node2": 30_000}
"""MiB of the old system's pod on each node, which has one GPU"""
REST = V100.memory_mib - OLD["node2"]
VALUES = chart_values("compat: hami", agent={"nodeSelector": {"cotenant": "on"}})
LATER_VALUES: Json = {
    "settings": {"gpus": {"split": 12}},
    "scheduler": {"replicas": 2},
    "agent": {"image": LATER_AGENT},
}
OTHER_NAMES = {
    "count": "example.com/vgpu",
    "memory": "example.com/vgpu-memory",
    "memory-percent": "example.com/vgpu-memory-percentage",
    "compute": "example.com/vgpu-cores",
    "priority": "example.com/vgpu-priority",
}
PREVIOUS = f"{yaml.safe_load((chart_folder() / 'Chart.yaml').read_text())['version']}-previous.1"
USUAL_NAMES = {name: getattr(VGPU, name.replace("-", "_")) for name in OTHER_NAMES}
USUAL_SPLIT = 10
GPUS = {node: uuid(int(node[-1]), 0) for node in SYSTEMS}
SERVER = "/apis/apps/v1/namespaces/default/deployments/server"
MOST_PODS = 16
LIBRARIES = "/var/lib/cotenant/lib"


class Moved(NamedTuple):
    """The cluster after its nodes were moved, and what was seen on the way."""

    engine: Engine
    before: dict[str, Any]
    """the containers of the old pods before cotenant was installed"""
    first: list[Json]
    """new pods that were placed while one node was still the old system's"""
    waited: str
    """why a pod waited then that has room on the other node only"""


@pytest.fixture(scope="module")
def old(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Two nodes with a GPU each, which other systems serve, and a pod of theirs on each."""
    images = [pause_image(programs.pause / "pause"), our_images(), later_agent_image()]
    images.append(kube_scheduler_image(programs.kubernetes / "kube-scheduler"))
    made = running(tmp_path_factory.mktemp("lifecycle"), programs, images=images, gpus=(V100,))
    with until_last_use("old", made) as cluster:
        cluster.add_node((V100,))
        engine = Engine(cluster)
        hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        cluster.post(hooks, {"metadata": {"name": OLD_WEBHOOK}})
        for node, system in SYSTEMS.items():
            other_systems.install(cluster, system, GPUS)
            cluster.kubectl("label", "node", node, system.label)
        limits = {"node1": {GPUSHARE.resource: 20}, "node2": {COUNT: 1, "nvidia.com/gpumem": OLD["node2"]}}
        amounts = {"node1": 20, "node2": OLD["node2"]}
        has = {one: (system.resource, system.devices) for one, system in SYSTEMS.items()}
        wait_for("the old plugins", lambda: all(allocatable(engine, one, name) == n for one, (name, n) in has.items()))
        for node, system in SYSTEMS.items():
            notes = system.assigned(node, amounts[node])
            engine.create(f"old-{node}", limits[node], STAYS, annotations=notes, nodeName=node)
            engine.started(f"old-{node}")
        yield engine


@pytest.fixture(scope="module")
def moved(old: Engine) -> Moved:
    """The nodes are moved one by one, and the previous release is installed; the pods of the old system run on."""
    before = {name: container_of(old, name) for name in (f"old-{node}" for node in OLD)}
    other_systems.take_node(old.cluster, HAMI, "node2")
    install_previous(old.cluster)
    old.cluster.kubectl("delete", "mutatingwebhookconfiguration", OLD_WEBHOOK)
    old.wait_for_scheduler()
    wait_for("the inventory", lambda: INVENTORY in old.node("node2")["metadata"]["annotations"])
    old.wait_for_agent("node2")
    old.cluster.kubectl("uncordon", "node2")
    for name in ("new-1", "new-2"):
        old.create(name, {"nvidia.com/gpumem": REST // 2 - 100}, STAYS)
    first = [old.started(name) for name in ("new-1", "new-2")]
    old.create("late", {"nvidia.com/gpumem": 4000}, STAYS)
    waited = old.waits("late")
    other_systems.take_node(old.cluster, GPUSHARE, "node1")
    ready = ("wait", "--for=condition=Ready", "pod", "-l", f"app.kubernetes.io/name={AGENT}", "--timeout=120s")
    wait_for("the agent's pod", lambda: len(old.our_pods(AGENT)) == 2)
    old.cluster.kubectl("-n", NAMESPACE, *ready, "--field-selector", "spec.nodeName=node1")
    old.cluster.kubectl("uncordon", "node1")
    old.wait_for_agent("node1")
    return Moved(old, before, first, waited)


def install_previous(cluster: Cluster) -> None:
    """Installs the chart of another version by helm."""
    values = cluster.folder / "previous.json"
    values.write_text(json.dumps(VALUES))
    folder = chart_of(cluster, PREVIOUS)
    helm(cluster, "install", RELEASE, folder, "--create-namespace", "--values", str(values), "--wait")


def chart_of(cluster: Cluster, version: str) -> str:
    """The folder of the chart with another version."""
    folder = cluster.folder / version
    shutil.copytree(chart_folder(), folder)
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": version, "appVersion": version}))
    return str(folder)


def helm(cluster: Cluster, *words: str) -> str:
    where = ("--namespace", NAMESPACE, "--kubeconfig", str(cluster.credentials / "admin.kubeconfig"))
    return cluster.machines[0].run("helm", *words, *where)


def allocatable(engine: Engine, node: str, resource: str = COUNT) -> int:
    return int(engine.node(node)["status"]["allocatable"].get(resource, 0))


def extended_resources(engine: Engine, node: str) -> set[str]:
    """The amounts of all resources that are not Kubernetes' own."""
    return {amount for name, amount in engine.node(node)["status"]["allocatable"].items() if "/" in name}


def container_of(engine: Engine, name: str) -> tuple[str, int, str | None]:
    """The container of a pod: its ID, how often it was restarted, and what was recorded of it."""
    pod = engine.cluster.get(path_of(name))
    (status,) = pod["status"]["containerStatuses"]
    assert "running" in status["state"], status
    return status["containerID"], status["restartCount"], pod["metadata"]["annotations"].get(RECORD)


def test_nodes_are_moved_one_by_one_while_pods_of_the_other_system_run(moved: Moved) -> None:
    engine = moved.engine
    assert {pod["spec"]["nodeName"] for pod in moved.first} == {"node2"}, "the other node was the old system's"
    assert all(gpus_of(pod) == [uuid(2, 0)] for pod in moved.first)
    assert "not enough GPU memory" in moved.waited, "the rest of the one GPU is not enough beside the old pod"
    late = engine.started("late")
    assert (late["spec"]["nodeName"], gpus_of(late)) == ("node1", [uuid(1, 0)])
    assert {name: container_of(engine, name) for name in moved.before} == moved.before
    for node in OLD:
        assert engine.said(f"old-{node}")["gpus"] == [uuid(int(node[-1]), 0)]
    engine.create("large", {"nvidia.com/gpumem": V100.memory_mib - OLD["node1"] - 3999}, STAYS)
    assert "not enough GPU memory" in engine.waits("large"), "the old pods count on both nodes"
    for name in ("large", "late", "new-1", "new-2", *moved.before):
        engine.delete(name)
    # Not on node1: for at least 5 minutes, kubelet rejects pods with the resource of a device plugin that has left.
    engine.fits({GPUSHARE.resource: V100.memory_mib // 1024}, "node2")
    engine.fits({"nvidia.com/gpumem": V100.memory_mib}, "node1")
    engine.fits({"nvidia.com/gpumem": V100.memory_mib}, "node2")


def test_an_upgrade_that_skips_a_release_is_refused_before_anything_is_changed(moved: Moved) -> None:
    cluster = moved.engine.cluster
    with pytest.raises(RuntimeError, match=rf"cotenant {PREVIOUS} is installed, and 99.1.0 is more than one minor"):
        helm(cluster, "upgrade", RELEASE, chart_of(cluster, "99.1.0"), "--reuse-values")
    (release,) = json.loads(helm(cluster, "list", "-o", "json"))
    assert (release["revision"], release["app_version"], release["status"]) == ("1", PREVIOUS, "deployed")


def test_an_upgrade_and_a_rollback_disturb_no_running_pod_and_leave_none_without_limits(moved: Moved) -> None:
    engine = moved.engine
    here = {"kubernetes.io/hostname": "node1"}
    for name, amount in (("first", 1000), ("second", 2000)):
        engine.create(name, {"nvidia.com/gpumem": amount}, REPEATS, nodeSelector=here)
        engine.said(name)
    with undisturbed(engine, "first", "second"):
        create_during(engine, "up", lambda: run_install(engine.cluster, "upgrade", LATER_VALUES, "--wait", helm=True))
    assert json.loads(helm(engine.cluster, "list", "-o", "json"))[0]["revision"] == "2"
    wait_for("the new settings", lambda: allocatable(engine, "node1") == 12)
    assert len(libraries(engine.machine("node1"))) == 2, "that of the running pods, and that of new ones"
    with undisturbed(engine, "first", "second"):
        create_during(engine, "back", lambda: helm(engine.cluster, "rollback", RELEASE, "1", "--wait"))
    wait_for("the old settings", lambda: allocatable(engine, "node1") == USUAL_SPLIT)


@contextlib.contextmanager
def undisturbed(engine: Engine, *names: str) -> Iterator[None]:
    """Two pods on node1 run on while something is done: the same containers, records, limits and library."""
    machine = engine.machine("node1")
    before = {name: container_of(engine, name) for name in names}
    files, loaded = libraries(machine), loaded_libraries(machine)
    assert len(loaded) == len(names)
    began = time.time()
    yield
    done = time.time()
    assert {name: container_of(engine, name) for name in names} == before
    assert files.items() <= libraries(machine).items()
    assert loaded_libraries(machine) == loaded
    wait_for("all to look again", lambda: all(engine.said(name)["at"] > done for name in names))
    for name in names:
        lines = [line for line in map(json.loads, engine.log(name).splitlines()) if line["at"] > began]
        assert lines[0]["preloaded"]
        assert [line for line in lines if {**line, "at": 0} != {**lines[0], "at": 0}] == [], "what it sees has changed"


def libraries(machine: Machine) -> dict[Path, tuple[int, str]]:
    """The vGPU libraries of a node: inode and digest."""
    found = machine.inside(LIBRARIES).glob("libcotenant-*/libcotenant.so")
    return {path: (path.stat().st_ino, hashlib.sha256(path.read_bytes()).hexdigest()) for path in found}


def loaded_libraries(machine: Machine) -> dict[int, str]:
    """The inode of the vGPU library that each process of our tenants has loaded."""
    found = {}
    for pid in machine.processes("while True:\n    tell()"):
        maps = (machine.inside("/proc") / str(pid) / "maps").read_text().splitlines()
        inodes = {line.split()[4] for line in maps if line.endswith("libcotenant.so")}
        if inodes:
            (found[pid],) = inodes
    return found


def create_during(engine: Engine, prefix: str, work: Callable[[], object]) -> None:
    """Creates pods while something is done. None is refused, and all of them start with their limits."""
    names = list[str]()
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(work)
        while not doing.done() and len(names) < MOST_PODS:
            names.append(f"{prefix}-{len(names)}")
            engine.create(names[-1], {"nvidia.com/gpumem": 100}, SEES)
            time.sleep(1)
        doing.result()
    for name in names:
        engine.ended(name)
        said = engine.said(name)
        assert (said["preloaded"], said["totals"]) == (True, [100]), name
        engine.delete(name)


def test_a_node_goes_back_and_both_systems_serve_pods_by_the_names_of_their_resources(moved: Moved) -> None:
    """As docs/howto/switch.md and beside-nvidia.md say. The other system's pods are placed by the default scheduler."""
    engine, kubectl = moved.engine, moved.engine.cluster.kubectl
    engine.tidy("kube-system")
    run_install(engine.cluster, "upgrade", {"settings": {"dialects": {"vgpu": OTHER_NAMES}}}, "--wait", helm=True)
    kubectl("drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    kubectl("label", "node", "node2", "cotenant-")
    wait_for("our agent to be gone", lambda: len(engine.our_pods(AGENT)) == 1)
    other_systems.install(engine.cluster, TIME_SLICING, GPUS)
    kubectl("label", "node", "node2", TIME_SLICING.label)
    wait_for("the other plugin", lambda: allocatable(engine, "node2") == TIME_SLICING.devices)
    kubectl("uncordon", "node2")
    engine.wait_for_scheduler()
    create_server(engine.cluster)
    for theirs in servers(engine):
        said = engine.said(theirs["metadata"]["name"])
        assert (theirs["spec"]["nodeName"], said["gpus"], said["preloaded"]) == ("node2", [uuid(2, 0)], False)
        assert RECORD not in theirs["metadata"].get("annotations", {})
    engine.create("ours", {OTHER_NAMES["memory"]: 1000}, STAYS)
    ours, said = engine.started("ours"), engine.said("ours")
    assert (ours["spec"]["nodeName"], said["gpus"], said["totals"]) == ("node1", [uuid(1, 0)], [1000])
    engine.delete("ours")


def test_a_server_stays_available_while_its_node_is_moved_from_time_slicing(moved: Moved) -> None:
    """The steps of docs/howto/from-time-slicing.md: the pods say only `nvidia.com/gpu: 1`, and leave the node first."""
    engine, kubectl = moved.engine, moved.engine.cluster.kubectl
    usual = {"dialects": {"vgpu": USUAL_NAMES}, "defaults": {"memory": 4000}}
    run_install(engine.cluster, "upgrade", {"settings": usual}, "--wait", helm=True)
    engine.wait_for_agent("node1")
    leave = ("drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
    available = set[int]()
    with ThreadPoolExecutor(1) as pool:
        drain = pool.submit(kubectl, *leave)
        while not drain.done():
            available.add(engine.cluster.get(SERVER)["status"].get("availableReplicas", 0))
        drain.result()
    assert min(available) >= 1
    other_systems.take_node(engine.cluster, TIME_SLICING, "node2")
    engine.wait_for_agent("node2")
    kubectl("uncordon", "node2")
    for pod in servers(engine):
        said = engine.said(pod["metadata"]["name"])
        assert (pod["spec"]["nodeName"], gpus_of(pod), said["totals"]) == ("node1", [uuid(1, 0)], [4000])
    engine.cluster.delete(SERVER)
    engine.fits({"nvidia.com/gpumem": V100.memory_mib}, "node2")


def create_server(cluster: Cluster) -> None:
    """A Deployment of two pods that request a GPU and no amount, of which one may be away."""
    labels = {"matchLabels": {"app": "server"}}
    container = pods.container("main", STAYS, {COUNT: 1})
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": labels["matchLabels"]}, "spec": spec}
    folder, _, name = SERVER.rpartition("/")
    made = {"metadata": {"name": name}, "spec": {"replicas": 2, "selector": labels, "template": template}}
    cluster.post(folder, made)
    budget = {"metadata": {"name": name}, "spec": {"maxUnavailable": 1, "selector": labels}}
    cluster.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)


def servers(engine: Engine) -> list[Json]:
    """The pods of the server, once both of them run."""

    def look() -> list[Json] | None:
        found = engine.cluster.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dserver")["items"]
        running = [one for one in found if one["status"]["phase"] == "Running"]
        return running if len(running) == len(found) == 2 else None

    return wait_for("both pods of the server", look)


def run_clean(cluster: Cluster, node: str) -> str:
    where = f"--kubeconfig={cluster.credentials / 'admin.kubeconfig'}"
    values = (f"agent.image={AGENT_IMAGE}", "image.pullPolicy=Never")
    sets = [word for value in values for word in ("--set", value)]
    return cluster.machines[0].run(sys.executable, "-m", "cotenant", "kube", "clean", where, "--node", node, *sets)


def test_nothing_is_left_on_the_nodes_after_an_uninstallation(moved: Moved) -> None:
    """A pod still runs on node1: the files that it uses stay until it has ended."""
    engine = moved.engine
    engine.tidy("kube-system")
    engine.create("ours", {"nvidia.com/gpumem": 1000}, STAYS, nodeSelector={"kubernetes.io/hostname": "node1"})
    engine.said("ours")
    before, library = container_of(engine, "ours"), libraries(engine.machine("node1"))
    said = run_install(engine.cluster, "uninstall", {})
    assert "node node2: files removed" in said
    assert "/var/lib/cotenant and /run/cotenant-node stay" in said
    assert "pod default/ours; `cotenant kube clean --node node1` removes them later" in said
    assert (container_of(engine, "ours"), libraries(engine.machine("node1"))) == (before, library)
    engine.delete("ours")
    assert "node node1: files removed" in run_clean(engine.cluster, "node1")
    wait_for("kubelets to have no devices", lambda: all(extended_resources(engine, node) <= {"0"} for node in OLD))
    for node in OLD:
        engine.cluster.kubectl("label", "node", node, "cotenant-")
        seen = engine.node(node)
        named = [*seen["metadata"]["annotations"], *seen["metadata"]["labels"]]
        assert [name for name in named if "cotenant" in name or "hami" in name] == []
        assert "nvidia.com/gpumem" not in seen["status"]["capacity"]
        machine = engine.machine(node)
        assert "cotenant" not in machine.run("cat", "/proc/1/mounts")
        for folder in ("/run", "/run/cdi", "/etc/cdi", "/var/lib", str(other_plugin.FOLDER)):
            assert [path for path in machine.inside(folder).glob("*cotenant*") if path.exists()] == []
