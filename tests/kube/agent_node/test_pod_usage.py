# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that pods use, by what the driver says of their processes."""

from pathlib import Path

from cotenant.core.units import MiB
from cotenant.kube.agent.pod_usage import beyond_assignment, memory_of_pods
from cotenant.kube.api.objects import Metadata, Pod, PodSpec
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.node.devices.backend import GpuUsage, ProcessUsage
from tests.kube.agent_node.processes import add_process

ONE, TWO = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"


def test_memory_beyond_an_assignment_is_seen_by_pod_and_gpu(tmp_path: Path) -> None:
    pods = [_placed("one", ONE, {"GPU-a": 3072}), _placed("two", TWO, {"GPU-a": 1000, "GPU-b": 1000})]
    for pid, uid in ((11, ONE), (12, ONE), (13, TWO), (14, "of another pod")):
        add_process(tmp_path, pid, f"0::/kubepods/besteffort/pod{uid}/{'aa' * 32}")
    usage = [
        _used("GPU-a", {11: 4000, 12: 1120, 13: 900, 14: 7}),
        _used("GPU-b", {13: None}),
    ]
    found = memory_of_pods(usage, pods, tmp_path)
    assert [tuple(one) for one in found] == [
        ("team", "one", "GPU-a", 5120, 3072, ONE, 3072),
        ("team", "two", "GPU-a", 900, 1000, TWO, 1000),
        ("team", "two", "GPU-b", 0, 1000, TWO, 1000),
    ]
    assert beyond_assignment(found) == {ONE: {"GPU-a": 5120}}
    assert str(found[0]) == "pod team/one uses 5120 of 3072 MiB of GPU GPU-a"


def test_a_share_without_an_amount_of_memory_is_never_exceeded(tmp_path: Path) -> None:
    add_process(tmp_path, 11, f"0::/kubepods/besteffort/pod{ONE}/{'aa' * 32}")
    (found,) = memory_of_pods([_used("GPU-a", {11: 4000})], [_placed("one", ONE, {"GPU-a": 0})], tmp_path)
    assert (found.used_mib, found.is_beyond) == (4000, False)
    assert beyond_assignment([found]) == {}


def _used(uuid: str, by_process: dict[int, int | None]) -> GpuUsage:
    processes = tuple(ProcessUsage(pid, None if mib is None else MiB(mib), None) for pid, mib in by_process.items())
    return GpuUsage(uuid=uuid, used_mib=None, utilisation=None, processes=processes)


def _placed(name: str, uid: str, memory: dict[str, int]) -> Pod:
    shares = tuple(Share(gpu=gpu, memory=mib, compute=0) for gpu, mib in memory.items())
    record = Record(pod=uid, node="n1", containers=(Held(number=0, gpus=shares),))
    metadata = Metadata(name=name, namespace="team", uid=uid, annotations={RECORD: encode_record(record)})
    return Pod(metadata=metadata, spec=PodSpec(node_name="n1"))
