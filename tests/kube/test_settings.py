# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The settings file of the Kubernetes engine: what it may say, what wins, and what is refused."""

import json
from pathlib import Path

import pytest

from cotenant.core.placement.policies import QUEUES
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.settings import GpuSharing, KubeSettings, parse_settings, read_settings
from tests.kube.pods import pod


def test_nothing_said_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_settings(tmp_path / "empty.yaml") == KubeSettings() == read_settings(None)


def test_resources_may_have_other_names() -> None:
    said = parse_settings(b"dialects: {vgpu: {count: example.com/vgpu, memory: example.com/mem, memory-unit: GiB}}")
    request = request_of(pod({"example.com/vgpu": 1, "example.com/mem": 3}), said.codec())
    assert request.demand.memory == MiB(3072)
    assert request_of(pod({"nvidia.com/gpu": 1}), said.codec()).containers == ()


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("vgpu", ("count", "memory", "memory-percent", "compute", "priority")),
        ("cambricon", ("count", "memory", "compute")),
        ("cambricon-smlu", ("count", "memory", "compute")),
    ],
)
def test_every_resource_of_a_dialect_may_have_another_name(dialect: str, names: tuple[str, ...]) -> None:
    others = {name: f"example.com/{name}" for name in names}
    said = parse_settings(json.dumps({"dialects": {dialect: others}}).encode())
    (found,) = (one for one in said.codec().dialects if one.name == dialect)
    assert {name: getattr(found, name.replace("-", "_")) for name in names} == others
    assert set(others.values()) <= said.codec().by_resource.keys()


def test_a_dialect_that_is_null_is_not_spoken() -> None:
    codec = parse_settings(b"dialects: {topology: null}").codec()
    assert "aliyun.com/gpu" not in codec.by_resource
    assert "nvidia.com/gpu" in codec.by_resource


def test_what_a_pod_does_not_say_is_settable() -> None:
    codec = parse_settings(b"defaults: {gpus: 2, memory: 2000, compute: 30}").codec()
    demand = request_of(pod({"nvidia.com/gpumem": 1000}), codec).demand
    assert (demand.gpus, demand.memory, demand.compute) == (2, MiB(1000), MilliGpu(300))
    demand = request_of(pod({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 10}), codec).demand
    assert (demand.gpus, demand.memory, demand.compute) == (1, MiB(2000), MilliGpu(100))


def test_the_nearest_word_on_a_card_wins() -> None:
    said = parse_settings(
        b"""
        gpus: {split: 8, memory-scaling: 120, compute-scaling: 110}
        nodes:
          n1: {split: 4, compute-scaling: 99, gpus: {GPU-a: {memory-scaling: 200}, "1": {split: 2}}, hide: [GPU-c, "3"]}
        """
    )
    assert said.sharing_of("n1", "GPU-a", 0) == GpuSharing(split=4, memory_scaling=200, compute_scaling=99)
    assert said.sharing_of("n1", "GPU-b", 1) == GpuSharing(split=2, memory_scaling=120, compute_scaling=99)
    assert said.sharing_of("n1", "GPU-c", 2) is None
    assert said.sharing_of("n1", "GPU-d", 3) is None
    assert said.sharing_of("n2", "GPU-c", 3) == GpuSharing(split=8, memory_scaling=120, compute_scaling=110)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scheduler: {polcy: spread}", "polcy"),
        ("version: 2", "version"),
        ("gpus: {split: 0}", "split"),
        ("queue: {order: lifo}", "lifo"),
        ("queue: {namespaces: batch}", "namespaces"),
        ("gpus: {memory-scaling: 0}", "memory-scaling"),
        ("dialects: {hami: {}}", "unknown dialect 'hami'"),
        ("dialects: {vgpu: {count: aliyun.com/gpu}}", "two dialects use it"),
        ("dialects: {vgpu: {count: gpu}}", "expected a name such as example.com/gpu"),
        ("defaults: {compute: 101}", "default compute"),
        ("[1, 2]", "expected a map, not a list"),
        ("a: b: c", "mapping values"),
        ("\x00", "unacceptable character"),
        ("a: &x [*x]", "settings"),
        ("{" * 5000, "settings"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_settings(text.encode())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("order", QUEUES)
def test_every_queue_order_of_the_core_is_a_setting(order: str) -> None:
    assert parse_settings(f"queue: {{order: {order}}}".encode()).queue.order == order


def test_an_unknown_queue_order_is_refused_with_the_known_ones_but_by_agents_which_have_no_queue() -> None:
    with pytest.raises(InputError, match=f"unknown queue order 'lifo'; expected one of {', '.join(QUEUES)}"):
        parse_settings(b"queue: {order: lifo}")
    assert parse_settings(b"queue: {order: lifo}", check_queue=False).queue.order == "lifo"


def test_all_dialects_silenced_are_refused() -> None:
    names = [dialect.name for dialect in DIALECTS]
    with pytest.raises(InputError, match="all dialects are null"):
        parse_settings(f"dialects: {{{', '.join(f'{name}: null' for name in names)}}}".encode())


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_settings(tmp_path / "absent")
    (tmp_path / "large").write_bytes(b"#" * (2 << 20))
    with pytest.raises(InputError, match="larger than"):
        read_settings(tmp_path / "large")


def test_mlus_are_shared_by_number_only_if_the_settings_say_so() -> None:
    shared = parse_settings(b"dialects: {cambricon: {env-share: true}}").codec()
    assert [dialect.name for dialect in shared.dialects if dialect.env_share] == ["cambricon"]
    with pytest.raises(InputError, match=r"dialects\.vgpu\.env-share: only for cambricon"):
        parse_settings(b"dialects: {vgpu: {env-share: true}}")
