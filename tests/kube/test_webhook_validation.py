# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is refused at admission, with a sentence that says what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest

from cotenant.kube.settings import KubeSettings, WebhookPart
from cotenant.kube.webhook.mutation import mutate
from tests.kube.reviews import SETTINGS, Json, admitted, refusal, review, written

SHARED = {"nvidia.com/gpumem": 1000}
WHOLE = {"nvidia.com/gpu": 1}


def refused(made: Json, settings: KubeSettings = SETTINGS) -> str:
    return refusal(mutate(review(made), settings)).removeprefix("cotenant: ")


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            written({"nvidia.com/gpumem-percentage": 101}),
            "container app-0: nvidia.com/gpumem-percentage: 101 % of a GPU, expected 1 to 100; it counts for each"
            " GPU, not for all together",
        ),
        (
            written({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 5}),
            "container app-0: nvidia.com/gpumem is requested with nvidia.com/gpu: 0; leave nvidia.com/gpu out, or write"
            " 1 or more",
        ),
        (
            written({"nvidia.com/gpu": 1, "aliyun.com/gpu-mem": 1}),
            "container app-0: nvidia.com/gpu and aliyun.com/gpu-mem are of two dialects: use the names of one dialect"
            " in a container",
        ),
        (
            written(WHOLE, annotations={"nvidia.com/numa-bind": "maybe"}),
            "annotation nvidia.com/numa-bind: 'maybe', expected true or false",
        ),
        (
            written(WHOLE, annotations={"cotenant.io/policy": "spread/"}),
            "policy: 'spread/': expected an order of GPUs after the slash, for example spread/binpack",
        ),
        (
            written(SHARED, nodeName="n1"),
            "spec.nodeName: n1 bypasses the scheduler, so the pod would get no GPU; remove it, and write nodeSelector:"
            " {kubernetes.io/hostname: n1}",
        ),
        (
            written(SHARED, schedulerName="yunikorn"),
            "spec.schedulerName: yunikorn cannot assign these GPUs; remove it, or write cotenant-scheduler. If cotenant"
            " replaces that scheduler, the administrator adds its name to scheduler.replaces",
        ),
    ],
)
def test_nonsense_is_refused_with_a_sentence(made: Json, sentence: str) -> None:
    assert refused(made) == sentence


def test_no_gpus_no_rules() -> None:
    made = written({}, nodeName="n1", schedulerName="volcano")
    made["spec"]["containers"][0] |= {"securityContext": {"privileged": True}, **mount("/etc/cotenant")}
    assert admitted(made)["spec"]["nodeName"] == "n1"


def mount(path: str) -> Json:
    return {"volumeMounts": [{"name": "v", "mountPath": path}]}


def device(path: str) -> Json:
    return {"volumeDevices": [{"name": "v", "devicePath": path}]}


@pytest.mark.parametrize("way", [mount, device])
@pytest.mark.parametrize(
    "path",
    [
        "/etc/cotenant",
        "/etc/cotenant/",
        "//etc//cotenant",
        "etc/cotenant",
        "/tmp/../etc/cotenant/limits",
        "/etc/ld.so.preload",
        "/run/cotenant",
        "/var/run/cotenant/agent.sock",
        "/run/cotenant-slice/usage",
        "/run/cotenant-processes/list",
        "/usr/local/lib/cotenant",
        "/var/run/nvidia-container-devices/all",
        "/var/run/nvidia-container-devicesall",
        "/var/lib/../run//nvidia-container-devices0",
    ],
)
def test_nothing_is_mounted_over_what_decides_about_gpus(way: Callable[[str], Json], path: str) -> None:
    made = written(SHARED)
    made["spec"]["containers"][0] |= way(path)
    assert refused(made) == (
        f"container app-0: a mount at {path} would change which GPUs the container uses; choose another path"
    )


@pytest.mark.parametrize("path", ["/etc", "/run", "/var/run", "/usr/local", "/etc/cotenant.d", "/run/cotenants", "/"])
def test_mounts_elsewhere_and_above_are_not_our_business(path: str) -> None:
    made = written(SHARED)
    made["spec"]["containers"][0] |= mount(path)
    assert mount(path)["volumeMounts"][0] in admitted(made)["spec"]["containers"][0]["volumeMounts"]


def test_devices_cannot_be_named_by_a_mount_without_gpus_either() -> None:
    made = written({})
    for path in ("/var/run/nvidia-container-devices/all", "/var/run/nvidia-container-devicesall"):
        made["spec"]["containers"][0] |= mount(path)
        assert "would change which GPUs the container uses" in refused(made)
    for volume in ("mine", "cotenant-limits-0"):
        named = [{"name": volume, "mountPath": "/run/nvidia-container-devices/0"}]
        debug = written({}, ephemeralContainers=[{"name": "d", "volumeMounts": named}])
        asked = review(debug, written({}), operation="UPDATE", resource="pods/ephemeralcontainers")
        assert "container d: a mount at /run/nvidia-container-devices/0" in refusal(mutate(asked, SETTINGS))


@pytest.mark.parametrize(
    ("asked", "path", "is_refused"),
    [
        ({}, "/var/lib/cotenant/slices", True),
        ({}, "/var/run/cotenant", True),
        ({}, "/", False),
        ({}, "/var/lib", False),
        (SHARED, "/run/cotenant-node", True),
        (SHARED, "/", True),
        (SHARED, "/var/lib", True),
        (SHARED, "/data", False),
    ],
)
def test_folders_of_an_agent_are_out_of_reach(asked: Json, path: str, is_refused: bool) -> None:
    made = written(asked, volumes=[{"name": "v", "hostPath": {"path": path}}])
    if is_refused:
        assert refused(made) == (
            f"volume v: hostPath {path} overlaps a folder of cotenant (/var/lib/cotenant, /run/cotenant,"
            " /run/cotenant-node); choose another path"
        )
    else:
        assert made["spec"]["volumes"][0] in admitted(made)["spec"]["volumes"]


@pytest.mark.parametrize(
    ("asked", "allowed", "is_refused"),
    [(SHARED, False, True), (SHARED, True, False), (WHOLE, False, False), ({}, False, False)],
)
def test_privileged_containers_do_not_share_unless_allowed(asked: Any, allowed: bool, is_refused: bool) -> None:
    made = written(asked, SHARED if asked else {})
    made["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    if asked is WHOLE:
        del made["spec"]["containers"][1]
    settings = KubeSettings(webhook=WebhookPart(allow_privileged=allowed))
    if is_refused:
        assert refused(made, settings) == (
            "container app-0: a privileged container reaches every GPU of its node, so it cannot share one; remove"
            " securityContext.privileged, or request whole GPUs"
        )
    else:
        admitted(made, settings)


@pytest.mark.parametrize(
    ("asked", "allowed", "capability", "is_refused"),
    [
        (SHARED, False, "SYS_ADMIN", True),
        (SHARED, False, "cap_sys_admin", True),
        (SHARED, False, "all", True),
        (SHARED, False, "SYS_MODULE", True),
        (SHARED, False, "SYS_RAWIO", True),
        (SHARED, False, "BPF", True),
        (SHARED, False, "cap_perfmon", True),
        (SHARED, False, "SYS_BOOT", True),
        (SHARED, False, "DAC_READ_SEARCH", True),
        (SHARED, False, "LINUX_IMMUTABLE", True),
        (SHARED, False, "MAC_ADMIN", True),
        (SHARED, False, "MAC_OVERRIDE", True),
        (SHARED, False, "SYS_PTRACE", False),
        (SHARED, False, "IPC_LOCK", False),
        (SHARED, True, "SYS_ADMIN", False),
        (WHOLE, False, "SYS_ADMIN", False),
        ({}, False, "ALL", False),
    ],
)
def test_containers_with_such_capabilities_do_not_share(
    asked: Any, allowed: bool, capability: str, is_refused: bool
) -> None:
    made = written(asked)
    made["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["NET_BIND_SERVICE", capability]}}
    settings = KubeSettings(webhook=WebhookPart(allow_privileged=allowed))
    if is_refused:
        assert refused(made, settings) == (
            f"container app-0: with capability {capability} a container reaches every GPU of its node, so it cannot"
            " share one; remove it from securityContext.capabilities.add, or request whole GPUs"
        )
    else:
        admitted(made, settings)


def test_a_container_that_sees_the_processes_of_its_node_may_not_trace_them_and_share() -> None:
    made = written(SHARED, hostPID=True)
    admitted(made)
    made["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_PTRACE"]}}
    assert "with capability SYS_PTRACE" in refused(made)


@pytest.mark.parametrize("asked", [SHARED, WHOLE])
def test_gpus_are_requested_under_resources_or_by_claims_but_not_both(asked: Any) -> None:
    made = written(asked, resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])
    assert refused(made) == (
        "spec.resourceClaims: gpu: another driver could give the pod the GPUs that cotenant shares; request GPUs"
        " either under resources or by claims. If claims are for other devices here, the administrator sets"
        " webhook.allow-claims"
    )
    assert admitted(made, KubeSettings(webhook=WebhookPart(allow_claims=True)))["spec"]["resourceClaims"]
    admitted(written({}, resourceClaims=[{"name": "nic", "resourceClaimName": "mine"}]))
