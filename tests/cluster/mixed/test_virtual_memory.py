# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Virtual device memory on a real cluster: containers are assigned more than a GPU has, and get it; and the node's own
settings and label, by which it is so."""

import json

from cotenant.kube.codec.inventory import USED
from tests.cluster.api import wait_for
from tests.cluster.engine import Engine, gpus_of
from tests.cluster.examples import SMI, apply, run_in
from tests.cluster.gpus import uuid
from tests.cluster.mixed.world import LARGE_CARD_MIB, LARGE_MIB, allocatable, beside_the_driver, cards_of
from tests.cluster.tenant import FILLS, SOURCE
from tests.cluster.test_serving import cotenant

ASKS_NVML = f"""
import ctypes
nvml, handle, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(b"{uuid(1, 1)}", ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
print(memory[2] >> 20)
"""
"""MiB of the large card that are in use, as the node itself sees it"""


TAKES = f"{SOURCE}\nprint(take(500), flush=True)\ntime.sleep(600)"


def in_use(engine: Engine) -> int:
    return int(engine.machine("node1").run(*beside_the_driver(ASKS_NVML)))


def test_a_container_allocates_more_than_the_gpu_has_and_the_rest_is_memory_of_the_host(mixed: Engine) -> None:
    apply(mixed, "hami/virtual-memory.yaml")
    host = LARGE_MIB - LARGE_CARD_MIB
    assert mixed.said("virtual-memory") == {
        "total_mib": LARGE_MIB,
        "allocated_mib": {"gpu": LARGE_CARD_MIB, "host": host},
        "then": "CUDA_ERROR_OUT_OF_MEMORY",
    }
    assert in_use(mixed) == LARGE_CARD_MIB
    (gpu,) = json.loads(run_in(mixed, "virtual-memory", SMI, "--json"))["gpus"]
    assert (gpu["used_mib"], gpu["total_mib"], gpu["host_mib"]) == (LARGE_MIB, LARGE_MIB, host)
    mixed.create("more", {"nvidia.com/gpumem": 100})
    assert "not enough GPU memory" in mixed.waits("more")


def test_tenants_of_an_oversubscribed_gpu_fill_their_slices_at_the_same_time(mixed: Engine) -> None:
    for name in ("one", "two", "three"):
        mixed.create(name, {"nvidia.com/gpumem": 1000}, FILLS)
    for name in ("one", "two", "three"):
        assert gpus_of(mixed.started(name)) == [uuid(1, 1)]
        assert (mixed.said(name)["room"], mixed.said(name)["total"]) == (1000, 1000)
    assert in_use(mixed) <= LARGE_CARD_MIB


def test_a_hidden_gpu_is_never_assigned_and_a_node_without_the_label_offers_none(mixed: Engine) -> None:
    mixed.cluster.post("/api/v1/namespaces", {"metadata": {"name": "observed"}})
    mixed.create("greedy", {"nvidia.com/gpumem": 100}, TAKES, namespace="observed")
    assert mixed.said("greedy", namespace="observed") == 0
    assert list(cards_of(mixed, "node1")) == [uuid(1, 0), uuid(1, 1)]
    mixed.create("wants-it", {"nvidia.com/gpumem": 1}, annotations={"nvidia.com/use-gpuuuid": uuid(1, 2)})
    mixed.waits("wants-it")
    node = "/api/v1/nodes/node1"
    mixed.cluster.patch(node, {"metadata": {"labels": {"gpu": None}}})
    wait_for("the agent to leave", lambda: allocatable(mixed, "node1", "nvidia.com/gpu") == 0)
    mixed.create("waits", {"nvidia.com/gpumem": 1}, "")
    assert "Insufficient nvidia.com/gpu" in mixed.waits("waits")
    mixed.cluster.patch(node, {"metadata": {"labels": {"gpu": "on"}}})
    mixed.ended("waits")
    # The new agent looks at once. Nothing limits pods of this namespace, and `inspect` says what follows from that.
    wait_for("the use", lambda: "beyond" in mixed.node("node1")["metadata"]["annotations"].get(USED, ""))
    notes = cotenant(mixed, "kube", "inspect", "gpushare", "-d", "--unit", "MiB", "node1").splitlines()
    found = [" ".join(line.split()) for line in notes if line.startswith("NOTE:")]
    assert found == [
        "NOTE: no limit of pod observed/greedy is enforced (isolation: none)",
        "NOTE: pod observed/greedy uses 500 of 100 MiB of GPU1",
    ]
