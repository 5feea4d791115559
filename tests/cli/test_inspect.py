# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`kubectl inspect` as a user runs it: the tables letter by letter, and what is said beside them."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from cotenant.cli.inspect import memory_details
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.inventory import USED, used_for
from cotenant.kube.inspect.arena import left_out, link_maps
from cotenant.kube.inspect.report import ClusterUse, NodeUse, Part, PodUse
from tests.cli.command import START, environment, run
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.worlds import CORES, GPU, MEMORY, PERCENT, machine, node, place, placer_of, state_of, waiting

ROOT = Path(__file__).parents[2]
INSPECT = ("kube", "inspect")

BIG = replace(machine("big", cards=2, memory=16384, type="V100"), links=((0, 200), (200, 0)))
SMALL = Machine(name="small", gpus=(Gpu(uuid="GPU-s", type="T4", memory=MiB(15360), cordoned=True),))


def a_cluster() -> ApiServer:
    """Two nodes, of which the larger has two pods, and three pods that wait."""
    big = node(BIG, annotations={USED: used_for({"GPU-big-0": 2048, "GPU-big-1": 512})})
    small = node(SMALL, annotations={"cotenant.io/cordon": "GPU-s"})
    books = state_of(big, small)
    placer = placer_of(books)
    pods = [
        place(books, placer, waiting("train", {GPU: 1, MEMORY: 6144, CORES: 30}), "big"),
        place(books, placer, waiting("pair", {GPU: 2, MEMORY: 1000}, namespace="other"), "big"),
        waiting("later", {GPU: 1, MEMORY: 3072}),
        waiting("half", {GPU: 2, PERCENT: 50}),
        waiting("nonsense", {GPU: 1, MEMORY: -1}),
    ]
    server = ApiServer()
    for one, address in ((small, "10.0.0.2"), (big, "10.0.0.1")):
        addresses = [{"type": "Hostname", "address": "x"}, {"type": "InternalIP", "address": address}]
        plain = msgspec.to_builtins(one) | {"status": {"addresses": addresses}}
        server.nodes.merge(one.metadata.name, plain)
    for pod in pods:
        add(server, pod)
    return server


def add(server: ApiServer, pod: Pod) -> None:
    server.merge(pod.metadata.name, msgspec.to_builtins(pod), pod.metadata.namespace)


class Beside:
    """An API server in a thread of its own, for commands that run beside it."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server, self._ready = server, threading.Event()
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait(60)
        self.config = folder / "config"
        clusters = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}]
        contexts = [{"name": "x", "context": {"cluster": "c", "namespace": "team"}}]
        self.config.write_text(json.dumps({"clusters": clusters, "contexts": contexts, "current-context": "x"}))

    def _run(self) -> None:
        async def serve() -> None:
            async with self.server.serving():
                self._ready.set()
                await self._end.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(*INSPECT, *words, env=self.env)

    @property
    def env(self) -> dict[str, str]:
        return environment(KUBECONFIG=str(self.config))


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    beside = Beside(a_cluster(), tmp_path_factory.mktemp("inspect"))
    yield beside
    beside.close()


def shown(text: str) -> list[str]:
    return text.strip("\n").splitlines()


SUMMARY = """
NAME    IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Requested)  GPU Memory(GiB)  Requested(GiB)  Used(GiB)
big     10.0.0.1   6.98/16                0.98/16                -                   7.95/32          7.95            2.5
small   10.0.0.2   0/15                   -                      -                   0/15             0               -
<none>  -          -                      -                      3 + 100%            -                -               -
-------------------------------------------------------------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
7.95/47 GiB (16%)
"""  # noqa: E501 -- as it is shown


def test_summary_of_memory(beside: Beside) -> None:
    done = beside.run("gpushare")
    assert done.returncode == 0
    assert done.stdout.splitlines() == shown(SUMMARY)
    assert done.stderr == ""


DETAILS = """

NAME:       big
IPADDRESS:  10.0.0.1

NAME         NAMESPACE   GPU0(Allocated)  GPU1(Allocated)  Requested(MiB)
pair         other       1000             1000             2000
train        team        6144             0                6144
Allocated :  8144 (24%)  7144             1000
Used :       2560 (7%)   2048             512
Requested :  8144
Total :      32768       16384            16384
-------------------------------------------------------------------------


Allocated/Total GPU Memory In Cluster:  8144/32768 MiB (24%)
"""


def test_details_of_one_node_in_mib(beside: Beside) -> None:
    done = beside.run("gpushare", "--unit", "MiB", "-d", "big")
    assert done.stdout == DETAILS.removeprefix("\n")


def test_details_of_all_nodes_tell_of_pods_that_wait_and_cards_that_are_out(beside: Beside) -> None:
    lines = beside.run("gpushare", "-d").stdout.splitlines()
    assert lines.count("NAME:  <none>") == 1
    rows = [line.split("  ") for line in lines]
    assert ["NOTE:", "GPU0 is cordoned"] in [[cell.strip() for cell in row if cell] for row in rows]
    waits = [line.split() for line in lines[lines.index("NAME:  <none>") + 2 :][:4]]
    assert waits == [
        ["NAME", "NAMESPACE", "PENDING(Requested)"],
        ["half", "team", "100%"],
        ["later", "team", "3"],
        ["nonsense", "team", "-"],
    ]


CARDS = """
NAME    ALLGPU  USEDGPU  PENDING
big     2       2        -
small   1       0        -
<none>  -       -        3
"""
LINKS = """
gpu policy: -
----------------------------------------
node name: big
all gpu: 2
used gpu: 2
node type: V100
gpu topology:
      GPU0 GPU1
GPU0     X  NV2
GPU1   NV2    X
----------------------------------------
Legend:
"""


def test_summary_of_cards(beside: Beside) -> None:
    assert beside.run("gpu").stdout.splitlines() == shown(CARDS)


def test_links_of_busy_cards_stay_in_the_matrix(beside: Beside) -> None:
    lines = beside.run("gpu", "-d", "big").stdout.splitlines()
    assert lines[: len(shown(LINKS))] == shown(LINKS)
    assert [line.split(" = ")[0].strip() for line in lines if " = " in line] == [
        *["X", "SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "NV#", "N/A"]
    ]


@pytest.mark.slow
def test_links_are_printed_as_arena_reads_them(beside: Beside) -> None:
    printed = beside.run("gpu", "--arena").stdout
    (one,) = yaml.safe_load(printed)["items"]  # the links of the other node are not known
    assert yaml.safe_load(beside.run("gpu", "--arena", "-o", "json").stdout)["items"] == [one]
    assert (one["kind"], one["metadata"]["namespace"]) == ("ConfigMap", "kube-system")
    assert one["metadata"]["labels"] == {"ack.node.gpu.schedule": "topology", "nodename": "big"}
    assert {key: json.loads(value) for key, value in one["data"].items()} == {
        "devices": {"0": "Healthy", "1": "Healthy"},
        "linkType": [["N-A", "NV2"], ["NV2", "N-A"]],
    }


def test_a_node_whose_name_no_label_can_have_has_no_links_for_arena() -> None:
    empty = NodeUse(name="", address=None, type="T4", gpus=(), links=((0,),), pods=(), pending=(), closed=())
    names = ["n" * 63, "n" * 64]
    nodes = tuple(msgspec.structs.replace(empty, name=name) for name in names)
    seen = ClusterUse(nodes=nodes, pending=(), policy=None)
    assert [one["metadata"]["labels"]["nodename"] for one in link_maps(seen)["items"]] == names[:1]
    assert left_out(seen) == names[1:]


def test_a_pod_that_shares_a_gpu_without_an_amount_of_memory_is_named_with_its_gpu() -> None:
    parts = tuple(Part(gpu=gpu, memory_mib=mib, compute_percent=0) for gpu, mib in ((0, 1024), (1, 0)))
    pod = PodUse(namespace="team", name="shares", uid="u", gpus=2, requested_mib=1024, assigned=parts)
    node = NodeUse(name="n", address=None, type="MLU370", gpus=(), links=None, pods=(pod,), pending=(), closed=())
    seen = ClusterUse(nodes=(node,), pending=(), policy=None)
    notes = [line.split(maxsplit=1)[1].rstrip() for line in memory_details(seen, "GiB", False) if "NOTE:" in line]
    assert notes == ["pod team/shares shares GPU1 without an amount of memory"]


@pytest.mark.slow
def test_wide_tables_tell_more(beside: Beside) -> None:
    memory, cards = (beside.run(what, "-o", "wide").stdout.splitlines() for what in ("gpushare", "gpu"))
    assert [memory[0].split()[-4:], memory[1].split()[-4:]] == [
        ["Compute", "Pods", "Type", "State"],
        ["30%", "2", "V100", "ok"],
    ]
    assert cards[2].split() == ["small", "1", "0", "-", "0", "10.0.0.2", "T4", "cordoned"]


@pytest.mark.defect("gpushare inspect: the unit of memory is guessed")
def test_json_and_yaml_say_the_same_with_every_unit_in_its_name(beside: Beside) -> None:
    as_json = json.loads(beside.run("gpushare", "-o", "json").stdout)
    assert as_json == yaml.safe_load(beside.run("gpu", "-o", "yaml").stdout)
    assert [node["name"] for node in as_json["nodes"]] == ["big", "small"]
    assert as_json["nodes"][0]["gpus"][0] == {
        "index": 0,
        "uuid": "GPU-big-0",
        "type": "V100",
        "state": "ok",
        "memory_mib": 16384,
        "assigned_mib": 7144,
        "used_mib": 2048,
        "compute_percent": 30.0,
        "tenants": 2,
    }


def test_a_node_that_is_not_there_is_an_error_of_its_own(beside: Beside) -> None:
    done = beside.run("gpu", "nowhere")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "cotenant: the cluster has no node nowhere; `kubectl get nodes` lists its nodes\n"


def test_who_may_read_one_namespace_only_is_told_so(beside: Beside) -> None:
    beside.server.refusals.append(Refusal(403, "Forbidden", only="list"))
    done = beside.run("gpushare")
    assert done.stderr == "only pods of namespace team are counted; pods of other namespaces may use more\n"
    assert done.stdout.startswith("NAME")


def test_who_may_not_read_nodes_is_told_what_it_takes(beside: Beside) -> None:
    beside.server.nodes.refusals.append(Refusal(403, "Forbidden", only="list"))
    done = beside.run("gpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cotenant: you need the right to `list` nodes")


@pytest.mark.parametrize(
    ("name", "words", "begins"),
    [
        ("kubectl-inspect-gpushare", ["big"], "NAME  IPADDRESS"),
        ("kubectl-inspect-gpu", ["big"], "NAME  ALLGPU"),
        ("kubectl-cotenant", [*INSPECT, "gpu", "big"], "NAME  ALLGPU"),
    ],
)
def test_plugins_of_kubectl_are_the_same_commands(beside: Beside, name: str, words: list[str], begins: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts[name].partition(":")
    program = [sys.executable, "-c", f"from {module} import {function}; {function}()"]
    done = subprocess.run([*program, *words], env=beside.env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(begins)
    assert "big" in done.stdout


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    server = ApiServer()
    server.nodes.hang_everything = True
    beside = Beside(server, tmp_path)
    try:
        with subprocess.Popen(
            [*START, *INSPECT, "gpu"], env=beside.env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as command:
            while not server.asked:
                assert command.poll() is None
                time.sleep(0.01)
            command.send_signal(signal.SIGINT)
            out, error = command.communicate(timeout=300)
        assert (command.returncode, out, error.strip()) == (130, "", "cotenant: interrupted")
    finally:
        beside.close()


def test_an_empty_cluster_is_said_to_be_one(tmp_path: Path) -> None:
    beside = Beside(ApiServer(), tmp_path)
    try:
        assert beside.run("gpushare").stdout == "no node has GPUs that an agent has published\n"
    finally:
        beside.close()
