# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube inspect`, also installed as `kubectl inspect`: shows the GPUs of a cluster with the caller's
permissions.

The tables have the layouts of the plugins `kubectl inspect gpushare` and `kubectl inspect gpu`. Additional columns are
at the end of a row and additional facts in rows of their own, so that scripts written for those plugins still find
theirs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cotenant.cli.options import kube_output_option
from cotenant.cli.output import aligned, note, or_dash, render
from cotenant.core.links import link_word
from cotenant.wire.text import printable

if TYPE_CHECKING:
    from cotenant.kube.inspect.report import ClusterUse, NodeUse, PodUse

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  cotenant kube inspect gpushare
  cotenant kube inspect gpu -d worker-3
The same as kubectl plugins: kubectl inspect gpushare, kubectl inspect gpu; kubectl cotenant has all commands.
"""
MEMORY_EPILOG = """\b
Examples:
  kubectl inspect gpushare
  kubectl inspect gpushare -d worker-3
  kubectl inspect gpushare --unit MiB -o wide
Allocated: given to pods. Requested: what pods request. Used: in use by any process.
"""
GPUS_EPILOG = """\b
Examples:
  kubectl inspect gpu
  kubectl inspect gpu -d worker-3
  kubectl inspect gpu --arena | kubectl apply -f -
"""


@click.group(epilog=EPILOG, short_help="Shows the GPUs of a cluster.")
def inspect() -> None:
    """Shows the GPUs of a cluster: memory requested, allocated and used, and the links between GPUs."""


def inspect_options(command: F) -> F:
    """Adds the options that select the cluster, the node, the namespace and the output."""
    for option in (
        kube_output_option,
        click.option(
            "--settings", type=FILE, metavar="FILE", help="Settings file, if those of the cluster cannot be read."
        ),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option("--kubeconfig", type=FILE, metavar="FILE", help="Kubeconfig file. Default: as kubectl finds it."),
        click.option("--namespace", "-n", metavar="NAME", help="Count the pods of this namespace only."),
        click.option(
            "--details",
            "-d",
            is_flag=True,
            help="Show each node with its pods (gpushare) or the links between its GPUs (gpu).",
        ),
        click.argument("node", required=False),
    ):
        command = option(command)
    return command


@inspect.command(epilog=MEMORY_EPILOG, short_help="Shows GPU memory by node or pod.")
@inspect_options
@click.option("--unit", type=click.Choice(["GiB", "MiB"]), default="GiB", show_default=True, help="Unit of GPU memory.")
def gpushare(details: bool, unit: str, output: str, **which: Any) -> None:
    """Shows the GPU memory of each node, or of each pod with --details: allocated, requested and used."""
    seen = read(**which)
    show(seen, output, lambda wide: (memory_details if details else memory_summary)(seen, unit, wide))


@inspect.command(epilog=GPUS_EPILOG, short_help="Shows GPUs and their links by node.")
@inspect_options
@click.option("--arena", is_flag=True, help="Print the ConfigMaps from which `arena top node` learns the links.")
def gpu(details: bool, output: str, arena: bool, **which: Any) -> None:
    """Shows the number of GPUs of each node and how many are in use; with --details how they are linked."""
    seen = read(**which)
    if arena:
        from cotenant.kube.inspect.arena import MOST_LABEL, left_out, link_maps

        for name in left_out(seen):
            note(f"node {name} is left out: its name has more than {MOST_LABEL} characters, which a label cannot have")
        render(link_maps(seen), "json" if output == "json" else "yaml", lambda wide: None)
        return
    show(seen, output, lambda wide: gpu_details(seen) if details else gpu_summary(seen, wide))


def read(
    node: str | None, namespace: str | None, kubeconfig: Path | None, context: str | None, settings: Path | None
) -> "ClusterUse":
    """Reads the current state from the API server."""
    import asyncio
    import os

    from cotenant.kube.api.access import find_access
    from cotenant.kube.inspect.listing import Query, read_cluster
    from cotenant.kube.settings import read_settings

    chosen = None if settings is None else read_settings(settings)
    access = find_access(os.environ, kubeconfig, context)
    return asyncio.run(read_cluster(access, Query(node=node, namespace=namespace, settings=chosen)))


def show(seen: "ClusterUse", output: str, draw: Callable[[bool], Iterable[str]]) -> None:
    """Prints the tables, and on standard error what is missing from them."""

    def print_lines(wide: bool) -> None:
        empty = ["no node has GPUs that an agent has published"]
        click.echo("\n".join(draw(wide) if seen.nodes or seen.pending else empty))

    render(seen, output, print_lines)
    if seen.namespace is not None:
        click.echo(
            f"only pods of namespace {printable(seen.namespace)} are counted; pods of other namespaces may use more",
            err=True,
        )
    for sentence in dict.fromkeys(node.unenforced for node in seen.nodes):
        if sentence is not None:
            click.echo(f"note: {sentence}", err=True)
    for trouble in seen.unread:
        click.echo(f"not shown: {printable(trouble)}", err=True)


UNITS = {"GiB": 1024, "MiB": 1}
NO_NODE = "<none>"
"""what kubectl prints for a pod without a node"""
DASHES = "-" * 40
LEGEND = """
Legend:

  X    = the GPU itself
  SYS  = across the CPU interconnect
  NODE = within one NUMA node, across host bridges
  PHB  = through one host bridge
  PXB  = through several PCIe switches
  PIX  = through one PCIe switch
  PSB  = on one board
  NV#  = over this number of NVLinks
  N/A  = unknown"""

Row = Sequence[str]


# Memory: gpushare


def memory_summary(seen: "ClusterUse", unit: str, wide: bool) -> Iterator[str]:
    """One row for each node, one for the requests of pods without a node, and the total."""
    most = max((len(node.gpus) for node in seen.nodes), default=0)
    pends = bool(seen.pending) or any(node.pending for node in seen.nodes)
    pending_heading = ["PENDING(Requested)"] * pends
    heading = [
        "NAME",
        "IPADDRESS",
        *(f"GPU{index}(Allocated/Total)" for index in range(most)),
        *pending_heading,
        f"GPU Memory({unit})",
        f"Requested({unit})",
        f"Used({unit})",
        *["Compute", "Pods", "Type", "State"] * wide,
    ]
    rows = [heading]
    for node in seen.nodes:
        gpus = [f"{_in(unit, gpu.assigned_mib)}/{_in(unit, gpu.memory_mib)}" for gpu in node.gpus]
        rows.append(
            [
                node.name,
                node.address or "-",
                *_filled(gpus, most),
                *[_wanted(unit, node.pending)] * pends,
                f"{_in(unit, node.assigned_mib)}/{_in(unit, node.memory_mib)}",
                _in(unit, node.requested_mib),
                _in(unit, node.used_mib),
                *_more(node) * wide,
            ]
        )
    if seen.pending:
        rows.append([NO_NODE, *["-"] * (most + 1), _wanted(unit, seen.pending), *["-"] * (len(heading) - most - 3)])
    lines = _lines(rows)
    yield from lines
    yield "-" * max(map(len, lines))
    yield "Allocated/Total GPU Memory In Cluster:"
    yield _cluster(seen, unit)


def memory_details(seen: "ClusterUse", unit: str, wide: bool) -> Iterator[str]:
    """Each node with its pods: memory allocated, requested and used."""
    for node in seen.nodes:
        yield ""
        yield from _lines([["NAME:", node.name], ["IPADDRESS:", node.address or "-"], *_notes(node, unit)])
        yield ""
        lines = _lines([*_pod_rows(node, unit, wide), *_sum_rows(node, unit, 1 + wide)])
        yield from lines
        yield "-" * max(map(len, lines))
    if seen.pending:
        rows = [["NAME", "NAMESPACE", "PENDING(Requested)"]]
        rows += [[_name(pod), pod.namespace, _wanted(unit, [pod])] for pod in seen.pending]
        lines = _lines(rows)
        yield from ("", *_lines([["NAME:", NO_NODE]]), "", *lines, "-" * max(map(len, lines)))
    yield ""
    yield ""
    yield f"Allocated/Total GPU Memory In Cluster:  {_cluster(seen, unit)}"


def _pod_rows(node: "NodeUse", unit: str, wide: bool) -> list[Row]:
    pends = bool(node.pending)
    heading = ["NAME", "NAMESPACE", *(f"GPU{gpu.index}(Allocated)" for gpu in node.gpus)]
    rows: list[Row] = [[*heading, *["PENDING(Requested)"] * pends, f"Requested({unit})", *["UID"] * wide]]
    for pod in (*node.pods, *node.pending):
        shares = {part.gpu: part.memory_mib for part in pod.assigned}
        rows.append(
            [
                _name(pod),
                pod.namespace or "-",
                *(_in(unit, shares.get(gpu.index, 0)) for gpu in node.gpus),
                *["-" if pod.assigned else _wanted(unit, [pod])] * pends,
                _in(unit, pod.requested_mib) if pod.assigned else _wanted(unit, [pod]),
                *[pod.uid] * wide,
            ]
        )
    return rows


def _sum_rows(node: "NodeUse", unit: str, more: int) -> list[Row]:
    """The sums of a node, with the values of each GPU under its column."""
    blank = [""] * (bool(node.pending) + more)
    whole = node.memory_mib
    sums: tuple[tuple[str, int | None, list[int | None]], ...] = (
        ("Allocated :", node.assigned_mib, [gpu.assigned_mib for gpu in node.gpus]),
        ("Used :", node.used_mib, [gpu.used_mib for gpu in node.gpus]),
    )
    rows: list[Row] = [
        [name, f"{_in(unit, amount)}{_part(amount, whole)}", *(_in(unit, one) for one in gpus), *blank]
        for name, amount, gpus in sums
    ]
    requests = ["Requested :", _in(unit, node.requested_mib), *[""] * len(node.gpus), *blank]
    total = ["Total :", _in(unit, whole), *(_in(unit, gpu.memory_mib) for gpu in node.gpus), *blank]
    return [*rows, requests, total]


def _more(node: "NodeUse") -> list[str]:
    compute = sum(gpu.compute_percent for gpu in node.gpus)
    states = sorted({gpu.state for gpu in node.gpus})
    return [f"{compute:.0f}%", str(len(node.pods)), node.type, "closed" if node.closed else ",".join(states)]


def _notes(node: "NodeUse", unit: str = "GiB") -> list[Row]:
    gpus = [f"GPU{gpu.index} is {gpu.state}" for gpu in node.gpus if gpu.state != "ok"]
    closed = (f"takes no new pods: {why}" for why in node.closed)
    pods = (text for pod in node.pods for text in _pod_notes(pod, unit))
    return [["NOTE:", text] for text in (*gpus, *closed, *pods, node.unenforced) if text is not None]


def _pod_notes(pod: "PodUse", unit: str) -> Iterator[str]:
    if not pod.enforced:
        yield f"no limit of pod {pod.namespace}/{pod.name} is enforced (isolation: none)"
    elif pod.isolation not in (None, "preload"):
        yield f"pod {pod.namespace}/{_name(pod)} has isolation {pod.isolation}"
    for part in pod.assigned:
        if part.memory_mib == 0:  # its column cannot tell that the pod has this GPU
            yield f"pod {pod.namespace}/{_name(pod)} shares GPU{part.gpu} without an amount of memory"
        if part.used_mib is not None:
            use = f"{_in(unit, part.used_mib)} of {_in(unit, part.memory_mib)} {unit}"
            yield f"pod {pod.namespace}/{_name(pod)} uses {use} of GPU{part.gpu}"
        if part.limit_mib:
            granted = "" if part.granted_mib is None else f", {_in(unit, part.granted_mib)} {unit} granted last"
            most = f"{_in(unit, part.memory_mib)} {unit} requested, at most {_in(unit, part.limit_mib)} {unit}"
            yield f"pod {pod.namespace}/{_name(pod)} on GPU{part.gpu}: {most}{granted}"


def _cluster(seen: "ClusterUse", unit: str) -> str:
    assigned, whole = sum(node.assigned_mib for node in seen.nodes), sum(node.memory_mib for node in seen.nodes)
    return f"{_in(unit, assigned)}/{_in(unit, whole)} {unit}{_part(assigned, whole)}"


def _wanted(unit: str, pods: "Sequence[PodUse]") -> str:
    """The request of pods without a GPU: `12`, `50%` of a GPU, or both."""
    from cotenant.kube.inspect.report import requested

    if not pods or all(pod.requested_mib is None for pod in pods):
        return "-"
    memory, percent = requested(pods), sum(pod.requested_percent for pod in pods)
    return " + ".join([_in(unit, memory)] * bool(memory or not percent) + [f"{percent}%"] * bool(percent))


# GPUs and their links: gpu


def gpu_summary(seen: "ClusterUse", wide: bool) -> Iterator[str]:
    """The number of GPUs of each node, and how many of them have a tenant."""
    pends = bool(seen.pending) or any(node.pending for node in seen.nodes)
    heading = ["NAME", "ALLGPU", "USEDGPU", *["PENDING"] * pends, *["SHAREDGPU", "IPADDRESS", "TYPE", "STATE"] * wide]
    rows = [heading]
    for node in seen.nodes:
        shared = sum(gpu.tenants > 1 for gpu in node.gpus)
        more = [str(shared), node.address or "-", *_more(node)[2:]]
        rows.append([node.name, *_counts(node), *[_gpus_of(node.pending)] * pends, *more * wide])
    if seen.pending:
        rows.append([NO_NODE, "-", "-", _gpus_of(seen.pending), *["-"] * (len(heading) - 4)])
    yield from _lines(rows)


def gpu_details(seen: "ClusterUse") -> Iterator[str]:
    """Each node with the links between all its GPUs."""
    yield f"gpu policy: {seen.policy or '-'}"
    for node in seen.nodes:
        every, used = _counts(node)
        yield DASHES
        yield f"node name: {node.name}"
        yield f"all gpu: {every}"
        yield f"used gpu: {used}"
        yield f"node type: {node.type}"
        yield from (f"note: {text}" for _, text in _notes(node))
        yield f"gpu topology:{'' if node.links else ' unknown'}"
        yield from _matrix(node.links or ())
    yield DASHES
    yield from LEGEND.strip().splitlines()


def _matrix(links: Sequence[Sequence[int]]) -> Iterator[str]:
    names = [f"GPU{index}" for index in range(len(links))]
    width = max(map(len, names), default=0) + 1
    if names:
        yield "".join([" " * width, *(name.rjust(width) for name in names)])
    for index, row in enumerate(links):
        cells = ("X" if other == index else link_word(score) for other, score in enumerate(row))
        yield "".join([names[index].ljust(width), *(cell.rjust(width) for cell in cells)])


def _counts(node: "NodeUse") -> tuple[str, str]:
    return str(len(node.gpus)), str(sum(gpu.tenants > 0 for gpu in node.gpus))


def _gpus_of(pods: "Iterable[PodUse]") -> str:
    return str(sum(pod.gpus for pod in pods) or "-")


# Cells


def _in(unit: str, mib: int | None) -> str:
    """An amount in the unit of the table, rounded to 0.01."""
    return or_dash(None if mib is None else mib / UNITS[unit], "{:.2f}").rstrip("0").rstrip(".")


def _part(amount: int | None, whole: int) -> str:
    """A percentage, rounded down so that only a full GPU shows 100%."""
    return "" if amount is None or not whole else f" ({100 * amount // whole}%)"


def _filled(cells: Sequence[str], most: int) -> list[str]:
    return [*cells, *["-"] * (most - len(cells))]


def _name(pod: "PodUse") -> str:
    return pod.name or f"<gone {pod.uid}>"


def _lines(rows: Sequence[Row]) -> list[str]:
    return list(aligned([[printable(cell) for cell in row] for row in rows]))
