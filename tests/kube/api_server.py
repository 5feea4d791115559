# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An API server on the loopback that keeps pods and fails on demand: what a real one does rarely, this one does now.

It speaks as much of the protocol as the client asks for, byte by byte, so that it can also speak it wrongly.
"""

import asyncio
import contextlib
import json
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Pod = dict[str, Any]
Key = tuple[str, str]
PODS = "/api/v1/pods"


@dataclass
class Asked:
    """A request that the server received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Refusal:
    """An error to return instead of the result."""

    status: int
    reason: str = "InternalError"
    headers: dict[str, str] = field(default_factory=dict)
    only: str = ""
    """`list`, `watch` or an HTTP method; empty: any request."""


class ApiServer:
    """The pods, their history, who watches, and what is to go wrong next.

    Nodes, quotas, events, leases, profiles, groups, claims, slices and webhooks are each kept by another one of its
    kind, with versions of its own, which `merge` and `remove` change.
    """

    def __init__(self, *, with_nodes: bool = True) -> None:
        self.nodes = ApiServer(with_nodes=False) if with_nodes else self
        self.quotas = ApiServer(with_nodes=False) if with_nodes else self
        self.events = ApiServer(with_nodes=False) if with_nodes else self
        self.leases = ApiServer(with_nodes=False) if with_nodes else self
        self.profiles = ApiServer(with_nodes=False) if with_nodes else self
        self.groups = ApiServer(with_nodes=False) if with_nodes else self
        self.claims = ApiServer(with_nodes=False) if with_nodes else self
        self.slices = ApiServer(with_nodes=False) if with_nodes else self
        self.classes = ApiServer(with_nodes=False) if with_nodes else self
        self.hooks = ApiServer(with_nodes=False) if with_nodes else self
        self.templates = ApiServer(with_nodes=False) if with_nodes else self
        self.keeps: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda spec: spec
        """What is kept of the spec of an object that is applied; None: it is invalid."""
        self.pods: dict[Key, Pod] = {}
        self.budgets: dict[str, int] = {}
        """How often each pod may be evicted, by name; other pods may always be evicted."""
        self.evicted: list[str] = []
        self.eviction_hook: Callable[[str], object] = lambda name: None
        """Called after each eviction."""
        self.asked: list[Asked] = []
        self.group_versions = ["v1", "v1alpha2"]
        """Versions of scheduling.k8s.io; PodGroups are in those that begin with v1alpha or v1beta."""
        self.refusals: list[Refusal] = []
        self.first_kept = 0
        """Versions up to this one are compacted: watches from before get an error."""
        self.gone_in_stream = False
        """Whether that error is an event, or the status of the response."""
        self.name_of_version: Callable[[int], str | int] = str
        self.page_hook: Callable[[], None] = lambda: None
        """Called after each page of a list but the last."""
        self.watches_lag_s = 0.0
        """How much later than the answer to a write its event is sent."""
        self.hang_everything = False
        self.cut_answers = 0
        """This many requests are carried out but not answered."""
        self.answer_with: bytes | None = None
        self.connections = 0
        self.port = 0
        self._version = 10
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._watchers: list[Watcher] = []
        self._snapshots: dict[str, tuple[int, list[Pod]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    # What happens in the cluster

    def put(
        self,
        name: str,
        namespace: str = "default",
        annotations: dict[str, str] | None = None,
        *,
        unseen: bool = False,
        **parts: object,
    ) -> Pod:
        """Create or change a pod; `unseen`: no watch reports it, only a list."""
        old = self.pods.get((namespace, name))
        self._version += 1
        uid = old["metadata"]["uid"] if old else f"uid-{self._version}"
        version = self.name_of_version(self._version)
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version}
        metadata["annotations"] = annotations or {}
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": {}} | parts
        self.pods[namespace, name] = pod
        if not unseen:
            self._happened("MODIFIED" if old else "ADDED", pod)
        return pod

    def merge(self, name: str, patch: dict[str, Any], namespace: str = "") -> Pod:
        """Create or change an object, usually a node, by a merge patch."""
        old = self.pods.get((namespace, name), {"metadata": {"name": name, "uid": f"uid-{self._version}"}})
        new: Pod = deepcopy(_merged(old, patch))  # what happened before stays as it was told
        if new != self.pods.get((namespace, name)):  # what changes nothing makes no new version
            self._version += 1
            new["metadata"]["resourceVersion"] = self.name_of_version(self._version)
            kind = "MODIFIED" if (namespace, name) in self.pods else "ADDED"
            self.pods[namespace, name] = new
            self._happened(kind, new)
        return new

    def remove(self, name: str, namespace: str = "default", *, unseen: bool = False) -> None:
        """Delete a pod; `unseen`: no watch reports it, only a list."""
        pod = self.pods.pop((namespace, name))
        self._version += 1
        if unseen:
            return
        metadata = pod["metadata"] | {"resourceVersion": self.name_of_version(self._version)}
        self._happened("DELETED", pod | {"metadata": metadata})

    def bookmark(self) -> None:
        self._version += 1
        metadata = {"resourceVersion": self.name_of_version(self._version), "creationTimestamp": None}
        self._happened("BOOKMARK", {"kind": "Pod", "metadata": metadata, "spec": {"containers": None}})

    def _happened(self, kind: str, pod: Pod) -> None:
        event = {"type": kind, "object": pod}
        if kind != "BOOKMARK":
            self._history.append((self._version, event))
        line = json.dumps(event).encode() + b"\n"
        for watcher in self._watchers:
            if self.watches_lag_s:
                asyncio.get_running_loop().call_later(self.watches_lag_s, watcher.raw, line)
            else:
                watcher.raw(line)

    # What goes wrong

    def forget(self) -> None:
        """Compact, as etcd does every few minutes: no watch can start from an earlier version."""
        self._version += 1
        self.first_kept = self._version

    def end_watches(self) -> None:
        """End all watches cleanly, as after timeoutSeconds."""
        self._each_watcher(lambda watcher: watcher.finish())

    def reset_watches(self) -> None:
        self._each_watcher(lambda watcher: watcher.reset())

    def hang_watches(self) -> None:
        """Leave all watches open, but send nothing more."""
        for watcher in self._watchers:
            watcher.hung = True

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.close()

    def say(self, raw: bytes) -> None:
        """Send these bytes to all watchers."""
        for watcher in self._watchers:
            watcher.raw(raw)

    def say_event(self, kind: str, thing: object) -> None:
        self.say(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

    def say_gone(self) -> None:
        self.forget()
        self.say_event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        self.end_watches()

    def repeat_history(self, count: int) -> None:
        """Send the last events again."""
        for _, event in self._history[-count:]:
            self.say_event(event["type"], event["object"])

    def _each_watcher(self, end: Callable[["Watcher"], None]) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            end(watcher)

    @property
    def watching(self) -> int:
        return sum(not watcher.hung for watcher in self._watchers)

    def requests(self, kind: str) -> int:
        """Return the number of lists (of any number of pages) or watches that were requested."""
        return sum(_kind_of(one) == kind and "continue" not in one.query for one in self.asked)

    def parts(self) -> list[str]:
        """Return the requested size of each page of a list."""
        return [one.query["limit"] for one in self.asked if _kind_of(one) == "list"]

    # The protocol

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["ApiServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for one in (self.nodes, self.quotas, self.events, self.leases, self.profiles, self.groups, self.slices):
                one.reset_watches()
            self.reset_watches()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answer(await _request(reader), reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle a request, and return whether the connection can carry another one."""
        self.asked.append(asked)
        kind = _kind_of(asked)
        kept = {
            "nodes": self.nodes,
            "resourcequotas": self.quotas,
            "events": self.events,
            "leases": self.leases,
            "workloadprofiles": self.profiles,
            "podgroups": self.groups,
            "resourceclaims": self.claims,
            "resourceslices": self.slices,
            "deviceclasses": self.classes,
            "mutatingwebhookconfigurations": self.hooks,
            "resourceclaimtemplates": self.templates,
        }
        for plural, other in kept.items():
            if other is not self and plural in asked.path.split("/"):
                return await other._answer(asked, reader, writer)
        if self.hang_everything:
            await asyncio.Event().wait()
        if asked.path == "/apis/scheduling.k8s.io":
            versions = [{"groupVersion": f"scheduling.k8s.io/{one}", "version": one} for one in self.group_versions]
            _write_bytes(writer, 200, json.dumps({"kind": "APIGroup", "versions": versions}).encode())
            return True
        if self.answer_with is not None:
            _write_bytes(writer, 200, self.answer_with)
            return True
        for refusal in self.refusals:
            if refusal.only in ("", kind, asked.method):
                self.refusals.remove(refusal)
                return _write_status(writer, refusal.status, refusal.reason, "as told", refusal.headers)
        if kind == "watch":
            await self._watch(asked, reader, writer)
            return False
        if kind == "list":
            return self._list(asked, writer)
        if self.cut_answers:
            self.cut_answers -= 1
            writer.transport.abort()
        return self._one(asked, writer)

    def _list(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if more := asked.query.get("continue"):
            version, rest = self._snapshots.pop(more)
            if version < self.first_kept:
                return _write_status(writer, 410, "Expired", "the continue token is too old")
        else:
            found = (pod for pod in self.pods.values() if _is_selected(pod, asked))
            version, rest = self._version, sorted(found, key=lambda pod: str(pod["metadata"]))
        limit = int(asked.query.get("limit", "0")) or len(rest)
        metadata: dict[str, object] = {"resourceVersion": self.name_of_version(version)}
        if rest[limit:]:
            metadata["continue"] = f"{version}-{len(self._snapshots)}-{len(rest)}"
            self._snapshots[str(metadata["continue"])] = (version, rest[limit:])
        _write(writer, 200, {"kind": "PodList", "metadata": metadata, "items": rest[:limit] or None})
        if rest[limit:]:
            self.page_hook()
        return True

    async def _watch(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        since = next(
            (n for n in range(self._version + 1) if str(self.name_of_version(n)) == asked.query["resourceVersion"]), -1
        )
        if since < self.first_kept and not self.gone_in_stream:
            _write_status(writer, 410, "Expired", "too old resource version")
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        watcher = Watcher(writer)
        if since < self.first_kept:
            watcher.send({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})
            watcher.finish()
            return
        for version, event in self._history:
            if version > since:
                watcher.send(event)
        self._watchers.append(watcher)
        try:
            await asyncio.wait_for(reader.read(), float(asked.query["timeoutSeconds"]))  # until the client goes
        except TimeoutError:
            watcher.finish()
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def _one(self, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        path = asked.path.replace("/apis/coordination.k8s.io/", "/api/").replace("/apis/resource.k8s.io/", "/api/")
        parts = path.strip("/").split("/")  # api v1 namespaces NAMESPACE pods [NAME [PART]]
        if parts[2] == "resourceslices" and asked.method == "PATCH":
            return self._apply(asked, parts[3], writer)
        if parts[2] in ("nodes", "resourceslices"):
            return self._one_of_cluster(asked, parts[3], writer)
        if parts[3] in ("workloadprofiles", "mutatingwebhookconfigurations"):
            return self._one_of_cluster(asked, parts[4] if len(parts) > 4 else "", writer)
        namespace, name = parts[3], parts[5] if len(parts) > 5 else ""
        body = json.loads(asked.body) if asked.body else {}
        if asked.method == "POST" and not name and (namespace, body["metadata"]["name"]) in self.pods:
            return _write_status(writer, 409, "AlreadyExists", f'"{body["metadata"]["name"]}" already exists')
        if asked.method == "POST" and not name and parts[4] != "pods":
            _write(writer, 201, self.merge(body["metadata"]["name"], body, namespace))
        elif asked.method == "POST" and not name:
            _write(writer, 201, self.put(body["metadata"]["name"], namespace, spec=body.get("spec", {})))
        elif (namespace, name) not in self.pods:
            return _write_status(writer, 404, "NotFound", f'pods "{name}" not found')
        elif clash := _clash(self.pods[namespace, name], body):
            return _write_status(writer, 409, "Conflict", clash)
        elif asked.method == "POST" and parts[-1] == "eviction":
            return self._evict(namespace, name, body["deleteOptions"], writer)
        elif asked.method == "POST":
            annotations = body["metadata"]["annotations"]
            change = {"metadata": {"annotations": annotations}, "spec": {"nodeName": body["target"]["name"]}}
            self.merge(name, change, namespace)
            _write(writer, 201, {"kind": "Status", "status": "Success"})
        elif asked.method == "PATCH" and (wrong := _wrong_claim(self.pods[namespace, name], body, parts)):
            return _write_status(writer, 422, "Invalid", wrong)
        elif asked.method == "PATCH":
            _write(writer, 200, self.merge(name, body, namespace))
        elif asked.method == "DELETE":
            if body.get("preconditions", {}).get("uid", "") not in ("", self.pods[namespace, name]["metadata"]["uid"]):
                return _write_status(writer, 409, "Conflict", "the UID in the precondition does not match")
            self.remove(name, namespace)
            _write(writer, 200, {"kind": "Status", "status": "Success"})
        else:
            _write(writer, 200, self.pods[namespace, name])
        return True

    def _evict(self, namespace: str, name: str, options: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        if options["preconditions"]["uid"] != self.pods[namespace, name]["metadata"]["uid"]:
            return _write_status(writer, 409, "Conflict", "the UID in the precondition does not match")
        dry_run = "dryRun" in options
        if name in self.budgets and self.budgets[name] <= 0:
            return _write_status(writer, 429, "TooManyRequests", "it would violate the pod's disruption budget")
        if not dry_run:
            if name in self.budgets:
                self.budgets[name] -= 1
            self.evicted.append(name)
            self.merge(name, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, namespace)
            self.eviction_hook(name)
        _write(writer, 201, {"kind": "Status", "status": "Success"})
        return True

    def _apply(self, asked: Asked, name: str, writer: asyncio.StreamWriter) -> bool:
        """A server-side apply to an object whose spec has no other manager."""
        body = json.loads(asked.body)
        spec = self.keeps(deepcopy(body["spec"]))
        if spec is None:
            return _write_status(writer, 422, "Invalid", "not a valid spec")
        if "dryRun" in asked.query:
            there = self.pods.get(("", name), {"metadata": {"uid": "", "resourceVersion": ""}})
            body["metadata"] = there["metadata"] | body["metadata"]
            _write(writer, 200, body | {"spec": spec})
            return True
        self.pods.get(("", name), {}).pop("spec", None)
        _write(writer, 200, self.merge(name, body | {"spec": spec}))
        return True

    def _one_of_cluster(self, asked: Asked, name: str, writer: asyncio.StreamWriter) -> bool:
        if asked.method == "POST":
            body = json.loads(asked.body)
            name = body["metadata"]["name"]
            if ("", name) in self.pods:
                return _write_status(writer, 409, "AlreadyExists", f'"{name}" already exists')
            self.merge(name, body)
        if ("", name) not in self.pods:
            return _write_status(writer, 404, "NotFound", f'"{name}" not found')
        if asked.method == "PATCH":
            self.merge(name, json.loads(asked.body))
        if asked.method == "DELETE":
            self.remove(name, "")
            _write(writer, 200, {"kind": "Status", "status": "Success"})
            return True
        _write(writer, 200, self.pods["", name])
        return True


class Watcher:
    """A watcher."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.hung = False

    def send(self, event: dict[str, Any]) -> None:
        self.raw(json.dumps(event).encode() + b"\n")

    def raw(self, raw: bytes) -> None:
        if not self.hung and not self._writer.is_closing():
            self._writer.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def finish(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(b"0\r\n\r\n")
            self._writer.close()

    def reset(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


LISTED = (
    *("/pods", "/nodes", "/resourcequotas", "/workloadprofiles", "/podgroups", "/events", "/resourceclaims"),
    *("/resourceslices", "/deviceclasses", "/resourceclaimtemplates"),
)


def _kind_of(asked: Asked) -> str:
    if asked.method == "GET" and asked.path.endswith(LISTED):
        return "watch" if asked.query.get("watch") else "list"
    return asked.method


def _is_selected(pod: Pod, asked: Asked) -> bool:
    """Return whether a list includes the object, by namespace and node; other selectors are ignored."""
    namespace = asked.path.partition("/namespaces/")[2].partition("/")[0]
    _, _, node = asked.query.get("fieldSelector", "").partition("spec.nodeName=")
    at = pod["metadata"].get("namespace", ""), pod.get("spec", {}).get("nodeName", "")
    return namespace in ("", at[0]) and node in ("", at[1])


def _clash(pod: Pod, body: dict[str, Any]) -> str:
    """Return why a change of a pod is refused: another uid, an older version, or a second binding."""
    metadata = body.get("metadata", {})
    for name in ("uid", "resourceVersion"):
        if metadata.get(name, "") not in ("", pod["metadata"][name]):
            return f"the {name} does not match"
    bound = pod.get("spec", {}).get("nodeName")
    return f"pod is already assigned to node {bound}" if bound and body.get("kind") == "Binding" else ""


MOST_RESULTS, MOST_CONSUMERS = 32, 256


def _wrong_claim(claim: Pod, patch: dict[str, Any], parts: list[str]) -> str:
    """Return what Kubernetes 1.34 refuses in the status of a claim."""
    if (parts[4], parts[-1]) != ("resourceclaims", "status"):
        return ""
    before, after = claim.get("status", {}), _merged(claim, patch).get("status", {})
    given, now, consumers = before.get("allocation"), after.get("allocation"), after.get("reservedFor") or []
    if given and now and given != now:
        return "status.allocation: field is immutable"
    if consumers and not now:
        return "status.reservedFor: may not be specified when `allocated` is not set"
    if "deletionTimestamp" in claim["metadata"] and any(one not in before.get("reservedFor", []) for one in consumers):
        return "status.reservedFor: new entries may not be added while `deletionTimestamp` is set"
    if len(((now or {}).get("devices") or {}).get("results") or []) > MOST_RESULTS:
        return f"status.allocation.devices.results: must have at most {MOST_RESULTS} items"
    if len(consumers) > MOST_CONSUMERS:
        return f"status.reservedFor: must have at most {MOST_CONSUMERS} items"
    return ""


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    kept = old if isinstance(old, dict) else {}
    changed = {key: _merged(kept.get(key), value) for key, value in patch.items() if value is not None}
    return {key: value for key, value in kept.items() if key not in patch} | changed


async def _request(reader: asyncio.StreamReader) -> Asked:
    head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    method, target, _ = head.split()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return Asked(method, url.path, dict(parse_qsl(url.query)), headers, body)


def _write(writer: asyncio.StreamWriter, status: int, body: object, headers: dict[str, str] | None = None) -> None:
    _write_bytes(writer, status, json.dumps(body).encode(), headers)


def _write_bytes(
    writer: asyncio.StreamWriter, status: int, content: bytes, headers: dict[str, str] | None = None
) -> None:
    sent = {"Content-Type": "application/json", "Content-Length": str(len(content))} | (headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    writer.write(f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode() + content)


def _write_status(
    writer: asyncio.StreamWriter, status: int, reason: str, message: str, headers: dict[str, str] | None = None
) -> bool:
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
    _write(writer, status, body, headers)
    return True
