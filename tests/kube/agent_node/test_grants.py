# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent grants the memory of a GPU to containers, over the stand-in driver, and goes on after a restart."""

import asyncio
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.agent.allocating import HostPlaces, at, ensure_slice, prepare, renew_slice, slice_name
from cotenant.kube.agent.claim_files import slice_of_claim
from cotenant.kube.agent.grants import PodGrants
from cotenant.kube.agent.jobs import PROCESSES_NAME
from cotenant.kube.agent.podresources import Listed
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Metadata, Pod, PodClaim, PodContainer, PodSpec
from cotenant.kube.api.objects import Node as NodeObject
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.kube.codec.grants import Grants, grants_of
from cotenant.kube.codec.inventory import GRANTS as PUBLISHED
from cotenant.kube.codec.paths import GRANTS
from cotenant.node.limits import GpuLimit, Limits, limits_text, read_limits
from cotenant.node.region import HEADER
from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import OUT_OF_MEMORY, Probe, probe
from tests.node.granting import Allocation

CARD_MIB = 8192
COUNT = "nvidia.com/gpu"


class Node:
    """A node with one GPU and its agent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, HostPlaces(lasting=at(folder / "l"), passing=at(folder / "p"))
        prepare(self.host, None)
        self.machine = Machine(name="n1", gpus=(Gpu(uuid=kit.gpu(), memory=MiB(CARD_MIB)),))
        self.pods: dict[str, Pod] = {}
        self.listed: list[Listed] = []
        self.published: list[str | None] = []
        self.start_agent()

    def start_agent(self) -> None:
        """Another agent, which knows nothing but the files."""
        self.agent = PodGrants(
            self.host,
            self.pods.values,
            lambda: self.machine,
            tuple,
            self._list,
            self.published.append,
            ErrorLog(print),
        )
        self.agent.pods_changed()

    async def _list(self) -> list[Listed]:
        return self.listed

    def add(self, name: str, share: Share) -> kit.Slice:
        """A pod with one container, whose slice is there."""
        self._add_pod(name, Held(number=0, gpus=(share,)))
        device = f"{kit.gpu()}::{len(self.pods)}"
        renew_slice(self.host, COUNT, [device])
        self.listed.append(
            Listed(namespace="team", pod=name, container="main", resource=COUNT, devices=frozenset((device,)))
        )
        return self._place(name, share, slice_name(COUNT, [device]))

    def add_user(self, name: str, share: Share, claim: str) -> kit.Slice:
        """A pod with one container that uses a claim, which is prepared; kubelet lists no device of it."""
        self._add_pod(name, Held(number=0, gpus=(share,), claim=claim, request="gpu"))
        ensure_slice(self.host, slice_of_claim(claim))
        return self._place(name, share, slice_of_claim(claim))

    def _add_pod(self, name: str, held: Held) -> None:
        record = Record(pod=f"uid-{name}", node="n1", containers=(held,))
        claims = (PodClaim(name="gpu", resource_claim_name=held.claim),) if held.claim else ()
        spec = PodSpec(containers=(PodContainer(name="main"),), node_name="n1", resource_claims=claims)
        annotations = {RECORD: encode_record(record)}
        about = Metadata(name=name, namespace="team", uid=record.pod, annotations=annotations)
        self.pods[record.pod] = Pod(metadata=about, spec=spec)

    def _place(self, name: str, share: Share, slice_: str) -> kit.Slice:
        self.agent.pods_changed()
        limit = GpuLimit(kit.gpu(), share.memory * MIB)
        if share.memory_limit:
            limit = GpuLimit(kit.gpu(), 0, request_bytes=share.memory * MIB, most_bytes=share.memory_limit * MIB)
        limits = Limits(gpus=(limit,), region=self.host.regions.seen / slice_)
        place = self.folder / name
        place.mkdir()
        (place / "limits").write_text(limits_text(replace(limits, grants=self._grants_in(slice_))))
        return kit.Slice(place)

    def grants_file(self, device: str) -> Path:
        return self._grants_in(slice_name(COUNT, [device]))

    def _grants_in(self, slice_: str) -> Path:
        return self.host.slices.seen / slice_ / PROCESSES_NAME / GRANTS.name

    def probe(self, place: kit.Slice) -> AbstractContextManager[Probe]:
        return probe(place, memory_mib=CARD_MIB, state=str(self.folder / "gpus"))

    async def until(self, done: Callable[[], object]) -> None:
        """Runs the agent until something holds."""
        task = asyncio.ensure_future(self.agent.run())
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        task.cancel()

    def lacks(self) -> list[tuple[str, list[str]]]:
        said = [text for text in self.published if text is not None]
        report = msgspec.json.decode(said[-1], type=Grants) if said else None
        return [] if report is None else [(one.pod, list(one.above)) for one in report.lacks]


def elastic(request: int, limit: int) -> Share:
    return Share(gpu=kit.gpu(), memory=request, compute=0, memory_limit=limit)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def allocate(node: Node, caller: Probe, place: int, mib: int) -> int:
    allocation = Allocation(caller, place, mib)
    await node.until(lambda: allocation.answers)
    return allocation.answers[0]


def test_a_container_borrows_and_its_owner_gets_it_back_though_the_agent_was_killed(node: Node) -> None:
    async def story() -> None:
        far, owner = node.add("far", elastic(4096, 8000)), node.add("owner", elastic(4096, 8000))
        with node.probe(far) as one, node.probe(owner) as other:
            assert await allocate(node, one, 0, 6144) == 0
            node.start_agent()
            wanting = Allocation(other, 0, 3900)
            await node.until(lambda: node.lacks() == [("uid-owner", ["uid-far"])])
            assert not wanting.answers
            assert one.call("alloc", 1, 64 * MIB).result == OUT_OF_MEMORY  # it may not grow meanwhile
            node.start_agent()
            one.process.kill()
            await node.until(lambda: wanting.answers)
            assert wanting.answers == [0]
            await node.until(lambda: not node.lacks())

    asyncio.run(story())


def test_pods_that_share_a_claim_borrow_together_and_what_they_have_counts_once(node: Node) -> None:
    async def story() -> None:
        shared, owner = node.add_user("far", elastic(4096, 8000), "c1"), node.add("owner", elastic(4096, 8000))
        also = node.add_user("near", elastic(4096, 8000), "c1")
        with node.probe(shared) as one, node.probe(also) as two, node.probe(owner) as other:
            assert await allocate(node, one, 0, 5000) == 0  # more than its request: the owner uses nothing
            assert await allocate(node, two, 0, 1000) == 0
            wanting = Allocation(other, 0, 3900)
            await node.until(lambda: node.lacks() == [("uid-owner", ["uid-far"])])
            one.process.kill()
            await node.until(lambda: wanting.answers)
            assert wanting.answers == [0]
            del node.pods["uid-far"]
            node.agent.pods_changed()
            assert await allocate(node, two, 1, 2000) == 0  # within the request of the claim, which the other pod has
            assert await allocate(node, two, 2, 2000) != 0

    asyncio.run(story())


def test_a_pod_that_leaves_soon_is_not_named_again(node: Node) -> None:
    async def story() -> None:
        far, owner = node.add("far", elastic(4096, 8000)), node.add("owner", elastic(4096, 8000))
        with node.probe(far) as one, node.probe(owner) as other:
            assert await allocate(node, one, 0, 6144) == 0
            wanting = Allocation(other, 0, 3900)
            await node.until(lambda: node.lacks() == [("uid-owner", ["uid-far"])])
            pod = node.pods["uid-far"]
            replace = msgspec.structs.replace
            leaving = replace(
                pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=600
            )
            node.pods["uid-far"] = replace(pod, metadata=leaving)
            node.start_agent()
            node.published.clear()
            await node.until(lambda: node.lacks() == [("uid-owner", ["uid-far"])])  # it could stay for ten minutes
            leaving = replace(leaving, deletion_grace_period_seconds=5)
            node.pods["uid-far"] = replace(pod, metadata=leaving)
            node.agent.pods_changed()
            await node.until(lambda: not node.lacks())
            one.process.kill()
            await node.until(lambda: wanting.answers)

    asyncio.run(story())


def test_what_other_pods_request_is_never_lent(node: Node) -> None:
    async def story() -> None:
        node.add("fixed", Share(gpu=kit.gpu(), memory=6000, compute=0))
        with node.probe(node.add("far", elastic(1024, 8000))) as one:
            assert await allocate(node, one, 0, 1024) == 0
            assert await allocate(node, one, 1, 1500) != 0
            assert await allocate(node, one, 1, 400) == 0

    asyncio.run(story())


def test_a_request_that_was_resized_counts_at_once(node: Node) -> None:
    async def story() -> None:
        node.add("fixed", Share(gpu=kit.gpu(), memory=4096, compute=0))
        with node.probe(node.add("grows", elastic(1024, 4096))) as one:
            assert await allocate(node, one, 0, 1024) == 0
            pod = node.pods["uid-grows"]
            record = Record(pod="uid-grows", node="n1", containers=(Held(number=0, gpus=(elastic(3072, 4096),)),))
            about = msgspec.structs.replace(pod.metadata, annotations={RECORD: encode_record(record)})
            node.pods["uid-grows"] = msgspec.structs.replace(pod, metadata=about)
            node.agent.pods_changed()
            (listed,) = [one for one in node.listed if one.pod == "grows"]
            file = node.grants_file(min(listed.devices))
            await node.until(lambda: read_limits(file).gpus[0].request_bytes == 3072 * MIB)
            assert await allocate(node, one, 1, 2048) == 0

    asyncio.run(story())


def test_compute_that_no_pod_requests_is_divided(node: Node) -> None:
    async def story() -> None:
        share = Share(gpu=kit.gpu(), memory=1024, compute=200, compute_limit=600)
        node.add("one", share)
        node.add("two", Share(gpu=kit.gpu(), memory=1024, compute=500))
        file = node.grants_file(min(node.listed[0].devices))
        await node.until(lambda: file.exists() and read_limits(file).gpus[0].compute == 500)

    asyncio.run(story())


def test_a_tenant_that_writes_any_number_into_its_region_spoils_no_report(node: Node) -> None:
    async def story() -> None:
        liar = node.add("liar", elastic(4096, 8000))
        region = node.host.regions.seen / slice_name(COUNT, node.listed[0].devices)
        with node.probe(liar) as one:
            assert await allocate(node, one, 0, 64) == 0
            with region.open("r+b") as file:
                file.seek(HEADER.size + struct.calcsize("<IIQQQ16Q"))  # what its first process uses
                file.write(struct.pack("<Q", (1 << 63) - 1))
            node.start_agent()
            node.published.clear()
            await node.until(lambda: any(text is not None for text in node.published))
            said = NodeObject(metadata=Metadata(name="n1", annotations={PUBLISHED: node.published[-1] or ""}))
            assert grants_of(said).pods["uid-liar"][0].used == CARD_MIB

    asyncio.run(story())


def test_nothing_is_published_of_pods_that_are_gone(node: Node) -> None:
    async def story() -> None:
        node.add("far", elastic(4096, 8000))
        await node.until(lambda: node.published)
        node.pods.clear()
        node.agent.pods_changed()
        await node.until(lambda: node.published[-1] is None)

    asyncio.run(story())
