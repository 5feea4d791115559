# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant serve` without a cluster: manifests, refusals, and Ctrl-C while it waits."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import START, environment, refusal, run

BASE = ("serve", "tensorflow", "--name", "demo", "--memory", "3GiB", "--model-path", "/models/demo")


def manifests(*words: str) -> list[dict[str, Any]]:
    done = run(*words, "--dry-run", "-o", "json")
    assert done.returncode == 0, done.stderr
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


def test_the_manifests_are_a_deployment_and_a_service_of_the_same_pods() -> None:
    deployment, service = manifests(*BASE, "--replicas", "2", "--compute", "30%", "-n", "team")
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    assert deployment["metadata"]["namespace"] == service["metadata"]["namespace"] == "team"
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert deployment["spec"]["replicas"] == 2
    (main,) = template["spec"]["containers"]
    assert main["resources"]["limits"] == {"aliyun.com/gpu-mem": 3072, "aliyun.com/gpu-core.percentage": 30}
    assert template["metadata"]["annotations"] == {"cotenant.io/memory-unit": "MiB"}
    assert template["spec"]["automountServiceAccountToken"] is False
    assert {one["name"]: one["port"] for one in service["spec"]["ports"]} == {"http": 8501, "grpc": 8500}
    assert list(yaml.safe_load_all(run(*BASE, "--dry-run").stdout)) == manifests(*BASE)


@pytest.mark.parametrize("example", ["serving/mnist.yaml", "llm/vllm.yaml"])
def test_an_example_is_what_the_command_in_its_readme_prints(example: str) -> None:
    file = Path(__file__).parents[2] / "examples" / example
    (line,) = [line for line in (file.parent / "README.md").read_text().splitlines() if "--dry-run" in line]
    printed = run(*line.split()[1:]).stdout
    assert list(yaml.safe_load_all(file.read_text())) == list(yaml.safe_load_all(printed))


def test_vllm_reports_its_latencies_only_if_it_has_an_objective() -> None:
    base = ("serve", "vllm", "--name", "chat", "--memory", "20GiB", "--model-path", "Qwen/Qwen3-8B", "--port", "9000")
    for words, metrics, objective in (
        ((), "", None),
        (("--latency", "p99=200ms"), "http://127.0.0.1:9000/metrics", "p99=200ms"),
    ):
        template = manifests(*base, *words)[0]["spec"]["template"]
        (main,) = template["spec"]["containers"]
        assert template["metadata"]["annotations"].get("cotenant.io/latency") == objective
        assert main["command"][5:] == [
            *("", metrics, "vllm", "serve", "Qwen/Qwen3-8B", "--port=9000", "--served-model-name=chat")
        ]


def test_a_custom_server_runs_its_own_command_with_its_volumes_and_variables() -> None:
    ports = ("--port", "9000", "--grpc-port", "9001")
    words = ("--image", "team/chat:1", *ports, "--volume", "models:/models", "--env", "A=b$(c)")
    custom = ("serve", "custom", "--name", "chat", "--memory", "1GiB", *words)
    done = run(*custom, "--dry-run", "-o", "json", "--", "python", "serve.py", "$(HOME)")
    deployment, service = json.loads(done.stdout)["items"]
    assert {one["name"]: one["port"] for one in service["spec"]["ports"]} == {"http": 9000, "grpc": 9001}
    spec = deployment["spec"]["template"]["spec"]
    (main,) = spec["containers"]
    # kubelet turns `$$` into `$` again, and would replace `$(HOME)`
    assert main["command"] == ["python", "serve.py", "$$(HOME)"]
    assert main["env"] == [{"name": "A", "value": "b$$(c)"}]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert main["volumeMounts"] == [{"name": "volume-0", "mountPath": "/models", "readOnly": True}]
    assert "command" not in manifests(*custom)[0]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tensorflow", "--name", "Demo", "--model-path", "/m"), "--name Demo: expected up to 50 lowercase letters"),
        (("tensorflow", "--name", "d" * 51, "--model-path", "/m"), "expected up to 50 lowercase letters"),
        (("tensorflow", "--name", "d"), "serve tensorflow: --model-path is missing"),
        (("tensorflow", "--name", "d", "--model-path", "m"), "--model-path m: expected an absolute path"),
        (("triton", "--name", "d", "--model-path", "/m"), "serve triton: --image is missing"),
        (("vllm", "--name", "d"), "serve vllm: --model-path is missing"),
        (("vllm", "--name", "d", "--model-path", "../x"), "--model-path ../x: expected an absolute path"),
        (("vllm", "--name", "d", "--model-path", "/m", "--latency", "fast"), "--latency: 'fast'; write for example"),
        (("triton", "--name", "d", "--image", "a", "--model-path", "/m", "--latency", "p99=1s"), "reports latencies"),
        (("custom", "--name", "d", "--image", "a b"), "--image a b: expected the name of an image"),
        (("custom", "--name", "d", "--image", "a", "--model-path", "/m"), "serve custom: --model-path is for"),
        (("custom", "--name", "d", "--image", "a", "--volume", "models"), "--volume models: expected CLAIM:/folder"),
        (("custom", "--name", "d", "--image", "a", "--env", "A"), "--env A: expected NAME=VALUE"),
        (("custom", "--name", "d", "--image", "a", "--compute", "0"), "--compute: 0 % is no share"),
        (("custom", "--name", "d", "--image", "a", "--port", "1", "--grpc-port", "1"), "both are 1"),
        (("custom", "--name", "d", "--image", "a", "--namespace", "a/b"), "--namespace a/b: expected up to 63"),
        (("custom", "--name", "d", "--image", "a", "-o", "json"), "the manifests are printed with --dry-run"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal("serve", *words, "--memory", "1GiB")


@pytest.mark.parametrize("memory", ["0", "1TiB", "50%", "much"])
def test_memory_is_an_amount_that_a_gpu_can_have(memory: str) -> None:
    assert "--memory" in refusal("serve", "custom", "--name", "d", "--image", "a", "--memory", memory)


def test_an_update_must_change_something() -> None:
    assert "expected at least one of --replicas" in refusal("serve", "update", "demo")


class Cluster(BaseHTTPRequestHandler):
    """An API server in which no replica ever becomes ready."""

    def do_POST(self) -> None:
        self._answer(201, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self) -> None:
        labels = {"app.kubernetes.io/managed-by": "cotenant", "cotenant.io/serving": "demo"}
        metadata = {"name": "demo", "namespace": "default", "uid": "1", "generation": 1, "labels": labels}
        self._answer(200, {"metadata": metadata, "spec": {"replicas": 1}, "status": {"observedGeneration": 1}})

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        """Stays silent."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Cluster) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "c", "context": {"cluster": "c"}}
        file = tmp_path / "config"
        file.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"}))
        yield file
        server.shutdown()


def test_ctrl_c_ends_the_waiting_and_says_what_remains(kubeconfig: Path) -> None:
    words = [*START, *BASE, "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stderr is not None
        assert one.stderr.readline() == "demo: 0 of 1 replica ready\n"
        one.send_signal(signal.SIGINT)
        out, rest = one.communicate(timeout=300)
    assert (one.returncode, out) == (130, "")
    said = [line for line in rest.splitlines() if line]
    assert said == ["demo continues to start; `cotenant serve delete demo` removes it", "cotenant: interrupted"]


def test_a_server_that_does_not_become_ready_in_time_is_a_failure(kubeconfig: Path) -> None:
    done = run(*BASE, "--kubeconfig", kubeconfig, "--timeout", "1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("cotenant: not ready after 1 s: demo: 0 of 1 replica ready.")
    assert run(*BASE, "--kubeconfig", kubeconfig, "--no-wait").stdout == "demo\n"


def test_without_a_cluster_one_line_says_so(tmp_path: Path) -> None:
    done = run("serve", "list", "--kubeconfig", tmp_path / "none")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
