# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The manifests of a model server: a Deployment whose pods have a part of a GPU, and a Service in front of them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import MEMORY_UNIT
from cotenant.kube.codec.gpushare import GPUSHARE
from cotenant.kube.codec.objective import LATENCY, objective_of
from cotenant.kube.codec.settings import MOST_MEMORY
from cotenant.kube.deploy.objects import FRAMEWORK, SERVING, labelled
from cotenant.kube.deploy.pods import Volume, check_image, check_name, container, is_path, pod_spec
from cotenant.kube.deploy.starting import TENSORFLOW, TRITON, VLLM, start_command
from cotenant.wire.text import printable

MOST_REPLICAS = 1000
HTTP, GRPC = "http", "grpc"
MEASURED = ("vllm", "custom")
"""Frameworks whose latencies are reported: by their metrics, or by the job library."""
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
"""A model of a hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRequest:
    """A model server as a user describes it."""

    name: str
    framework: str
    memory: MiB
    image: str | None = None
    """None: the image of the framework."""
    model_path: str | None = None
    replicas: int = 1
    compute: Percent | None = None
    latency: str | None = None
    """Latency objective, such as p99=200ms."""
    port: int | None = None
    grpc_port: int | None = None
    volumes: tuple[Volume, ...] = ()
    variables: Mapping[str, str] | None = None
    words: tuple[str, ...] = ()
    """Options of the server; for a custom server, its whole command."""


class Framework(NamedTuple):
    """What is particular about a kind of model server."""

    image: str | None
    ports: Mapping[str, int]
    command: Callable[[ServingRequest, Mapping[str, int]], list[str]]


def _tensorflow(request: ServingRequest, ports: Mapping[str, int]) -> list[str]:
    options = [f"--port={ports[GRPC]}", f"--rest_api_port={ports[HTTP]}", f"--model_name={request.name}"]
    path = _model_path(request)
    program = ["tensorflow_model_server", *options, f"--model_base_path={path}", *request.words]
    return start_command(TENSORFLOW, path, program)


def _triton(request: ServingRequest, ports: Mapping[str, int]) -> list[str]:
    path = _model_path(request)
    options = [f"--model-repository={path}", f"--http-port={ports[HTTP]}", f"--grpc-port={ports[GRPC]}"]
    return start_command(TRITON, path, ["tritonserver", *options, *request.words])


def _custom(request: ServingRequest, ports: Mapping[str, int]) -> list[str]:
    if request.model_path is not None:
        raise InputError("serve custom: --model-path is for the other servers; give the path in your own command")
    return list(request.words)


def _vllm(request: ServingRequest, ports: Mapping[str, int]) -> list[str]:
    model = request.model_path
    if model is None:
        raise InputError("serve vllm: --model-path is missing; name a folder, or a model such as Qwen/Qwen3-8B")
    if not is_path(model) and not _MODEL.fullmatch(model):
        raise InputError(
            f"--model-path {printable(model[:80])}: expected an absolute path in the container, or a model such as "
            "Qwen/Qwen3-8B"
        )
    metrics = "" if request.latency is None else f"http://127.0.0.1:{ports[HTTP]}/metrics"
    options = [f"--port={ports[HTTP]}", f"--served-model-name={request.name}", *request.words]
    program = [metrics, "vllm", "serve", model, *options]
    return start_command(VLLM, model if is_path(model) else "", program)


FRAMEWORKS: Mapping[str, Framework] = {
    "tensorflow": Framework("tensorflow/serving:latest-gpu", {HTTP: 8501, GRPC: 8500}, _tensorflow),
    "triton": Framework(None, {HTTP: 8000, GRPC: 8001}, _triton),
    "vllm": Framework("vllm/vllm-openai:latest", {HTTP: 8000}, _vllm),
    "custom": Framework(None, {HTTP: 8080}, _custom),
}


def serving_objects(request: ServingRequest) -> list[Json]:
    """Return the Deployment and the Service; InputError if the request is not valid."""
    framework = FRAMEWORKS[request.framework]
    image = request.image or framework.image
    if image is None:
        raise InputError(f"serve {request.framework}: --image is missing; name the image of the server")
    name, ports = check_name(request.name), _ports(request, framework)
    if not 0 <= request.replicas <= MOST_REPLICAS:
        raise InputError(f"--replicas {request.replicas}: expected 0 to {MOST_REPLICAS}")
    command = framework.command(request, ports)
    amounts = limits(request.memory, request.compute)
    main = container(check_image(image), command, amounts, request.variables or {}, request.volumes)
    main["ports"] = [{"name": word, "containerPort": number} for word, number in ports.items()]
    main["readinessProbe"] = {"tcpSocket": {"port": HTTP}, "periodSeconds": 2, "failureThreshold": 3}
    deployment = labelled("Deployment", "apps/v1", name, SERVING, {}, **{FRAMEWORK: request.framework})
    labels = deployment["metadata"]["labels"]
    annotations = {MEMORY_UNIT: "MiB", **_objective(request)}
    deployment["spec"] = {
        "replicas": request.replicas,
        "selector": {"matchLabels": {SERVING: name}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {
            "metadata": {"labels": dict(labels), "annotations": annotations},
            "spec": pod_spec(main, request.volumes),
        },
    }
    listed = [{"name": word, "port": number, "targetPort": word} for word, number in ports.items()]
    spec = {"selector": {SERVING: name}, "ports": listed}
    return [deployment, labelled("Service", "v1", name, SERVING, spec, **{FRAMEWORK: request.framework})]


def _objective(request: ServingRequest) -> dict[str, str]:
    """Return the annotation with the latency objective."""
    if request.latency is None:
        return {}
    if request.framework not in MEASURED:
        raise InputError(f"serve {request.framework}: --latency needs a server that reports latencies: vllm or custom")
    annotations = {LATENCY: request.latency}
    try:
        objective_of(annotations)
    except InputError as error:
        raise InputError(str(error).replace(f"annotation {LATENCY}", "--latency")) from None
    return annotations


def limits(memory: MiB, compute: Percent | None) -> dict[str, int]:
    """Return the GPU resources of a server. The memory is in MiB, as the annotation of its pods says."""
    if not 1 <= memory <= MOST_MEMORY:
        raise InputError(f"--memory: {memory} MiB, expected 1 to {MOST_MEMORY}")
    share = {} if compute is None else {str(GPUSHARE.compute): int(compute)}
    return {str(GPUSHARE.memory): int(memory), **share}


def _ports(request: ServingRequest, framework: Framework) -> dict[str, int]:
    chosen = {HTTP: request.port, GRPC: request.grpc_port}
    ports = {**framework.ports, **{word: number for word, number in chosen.items() if number is not None}}
    if len(set(ports.values())) != len(ports):
        raise InputError(f"--port and --grpc-port: both are {ports[HTTP]}; each needs a number of its own")
    return ports


def _model_path(request: ServingRequest) -> str:
    path = request.model_path
    if path is None:
        raise InputError(f"serve {request.framework}: --model-path is missing; name the folder of the model")
    is_address = "://" in path and len(path) <= 1000 and path.isprintable()
    if not is_path(path) and not is_address:
        raise InputError(
            f"--model-path {printable(path[:80])}: expected an absolute path in the container, or an address such as "
            "s3://bucket/model"
        )
    return path
