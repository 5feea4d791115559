# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages on a real cluster: three users with tokens of service accounts see what the API server lets them see."""

import contextlib
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cotenant.kube.api.names import HTTPS_PORT, NAMESPACE, WEB
from cotenant.kube.codec.queueing import HOLD
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.engine import SLEEP, Engine, run_install
from tests.cluster.forwarding import forwarded
from tests.cluster.test_serving import cotenant

A, B = "pages-a", "pages-b"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
RBAC = "rbac.authorization.k8s.io"
GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of the cluster, behind a port of the loopback."""

    engine: Engine
    port: int
    tokens: Mapping[str, str]

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body, {"Accept": "text/html", **headers})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read().decode())

    def get(self, path: str, user: str) -> Answer:
        return self.ask("GET", path, Authorization=f"Bearer {self.tokens[user]}")

    def text(self, path: str, user: str) -> str:
        answer = self.get(path, user)
        assert answer.status == 200, answer
        return answer.text

    def signed_in(self, user: str) -> tuple[str, str]:
        """The cookie and the secret of a session."""
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self.ask("POST", "/signin", f"token={self.tokens[user]}", **form)
        assert answer.status == 303, answer
        cookie = answer.headers["set-cookie"].partition(";")[0]
        found = re.search(r'name="csrf" content="([^"]+)"', self.ask("GET", "/", Cookie=cookie).text)
        assert found is not None
        return cookie, found.group(1)

    def act(self, session: tuple[str, str], verb: str, target: str) -> Answer:
        headers = {"Cookie": session[0], "X-Cotenant-Csrf": session[1]}
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", "/act", f"verb={verb}&target={target}", **headers, **form)


@pytest.fixture(scope="module")
def pages(installed: Engine) -> Iterator[Pages]:
    """The pages with actions, and users: an administrator, one of namespace A, and one without rights."""
    cluster = installed.cluster
    run_install(cluster, "upgrade", {"web": {"enabled": True, "actions": True}})
    for namespace in (A, B):
        with contextlib.suppress(RefusedError):
            cluster.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    cluster.add_user("alice", A)
    tokens = {"alice": token_of(installed, "alice")}
    tokens["boss"] = token_of_administrator(installed, "boss", B)
    cluster.post(f"/api/v1/namespaces/{B}/serviceaccounts", {"metadata": {"name": "stranger"}})
    tokens["stranger"] = token_of(installed, "stranger", B)
    installed.wait_for_deployment(WEB)
    try:
        with forwarded(cluster.machines[0], Address(installed)) as port:
            yield Pages(installed, port, tokens)
    finally:
        run_install(cluster, "upgrade", {"web": {"enabled": False, "actions": False}})
        cluster.delete(f"/apis/{RBAC}/v1/clusterrolebindings/boss")


def token_of(engine: Engine, name: str, namespace: str = A) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    return str(engine.cluster.post(path, {"spec": {}})["status"]["token"])


def token_of_administrator(engine: Engine, name: str, namespace: str) -> str:
    """The token of a new account that may do everything."""
    engine.cluster.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
    engine.cluster.post(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
    return token_of(engine, name, namespace)


class Address:
    """Where the pod of the pages is; where it was, while the API server is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._last = engine, "127.0.0.1"

    def __call__(self) -> tuple[str, int]:
        with contextlib.suppress(RefusedError, OSError, http.client.HTTPException):
            running = [pod for pod in self._engine.our_pods(WEB) if not pod["metadata"].get("deletionTimestamp")]
            self._last = next((pod["status"]["podIP"] for pod in running if pod["status"].get("podIP")), self._last)
        return self._last, HTTPS_PORT


def _run_pods(engine: Engine) -> None:
    """A pod of each namespace on the GPUs, with markup wherever Kubernetes takes it, and one that waits."""
    said = f"print({MARKUP!r}, flush=True); " + SLEEP
    about: Json = {"annotations": {"cotenant.io/workload": MARKUP}, "labels": {"team": "vision"}}
    engine.create("own", GPU, said, namespace=A, **about)
    engine.create("foreign-secret", GPU, namespace=B)
    engine.create("own-waits", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 900_000}, namespace=A)
    for name, namespace in (("own", A), ("foreign-secret", B)):
        engine.started(name, namespace)
    engine.waits("own-waits", A)


def test_three_users_see_and_do_what_the_api_server_lets_them(
    engine: Engine, pages: Pages, say: Callable[[str], None]
) -> None:
    _run_pods(engine)
    _shows(pages, "/", "boss", "own", "foreign-secret", "node1")
    _shows(pages, "/queue", "boss", "own-waits")
    for path in ("/", "/queue", "/nodes/node1", f"/jobs/{A}/own", f"/jobs/{A}/own-waits", "/whatif?gpus=1"):
        text = pages.text(path, "alice")
        assert "foreign-secret" not in text, path
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path
    _shows(pages, "/", "boss", "busy 0 %")  # as the agent has measured it
    # The pages read reasons and events every few seconds, and the report is made of samples, one every 20 s.
    _shows(pages, "/queue", "alice", "own-waits")
    _shows(pages, f"/jobs/{A}/own-waits", "alice", "needs 900000 MiB on one GPU")
    _shows(pages, f"/jobs/{A}/own", "alice", "Placed")  # an event of the scheduler
    report = wait_for("a report with samples", lambda: _measured_report(engine))
    assert 0 <= report["utilisation"] <= 100
    assert 0 <= report["memory_percent"] <= 100
    nothing = "".join(pages.text(path, "stranger") for path in ("/", "/queue"))
    assert not any(name in nothing for name in ("own", "foreign-secret", "node1"))
    for path in (f"/jobs/{B}/foreign-secret", f"/log/{B}/foreign-secret", f"/charts/{B}/foreign-secret"):
        assert pages.get(path, "alice").status == 404
        assert pages.get(path, "stranger").status == 404
    assert pages.ask("GET", "/").status == 303
    assert pages.ask("GET", "/", Authorization="Bearer wrong").status == 303

    log = next(piece for piece in _stream(pages, f"/log/{A}/own", "alice") if "alert" in piece)
    assert "\\u003cscript" in log or "<script>alert(1)" in json.loads(log.partition("data: ")[2])["text"]

    alice, stranger = pages.signed_in("alice"), pages.signed_in("stranger")
    assert pages.act((alice[0], "wrong"), "cancel", f"{A}/own-waits").status == 403
    assert pages.act(alice, "cancel", f"{B}/foreign-secret").status == 404
    assert pages.act(alice, "cordon", "node1/0").status == 403
    assert pages.act(stranger, "cancel", f"{A}/own-waits").status == 403
    assert engine.cluster.get(f"/api/v1/namespaces/{A}/pods/own-waits")["metadata"].get("deletionTimestamp") is None
    engine.create("own-held", GPU, namespace=A, annotations={HOLD: "true"})
    _shows(pages, "/queue", "alice", "own-held")
    _shows(pages, f"/jobs/{A}/own-held", "alice", "held; it starts when it is released")
    assert pages.act(stranger, "release", f"{A}/own-held").status == 403
    assert pages.act(alice, "release", f"{A}/own-held").status == 200
    engine.started("own-held", A)
    assert pages.act(alice, "cancel", f"{A}/own-waits").status == 200
    wait_for("the pod to be gone", lambda: _is_gone(engine, A, "own-waits"))

    say(f"a change reached an open page after {_live_s(engine, pages):.2f} s")


def _shows(pages: Pages, path: str, user: str, *texts: str) -> None:
    """Returns when a page has all of these texts."""
    wait_for(f"{texts} on {path}", lambda: all(text in page for page in (pages.text(path, user),) for text in texts))


def _measured_report(engine: Engine) -> Json | None:
    report: Json = json.loads(cotenant(engine, "report", "--on", "kubernetes", "-o", "json"))
    return None if report["utilisation"] is None else report


def _live_s(engine: Engine, pages: Pages) -> float:
    """How long it takes from the creation of a pod until an open page of its user has it."""
    opened, seen = threading.Event(), list[float]()

    def watch() -> None:
        for piece in _stream(pages, "/live/queue/", "alice"):
            opened.set()  # with the first event: it has the page as it was before the change
            if "brand-new" in piece:
                seen.append(time.monotonic())
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    assert opened.wait(60)
    began = time.monotonic()
    engine.create("brand-new", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 900_000}, namespace=A)
    watching.join(60)
    assert seen, "the change did not reach the page"
    return seen[0] - began


def _stream(pages: Pages, path: str, user: str) -> Iterator[str]:
    """The lines of an event stream."""
    with contextlib.closing(pages.connection()) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {pages.tokens[user]}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while line := answer.readline():
            yield line.decode()


def _is_gone(engine: Engine, namespace: str, name: str) -> bool:
    try:
        engine.cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    except RefusedError as error:
        return error.status == 404
    return False


def test_the_pages_survive_a_restart_and_an_absent_api_server(engine: Engine, pages: Pages) -> None:
    engine.create("own", GPU, namespace=A)
    engine.started("own", A)
    session = pages.signed_in("alice")
    for pod in engine.our_pods(WEB):
        assert _restricted(pod), pod["spec"]
        engine.delete(pod["metadata"]["name"], NAMESPACE)
    wait_for("the new pod", lambda: pages.get("/readyz", "alice").status == 200)
    assert pages.ask("GET", "/", Cookie=session[0]).status == 303  # sessions are in memory: sign in again
    assert "own" in pages.text("/", "alice")

    machine = engine.cluster.machines[0]
    with machine.without("kube-apiserver"):
        stale = wait_for("the pages to say that they are old", lambda: _says_old(pages))
        assert "own" in stale
    wait_for("the API server", lambda: engine.cluster.text("/readyz"))
    wait_for("the pages to be current again", lambda: "may be old" not in pages.text("/", "alice"))
    engine.create("later", GPU, namespace=A)
    wait_for("the pages to show a new pod", lambda: "later" in pages.text("/", "alice"))


def _says_old(pages: Pages) -> str | None:
    answer = pages.get("/", "alice")
    assert answer.status == 200, answer  # with the last answer about the rights of the user
    return answer.text if "may be old" in answer.text else None


def _restricted(pod: Json) -> bool:
    """Whether a pod meets the restricted Pod Security Standard, and cannot write but to its history."""
    spec: Any = pod["spec"]
    containers = [one["securityContext"] for one in spec["containers"]]
    return (
        spec["securityContext"]["runAsNonRoot"]
        and not any(spec.get(word) for word in ("hostNetwork", "hostPID", "hostIPC"))
        and all("hostPath" not in volume for volume in spec["volumes"])
        and all(
            one["readOnlyRootFilesystem"]
            and not one["allowPrivilegeEscalation"]
            and one["capabilities"] == {"drop": ["ALL"]}
            and one["seccompProfile"] == {"type": "RuntimeDefault"}
            for one in containers
        )
    )
