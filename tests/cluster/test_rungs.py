# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Preload, MPS and MIG tenants on one node of a real cluster: what each is given, and what becomes of MPS."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cotenant.kube.api.names import MPS, NAMESPACE
from cotenant.kube.codec.claim_requests import DRIVER, MIG
from cotenant.kube.codec.claims import device_name
from cotenant.kube.codec.inventory import INVENTORY
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.binaries import KUBERNETES, Binaries
from tests.cluster.claiming import API, create, make_claim, spec_of, started
from tests.cluster.claiming import events_of as claim_events
from tests.cluster.engine import COUNT, Engine, gpus_of, running_engine
from tests.cluster.gpus import GpuModel, instance_uuid, uuid
from tests.cluster.pods import path_of
from tests.cluster.tenant import FILLS, REPEATS, SOURCE, STAYS

A100, OLD = GpuModel("NVIDIA A100-SXM4-40GB", 40960), GpuModel("Tesla K40", 12288, capability="3.0")
CARDS = (A100, A100._replace(mig="1g.5gb/3g.20gb"), A100, OLD)
FIRST, THIRD = uuid(1, 0), uuid(1, 2)
SMALL, LARGE = instance_uuid(1, 1, 1), instance_uuid(1, 1, 2)
MEMORY, CORES, ISOLATION = "nvidia.com/gpumem", "nvidia.com/gpucores", "cotenant.io/isolation"
ON_THIRD = {"cotenant.io/use-uuids": THIRD}
MODES = f"""
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
found = {{}}
for name in {[FIRST, THIRD]!r}:
    device, mode = ctypes.c_void_p(), ctypes.c_int()
    nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
    nvml.nvmlDeviceGetComputeMode(device, ctypes.byref(mode))
    found[name] = mode.value
print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def machine(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One node: a GPU for MPS by its settings, a partitioned one, another one, and one that is too old for MPS."""
    settings = f"nodes: {{node1: {{gpus: {{{FIRST}: {{isolation: mps}}}}}}}}\nclaims: {{enabled: true}}\n"
    with running_engine(
        tmp_path_factory.mktemp("rungs"), programs, gpus=CARDS, settings=settings, values={"mps": {"enabled": True}}
    ) as engine:
        wait_for("MPS to be offered", lambda: offers_mps(engine))
        yield engine


@pytest.fixture
def engine(machine: Engine) -> Iterator[Engine]:
    yield machine
    machine.tidy()
    wait_for("MPS to be gone", lambda: not mps_processes(machine))


def offers_mps(engine: Engine) -> bool:
    cards = json.loads(engine.node("node1")["metadata"]["annotations"][INVENTORY])["cards"]
    return any(card.get("isolation", {}).get("mps") for card in cards)


def mps_processes(engine: Engine) -> list[int]:
    return engine.machine("node1").processes("nvidia-cuda-mps")


def client(engine: Engine, name: str, memory: int, cores: int = 25, code: str = STAYS, **more: Any) -> None:
    on_first = {ISOLATION: "mps", "cotenant.io/use-uuids": FIRST}
    engine.create(name, {MEMORY: memory, CORES: cores}, code, annotations=on_first, **more)


def client_by_claim(engine: Engine, name: str, memory: int, cores: int = 25, code: str = STAYS, **more: Any) -> None:
    make_claim(engine, name, spec_of(f"{memory}Mi", cores))
    create(engine, name, code, annotations={ISOLATION: "mps", "cotenant.io/use-uuids": FIRST}, **more)


def events_of(engine: Engine, name: str) -> list[tuple[str, str]]:
    found = engine.cluster.get("/api/v1/namespaces/default/events")["items"]
    return [(one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == name]


def has_event(engine: Engine, name: str, reason: str, text: str = "") -> Any:
    return wait_for(
        f"event {reason} on {name}",
        lambda: [said for kind, said in events_of(engine, name) if kind == reason and text in said],
    )


def modes(engine: Engine) -> dict[str, int]:
    """The compute modes, as a program of the node sees them."""
    pod = engine.our_pods(MPS)[0]["metadata"]["name"]
    told = engine.cluster.kubectl("exec", f"--namespace={NAMESPACE}", pod, "--", "python3", "-c", MODES)
    return dict(json.loads(told))


def test_each_tenant_of_a_mixed_node_sees_what_it_was_given_also_after_restarts(engine: Engine) -> None:
    client(engine, "by-mps", 4000, code=FILLS)
    client(engine, "beside", 2000)
    client_by_claim(engine, "by-claim", 3000, code=FILLS)
    engine.create("by-preload", {MEMORY: 3000}, FILLS, annotations=ON_THIRD | {ISOLATION: "preload"})
    engine.create("by-default", {MEMORY: 1000}, STAYS, annotations=ON_THIRD)
    engine.create("by-profile", {"nvidia.com/mig-1g.5gb": 1}, STAYS)
    engine.create("in-instance", {MEMORY: 2000}, FILLS, annotations={ISOLATION: "mig"})
    expected = {
        "by-mps": ("mps", 4000),
        "beside": ("mps", 2000),
        "by-claim": ("mps", 3000),
        "by-preload": ("preload", 3000),
        "by-default": ("preload", 1000),
        "by-profile": ("preload", 5120),
        "in-instance": ("preload", 2000),
    }

    def check() -> dict[str, list[str]]:
        found = {}
        for name, (rung, room) in expected.items():
            pod = engine.started(name)
            said = engine.said(name)
            assert (said["variables"]["COTENANT_ISOLATION"], said["room"]) == (rung, room), (name, said)
            found[name] = gpus_of(pod)
            # CUDA tells the bytes of a UUID, and not what it is of.
            assert [one[4:] for one in said["gpus"]] == [one[4:] for one in found[name]], name
        return found

    placed = check()
    assert placed["by-mps"] == placed["beside"] == placed["by-claim"] == [FIRST]
    assert placed["by-preload"] == placed["by-default"] == [THIRD]
    assert (placed["by-profile"], placed["in-instance"]) == ([SMALL], [LARGE])
    for name in ("by-mps", "by-claim"):
        said = engine.said(name)["variables"]
        assert said["CUDA_MPS_PIPE_DIRECTORY"] == f"/run/cotenant-node/mps/{FIRST}/pipe"
        assert said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in engine.said("by-preload")["variables"]
    daemons = mps_processes(engine)
    assert daemons
    assert sees_shm_of_its_gpu(engine)
    assert modes(engine) == {FIRST: 3, THIRD: 0}
    engine.restart_agent("node1")
    engine.restart_scheduler()
    engine.restart_kubelet("node1")
    wait_for("MPS to be offered again", lambda: offers_mps(engine))
    assert mps_processes(engine) == daemons
    assert check() == placed
    # The books are right: a client joins the others, and a pod without MPS does not.
    client(engine, "late", 1000)
    assert gpus_of(engine.started("late")) == [FIRST]
    engine.create("whole", {COUNT: 1, MEMORY: 30000}, "", annotations=ON_THIRD)
    assert gpus_of(engine.ended("whole")) == [THIRD]
    engine.tidy()
    wait_for("MPS to be gone", lambda: not mps_processes(engine))
    assert modes(engine) == {FIRST: 0, THIRD: 0}


def sees_shm_of_its_gpu(engine: Engine) -> bool:
    """Whether clients of MPS have the /dev/shm of their control daemon, and no other pod has."""
    machine = engine.machine("node1")
    shm = machine.inside(f"/run/cotenant-node/mps/{FIRST}/shm")
    engine.cluster.kubectl("exec", "by-mps", "--", "sh", "-c", "echo shared > /dev/shm/word")
    look = ("--", "sh", "-c", "cat /dev/shm/word || true")
    daemon = machine.inside(f"/proc/{mps_processes(engine)[0]}/root/dev/shm/word")
    seen = [engine.cluster.kubectl("exec", name, *look).strip() for name in ("beside", "by-claim", "by-preload")]
    return seen == ["shared", "shared", ""] and daemon.read_text() == "shared\n" and (shm / "word").exists()


@pytest.mark.parametrize("make", [client, client_by_claim])
def test_a_crash_of_mps_is_told_and_clients_start_again_with_their_limits(
    engine: Engine, make: Callable[..., None]
) -> None:
    name = make.__name__.replace("_", "-")
    make(engine, name, 2000, code=REPEATS, restartPolicy="Always")
    engine.said(name)
    before = restarts(engine, name)
    engine.kill("nvidia-cuda-mps-control -d")
    has_event(engine, name, "MpsClosed", "is closed until its MPS is clean")
    wait_for("it to start again", lambda: restarts(engine, name) > before)
    wait_for("it to be ready", lambda: is_running(engine, name))
    has_event(engine, name, "MpsOpen")
    # Kubelet starts a container with a claim again without asking the agent, possibly before MPS is clean.
    wait_for("it to have its limit", lambda: engine.said(name)["room"] == 2000)


def test_a_fault_of_one_client_is_attributed(engine: Engine) -> None:
    client(engine, "victim", 1000, restartPolicy="Always")
    engine.said("victim")
    fault = f"{SOURCE}\ntell(keeps=True)\ntime.sleep(5)\nfault()\ntime.sleep(600)"
    client(engine, "culprit", 1000, code=fault)
    engine.said("culprit")
    has_event(engine, "culprit", "MpsClosed", "this pod caused it")
    (text, *_) = has_event(engine, "victim", "MpsClosed", "a fault of process")
    assert "this pod caused it" not in text
    wait_for("the victim to start again", lambda: restarts(engine, "victim"))
    wait_for("the victim to run", lambda: is_running(engine, "victim"))


def restarts(engine: Engine, name: str) -> int:
    statuses = engine.cluster.get(path_of(name))["status"].get("containerStatuses", [])
    return sum(one["restartCount"] for one in statuses)


def is_running(engine: Engine, name: str) -> bool:
    statuses = engine.cluster.get(path_of(name))["status"].get("containerStatuses", [])
    return bool(statuses) and all("running" in one["state"] for one in statuses)


def test_what_is_not_possible_is_refused_and_the_others_go_on(engine: Engine) -> None:
    client(engine, "runs", 1000)
    engine.said("runs")
    with pytest.raises(RefusedError, match="expected one of driver, mps, preload, none, mig"):
        engine.create("unknown", {MEMORY: 1000}, annotations={ISOLATION: "best"})
    engine.create("driver", {MEMORY: 1000}, annotations={ISOLATION: "driver"})
    assert "isolation driver is not possible here" in engine.waits("driver")
    on_old = {ISOLATION: "mps", "cotenant.io/use-types": "K40"}
    engine.create("old", {MEMORY: 1000}, annotations=on_old)
    has_event(engine, "old", "NoRoom", "isolation mps")
    assert is_running(engine, "runs")


def test_a_foreign_control_daemon_is_left_alone_and_closes_the_gpu(engine: Engine) -> None:
    pipe = f"/run/cotenant-node/mps/{FIRST}/pipe"
    pod = engine.our_pods(MPS)[0]["metadata"]["name"]
    folders = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), pipe)
    start = (
        f"import os, subprocess; os.makedirs({pipe!r}, exist_ok=True);"
        f" env = os.environ | {folders} | {{'CUDA_VISIBLE_DEVICES': {FIRST!r}}};"
        " subprocess.run(['nvidia-cuda-mps-control', '-d'], env=env, check=True)"
    )
    engine.cluster.kubectl("exec", f"--namespace={NAMESPACE}", pod, "--", "python3", "-c", start)
    foreign = wait_for("the foreign daemon", lambda: mps_processes(engine))
    client(engine, "waits", 1000)
    engine.create("others", {MEMORY: 1000}, STAYS, annotations=ON_THIRD | {ISOLATION: "preload"})
    engine.said("others")
    has_event(engine, "waits", "MpsClosed", "that cotenant did not start")
    assert mps_processes(engine) == foreign
    for pid in foreign:
        engine.machine("node1").kill(pid)
    engine.said("waits")


def test_instances_that_are_removed_behind_our_back_are_told_and_the_others_go_on(engine: Engine) -> None:
    engine.create("small", {"nvidia.com/mig-1g.5gb": 1}, STAYS)
    engine.create("large", {"nvidia.com/mig-3g.20gb": 1}, STAYS)
    engine.create("beside", {MEMORY: 1000}, STAYS, annotations=ON_THIRD)
    for name in ("small", "large", "beside"):
        engine.said(name)
    partition(engine, "1g.5gb")
    has_event(engine, "large", "GpuFault", "this MIG instance was removed")
    engine.create("late", {"nvidia.com/mig-3g.20gb": 1}, STAYS)
    has_event(engine, "late", "NoRoom")
    assert all(is_running(engine, name) for name in ("small", "large", "beside"))
    others = (*events_of(engine, "small"), *events_of(engine, "beside"))
    assert [reason for reason, _ in others if "Gpu" in reason] == []
    engine.delete("large")
    partition(engine, "1g.5gb/3g.20gb")
    assert gpus_of(engine.started("late")) == [instance_uuid(1, 1, 3)]


def test_an_instance_is_given_by_a_claim_and_slices_say_which_belong_together(engine: Engine) -> None:
    chosen = f'device.attributes["{DRIVER}"].migProfile == "3g.20gb"'
    exactly = {"deviceClassName": MIG, "selectors": [{"cel": {"expression": chosen}}]}
    make_claim(engine, "large", {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}})
    create(engine, "large", STAYS)
    started(engine, "large")
    (mine,) = gpus_of(engine.cluster.get(path_of("large")))
    (seen,) = engine.said("large")["gpus"]  # CUDA has one prefix for all
    assert seen.removeprefix("GPU-") == mine.removeprefix("MIG-")
    # The instances that an administrator has removed above are not stated.
    slices = wait_for("the slices", lambda: found if len(stated(found := slices_of(engine))) == len(CARDS) + 1 else [])
    devices = stated(slices)
    profiles = {
        device["attributes"]["uuid"]["string"]: device["attributes"].get("migProfile", {}).get("string")
        for device in devices
    }
    assert profiles[mine] == "3g.20gb"
    counters = [one["name"] for each in slices for one in each["spec"].get("sharedCounters", ())]
    takers = [device["consumesCounters"][0]["counterSet"] for device in devices if "consumesCounters" in device]
    if int(KUBERNETES.split(".")[1]) < 36:
        assert (counters, takers) == ([], [])
    else:
        assert counters == [device_name(uuid(1, 1))]
        assert takers == counters * 2
    create(engine, "late", STAYS, claim="large")  # it joins
    started(engine, "late")
    make_claim(engine, "another", {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}})
    create(engine, "another", STAYS)
    wait_for("the reason", lambda: "no other job uses" in claim_events(engine, "another"))


def slices_of(engine: Engine) -> list[Json]:
    return list(engine.cluster.get(f"{API}/resourceslices")["items"])


def stated(slices: list[Json]) -> list[Json]:
    """The devices of all slices."""
    return [device for one in slices for device in one["spec"].get("devices", ())]


def partition(engine: Engine, layout: str) -> None:
    """Other MIG instances for the second card, as an administrator would make them by hand."""
    pod = engine.our_pods(MPS)[0]["metadata"]["name"]
    code = f'import ctypes; ctypes.CDLL("libcuda.so.1").standinPartition(1, b"{layout}")'
    engine.cluster.kubectl("exec", f"--namespace={NAMESPACE}", pod, "--", "python3", "-c", code)
