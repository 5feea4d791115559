# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant serve` on a real cluster: a stand-in of TensorFlow Serving with a part of a GPU, from its creation to its
deletion, and what keeps a server from starting."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.engine import Engine
from tests.cluster.images import PYTHON

DEPLOYMENTS, SERVICES = "/apis/apps/v1/namespaces/default/deployments", "/api/v1/namespaces/default/services"
MODEL = ("--image", PYTHON, "--model-path", "/usr/bin")


def command(engine: Engine, *words: str) -> list[str]:
    """The command as a user runs it with the administrator's kubeconfig."""
    credentials = f"KUBECONFIG={engine.cluster.credentials / 'admin.kubeconfig'}"
    return engine.cluster.machines[0].enter(["env", credentials, sys.executable, "-m", "cotenant", *words])


def run_cotenant(engine: Engine, *words: str) -> subprocess.CompletedProcess[str]:
    """What the command does; never a traceback."""
    done = subprocess.run(command(engine, *words), capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def cotenant(engine: Engine, *words: str) -> str:
    """What the command prints; it must succeed."""
    done = run_cotenant(engine, *words)
    assert done.returncode == 0, done
    return done.stdout


def refused(engine: Engine, *words: str) -> tuple[int, str]:
    """The exit code and the last line of a command that fails."""
    done = run_cotenant(engine, *words)
    assert done.returncode != 0, done
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.fixture
def servers(engine: Engine) -> Iterator[Engine]:
    """The engine, without model servers afterwards."""
    yield engine
    for path in (DEPLOYMENTS, SERVICES):
        for one in engine.cluster.get(path)["items"]:
            if "cotenant.io/serving" in one["metadata"].get("labels", {}):
                engine.cluster.delete(f"{path}/{one['metadata']['name']}")


def pods_of(engine: Engine, name: str) -> list[Json]:
    found = engine.cluster.get(f"/api/v1/namespaces/default/pods?labelSelector=cotenant.io%2Fserving%3D{name}")
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


def test_a_model_server_is_created_listed_changed_and_deleted(servers: Engine) -> None:
    words = ("serve", "tensorflow", "--name", "demo", "--memory", "3000MiB", *MODEL, "--", "--tag=$(HOME) $HOME")
    assert cotenant(servers, *words) == "demo\n"
    (pod,) = pods_of(servers, "demo")
    seen = servers.said(pod["metadata"]["name"])
    options = dict(word.partition("=")[::2] for word in seen["words"])
    assert seen["variables"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3000"
    # The vGPU library shows the slice, so the fraction is of the slice and not of the GPU.
    assert seen["total_mib"] == 3000
    assert options["--per_process_gpu_memory_fraction"] == "0.950000000"
    assert (options["--model_name"], options["--model_base_path"], options["--tag"]) == (
        "demo",
        "/usr/bin",
        "$(HOME) $HOME",
    )

    (listed,) = json.loads(cotenant(servers, "serve", "list", "-o", "json"))
    assert (listed["state"], listed["ready"], listed["memory_mib"]) == ("running", 1, 3000)
    assert listed["address"] == "demo.default:8501"
    assert json.loads(cotenant(servers, "serve", "logs", "demo", "--tail", "1")) == seen
    (used,) = json.loads(cotenant(servers, "top", "serving", "--on", "kubernetes", "-o", "json"))
    assert (used["name"], used["pods"], used["allocated_mib"]) == ("demo", 1, 3000)
    code, line = refused(servers, *words)
    assert (code, "already has a Deployment" in line) == (2, True)

    assert cotenant(servers, "serve", "update", "demo", "--replicas", "2") == "demo\n"
    assert len(pods_of(servers, "demo")) == 2
    cotenant(servers, "serve", "update", "demo", "--memory", "2GiB", "--replicas", "1")
    (listed,) = json.loads(cotenant(servers, "serve", "list", "-o", "json"))
    assert (listed["ready"], listed["memory_mib"]) == (1, 2048)

    assert cotenant(servers, "serve", "delete", "demo") == "demo is deleted\n"
    assert cotenant(servers, "serve", "list") == "no model servers\n"
    with pytest.raises(RefusedError, match="404"):
        servers.cluster.get(f"{SERVICES}/demo")
    wait_for("the pods to be gone", lambda: not pods_of(servers, "demo"))
    assert refused(servers, "serve", "delete", "demo")[0] == 4


def test_vllm_is_told_its_memory_and_its_latencies_are_read_from_its_metrics(servers: Engine) -> None:
    words = ("--name", "chat", "--memory", "3000MiB", "--latency", "p99=300ms", *MODEL, "--", "--max-model-len=8192")
    done = run_cotenant(servers, "serve", "vllm", *words)
    assert (done.returncode, done.stdout) == (0, "chat\n"), done
    assert "chat: 0 of 1 replica ready" in done.stderr, "how far it is, while it starts"
    (pod,) = pods_of(servers, "chat")
    name = pod["metadata"]["name"]
    seen = servers.said(name)
    assert seen["words"][:2] == ["serve", "/usr/bin"]
    assert {"--port=8000", "--max-model-len=8192", "--gpu-memory-utilization=0.950000000"} <= set(seen["words"])

    def measured() -> Json | None:
        answer = json.loads(cotenant(servers, "show", f"pod/{name}", "-n", "default", "-o", "json"))
        found: Json | None = answer["latency"]
        return found

    latency = wait_for("its latency", measured)
    assert (latency["percentile"], latency["objective_ms"], latency["held"]) == (99, 300.0, True)
    assert 250 <= latency["latency_ms"] < 275


def test_triton_and_custom_servers_start_with_what_they_were_given(servers: Engine) -> None:
    cotenant(servers, "serve", "triton", "--name", "vision", "--memory", "2GiB", *MODEL)
    (pod,) = pods_of(servers, "vision")
    words = set(servers.said(pod["metadata"]["name"])["words"])
    assert {"--model-repository=/usr/bin", "--http-port=8000", "--cuda-memory-pool-byte-size=0:268435456"} <= words
    ends = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit())"
    code = f"{ends}; import http.server as h; h.HTTPServer(('', 9000), h.SimpleHTTPRequestHandler).serve_forever()"
    own = ("--image", PYTHON, "--port", "9000", "--memory", "2GiB", "--compute", "30%")
    cotenant(servers, "serve", "custom", "--name", "own", *own, "--", "python3", "-c", code)
    found = {one["name"]: one for one in json.loads(cotenant(servers, "serve", "list", "-o", "json"))}
    assert {name: (one["framework"], one["state"]) for name, one in found.items()} == {
        "vision": ("triton", "running"),
        "own": ("custom", "running"),
    }
    assert (found["own"]["address"], found["own"]["compute_percent"]) == ("own.default:9000", 30)
    done = run_cotenant(servers, "serve", "update", "own", "--replicas", "2")
    assert (done.returncode, done.stdout) == (0, "own\n")
    assert "own: 1 of 2 replicas ready" in done.stderr


def test_what_keeps_a_server_from_starting_is_said_in_a_sentence(servers: Engine) -> None:
    base = ("serve", "tensorflow", "--image", PYTHON, "--memory", "1GiB")
    code, line = refused(servers, *base, "--name", "lost", "--model-path", "/no/such/model")
    assert (code, "the model path /no/such/model does not exist in the container" in line) == (1, True)
    none = ("serve", "custom", "--name", "none", "--image", "localhost/none:1", "--memory", "1GiB")
    code, line = refused(servers, *none)
    assert (code, "its image cannot be pulled" in line) == (1, True), line
    large = ("serve", "tensorflow", "--name", "large", "--memory", "40GiB", *MODEL, "--timeout", "15")
    code, line = refused(servers, *large)
    assert (code, "not ready after 15 s" in line, "40960 MiB" in line) == (1, True, True), line


def test_objects_of_others_are_neither_listed_nor_deleted(servers: Engine) -> None:
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "main", "image": PYTHON}]},
        },
    }
    servers.cluster.post(DEPLOYMENTS, {"metadata": {"name": "theirs"}, "spec": spec})
    try:
        assert "theirs" not in cotenant(servers, "serve", "list")
        code, line = refused(servers, "serve", "delete", "theirs")
        assert (code, "was not created by" in line) == (4, True)
        assert servers.cluster.get(f"{DEPLOYMENTS}/theirs")["metadata"]["name"] == "theirs"
    finally:
        servers.cluster.delete(f"{DEPLOYMENTS}/theirs")
