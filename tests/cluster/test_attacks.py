# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Somebody who may edit one namespace, or has taken over a pod or an agent, gets no GPU that was not given to them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cotenant.kube.api.names import AGENT, EXTENDER_PORT, HTTPS_PORT, NAMESPACE, SCHEDULER, WEBHOOK, WHY
from cotenant.kube.codec.annotations import RUNTIME_VARIABLES, is_assignment
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.inventory import CORDONED, INVENTORY
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.attacker import EVERYTHING, PODS, SLICE, TEAM, VISIBLE, annotated, refusal, token_of
from tests.cluster.components import STATIC_PODS
from tests.cluster.engine import SLEEP, Engine, gpus_of
from tests.cluster.images import PYTHON
from tests.cluster.pods import container, create_pod, path_of
from tests.cluster.tenant import SEES, STAYS

JOBS = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
VARIABLE = f"cotenant.io/0.{VISIBLE}"
PRESET = {RECORD: "mine", VARIABLE: "all", "cotenant.io/0.limits": "gpu any memory=0", "mine": "all"}
SKIPS = {"cotenant.io/webhook": "ignore"}


def env(**source: Any) -> dict[str, Any]:
    return {"env": [{"name": VISIBLE, **source}]}


def taken(field: str) -> dict[str, Any]:
    """The variable from an annotation of the pod."""
    return env(valueFrom={"fieldRef": {"fieldPath": f"metadata.annotations['{field}']"}})


FROM_MAP = {"envFrom": [{"configMapRef": {"name": EVERYTHING}}]}
SEEING: dict[str, dict[str, Any]] = {
    "value": env(value="all"),
    "key": env(valueFrom={"configMapKeyRef": {"name": EVERYTHING, "key": VISIBLE}}),
    "map": FROM_MAP,
    "annotation": taken("mine"),
    "assignment": taken(VARIABLE),
}
"""how a container can say that it wants to see all"""


def test_a_pod_sees_what_it_was_given_whatever_it_says_itself(engine: Engine, mallory: str) -> None:
    for name, how in SEEING.items():
        for kind, limits in (("plain", {}), ("sharing", SLICE)):
            made = annotated(
                f"{kind}-{name}",
                PRESET,
                spec={"restartPolicy": "Never", "containers": [container("main", SEES, limits, **how)]},
            )
            assert not refusal(engine, mallory, "POST", PODS, made), name
    spec = {"restartPolicy": "Never", "containers": [container("main", SEES, **SEEING["value"])]}
    template = {"metadata": {"annotations": PRESET}, "spec": spec}
    job = {"metadata": {"name": "job"}, "spec": {"template": template}}
    assert not refusal(engine, mallory, "POST", JOBS, job)
    for name in SEEING:
        check_sees_none(engine, f"plain-{name}")
        pod, seen = engine.ended(f"sharing-{name}", TEAM), engine.said(f"sharing-{name}", namespace=TEAM)
        assert (seen["gpus"], seen["totals"], seen["preloaded"]) == (gpus_of(pod), [1000], True), name
    check_sees_none(engine, wait_for("the job's pod", lambda: pod_of_job(engine, "job")))
    engine.cluster.delete(f"{JOBS}/job?propagationPolicy=Background")


FILLS_ITS_REGION = """
import ctypes, errno, fcntl, json, os, struct, threading

path = "/run/cotenant-slice/usage"
refused, kept = {}, os.open(path, os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
entries = [(1, 2**32 - 1), (2, 0), (4, 2**32 - 1), (16, 2**32 - 1), (32, 2**32 - 1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, 0, user) for tag, user in entries)

def tried(name, attack):
    try:
        attack()
    except OSError as error:
        refused[name] = errno.errorcode[error.errno]

def shut():
    while True:
        os.chmod(path, 0)

def largest():
    found, mib = 0, bytes(1 << 20)
    while True:  # what is truncated meanwhile is taken again
        at = os.fstat(kept).st_size
        try:
            os.pwrite(kept, mib, at)
        except OSError as error:
            refused["write"] = errno.errorcode[error.errno]
            return max(found, os.fstat(kept).st_blocks * 512)
        found = max(found, os.fstat(kept).st_blocks * 512)

tried("acl", lambda: os.setxattr(path, "system.posix_acl_access", acl))
tried("lease", lambda: fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK))
tried("owner", lambda: os.chown(path, 4321, 4321))
threading.Thread(target=shut, daemon=True).start()
mib = largest() >> 20
tried("far", lambda: os.pwrite(kept, b"x" * 4096, 1 << 40))
tried("fallocate", lambda: os.posix_fallocate(kept, 0, 1 << 30))
keep_size = ctypes.c_int(1)
if libc.fallocate(kept, keep_size, ctypes.c_long(0), ctypes.c_long(1 << 30)):
    refused["keep"] = errno.errorcode[ctypes.get_errno()]
print(json.dumps({"mib": mib, "refused": refused}), flush=True)
while True:
    largest()
"""
"""goes on filling its usage region by all means, and says how far it got"""


def test_a_tenant_that_fills_its_usage_region_takes_no_more_of_the_node_and_no_start_from_others(
    engine: Engine, mallory: str
) -> None:
    machine, regions = engine.machine("node1"), "/run/cotenant-node/regions"
    before = int(machine.run("stat", "--file-system", "--format=%f", "/run"))
    root = annotated(
        "filling",
        {},
        spec={
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container("main", FILLS_ITS_REGION, SLICE)],
        },
    )
    assert not refusal(engine, mallory, "POST", PODS, root)
    seen = engine.said("filling", namespace=TEAM)
    assert (
        seen["refused"].items()
        >= {"lease": "EAGAIN", "write": "ENOSPC", "fallocate": "ENOSPC", "keep": "ENOSPC"}.items()
    )
    assert seen["mib"] <= 128
    for number in range(4):
        engine.create(f"beside{number}", SLICE, SEES)
    for number in range(4):
        engine.ended(f"beside{number}")
        assert engine.said(f"beside{number}")["totals"] == [1000]
    after = int(machine.run("stat", "--file-system", "--format=%f", "/run"))
    assert (before - after) * 4096 < 64 << 20  # the pods themselves
    assert "its tenant wrote too much" in engine.agent_log("node1")
    engine.delete("filling", TEAM)

    def free() -> bool:
        return int(machine.run("stat", "--file-system", "--format=%f", regions)) * 4096 > 100 << 20

    wait_for("the agent to truncate the region", free)


def pod_of_job(engine: Engine, job: str) -> str | None:
    found = engine.cluster.get(f"{PODS}?labelSelector=job-name%3D{job}")["items"]
    return found[0]["metadata"]["name"] if found else None


def check_sees_none(engine: Engine, name: str, namespace: str = TEAM) -> None:
    pod = engine.ended(name, namespace)
    seen = engine.said(name, namespace=namespace)
    assert (seen["gpus"], seen["driver"]) == ([], False), name
    assert not any(map(is_assignment, pod["metadata"].get("annotations", {}))), name


@pytest.mark.defect("gpushare: a pod that went past the scheduler has a GPU")
def test_a_pod_that_went_past_the_webhook_sees_nothing(engine: Engine, mallory: str) -> None:
    count = {"nvidia.com/gpu": 1}
    void = {"env": [{"name": name, "value": none} for name, none in RUNTIME_VARIABLES.items()]}
    alone: dict[str, Any] = {"restartPolicy": "Never"}

    def labelled(name: str, **how: Any) -> Json:
        made = annotated(name, {}, spec={**alone, "containers": [container("main", SEES, count, **how)]})
        made["metadata"]["labels"] = SKIPS
        return made

    for how in (SEEING["map"], SEEING["value"], taken(VARIABLE)):
        ours = labelled("prepared", **how)
        ours["spec"]["schedulerName"] = SCHEDULER
        assert "cotenant:" in refusal(engine, mallory, "POST", PODS, ours)
    assert not refusal(engine, mallory, "POST", PODS, labelled("labelled", **void, **FROM_MAP))
    direct = labelled("direct", **void)
    direct["spec"]["nodeName"] = "node1"
    assert not refusal(engine, mallory, "POST", PODS, direct)
    plain = annotated("plain", {}, spec={**alone, "containers": [container("main", SEES, **SEEING["value"])]})
    plain["spec"]["nodeName"] = "node1"
    assert not refusal(engine, mallory, "POST", PODS, plain)
    engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": "skipped", "labels": SKIPS}})
    account = "/api/v1/namespaces/skipped/serviceaccounts/default"
    wait_for("the account that pods need", lambda: engine.cluster.get(account))
    create_pod(engine.cluster, "skipped", container("main", SEES, count), namespace="skipped")
    with static_pod(engine, container("main", SEES, count)) as static:
        for name in ("labelled", "direct", "plain"):
            check_sees_none(engine, name)
        check_sees_none(engine, "skipped", "skipped")
        check_sees_none(engine, static, "default")
    engine.tidy()
    engine.cluster.delete("/api/v1/namespaces/skipped")
    engine.fits({"nvidia.com/gpu": 3})


@contextmanager
def static_pod(engine: Engine, main: Json) -> Iterator[str]:
    """A pod that a node runs from a file; the name under which the API server knows it."""
    pod = annotated("static", {}, spec={"restartPolicy": "Never", "containers": [main]})
    file = engine.machine("node1").folder / STATIC_PODS / "static.json"
    whole = file.with_suffix(".part")
    whole.write_text(json.dumps(pod))
    whole.rename(file)
    try:
        yield "static-node1"
    finally:
        file.unlink()


def test_a_debug_container_sees_nothing(engine: Engine, mallory: str) -> None:
    engine.create("debugged", SLICE, STAYS, namespace=TEAM)
    engine.started("debugged", TEAM)
    path = f"{PODS}/debugged/ephemeralcontainers"

    def debug(name: str, how: dict[str, Any]) -> str:
        known = engine.cluster.get(path_of("debugged", TEAM))["spec"].get("ephemeralContainers", [])
        # No resources: a debug container may not ask for any.
        new = {"name": name, "image": PYTHON, "imagePullPolicy": "Never", "command": ["python3", "-c", SEES], **how}
        return refusal(engine, mallory, "PATCH", path, {"spec": {"ephemeralContainers": [*known, new]}})

    for name, how in SEEING.items():
        assert not debug(name, how), name
    for name in SEEING:
        seen = engine.said("debugged", name, TEAM)
        assert (seen["gpus"], seen["driver"]) == ([], False), name
    assert not refusal(engine, mallory, "PATCH", f"{PODS}/debugged", {"metadata": {"labels": SKIPS}})
    for name, how in SEEING.items():
        assert "'cotenant-visibility' denied request" in debug(f"{name}-past", how), name


# What is refused at once


MOUNTS = (
    "/etc/cotenant",
    "/run/cotenant/x",
    "/var/run/cotenant-slice",
    "/usr/local/lib/cotenant",
    "/etc/ld.so.preload",
)


def test_what_would_undo_the_limits_is_refused_with_a_sentence(engine: Engine, mallory: str) -> None:
    def said(spec: Json | None = None, **of_container: Any) -> str:
        main = container("main", "", SLICE, **of_container)
        made = annotated("refused", {}, spec={"containers": [main], **(spec or {})})
        return refusal(engine, mallory, "POST", PODS, made)

    for path in MOUNTS:
        mount = [{"name": "mine", "mountPath": path}]
        assert f"a mount at {path}" in said({"volumes": [{"name": "mine", "emptyDir": {}}]}, volumeMounts=mount)
    for path in ("/var/lib/cotenant", "/run/cotenant-node/slices", "/"):
        volumes = [{"name": "host", "hostPath": {"path": path}}]
        assert "overlaps a folder of cotenant" in said({"volumes": volumes})
    lists = ("/var/run/nvidia-container-devices/all", "/var/run/nvidia-container-devicesall")
    nothing = [{"name": "nothing", "hostPath": {"path": "/dev/null"}}]
    for path in lists:
        mount = [{"name": "nothing", "mountPath": path}]
        assert f"a mount at {path}" in said({"volumes": nothing}, volumeMounts=mount)
        assert "could name GPUs" in past_the_webhook(engine, mallory, {"volumes": nothing}, volumeMounts=mount)
    assert "privileged" in said(securityContext={"privileged": True})
    for capability in ("SYS_ADMIN", "BPF", "DAC_READ_SEARCH", "ALL"):
        added = {"capabilities": {"add": [capability]}}
        assert f"with capability {capability}" in said(securityContext=added)
    claims = [{"name": "gpu", "resourceClaimName": "mine"}]
    assert "either under resources or by claims" in said({"resourceClaims": claims})
    assert "bypasses the scheduler" in said({"nodeName": "node1"})
    assert "cannot assign these GPUs" in said({"schedulerName": "other"})


def past_the_webhook(engine: Engine, token: str, spec: Json, **of_container: Any) -> str:
    """Why a pod was refused that skips the webhook by its own label and does all that such a pod must do."""
    void = [{"name": name, "value": none} for name, none in RUNTIME_VARIABLES.items()]
    made = annotated("past", {}, spec={"containers": [container("main", "", env=void, **of_container)], **spec})
    made["metadata"]["labels"] = SKIPS
    return refusal(engine, token, "POST", f"{PODS}?dryRun=All", made)


def test_a_pod_that_skips_the_webhook_may_mount_what_names_no_gpus(engine: Engine, mallory: str) -> None:
    volumes = [{"name": "mine", "emptyDir": {}}]
    mount = [{"name": "mine", "mountPath": "/var/run/mine"}]
    assert not past_the_webhook(engine, mallory, {"volumes": volumes}, volumeMounts=mount)


# An agent that was taken over


def test_an_agent_writes_about_the_cards_of_its_own_node_and_nothing_else(engine: Engine) -> None:
    agent = next(pod for pod in engine.our_pods(AGENT) if pod["spec"]["nodeName"] == "node1")
    token = token_of(engine, AGENT, agent)
    engine.cluster.post("/api/v1/nodes", {"metadata": {"name": "elsewhere"}})

    def said(change: Json, node: str = "node1", part: str = "") -> str:
        return refusal(engine, token, "PATCH", f"/api/v1/nodes/{node}{part}?dryRun=All", change)

    def annotation(key: str) -> Json:
        return {"metadata": {"annotations": {key: "x"}}}

    def amounts(name: str) -> Json:
        return {"status": {part: {name: "1000"} for part in ("capacity", "allocatable")}}

    try:
        for part in ("", "/status"):
            assert not said(annotation(INVENTORY), part=part)
            assert "may write to its own node only" in said(annotation(INVENTORY), "elsewhere", part)
            for key in (*CORDONED, "mine"):
                assert "may write only the annotations about its node's GPUs" in said(annotation(key), part=part)
            assert "may write only the annotations about its node's GPUs" in said(
                {"metadata": {"labels": {"mine": "1"}}}, part=part
            )
        taint = {"key": "mine", "effect": "NoSchedule"}
        for spec in ({"unschedulable": True}, {"taints": [taint]}):
            assert "may write only the annotations about its node's GPUs" in said({"spec": spec})
        assert not said(amounts("nvidia.com/gpumem"), part="/status")
        assert "may write only the annotations about its node's GPUs" in said(amounts("cpu"), part="/status")
        for name, value in OTHERS.items():
            refused = said({"status": {name: value}}, part="/status")
            assert "may write only the annotations about its node's GPUs" in refused, name
    finally:
        engine.cluster.delete("/api/v1/nodes/elsewhere")


OTHERS: dict[str, Any] = {
    "addresses": [],
    "conditions": [],
    "daemonEndpoints": None,
    "nodeInfo": {"kernelVersion": "mine"},
    "images": [{"names": ["mine"], "sizeBytes": 1}],
    "volumesAttached": [{"name": "mine", "devicePath": "/dev/mine"}],
    "volumesInUse": ["mine"],
    "phase": "Terminated",
    "runtimeHandlers": [{"name": "mine"}],
    "features": {"supplementalGroupsPolicy": False},
}
"""of a node's status, what is kubelet's or a controller's"""


def test_no_part_of_a_nodes_status_is_forgotten(engine: Engine) -> None:
    """In the API server's own words, so that a newer version does not bring one that an agent may write."""
    schemas = engine.cluster.get("/openapi/v3/api/v1")["components"]["schemas"]
    parts = set(schemas["io.k8s.api.core.v1.NodeStatus"]["properties"]) - {"capacity", "allocatable"}
    # The server keeps nothing of the first, and version 1.34 does not have the second.
    assert parts - {"config", "declaredFeatures"} <= OTHERS.keys()


def test_an_agent_reads_pods_and_nodes_and_nothing_else(engine: Engine) -> None:
    """As the page on admission says of a stolen token: Kubernetes cannot restrict what is read to one node."""
    token = token_of(engine, AGENT, engine.our_pods(AGENT)[0])
    for path in ("/api/v1/pods", "/api/v1/nodes/node1"):
        assert not refusal(engine, token, "GET", path)
    system = f"/api/v1/namespaces/{NAMESPACE}"
    agent = engine.our_pods(AGENT)[0]["metadata"]["name"]
    for path in (f"{system}/secrets", "/api/v1/configmaps", f"{system}/pods/{agent}", f"{system}/pods/{agent}/log"):
        assert "forbidden" in refusal(engine, token, "GET", path), path
    for method, path in (("DELETE", f"{system}/pods/{agent}"), ("POST", f"{PODS}/any/eviction")):
        assert "forbidden" in refusal(engine, token, method, f"{path}?dryRun=All", {}), path


# A webhook that was taken over


def test_the_webhook_has_no_token_and_its_account_no_rights(engine: Engine) -> None:
    (pod,) = engine.our_pods(WEBHOOK)
    (found,) = pod["spec"]["containers"]
    assert {one["name"] for one in found["volumeMounts"]} == {"configuration", "certificate"}
    machine = engine.machine(pod["spec"]["nodeName"])
    for program, has_token in (("kube webhook", False), ("kube scheduler", True)):
        (pid, *_) = machine.processes(program)
        mounts = machine.inside(f"/proc/{pid}/mounts").read_text()
        assert ("/secrets/kubernetes.io/serviceaccount" in mounts) == has_token, program
    token = token_of(engine, WEBHOOK)
    for path in ("/api/v1/pods", "/api/v1/nodes", f"/api/v1/namespaces/{NAMESPACE}/secrets", PODS):
        assert "forbidden" in refusal(engine, token, "GET", path), path
    engine.create("victim", SLICE, SLEEP, namespace=TEAM)
    for method, path in (("PATCH", "victim"), ("DELETE", "victim"), ("POST", "victim/eviction")):
        assert "forbidden" in refusal(engine, token, method, f"{PODS}/{path}", {}), path


# From the network

REACHES = """
import http.client, json, socket, ssl, sys
scheduler, webhook, extender, port = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
said = {}
try:
    socket.create_connection((scheduler, extender), 10).close()
    said["extender"] = "open"
except OSError as error:
    said["extender"] = type(error).__name__
def ask(method, path, body=b"", host=scheduler, **headers):
    connection = http.client.HTTPSConnection(host, port, timeout=60, context=ssl._create_unverified_context())
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    return [answer.status, text]
said["why"] = ask("GET", "/why/default/secret")
said["guessed"] = ask("GET", "/why/default/secret", **{"x-cotenant-key": "0" * 64})
for path in ("filter", "prioritize", "bind", "preempt", "mutate"):
    said[path] = ask("POST", "/" + path, b"{}")
said["large"] = ask("POST", "/mutate", b" " * 50_000_000, webhook)
said["nonsense"] = ask("POST", "/mutate", b"[" * 100_000, webhook)
review = {"uid": "1", "operation": "CREATE", "resource": {"version": "v1", "resource": "pods"}, "namespace": "default"}
review["object"] = {"metadata": {"name": "forged"}, "spec": {"containers": [{"name": "a"}]}}
whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review}
said["review"] = ask("POST", "/mutate", json.dumps(whole).encode(), webhook)
print(json.dumps(said))
"""


def test_a_pod_that_reaches_scheduler_and_webhook_learns_and_changes_nothing(engine: Engine, mallory: str) -> None:
    engine.create("secret", SLICE, SLEEP)
    (scheduler,), (webhook,) = engine.our_pods(SCHEDULER), engine.our_pods(WEBHOOK)
    hosts, ports = [one["status"]["podIP"] for one in (scheduler, webhook)], [str(EXTENDER_PORT), str(HTTPS_PORT)]
    code = container("main", "")
    code["command"] = ["python3", "-c", REACHES, *hosts, *ports]
    create_pod(engine.cluster, "curious", code, namespace=TEAM)
    engine.ended("curious", TEAM)
    said = engine.said("curious", namespace=TEAM)
    assert said["extender"] == "ConnectionRefusedError"
    assert [said[path][0] for path in ("filter", "prioritize", "bind", "preempt", "mutate")] == [404] * 5
    for asked in ("why", "guessed"):
        assert (said[asked][0], json.loads(said[asked][1])["reason"]) == (403, "Forbidden")
    assert (said["large"][0], said["nonsense"][0], said["review"][0]) == (413, 400, 200)
    assert "50000000 bytes" in said["large"][1]
    engine.started("secret")
    for before, name in ((scheduler, SCHEDULER), (webhook, WEBHOOK)):
        assert engine.our_pods(name)[0]["status"]["containerStatuses"] == before["status"]["containerStatuses"]


def test_the_service_takes_no_large_body_and_the_namespace_of_cotenant_is_closed(engine: Engine, mallory: str) -> None:
    system = f"/api/v1/namespaces/{NAMESPACE}"
    service, webhook = (f"{system}/services/https:{name}:443/proxy" for name in (SCHEDULER, WEBHOOK))
    with pytest.raises(RefusedError, match="413") as error:
        engine.cluster.post(f"{webhook}/mutate", {"large": "x" * 50_000_000})
    assert "expected at most" in str(error.value)
    for path in (f"{service}/why/default/any", f"{system}/secrets/{WHY}", f"{system}/pods"):
        assert "forbidden" in refusal(engine, mallory, "GET", path)
    with pytest.raises(RefusedError, match="403"):
        engine.cluster.get(f"{service}/why/default/any")  # the administrator too shows the key, or learns nothing
