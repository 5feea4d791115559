# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of a cluster on a real socket, beside an API server that knows users and their rights."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.history.store import History
from cotenant.kube.api.access import Access
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import Listener, listen
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.settings import SCHEDULER_NAME, KubeSettings
from cotenant.node.devices.vendors import Vendor
from cotenant.web.kube.process import ClusterPages
from tests.kube.api_server import ApiServer, Asked, _write, _write_status
from tests.kube.control_plane import PACE, until
from tests.kube.http import Answer, ask, serving
from tests.kube.pods import pod_object

ADMIN, ALICE, NONE = "token-of-admin", "token-of-alice", "token-of-nobody"
OURS = "token-of-the-pages"
"""What the account of the pages sends."""
RESOURCES = ("nodes", "pods", "events", "resourcequotas", "workloadprofiles")
HTML = {"Accept": "text/html"}


class Cluster(ApiServer):
    """An API server that also reviews tokens and rights, and refuses what a user may not do."""

    def __init__(self) -> None:
        super().__init__()
        self.users = {ADMIN: "admin", ALICE: "alice", NONE: "carol", OURS: "pages"}
        self.rights: dict[str, Callable[[str, str, str], bool]] = {
            "admin": lambda verb, resource, namespace: True,
            "alice": lambda verb, resource, namespace: namespace == "a",
            "carol": lambda verb, resource, namespace: False,
            "pages": lambda verb, resource, namespace: verb in ("list", "watch"),
        }
        self.output = b""
        self.reviews: list[dict[str, Any]] = []
        self.away = False

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.away:
            writer.transport.abort()
            return False
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        kind = asked.path.rsplit("/", 1)[-1]
        if kind in ("tokenreviews", "subjectaccessreviews") and asked.method == "POST":
            self.asked.append(asked)
            return self._review(kind, json.loads(asked.body)["spec"], writer)
        user = self.users.get(token)
        if user is None:
            return _write_status(writer, 401, "Unauthorized", "who are you?")
        parts = asked.path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        verb = {"GET": "list", "DELETE": "delete", "PATCH": "patch"}.get(asked.method, "create")
        resource = "pods/log" if kind == "log" else next(one for one in (*parts, "pods") if one in RESOURCES)
        if not self.rights[user](verb, resource, namespace):
            return _write_status(writer, 403, "Forbidden", f"{user} cannot {verb} {resource}")
        if kind == "events":
            found = [one for key, one in self.events.pods.items() if key[0] == namespace]
            _write(writer, 200, {"metadata": {"resourceVersion": "1"}, "items": found})
            return True
        if kind == "log":
            self.asked.append(asked)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(self.output)}\r\n\r\n"
            writer.write(head.encode() + self.output)
            return True
        return await super()._answer(asked, reader, writer)

    def _review(self, kind: str, spec: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.reviews.append(spec)
        if kind == "tokenreviews":
            user = self.users.get(spec["token"])
            known = {"authenticated": True, "user": {"username": user, "groups": ["system:authenticated"]}}
            _write(writer, 201, {"status": known if user else {"authenticated": False}})
        else:
            what = spec["resourceAttributes"]
            may = self.rights[spec["user"]](what["verb"], what["resource"], what.get("namespace", ""))
            _write(writer, 201, {"status": {"allowed": may}})
        return True

    def add_node(self, name: str, gpus: int = 2, memory: int = 16_000) -> None:
        cards = tuple(Gpu(uuid=f"GPU-{name}-{index}", type="T4", memory=MiB(memory)) for index in range(gpus))
        annotations = {INVENTORY: inventory_for(Machine(name=name, gpus=cards), Vendor.NVIDIA)}
        self.nodes.merge(name, {"metadata": {"annotations": annotations}})

    def add_pod(
        self,
        namespace: str,
        name: str,
        node: str = "",
        gpu: int = 0,
        memory: int = 4000,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        gated: bool = False,
    ) -> None:
        """A pod that waits, in our queue if it is gated, or runs on this GPU of a node."""
        amounts = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
        uid = f"uid-{namespace}-{name}"
        told = dict(annotations or {})
        if node:
            share = Share(gpu=f"GPU-{node}-{gpu}", memory=memory, compute=0)
            told[RECORD] = encode_record(Record(pod=uid, node=node, containers=(Held(number=0, gpus=(share,)),)))
        more: dict[str, Any] = {"schedulingGates": [{"name": GATE}]} if gated else {}
        new = pod_object([amounts], [], told, node or None, {"schedulerName": SCHEDULER_NAME, **more})
        created = "2026-01-01T10:00:00Z"
        new["metadata"] |= {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": created}
        new["metadata"]["labels"] = labels or {}
        new["status"] = {"phase": "Running" if node else "Pending"}
        self.merge(name, new, namespace)


@dataclass
class Pages:
    """The pages and what they stand on."""

    cluster: Cluster
    parts: ClusterPages
    port: int
    lines: list[str] = field(default_factory=list)

    async def get(self, path: str, token: str = "", **headers: str) -> Answer:
        sent = {**HTML, **headers} | ({"Authorization": f"Bearer {token}"} if token else {})
        return await ask(self.port, "GET", path, headers=sent)

    async def text(self, path: str, token: str) -> str:
        answer = await self.get(path, token)
        assert answer.status == 200, (answer.status, answer.body[:500])
        return answer.body.decode()

    async def post(self, path: str, form: str, token: str = "", **headers: str) -> Answer:
        sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        sent |= {"Authorization": f"Bearer {token}"} if token else {}
        return await ask(self.port, "POST", path, form.encode(), headers=sent)


@asynccontextmanager
async def some_pages(
    cluster: Cluster,
    *,
    actions: bool = False,
    history: History | None = None,
    synced: bool = True,
    settings: KubeSettings | None = None,
    certificates: Certificates | None = None,
    decisions_key: Callable[[], bytes] | None = None,
) -> AsyncIterator[Pages]:
    lines: list[str] = []
    async with cluster.serving():
        access = Access(host="127.0.0.1", port=cluster.port, token=lambda: OURS)
        parts = ClusterPages(
            access,
            settings or KubeSettings(),
            ErrorLog(lines.append),
            actions=actions,
            history=history,
            decisions_key=decisions_key,
            pace=PACE,
        )
        listener = Listener(listen("127.0.0.1", 0), parts.application(asyncio.Event()), certificates)
        async with serving([listener]):
            task = asyncio.create_task(parts.run())
            try:
                if synced:
                    await until(lambda: parts.watch.unready_reason() is None)
                yield Pages(cluster, parts, listener.bound.getsockname()[1], lines)
                assert not task.done(), task
            finally:
                task.cancel()
                await asyncio.wait([task], timeout=10)
                await parts.close()


def play(test: Callable[[Pages], Awaitable[None]], cluster: Cluster | None = None, **about: Any) -> None:
    """Run a test against the pages of a cluster with two namespaces and a shared GPU."""

    async def run() -> None:
        async with some_pages(cluster or shared_cluster(), **about) as pages:
            await test(pages)

    asyncio.run(run())


def shared_cluster() -> Cluster:
    """GPU 0 of n1 has a pod of each namespace, n2 one of namespace b; one pod of each waits."""
    cluster = Cluster()
    cluster.add_node("n1")
    cluster.add_node("n2")
    cluster.add_pod("a", "train", "n1", 0)
    cluster.add_pod("b", "secret-job", "n1", 0, memory=5000)
    cluster.add_pod("b", "hidden-job", "n2", 1)
    cluster.add_pod("a", "large", memory=99_000)
    cluster.add_pod("b", "waiting-secret", memory=99_000)
    return cluster


def large_cluster(nodes: int = 64, gpus: int = 8, pods: int = 2_000, waiting: int = 300) -> Cluster:
    """A cluster in which tenants of 20 namespaces share all GPUs and report their speeds."""
    cluster = Cluster()
    chance = Random(1)
    for number in range(nodes):
        cluster.add_node(f"node-{number:02d}", gpus, 80_000)
    for number in range(pods):
        namespace, node = f"team-{number % 20:02d}", f"node-{number % nodes:02d}"
        if number >= pods - waiting:
            cluster.add_pod(namespace, f"wait-{number:04d}", memory=100_000)
            continue
        name, workload = f"train-{number:04d}", f"w{number % 9}"
        about = {"cotenant.io/workload": workload}
        cluster.add_pod(namespace, name, node, number // nodes % gpus, 8000 + 1000 * (number % 7), about)
        speed = {"batch": 32, "samplesPerSecond": 70.0, "speed": round(chance.uniform(0.4, 1.0), 2)}
        spec = {
            "node": node,
            "namespace": namespace,
            "workload": workload,
            "gpuType": "T4",
            "alone": {"samplesPerSecond": 100.0, "stepSeconds": 0.1, "times": 3},
            "pods": [{"name": name, "uid": f"uid-{namespace}-{name}", **speed}],
        }
        profile = f"{node}.{number // nodes}"
        cluster.profiles.merge(profile, {"metadata": {"name": profile, "uid": profile}, "spec": spec})
    return cluster
