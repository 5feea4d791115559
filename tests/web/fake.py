# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A source without an engine, which tests change while pages are open, and a server of its pages."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import uvicorn

from cotenant.core.units import MiB, MilliGpu
from cotenant.web.access import Viewer
from cotenant.web.app import application
from cotenant.web.model import (
    Action,
    Charts,
    Day,
    Gpu,
    Health,
    JobDetail,
    JobRow,
    LogPiece,
    Moment,
    Neighbour,
    Node,
    Option,
    Overview,
    Probe,
    Series,
    State,
    Table,
    Tenant,
    Verb,
    Verdict,
    WhatIf,
    WhatIfAnswer,
)
from cotenant.web.sessions import Person, Rights, Sessions
from cotenant.web.site import Site
from cotenant.web.source import AbsentError

NAMES = (
    "bert-base",
    "resnet50",
    "gpt2-small",
    "llama-8b-serve",
    "yolo-v8",
    "whisper",
    "dlrm",
    "vit-large",
    "unet-ct",
    "tts",
)
USERS = ("alice", "bob", "carol", "dan", "erin")
REASONS = (
    "GPUs 2 3 are reserved for it, and it can start in about 12 min",
    "needs 40960 MiB on one GPU; the freest has 22528 MiB free",
    "needs 60 % of one GPU; the freest has 50 % free",
    "needs 4 GPUs that are linked by NVLink; the best 4 are not",
)
KEY = b"k" * 32
ALICE = Person("alice")


def made_overview(nodes: int = 1, gpus: int = 8, waiting: int = 7, seed: int = 4) -> Overview:
    """A plausible cluster; the same seed gives the same one."""
    draw, now = random.Random(seed), time.time()
    jobs: list[JobRow] = []
    made_nodes = []
    for node in range(nodes):
        name = "gpu-box" if nodes == 1 else f"node-{node:02}"
        made_nodes.append(_made_node(name, node, gpus, draw, now, jobs))
    queue = [
        JobRow(
            id=f"j-{900000 + number:06}",
            name=f"{draw.choice(NAMES)}-{number}",
            user=draw.choice(USERS),
            group=None,
            state=State.WAITING,
            reason=draw.choice(REASONS[1:]) if number else REASONS[0],
            asks=draw.choice(("1 GPU · 40 GiB", "1 GPU · 8 GiB · 60 %", "4 GPUs", "2 GPUs · 24 GiB · 50 %")),
            priority=draw.choice((0, 0, 0, 5)),
            submitted=now - draw.randrange(30, 9000),
        )
        for number in range(waiting)
    ]
    ended = [
        JobRow(
            id=f"j-{800000 + number:06}",
            name=f"{draw.choice(NAMES)}-e{number}",
            user=draw.choice(USERS),
            state=State.ENDED,
            ending="failed (1)" if number % 5 == 2 else "done",
            failed=number % 5 == 2,
            asks="1 GPU · 8 GiB",
            submitted=now - 20000,
            ended=now - 60 * number - 30,
        )
        for number in range(12)
    ]
    return Overview(
        name="gpu-box" if nodes == 1 else "cluster",
        policy="cotenant",
        devices=f"{gpus} NVIDIA GPUs",
        nodes=tuple(made_nodes),
        jobs=(*queue, *jobs, *ended),
    )


def _made_node(name: str, number: int, gpus: int, draw: random.Random, now: float, jobs: list[JobRow]) -> Node:
    found = []
    for index in range(gpus):
        tenants: list[Tenant] = []
        free, share = 81920, 1000
        for _ in range(draw.choice((0, 1, 2, 3, 3, 4, 4))):
            memory, compute = draw.choice((12288, 16384, 24576, 32768)), draw.choice((200, 250, 300, 400))
            if memory > free or compute > share:
                continue
            free, share = free - memory, share - compute
            job = f"j-{len(jobs) + 1:06}"
            speed = None if draw.random() < 0.1 else round(1.0 - min(0.5, draw.expovariate(9)), 2)
            tenant = Tenant(
                job=job,
                name=f"{draw.choice(NAMES)}-{len(jobs) + 1}",
                user=draw.choice(USERS),
                memory_mib=MiB(memory),
                used_mib=MiB(int(memory * draw.uniform(0.35, 1.0))),
                compute=MilliGpu(compute),
                used_compute=MilliGpu(int(compute * draw.uniform(0.3, 1.0))),
                speed=speed,
                predicted=None if speed is None else min(1.0, round(speed + 0.03, 2)),
                rung=draw.choice(("preload", "preload", "mps")),
                batch=draw.choice((16, 32, 64, 128)),
            )
            tenants.append(tenant)
            jobs.append(
                JobRow(
                    id=job,
                    name=tenant.name,
                    user=tenant.user,
                    state=State.RUNNING,
                    reason=f"cotenant: 5 of 8 GPUs fit, best score 0.93; GPU {index} had {free} MiB and 40 % free",
                    asks=f"1 GPU · {memory // 1024} GiB · {compute // 10} %",
                    submitted=now - 9000,
                    started=now - draw.randrange(20, 8000),
                    node=name,
                    gpus=(index,),
                    speed=speed,
                    predicted=tenant.predicted,
                    batch=tenant.batch,
                    used_mib=tenant.used_mib,
                    limit_mib=tenant.memory_mib,
                )
            )
        sick = (number * gpus + index) % 61 == 5
        idle = (number * gpus + index) % 23 == 6 and bool(tenants)
        busy = 4.0 if idle else round(min(100.0, sum(one.used_compute or 0 for one in tenants) / 10), 0)
        found.append(
            Gpu(
                index=index,
                uuid=f"GPU-{number:04}-{index}",
                type="H100-80GB",
                memory_mib=MiB(81920),
                used_mib=MiB(sum(one.used_mib or 0 for one in tenants)),
                utilisation=0.0 if sick else busy,
                health=Health.FAULT if sick else Health.CORDONED if (number * gpus + index) % 47 == 7 else Health.OK,
                note="XID 79: the GPU has fallen off the bus" if sick else None,
                rungs=("preload", "mps"),
                temperature=38 + len(tenants) * 9,
                power_watts=90 + int(6 * busy),
                tenants=tuple(tenants),
            )
        )
    links = tuple(
        tuple("·" if i == k else "NV12" if i // 4 == k // 4 else "SYS" if (i + k) % 2 else "PIX" for k in range(gpus))
        for i in range(gpus)
    )
    return Node(name=name, gpus=tuple(found), links=links, facts=(("Driver", "570.86.15"), ("Devices", "NVIDIA")))


@dataclass
class FakeSource:
    """What tests set is what pages show."""

    overview: Overview = field(default_factory=made_overview)
    acted: list[tuple[str, Action]] = field(default_factory=list)
    lines: list[str] = field(default_factory=lambda: [f"step {i} loss {3 / (i + 1):.4f}\n" for i in range(200)])
    details: dict[str, JobDetail] = field(default_factory=dict)
    snapshots: int = 0
    flood: bool = False
    """whether the output never ends"""
    group_word: str | None = None
    _changed: set[asyncio.Event] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop | None = None

    def change(self, overview: Overview) -> None:
        """From another thread: the state is another one now."""

        def now() -> None:
            self.overview = overview
            for one in self._changed:
                one.set()

        assert self.loop is not None
        self.loop.call_soon_threadsafe(now)

    async def snapshot(self, viewer: Viewer) -> Overview:
        self.snapshots += 1
        return self.overview

    async def changes(self) -> AsyncGenerator[None, None]:
        event = asyncio.Event()
        self._changed.add(event)
        try:
            while True:
                yield
                await event.wait()
                event.clear()
        finally:
            self._changed.discard(event)

    async def job(self, viewer: Viewer, job: str) -> JobDetail:
        if job in self.details:
            return self.details[job]
        row = next((one for one in self.overview.jobs if one.id == job), None)
        if row is None:
            raise AbsentError(f"no job {job[:60]!r} here")
        company = tuple(
            tenant
            for node in self.overview.nodes
            for gpu in node.gpus
            if any(one.job == job for one in gpu.tenants)
            for tenant in gpu.tenants
        )
        began = row.started or row.submitted
        verdicts = tuple(
            Verdict(place=f"GPU {index}", fits=False, text=f"needs 40960 MiB; has {8000 + 1000 * index} MiB free")
            for index in range(4)
        )
        waits = row.state is State.WAITING
        return JobDetail(
            row=row,
            facts=(("Command", "python train.py --epochs 90"), ("Isolation", "preload"), ("Retries", "2")),
            timeline=(
                Moment(at=row.submitted, kind="submitted", text="submitted: python train.py"),
                Moment(at=began, kind="placed", text="placed on GPU 1"),
            ),
            verdicts=verdicts if waits else (),
            would_fit=("35 GiB or less would fit on GPU 3", "when whisper-4 ends, it fits on GPU 1") if waits else (),
            company=company,
            probes=() if waits else (Probe(at=began + 30, batch=48, text="0.94× at 412 samples/s; kept"),),
        )

    async def charts(self, viewer: Viewer, job: str) -> Charts:
        detail = await self.job(viewer, job)
        now = time.time()
        at = tuple(now - 600 + 3 * i for i in range(200))
        draw = random.Random(job)
        speeds = tuple(min(1.02, 0.9 + draw.gauss(0, 0.02) - (0.15 if 80 < i < 140 else 0)) for i in range(200))
        used = tuple(float(min(15000, 4000 + 160 * i)) for i in range(200))
        batches = tuple(32.0 if i < 60 else 64.0 if i < 140 else 48.0 for i in range(200))
        return Charts(
            speed=Series(at=at, lines=(("measured", speeds), ("predicted", (0.92,) * 200)), unit="×"),
            memory=Series(at=at, lines=(("used", used),), unit="MiB", limit=float(detail.row.limit_mib or 16384)),
            batch=Series(at=at, lines=(("batch", batches),)),
        )

    async def logs(self, viewer: Viewer, job: str) -> AsyncGenerator[LogPiece, None]:
        yield LogPiece("".join(self.lines))
        number = 0
        while self.flood:
            yield LogPiece("".join(f"line {number + i} of very many lines that a job writes\n" for i in range(3000)))
            number += 3000
            await asyncio.sleep(0.3)

    async def whatif(self, viewer: Viewer, wish: WhatIf) -> WhatIfAnswer:
        tenant = next(one for node in self.overview.nodes for gpu in node.gpus for one in gpu.tenants)
        near = Neighbour(job=tenant.job, name=tenant.name, before=0.97, after=0.83)
        return WhatIfAnswer(
            options=(
                Option(node=self.overview.nodes[0].name, gpus=(2,), speed=0.91, neighbours=(near,), text="score 0.93"),
            ),
            verdicts=(Verdict(place="GPU 0", fits=False, text="needs 8192 MiB; has 4096 MiB free"),),
            text=f"It would start at once on GPU 2, with {wish.memory or 'all memory'}.",
        )

    async def day(self, viewer: Viewer) -> Day | None:
        now = time.time()
        at = tuple(now - 86400 + 300 * i for i in range(288))
        draw = random.Random(1)
        busy = tuple(min(100.0, max(0.0, 60 + 25 * draw.random() - (30 if 60 < i < 110 else 0))) for i in range(288))
        held = tuple(min(100.0, one + 12) for one in busy)
        return Day(
            charts=(
                ("GPUs", Series(at=at, lines=(("busy", busy), ("promised", held)), unit="%")),
                ("Waiting jobs", Series(at=at, lines=(("waiting", tuple(float(draw.randrange(9)) for _ in at)),))),
            ),
            figures=(("GPU-hours occupied", "59.2 of 192.0"), ("Saved by sharing", "23.9 GPU-hours")),
            tables=(
                Table(
                    title="By user",
                    columns=("User", "GPU-hours", "Jobs", "Slowdown"),
                    rows=(("alice", "41.2", "12", "1.06×"), ("bob", "18.0", "31", "1.14×")),
                ),
            ),
            text=("59.2 GPU-hours were used; exclusive GPUs would have cost 83.1.",),
        )

    async def act(self, viewer: Viewer, action: Action) -> str:
        self.acted.append((viewer.name, action))
        return f"{action.target}: {action.verb} by {viewer.name}"


@dataclass
class Served:
    """A running server."""

    source: FakeSource
    sessions: Sessions
    url: str

    def link(self, *, act: bool = False) -> str:
        return f"{self.url}/enter#{self.sessions.token(ALICE, act=act)}"


@contextmanager
def served(source: FakeSource | None = None, port: int = 0, **options: object) -> Iterator[Served]:
    """Serves pages in a thread, on loopback."""
    source = source or FakeSource()
    sessions = Sessions(
        key=KEY, hosts=frozenset({"127.0.0.1", "localhost"}), rights_of=lambda person: Rights(frozenset(Verb))
    )
    started = threading.Event()
    found: list[uvicorn.Server] = []

    async def run() -> None:
        source.loop = asyncio.get_running_loop()
        app = application(Site(source=source, access=sessions, **options))  # type: ignore[arg-type]
        server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
        )
        server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]
        found.append(server)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        started.set()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    started.wait(60)
    bound = found[0].servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(source, sessions, f"http://127.0.0.1:{bound}")
    finally:
        found[0].should_exit = True
        thread.join(20)
