# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is seen of a cluster follows from its nodes and pods, and tells requests, assignments and use apart."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cotenant.cli.inspect import _notes
from cotenant.core.isolation import Rung
from cotenant.core.model import Link
from cotenant.core.units import MiB
from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access
from cotenant.kube.api.listing import TRIES
from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, decode_record, encode_record
from cotenant.kube.codec.grants import GrantReport, grants_for
from cotenant.kube.codec.guaranteed import LIMIT_MEMORY
from cotenant.kube.codec.inventory import GRANTS, INVENTORY, USED, used_for
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.inspect.listing import NoSuchNodeError, Query, read_cluster
from cotenant.kube.inspect.report import ClusterUse, NodeUse, Part, cluster_use
from cotenant.kube.settings import KubeSettings, NamespacePart, SchedulerPart
from cotenant.node.devices.vendors import Vendor
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.test_claims import spec_of
from tests.kube.worlds import (
    CORES,
    GPU,
    MEMORY,
    PERCENT,
    annotated,
    in_phase,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)

SETTINGS = KubeSettings()


def placed(pod: Pod, on: Node, *before: Pod) -> Pod:
    state = state_of(on, pods=before)
    return place(state, placer_of(state), pod, on.metadata.name)


def only_node(nodes: Sequence[Node], pods: Sequence[Pod] = ()) -> NodeUse:
    (seen,) = cluster_use(nodes, pods, SETTINGS).nodes
    return seen


@pytest.mark.defect("gpushare inspect: nodes come in another order each time")
def test_nodes_are_sorted_and_those_without_cards_left_out() -> None:
    seen = cluster_use([node(machine("b")), node("plain"), node(machine("a"))], [], SETTINGS)
    assert [one.name for one in seen.nodes] == ["a", "b"]
    assert seen.unread == ()


def test_what_was_given_differs_from_what_is_asked_for_after_a_resize() -> None:
    here = node(machine("a"))
    pod = placed(waiting("p", {GPU: 1, MEMORY: 4000, CORES: 30}), here)
    record = decode_record(pod.metadata.annotations[RECORD])
    (held,) = record.containers
    larger = msgspec.structs.replace(held, gpus=(msgspec.structs.replace(held.gpus[0], memory=6000),))
    resized = annotated(pod, {RECORD: encode_record(msgspec.structs.replace(record, containers=(larger,)))})
    seen = only_node([here], [resized])
    (use,) = seen.pods
    assert (use.requested_mib, use.assigned) == (4000, (Part(gpu=0, memory_mib=6000, compute_percent=30.0),))
    assert (seen.requested_mib, seen.assigned_mib, seen.used_mib, seen.memory_mib) == (4000, 6000, None, 32000)
    assert [card.tenants for card in seen.gpus] == [1, 0]


def test_a_percentage_is_of_the_card_that_the_pod_is_on() -> None:
    here = node(machine("a", cards=1))
    (use,) = only_node([here], [placed(waiting("p", {GPU: 1, PERCENT: 25}), here)]).pods
    assert (use.requested_mib, use.requested_percent) == (4000, 0)


def test_init_containers_count_at_their_peak() -> None:
    here = node(machine("a"))
    pod = waiting("p", {GPU: 1, MEMORY: 1000}, {GPU: 1, MEMORY: 2000}, init=[{GPU: 1, MEMORY: 5000}])
    (there,) = only_node([here], [placed(pod, here)]).pods
    assert there.requested_mib == sum(part.memory_mib for part in there.assigned)
    (use,) = cluster_use([here], [pod], SETTINGS).pending
    assert (use.requested_mib, use.gpus) == (5000, 1)


def test_pods_that_wait_are_told_with_what_they_ask_for() -> None:
    pods = [
        waiting("two", {GPU: 2, MEMORY: 3000}),
        waiting("part", {GPU: 2, PERCENT: 50}),
        waiting("whole", {GPU: 1}),
        waiting("nonsense", {GPU: 1, MEMORY: -1}),
        waiting("none", {"cpu": 1}),
        in_phase(waiting("over"), "Failed"),
    ]
    seen = cluster_use([node(machine("a"))], pods, SETTINGS)
    assert [(one.name, one.gpus, one.requested_mib, one.requested_percent) for one in seen.pending] == [
        ("nonsense", 0, None, 0),
        ("part", 2, 0, 100),
        ("two", 2, 6000, 0),
        ("whole", 1, 0, 100),
    ]


def test_only_pods_of_our_scheduler_wait_for_us() -> None:
    other = KubeSettings(scheduler=SchedulerPart(name="another"))
    assert cluster_use([], [waiting("p")], other).pending == ()


def test_a_pod_on_a_node_without_an_assignment_pends_there() -> None:
    pod = waiting("p")
    there = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="a"))
    seen = cluster_use([node(machine("a"))], [there], SETTINGS)
    assert [one.name for one in seen.nodes[0].pending] == ["p"]
    assert (seen.nodes[0].pods, seen.pending) == ((), ())
    assert only_node([node(machine("a"))], [in_phase(there, "Succeeded")]).pending == ()


def test_what_runs_on_after_its_pod_is_gone_still_counts() -> None:
    here = node(machine("a"))
    record = decode_record(placed(waiting("p"), here).metadata.annotations[RECORD])
    seen = only_node([node(machine("a"), orphans=("7", [record]))])
    assert [(one.name, one.uid, one.requested_mib) for one in seen.pods] == [("", "uid-p", None)]
    assert seen.assigned_mib == 4000


def test_pods_without_enforcement_and_those_beyond_their_assignment_are_told() -> None:
    pods = [placed(waiting(name, namespace=team), node(machine("a"))) for name, team in (("p", "free"), ("q", "team"))]
    free = KubeSettings(namespaces={"free": NamespacePart(isolation=Isolation.NONE)})
    gpu = decode_record(pods[0].metadata.annotations[RECORD]).containers[0].gpus[0].gpu
    here = node(machine("a"), annotations={USED: used_for({}, {"uid-p": {gpu: 5000}})})
    (seen,) = cluster_use([here], pods, free).nodes
    assert [(pod.name, pod.enforced, [part.used_mib for part in pod.assigned]) for pod in seen.pods] == [
        ("p", False, [5000]),
        ("q", True, [None]),
    ]
    notes = [text for _, text in _notes(seen, "MiB")]
    assert notes == [
        "no limit of pod free/p is enforced (isolation: none)",
        f"pod free/p uses 5000 of 4000 MiB of GPU{seen.pods[0].assigned[0].gpu}",
    ]


def test_use_is_told_where_all_cards_are_known_and_well() -> None:
    uuids = ["GPU-a-0", "GPU-a-1"]

    def used(mib: dict[str, int], **each: Any) -> tuple[list[int | None], int | None]:
        seen = only_node([node(machine("a", **each), annotations={USED: used_for(mib)})])
        return [card.used_mib for card in seen.gpus], seen.used_mib

    assert used(dict.fromkeys(uuids, 700)) == ([700, 700], 1400)
    assert used({uuids[1]: 700}) == ([None, 700], None)
    assert used(dict.fromkeys(uuids, 700), healthy=False) == ([None, None], None)
    assert only_node([node(machine("a"), annotations={USED: "{}"})]).used_mib is None


@pytest.mark.defect("topology inspect: busy GPUs are printed as if they had no links")
def test_links_of_busy_cards_are_shown_too() -> None:
    two = machine("a")
    linked = node(replace(two, links=((0, Link.PIX), (Link.PIX, 0))))
    pod = placed(waiting("p", {GPU: 2}), linked)
    seen = only_node([linked], [pod])
    assert [card.tenants for card in seen.gpus] == [1, 1]
    assert seen.links == ((0, 50), (50, 0))


def test_cordons_and_unclear_pods_are_told() -> None:
    here = node(machine("a"), annotations={"cotenant.io/cordon": "GPU-a-1"})
    broken = annotated(placed(waiting("p"), here), {RECORD: "{}"})
    seen = only_node([here], [broken])
    assert [card.state for card in seen.gpus] == ["ok", "cordoned"]
    assert len(seen.closed) == 1
    assert "pod team/p" in seen.closed[0]


def test_a_node_whose_inventory_cannot_be_read_is_told_of() -> None:
    seen = cluster_use([node("a", annotations={INVENTORY: "{"})], [], SETTINGS)
    assert seen.nodes == ()
    assert seen.unread[0].startswith("node a: not annotation cotenant.io/inventory")


# From an API server


def read(server: ApiServer, **query: Any) -> ClusterUse:
    async def ask() -> ClusterUse:
        async with server.serving():
            return await read_cluster(Access(host="127.0.0.1", port=server.port, namespace="mine"), Query(**query))

    return asyncio.run(ask())


def a_server(*pods: Pod) -> ApiServer:
    server = ApiServer()
    for one in (node(machine("b")), node(machine("a"))):
        server.nodes.merge(one.metadata.name, msgspec.to_builtins(one))
    for pod in pods:
        server.merge(pod.metadata.name, msgspec.to_builtins(pod), pod.metadata.namespace)
    return server


def pod_lists(server: ApiServer) -> list[tuple[str, str]]:
    asked = [one for one in server.asked if one.path.endswith("/pods")]
    return [(one.path, one.query["fieldSelector"]) for one in asked]


def test_all_pods_are_read_where_that_is_allowed() -> None:
    server = a_server(waiting("p"))
    seen = read(server)
    assert ([one.name for one in seen.nodes], [one.name for one in seen.pending]) == (["a", "b"], ["p"])
    assert (seen.namespace, seen.policy) == (None, None)
    assert pod_lists(server) == [("/api/v1/pods", "status.phase!=Succeeded,status.phase!=Failed")]


def test_who_may_not_read_all_pods_sees_those_of_one_namespace() -> None:
    server = a_server()
    server.refusals.append(Refusal(403, "Forbidden", only="list"))
    assert read(server).namespace == "mine"
    assert [path for path, _ in pod_lists(server)] == ["/api/v1/pods", "/api/v1/namespaces/mine/pods"]


def test_a_namespace_that_was_asked_for_is_not_replaced_by_another() -> None:
    server = a_server()
    server.refusals.append(Refusal(403, "Forbidden", only="list"))
    with pytest.raises(CotenantError, match="you need the right to `list` nodes"):
        read(server, namespace="other")
    assert [path for path, _ in pod_lists(server)] == ["/api/v1/namespaces/other/pods"]


def test_of_one_node_only_its_own_pods_are_asked_for() -> None:
    server = a_server()
    assert [one.name for one in read(server, node="b").nodes] == ["b"]
    ((_, fields),) = pod_lists(server)
    assert fields.endswith(",spec.nodeName=b")


@pytest.mark.defect("gpushare and topology inspect: an unknown node ends the program")
def test_an_unknown_node_and_one_without_cards_are_refused() -> None:
    server = a_server()
    server.nodes.merge("plain", {})
    with pytest.raises(NoSuchNodeError, match="the cluster has no node c; `kubectl get nodes` lists its nodes"):
        read(server, node="c")
    with pytest.raises(NoSuchNodeError, match="node plain: no agent has reported GPUs of this node"):
        read(server, node="plain")


def test_the_settings_of_the_installation_are_used_where_they_can_be_read() -> None:
    server = a_server(waiting("p", {"example.com/card": 1}))
    text = "dialects: {vgpu: {count: example.com/card}}\nscheduler: {policy: spread}\n"
    server.merge("cotenant-configuration", {"data": {"settings.yaml": text}}, "cotenant-system")
    seen = read(server)
    assert (seen.policy, [one.name for one in seen.pending]) == ("spread", ["p"])
    assert read(server, settings=SETTINGS).pending == ()


def by_claim(name: str, claim: str, *, gated: bool = True, **spec: Any) -> Any:
    """A pod whose container uses a claim."""
    main = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": claim}]
    gates = [{"name": GATE}] if gated else []
    about = {"name": name, "uid": f"uid-{name}", "namespace": "mine", "annotations": {"cotenant.io/workload": "w"}}
    return {
        "metadata": about,
        "spec": {"containers": [main], "resourceClaims": claims, "schedulingGates": gates, **spec},
    }


def test_pods_with_claims_are_shown_with_what_they_request_and_what_they_have() -> None:
    server = a_server()
    text = "claims: {enabled: true}\n"
    server.merge("cotenant-configuration", {"data": {"settings.yaml": text}}, "cotenant-system")
    requests = {"small": spec_of("4Gi"), "two": spec_of("2Gi", count=2), "auto": spec_of("auto")}
    for name, spec in (*requests.items(), ("others", spec_of("1Gi", deviceClassName="example.com"))):
        about = {"uid": f"claim-{name}", "namespace": "mine"}
        server.claims.merge(name, {"metadata": about, "spec": spec}, "mine")
        server.merge(name, by_claim(name, name), "mine")
    server.merge("elsewhere", by_claim("elsewhere", "gone", gated=False, nodeName="b"), "mine")
    card = machine("a").gpus[0].uuid
    held = Held(number=0, gpus=(Share(gpu=card, memory=3000, compute=0),), claim="c")
    record = Record(pod="uid-runs", node="a", containers=(held,))
    runs = by_claim("runs", "gone", gated=False, nodeName="a")
    runs["metadata"]["annotations"] |= {RECORD: encode_record(record)}
    server.merge("runs", runs, "mine")
    seen = read(server)
    pending = {one.name: (one.gpus, one.requested_mib) for one in seen.pending}
    assert pending == {"small": (1, 4096), "two": (2, 4096), "auto": (1, None)}
    (first, second) = seen.nodes
    assert [(one.name, one.gpus, one.isolation, one.assigned[0].memory_mib) for one in first.pods] == [
        ("runs", 1, Rung.PRELOAD, 3000)
    ]
    assert (second.pods, second.pending, seen.unread) == ((), (), ())
    server.claims.refusals.append(Refusal(403, "Forbidden", only="list"))
    without = read(server)
    assert without.pending == ()
    assert "pods that wait with ResourceClaims are not shown" in without.unread[0]
    assert [one.name for one in without.nodes[0].pods] == ["runs"]


def test_a_list_that_the_server_forgets_halfway_is_read_anew_in_larger_pages() -> None:
    server = a_server(*(waiting(f"p-{number}") for number in range(501)))
    server.page_hook = server.forget
    assert len(read(server).pending) == 501
    assert server.parts() == ["500", *["500", "500"], "2000"]  # nodes, pods in vain, pods


def test_a_server_that_forgets_again_and_again_is_given_up() -> None:
    server = a_server()
    server.nodes.refusals += [Refusal(410, "Expired", only="list")] * TRIES
    with pytest.raises(CotenantError, match="410 Expired"):
        read(server)


def test_pods_that_are_not_as_they_should_be_are_counted() -> None:
    server = a_server(waiting("p"))
    server.merge("odd", {"spec": {"nodeName": 7}}, "team")
    seen = read(server)
    assert [one.name for one in seen.pending] == ["p"]
    assert seen.unread == ("1 pod could not be decoded",)


def test_memory_is_handed_out_as_scaled() -> None:
    (card,) = only_node([node(machine("a", cards=1, memory=MiB(1000), memory_scaling=150))]).gpus
    assert card.memory_mib == 1500


def test_a_node_says_whose_gpus_it_has_and_which_limits_nothing_enforces() -> None:
    seen = cluster_use(
        [node(machine("a", type="MLU370"), vendor=Vendor.CAMBRICON), node(machine("b"))], [], SETTINGS
    ).nodes
    assert [(one.vendor, one.unenforced is None) for one in seen] == [("cambricon", False), ("nvidia", True)]


def test_a_pod_that_may_use_more_than_it_requests_shows_its_limit_and_its_grant() -> None:
    pod = placed(waiting("p", {GPU: 1, MEMORY: 4000}, annotations={LIMIT_MEMORY: "9000"}), node(machine("a")))
    (share,) = decode_record(pod.metadata.annotations[RECORD]).held_by(0)
    report = [GrantReport(container=0, gpu=share.gpu, memory=6000, used=5000, compute=0)]
    here = node(machine("a"))
    about = msgspec.structs.replace(
        here.metadata, annotations={**here.metadata.annotations, GRANTS: grants_for({pod.metadata.uid: report}, ())}
    )
    (use,) = only_node([msgspec.structs.replace(here, metadata=about)], [pod]).pods
    (part,) = use.assigned
    assert (part.memory_mib, part.limit_mib, part.granted_mib) == (4000, 9000, 6000)
