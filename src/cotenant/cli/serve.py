# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant serve`: model servers in a cluster, each with a part of a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cotenant.cli.cluster import cluster_options, in_cluster, memory_of, percent_of, print_manifests
from cotenant.cli.options import CommandOfWords, complete_files, output_option
from cotenant.cli.output import emit, note, or_dash, write_output
from cotenant.errors import InputError
from cotenant.wire.text import ago

if TYPE_CHECKING:
    from cotenant.core.units import MiB, Percent
    from cotenant.kube.api.client import Client
    from cotenant.kube.deploy.serving import ServingRequest

F = TypeVar("F", bound=Callable[..., object])
COLUMNS = (
    ("NAME", lambda one: one.name, False),
    ("FRAMEWORK", lambda one: one.framework, False),
    ("STATE", lambda one: one.state, False),
    ("READY", lambda one: f"{one.ready}/{one.replicas}", False),
    ("MEMORY", lambda one: or_dash(one.memory_mib, "{} MiB"), False),
    ("COMPUTE", lambda one: or_dash(one.compute_percent, "{}%"), False),
    ("ADDRESS", lambda one: one.address or "-", False),
    ("AGE", lambda one: ago(one.submitted), False),
    ("NAMESPACE", lambda one: one.namespace, True),
    ("IMAGE", lambda one: one.image, True),
)
EPILOG = """\b
Examples:
  cotenant serve tensorflow --name mnist --memory 3GiB --volume models:/models --model-path /models/mnist
  cotenant serve list
  cotenant serve update mnist --replicas 3
  cotenant serve delete mnist
"""
TENSORFLOW_EPILOG = """\b
Examples:
  cotenant serve tensorflow --name mnist --memory 3GiB --volume models:/models --model-path /models/mnist
  cotenant serve tensorflow --name big --memory 8GiB --model-path s3://team/big -- --enable_batching
"""
TRITON_EPILOG = """\b
Example:
  cotenant serve triton --name vision --memory 6GiB --image team/triton:1 --model-path /models --volume models:/models
"""
VLLM_EPILOG = """\b
Example:
  cotenant serve vllm --name chat --memory 20GiB --model-path Qwen/Qwen3-8B --latency p99=200ms -- --max-model-len 8192
"""
CUSTOM_EPILOG = """\b
Example:
  cotenant serve custom --name chat --memory 10GiB --image team/chat:1 --port 9000 -- python serve.py --port 9000
"""
LOGS_EPILOG = """\b
Example:
  cotenant serve logs mnist --tail 20
"""


@click.group(epilog=EPILOG, short_help="Serves models in a cluster.")
def serve() -> None:
    """Serves models in a Kubernetes cluster: each replica gets a part of a GPU, and one address stands for all."""


def wait_options(command: F) -> F:
    """Adds --no-wait and --timeout."""
    for option in (
        click.option(
            "--timeout",
            type=click.IntRange(1, 86_400),
            default=600,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait until all replicas are ready.",
        ),
        click.option("--no-wait", is_flag=True, help="Return at once. Default: when all replicas are ready."),
    ):
        command = option(command)
    return command


def amount_options(needed: bool) -> Callable[[F], F]:
    """Adds --memory, --compute, --replicas and --image; a change of a model server needs none of them."""

    def add(command: F) -> F:
        for option in (
            click.option("--image", metavar="NAME", help="Image of the server."),
            click.option(
                "--replicas",
                type=click.IntRange(0, 1000),
                default=1 if needed else None,
                show_default=needed,
                help="Number of replicas; 0 stops them all.",
            ),
            click.option(
                "--compute", metavar="30%", callback=percent_of, help="Compute share of the GPU for each replica."
            ),
            click.option(
                "--memory", metavar="3GiB", required=needed, callback=memory_of, help="GPU memory of each replica."
            ),
        ):
            command = option(command)
        return command

    return add


def server_options(command: F) -> F:
    """Adds the options that describe a new model server."""
    for option in (
        click.argument("words", nargs=-1, shell_complete=complete_files),
        click.option(
            "--output",
            "-o",
            type=click.Choice(["yaml", "json"]),
            help="With --dry-run: the format of the manifests. Default: yaml.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the manifests and create nothing."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeatable."),
        click.option(
            "--volume",
            "volumes",
            multiple=True,
            metavar="CLAIM:/folder",
            help="PersistentVolumeClaim to mount read-only; repeatable.",
        ),
        click.option(
            "--latency", metavar="p99=200ms", help="Latency objective of its requests; for vllm and custom servers."
        ),
        click.option("--grpc-port", type=click.IntRange(1, 65_535), help="Port for gRPC."),
        click.option("--port", type=click.IntRange(1, 65_535), help="Port for HTTP."),
        click.option("--model-path", metavar="PATH", help="Folder of the model in the container, or its address."),
        click.option("--name", required=True, help="Name of the model server and of its Service."),
    ):
        command = option(command)
    return cluster_options(wait_options(amount_options(True)(command)))


def _new(framework: str) -> Callable[..., None]:
    def run(**options: Any) -> None:
        _create(framework, **options)

    return run


def _server_command(framework: str, text: str, short: str, epilog: str) -> None:
    run = _new(framework)
    run.__doc__ = text
    own = {"allow_interspersed_args": False}  # words after the first are those of the server
    made = click.command(framework, cls=CommandOfWords, epilog=epilog, short_help=short, context_settings=own)
    serve.add_command(made(server_options(run)))


_server_command(
    "tensorflow",
    """Serves a model with TensorFlow Serving. Words after `--` are further options of the server.

    Inside each container, per_process_gpu_memory_fraction is computed from the GPU memory that the container got.
    """,
    "Serves a model with TensorFlow Serving.",
    TENSORFLOW_EPILOG,
)
_server_command(
    "triton",
    """Serves a model repository with Triton. Words after `--` are further options of the server.

    Inside each container, the size of Triton's memory pool is computed from the GPU memory that the container got.
    """,
    "Serves a model repository with Triton.",
    TRITON_EPILOG,
)
_server_command(
    "vllm",
    """Serves a language model with vLLM. Words after `--` are further options of `vllm serve`.

    Inside each container, --gpu-memory-utilization is computed from the GPU memory that the container got. With
    --latency, the time to the first token is kept below the objective, as far as the compute of the GPU allows.
    """,
    "Serves a language model with vLLM.",
    VLLM_EPILOG,
)
_server_command(
    "custom",
    """Serves a model with a server of your own. Words after `--` are its command; without them, the image's own runs.

    The variables ALIYUN_COM_GPU_MEM_CONTAINER and ALIYUN_COM_GPU_MEM_DEV have the memory of the container and of the
    GPU in MiB.
    """,
    "Serves a model with a server of your own.",
    CUSTOM_EPILOG,
)


def _create(
    framework: str,
    *,
    dry_run: bool,
    output: str | None,
    no_wait: bool,
    timeout: int,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    **options: Any,
) -> None:
    from cotenant.kube.deploy.pods import check_namespace
    from cotenant.kube.deploy.serving import serving_objects
    from cotenant.kube.deploy.servings import create

    if output is not None and not dry_run:
        raise InputError("--output: the manifests are printed with --dry-run; give both")
    request = _request(framework, **options)
    objects = serving_objects(request)
    if dry_run:
        if namespace is not None:
            for one in objects:
                one["metadata"]["namespace"] = check_namespace(namespace)
        print_manifests(objects, output or "yaml")
        return

    async def work(client: "Client", chosen: str) -> None:
        await create(client, chosen, objects)
        if not no_wait:
            await _wait(client, chosen, request.name, timeout)

    in_cluster(work, namespace, kubeconfig, context)
    click.echo(request.name)


def _request(framework: str, *, env: tuple[str, ...], volumes: tuple[str, ...], **options: Any) -> "ServingRequest":
    from cotenant.kube.deploy.pods import parse_variable, parse_volume
    from cotenant.kube.deploy.serving import ServingRequest

    return ServingRequest(
        framework=framework,
        variables=dict(map(parse_variable, env)),
        volumes=tuple(map(parse_volume, volumes)),
        **options,
    )


async def _wait(client: "Client", namespace: str, name: str, timeout: int) -> None:
    """Waits for a model server; Ctrl-C ends only the waiting."""
    from asyncio import CancelledError

    from cotenant.kube.deploy.servings import NotReadyError, wait_until_ready

    try:
        await wait_until_ready(client, namespace, name, note, timeout)
    except CancelledError:
        click.echo(f"{name} continues to start; `cotenant serve delete {name}` removes it", err=True)
        raise
    except NotReadyError as error:
        raise NotReadyError(f"{error}. `cotenant serve logs {name}` and `cotenant serve delete {name}` help") from None


@serve.command("list", epilog="\b\nExample:\n  cotenant serve list -o wide\n", short_help="Lists model servers.")
@click.option("--all-namespaces", is_flag=True, help="List those of all namespaces.")
@cluster_options
@output_option
def list_(all_namespaces: bool, output: str, **which: Any) -> None:
    """Lists the model servers of a namespace that `cotenant serve` created."""
    from cotenant.kube.deploy.servings import ServingView, servings

    async def work(client: "Client", namespace: str) -> list[ServingView]:
        return await servings(client, "" if all_namespaces else namespace)

    emit(in_cluster(work, **which), output, COLUMNS, "no model servers")


@serve.command(
    epilog="\b\nExample:\n  cotenant serve update mnist --replicas 3 --memory 4GiB\n",
    short_help="Changes a model server.",
)
@amount_options(False)
@wait_options
@cluster_options
@click.argument("name")
def update(
    name: str,
    replicas: int | None,
    memory: "MiB | None",
    compute: "Percent | None",
    image: str | None,
    no_wait: bool,
    timeout: int,
    **which: Any,
) -> None:
    """Changes a model server without interruption: a new replica is ready before an old one ends."""
    from cotenant.kube.deploy import servings
    from cotenant.kube.deploy.pods import check_name

    if replicas is None and memory is None and compute is None and image is None:
        raise InputError("serve update: expected at least one of --replicas, --memory, --compute and --image")
    check_name(name)

    async def work(client: "Client", namespace: str) -> None:
        await servings.update(client, namespace, name, replicas=replicas, memory=memory, compute=compute, image=image)
        if not no_wait:
            await _wait(client, namespace, name, timeout)

    in_cluster(work, **which)
    click.echo(name)


@serve.command(epilog="\b\nExample:\n  cotenant serve delete mnist\n", short_help="Deletes a model server.")
@cluster_options
@click.argument("name")
def delete(name: str, **which: Any) -> None:
    """Deletes a model server and its Service. Objects that `cotenant serve` did not create are never deleted."""
    from cotenant.kube.deploy import servings
    from cotenant.kube.deploy.pods import check_name

    check_name(name)
    in_cluster(lambda client, namespace: servings.delete(client, namespace, name), **which)
    click.echo(f"{name} is deleted")


@serve.command(epilog=LOGS_EPILOG, short_help="Prints the output of a model server.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing the new output of the newest replica.")
@click.option("--tail", type=click.IntRange(0, 100_000), metavar="LINES", help="Print only the last lines of each.")
@cluster_options
@click.argument("name")
def logs(name: str, follow: bool, tail: int | None, **which: Any) -> None:
    """Prints the output of all replicas of a model server."""
    from cotenant.errors import CotenantError
    from cotenant.kube.deploy.logs import write_logs
    from cotenant.kube.deploy.objects import SERVING
    from cotenant.kube.deploy.pods import check_name
    from cotenant.kube.deploy.servings import find
    from cotenant.kube.deploy.waiting import pods_of

    check_name(name)

    async def work(client: "Client", namespace: str) -> None:
        await find(client, namespace, name)
        pods = await pods_of(client, namespace, SERVING, name)
        if not pods:
            raise CotenantError(f"{name} has no pods, so it has no output")
        await write_logs(client, pods, write_output, note, follow=follow, tail=tail)

    in_cluster(work, **which)
