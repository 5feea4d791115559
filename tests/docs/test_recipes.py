# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING.md, followed in a scratch copy.

Each test makes one small change of a kind that CONTRIBUTING.md describes. It touches exactly the files that the row of
the table names, and then sees the change take effect in every engine that it concerns: the simulator, the daemon, and
the scheduler extender beside an API server.
"""

import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.recipes import recipes, unmatched
from tests.docs.scratch import Scratch
from tests.docs.test_guides import blocks
from tests.native import kit

pytestmark = pytest.mark.slow

ROWS = recipes()

CORE = "src/cotenant/core"
CODEC = "src/cotenant/kube/codec"
VENDORS = "src/cotenant/node/devices/vendors.py"
COMMANDS = "docs/reference/commands.md"
SETTINGS = "docs/reference/kube-settings.md"
DOCS = ("tests/docs", "--ignore=tests/docs/test_recipes.py", "--ignore=tests/docs/test_house.py")
"""tests that compare documents with the code"""
TWO_JOBS = """\
id,submitted_s,duration_s,memory,compute
first,0,100,1GiB,10%
second,1,100,1GiB,10%
"""

PLACED = """
import json
from cotenant.kube.settings import parse_settings
from tests.kube.control_plane import ControlPlane, play

answers = []

async def story(plane: ControlPlane) -> None:
    plane.add_node("n1", {gpus})
    for name in {pods}:
        plane.add_pod(name, memory=1000)
        answer = await plane.place(name, "n1")
        record = plane.annotation(name, "assignment")
        answers.append(answer if record is None else json.loads(record)["containers"][0]["gpus"][0]["gpu"])
    answers.append(json.dumps(await plane.why(name)))

play(story, parse_settings({settings!r}))
print(json.dumps(answers))
"""
"""places pods one after the other on a node and prints their GPUs, or why they were refused; then `why` of the last"""


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    folder = Path(tempfile.mkdtemp(prefix="recipe-"))
    try:
        yield Scratch(folder / "repository")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def follows(scratch: Scratch, recipe: str) -> None:
    """The files that were touched are those that the row names: none is missing, none is extra."""
    idle, extra = unmatched(ROWS[recipe], scratch.touched())
    assert (idle, extra) == ([], []), f"CONTRIBUTING.md, row {recipe!r}"


def placed(scratch: Scratch, gpus: int, *pods: str, settings: str = "") -> list[object]:
    answers: list[object] = scratch.ask(PLACED.format(gpus=gpus, pods=pods, settings=settings.encode()))
    return answers


def test_every_recipe_is_tested() -> None:
    tested = {name.removeprefix("test_recipe_").replace("_", " ") for name in globals() if name.startswith("test_rec")}
    assert set(ROWS) == tested


def test_recipe_policy(scratch: Scratch) -> None:
    """The policy of the guide, from the blocks of its page."""
    (function,), (line,), (scenario,) = (blocks("write-policy.md", kind) for kind in ("python", "text", "yaml"))
    scratch.append(f"{CORE}/placement/scores.py", f"\n\n{function}")
    scratch.insert(f"{CORE}/placement/policies.py", r"^ORDERS\b.*\{$", f"\n{line.rstrip()}")
    scratch.write("tests/scenarios/emptiest.yaml", scenario)
    scratch.replace(COMMANDS, r"`binpack`, `spread`", "`binpack`, `emptiest`, `spread`")
    follows(scratch, "policy")

    assert scratch.simulated(TWO_JOBS, nodes="1x2", policy="emptiest", job="second").decisions == [[[1]]]
    with scratch.daemon("--simulate", "2", "--gpu-memory", "1GiB", "--policy", "emptiest") as daemon:
        daemon.submit("first", "--memory", "100MiB")
        daemon.submit("second", "--memory", "100MiB")
        assert (daemon.job("first")["gpus"], daemon.job("second")["gpus"]) == ([0], [1])
    assert placed(scratch, 2, "a", "b", settings="scheduler: {policy: emptiest}")[:2] == ["GPU-n1-0", "GPU-n1-1"]
    assert placed(scratch, 2, "a", "b")[:2] == ["GPU-n1-0", "GPU-n1-0"]
    scratch.test("tests/scenarios", "tests/docs/test_commands.py", "-k", "emptiest or every_policy")


LARGEST = """

def largest_first(job: Job, now: Seconds) -> float:
    \"\"\"By the memory that the job needs.\"\"\"
    return -float(job.demand.memory)

"""


def add_largest(scratch: Scratch) -> None:
    """The queue order `largest`."""
    policies = f"{CORE}/placement/policies.py"
    scratch.replace(policies, r"^(QUEUES\b.*\{\n    \"fifo\".*)$", rf'{LARGEST}\n\1\n    "largest": largest_first,')
    scratch.write(
        "tests/scenarios/largest.yaml",
        textwrap.dedent("""\
        name: the largest job goes first
        cluster: {a: {gpus: 1, memory: 16GiB}}
        submit: [{job: small, memory: 8GiB}, {job: large, memory: 12GiB, submitted: 1}]
        queue: largest
        expect: {binpack: {large: a/0, small: {a: memory 8192 4096}}}
        """),
    )
    scratch.replace(COMMANDS, r"fifo\\\|fair", r"fifo\\|largest\\|fair")
    scratch.replace(SETTINGS, r"`fifo`, `fair`", "`fifo`, `largest`, `fair`")


def test_recipe_queue_order(scratch: Scratch) -> None:
    add_largest(scratch)
    scratch.reference()
    follows(scratch, "queue order")

    jobs = "id,submitted_s,duration_s,memory,compute\nfirst,0,100,9GiB,0%\nsmall,1,10,9GiB,0%\nlarge,2,900,12GiB,0%\n"
    simulated = scratch.simulated(jobs, nodes="1x1::16GiB", job="large", queue="largest")
    assert simulated.mean_wait_s == pytest.approx((0 + 999 + 98) / 3)
    with scratch.daemon("--simulate", "1", "--gpu-memory", "1GiB", "--queue", "largest") as daemon:
        daemon.submit("first", "--memory", "1GiB")
        daemon.submit("small", "--memory", "600MiB")
        daemon.submit("large", "--memory", "900MiB")
        daemon.run("cancel", "first")
        until = time.monotonic() + 20
        while daemon.job("large")["state"] != "running":
            assert time.monotonic() < until
            assert daemon.job("small")["state"] == "queued"
    scratch.test("tests/scenarios", *DOCS, "-k", "largest or queue_order or choices")


RELEASED = """
import json
from cotenant.kube.settings import parse_settings
from tests.kube.control_plane import ControlPlane, play, until

GATE = [{"name": "cotenant.io/queue"}]

async def story(plane: ControlPlane) -> None:
    plane.add_pod("small", memory=9000, schedulingGates=GATE)
    plane.add_pod("large", memory=12000, schedulingGates=GATE)
    await plane.knows("small", "large")
    plane.add_node("n1", 1, 16000)
    names = ("small", "large")
    await until(lambda: any(not plane.pod(name)["spec"].get("schedulingGates") for name in names))
    print(json.dumps([name for name in names if not plane.pod(name)["spec"].get("schedulingGates")]))

play(story, parse_settings(b"queue: {namespaces: [team], order: largest}"))
"""


def test_a_new_queue_order_is_known_to_the_cluster(scratch: Scratch) -> None:
    add_largest(scratch)
    assert scratch.ask(RELEASED) == ["large"]


CROWD = '''
def crowd(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    """At most two tenants on a GPU."""
    gpus = node.machine.gpus
    left = [i for i in eligible if gpus[i].slots - node.slots[i] < 2]
    text = "needs {needed} GPU with fewer than two tenants, {available} have"
    return left if len(left) >= demand.gpus else Reason("crowd", text, demand.gpus, len(left))


'''


def test_recipe_check(scratch: Scratch) -> None:
    scratch.replace(f"{CORE}/placement/checks.py", r"^(CHECKS\b.* = \()$", rf'{CROWD}\1\n    Check("crowd", crowd),')
    scratch.write(
        "tests/scenarios/crowd.yaml",
        textwrap.dedent("""\
        name: two tenants on a GPU are enough
        cluster: {a: {gpus: 1, memory: 16GiB}}
        running: [{job: first, memory: 1GiB, at: a/0}, {job: second, memory: 1GiB, at: a/0}]
        submit: [{job: third, memory: 10%}]
        expect: {binpack: {third: {a: crowd 1 0}}}
        """),
    )
    follows(scratch, "check")

    for memory in ("1GiB", "10%"):
        jobs = "id,submitted_s,duration_s,memory,compute\n"
        jobs += "".join(f"{name},{at},100,{memory},0%\n" for at, name in enumerate(("first", "second", "third")))
        assert scratch.simulated(jobs, nodes="1x1", job="third").decisions[0] == [], f"with {memory}"
    with scratch.daemon("--simulate", "1", "--gpu-memory", "1GiB") as daemon:
        for name in ("first", "second", "third"):
            daemon.submit(name, "--memory", "100MiB")
        assert daemon.job("third")["state"] == "queued"
        assert "fewer than two tenants, 0 have" in daemon.run("why", "third")
    first, second, refused, why = placed(scratch, 1, "a", "b", "c")
    assert (first, second) == ("GPU-n1-0", "GPU-n1-0")
    assert isinstance(refused, str)
    assert refused.startswith('{"n1": ')
    assert "fewer than two tenants, 0 have" in str(why)
    scratch.test("tests/scenarios", "-k", "enough or reason")


def add_dialect(scratch: Scratch, name: str, title: str, domain: str, more: str = "") -> None:
    """The dialect `name`, with resources of the domain, and otherwise as `vgpu`."""
    scratch.write(
        f"{CODEC}/{name}.py",
        textwrap.dedent(f'''\
        """The dialect of {title}."""

        from dataclasses import replace

        from cotenant.kube.codec.vgpu import VGPU

        {name.upper()} = replace(
            VGPU,
            name="{name}",
            count="{domain}/number",
            memory="{domain}/memory",
            memory_percent=None,
            compute="{domain}/cores",
            priority=None,{more}
        )
        '''),
    )
    scratch.append("src/cotenant/kube/README.md", f"\n[{name}.py](codec/{name}.py)\n")
    table = f"{CODEC}/settings.py"
    scratch.replace(
        table,
        r"^from cotenant.kube.codec.vgpu import VGPU$",
        rf"\g<0>\nfrom cotenant.kube.codec.{name} import {name.upper()}",
    )
    scratch.replace(table, r"^(DIALECTS = \()", rf"\1{name.upper()}, ")
    scratch.write(
        f"tests/kube/dialects/{name}.yaml",
        textwrap.dedent(f"""\
        name: memory is in MiB
        containers: [{{{domain}/memory: 3000}}]
        expect: {{gpus: 1, memory: 3000, compute: 0}}
        """),
    )
    row = f"| `{name}`: {title} | `{domain}/number` | `{domain}/memory`, MiB | | `{domain}/cores` | |\n"
    scratch.replace("docs/reference/dialects.md", r"^(\| `iadeep`)", row + r"\1")
    scratch.insert(SETTINGS, r"^# .*$", f"\n\nAnother dialect is `{name}`.")


PLACED_IN_DIALECT = """
import json
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.settings import parse_settings
from cotenant.node.devices.vendors import Vendor
from tests.kube.control_plane import ControlPlane, play
from tests.kube.pods import pod_object
from tests.kube.reviews import admitted, written

GPU = Gpu(uuid="GPU-a", type="{gpu}", memory=MiB(16000))
admits = admitted(written({{"{domain}/memory": 3000}}))["spec"]
answers = [admits["schedulerName"], admits["containers"][0]["resources"]["limits"]["{domain}/number"]]

async def story(plane: ControlPlane) -> None:
    inventory = inventory_for(Machine(name="n1", gpus=(GPU,)), Vendor("{vendor}"))
    plane.server.nodes.merge("n1", {{"metadata": {{"annotations": {{INVENTORY: inventory}}}}}})
    new = pod_object([{{"{domain}/memory": 3000}}], [], {{}}, None, {{"schedulerName": "cotenant-scheduler"}})
    new["metadata"] |= {{"name": "a", "uid": "uid-a"}}
    plane.server.merge("a", new, "team")
    answers.append(await plane.place("a", "n1"))
    record = plane.annotation("a", "assignment") or '{{"containers": []}}'
    answers.extend(held["gpus"][0]["memory"] for held in json.loads(record)["containers"])

play(story, parse_settings(b"dialects: {{{name}: {{}}}}"))
print(json.dumps(answers))
"""
"""admits and places a pod that requests 3000 MiB in a dialect"""
DIALECT_TESTS = ("tests/kube/test_codec_dialects.py", "tests/kube/test_settings.py", *DOCS, "-k", "dialect or map")


def test_recipe_dialect(scratch: Scratch) -> None:
    add_dialect(scratch, "volcano", "Volcano's vGPU plugin", "volcano.sh")
    scratch.replace(VENDORS, r'"iadeep"', '"iadeep", "volcano"')
    scratch.reference()
    follows(scratch, "dialect")

    placed = scratch.ask(PLACED_IN_DIALECT.format(name="volcano", domain="volcano.sh", vendor="nvidia", gpu="T4"))
    assert placed == ["cotenant-scheduler", "1", "n1", 3000]
    scratch.test(*DIALECT_TESTS)


ADAPTER = '''\
"""Acme's GPUs, as its driver lists them in a file: index, UUID, type and memory in MiB."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cotenant.core.units import MiB
from cotenant.node.devices.backend import NoDriverError
from cotenant.node.devices.polled import Identity, PolledBackend, Reading
from cotenant.node.devices.vendors import Vendor


def open_backend() -> PolledBackend:
    """The Acme GPUs; NoDriverError if there is no driver."""
    listed = Path(os.environ.get("ACME_DRIVER", "/proc/driver/acme"))
    if not listed.exists():
        raise NoDriverError("no Acme driver is installed")
    return PolledBackend(AcmeDriver(listed))


class AcmeDriver:
    """The list of the driver."""

    vendor = Vendor.ACME

    def __init__(self, listed: Path) -> None:
        self._gpus = [line.split() for line in listed.read_text().splitlines()]

    def open(self) -> int:
        return len(self._gpus)

    def close(self) -> None:
        """Nothing is open."""

    def uuid(self, index: int) -> str:
        return self._gpus[index][0]

    def identity(self, index: int) -> Identity:
        return Identity(self._gpus[index][1], MiB(int(self._gpus[index][2])), None)

    def fault(self, index: int) -> str | None:
        return None

    def reading(self, index: int) -> Reading:
        return Reading(MiB(0), 0, ())

    def links(self, indices: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        return ()
'''
VENDOR_ROW = """\
    Vendor.ACME: Row(
        title="Acme",
        adapter="cotenant.node.devices.acme",
        visible=("ACME_VISIBLE_DEVICES",),
        runtime_variable="ACME_VISIBLE_DEVICES",
        dialects=("acme",),
    ),
"""


def test_recipe_vendor(scratch: Scratch) -> None:
    scratch.write("src/cotenant/node/devices/acme.py", ADAPTER)
    scratch.insert(VENDORS, r'^    AMD = "amd"$', '\n    ACME = "acme"')
    scratch.replace(VENDORS, r"^    Vendor.SIMULATED: Row\($", VENDOR_ROW + r"\g<0>")
    scratch.append("src/cotenant/node/README.md", "\n| Acme | [acme.py](devices/acme.py) |\n")
    variables = "variables=lambda dialect, given: {'ACME_VISIBLE_DEVICES': ','.join(map(str, given.gpus))},"
    add_dialect(scratch, "acme", "Acme's plugin (`ACME_VISIBLE_DEVICES`)", "acme.example", variables)
    scratch.replace_all(COMMANDS, r"cambricon\\\|amd", r"cambricon\\|amd\\|acme")
    scratch.write(
        "tests/node/test_acme.py",
        textwrap.dedent("""\
        import importlib
        from pathlib import Path

        import pytest

        from cotenant.node.devices.vendors import Vendor


        def test_the_driver_s_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
            (tmp_path / "driver").write_text("GPU-a Acme-1 16000\\n")
            monkeypatch.setenv("ACME_DRIVER", str(tmp_path / "driver"))
            backend = importlib.import_module(Vendor("acme").row.adapter).open_backend()
            assert [gpu.uuid for gpu in backend.machine().gpus] == ["GPU-a"]
            backend.close()
        """),
    )
    scratch.reference()
    follows(scratch, "vendor")

    driver = scratch.root.parent / "driver"
    driver.write_text("GPU-a Acme-1 16000\nGPU-b Acme-1 16000\n")
    with scratch.daemon("--vendor", "acme", ACME_DRIVER=str(driver)) as daemon:
        command = ("sh", "-c", "echo $ACME_VISIBLE_DEVICES")
        daemon.run("submit", "--name", "first", "--memory", "1GiB", "--wait", "--", *command)
        assert daemon.run("logs", "first") == "GPU-a\n"
        assert "cannot be enforced on Acme GPUs" in daemon.run("show", "first")
    placed = scratch.ask(PLACED_IN_DIALECT.format(name="acme", domain="acme.example", vendor="acme", gpu="Acme-1"))
    assert placed == ["cotenant-scheduler", "1", "n1", 3000]
    scratch.test(*DIALECT_TESTS)
    scratch.test("tests/node/test_vendors.py", "tests/docs/test_commands.py", "-k", "vendor or choices")
    scratch.test("tests/node/test_acme.py")


def test_recipe_setting(scratch: Scratch) -> None:
    field = '    team_label: Name | None = None\n    """Annotation of pods with GPUs that carries their namespace."""\n'
    scratch.replace("src/cotenant/kube/settings.py", r"^    runtime_class: Name", field + r"\g<0>")
    row = "| | `team-label` | none | annotation of pods with GPUs that carries their namespace |\n"
    scratch.replace(SETTINGS, r"^(\| \| `runtime-class`)", row + r"\1")
    scratch.replace(
        scratch.find("src/cotenant/kube/webhook", 'spec["schedulerName"] = '),
        r"^( +)spec\[\"schedulerName\"\] = .*$",
        r"\g<0>\n\1if settings.webhook.team_label:\n\1    annotations[settings.webhook.team_label] = namespace",
    )
    scratch.write(
        "tests/kube/test_team_label.py",
        textwrap.dedent("""\
        from cotenant.kube.settings import parse_settings
        from tests.kube.reviews import admitted, written


        def test_the_annotation_carries_the_namespace() -> None:
            settings = parse_settings(b"webhook: {team-label: example.com/team}")
            pod = admitted(written({"nvidia.com/gpumem": 3000}), settings)
            assert pod["metadata"]["annotations"]["example.com/team"] == "team"
        """),
    )
    scratch.reference()
    follows(scratch, "setting")

    answer = scratch.ask(
        textwrap.dedent("""
        import json
        from cotenant.kube.settings import KubeSettings, parse_settings
        from tests.kube.reviews import admitted, written

        pod = written({"nvidia.com/gpumem": 3000})
        settings = parse_settings(b"webhook: {team-label: example.com/team}"), KubeSettings()
        print(json.dumps([admitted(pod, one)["metadata"]["annotations"].get("example.com/team") for one in settings]))
        """)
    )
    assert answer == ["team", None]
    (scratch.root.parent / "settings.yaml").write_text("webhook: {team-label: example.com/team}\n")
    words = ("kube", "install", "--print", "--kube-version", "v1.34.0", "--settings", "settings.yaml")
    assert r"\"team-label\": \"example.com/team\"" in scratch.run(*words).stdout
    scratch.test("tests/kube/test_settings.py", *DOCS, "-k", "setting")
    scratch.test("tests/kube/test_team_label.py")


def test_recipe_metric(scratch: Scratch) -> None:
    row = '    _gpu("free_slots", "Tenants that the GPU can still take.", lambda gpu: gpu.slots - gpu.tenants),'
    scratch.insert("src/cotenant/metrics/table.py", r"^GPU: .*$", f"\n{row}")
    scratch.reference()
    follows(scratch, "metric")

    text = scratch.ask(
        "import asyncio, json\nfrom tests.metrics.nodes import node\nfrom tests.metrics.test_page import scrape\n"
        "print(json.dumps(scrape(node()).decode()))"
    )
    assert '\ncotenant_gpu_free_slots{node="n1",gpu="GPU-0"} 1.0\n' in text
    scratch.test("tests/docs/test_reference.py", "tests/metrics/test_table.py", "-k", "metrics or table")


def test_recipe_local_command(scratch: Scratch) -> None:
    scratch.write(
        "src/cotenant/cli/count.py",
        textwrap.dedent('''\
        """`cotenant count`: how many jobs there are."""

        import click

        from cotenant.client.client import Client

        EPILOG = """\\b
        Example:
          cotenant count --state queued
        """


        @click.command(epilog=EPILOG)
        @click.option("--state", default="running", show_default=True, help="State of the jobs to count.")
        def count(state: str) -> None:
            """Prints the number of jobs."""
            click.echo(len(Client().get(f"/v1/jobs?state={state}", list[object])))
        '''),
    )
    scratch.insert(
        "src/cotenant/cli/main.py",
        r'^        "jobs": \(.*\),$',
        '\n        "count": ("count", "Prints the number of jobs."),',
    )
    section = """\
## cotenant count

Prints the number of jobs in a state.

| Option | Meaning | Default |
|---|---|---|
| `--state STATE` | state of the jobs to count | `running` |

```console
$ cotenant up --detach --simulate 1 --gpu-memory 1GiB
$ cotenant count --state queued
```

"""
    scratch.replace(COMMANDS, r"^(## cotenant jobs$)", section.replace("\\", r"\\") + r"\1")
    scratch.append("src/cotenant/cli/README.md", "\n| `cotenant count` | [count.py](count.py) |\n")
    scratch.write(
        "tests/cli/test_count.py",
        textwrap.dedent("""\
        from tests.cli.command import run


        def test_without_a_daemon_it_says_so() -> None:
            assert "cotenant up" in run("count").stderr
        """),
    )
    scratch.reference()
    follows(scratch, "local command")

    assert "count " in scratch.run("--help").stdout
    with scratch.daemon("--simulate", "1", "--gpu-memory", "1GiB") as daemon:
        daemon.submit("first", "--memory", "1GiB")
        daemon.submit("second", "--memory", "1GiB")
        assert daemon.run("count", "--state", "queued") == "1\n"
    scratch.test(
        "tests/docs/test_commands.py", "-k", "count or every_command_is_on or lists_every", "-p", "no:randomly"
    )
    scratch.test("tests/cli/test_count.py")


def test_recipe_trace(scratch: Scratch) -> None:
    traces = "src/cotenant/sim/traces"
    scratch.write(
        f"{traces}/slurm.py",
        textwrap.dedent('''\
        """Accounting tables of Slurm."""

        from collections.abc import Iterator

        from cotenant.core.model import Job
        from cotenant.core.units import Seconds
        from cotenant.sim.arrivals import Arrival
        from cotenant.sim.traces import fields
        from cotenant.sim.traces.rows import Row, arrivals
        from cotenant.sim.traces.source import Format, Source


        def read(source: Source) -> Iterator[Arrival]:
            def arrival(_line: int, row: Row) -> Arrival:
                replicas, demand = fields.whole_gpus(fields.gpu_count(row, "AllocGPUs"), source.gpus_per_node)
                submitted = Seconds(fields.number(row["Submit"], "Submit", 0, fields.LATEST))
                job = Job(id=row["JobID"], demand=demand, replicas=replicas, submitted=submitted)
                return Arrival(job, Seconds(fields.number(row["ElapsedRaw"], "ElapsedRaw", 0, fields.LONGEST)))

            return arrivals(source.path, arrival)


        FORMAT = Format(name="slurm", columns=("JobID", "Submit", "ElapsedRaw", "AllocGPUs"), read=read)
        '''),
    )
    registry = f"{traces}/registry.py"
    scratch.replace(registry, r"^(from cotenant.sim.traces import .*recorded)$", r"\1, slurm")
    scratch.replace(registry, r"^(FORMATS = \()", r"\1slurm.FORMAT, ")
    sample = "JobID,Submit,ElapsedRaw,AllocGPUs\n7,0,60,2\n8,30,60,8\n"
    scratch.write("tests/sim/samples/slurm.csv", sample)
    scratch.append(
        "tests/sim/test_traces.py",
        textwrap.dedent("""

        def test_slurm_rows_are_whole_gpus() -> None:
            assert [job.demand.gpus for job in (one.job for one in jobs_of(SAMPLES / "slurm.csv"))] == [2, 8]
        """),
    )
    row = "| slurm | `JobID`, `Submit`, `ElapsedRaw`, `AllocGPUs` | whole GPUs |\n"
    scratch.replace("docs/reference/traces.md", r"^(\| philly \|)", row + r"\1")
    follows(scratch, "trace")

    assert scratch.simulated(sample, nodes="1x8", job="8").decisions == [[], [list(range(8))]]
    scratch.test("tests/sim/test_traces.py", "-k", "slurm")


CLIENT = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
held, context = ctypes.c_void_p(), ctypes.c_void_p()
results = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
results += [cuda.cuMemHostAlloc(ctypes.byref(held), ctypes.c_size_t(size), 0) for size in (1 << 20, 1 << 30)]
print(json.dumps(results))
"""
"""allocates 1 MiB and then 1 GiB of host memory"""

HOST_HOOK = """

// Host memory that the device can reach; no more than 16 MiB at once.
CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    CT_ENTER();
    return size > (16 << 20) ? CUDA_ERROR_OUT_OF_MEMORY : CALL(cuMemHostAlloc, pointer, size, flags);
}
"""


def test_recipe_driver_hook(scratch: Scratch) -> None:
    lib = "native/lib"
    scratch.insert(f"{lib}/hooks.def", r"^HOOK\(cuMemAllocManaged, ALLOCATES\)$", "\nHOOK(cuMemHostAlloc, ALLOCATES)")
    scratch.replace(f"{lib}/declined.def", r"^DECLINED\(cuMemHostAlloc, .*\n", "")
    declaration = "\nCUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);"
    scratch.insert(f"{lib}/cuda_abi.h", r"^CUresult cuMemAllocManaged\(.*\);$", declaration)
    scratch.append(f"{lib}/memory.c", HOST_HOOK)
    follows(scratch, "driver hook")

    build = [sys.executable, str(scratch.root / "native" / "build.py"), "library", "--out", str(scratch.root.parent)]
    built = subprocess.run(build, check=True, capture_output=True, text=True).stdout.strip()
    place = kit.Slice(scratch.root.parent).write(memory=kit.GIB)
    before = kit.run(place, [sys.executable, "-c", CLIENT])
    after = kit.run(place, [sys.executable, "-c", CLIENT], env={"LD_PRELOAD": built})
    assert before.stdout == "[0, 0, 0, 0, 0]\n", before.stderr
    assert after.stdout == "[0, 0, 0, 0, 2]\n", after.stderr
    scratch.test("tests/native/test_coverage.py", "-k", "both or exported or reason")
